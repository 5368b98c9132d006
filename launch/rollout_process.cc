#include "launch/rollout_process.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "engine/input_stream.h"
#include "launch/log.h"
#include "launch/metrics.h"
#include "launch/output_path.h"
#include "launch/signals.h"
#include "rollout/rollout_worker.h"
#include "rollout/trajectory_file.h"
#include "rollout/unicode.h"
#include "trainer_bridge/device_choice.h"
#include "trainer_bridge/engine_update_target.h"
#include "trainer_bridge/rollout_rank.h"
#include "trainer_bridge/transport_choice.h"

namespace rollcast {

namespace {

// Writes the rank's metrics file every metrics.interval_s.
class MetricsWriter {
 public:
  MetricsWriter(const MetricsSettings& settings, int rank) : interval_s_(settings.interval_s) {
    metrics_.rank = rank;
    if (!settings.file.empty()) file_.emplace(settings.file, rank);
  }

  RankMetrics& metrics() { return metrics_; }

  void WriteIfDue(const RolloutWorker& worker) {
    const auto now = Clock::now();
    if (!file_ || now < due_) return;
    due_ = now +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(interval_s_));
    Write(worker);
  }
  void Write(const RolloutWorker& worker) {
    if (!file_) return;
    metrics_.engine = worker.stats().engine;
    file_->Write(metrics_);
  }

 private:
  const double interval_s_;
  std::optional<MetricsFile> file_;
  RankMetrics metrics_;
  Clock::time_point due_{};
};

void LogUpdate(const SyncReport& r) {
  if (r.error.empty())
    Log(LogLevel::kDebug,
        fmt::format("policy version {} is live: {}, {} bytes in {:.1f} ms, pause {:.1f} ms, {} "
                    "kept, {} recomputed, {} aborted",
                    r.version, r.mode, r.bytes, 1e3 * r.total_s, 1e3 * r.pause_s, r.sequences_kept,
                    r.sequences_recomputed, r.sequences_aborted));
  else
    LogWarn(fmt::format("update {}: {}", r.committed ? "incomplete" : "refused", r.error));
}

// Empty, or "stopped by SIGINT".
std::string StoppedBySignal() {
  const int signal = StopSignal();
  return signal == 0 ? "" : Stopped(signal).what();
}

// The file says what has ended the run.
void CloseAfter(const std::exception& failure, TrajectoryFile& file) {
  try {
    // A signal to mpirun goes to all ranks: a peer may say that it was stopped before this rank has
    // looked for its own.
    const int signal = StopSignal();
    file.Close(signal != 0 ? RunEnd::StoppedBy(SignalName(signal))
                           : RunEnd::Failed(OneLine(failure.what())));
  } catch (const std::exception& e) {
    LogWarn(e.what());
  }
}

// For the ranks to return what they have when the job is stopped. mpirun kills a second after it
// has passed a signal on; alone there is time for the scorer, and a second signal ends it at once.
std::chrono::duration<double> StopGrace(const Config& config, const World& world) {
  constexpr double kBesideMpirun = 0.7, kAlone = 5;
  if (world.size() > 1) return std::chrono::duration<double>(kBesideMpirun);
  return std::chrono::duration<double>(
      kAlone + (config.scorer.kind == "none" ? 0 : config.scorer.deadline_s));
}

}  // namespace

bool HasTokenizer(const Config& config) {
  return !config.rollout.tokenizer.empty() ||
         Exists(std::filesystem::path(config.model.path) / "tokenizer.json");
}

std::unique_ptr<Tokenizer> LoadTokenizer(const Config& config) {
  if (!config.rollout.tokenizer.empty()) return Tokenizer::Load(config.rollout.tokenizer);
  return HasTokenizer(config) ? Tokenizer::Load(config.model.path) : nullptr;
}

LoadedModel LoadedModel::Load(const Config& config) {
  LoadedModel model;
  ModelConfig model_config = ModelConfig::Load(config.model.path);
  model_config.untie_head = config.model.untie_head;
  model.tokenizer = LoadTokenizer(config);
  model.backend = MakeBackend(ResolveThreads(config.kernels));
  model.store = std::make_unique<WeightStore>(std::move(model_config), *model.backend);
  model.store->LoadCheckpoint(config.model.path);
  model.engine = std::make_unique<Engine>(*model.store, config.engine);
  return model;
}

std::string RunRolloutRank(const Config& config, World& world, const Roles& roles,
                           std::function<bool(Coordinator&)> drive) {
  const auto begin = Clock::now();
  const bool coordinates = world.rank() == roles.workers().front();
  if (coordinates && !config.rollout.output.empty())
    PrepareOutput(config.rollout.output, config.rollout.overwrite, config.rollout.prompts);
  MetricsWriter metrics(config.metrics, world.rank());
  std::unique_ptr<Scorer> scorer;
  if (config.scorer.kind != "none") scorer = MakeScorer(config.scorer);
  if (!HasTokenizer(config) && ScorerReadsText(config.scorer.kind))
    throw Error(StrCat("scorer.kind \"", config.scorer.kind,
                       "\" reads the text of completions, and ", config.model.path,
                       " has no tokenizer to make it; name one with rollout.tokenizer"));
  const std::string& device = roles.ranks[static_cast<size_t>(world.rank())].device;
  Config mine = config;
  mine.kernels.device = device;
  if (const std::string shared = SharedDevices(roles); coordinates && !shared.empty())
    LogWarn(shared);
  LoadedModel model = LoadedModel::Load(mine);
  if (config.sync.mode == "staged" && roles.trainer() >= 0) model.store->staging();

  RolloutRankOptions options;
  options.ready.manifest_digest = model.store->manifest().digest();
  options.ready.weights_digest = model.store->Digest(model.store->live());
  options.max_tries = config.rollout.max_tries;
  options.max_policy_lag = config.rollout.max_policy_lag;
  options.heartbeat = std::chrono::duration<double>(config.sync.heartbeat_s);
  options.silence = SilenceLimit(config.sync);
  options.startup = std::chrono::duration<double>(config.sync.startup_s);
  options.stop_grace = StopGrace(config, world);

  std::unique_ptr<TrajectoryFile> file;
  if (coordinates && !config.rollout.output.empty()) {
    TrajectoryFileInfo info;
    info.config = ToToml(config);
    info.model_digest = options.ready.weights_digest;
    info.manifest_digest = options.ready.manifest_digest;
    info.overwrite = config.rollout.overwrite;
    file = std::make_unique<TrajectoryFile>(config.rollout.output, info);
    if (!file->locked())
      LogWarn(
          fmt::format("{}: its file system has no locks; another job that writes the same file "
                      "would go unnoticed",
                      config.rollout.output));
  }

  RolloutWorkerOptions worker_options;
  worker_options.rank = world.rank();
  worker_options.max_outstanding = config.rollout.max_outstanding;
  RolloutWorker worker(*model.engine, model.tokenizer.get(), std::move(scorer), worker_options);
  EngineUpdateTarget target(*model.engine, *model.store);

  RolloutRankSeams seams;
  seams.append = [&](std::span<const Trajectory> trajectories) {
    for (const Trajectory& t : trajectories)
      ++metrics.metrics().outcomes.at(static_cast<size_t>(t.outcome));
    if (file != nullptr) file->Append(trajectories);
  };
  seams.on_update = [&](const SyncReport& report) {
    metrics.metrics().last_update = report;
    LogUpdate(report);
    if (file != nullptr) file->AppendUpdate(report);
  };
  seams.close = [&](const std::string& stopped) {
    if (file != nullptr) file->Close(stopped.empty() ? RunEnd::Completed() : RunEnd{stopped});
  };
  seams.drive = std::move(drive);
  seams.warn = [](const std::string& what) { LogWarn(what); };
  if (roles.trainer() < 0) seams.stop = StoppedBySignal;
  seams.check = [&] {
    if (roles.trainer() >= 0) ThrowIfSignalled();
    metrics.WriteIfDue(worker);
  };
  RolloutRank rank(world.communicator(), roles, worker, target,
                   OfferedTransports(device, config.sync.nccl_library), std::move(options),
                   std::move(seams));
  LogInfo(fmt::format("ready after {:.1f} s: {}, {} threads, {} KV pages of {} tokens",
                      std::chrono::duration<double>(Clock::now() - begin).count(),
                      model.store->config().model_type, ResolveThreads(config.kernels).threads,
                      model.engine->config().num_pages, model.engine->config().page_size));
  std::string stopped;
  try {
    stopped = rank.Run();
  } catch (const std::exception& e) {
    if (file != nullptr) CloseAfter(e, *file);
    throw;
  }
  metrics.Write(worker);
  return stopped;
}

}  // namespace rollcast
