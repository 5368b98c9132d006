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

std::vector<UpdateRecord> Train(const Config& config, TrainerClient& client) {
  TrainLoop loop(config, client);
  client.WaitUntilStarted();
  std::vector<UpdateRecord> records;
  Progress progress;
  for (int update = 0; update < config.trainer.updates; ++update) {
    records.push_back(loop.Update());
    progress.Show(ProgressLine(records.back(), config.trainer.updates));
  }
  client.Finish(std::chrono::duration<double>(config.sync.deadline_s));
  return records;
}

int Report(const Config& config, const std::vector<UpdateRecord>& records) {
  const double gain = RewardGain(records);
  std::string text = Table(records);
  text += fmt::format("mean reward of the last updates {:+.3f} against the first\n", gain);
  if (!config.rollout.output.empty())
    text += fmt::format("trajectories: {}\n", config.rollout.output);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (config.trainer.min_reward_gain <= 0 || gain >= config.trainer.min_reward_gain) return 0;
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
    std::vector<UpdateRecord> records;
    std::exception_ptr failure;
    // All MPI calls belong to the thread that has initialised it: this one serves, the other
    // trains.
    std::thread training([&] {
      try {
        records = Train(config, client);
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
    // Where the bridge ended the job, the training thread only saw the consequence.
    if (end != nullptr) std::rethrow_exception(end);
    if (failure != nullptr) std::rethrow_exception(failure);
    return Report(config, records);
  });
}

}  // namespace rollcast
