// A trainer (rank 0, the calling thread) and rollout ranks as threads, around toy weights.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/faulty_communicator.h"
#include "tests/testing/toy_update_target.h"

namespace rollcast::testing {

/// Of every tensor of the toy ranks, from `seed`.
inline TensorSet Weights(int seed) { return MakeTensors(ToyUpdateTarget::Manifest(), seed); }

inline UpdateOptions With(UpdateMode mode, double deadline_s = 20) {
  UpdateOptions options;
  options.mode = mode;
  options.deadline = std::chrono::duration<double>(deadline_s);
  return options;
}

/// Rollout ranks 1..n, each a thread that polls, handles and ticks until the end or an exception.
class UpdateRanks {
 public:
  struct Options {
    size_t piece_bytes = 64;
    std::map<int, std::vector<Fault>> faults;  // by rank; 0 = the trainer
    std::map<int, bool> no_staging;            // ranks without memory for a staging arena
    /// What a rank offers; null: MPI's alone.
    std::function<std::vector<WeightTransportMaker>(int rank)> transports;
    std::string transport = "mpi";  // that updates go by
    bool step = false;  // a second thread a rank calls Step all the time and checks what it sees
  };

  UpdateRanks(int ranks, const Options& options);
  ~UpdateRanks();

  WeightPublisher& publisher() { return *publisher_; }
  ToyUpdateTarget& target(int rank) { return *ranks_.at(static_cast<size_t>(rank - 1))->target; }
  /// The message of the exception that ended the rank's thread, or empty.
  std::string ended_with(int rank);
  /// What Step may see from version v on; ranks with another content under v are reported.
  void Expect(PolicyVersion version, const TensorSet& set);
  /// Empty when every Step saw what was expected.
  std::string step_fault();
  int other_messages() const { return other_messages_; }
  std::vector<SyncReport> reports(int rank);

 private:
  struct Rank {
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<ToyUpdateTarget> target;
    std::thread thread, stepper;
    std::mutex mutex;  // of the two below
    std::string ended_with;
    std::vector<SyncReport> reports;
  };

  std::vector<WeightTransportMaker> Transports(int rank) const;
  void RunRank(Rank& rank);
  void RunStepper(Rank& rank);

  const std::function<std::vector<WeightTransportMaker>(int rank)> transports_;
  std::unique_ptr<Communicator> trainer_;
  std::unique_ptr<WeightPublisher> publisher_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<bool> stop_{false};
  int other_messages_ = 0;
  std::mutex mutex_;  // of the two below
  std::map<PolicyVersion, std::map<std::string, std::vector<std::byte>>> expected_;
  std::string step_fault_;
};

}  // namespace rollcast::testing
