#include "trainer_bridge/trainer_result.h"

#include <nlohmann/json.hpp>
#include <utility>

rollcast_column rollcast_result::Column(std::string_view name) const {
  const auto found = columns_.find(name);
  if (found == columns_.end())
    throw rollcast::Error(rollcast::StrCat("the result has no column \"", name, "\""));
  // In the order of Values.
  constexpr int32_t kTypes[] = {ROLLCAST_U8,  ROLLCAST_I32, ROLLCAST_I64,
                                ROLLCAST_U64, ROLLCAST_F32, ROLLCAST_F64};
  return std::visit(
      [&](const auto& values) -> rollcast_column {
        return {values.data(), static_cast<int64_t>(values.size()), kTypes[found->second.index()]};
      },
      found->second);
}

namespace rollcast {

namespace {

using nlohmann::json;

/// A completion that was cut within a character is not valid UTF-8.
std::string Text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Hexadecimal(uint64_t digest) {
  std::string text(16, '0');
  for (size_t i = 16; i-- > 0; digest >>= 4) text[i] = "0123456789abcdef"[digest & 15];
  return text;
}

template <class T>
void Append(std::vector<T>& all, const std::vector<T>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

}  // namespace

rollcast_result ToResult(const Collected& collected) {
  std::vector<double> reward;
  std::vector<int64_t> prompt_length, completion_length, filtered_length, hidden_length, versions;
  std::vector<int32_t> prompt, completion;
  std::vector<float> logprob, logprob_raw, logprob_filtered, hidden;
  json rows = json::array();
  for (const Trajectory& t : collected.trajectories) {
    reward.push_back(t.reward);
    prompt_length.push_back(static_cast<int64_t>(t.prompt.size()));
    completion_length.push_back(static_cast<int64_t>(t.completion.size()));
    filtered_length.push_back(static_cast<int64_t>(t.logprob_filtered.size()));
    hidden_length.push_back(static_cast<int64_t>(t.hidden.size()));
    Append(prompt, t.prompt);
    Append(completion, t.completion);
    Append(logprob, t.logprob);
    Append(logprob_raw, t.logprob_raw);
    Append(logprob_filtered, t.logprob_filtered);
    Append(hidden, t.hidden);
    for (const PolicySpan& span : t.spans)
      versions.insert(versions.end(), static_cast<size_t>(span.end - span.begin), span.version);
    RC_CHECK_EQ(versions.size(), completion.size());
    RC_CHECK_EQ(logprob.size(), completion.size());
    rows.push_back({{"prompt_id", t.prompt_id},
                    {"group_id", t.group_id},
                    {"sample_index", t.sample_index},
                    {"group_size", t.group_size},
                    {"attempt", t.attempt},
                    {"rank", t.rank},
                    {"seed", t.sampling.seed},
                    {"temperature", t.sampling.temperature},
                    {"text", t.text},
                    {"outcome", Name(t.outcome)},
                    {"finish_reason", Name(t.finish_reason)},
                    {"message", t.message},
                    {"live_version_at_return", t.live_version_at_return},
                    {"mixed_kv", t.mixed_kv}});
  }
  rollcast_result result;
  result.Set("json", Text({{"groups", collected.groups},
                           {"pending_groups", collected.pending_groups},
                           {"live", collected.live},
                           {"trajectories", std::move(rows)}}));
  result.Set("reward", std::move(reward));
  result.Set("prompt_length", std::move(prompt_length));
  result.Set("completion_length", std::move(completion_length));
  result.Set("filtered_length", std::move(filtered_length));
  result.Set("hidden_length", std::move(hidden_length));
  result.Set("prompt", std::move(prompt));
  result.Set("completion", std::move(completion));
  result.Set("logprob", std::move(logprob));
  result.Set("logprob_raw", std::move(logprob_raw));
  result.Set("logprob_filtered", std::move(logprob_filtered));
  result.Set("policy_version", std::move(versions));
  result.Set("hidden", std::move(hidden));
  return result;
}

rollcast_result ToResult(const SyncReport& r) {
  rollcast_result result;
  result.Set("json", Text({{"committed", r.committed},
                           {"error", r.error},
                           {"version", r.version},
                           {"mode", r.mode},
                           {"transport", r.transport},
                           {"digest", Hexadecimal(r.digest)},
                           {"bytes", r.bytes},
                           {"total_s", r.total_s},
                           {"announce_s", r.announce_s},
                           {"transfer_s", r.transfer_s},
                           {"verify_s", r.verify_s},
                           {"commit_s", r.commit_s},
                           {"pause_s", r.pause_s},
                           {"sequences_kept", r.sequences_kept},
                           {"sequences_recomputed", r.sequences_recomputed},
                           {"sequences_aborted", r.sequences_aborted}}));
  return result;
}

rollcast_result ToResult(ScoreResult score) {
  rollcast_result result;
  result.Set("json", Text({{"version", score.version}}));
  result.Set("logprob_raw", std::move(score.logprob_raw));
  result.Set("logits", std::move(score.logits));
  return result;
}

rollcast_result ToResult(const WireManifest& manifest) {
  json tensors = json::array(), aliases = json::object();
  for (const ManifestEntry& entry : manifest.entries) {
    json shape = json::array();
    for (int i = 0; i < entry.shape.rank(); ++i) shape.push_back(entry.shape[i]);
    tensors.push_back({{"name", entry.name}, {"dtype", Name(entry.dtype)}, {"shape", shape}});
  }
  for (const TensorAlias& alias : manifest.aliases) aliases[alias.name] = alias.target;
  rollcast_result result;
  result.Set("json", Text({{"version", manifest.version},
                           {"digest", Hexadecimal(manifest.digest)},
                           {"tensors", std::move(tensors)},
                           {"aliases", std::move(aliases)}}));
  return result;
}

rollcast_result ToResult(const JobStats& stats, const std::vector<int>& lost_ranks) {
  json workers = json::array();
  for (const WorkerBeat& w : stats.workers)
    workers.push_back({{"rank", w.rank},
                       {"version", w.version},
                       {"running", w.running},
                       {"waiting", w.waiting},
                       {"unscored", w.unscored},
                       {"room", w.room},
                       {"pages_used", w.pages_used},
                       {"pages_total", w.pages_total},
                       {"steps", w.steps},
                       {"prefill_tokens", w.prefill_tokens},
                       {"decode_tokens", w.decode_tokens},
                       {"cached_tokens", w.cached_tokens},
                       {"preemptions", w.preemptions},
                       {"step_s", w.step_s},
                       {"score_s", w.score_s}});
  rollcast_result result;
  result.Set("json", Text({{"version", stats.version},
                           {"queued", stats.queued},
                           {"assigned", stats.assigned},
                           {"ready", stats.ready},
                           {"returned", stats.returned},
                           {"regenerated", stats.regenerated},
                           {"lost", stats.lost},
                           {"workers", std::move(workers)},
                           {"lost_ranks", lost_ranks}}));
  return result;
}

rollcast_result ToResult(const Roles& roles, const TrainerSetup& setup) {
  json hosts = json::array();
  for (const RankInfo& rank : roles.ranks) hosts.push_back(rank.host);
  rollcast_result result;
  result.Set("json", Text({{"config", json::parse(setup.config_json)},
                           {"rank", roles.trainer()},
                           {"size", roles.ranks.size()},
                           {"workers", roles.workers()},
                           {"hosts", std::move(hosts)},
                           {"device_memory", setup.takes_device_memory}}));
  return result;
}

}  // namespace rollcast
