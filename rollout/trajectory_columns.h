// The columns of the trajectory file, each named once: writing, reading and filters go through
// these lists. Visitors are called as visit(name, member) with a reference into the given row.
#pragma once

#include <cstdint>

#include "rollout/trajectory_file.h"

namespace rollcast {

/// /trajectories. `Row` is TrajectoryRow or const TrajectoryRow.
template <class Row, class Visit>
void VisitTrajectoryColumns(Row& row, Visit&& visit) {
  auto& t = row.trajectory;
  auto& s = t.sampling;
  visit("prompt_id", t.prompt_id);
  visit("group_id", t.group_id);
  visit("sample_index", t.sample_index);
  visit("group_size", t.group_size);
  visit("attempt", t.attempt);
  visit("rank", t.rank);
  visit("seed", s.seed);
  visit("reward", t.reward);
  visit("outcome", t.outcome);
  visit("finish_reason", t.finish_reason);
  visit("message", t.message);
  visit("text", t.text);
  visit("version_first", row.version_first);
  visit("version_last", row.version_last);
  visit("live_version_at_return", t.live_version_at_return);
  visit("mixed_kv", t.mixed_kv);
  visit("prompt_offset", row.prompt_offset);
  visit("prompt_length", row.prompt_length);
  visit("completion_offset", row.completion_offset);
  visit("completion_length", row.completion_length);
  visit("max_tokens", s.max_tokens);
  visit("min_tokens", s.min_tokens);
  visit("temperature", s.temperature);
  visit("top_p", s.top_p);
  visit("top_k", s.top_k);
  visit("min_p", s.min_p);
  visit("repetition_penalty", s.repetition_penalty);
  visit("frequency_penalty", s.frequency_penalty);
  visit("presence_penalty", s.presence_penalty);
  visit("stop_ids", s.stop_ids);
  visit("stop_strings", s.stop_strings);
  visit("ignore_eos", s.ignore_eos);
}

/// /weight_updates. `Report` is SyncReport or const SyncReport.
template <class Report, class Visit>
void VisitUpdateColumns(Report& r, Visit&& visit) {
  visit("version", r.version);
  visit("committed", r.committed);
  visit("error", r.error);
  visit("mode", r.mode);
  visit("transport", r.transport);
  visit("digest", r.digest);
  visit("bytes", r.bytes);
  visit("total_s", r.total_s);
  visit("announce_s", r.announce_s);
  visit("transfer_s", r.transfer_s);
  visit("verify_s", r.verify_s);
  visit("commit_s", r.commit_s);
  visit("pause_s", r.pause_s);
  visit("sequences_kept", r.sequences_kept);
  visit("sequences_recomputed", r.sequences_recomputed);
  visit("sequences_aborted", r.sequences_aborted);
}

}  // namespace rollcast
