#include "tests/testing/update_ranks.h"

namespace rollcast::testing {

UpdateRanks::UpdateRanks(int ranks, const Options& options) : transports_(options.transports) {
  auto communicators = MakeThreadCommunicators(ranks + 1, options.piece_bytes);
  std::vector<int> workers;
  for (int i = 0; i <= ranks; ++i) {
    std::unique_ptr<Communicator> communicator = std::move(communicators[static_cast<size_t>(i)]);
    if (const auto it = options.faults.find(i); it != options.faults.end())
      communicator = std::make_unique<FaultyCommunicator>(std::move(communicator), it->second);
    if (i == 0) {
      trainer_ = std::move(communicator);
      continue;
    }
    workers.push_back(i);
    auto rank = std::make_unique<Rank>();
    rank->communicator = std::move(communicator);
    rank->target = std::make_unique<ToyUpdateTarget>(!options.no_staging.contains(i));
    ranks_.push_back(std::move(rank));
  }
  publisher_ = std::make_unique<WeightPublisher>(
      *trainer_, workers, Transports(0), options.transport, [this](Message) { ++other_messages_; });
  for (auto& rank : ranks_) {
    rank->thread = std::thread([this, &rank = *rank] { RunRank(rank); });
    if (options.step) rank->stepper = std::thread([this, &rank = *rank] { RunStepper(rank); });
  }
}

UpdateRanks::~UpdateRanks() {
  stop_ = true;
  for (auto& rank : ranks_) {
    rank->thread.join();
    if (rank->stepper.joinable()) rank->stepper.join();
  }
}

std::vector<WeightTransportMaker> UpdateRanks::Transports(int rank) const {
  if (transports_) return transports_(rank);
  return {MessageWeightTransport()};
}

void UpdateRanks::RunRank(Rank& rank) {
  try {
    WeightReceiver* receiver_ptr = nullptr;
    WeightReceiver::Callbacks callbacks;
    const auto round = [&] {
      while (std::optional<Message> message = rank.communicator->Poll()) {
        if (receiver_ptr->Handle(*message)) continue;
        // Liveness goes on in the middle of a transfer: a heartbeat is answered at once.
        if (TypeOf(message->bytes) == MessageType::kHeartbeat)
          rank.communicator->Send(message->source, std::move(message->bytes));
      }
    };
    callbacks.service = round;
    callbacks.check = [](const UpdateAnnounce& announce) -> std::string {
      return announce.version == 13 ? "version 13 is over the lag limit" : "";
    };
    callbacks.on_report = [&](const SyncReport& report) {
      const std::lock_guard lock(rank.mutex);
      rank.reports.push_back(report);
    };
    WeightReceiver receiver(*rank.communicator, *rank.target, Transports(rank.communicator->rank()),
                            callbacks);
    receiver_ptr = &receiver;
    Backoff backoff;
    while (!stop_) {
      round();
      receiver.Tick();
      backoff.Wait();
    }
  } catch (const std::exception& error) {
    const std::lock_guard lock(rank.mutex);
    rank.ended_with = error.what();
  }
}

void UpdateRanks::RunStepper(Rank& rank) {
  while (!stop_) {
    const ToyUpdateTarget::Snapshot seen = rank.target->Step();
    if (!seen.torn) {
      const std::lock_guard lock(mutex_);
      const auto it = expected_.find(seen.version);
      if (it != expected_.end() && it->second != seen.tensors)
        step_fault_ = StrCat("mixed weights under version ", seen.version);
    }
    std::this_thread::yield();
  }
}

std::string UpdateRanks::ended_with(int rank) {
  Rank& r = *ranks_.at(static_cast<size_t>(rank - 1));
  const std::lock_guard lock(r.mutex);
  return r.ended_with;
}

std::vector<SyncReport> UpdateRanks::reports(int rank) {
  Rank& r = *ranks_.at(static_cast<size_t>(rank - 1));
  const std::lock_guard lock(r.mutex);
  return r.reports;
}

void UpdateRanks::Expect(PolicyVersion version, const TensorSet& set) {
  const std::lock_guard lock(mutex_);
  expected_[version] = BytesOf(set);
}

std::string UpdateRanks::step_fault() {
  const std::lock_guard lock(mutex_);
  return step_fault_;
}

}  // namespace rollcast::testing
