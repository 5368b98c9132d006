#include "launch/train_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/safetensors.h"
#include "kernels/float_convert.h"
#include "launch/log.h"
#include "launch/prompts.h"
#include "launch/runtime.h"
#include "launch/saved_model.h"

namespace rollcast {

namespace {

constexpr const char* kNorm = "model.norm.weight";
constexpr const char* kHead = "lm_head.weight";
constexpr int kPublishTries = 3;
// A group must come in within this many times sync.deadline_s, or the job is stuck.
constexpr int kPatience = 10;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Of whole updates: generation, optimizer step and synchronisation.
double TokensPerSecond(const UpdateRecord& r) {
  return static_cast<double>(r.tokens) / std::max(r.total_s, 1e-6);
}

ModelConfig LoadModel(const Config& config) {
  ModelConfig model = ModelConfig::Load(config.model.path);
  model.untie_head = config.model.untie_head;
  if (model.tied_head && !model.untie_head)
    throw Error(fmt::format(
        "{}: the output head is tied to the embedding, and the reference trainer trains the head "
        "alone: set model.untie_head = true",
        config.model.path));
  if (model.head_bias)
    throw Error(fmt::format("{}: the reference trainer cannot train a head with a bias",
                            config.model.path));
  return model;
}

std::vector<float> LoadTensor(const Checkpoint& checkpoint, const std::string& name,
                              const Shape& shape, const std::string& path) {
  const Checkpoint::Tensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr) throw Error(fmt::format("{}: has no tensor {}", path, name));
  if (!(tensor->shape == shape))
    throw Error(fmt::format("{}: {} has shape {}, expected {}", tensor->file, name,
                            ToString(tensor->shape), ToString(shape)));
  if (!IsWeightDType(tensor->dtype))
    throw Error(fmt::format("{}: {} is {}", tensor->file, name, Name(tensor->dtype)));
  std::vector<float> values(static_cast<size_t>(shape.NumElements()));
  if (!ConvertFloats(tensor->bytes.data(), tensor->dtype, values.data(), DType::kF32,
                     values.size()))
    throw Error(fmt::format("{}: {} is not finite", tensor->file, name));
  return values;
}

std::unique_ptr<HeadGrpo> MakeGrpo(const Config& config, const ModelConfig& model) {
  const std::string& path = config.model.path;
  const Checkpoint checkpoint = Checkpoint::Open(path);
  GrpoOptions options;
  options.optimizer = config.trainer.optimizer == "adam" ? GrpoOptions::Optimizer::kAdam
                                                         : GrpoOptions::Optimizer::kSgd;
  options.momentum = static_cast<float>(config.trainer.momentum);
  options.learning_rate = static_cast<float>(config.trainer.learning_rate);
  options.max_grad_norm = static_cast<float>(config.trainer.max_grad_norm);
  options.clip_range = static_cast<float>(config.trainer.clip);
  options.kl_coefficient = static_cast<float>(config.trainer.kl_coef);
  options.norm_eps = model.rms_eps;
  options.threads = ResolveThreads(config.kernels).threads;
  const std::vector<float> norm = LoadTensor(checkpoint, kNorm, {model.hidden_size}, path);
  const std::vector<float> head =
      LoadTensor(checkpoint, model.tied_head ? "model.embed_tokens.weight" : kHead,
                 {model.vocab_size, model.hidden_size}, path);
  return std::make_unique<HeadGrpo>(options, norm, head);
}

std::filesystem::path SaveFolder(const std::string& name, PolicyVersion version) {
  return FillIn(name, "{version}", StrCat(version));
}

ReuseConfig Reuse(const Config& config) {
  ReuseConfig reuse;
  reuse.interval = config.rollout.interval;
  reuse.max_policy_lag = config.rollout.max_policy_lag;
  reuse.max_tries = config.rollout.max_tries;
  return reuse;
}

}  // namespace

bool GeneratesDuringUpdates(const Config& config) {
  return config.rollout.max_policy_lag >= config.rollout.interval;
}

TrainLoop::TrainLoop(const Config& config, TrainerClient& client)
    : config_(config),
      client_(client),
      model_(LoadModel(config)),
      grpo_(MakeGrpo(config, model_)),
      prompts_(LoadPrompts(config, model_.vocab_size), config.rollout.seed, /*shuffle=*/true),
      buffer_(Reuse(config)) {
  const TrainerSettings& trainer = config_.trainer;
  if (trainer.save.empty()) return;
  CheckSaveFolder(config_.model.path, SaveFolder(trainer.save, trainer.updates),
                  trainer.save_overwrite);
}

std::filesystem::path TrainLoop::Save() {
  const TrainerSettings& trainer = config_.trainer;
  const std::filesystem::path folder = SaveFolder(trainer.save, client_.LiveVersion());
  const auto bytes = [](std::span<const uint16_t> values) { return std::as_bytes(values); };
  const std::vector<HostTensor> tensors = {
      {kNorm, DType::kBF16, {model_.hidden_size}, bytes(grpo_->norm_bf16())},
      {kHead, DType::kBF16, {model_.vocab_size, model_.hidden_size}, bytes(grpo_->head_bf16())}};
  SaveModel(config_.model.path, folder, tensors, trainer.save_overwrite || saved_.contains(folder));
  saved_.insert(folder);
  return folder;
}

void TrainLoop::SubmitBatch() {
  // A prompt comes again in the next epoch and is to be answered with other draws then.
  const auto batch_seed = [batch = static_cast<uint64_t>(batches_++)](uint64_t seed) {
    return CompletionSeed(seed, /*prompt_id=*/0, batch);
  };
  std::vector<PromptGroup> groups;
  for (int i = 0; i < config_.rollout.groups_per_update; ++i) {
    groups.push_back(ToGroup(prompts_.Next(), config_.rollout));
    if (auto& own = groups.back().sampling; own.has_value()) own->seed = batch_seed(own->seed);
  }
  SamplingParams sampling = config_.sampling;
  sampling.seed = batch_seed(config_.rollout.seed);
  client_.Submit(groups, config_.rollout.group_size, sampling, /*want_hidden=*/true);
  submitted_ = true;
}

std::vector<Trajectory> TrainLoop::Generate() {
  if (!submitted_) SubmitBatch();
  submitted_ = false;
  const std::chrono::duration<double> deadline(config_.sync.deadline_s);
  std::vector<Trajectory> batch;
  int groups = 0;
  auto last = Clock::now();
  while (groups < config_.rollout.groups_per_update) {
    Collected collected = client_.Collect(config_.rollout.groups_per_update - groups, deadline);
    if (collected.groups > 0) last = Clock::now();
    groups += collected.groups;
    for (Trajectory& t : collected.trajectories) {
      tokens_ += static_cast<int64_t>(t.completion.size());
      batch.push_back(std::move(t));
    }
    if (groups < config_.rollout.groups_per_update && Clock::now() - last > kPatience * deadline)
      throw Error(fmt::format(
          "no group has come in for {:.1f} s, {} times sync.deadline_s; {} of {} are there. Where "
          "completions take that long, raise sync.deadline_s",
          SecondsSince(last), kPatience, groups, config_.rollout.groups_per_update));
  }
  // The order of arrival is an accident; the sum of a gradient depends on the order.
  std::stable_sort(batch.begin(), batch.end(), [](const Trajectory& a, const Trajectory& b) {
    return a.group_id < b.group_id;
  });
  return batch;
}

UpdateRecord TrainLoop::Update() {
  UpdateRecord record;
  record.update = updates_ + 1;
  const auto begin = Clock::now();
  const RolloutBatch batch = buffer_.Get(updates_, policy_, [&](int) { return Generate(); });
  record.rollout_s = SecondsSince(begin);
  if (!batch.reused) fresh_ = updates_;

  // The next batch is decoded during this step and this update. It is then one version old when it
  // is first used, and `interval` versions when it is last used.
  const bool next_is_fresh = updates_ + 1 - fresh_ >= config_.rollout.interval;
  if (next_is_fresh && updates_ + 1 < config_.trainer.updates && GeneratesDuringUpdates(config_))
    SubmitBatch();

  const auto step_begin = Clock::now();
  record.grpo = grpo_->Step(*batch.trajectories);
  record.step_s = SecondsSince(step_begin);
  record.reward = record.grpo.reward_mean;
  record.completions = record.grpo.trajectories;
  record.left_out = static_cast<int>(batch.trajectories->size()) - record.completions;
  record.lag_max = batch.lag;
  if (record.completions == 0)
    throw Error(fmt::format(
        "update {}: none of {} completions can be trained on; the first: {}: {}", record.update,
        batch.trajectories->size(), Name(batch.trajectories->front().outcome),
        batch.trajectories->front().message));
  for (const Trajectory& t : *batch.trajectories)
    if (t.outcome == Outcome::kCompleted)
      record.lag_mean += static_cast<double>(batch.live_version - t.version_first());
  record.lag_mean /= record.completions;

  Publish(record);
  record.version = record.sync.version;
  record.tokens = std::exchange(tokens_, 0);
  record.total_s = SecondsSince(begin);
  ++updates_;
  return record;
}

void TrainLoop::Publish(UpdateRecord& record) {
  const std::vector<NamedTensor> tensors = {
      {kNorm, DType::kBF16, {model_.hidden_size}, grpo_->norm_bf16().data()},
      {kHead, DType::kBF16, {model_.vocab_size, model_.hidden_size}, grpo_->head_bf16().data()}};
  UpdateOptions options = UpdateDefaults(config_.sync);
  options.partial = true;  // the body is frozen
  options.names = {kNorm, kHead};
  for (int attempt = 1;; ++attempt) {
    record.sync = client_.Publish(options, tensors);
    if (!record.sync.error.empty())
      LogWarn(fmt::format("update {}: {}", record.update, record.sync.error));
    if (record.sync.committed) break;
    if (attempt == kPublishTries)
      throw Error(fmt::format("update {} has failed {} times: {}", record.update, attempt,
                              record.sync.error));
  }
  policy_.Publish(record.sync.version);
}

std::string ProgressLine(const UpdateRecord& r, int updates) {
  return fmt::format(
      "update {}/{}  policy version {}  reward {:.3f}  lag {:.2f} (max {})  {:.0f} tokens/s  sync "
      "{:.1f} ms",
      r.update, updates, r.version, r.reward, r.lag_mean, r.lag_max, TokensPerSecond(r),
      1e3 * r.sync.total_s);
}

std::string Table(const std::vector<UpdateRecord>& records) {
  std::string table =
      fmt::format("{:>9} {:>8} {:>8} {:>6} {:>10} {:>8} {:>8} {:>8} {:>9} {:>8} {:>9}\n", "updates",
                  "version", "reward", "lag", "tokens/s", "left out", "aborted", "entropy",
                  "grad norm", "sync ms", "max pause");
  const size_t stride = (records.size() + 9) / 10;
  for (size_t begin = 0; begin < records.size(); begin += stride) {
    const size_t end = std::min(begin + stride, records.size());
    const double n = static_cast<double>(end - begin);
    UpdateRecord sum;
    for (size_t i = begin; i < end; ++i) {
      const UpdateRecord& r = records[i];
      sum.reward += r.reward / n;
      sum.lag_mean += r.lag_mean / n;
      sum.tokens += r.tokens;
      sum.total_s += r.total_s;
      sum.left_out += r.left_out;
      sum.sync.sequences_aborted += r.sync.sequences_aborted;
      sum.grpo.entropy += r.grpo.entropy / n;
      sum.grpo.grad_norm += r.grpo.grad_norm / n;
      sum.sync.total_s += r.sync.total_s / n;
      sum.sync.pause_s = std::max(sum.sync.pause_s, r.sync.pause_s);
    }
    table += fmt::format(
        "{:>9} {:>8} {:>8.3f} {:>6.2f} {:>10.0f} {:>8} {:>8} {:>8.3f} {:>9.3f} {:>8.1f} {:>9.1f}\n",
        fmt::format("{}-{}", records[begin].update, records[end - 1].update),
        records[end - 1].version, sum.reward, sum.lag_mean, TokensPerSecond(sum), sum.left_out,
        sum.sync.sequences_aborted, sum.grpo.entropy, sum.grpo.grad_norm, 1e3 * sum.sync.total_s,
        1e3 * sum.sync.pause_s);
  }
  return table;
}

std::string AbortedLine(const std::vector<UpdateRecord>& records) {
  int64_t aborted = 0, updates = 0;
  for (const UpdateRecord& r : records) {
    aborted += r.sync.sequences_aborted;
    updates += r.sync.sequences_aborted > 0;
  }
  if (aborted == 0) return {};
  return fmt::format(
      "{} of {} updates aborted {} completions, which were paid for and not trained on\n", updates,
      records.size(), aborted);
}

bool NothingToLearn(const std::vector<UpdateRecord>& records) {
  constexpr size_t kInARow = 5;
  return records.size() >= kInARow &&
         std::all_of(records.end() - kInARow, records.end(), [](const UpdateRecord& record) {
           return record.grpo.groups_with_signal == 0;
         });
}

size_t GainSpan(size_t updates) { return std::min<size_t>(5, updates / 2); }

std::optional<double> RewardGain(const std::vector<UpdateRecord>& records) {
  const size_t n = GainSpan(records.size());
  if (n == 0) return std::nullopt;
  double gain = 0;
  for (size_t i = 0; i < n; ++i)
    gain += (records[records.size() - 1 - i].reward - records[i].reward) / static_cast<double>(n);
  return gain;
}

}  // namespace rollcast
