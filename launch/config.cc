#include "launch/config.h"

#include <filesystem>
#include <iterator>
#include <map>

#include "engine/input_stream.h"
#include "kernels/check.h"
#include "launch/toml_reader.h"
#include "rollout/group_work.h"
#include "rollout/sampling_fields.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

void ListModel(FieldList& list, ModelSettings& c) {
  list.Table("model", "the checkpoint");
  list.AddPerRank("path", c.path,
                  "folder with config.json, safetensors files and, for text, tokenizer.json");
  list.Add("untie_head", c.untie_head,
           "give a tied output head memory of its own, so that it can be trained alone");
}

void ListKernels(FieldList& list, BackendOptions& c) {
  list.Table("kernels", "the device of this rank", /*per_rank=*/true);
  list.Add(
      "device", c.device,
      "\"auto\" (a GPU where there is one), \"cpu\", \"cuda\" or \"cuda:N\"; auto and cuda: beside "
      "a trainer the workers of one host take its GPUs from the last downwards, so that the "
      "trainer finds cuda:0 free; more workers than GPUs share");
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
  list.Add("max_running", c.max_running, "sequences that decode together", Between(1, 1 << 15));
  list.Add("max_batched_tokens", c.max_batched_tokens,
           "rows (tokens) of one step; a longer prefill is cut into chunks", Between(1, 1 << 19));
  list.Add("page_size", c.page_size, "tokens of one KV page", Between(1, 1024));
  list.Add("num_pages", c.num_pages, "KV pages; 0 = as many as kv_memory_mb holds",
           Between(0, 1 << 30));
  list.Add("kv_memory_mb", c.kv_memory_mb, "memory for KV pages in MiB", Between(1, 1 << 24));
  list.Add("max_context", c.max_context,
           "tokens of one sequence, prompt and completion; 0 = what model and pages allow",
           Between(0, 1 << 30));
  list.Add("max_queued", c.max_queued,
           "sequences that wait in the engine; more wait with the rank until there is room",
           Between(1, 1 << 30));
  list.Add("prefix_cache", c.prefix_cache, "keep the KV of finished prefixes for later prompts");
  list.Add("capture", c.capture, "decode by captured graphs; false = eager");
  list.Add("run_ahead", c.run_ahead, "steps launched before the last one has been read",
           Between(0, 1));
}

void ListRollout(FieldList& list, RolloutSettings& c) {
  list.Table("rollout", "prompts in, trajectories out");
  list.Add("prompts", c.prompts,
           "JSONL file of prompts, - = standard input; `rollcast generate --help` lists the keys "
           "of a row");
  list.AddPerRank("tokenizer", c.tokenizer,
                  "tokenizer.json or its folder; empty = the model's folder");
  list.Add("add_special_tokens", c.add_special_tokens,
           "put the tokenizer's own special tokens (such as bos) around prompt texts");
  list.Add("group_size", c.group_size, "completions of one prompt", Between(1, kMaxGroupSize));
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
  list.Add("overwrite", c.overwrite,
           "replace an HDF5 file that has the name of output; nothing else is replaced");
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
  list.Add("command", c.command,
           "command: started once; JSON lines in and out, as in README and configs/scorer.py");
  list.Add("url", c.url, "http: where a batch is POSTed, as in README and configs/scorer.py");
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
  list.Add(
      "transport", c.transport,
      "the way of weights from trainer to workers. ipc: copy engine, all on one host, decoding "
      "hardly notices; nccl: broadcast, each rank with a GPU of its own; mpi: through host "
      "memory; auto: the first of these that can work",
      OneOf({"auto", "mpi", "nccl", "ipc"}));
  list.AddPerRank(
      "nccl_library", c.nccl_library,
      "nccl: library file, the trainer's version on every rank (beside PyTorch, the "
      "libnccl.so.2 that PyTorch has brought); where NVLink multicast does not work, set "
      "NCCL_NVLS_ENABLE=0 in the environment of all ranks");
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
  list.Add("min_reward_gain", c.min_reward_gain,
           "exit with an error unless the mean reward of the last five updates (of fewer than ten, "
           "the second half) is above that of as many first ones by at least this; 0 = do not look",
           AtLeast(0));
  list.AddPerRank("save", c.save,
                  "folder that the trained model is written to, in the form of Hugging Face; "
                  "{version} stands for the policy version; empty = not saved");
  list.AddPerRank("save_every", c.save_every,
                  "updates between two savings, beside the one at the end; 0 = only that one",
                  Between(0, 1 << 30));
  list.AddPerRank("save_overwrite", c.save_overwrite,
                  "replace a model folder of an earlier run that has the name of save");
}

void ListLog(FieldList& list, LogSettings& c) {
  list.Table("log", "messages of this rank", /*per_rank=*/true);
  list.Add("level", c.level, "least severe level that is shown",
           OneOf({"trace", "debug", "info", "warn", "error"}));
  list.Add("file", c.file, "also append to this file; empty = standard error only");
}

void ListMetrics(FieldList& list, MetricsSettings& c) {
  list.Table("metrics", "counters of this rank as Prometheus text", /*per_rank=*/true);
  list.Add(
      "file", c.file,
      "rewritten whole every interval_s; {rank} stands for the rank; an earlier metrics file is "
      "replaced, nothing else; empty = none");
  list.Add("interval_s", c.interval_s, "seconds between two writes",
           {.min = 0, .max = 86400, .above = true, .choices = {}});
}

/// Where each key that is not at its default was given: "file:line" or "--set".
using Origins = std::map<std::string, std::string, std::less<>>;

std::string Suggest(const std::string& nearest) {
  return nearest.empty() ? "; --help-config lists all keys"
                         : StrCat("; did you mean ", nearest, "?");
}

void AssignAt(const std::string& where, const Field& field, const FieldValue& value) {
  try {
    Assign(field, value);
  } catch (const Error& e) {
    throw Error(StrCat(where, ": ", e.what()));
  }
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
    AssignAt(where, *field, entry.value);
    origins[entry.key] = where;
  }
}

void ApplySet(const FieldList& list, const Setting& setting, Origins& origins) {
  const std::string& set = setting.text;
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
  // What it resolves to is written as TOML, which is UTF-8.
  if (!IsValidUtf8(text))
    throw Error(StrCat(setting.origin, ": ", key, ": the value is not UTF-8"));
  // A string needs no quotes here: the shell has its own.
  const bool is_string = std::holds_alternative<std::string*>(field->value);
  const FieldValue value = is_string && !text.starts_with('"') && !text.starts_with('\'')
                               ? FieldValue{std::string(text), TomlString(text)}
                               : ReadTomlValue(text);
  AssignAt(setting.origin, *field, value);
  origins[key] = setting.origin;
}

/// The first "{...}" of `text` that is not `known`; empty when there is none.
std::string UnknownPlaceholder(std::string_view text, std::string_view known) {
  for (size_t begin = text.find('{'); begin != text.npos; begin = text.find('{', begin + 1)) {
    const size_t end = text.find('}', begin);
    if (end == text.npos) break;
    const std::string_view found = text.substr(begin, end + 1 - begin);
    if (found != known) return std::string(found);
  }
  return "";
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
  if (c.trainer.min_reward_gain > 0 && c.trainer.updates < 2)
    throw Error(StrCat(at({"trainer.min_reward_gain", "trainer.updates"}),
                       ": trainer.min_reward_gain compares the last updates with the first, and "
                       "trainer.updates is ",
                       c.trainer.updates, "; make it at least 2, or min_reward_gain 0"));
  const auto placeholders = [&](const char* key, const std::string& value, const char* known) {
    if (const std::string unknown = UnknownPlaceholder(value, known); !unknown.empty())
      throw Error(StrCat(at({key}), ": ", key, " is ", TomlString(value), ", and ", unknown,
                         " stands for nothing; the only placeholder is ", known));
  };
  placeholders("trainer.save", c.trainer.save, "{version}");
  placeholders("metrics.file", c.metrics.file, "{rank}");
  if (const std::string fault = Validate(c.sampling); !fault.empty()) {
    const std::string key = "sampling." + fault.substr(0, fault.find(' '));
    throw Error(StrCat(at({key.c_str(), "sampling.max_tokens"}), ": sampling.", fault));
  }
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

Config ParseConfig(std::string_view text, const std::string& name, std::span<const Setting> sets,
                   const Config& defaults, std::set<std::string>* given) {
  Config config = defaults;
  const FieldList list = ListFields(config);
  Origins origins;
  ApplyFile(list, text, name, origins);
  for (const Setting& set : sets) ApplySet(list, set, origins);
  Validate(config, origins, name);
  if (given != nullptr)
    for (const auto& [key, origin] : origins) given->insert(key);
  return config;
}

Config LoadConfig(const std::string& path, std::span<const Setting> sets, const Config& defaults,
                  std::set<std::string>* given) {
  if (path.empty()) return ParseConfig("", "configuration", sets, defaults, given);
  InputStream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return ParseConfig(text, path, sets, defaults, given);
}

std::string FillIn(std::string text, std::string_view placeholder, std::string_view value) {
  for (size_t at = 0; (at = text.find(placeholder, at)) != text.npos; at += value.size())
    text.replace(at, placeholder.size(), value);
  return text;
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

std::string SharedSettings(const Config& config) {
  Config copy = config;
  const FieldList list = ListFields(copy);
  std::string text;
  for (const Field& field : list.fields())
    if (!field.per_rank) text += StrCat(field.key, " = ", ToToml(field.value), "\n");
  return text;
}

}  // namespace rollcast
