// The configuration of a job: one TOML table a struct. Relative paths in it are relative to the
// working directory of the process. See ListFields in launch/config.cc for the meaning and the
// limits of each field, or `rollcast trainer --help-config`.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling.h"
#include "kernels/backend.h"
#include "rollout/field.h"
#include "rollout/scorer.h"

namespace rollcast {

struct ModelSettings {
  std::string path;
  bool untie_head = false;
};

struct RolloutSettings {
  std::string prompts;
  std::string tokenizer;  // empty: the model's folder
  bool add_special_tokens = false;
  int group_size = 8;
  int groups_per_update = 8;
  int interval = 1;
  int max_policy_lag = 1;
  int max_tries = 3;
  int max_outstanding = 0;
  uint64_t seed = 0;
  std::string output;
  bool overwrite = false;
};

struct SyncSettings {
  std::string mode = "staged";
  std::string transport = "auto";
  std::string nccl_library = "libnccl.so.2";
  std::string in_flight = "keep";
  double deadline_s = 60;
  double drain_limit_s = 30;
  double heartbeat_s = 5;
  double startup_s = 600;
};

struct TrainerSettings {
  int updates = 30;
  std::string optimizer = "adam";
  double learning_rate = 1e-4;
  double momentum = 0.9;
  double clip = 0.2;
  double kl_coef = 0;
  double max_grad_norm = 1;
  double min_reward_gain = 0;
  std::string save;
  int save_every = 0;
  bool save_overwrite = false;
};

inline ScorerConfig NoScorer() {
  ScorerConfig config;
  config.kind = "none";
  return config;
}

struct LogSettings {
  std::string level = "info";
  std::string file;
};

struct MetricsSettings {
  std::string file;
  double interval_s = 10;
};

struct Config {
  ModelSettings model;
  BackendOptions kernels;
  EngineConfig engine;
  SamplingParams sampling;
  RolloutSettings rollout;
  ScorerConfig scorer = NoScorer();  // kind "none" is known to launch alone: no scorer at all
  SyncSettings sync;
  TrainerSettings trainer;
  LogSettings log;
  MetricsSettings metrics;
};

/// Every field of `config`, once. The list points into `config`.
FieldList ListFields(Config& config);

/// One value from the command line, and what messages call its place.
struct Setting {
  Setting(const char* text) : text(text) {}  // NOLINT: a "--set" is written as its text
  Setting(std::string text, std::string origin = "--set")
      : text(std::move(text)), origin(std::move(origin)) {}

  std::string text;  // "table.key=value"
  std::string origin = "--set";
};

/// Reads `text` over `defaults`, then applies `sets` in order; `given` (may be null) gets the keys
/// that either has named. `name` stands for the file in messages. Throws Error with file, line,
/// key, expected and actual: bad TOML, unknown table or key (with the nearest known one), wrong
/// type, out of range, or fields that contradict each other.
Config ParseConfig(std::string_view text, const std::string& name,
                   std::span<const Setting> sets = {}, const Config& defaults = {},
                   std::set<std::string>* given = nullptr);
/// The same from a file; an empty `path` stands for an empty file.
Config LoadConfig(const std::string& path, std::span<const Setting> sets = {},
                  const Config& defaults = {}, std::set<std::string>* given = nullptr);

/// `text` with `value` for each `placeholder`, such as "{version}".
std::string FillIn(std::string text, std::string_view placeholder, std::string_view value);

/// The resolved configuration, every field written out; ParseConfig reads it back to the same.
std::string ToToml(const Config& config);
/// Every table and field with its meaning, limits and default.
std::string HelpConfig(const Config& defaults = {});
/// The resolved fields that all ranks of a job must agree on, "key = value" a line: all but
/// [kernels], [log], [metrics] and model.path (the weights' own digest stands for that one).
std::string SharedSettings(const Config& config);

}  // namespace rollcast
