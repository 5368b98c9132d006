// A trainer in a process of the user's: the client, the thread that serves it, and how both begin
// and end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "trainer_bridge/roles.h"
#include "trainer_bridge/trainer_client.h"

namespace rollcast {

/// What a session takes from the configuration, which only launch/ can read.
struct TrainerSetup {
  RankInfo rank;
  std::chrono::duration<double> roles_limit{120};  // to hear from every rank
  TrainerClientOptions client;
  std::string transport = "auto";                // ChooseTransport
  std::string nccl_library;                      // OfferedTransports
  bool takes_device_memory = false;              // of a GPU
  std::function<void(const std::string&)> warn;  // may be null
  UpdateOptions update;  // what an update is unless the caller says otherwise
  int group_size = 1;
  uint64_t seed = 0;
  std::string config_json;  // {table: {key: value}}
  SamplingParams sampling;  // what completions are drawn by, unless the caller says otherwise
  /// Rows of a prompt file, sampled by `sampling` where they do not say otherwise. Throws Error
  /// with the row's number.
  std::function<std::vector<PromptGroup>(const std::string& rows, const SamplingParams& sampling)>
      read_prompts;
};

/// Thread rule: as TrainerClient. The session's own thread makes all MPI calls.
class TrainerSession {
 public:
  /// Joins the job. Throws what script_mpi.h and ExchangeRoles throw.
  explicit TrainerSession(TrainerSetup setup);
  /// A job that has not been finished fails.
  ~TrainerSession();
  TrainerSession(const TrainerSession&) = delete;
  TrainerSession& operator=(const TrainerSession&) = delete;

  const TrainerSetup& setup() const { return setup_; }
  const Roles& roles() const { return roles_; }
  /// Once every rank has its weights; waits for them. Throws Error with the reason when the job is
  /// over.
  TrainerClient& client();
  PolicyVersion LiveVersion() const { return client_.LiveVersion(); }

  /// TrainerClient::Finish, and leaves MPI.
  void Finish(std::chrono::duration<double> timeout);
  /// TrainerClient::Interrupt, from any thread.
  void Interrupt() { client_.Interrupt(); }
  /// TrainerClient::Fail; the peers are told before the session is gone.
  void Fail(const std::string& why) { client_.Fail(why); }

 private:
  void Run(std::promise<void>& joined);

  const TrainerSetup setup_;
  TrainerClient client_;
  Roles roles_;
  std::atomic<bool> started_{false};  // every rank has its weights
  std::thread bridge_;
};

}  // namespace rollcast
