#include "trainer_bridge/script_mpi.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

namespace rollcast {

namespace {

enum class Stage { kOutside, kEntering, kInside, kLeaving, kOver };

struct ScriptMpi {
  std::mutex mutex;
  Stage stage = Stage::kOutside;
  std::unique_ptr<MpiSession> session;
  pid_t process = 0;
};

// Never destroyed: MPI may still be ending on another thread when the program exits.
ScriptMpi& Mpi() {
  static ScriptMpi& mpi = *new ScriptMpi;
  return mpi;
}

void AtExit() {
  ScriptMpi& mpi = Mpi();
  if (getpid() != mpi.process) return;  // a fork of the program has no part in the job
  Stage stage;
  {
    const std::lock_guard lock(mpi.mutex);
    stage = mpi.stage;
    mpi.stage = Stage::kOver;
  }
  // Another thread is in MPI_Init or MPI_Finalize, and may be for ever.
  if (stage == Stage::kLeaving)
    std::fputs("rollcast: the job is done, but its ranks have not ended MPI\n", stderr);
  if (stage == Stage::kLeaving || stage == Stage::kEntering) std::_Exit(1);
}

}  // namespace

MpiSession& EnterScriptMpi() {
  ScriptMpi& mpi = Mpi();
  if (!MpiSession::Launched())
    throw Error(
        "this process was not started by mpirun: start the trainer beside its ranks, as in "
        "mpirun -np 1 python train.py : -np N rollcast worker -c F");
  {
    const std::lock_guard lock(mpi.mutex);
    if (mpi.stage != Stage::kOutside)
      throw Error("this process has joined a job already; a process is the trainer of one job");
    mpi.stage = Stage::kEntering;
    mpi.process = getpid();
    std::atexit(AtExit);
  }
  auto session = std::make_unique<MpiSession>(MpiHost::kScript);
  const std::lock_guard lock(mpi.mutex);
  mpi.session = std::move(session);
  mpi.stage = Stage::kInside;
  return *mpi.session;
}

void LeaveScriptMpi(std::chrono::milliseconds limit) {
  ScriptMpi& mpi = Mpi();
  {
    const std::lock_guard lock(mpi.mutex);
    RC_CHECK(mpi.stage == Stage::kInside);
    mpi.stage = Stage::kLeaving;
  }
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  std::thread([&mpi, ended] {
    try {
      mpi.session->Finalize();
      const std::lock_guard lock(mpi.mutex);
      if (mpi.stage == Stage::kLeaving) mpi.stage = Stage::kOver;
      ended->set_value();
    } catch (...) {
      ended->set_exception(std::current_exception());
    }
  }).detach();
  if (end.wait_for(limit) == std::future_status::ready) end.get();
}

}  // namespace rollcast
