#include "launch/replay_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "launch/log.h"
#include "launch/progress.h"
#include "launch/rollout_process.h"
#include "launch/signals.h"
#include "rollout/stop_strings.h"
#include "rollout/trajectory_file.h"

namespace rollcast {

namespace {

bool SameBits(std::span<const float> recorded, std::span<const float> replayed) {
  return replayed.size() >= recorded.size() &&
         std::memcmp(recorded.data(), replayed.data(), recorded.size_bytes()) == 0;
}

/// What differs, or nothing.
std::string Difference(const Trajectory& t, const Completion& c) {
  const bool whole = t.outcome != Outcome::kAborted;
  const size_t n = t.completion.size();
  for (size_t i = 0; i < std::min(n, c.output.size()); ++i)
    if (t.completion[i] != c.output[i])
      return fmt::format("token {} is {}, replayed {}", i, t.completion[i], c.output[i]);
  if (whole ? c.output.size() != n : c.output.size() < n)
    return fmt::format("{} tokens, replayed {}", n, c.output.size());
  if (!SameBits(t.logprob, c.logprob)) return "logprob differs";
  if (!SameBits(t.logprob_raw, c.logprob_raw)) return "logprob_raw differs";
  if (!t.logprob_filtered.empty() && !SameBits(t.logprob_filtered, c.logprob_filtered))
    return "logprob_filtered differs";
  return "";
}

bool Replayable(const TrajectoryRow& row, int64_t version) {
  const Trajectory& t = row.trajectory;
  return row.completion_length > 0 && row.version_first == version && row.version_last == version &&
         !t.mixed_kv;
}

/// Why the weights of `now`, of checksum `digest`, are others than those that the run of `reader`'s
/// file began with.
std::string WhyOtherWeights(const TrajectoryReader& reader, uint64_t digest, Config now) {
  for (const SyncReport& update : reader.ReadUpdates())
    if (update.committed && update.digest == digest)
      return fmt::format("they are those of its policy version {}; give --version {}",
                         update.version, update.version);
  Config recorded;
  try {
    recorded = ParseConfig(reader.info().config, "the file's configuration");
  } catch (const Error& e) {
    return fmt::format("what settings it was made with is not known: {}", e.what());
  }
  const FieldList then_list = ListFields(recorded), now_list = ListFields(now);
  std::string differ, remedy;
  for (const Field& field : then_list.fields()) {
    if (field.table() != "model") continue;
    const std::string then_value = ToToml(field.value);
    const std::string now_value = ToToml(now_list.Find(field.key)->value);
    if (then_value == now_value) continue;
    differ += fmt::format("{}{} = {} (here {})", differ.empty() ? "" : ", ", field.key, then_value,
                          now_value);
    // A folder may have moved; any other setting has to be the same.
    if (!field.per_rank) remedy += fmt::format(" --set {}={}", field.key, then_value);
  }
  if (differ.empty())
    return "its settings of [model] are the same, so the files in that folder have changed since";
  return fmt::format("it was made with {}; give {}", differ,
                     remedy.empty()
                         ? "the folder of those weights, or --version for those of a later policy"
                         : remedy.substr(1));
}

Request RequestOf(const Trajectory& t, uint64_t id, const Tokenizer* tokenizer) {
  Request request;
  request.id = id;
  request.prompt = t.prompt;
  request.sampling = t.sampling;
  if (t.finish_reason == FinishReason::kLength) {
    // It may have been the context that was full, and the one here may be longer.
    const int length = static_cast<int>(t.completion.size());
    request.sampling.max_tokens = std::min(request.sampling.max_tokens, length);
    request.sampling.min_tokens = std::min(request.sampling.min_tokens, length);
  }
  if (t.sampling.stop_strings.empty()) return request;
  if (tokenizer == nullptr)
    throw Error("a row has stop strings, and there is no tokenizer to find them with");
  const auto stop =
      std::make_shared<StopStrings>(*tokenizer, t.sampling.stop_strings, t.sampling.min_tokens);
  request.stop = [stop](std::span<const int32_t> output) { return stop->Check(output); };
  return request;
}

}  // namespace

int RunReplay(const Config& config, const ReplayOptions& options, std::ostream& out) {
  CatchSignals();
  OpenLog(config.log, "replay");
  if (options.limit < -1 || options.limit == 0)
    throw Error(fmt::format("--limit is {}; expected at least 1 row to replay, or -1 for all",
                            options.limit));
  const TrajectoryReader reader(options.file);
  std::vector<TrajectoryRow> rows;
  for (TrajectoryRow& row : reader.ReadRows(0, reader.rows()))
    if (Replayable(row, options.version) &&
        (options.limit < 0 || rows.size() < static_cast<size_t>(options.limit)))
      rows.push_back(std::move(row));
  if (rows.empty())
    throw Error(fmt::format("{}: none of its {} rows was drawn wholly under policy version {}",
                            options.file.string(), reader.rows(), options.version));

  LoadedModel model = LoadedModel::Load(config);
  if (options.version == 0) {
    const uint64_t digest = model.store->Digest(model.store->live());
    if (digest != reader.info().model_digest)
      throw Error(
          fmt::format("{}: was made with weights of digest {:016x}, and those of {} have "
                      "{:016x}: {}",
                      options.file.string(), reader.info().model_digest, config.model.path, digest,
                      WhyOtherWeights(reader, digest, config)));
  }

  Progress progress;
  size_t submitted = 0, done = 0, different = 0;
  std::map<uint64_t, Trajectory> under_way;
  std::vector<Completion> finished;
  while (done < rows.size()) {
    ThrowIfSignalled();
    const size_t room = 2 * static_cast<size_t>(model.engine->config().max_running);
    for (; submitted < rows.size() && under_way.size() < room; ++submitted) {
      TrajectoryRow& row = rows[submitted];
      reader.ReadTokens(row);
      const std::string why =
          model.engine->Submit(RequestOf(row.trajectory, submitted, model.tokenizer.get()));
      if (!why.empty()) throw Error(fmt::format("prompt {}: {}", row.trajectory.prompt_id, why));
      under_way.emplace(submitted, std::move(row.trajectory));
    }
    finished.clear();
    model.engine->Step(finished);
    for (const Completion& completion : finished) {
      const Trajectory& t = under_way.at(completion.id);
      if (const std::string what = Difference(t, completion); !what.empty()) {
        ++different;
        out << fmt::format("prompt {} sample {} attempt {}: {}\n", t.prompt_id, t.sample_index,
                           t.attempt, what);
      }
      under_way.erase(completion.id);
      ++done;
    }
    progress.Show(fmt::format("replay: {} of {} rows", done, rows.size()));
  }
  out << fmt::format("{} of {} rows replayed, {} differ\n", done, reader.rows(), different);
  return different == 0 ? 0 : 1;
}

}  // namespace rollcast
