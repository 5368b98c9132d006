#include "trainer_bridge/trainer_session.h"

#include <memory>
#include <utility>

#include "trainer_bridge/rollout_rank.h"
#include "trainer_bridge/script_mpi.h"
#include "trainer_bridge/transport_choice.h"

namespace rollcast {

namespace {

// For the ranks to end MPI after a job that has ended well.
constexpr auto kLeaveLimit = std::chrono::seconds(10);

}  // namespace

TrainerSession::TrainerSession(TrainerSetup setup)
    : setup_(std::move(setup)), client_(setup_.client) {
  std::promise<void> joined;
  std::future<void> result = joined.get_future();
  bridge_ = std::thread([this, &joined] { Run(joined); });
  try {
    result.get();
  } catch (...) {
    bridge_.join();
    throw;
  }
}

TrainerSession::~TrainerSession() {
  client_.Fail("the trainer has gone without finishing the job");  // nothing after Finish
  bridge_.join();
}

TrainerClient& TrainerSession::client() {
  if (!started_) {
    client_.WaitUntilStarted();
    started_ = true;
  }
  client_.CheckRunning();
  return client_;
}

void TrainerSession::Finish(std::chrono::duration<double> timeout) { client().Finish(timeout); }

void TrainerSession::Run(std::promise<void>& joined) {
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = EnterScriptMpi().MakeCommunicator();
    const auto limit = std::chrono::duration_cast<Clock::duration>(setup_.roles_limit);
    roles_ = ExchangeRoles(*communicator, setup_.rank, Clock::now() + limit);
  } catch (...) {
    if (communicator != nullptr) communicator->Abandon();
    joined.set_exception(std::current_exception());
    return;
  }
  joined.set_value();
  try {
    const TransportChoice choice = ChooseTransport(setup_.transport, roles_);
    if (!choice.warning.empty() && setup_.warn) setup_.warn(choice.warning);
    const std::string& device = roles_.ranks.at(static_cast<size_t>(roles_.trainer())).device;
    client_.Serve(*communicator, roles_, OfferedTransports(device, setup_.nccl_library),
                  choice.name, nullptr);
  } catch (const std::exception& e) {
    // Every call of the client now throws it.
    TellOfFailure(*communicator, roles_, e);
    communicator->Abandon();
    return;
  }
  communicator.reset();
  try {
    LeaveScriptMpi(kLeaveLimit);
  } catch (const std::exception&) {
    // The job is done and its file complete; how MPI ends cannot spoil it.
  }
}

}  // namespace rollcast
