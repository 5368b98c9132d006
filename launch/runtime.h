// What the processes of a job have in common: the world of ranks, and how they start and end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "launch/config.h"
#include "trainer_bridge/communicator.h"
#include "trainer_bridge/mpi_communicator.h"
#include "trainer_bridge/roles.h"
#include "trainer_bridge/trainer_client.h"

namespace rollcast {

/// The ranks that were started together: those of mpirun, or this process alone.
class World {
 public:
  /// Initialises MPI when mpirun started this process, which ends it when others have not done so
  /// within `start_limit`. The calling thread is the bridge thread.
  explicit World(std::chrono::duration<double> start_limit);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Communicator& communicator() { return *communicator_; }
  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  /// Leaves the world of a job that has ended in order: all ranks do. `status` is this process's.
  void End(int status);
  /// Leaves a world in which others may be gone or about to be killed: with other ranks in it, this
  /// ends the process with `status` (not 0) and waits for nobody.
  void Leave(int status);

 private:
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Communicator> communicator_;
};

/// Runs `body` as one rank of a job and returns the process's exit status: signals are caught, the
/// log is open, roles and configuration are agreed on by all ranks. An exception that leaves `body`
/// is logged with the rank and told to the coordinator (or by it to all), so that no rank is left
/// half alive. `trainer_device`: where a trainer's tensors lie.
int RunAsRank(const Config& config, Role role,
              const std::function<int(World& world, const Roles& roles)>& body,
              const std::string& trainer_device = "cpu");

/// What a rank of this configuration says of itself at start. A trainer says on which device its
/// tensors lie.
RankInfo DescribeRank(const Config& config, Role role, const std::string& trainer_device = "cpu");

/// For `what` that does all its work in one process. Throws Error when mpirun has started several.
void RequireOneProcess(const std::string& what);
/// Whether this process is the one to print what all that mpirun has started with the same command
/// line would print alike; true without mpirun.
bool IsFirstOfItsCommandLine();

/// Throws Stopped when SIGINT or SIGTERM has come.
void ThrowIfSignalled();

/// How long ranks are waited for until all have said so.
std::chrono::duration<double> RolesLimit(const SyncSettings& sync);

/// Heartbeats and the silence after which a peer is lost, from [sync].
std::chrono::duration<double> SilenceLimit(const SyncSettings& sync);
TrainerClientOptions ClientOptions(const Config& config);
/// A whole update as [sync] has it.
UpdateOptions UpdateDefaults(const SyncSettings& sync);

/// `options` with `threads` resolved where it is 0: the cores that this process may use, shared
/// with the other ranks of this host unless mpirun has bound them apart.
BackendOptions ResolveThreads(BackendOptions options);

}  // namespace rollcast
