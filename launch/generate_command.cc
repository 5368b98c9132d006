#include "launch/generate_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "engine/model_config.h"
#include "launch/command.h"
#include "launch/log.h"
#include "launch/progress.h"
#include "launch/prompts.h"
#include "launch/rollout_process.h"

namespace rollcast {

namespace {

constexpr size_t kWarnings = 5;  // refusals and failures that are told one by one

/// On the coordinator: keeps the queue short and filled, and counts what comes back.
class Generation {
 public:
  Generation(const Config& config, std::vector<Prompt> prompts, int ranks)
      : config_(config), prompts_(std::move(prompts)) {
    const int load = std::max(config.engine.max_running, config.rollout.max_outstanding);
    window_ = ranks * (2 * load / config.rollout.group_size + 2);
  }

  /// One round; true when all prompts have been completed.
  bool Drive(Coordinator& coordinator) {
    std::vector<GroupWork> groups;
    for (; next_ < prompts_.size() &&
           coordinator.pending_groups() + static_cast<int>(groups.size()) < window_;
         ++next_)
      groups.push_back(MakeWork(next_));
    if (!groups.empty()) coordinator.Submit(std::move(groups));
    for (const Trajectory& t : coordinator.TakeReady(std::numeric_limits<int>::max())) Count(t);
    const double seconds = Elapsed();
    progress_.Show(fmt::format("generate: {} of {} completions, {:.0f} tokens/s", completions_,
                               prompts_.size() * static_cast<size_t>(config_.rollout.group_size),
                               static_cast<double>(tokens_) / std::max(seconds, 1e-3)));
    return next_ == prompts_.size() && coordinator.pending_groups() == 0;
  }

  int Report() const {
    std::string outcomes;
    for (size_t i = 0; i < outcomes_.size(); ++i)
      if (outcomes_[i] > 0)
        outcomes += fmt::format("{}{} {}", outcomes.empty() ? "" : ", ", outcomes_[i],
                                Name(static_cast<Outcome>(i)));
    const int64_t scored = outcomes_[static_cast<size_t>(Outcome::kCompleted)];
    std::string reward;
    if (scored > 0 && config_.scorer.kind != "none")
      reward = fmt::format(", mean reward {:.4f}", reward_ / static_cast<double>(scored));
    std::printf("%s\n", fmt::format("{} completions of {} prompts in {:.1f} s ({:.0f} tokens/s): "
                                    "{}{}\n{}",
                                    completions_, prompts_.size(), Elapsed(),
                                    static_cast<double>(tokens_) / std::max(Elapsed(), 1e-3),
                                    outcomes, reward, config_.rollout.output)
                            .c_str());
    if (bad_ > 0) LogError(fmt::format("{} completions were refused or failed", bad_));
    return bad_ > 0 ? kExitFailed : 0;
  }

 private:
  GroupWork MakeWork(size_t index) const {
    PromptGroup prompt = ToGroup(prompts_[index], config_.rollout);
    GroupWork work;
    work.group_id = index + 1;
    work.prompt_id = std::move(prompt.prompt_id);
    work.prompt = std::move(prompt.tokens);
    work.text = std::move(prompt.text);
    work.add_special_tokens = prompt.add_special_tokens;
    work.reference = std::move(prompt.reference);
    work.metadata = std::move(prompt.metadata);
    work.group_size = config_.rollout.group_size;
    work.sampling = config_.sampling;
    work.sampling.seed = config_.rollout.seed;
    return work;
  }

  void Count(const Trajectory& t) {
    ++completions_;
    ++outcomes_.at(static_cast<size_t>(t.outcome));
    tokens_ += static_cast<int64_t>(t.completion.size());
    if (t.outcome == Outcome::kCompleted) reward_ += t.reward;
    if (t.outcome != Outcome::kRefused && t.outcome != Outcome::kFailed) return;
    if (++bad_ <= kWarnings)
      LogWarn(fmt::format("prompt \"{}\", sample {}: {}: {}", t.prompt_id, t.sample_index,
                          Name(t.outcome), t.message));
  }

  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  const Config& config_;
  const std::vector<Prompt> prompts_;
  int window_ = 0;
  size_t next_ = 0;
  int64_t completions_ = 0, tokens_ = 0;
  size_t bad_ = 0;
  double reward_ = 0;
  std::array<int64_t, 6> outcomes_{};
  const Clock::time_point begin_ = Clock::now();
  Progress progress_;
};

}  // namespace

int RunGenerate(const Config& config) {
  return RunAsRank(config, Role::kWorker, [&](World& world, const Roles& roles) {
    if (roles.trainer() >= 0)
      throw Error("this job has a trainer; its rollout ranks are started with `rollcast worker`");
    if (world.rank() != roles.workers().front()) {
      RunRolloutRank(config, world, roles, nullptr);
      return 0;
    }
    const int vocab_size = ModelConfig::Load(config.model.path).vocab_size;
    std::unique_ptr<Generation> generation;
    std::vector<Prompt> prompts = LoadPrompts(config, vocab_size);
    RunRolloutRank(config, world, roles, [&](Coordinator& coordinator) {
      // Made when all ranks are ready, so that its clock measures generation alone.
      if (generation == nullptr)
        generation = std::make_unique<Generation>(config, std::move(prompts), world.size());
      return generation->Drive(coordinator);
    });
    return generation->Report();
  });
}

}  // namespace rollcast
