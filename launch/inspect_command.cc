#include "launch/inspect_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "kernels/check.h"
#include "launch/row_filter.h"
#include "rollout/trajectory_columns.h"
#include "rollout/trajectory_file.h"

namespace rollcast {

namespace {

constexpr int64_t kRowsAtOnce = 4096;
constexpr int kBins = 10, kBarWidth = 40;

// Written by hand because a JSON library knows doubles only: a float32 is printed with the fewest
// digits that read back as the same float32.

template <class T>
void AppendJson(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out += value ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    out += fmt::format("\"{}\"", Name(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    out += nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else if constexpr (std::is_floating_point_v<T>) {
    out += std::isfinite(value) ? fmt::format("{}", value) : "null";
  } else if constexpr (std::is_same_v<T, PolicySpan>) {
    out += fmt::format("[{},{},{}]", value.begin, value.end, value.version);
  } else {
    out += fmt::format("{}", value);
  }
}

template <class T>
void AppendJson(std::string& out, const std::vector<T>& values) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    AppendJson(out, values[i]);
  }
  out += ']';
}

std::string RowAsJson(const TrajectoryRow& row) {
  std::string out = "{";
  const auto add = [&](const char* name, const auto& value) {
    out += fmt::format("{}\"{}\":", out.size() > 1 ? "," : "", name);
    AppendJson(out, value);
  };
  VisitTrajectoryColumns(row, add);
  const Trajectory& t = row.trajectory;
  add("policy_lag", row.policy_lag());
  add("policy_spans", t.spans);
  add("prompt", t.prompt);
  add("completion", t.completion);
  add("logprob", t.logprob);
  add("logprob_raw", t.logprob_raw);
  if (!t.logprob_filtered.empty()) add("logprob_filtered", t.logprob_filtered);
  return out + "}\n";
}

struct Summary {
  int64_t rows = 0, prompt_tokens = 0, completion_tokens = 0, mixed_kv = 0;
  std::set<uint64_t> groups;
  std::set<std::string> prompts;
  std::vector<int64_t> outcomes = std::vector<int64_t>(static_cast<int>(Outcome::kFailed) + 1);
  std::vector<int64_t> finishes = std::vector<int64_t>(static_cast<int>(FinishReason::kAbort) + 1);
  std::vector<double> rewards, lengths, lags;
  PolicyVersion first_version = 0, last_version = 0;

  void Add(const TrajectoryRow& row) {
    const Trajectory& t = row.trajectory;
    first_version = rows == 0 ? row.version_first : std::min(first_version, row.version_first);
    last_version = rows == 0 ? row.version_last : std::max(last_version, row.version_last);
    ++rows;
    prompt_tokens += row.prompt_length;
    completion_tokens += row.completion_length;
    mixed_kv += t.mixed_kv;
    groups.insert(t.group_id);
    prompts.insert(t.prompt_id);
    ++outcomes.at(static_cast<size_t>(t.outcome));
    ++finishes.at(static_cast<size_t>(t.finish_reason));
    if (!std::isnan(t.reward)) rewards.push_back(t.reward);
    if (t.finish_reason != FinishReason::kNone) lengths.push_back(row.completion_length);
    if (row.completion_length > 0) lags.push_back(static_cast<double>(row.policy_lag()));
  }
};

template <class Enum>
std::string Counts(const std::vector<int64_t>& counts) {
  std::string out;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0)
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", Name(static_cast<Enum>(i)), counts[i]);
  return out;
}

// Quantile by linear interpolation, as numpy's default; `sorted` is not empty.
double Quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

void PrintDistribution(std::ostream& out, const char* name, std::vector<double> values) {
  if (values.empty()) {
    out << fmt::format("\n{}: none\n", name);
    return;
  }
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  out << fmt::format(
      "\n{} (of {}): min {:.6g}  p10 {:.6g}  median {:.6g}  p90 {:.6g}  max {:.6g}  mean {:.6g}\n",
      name, values.size(), values.front(), Quantile(values, 0.1), Quantile(values, 0.5),
      Quantile(values, 0.9), values.back(), sum / static_cast<double>(values.size()));

  // A few distinct values get a line each, others share bins of equal width.
  std::vector<std::pair<std::string, int64_t>> lines;
  std::vector<double> distinct;
  std::unique_copy(values.begin(), values.end(), std::back_inserter(distinct));
  if (distinct.size() <= kBins) {
    for (const double value : distinct) {
      const auto range = std::equal_range(values.begin(), values.end(), value);
      lines.emplace_back(fmt::format("{:.6g}", value), range.second - range.first);
    }
  } else {
    const double low = values.front(), width = (values.back() - low) / kBins;
    auto from = values.begin();
    for (int i = 1; i <= kBins; ++i) {
      const double end = low + width * i;
      const auto to = i == kBins ? values.end() : std::lower_bound(from, values.end(), end);
      lines.emplace_back(
          fmt::format("{:.4g} to {:.4g}", low + width * (i - 1), i == kBins ? values.back() : end),
          to - from);
      from = to;
    }
  }
  int64_t most = 1;
  size_t label_width = 0;
  for (const auto& [label, count] : lines) {
    most = std::max(most, count);
    label_width = std::max(label_width, label.size());
  }
  for (const auto& [label, count] : lines)
    out << fmt::format("  {:>{}} {:>8} {}\n", label, label_width, count,
                       std::string((count * kBarWidth + most - 1) / most, '#'));
}

void PrintUpdates(std::ostream& out, const std::vector<SyncReport>& updates) {
  if (updates.empty()) {
    out << "\nno weight updates\n";
    return;
  }
  int64_t committed = 0;
  for (const SyncReport& r : updates) committed += r.committed;
  out << fmt::format("\nweight updates: {} committed, {} refused\n", committed,
                     static_cast<int64_t>(updates.size()) - committed);
  out << fmt::format(
      "{:>8} {:>9} {:>5} {:>10} {:>9} {:>9} {:>10} {:>10} {:>9} {:>9} {:>16} {:>16}  {}\n",
      "version", "mode", "by", "MB", "GB/s", "total ms", "transfer", "verify", "commit", "pause",
      "kept/again/abort", "digest", "error");
  for (const SyncReport& r : updates)
    out << fmt::format(
        "{:>8} {:>9} {:>5} {:>10.1f} {:>9.3f} {:>9.1f} {:>10.1f} {:>10.1f} {:>9.1f} {:>9.1f} "
        "{:>16} {:016x}  {}\n",
        r.committed ? StrCat(r.version) : "-", r.mode, r.transport,
        static_cast<double>(r.bytes) * 1e-6,
        r.transfer_s > 0 ? static_cast<double>(r.bytes) * 1e-9 / r.transfer_s : 0.0,
        r.total_s * 1e3, r.transfer_s * 1e3, r.verify_s * 1e3, r.commit_s * 1e3, r.pause_s * 1e3,
        fmt::format("{}/{}/{}", r.sequences_kept, r.sequences_recomputed, r.sequences_aborted),
        r.digest,
        r.committed       ? ""
        : r.error.empty() ? "refused"
                          : r.error);
}

void PrintSummary(std::ostream& out, const InspectOptions& options, const TrajectoryReader& reader,
                  const Summary& summary) {
  out << fmt::format("{}: {} trajectories, {} by rollcast {}\n", options.file.string(),
                     reader.rows(), reader.closed() ? "written" : "begun",
                     reader.info().rollcast_version);
  if (!reader.closed())
    out << "the run has not closed the file: it goes on, or was killed; every row is whole\n";
  else if (!reader.end().empty())
    out << fmt::format("the run: {}\n", reader.end());
  out << fmt::format("model digest {:016x}, manifest digest {:016x}\n", reader.info().model_digest,
                     reader.info().manifest_digest);
  if (!options.filters.empty() || options.limit >= 0)
    out << fmt::format("shown: {} of {}\n", summary.rows, reader.rows());
  if (summary.rows == 0) {
    out << (reader.rows() == 0 ? "\nno trajectories\n" : "\nno trajectory passes\n");
    return;
  }
  out << fmt::format("\ngroups         {} of {} prompts\n", summary.groups.size(),
                     summary.prompts.size());
  out << fmt::format("outcomes       {}\n", Counts<Outcome>(summary.outcomes));
  out << fmt::format("finish reasons {}\n", Counts<FinishReason>(summary.finishes));
  out << fmt::format("tokens         {} of prompts, {} of completions\n", summary.prompt_tokens,
                     summary.completion_tokens);
  out << fmt::format("policies       {} to {}; {} continued on KV of an older one\n",
                     summary.first_version, summary.last_version, summary.mixed_kv);
  PrintDistribution(out, "reward", summary.rewards);
  PrintDistribution(out, "completion length", summary.lengths);
  PrintDistribution(out, "policy lag", summary.lags);
}

}  // namespace

int RunInspect(const InspectOptions& options, std::ostream& out) {
  if (options.limit < -1)
    throw Error(
        fmt::format("--limit is {}; expected at least 0 rows, or -1 for all", options.limit));
  std::vector<RowFilter> filters;
  for (const std::string& text : options.filters) filters.emplace_back(text);
  const TrajectoryReader reader(options.file);
  if (options.config) {
    out << reader.info().config;
  } else {
    Summary summary;
    bool done = false;
    for (int64_t begin = 0; begin < reader.rows() && !done; begin += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, reader.rows() - begin);
      for (TrajectoryRow& row : reader.ReadRows(begin, count)) {
        done = options.limit >= 0 && summary.rows >= options.limit;
        if (done || !out) break;
        if (!std::all_of(filters.begin(), filters.end(),
                         [&](const RowFilter& filter) { return filter.Passes(row); }))
          continue;
        summary.Add(row);
        if (!options.jsonl) continue;
        reader.ReadTokens(row);
        out << RowAsJson(row);
      }
    }
    if (!options.jsonl) {
      PrintSummary(out, options, reader, summary);
      PrintUpdates(out, reader.ReadUpdates());
    }
  }
  out.flush();
  if (!out) throw Error("inspect: the output cannot be written");
  return 0;
}

}  // namespace rollcast
