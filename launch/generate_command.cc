#include "launch/generate_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model_config.h"
#include "launch/command.h"
#include "launch/log.h"
#include "launch/progress.h"
#include "launch/prompts.h"
#include "launch/rollout_process.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

constexpr size_t kWarnings = 5;  // refusals and failures that are told one by one
constexpr size_t kPreviewCharacters = 100;

/// On the coordinator: keeps the queue short and filled, and counts what comes back.
class Generation {
 public:
  Generation(const Config& config, uint64_t show, std::vector<Prompt> prompts, int ranks)
      : config_(config), show_(show), prompts_(std::move(prompts)) {
    const int load = std::max(config.engine.max_running, config.rollout.max_outstanding);
    window_ = ranks * (2 * load / config.rollout.group_size + 2);
  }

  /// One round; true when all prompts have been completed.
  bool Drive(Coordinator& coordinator) {
    const bool stopping = !coordinator.stop_reason().empty();
    if (stopping && !told_ && coordinator.pending_groups() > 0) {
      told_ = true;
      LogWarn(fmt::format(
          "{}: ends with the step under way and what is being scored{}", coordinator.stop_reason(),
          config_.scorer.kind == "command" || config_.scorer.kind == "http"
              ? fmt::format(", up to scorer.deadline_s = {} s", config_.scorer.deadline_s)
              : ""));
    }
    std::vector<GroupWork> groups;
    for (; !stopping && next_ < prompts_.size() &&
           coordinator.pending_groups() + static_cast<int>(groups.size()) < window_;
         ++next_)
      groups.push_back(MakeWork(next_));
    if (!groups.empty()) coordinator.Submit(std::move(groups));
    for (const Trajectory& t : coordinator.TakeReady(std::numeric_limits<int>::max())) Count(t);
    seconds_ = std::max(std::chrono::duration<double>(Clock::now() - begin_).count(), 1e-3);
    progress_->Show(fmt::format("generate: {} of {} completions, {:.0f} tokens/s", completions_,
                                prompts_.size() * static_cast<size_t>(config_.rollout.group_size),
                                static_cast<double>(tokens_) / seconds_));
    return (stopping || next_ == prompts_.size()) && coordinator.pending_groups() == 0;
  }

  /// `stopped`: why the job has ended early, or empty. Returns the exit status.
  int Report(const std::string& stopped) {
    progress_.reset();  // its last line stands before what follows
    for (const auto& [place, line] : shown_) std::printf("%s\n", line.c_str());
    std::string outcomes;
    for (size_t i = 0; i < outcomes_.size(); ++i)
      if (outcomes_[i] > 0)
        outcomes += fmt::format("{}{} {}", outcomes.empty() ? "" : ", ", outcomes_[i],
                                Name(static_cast<Outcome>(i)));
    const int64_t scored = outcomes_[static_cast<size_t>(Outcome::kCompleted)];
    std::string reward;
    if (scored > 0 && config_.scorer.kind != "none")
      reward = fmt::format(", mean reward {:.4f}", reward_ / static_cast<double>(scored));
    std::printf("%s\n",
                fmt::format("{} completions of {} prompts in {:.2f} s ({:.0f} tokens/s): "
                            "{}{}\n{}",
                            completions_, prompts_.size(), seconds_,
                            static_cast<double>(tokens_) / seconds_, outcomes, reward,
                            config_.rollout.output.empty() ? "no file: rollout.output is empty"
                                                           : config_.rollout.output)
                    .c_str());
    if (!stopped.empty())
      LogError(fmt::format("{}: {} completions were cut short, {} prompts not begun", stopped,
                           outcomes_[static_cast<size_t>(Outcome::kAborted)],
                           prompts_.size() - next_));
    if (bad_ > 0)
      LogError(fmt::format("{} completions were refused, failed or could not be scored", bad_));
    return bad_ > 0 || !stopped.empty() ? kExitFailed : 0;
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
    work.sampling = prompt.sampling.value_or(config_.sampling);
    if (!prompt.sampling.has_value()) work.sampling.seed = config_.rollout.seed;
    return work;
  }

  void Count(const Trajectory& t) {
    ++completions_;
    ++outcomes_.at(static_cast<size_t>(t.outcome));
    tokens_ += static_cast<int64_t>(t.completion.size());
    if (t.outcome == Outcome::kCompleted) reward_ += t.reward;
    const uint64_t place = (t.group_id - 1) * static_cast<uint64_t>(t.group_size) +
                           static_cast<uint64_t>(t.sample_index);
    if (place < show_) shown_[place] = Preview(t, config_.scorer.kind != "none");
    if (t.outcome != Outcome::kRefused && t.outcome != Outcome::kFailed &&
        t.outcome != Outcome::kScoringFailed)
      return;
    if (++bad_ <= kWarnings)
      LogWarn(fmt::format("prompt \"{}\", sample {}: {}: {}", t.prompt_id, t.sample_index,
                          Name(t.outcome), t.message));
  }

  const Config& config_;
  const uint64_t show_;
  const std::vector<Prompt> prompts_;
  std::map<uint64_t, std::string> shown_;  // by place in the order of prompts and samples
  int window_ = 0;
  size_t next_ = 0;
  int64_t completions_ = 0, tokens_ = 0;
  size_t bad_ = 0;
  bool told_ = false;  // that it is stopping
  double reward_ = 0;
  std::array<int64_t, 6> outcomes_{};
  const Clock::time_point begin_ = Clock::now();
  double seconds_ = 0;  // until the last round
  std::optional<Progress> progress_{std::in_place};
};

}  // namespace

std::string Preview(const Trajectory& t, bool with_reward) {
  std::string line = OneLine(t.prompt_id, kPreviewCharacters);
  if (t.group_size > 1) line += fmt::format(" #{}", t.sample_index);
  if (t.outcome != Outcome::kCompleted)
    line += fmt::format(" [{}]", Name(t.outcome));
  else if (with_reward)
    line += fmt::format(" [reward {:g}]", t.reward);
  if (t.text.empty() && !t.completion.empty())
    return line + fmt::format(": ({} tokens without text)", t.completion.size());
  return line + ": " + OneLine(t.text.empty() ? t.message : t.text, kPreviewCharacters);
}

int RunGenerate(const Config& config, uint64_t show) {
  return RunAsRank(config, Role::kWorker, [&](World& world, const Roles& roles) {
    if (roles.trainer() >= 0)
      throw Error("this job has a trainer; its rollout ranks are started with `rollcast worker`");
    if (world.rank() != roles.workers().front()) {
      return RunRolloutRank(config, world, roles, nullptr).empty() ? 0 : kExitFailed;
    }
    const int vocab_size = ModelConfig::Load(config.model.path).vocab_size;
    std::unique_ptr<Generation> generation;
    std::vector<Prompt> prompts = LoadPrompts(config, vocab_size);
    const std::string stopped = RunRolloutRank(config, world, roles, [&](Coordinator& coordinator) {
      // Made when all ranks are ready, so that its clock measures generation alone.
      if (generation == nullptr)
        generation = std::make_unique<Generation>(config, show, std::move(prompts), world.size());
      return generation->Drive(coordinator);
    });
    return generation->Report(stopped);
  });
}

}  // namespace rollcast
