#include "launch/config.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "kernels/check.h"
#include "launch/toml_reader.h"

namespace rollcast {

namespace {

constexpr double kMaxSeed = 9007199254740992.0;  // 2^53: exact in JSON and in a double

void ListModel(FieldList& list, ModelSettings& c) {
  list.Table("model", "the checkpoint");
  list.AddPerRank("path", c.path,
                  "folder with config.json, safetensors files and, for text, tokenizer.json");
  list.Add("untie_head", c.untie_head,
           "give a tied output head memory of its own, so that it can be trained alone");
}

void ListKernels(FieldList& list, BackendOptions& c) {
  list.Table("kernels", "the device of this rank", /*per_rank=*/true);
  list.Add("device", c.device, "\"auto\", \"cpu\", \"cuda\" or \"cuda:N\"");
  list.Add("threads", c.threads, "CPU threads of one op; 0 = all cores", Between(0, 1024));
  list.Add("isa", c.isa, "CPU instruction set", OneOf({"auto", "plain", "avx2", "avx512"}));
  list.Add("profile", c.profile,
           "invariant: the first kernel of each table that fits, all of them with the same bits; "
           "fastest: has none of its own yet; reference: the plainest",
           OneOf({"invariant", "fastest", "reference"}));
  list.Add(
      "linear", c.linear,
      "kernel of products by name, strictly; auto = by the profile. cuda: wgmma, generic; cpu: "
      "avx512, avx2, plain");
  list.Add("attention", c.attention,
           "kernel of attention in decode steps; cuda: split_kv, whole; cpu: avx512, avx2, plain");
}

void ListEngine(FieldList& list, EngineConfig& c) {
  list.Table("engine", "memory and batching of one rank's engine");
  list.Add("max_running", c.max_running, "sequences that decode together", Between(1, 65536));
  list.Add("max_batched_tokens", c.max_batched_tokens,
           "rows (tokens) of one step; a longer prefill is cut into chunks", Between(1, 1 << 20));
  list.Add("page_size", c.page_size, "tokens of one KV page", Between(1, 1024));
  list.Add("num_pages", c.num_pages, "KV pages; 0 = as many as kv_memory_mb holds",
           Between(0, 1 << 30));
  list.Add("kv_memory_mb", c.kv_memory_mb, "memory for KV pages in MiB", Between(1, 1 << 24));
  list.Add("max_context", c.max_context,
           "tokens of one sequence, prompt and completion; 0 = what model and pages allow",
           Between(0, 1 << 30));
  list.Add("max_queued", c.max_queued, "waiting sequences; more are refused", Between(1, 1 << 30));
  list.Add("prefix_cache", c.prefix_cache, "keep the KV of finished prefixes for later prompts");
  list.Add("capture", c.capture, "decode by captured graphs; false = eager");
  list.Add("run_ahead", c.run_ahead, "steps launched before the last one has been read",
           Between(0, 1));
}

void ListSampling(FieldList& list, SamplingParams& c) {
  list.Table("sampling", "how tokens are drawn");
  list.Add("max_tokens", c.max_tokens, "tokens of a completion at most", AtLeast(1));
  list.Add("min_tokens", c.min_tokens, "nothing stops a completion before this many tokens",
           AtLeast(0));
  list.Add("temperature", c.temperature, "0 = greedy", AtLeast(0));
  list.Add("top_p", c.top_p, "draw from the likeliest tokens of this total probability; 1 = off",
           {.min = 0, .max = 1, .above = true, .choices = {}});
  list.Add("top_k", c.top_k, "draw from this many likeliest tokens; -1 or 0 = off", AtLeast(-1));
  list.Add("min_p", c.min_p, "drop tokens below this share of the likeliest one's probability",
           Between(0, 1));
  list.Add("repetition_penalty", c.repetition_penalty,
           "over prompt and completion, multiplicative; 1 = off",
           {.min = 0, .max = 2, .above = true, .choices = {}});
  list.Add("frequency_penalty", c.frequency_penalty, "per earlier use in the completion; 0 = off",
           Between(-2, 2));
  list.Add("presence_penalty", c.presence_penalty, "once a token has been used; 0 = off",
           Between(-2, 2));
  list.Add("stop_ids", c.stop_ids, "token ids that end a completion, beside the model's own",
           AtLeast(0));
  list.Add("stop_strings", c.stop_strings, "texts that end a completion (needs a tokenizer)");
  list.Add("ignore_eos", c.ignore_eos, "the model's own end-of-sequence ids do not stop");
}

void ListRollout(FieldList& list, RolloutSettings& c) {
  list.Table("rollout", "prompts in, trajectories out");
  list.Add("prompts", c.prompts, "JSONL file, rows {\"id\", \"text\" or \"tokens\", \"answer\"}");
  list.AddPerRank("tokenizer", c.tokenizer,
                  "tokenizer.json or its folder; empty = the model's folder");
  list.Add("add_special_tokens", c.add_special_tokens,
           "put the tokenizer's own special tokens (such as bos) around prompt texts");
  list.Add("group_size", c.group_size, "completions of one prompt", Between(1, 4096));
  list.Add("groups_per_update", c.groups_per_update, "groups of one rollout batch",
           Between(1, 1 << 20));
  list.Add("interval", c.interval, "optimizer steps that may reuse one rollout batch",
           Between(1, 1 << 20));
  list.Add("max_policy_lag", c.max_policy_lag,
           "versions that a returned rollout may be behind the live policy; at least interval - 1",
           Between(0, 1 << 20));
  list.Add("max_tries", c.max_tries, "times a group is generated before it is given up as over lag",
           Between(1, 1000));
  list.Add("max_outstanding", c.max_outstanding,
           "completions that one rank takes on at once; 0 = one and a half engine loads",
           Between(0, 1 << 20));
  list.Add("seed", c.seed, "of the run; with prompt id and sample index it gives every draw",
           Between(0, kMaxSeed));
  list.Add("output", c.output, "trajectory file (HDF5); empty = none");
  list.Add("overwrite", c.overwrite, "replace the trajectory file when there is one");
}

void ListScorer(FieldList& list, ScorerConfig& c) {
  list.Table("scorer", "(prompt, completion) to a reward");
  list.Add("kind", c.kind, "how a completion is scored; none: every reward is 0",
           OneOf({"none", "exact", "numeric", "regex", "format", "length", "command", "http"}));
  list.Add("pattern", c.pattern,
           "regex: what the completion must contain; format: what all of it must match; a group 1 "
           "is compared with the prompt's answer");
  list.Add("format_reward", c.format_reward,
           "regex, format: reward of a match whose group 1 is not the answer");
  list.Add("command", c.command, "command: started once; JSON lines in and out");
  list.Add("url", c.url, "http: where a batch is POSTed");
  list.Add("deadline_s", c.deadline_s, "seconds for one batch, tries included",
           {.min = 0, .max = 86400, .above = true, .choices = {}});
  list.Add("max_tries", c.max_tries, "tries for one batch", Between(1, 100));
  list.Add("target_length", c.target_length, "length: tokens that earn 1", AtLeast(1));
}

void ListSync(FieldList& list, SyncSettings& c) {
  const Limits seconds = {.min = 0, .max = 86400, .above = true, .choices = {}};
  list.Table("sync", "how a new policy reaches the ranks");
  list.Add("mode", c.mode,
           "staged: into a second copy while decoding goes on; in_place: over the "
           "live weights, decoding pauses",
           OneOf({"staged", "in_place"}));
  list.Add("in_flight", c.in_flight, "what an update does to sequences that are being generated",
           OneOf({"keep", "recompute", "drain", "abort"}));
  list.Add("deadline_s", c.deadline_s, "seconds for one update, or for a peer to answer", seconds);
  list.Add("drain_limit_s", c.drain_limit_s,
           "drain: seconds to let sequences finish; the rest is aborted", seconds);
  list.Add("heartbeat_s", c.heartbeat_s, "seconds between signs of life of a rank", seconds);
  list.Add("startup_s", c.startup_s, "seconds for every rank to load its weights", seconds);
}

void ListTrainer(FieldList& list, TrainerSettings& c) {
  list.Table("trainer", "the reference trainer: GRPO on the output head");
  list.Add("updates", c.updates, "weight updates of the run", Between(1, 1 << 30));
  list.Add("optimizer", c.optimizer, "of the step", OneOf({"sgd", "adam"}));
  list.Add("learning_rate", c.learning_rate, "of the optimizer", Above(0));
  list.Add("momentum", c.momentum, "sgd: share of the last step that is kept", Between(0, 1));
  list.Add("clip", c.clip, "GRPO: the probability ratio is clipped to [1 - clip, 1 + clip]",
           Above(0));
  list.Add("kl_coef", c.kl_coef, "weight of the KL penalty against the checkpoint", AtLeast(0));
  list.Add("max_grad_norm", c.max_grad_norm, "gradients are scaled down to this norm; 0 = never",
           AtLeast(0));
  list.Add(
      "min_reward_gain", c.min_reward_gain,
      "exit with an error unless the mean reward of the last five updates is above that of the "
      "first five by at least this; 0 = do not look",
      AtLeast(0));
}

void ListLog(FieldList& list, LogSettings& c) {
  list.Table("log", "messages of this rank", /*per_rank=*/true);
  list.Add("level", c.level, "least severe level that is shown",
           OneOf({"trace", "debug", "info", "warn", "error"}));
  list.Add("file", c.file, "also append to this file; empty = standard error only");
}

void ListMetrics(FieldList& list, MetricsSettings& c) {
  list.Table("metrics", "counters of this rank as Prometheus text", /*per_rank=*/true);
  list.Add("file", c.file,
           "rewritten whole every interval_s; {rank} stands for the rank; empty = none");
  list.Add("interval_s", c.interval_s, "seconds between two writes",
           {.min = 0, .max = 86400, .above = true, .choices = {}});
}

/// Where each key that is not at its default was given: "file:line" or "--set".
using Origins = std::map<std::string, std::string, std::less<>>;

std::string Suggest(const std::string& nearest) {
  return nearest.empty() ? "; --help-config lists all keys"
                         : StrCat("; did you mean ", nearest, "?");
}

void ApplyFile(const FieldList& list, std::string_view text, const std::string& name,
               Origins& origins) {
  for (const TomlEntry& entry : ReadToml(text, name)) {
    const std::string where = StrCat(name, ":", entry.line);
    const bool top = entry.key.find('.') == std::string::npos;
    if (entry.is_table && top && list.FindTable(entry.key)) continue;
    if (entry.is_table && top) {
      const std::string nearest = list.NearestTable(entry.key);
      throw Error(StrCat(where, ": unknown table [", entry.key, "]",
                         Suggest(nearest.empty() ? "" : "[" + nearest + "]")));
    }
    const Field* field = list.Find(entry.key);
    if (!field)
      throw Error(StrCat(where, ": unknown key ", entry.key, Suggest(list.NearestKey(entry.key))));
    if (entry.is_table)
      throw Error(StrCat(where, ": ", entry.key, ": expected ", Describe(*field), ", got a table"));
    Assign(*field, entry.value, where);
    origins[entry.key] = where;
  }
}

void ApplySet(const FieldList& list, const std::string& set, Origins& origins) {
  const size_t equals = set.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(StrCat("--set ", set, ": expected table.key=value"));
  auto trim = [](std::string_view s) {
    while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
    while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
    return s;
  };
  const std::string key(trim(std::string_view(set).substr(0, equals)));
  const std::string_view text = trim(std::string_view(set).substr(equals + 1));
  const Field* field = list.Find(key);
  if (!field)
    throw Error(StrCat("--set ", set, ": unknown key ", key, Suggest(list.NearestKey(key))));
  // A string needs no quotes here: the shell has its own.
  const bool is_string = std::holds_alternative<std::string*>(field->value);
  const FieldValue value = is_string && !text.starts_with('"') && !text.starts_with('\'')
                               ? FieldValue{std::string(text), TomlString(text)}
                               : ReadTomlValue(text, "--set " + key);
  Assign(*field, value, "--set");
  origins[key] = "--set";
}

/// What no single field can tell.
void Validate(const Config& c, const Origins& origins, const std::string& name) {
  auto at = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (const auto it = origins.find(key); it != origins.end()) return it->second;
    return name;
  };
  if (c.rollout.max_policy_lag < c.rollout.interval - 1)
    throw Error(StrCat(at({"rollout.max_policy_lag", "rollout.interval"}),
                       ": rollout.max_policy_lag is ", c.rollout.max_policy_lag,
                       "; with rollout.interval ", c.rollout.interval, " a reused rollout gets ",
                       c.rollout.interval - 1, " versions old, so it must be at least ",
                       c.rollout.interval - 1));
  if (const std::string fault = Validate(c.sampling); !fault.empty())
    throw Error(StrCat(at({"sampling.min_tokens", "sampling.stop_ids", "sampling.max_tokens"}),
                       ": sampling.", fault));
}

}  // namespace

FieldList ListFields(Config& config) {
  FieldList list;
  ListModel(list, config.model);
  ListKernels(list, config.kernels);
  ListEngine(list, config.engine);
  ListSampling(list, config.sampling);
  ListRollout(list, config.rollout);
  ListScorer(list, config.scorer);
  ListSync(list, config.sync);
  ListTrainer(list, config.trainer);
  ListLog(list, config.log);
  ListMetrics(list, config.metrics);
  return list;
}

Config ParseConfig(std::string_view text, const std::string& name,
                   std::span<const std::string> sets, const Config& defaults) {
  Config config = defaults;
  const FieldList list = ListFields(config);
  Origins origins;
  ApplyFile(list, text, name, origins);
  for (const std::string& set : sets) ApplySet(list, set, origins);
  Validate(config, origins, name);
  return config;
}

Config LoadConfig(const std::string& path, std::span<const std::string> sets,
                  const Config& defaults) {
  if (path.empty()) return ParseConfig("", "configuration", sets, defaults);
  std::ifstream file(path, std::ios::binary);
  const bool is_folder = std::filesystem::is_directory(path);
  if (!file || is_folder)
    throw Error(StrCat(path, ": cannot read the configuration: ",
                       is_folder ? "it is a folder" : std::strerror(errno)));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return ParseConfig(text, path, sets, defaults);
}

std::string ToToml(const Config& config) {
  Config copy = config;
  const FieldList list = ListFields(copy);
  std::string out;
  for (const FieldTable& table : list.tables()) {
    out += StrCat(out.empty() ? "" : "\n", "[", table.name, "]\n");
    for (const Field& field : list.fields())
      if (field.table() == table.name)
        out += StrCat(field.name(), " = ", ToToml(field.value), "\n");
  }
  return out;
}

std::string HelpConfig(const Config& defaults) {
  Config copy = defaults;
  const FieldList list = ListFields(copy);
  std::string out;
  for (const FieldTable& table : list.tables()) {
    out += StrCat(out.empty() ? "" : "\n", "[", table.name, "]  # ", table.help, "\n");
    for (const Field& field : list.fields()) {
      if (field.table() != table.name) continue;
      out += StrCat("# ", field.help, " (", Describe(field), ")\n", field.name(), " = ",
                    ToToml(field.value), "\n");
    }
  }
  return out;
}

uint64_t Digest(const Config& config) {
  Config copy = config;
  uint64_t hash = 0xcbf29ce484222325ull;
  const FieldList list = ListFields(copy);
  for (const Field& field : list.fields()) {
    if (field.per_rank) continue;
    for (const char c : StrCat(field.key, " = ", ToToml(field.value), "\n"))
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  }
  return hash;
}

}  // namespace rollcast
