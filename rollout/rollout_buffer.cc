#include "rollout/rollout_buffer.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace rollcast {

class LivePolicy::Lease final : public PolicyLease {
 public:
  explicit Lease(LivePolicy& policy) RC_NO_THREAD_SAFETY_ANALYSIS : policy_(policy) {
    policy_.mutex_.Lock();
  }
  ~Lease() override RC_NO_THREAD_SAFETY_ANALYSIS { policy_.mutex_.Unlock(); }
  PolicyVersion version() const override RC_NO_THREAD_SAFETY_ANALYSIS { return policy_.version_; }

 private:
  LivePolicy& policy_;
};

std::unique_ptr<PolicyLease> LivePolicy::Hold() { return std::make_unique<Lease>(*this); }

void LivePolicy::Publish(PolicyVersion version, const std::function<void()>& commit) {
  MutexLock lock(mutex_);
  RC_CHECK_GT(version, version_);
  if (commit) commit();
  version_ = version;
}

void CheckReuse(const ReuseConfig& config) {
  if (config.interval < 1)
    throw Error(StrCat("rollout.interval is ", config.interval, "; it must be at least 1"));
  if (config.max_policy_lag < 0)
    throw Error(
        StrCat("rollout.max_policy_lag is ", config.max_policy_lag, "; it must be at least 0"));
  if (config.max_tries < 1)
    throw Error(StrCat("rollout.max_tries is ", config.max_tries, "; it must be at least 1"));
  if (config.max_policy_lag < config.interval - 1)
    throw Error(
        StrCat("rollout.max_policy_lag is ", config.max_policy_lag, " and rollout.interval is ",
               config.interval, ": the last of ", config.interval,
               " optimizer steps that share a batch finds it ", config.interval - 1,
               " versions old. Set rollout.max_policy_lag to at least ", config.interval - 1,
               " or rollout.interval to at most ", config.max_policy_lag + 1));
}

namespace {

// The worst decision of a batch: any that is neither accept nor over lag, else the largest lag.
GateDecision WorstOf(const std::vector<Trajectory>& batch, PolicyVersion live,
                     PolicyVersion max_policy_lag) {
  GateDecision worst;
  for (const Trajectory& t : batch) {
    if (t.outcome != Outcome::kCompleted) continue;
    GateDecision decision =
        VersionGate(t.spans, static_cast<int64_t>(t.completion.size()), live, max_policy_lag);
    const bool broken = !decision.accepted() && decision.verdict != GateVerdict::kOverLag;
    if (!decision.accepted())
      decision.reason =
          StrCat("prompt ", t.prompt_id, " sample ", t.sample_index, " ", decision.reason);
    if (broken) return decision;
    if (decision.lag > worst.lag) worst = std::move(decision);
  }
  return worst;
}

}  // namespace

RolloutBuffer::RolloutBuffer(const ReuseConfig& config) : config_(config) { CheckReuse(config); }

RolloutBatch RolloutBuffer::Get(int64_t optimizer_step, PolicySource& policy,
                                const Generate& generate, const HandOver& hand_over) {
  const bool within_interval = held_ != nullptr && optimizer_step >= held_step_ &&
                               optimizer_step - held_step_ < config_.interval;
  std::shared_ptr<const std::vector<Trajectory>> held = std::exchange(held_, nullptr);
  if (within_interval) {
    const std::unique_ptr<PolicyLease> lease = policy.Hold();
    const PolicyVersion live = lease->version();
    const GateDecision decision = WorstOf(*held, live, config_.max_policy_lag);
    if (decision.accepted()) {
      RolloutBatch batch{held, live, decision.lag, true, 0};
      if (std::any_of(held->begin(), held->end(),
                      [&](const Trajectory& t) { return t.live_version_at_return != live; })) {
        // A copy: who got the batch before may still be reading it.
        auto copy = std::make_shared<std::vector<Trajectory>>(*held);
        for (Trajectory& t : *copy) t.live_version_at_return = live;
        batch.trajectories = std::move(copy);
      }
      if (hand_over) hand_over(batch);
      held_ = batch.trajectories;
      return batch;
    }
  }

  GateDecision decision;
  for (int attempt = 0; attempt < config_.max_tries; ++attempt) {
    auto fresh = std::make_shared<std::vector<Trajectory>>(generate(attempt));
    if (fresh->empty())
      throw Error(StrCat("no rollouts were generated for optimizer step ", optimizer_step));
    const std::unique_ptr<PolicyLease> lease = policy.Hold();
    const PolicyVersion live = lease->version();
    decision = WorstOf(*fresh, live, config_.max_policy_lag);
    if (decision.accepted()) {
      for (Trajectory& t : *fresh) t.live_version_at_return = live;
      RolloutBatch batch{std::move(fresh), live, decision.lag, false, attempt + 1};
      if (hand_over) hand_over(batch);
      held_ = batch.trajectories;
      held_step_ = optimizer_step;
      return batch;
    }
    if (decision.verdict != GateVerdict::kOverLag) throw Error(decision.reason);
  }
  throw Error(StrCat("optimizer step ", optimizer_step, ": ", config_.max_tries,
                     " batches of rollouts were over the policy lag, the last by ",
                     decision.over_by, ": ", decision.reason,
                     ". Raise rollout.max_policy_lag or publish less often"));
}

}  // namespace rollcast
