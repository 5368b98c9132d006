#include "launch/metrics.h"

#include <fcntl.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "kernels/check.h"
#include "launch/config.h"
#include "launch/output_path.h"
#include "rollout/writer_lock.h"

namespace rollcast {

namespace {

class Families {
 public:
  explicit Families(int rank) : rank_{"rank", std::to_string(rank)} {}

  void Gauge(const char* name, const char* help, double value) {
    Start(name, help, prometheus::MetricType::Gauge);
    Sample({}).gauge.value = value;
  }
  void Counter(const char* name, const char* help, double value) {
    Start(name, help, prometheus::MetricType::Counter);
    Sample({}).counter.value = value;
  }
  /// A family whose samples are then added with Sample.
  void Start(const char* name, const char* help, prometheus::MetricType type) {
    prometheus::MetricFamily family;
    family.name = std::string("rollcast_") + name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
  }
  prometheus::ClientMetric& Sample(std::vector<prometheus::ClientMetric::Label> labels) {
    prometheus::ClientMetric metric;
    metric.label = {rank_};
    for (auto& label : labels) metric.label.push_back(std::move(label));
    families_.back().metric.push_back(std::move(metric));
    return families_.back().metric.back();
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  prometheus::ClientMetric::Label rank_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace

std::string RenderMetrics(const RankMetrics& metrics) {
  const EngineStats& e = metrics.engine;
  Families out(metrics.rank);
  out.Gauge("policy_version", "Committed weight updates; 0 is the checkpoint",
            static_cast<double>(e.version));
  out.Gauge("weights_torn", "1 while a failed in-place update keeps the engine from stepping",
            e.torn);
  out.Gauge("sequences_running", "Sequences that decode together", e.running);
  out.Gauge("sequences_waiting", "Sequences that wait for a slot or for pages", e.waiting);
  out.Gauge("kv_pages", "KV pages", e.pages_total);
  out.Gauge("kv_pages_used", "KV pages held by sequences", e.pages_used);
  out.Gauge("kv_pages_cached", "KV pages held by the prefix cache alone", e.pages_cached);
  out.Counter("steps_total", "Engine steps", static_cast<double>(e.steps));
  out.Counter("step_seconds_total", "Time in engine steps", e.step_s);
  out.Counter("graph_replays_total", "Steps by a captured graph",
              static_cast<double>(e.graph_replays));
  out.Counter("prefill_tokens_total", "Prompt tokens computed",
              static_cast<double>(e.prefill_tokens));
  out.Counter("cached_tokens_total", "Prompt tokens taken from shared pages",
              static_cast<double>(e.cached_tokens));
  out.Counter("decode_tokens_total", "Tokens generated", static_cast<double>(e.decode_tokens));
  out.Counter("preemptions_total", "Sequences that gave their pages back and were computed again",
              static_cast<double>(e.preemptions));
  out.Counter("sequences_finished_total", "Completions", static_cast<double>(e.finished));
  out.Counter("sequences_aborted_total", "Completions cut short", static_cast<double>(e.aborted));
  out.Counter("weight_updates_total", "Weight updates committed", static_cast<double>(e.updates));
  out.Start("trajectories_total", "Completions returned, by outcome",
            prometheus::MetricType::Counter);
  for (size_t i = 0; i < metrics.outcomes.size(); ++i)
    out.Sample({{"outcome", Name(static_cast<Outcome>(i))}}).counter.value =
        static_cast<double>(metrics.outcomes[i]);
  if (metrics.last_update) {
    const SyncReport& u = *metrics.last_update;
    out.Gauge("last_update_committed", "1 = committed, 0 = refused", u.committed);
    out.Gauge("last_update_bytes", "Bytes that one rank received", static_cast<double>(u.bytes));
    out.Gauge("last_update_pause_seconds", "Longest time that any rank took no step", u.pause_s);
    out.Start("last_update_seconds", "Duration by phase", prometheus::MetricType::Gauge);
    const std::pair<const char*, double> phases[] = {{"announce", u.announce_s},
                                                     {"transfer", u.transfer_s},
                                                     {"verify", u.verify_s},
                                                     {"commit", u.commit_s},
                                                     {"total", u.total_s}};
    for (const auto& [phase, seconds] : phases)
      out.Sample({{"phase", phase}}).gauge.value = seconds;
  }
  return out.Text();
}

namespace {

/// All of them begin with the first family of RenderMetrics.
constexpr OutputKind kMetricsOutput{"an earlier metrics file", "# HELP rollcast_policy_version "};

}  // namespace

MetricsFile::MetricsFile(const std::string& path, int rank)
    : hint_(path.find("{rank}") != path.npos
                ? ""
                : "; {rank} in the name keeps the files of several ranks apart"),
      name_(FillIn(path, "{rank}", std::to_string(rank))),
      temporary_(name_ + ".new") {
  PrepareFolder(name_);
  RequireReplaceable();
}

MetricsFile::~MetricsFile() {
  if (written_ >= 0) ::close(written_);
}

void MetricsFile::RequireReplaceable() const {
  try {
    // It is there to be replaced: that needs no --overwrite.
    for (const std::string& name : {name_, temporary_})
      if (!IsOpenAs(name, written_))
        rollcast::RequireReplaceable(name, /*overwrite=*/true, kMetricsOutput);
  } catch (const Error& e) {
    Fail(e.what());
  }
}

void MetricsFile::Fail(const std::string& why) const {
  throw Error(StrCat("metrics.file ", why, hint_));
}

void MetricsFile::Write(const RankMetrics& metrics) {
  RequireReplaceable();
  errno = 0;
  std::ofstream file(temporary_, std::ios::binary | std::ios::trunc);
  file << RenderMetrics(metrics);
  file.close();
  const int fd = file ? ::open(temporary_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
  if (fd >= 0) HoldAsWriter(fd);
  if (fd < 0 || std::rename(temporary_.c_str(), name_.c_str()) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    Fail(StrCat(name_, ": cannot be written: ", why));
  }
  if (written_ >= 0) ::close(written_);
  written_ = fd;
}

}  // namespace rollcast
