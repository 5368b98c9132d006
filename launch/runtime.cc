#include "launch/runtime.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "kernels/device_transfer.h"
#include "launch/command.h"
#include "launch/log.h"
#include "launch/signals.h"
#include "trainer_bridge/mpi_communicator.h"
#include "trainer_bridge/rollout_rank.h"

namespace rollcast {

namespace {

// mpirun may still be starting processes on other hosts.
constexpr double kLeastRolesLimit_s = 120;

// Between the end of a job that fails on one rank and that rank's exit. mpirun kills the others
// when the first one has gone: with SIGTERM, or, where it has sent that already, with SIGKILL at
// once. Until then the coordinator has to close its file and each rank to state its error. Without
// an exit mpirun waits 1 s between SIGTERM and SIGKILL.
constexpr auto kLastWords = std::chrono::milliseconds(700);

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// The number in the first of the environment's `variables` that is set.
std::optional<int> FromEnvironment(std::initializer_list<const char*> variables) {
  for (const char* variable : variables)
    if (const char* text = std::getenv(variable); text != nullptr) return std::atoi(text);
  return std::nullopt;
}

int LocalRanks() {
  return std::max(FromEnvironment({"OMPI_COMM_WORLD_LOCAL_SIZE"}).value_or(1), 1);
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

}  // namespace

World::World(std::chrono::duration<double> start_limit) {
  if (!MpiSession::Launched()) {
    communicator_ = std::move(MakeThreadCommunicators(1).front());
    return;
  }
  session_ = std::make_unique<MpiSession>(MpiHost::kRollcast, start_limit);
  communicator_ = session_->MakeCommunicator();
}

World::~World() = default;

void World::End(int status) {
  if (session_ == nullptr) return;
  communicator_.reset();
  session_->Finalize(status);
}

void World::Leave(int status) {
  if (size() == 1) return End(status);
  std::this_thread::sleep_for(kLastWords);
  communicator_->Abandon();
  communicator_.reset();
  session_->Leave(status);
}

void RequireOneProcess(const std::string& what) {
  if (!MpiSession::Launched()) return;
  // Slurm says it in a variable of its own.
  const int processes =
      FromEnvironment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}).value_or(1);
  if (processes > 1)
    throw Error(StrCat(what, " works in one process, and ", processes,
                       " have been started: start it without mpirun"));
}

bool IsFirstOfItsCommandLine() {
  const int rank = FromEnvironment({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}).value_or(0);
  // Of Open MPI: how many processes each of the command lines between colons has, in their order.
  const char* counts = std::getenv("OMPI_APP_CTX_NUM_PROCS");
  std::istringstream sizes(counts == nullptr ? "" : counts);
  int first = 0;
  for (int size = 0; first < rank && sizes >> size;) first += size;
  return rank == first;
}

void ThrowIfSignalled() {
  if (const int signal = StopSignal(); signal != 0) throw Stopped(signal);
}

int RunAsRank(const Config& config, Role role,
              const std::function<int(World& world, const Roles& roles)>& body,
              const std::string& trainer_device) {
  CatchSignals(MpiSession::Launched() ? SecondSignal::kIsIgnored : SecondSignal::kEndsProcess);
  World world(RolesLimit(config.sync));
  const bool alone = world.size() == 1;
  OpenLog(config.log, alone ? "" : fmt::format("{}, rank {}", Name(role), world.rank()));
  int status = 0;
  std::exception_ptr failure;
  // Of several ranks each states its error, and at once: beside a dead peer, or with mpirun about
  // to kill, the rest may take longer than there is time.
  const auto fail = [&](const std::exception& e) {
    failure = std::current_exception();
    status = dynamic_cast<const Error*>(&e) != nullptr ? kExitFailed : kExitBug;
    if (!alone) LogError(e.what());
  };
  try {
    if (alone && role == Role::kTrainer)
      throw Error(
          "the trainer is alone; start workers beside it: mpirun -np 1 rollcast trainer -c F : "
          "-np N rollcast worker -c F");
    const auto limit = std::chrono::duration_cast<Clock::duration>(RolesLimit(config.sync));
    const Roles roles = ExchangeRoles(
        world.communicator(), DescribeRank(config, role, trainer_device), Clock::now() + limit);
    try {
      status = body(world, roles);
    } catch (const std::exception& e) {
      fail(e);
      TellOfFailure(world.communicator(), roles, e);
    }
  } catch (const std::exception& e) {
    fail(e);
  }
  if (failure != nullptr)
    world.Leave(status);
  else
    world.End(status);
  // A process alone fails like any other command.
  if (alone && failure != nullptr) std::rethrow_exception(failure);
  return status;
}

RankInfo DescribeRank(const Config& config, Role role, const std::string& trainer_device) {
  RankInfo info{role, ROLLCAST_VERSION, SharedSettings(config), HostName()};
  info.device = role == Role::kTrainer ? trainer_device : config.kernels.device;
  if (info.device != "cpu") info.gpus = GpuIdentities();
  return info;
}

std::chrono::duration<double> RolesLimit(const SyncSettings& sync) {
  // A trainer in Python may load its own model before it joins.
  return std::chrono::duration<double>(std::max(kLeastRolesLimit_s, sync.startup_s));
}

std::chrono::duration<double> SilenceLimit(const SyncSettings& sync) {
  return std::chrono::duration<double>(
      std::max(std::min(sync.deadline_s, 3 * sync.heartbeat_s), 1.5 * sync.heartbeat_s));
}

TrainerClientOptions ClientOptions(const Config& config) {
  TrainerClientOptions options;
  options.heartbeat = std::chrono::duration<double>(config.sync.heartbeat_s);
  options.silence = SilenceLimit(config.sync);
  options.startup = std::chrono::duration<double>(config.sync.startup_s);
  return options;
}

UpdateOptions UpdateDefaults(const SyncSettings& sync) {
  UpdateOptions options;
  options.mode = ParseUpdateMode(sync.mode);
  options.in_flight = ParseInFlightPolicy(sync.in_flight.c_str());
  options.deadline = std::chrono::duration<double>(sync.deadline_s);
  options.drain_limit = std::chrono::duration<double>(sync.drain_limit_s);
  return options;
}

BackendOptions ResolveThreads(BackendOptions options) {
  if (options.threads > 0) return options;
  const int usable = UsableCores();
  const bool bound = usable < static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  options.threads = bound ? usable : std::max(usable / LocalRanks(), 1);
  return options;
}

}  // namespace rollcast
