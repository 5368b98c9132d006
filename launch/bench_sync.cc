#include "launch/bench_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/device_info.h"
#include "launch/bench_model.h"
#include "launch/log.h"
#include "launch/model_shapes.h"
#include "launch/runtime.h"
#include "trainer_bridge/engine_update_target.h"
#include "trainer_bridge/job_messages.h"
#include "trainer_bridge/transport_choice.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {

namespace {

using Json = nlohmann::ordered_json;
using Seconds = std::chrono::duration<double>;

constexpr auto kReportDeadline = std::chrono::seconds(60);
constexpr double kWarmUp = 1.0;  // seconds of decoding before the first update and after the last
constexpr double kBetween = 0.3;
constexpr double kBeside = 0.25;  // of decoding before and after an update that it is compared with
// Output tokens of a sequence of the load: none is to end, and bring a prefill, while it is timed.
constexpr int kLongOutput = 4096;

/// To a rank: the end, report. To the trainer: a rank's measurements, as JSON.
struct BenchReport {
  static constexpr MessageType kType = MessageType::kBenchReport;
  std::string json;
  static void Fields(auto& self, auto&& visit) { visit(self.json); }
};

Clock::duration AsClock(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

void SleepFor(double seconds, const Service& service) {
  const auto end = Clock::now() + AsClock(seconds);
  Backoff backoff;
  while (Clock::now() < end) {
    service();
    backoff.Wait();
  }
}

/// Tokens decoded by the end of each step, to be asked for any time in between.
class TokenLog {
 public:
  void Add(Clock::time_point at, int64_t tokens) {
    const std::lock_guard lock(mutex_);
    steps_.emplace_back(at, tokens);
  }
  /// Between two steps the tokens are taken to come evenly.
  double Tokens(Clock::time_point at) const {
    const std::lock_guard lock(mutex_);
    const auto after = std::upper_bound(steps_.begin(), steps_.end(), at,
                                        [](auto t, const auto& step) { return t < step.first; });
    if (after == steps_.begin() || steps_.empty()) return 0;
    const auto before = std::prev(after);
    if (after == steps_.end()) return static_cast<double>(before->second);
    const double share = Seconds(at - before->first) / Seconds(after->first - before->first);
    return static_cast<double>(before->second) +
           share * static_cast<double>(after->second - before->second);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<Clock::time_point, int64_t>> steps_;
};

/// An engine that decodes `batch` sequences on its own thread, as long as it lives.
class DecodeLoad {
 public:
  DecodeLoad(Engine& engine, const BenchOptions& options)
      : engine_(engine), options_(options), thread_([this] { Run(); }) {}
  ~DecodeLoad() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  const TokenLog& log() const { return log_; }
  std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  bool warm() const { return warm_; }

 private:
  void Run() {
    try {
      std::mt19937_64 random(2);
      const int prompt = options_.context;
      uint64_t next = 1;
      int live = 0;
      std::vector<Completion> finished;
      while (!stop_) {
        for (; live < options_.batch; ++live, ++next)
          SubmitOrThrow(engine_,
                        RandomRequest(next, prompt, engine_.max_context() - prompt,
                                      options_.temperature, engine_.model().vocab_size, random));
        if (!engine_.Step(finished))
          engine_.WaitForWork(Clock::now() + std::chrono::milliseconds(1));
        const EngineStats stats = engine_.stats();
        log_.Add(Clock::now(), stats.decode_tokens);
        warm_ = warm_ || stats.decode_tokens > 16 * options_.batch;
        live -= static_cast<int>(finished.size());
        finished.clear();
      }
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      failure_ = error.what();
    }
  }

  Engine& engine_;
  const BenchOptions& options_;
  TokenLog log_;
  std::atomic<bool> stop_{false}, warm_{false};
  mutable std::mutex mutex_;
  std::string failure_;
  std::thread thread_;  // last: it uses the rest
};

struct Window {
  Clock::time_point begin, end;
  double tokens(const TokenLog& log) const { return log.Tokens(end) - log.Tokens(begin); }
  double seconds() const { return Seconds(end - begin).count(); }
};

double Rate(const std::vector<Window>& windows, const TokenLog& log) {
  double tokens = 0, seconds = 0;
  for (const Window& window : windows) {
    tokens += window.tokens(log);
    seconds += window.seconds();
  }
  return seconds > 0 ? tokens / seconds : 0;
}

std::unique_ptr<Backend> MakeRankBackend(const Config& config, const World& world,
                                         const Roles& roles) {
  BackendOptions options = ResolveThreads(config.kernels);
  options.device = roles.ranks.at(static_cast<size_t>(world.rank())).device;
  return MakeBackend(options);
}

/// Of random weights, also where a folder names the model.
ModelConfig BenchedModel(const BenchOptions& options) {
  return options.model.empty() ? ShapeByName(options.shape) : ModelConfig::Load(options.model);
}

int RunRank(const Config& config, const BenchOptions& options, World& world, const Roles& roles) {
  const std::unique_ptr<Backend> backend = MakeRankBackend(config, world, roles);
  WeightStore store(BenchedModel(options), *backend);
  FillForTiming(store, 0);
  EngineConfig engine_config = config.engine;
  engine_config.max_running = options.batch;
  engine_config.max_batched_tokens = std::max(engine_config.max_batched_tokens, options.batch);
  // A model's own context may be shorter; its sequences then end, and are prefilled again.
  const int context = std::min(options.context + kLongOutput, store.config().max_context);
  const int pages = context / engine_config.page_size;
  engine_config.max_context = pages * engine_config.page_size;
  engine_config.num_pages = (pages + 1) * options.batch;
  engine_config.prefix_cache = false;
  Engine engine(store, engine_config);
  EngineUpdateTarget target(engine, store);
  const size_t without_staging = DescribeDevice(backend->device()).used_bytes;
  if (config.sync.mode == "staged") store.staging();

  DecodeLoad load(engine, options);
  struct Timed {
    Clock::time_point begin{}, verified{}, committed{};
    double receive_s = 0;
  };
  std::vector<Timed> updates;
  bool end = false;
  Backoff backoff;  // between looks for messages; an update is not to wait for a sleeping rank
  WeightReceiver* receiver = nullptr;
  WeightReceiver::Callbacks callbacks;
  callbacks.on_report = [&](const SyncReport& report) {
    updates.back().receive_s = report.receive_s;
  };
  callbacks.service = [&] {
    ThrowIfSignalled();
    if (const std::string failure = load.failure(); !failure.empty()) throw Error(failure);
    while (std::optional<Message> message = world.communicator().Poll()) {
      const MessageType type = TypeOf(message->bytes);
      backoff.Reset();
      // All of a transfer, its checksum included, runs inside Handle.
      if (type == MessageType::kBegin) updates.push_back({.begin = Clock::now()});
      if (receiver->Handle(*message)) {
        if (type == MessageType::kBegin) updates.back().verified = Clock::now();
        if (type == MessageType::kCommit) updates.back().committed = Clock::now();
      } else if (type == MessageType::kBenchReport) {
        end = true;
      } else if (type == MessageType::kFail) {
        throw Error(Decode<FailMessage>(message->bytes).message);
      }
    }
  };
  WeightReceiver owned(world.communicator(), target,
                       OfferedTransports(backend->device(), config.sync.nccl_library), callbacks);
  receiver = &owned;
  while (!load.warm()) {
    callbacks.service();
    backoff.Wait();
  }
  world.communicator().Send(roles.trainer(), Encode(BenchReport{}));
  while (!end) {
    callbacks.service();
    owned.Tick();
    backoff.Wait();
  }
  load.Stop();
  // The first update connects the ranks, too, and is left out.
  std::vector<Window> before, transfer, verify, after;
  for (size_t i = 1; i < updates.size(); ++i) {
    const Timed& update = updates[i];
    const auto received = update.begin + AsClock(update.receive_s);
    before.push_back({update.begin - AsClock(kBeside), update.begin});
    transfer.push_back({update.begin, received});
    verify.push_back({received, update.verified});
    after.push_back({update.committed, update.committed + AsClock(kBeside)});
  }
  Json json;
  json["rank"] = world.rank();
  json["device"] = backend->name();
  json["tokens_per_s_before"] = Rate(before, load.log());
  json["tokens_per_s_transfer"] = Rate(transfer, load.log());
  json["tokens_per_s_verify"] = Rate(verify, load.log());
  json["tokens_per_s_after"] = Rate(after, load.log());
  if (backend->device() != "cpu") {
    json["memory_gb"] = static_cast<double>(DescribeDevice(backend->device()).used_bytes) * 1e-9;
    json["memory_without_staging_gb"] = static_cast<double>(without_staging) * 1e-9;
    json["graphs_captured"] = engine.stats().graphs_captured;
  }
  world.communicator().Send(roles.trainer(), Encode(BenchReport{json.dump()}));
  world.communicator().Flush(Clock::now() + kReportDeadline);
  return 0;
}

/// The weights of a store, each an allocation of its own as those of a training framework are.
class TrainerTensors {
 public:
  explicit TrainerTensors(WeightStore& store) : store_(store) {
    for (const ManifestEntry& entry : store.manifest().entries()) {
      memory_.push_back(store.transfer().Allocate(entry.bytes));
      tensors_.push_back({entry.name, entry.dtype, entry.shape, memory_.back().data()});
    }
  }
  std::span<const NamedTensor> tensors() const { return tensors_; }
  void Refill(uint64_t seed) {
    FillForTiming(store_, seed);
    const std::vector<ManifestEntry>& entries = store_.manifest().entries();
    for (size_t i = 0; i < entries.size(); ++i)
      store_.transfer().Copy(memory_[i].data(),
                             static_cast<const char*>(store_.live()) + entries[i].offset,
                             entries[i].bytes);
    store_.transfer().Synchronize();
  }

 private:
  WeightStore& store_;
  std::vector<Buffer> memory_;
  std::vector<NamedTensor> tensors_;
};

int RunTrainerSide(const Config& config, const BenchOptions& options, World& world,
                   const Roles& roles) {
  const std::unique_ptr<Backend> backend = MakeRankBackend(config, world, roles);
  WeightStore store(BenchedModel(options), *backend);
  TrainerTensors tensors(store);
  const std::vector<int> ranks = roles.workers();
  std::vector<std::string> reports;
  size_t ready = 0;
  const auto on_other = [&](Message message) {
    if (TypeOf(message.bytes) == MessageType::kFail)
      throw Error(Decode<FailMessage>(message.bytes).message);
    if (TypeOf(message.bytes) != MessageType::kBenchReport) return;
    std::string json = Decode<BenchReport>(message.bytes).json;
    if (json.empty())
      ++ready;
    else
      reports.push_back(std::move(json));
  };
  const TransportChoice choice = ChooseTransport(config.sync.transport, roles);
  if (!choice.warning.empty()) LogWarn(choice.warning);
  WeightPublisher publisher(world.communicator(), ranks,
                            OfferedTransports(backend->device(), config.sync.nccl_library),
                            choice.name, on_other);
  const Service service = [&] {
    ThrowIfSignalled();
    while (std::optional<Message> message = world.communicator().Poll())
      if (!publisher.Handle(*message)) on_other(std::move(*message));
  };
  const auto wait_until = [&](const std::function<bool()>& done, double seconds, const char* what) {
    const auto deadline = Clock::now() + AsClock(seconds);
    Backoff backoff;
    while (!done()) {
      if (Clock::now() > deadline) throw Error(StrCat("bench sync: ", what, " took too long"));
      service();
      backoff.Wait();
    }
  };
  wait_until([&] { return ready == ranks.size(); }, config.sync.startup_s, "starting the ranks");

  UpdateOptions update;
  update.mode = ParseUpdateMode(config.sync.mode);
  update.deadline = Seconds(config.sync.deadline_s);
  std::vector<double> receive, announce, verify, commit, total, pause;
  int64_t bytes = 0;
  std::string transport;
  SleepFor(kWarmUp, service);
  // The first update connects the ranks and opens memory; it is not one of those reported.
  for (int i = 0; i <= options.updates; ++i) {
    tensors.Refill(static_cast<uint64_t>(i) + 1);
    SleepFor(kBetween, service);
    const SyncReport report = publisher.Publish(update, tensors.tensors());
    if (!report.committed || !report.error.empty())
      throw Error(StrCat("bench sync: update ", i, ": ", report.error));
    transport = report.transport;
    bytes = report.bytes;
    if (i == 0) continue;
    receive.push_back(report.receive_s);
    announce.push_back(report.announce_s);
    verify.push_back(report.verify_s);
    commit.push_back(report.commit_s);
    total.push_back(report.total_s);
    pause.push_back(report.pause_s);
  }
  SleepFor(kBetween + kWarmUp, service);
  for (const int rank : ranks) world.communicator().Send(rank, Encode(BenchReport{}));
  wait_until([&] { return reports.size() == ranks.size(); }, Seconds(kReportDeadline).count(),
             "the ranks' reports");

  Json json = BenchHead("sync", options, *backend);
  json["transport"] = transport;
  json["mode"] = config.sync.mode;
  json["ranks"] = ranks.size();
  json["updates"] = options.updates;
  json["gb"] = static_cast<double>(bytes) * 1e-9;
  json["gb_per_s"] = static_cast<double>(bytes) * 1e-9 / Median(receive);
  const auto milliseconds = [&](const char* name, const std::vector<double>& seconds) {
    json[std::string(name) + "_ms"] = Median(seconds) * 1e3;
    json[std::string(name) + "_ms_max"] = *std::max_element(seconds.begin(), seconds.end()) * 1e3;
  };
  milliseconds("receive", receive);
  milliseconds("announce", announce);
  milliseconds("verify", verify);
  milliseconds("commit", commit);
  milliseconds("total", total);
  milliseconds("pause", pause);
  json["batch"] = options.batch;
  json["context"] = options.context;
  json["load"] = Json::array();
  for (const std::string& report : reports) json["load"].push_back(Json::parse(report));
  std::cout << json.dump() << std::endl;
  return 0;
}

}  // namespace

int RunBenchSync(const Config& config, const BenchOptions& options) {
  if (options.updates < 1) throw Error("bench: --updates must be at least 1");
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr)
    throw Error(
        "bench sync needs at least two ranks: mpirun -np 2 rollcast bench sync ...; rank 0 is the "
        "trainer");
  const bool trainer = std::atoi(rank) == 0;
  return RunAsRank(
      config, trainer ? Role::kTrainer : Role::kWorker,
      [&](World& world, const Roles& roles) {
        return trainer ? RunTrainerSide(config, options, world, roles)
                       : RunRank(config, options, world, roles);
      },
      config.kernels.device);
}

}  // namespace rollcast
