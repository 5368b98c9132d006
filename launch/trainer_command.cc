#include "launch/trainer_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

#include "launch/command.h"
#include "launch/log.h"
#include "launch/progress.h"
#include "launch/runtime.h"
#include "launch/train_loop.h"
#include "trainer_bridge/transport_choice.h"

namespace rollcast {

namespace {

/// What a run has done, also one that does not come to its end.
struct Run {
  std::vector<UpdateRecord> records;
  std::string saved;  // the last folder
};

void Train(const Config& config, TrainerClient& client, Run& run) {
  TrainLoop loop(config, client);
  if (config.sync.in_flight == "abort" && GeneratesDuringUpdates(config))
    LogWarn(
        "sync.in_flight is abort, and the next batch is generated while an update is published: "
        "every update throws away the completions in flight. keep and recompute throw away none; "
        "with rollout.max_policy_lag below rollout.interval none is in flight");
  bool warned = config.rollout.group_size == 1;
  if (warned)
    LogWarn(
        "rollout.group_size is 1: nothing to learn from: a reward counts by its difference from "
        "the "
        "others of its group; set it to 2 or more");
  client.WaitUntilStarted();
  const TrainerSettings& trainer = config.trainer;
  Progress progress;
  for (int update = 1; update <= trainer.updates; ++update) {
    run.records.push_back(loop.Update());
    if (!warned && NothingToLearn(run.records)) {
      warned = true;
      LogWarn(fmt::format(
          "update {}: nothing to learn from: all rewards of each group are equal, for five updates "
          "now; look at the scorer and at the completions, or raise rollout.group_size",
          update));
    }
    progress.Show(ProgressLine(run.records.back(), trainer.updates));
    const bool due =
        update == trainer.updates || (trainer.save_every > 0 && update % trainer.save_every == 0);
    if (due && !trainer.save.empty()) run.saved = loop.Save().string();
  }
  client.Finish(std::chrono::duration<double>(config.sync.deadline_s));
}

/// The table and where the results are; of an unfinished run, as far as it has come.
void Print(const Config& config, const Run& run) {
  std::string text = Table(run.records) + AbortedLine(run.records);
  if (const auto gain = RewardGain(run.records); gain.has_value())
    text += fmt::format("mean reward {:+.3f}, last {n} against first {n} of {} updates\n", *gain,
                        run.records.size(), fmt::arg("n", GainSpan(run.records.size())));
  if (!config.rollout.output.empty())
    text += fmt::format("trajectories: {}\n", config.rollout.output);
  if (!run.saved.empty()) text += fmt::format("model: {}\n", run.saved);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

int Report(const Config& config, const Run& run) {
  Print(config, run);
  if (config.trainer.min_reward_gain <= 0) return 0;
  const double gain = RewardGain(run.records).value();  // such a run has two updates or more
  if (gain >= config.trainer.min_reward_gain) return 0;
  LogError(fmt::format("the mean reward has changed by {:+.3f}, trainer.min_reward_gain is {:+.3f}",
                       gain, config.trainer.min_reward_gain));
  return kExitFailed;
}

}  // namespace

int RunTrainer(const Config& config) {
  return RunAsRank(config, Role::kTrainer, [&](World& world, const Roles& roles) {
    const auto rank = static_cast<size_t>(world.rank());
    const TransportChoice transport = ChooseTransport(config.sync.transport, roles);
    if (!transport.warning.empty()) LogWarn(transport.warning);
    TrainerClient client(ClientOptions(config));
    Run run;
    std::exception_ptr failure;
    // All MPI calls belong to the thread that has initialised it: this one serves, the other
    // trains.
    std::thread training([&] {
      try {
        Train(config, client, run);
      } catch (const std::exception& e) {
        failure = std::current_exception();
        client.Fail(e.what());
      }
    });
    std::exception_ptr end;
    try {
      client.Serve(world.communicator(), roles,
                   OfferedTransports(roles.ranks[rank].device, config.sync.nccl_library),
                   transport.name, ThrowIfSignalled);
    } catch (const std::exception&) {
      end = std::current_exception();
    }
    training.join();
    if ((end != nullptr || failure != nullptr) && !run.records.empty()) Print(config, run);
    // Where the bridge ended the job, the training thread only saw the consequence.
    if (end != nullptr) std::rethrow_exception(end);
    if (failure != nullptr) std::rethrow_exception(failure);
    return Report(config, run);
  });
}

}  // namespace rollcast
