// A coordinator whose every rank is played by the test, with a clock that stands still.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer_bridge/coordinator.h"

namespace rollcast::testing {

constexpr int kTrainer = 0;

class CoordinatorTest : public ::testing::Test {
 protected:
  void Make(std::vector<int> workers, int max_tries = 3, PolicyVersion max_lag = 1,
            int trainer = kTrainer) {
    CoordinatorOptions options;
    options.workers = std::move(workers);
    options.trainer = trainer;
    options.stop_grace = std::chrono::seconds(2);
    options.max_tries = max_tries;
    options.max_policy_lag = max_lag;
    CoordinatorSeams seams;
    seams.send = [this](int rank, JobMessage message) {
      sent_.emplace_back(rank, std::move(message));
    };
    seams.live_version = [this] { return live_; };
    seams.append = [this](std::span<const Trajectory> t) {
      appended_.insert(appended_.end(), t.begin(), t.end());
      order_.push_back("append");
    };
    workers_ = options.workers;
    coordinator_ = std::make_unique<Coordinator>(options, seams, now_);
  }

  void Start(int room = 64) {
    for (int rank : workers_) Say(rank, ReadyMessage{1, 2});
    for (int rank : workers_) Pull(rank, room);
  }

  void Say(int rank, JobMessage message) { coordinator_->Handle(rank, std::move(message), now_); }
  void Pull(int rank, int room) { Say(rank, PullMessage{room, hand_outs_[rank]}); }

  void Submit(uint64_t group_id, int group_size) {
    SubmitMessage submit;
    GroupWork work;
    work.group_id = group_id;
    work.prompt_id = StrCat("p", group_id);
    work.prompt = {1, 2, 3};
    work.group_size = group_size;
    submit.groups.push_back(work);
    Say(kTrainer, submit);
  }

  // All messages of one kind to `rank` since the last call.
  template <class M>
  std::vector<M> Take(int rank) {
    std::vector<M> taken;
    std::erase_if(sent_, [&](auto& entry) {
      if (entry.first != rank || !std::holds_alternative<M>(entry.second)) return false;
      taken.push_back(std::get<M>(std::move(entry.second)));
      return true;
    });
    return taken;
  }

  // The groups that `rank` has been given since the last call.
  std::vector<GroupWork> TakeWork(int rank) {
    std::vector<GroupWork> groups;
    for (WorkMessage& message : Take<WorkMessage>(rank)) {
      if (!message.groups.empty()) ++hand_outs_[rank];
      for (GroupWork& group : message.groups) groups.push_back(std::move(group));
    }
    return groups;
  }

  static Trajectory Done(const GroupWork& work, int32_t sample, PolicyVersion version,
                         Outcome outcome = Outcome::kCompleted) {
    Trajectory t;
    t.prompt_id = work.prompt_id;
    t.group_id = work.group_id;
    t.group_size = work.group_size;
    t.sample_index = sample;
    t.attempt = work.attempt;
    t.completion = {5, 6};
    t.spans = {{0, 2, version}};
    t.outcome = outcome;
    return t;
  }

  void Return(int rank, const GroupWork& work, PolicyVersion version) {
    ResultsMessage results;
    for (int32_t sample : work.samples) results.trajectories.push_back(Done(work, sample, version));
    Say(rank, results);
  }

  void Collect(int groups, double timeout_s = 100) {
    Say(kTrainer, CollectMessage{++request_, groups, timeout_s});
  }

  Clock::time_point now_{};
  PolicyVersion live_ = 0;
  std::vector<int> workers_;
  std::map<int, int64_t> hand_outs_;
  uint64_t request_ = 0;
  std::vector<std::pair<int, JobMessage>> sent_;
  std::vector<Trajectory> appended_;
  std::vector<std::string> order_;
  std::unique_ptr<Coordinator> coordinator_;
};

}  // namespace rollcast::testing
