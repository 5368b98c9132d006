#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>

namespace rollcast {

using Phase = Sequence::Phase;

std::vector<int32_t> StopIds(const SamplingParams& params, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> ids = params.stop_ids;
  if (!params.ignore_eos)
    for (int32_t id : eos_ids)
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits), pool_(limits.num_pages), cache_(limits.page_size) {
  for (int slot = limits.max_running - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

std::string Scheduler::Submit(Request request) {
  if (request.prompt.empty()) return "the prompt is empty";
  const int length = static_cast<int>(request.prompt.size());
  const int longest = request.score_only ? limits_.max_context : limits_.max_context - 1;
  if (length > longest)
    return StrCat("the prompt has ", length, " tokens; at most ", longest,
                  " fit into the context of ", limits_.max_context,
                  request.score_only ? "" : " with one to generate");
  for (size_t i = 0; i < request.prompt.size(); ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= limits_.vocab_size)
      return StrCat("token id ", request.prompt[i], " at position ", i,
                    " is outside the vocabulary of ", limits_.vocab_size);
  if (std::string reason = Validate(request.sampling, limits_.vocab_size); !reason.empty())
    return reason;
  const size_t num_stop_ids = StopIds(request.sampling, limits_.eos_ids).size();
  if (num_stop_ids > kMaxStopIds)
    return StrCat("stop_ids and the model's end-of-sequence ids are ", num_stop_ids, "; at most ",
                  kMaxStopIds, " are possible");
  if (QueueIsFull()) return StrCat("the queue is full (", limits_.max_queued, " waiting)");
  if (by_id_.contains(request.id)) return StrCat("request id ", request.id, " is in use");

  auto sequence = std::make_shared<Sequence>();
  sequence->arrival = next_arrival_++;
  sequence->completion.id = request.id;
  sequence->request = std::move(request);
  by_id_[sequence->request.id] = sequence;
  waiting_.push_back(std::move(sequence));
  return "";
}

bool Scheduler::QueueIsFull() const {
  const size_t limit = limits_.max_queued;
  if (waiting_.size() < limit) return false;
  const auto is_new = [](const SequencePtr& s) { return s->completion.preemptions == 0; };
  return static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), is_new)) >= limit;
}

void Scheduler::RequestAbort(uint64_t id, std::string message) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  found->second->abort_requested = true;
  found->second->completion.message = std::move(message);
}

void Scheduler::RequestAbortAll(const std::string& message) {
  for (auto& [id, sequence] : by_id_) {
    sequence->abort_requested = true;
    sequence->completion.message = message;
  }
}

bool Scheduler::CanRun() const {
  if (!running_.empty()) return true;
  for (const SequencePtr& s : waiting_)
    if (!hold_admission_ || s->launched_output > 0) return true;
  return false;
}

bool Scheduler::HasAborts() const {
  return std::any_of(by_id_.begin(), by_id_.end(),
                     [](const auto& entry) { return entry.second->abort_requested; });
}

bool Scheduler::CanAllocate(int pages) const {
  return pool_.num_free() >= pages || pool_.num_free() + cache_.NumEvictable() >= pages;
}

PageRef Scheduler::AllocatePage() {
  PageRef page = pool_.Allocate();
  if (!page && cache_.EvictOne()) page = pool_.Allocate();
  return page;
}

Scheduler::Verdict Scheduler::Plan(PolicyVersion version, bool in_flight, ScheduledBatch& batch,
                                   std::vector<Completion>& finished) {
  FinishAborted(finished);
  if (PlanLogits(version, batch)) return Verdict::kRun;
  if (PlanDecodes(version, in_flight, batch) == Verdict::kNeedsSync) return Verdict::kNeedsSync;
  PlanPrefills(version, batch);
  return batch.empty() ? Verdict::kNothing : Verdict::kRun;
}

void Scheduler::FinishAborted(std::vector<Completion>& finished) {
  std::vector<SequencePtr> aborted;
  for (auto& [id, sequence] : by_id_)
    if (sequence->abort_requested) aborted.push_back(sequence);
  std::sort(aborted.begin(), aborted.end(),
            [](const SequencePtr& a, const SequencePtr& b) { return a->arrival < b->arrival; });
  for (const SequencePtr& sequence : aborted) Finish(sequence, CompletionState::kAborted, finished);
}

Scheduler::Verdict Scheduler::PlanDecodes(PolicyVersion version, bool in_flight,
                                          ScheduledBatch& batch) {
  const auto decodes = [this](const Sequence& s) {
    return s.phase == Phase::kDecode && s.launched_output < s.request.sampling.max_tokens &&
           s.prompt_length() + s.launched_output < limits_.max_context;
  };
  // Every page this step needs is there before the first one is taken, so a plan is never given up
  // half made.
  const auto pages_needed = [&] {
    int needed = 0;
    for (const SequencePtr& s : running_) {
      const size_t index = s->computed / limits_.page_size;
      needed += decodes(*s) && (index >= s->pages.size() || s->pages[index].shared());
    }
    return needed;
  };
  while (!CanAllocate(pages_needed())) {
    if (in_flight) return Verdict::kNeedsSync;
    Preempt(SequencePtr(running_.back()), true);
  }
  for (const SequencePtr& sequence : running_) {
    if (!decodes(*sequence)) continue;
    ScheduledSegment segment{sequence, sequence->slot, sequence->computed, 1, true, -1};
    const size_t index = sequence->computed / limits_.page_size;
    if (index >= sequence->pages.size() || sequence->pages[index].shared()) {
      PageRef page = AllocatePage();
      RC_CHECK(page);
      segment.new_page = page.page();
      if (index < sequence->pages.size()) {
        batch.copy_from.push_back(sequence->pages[index].page());
        batch.copy_to.push_back(page.page());
        sequence->pages[index] = std::move(page);
      } else {
        sequence->pages.push_back(std::move(page));
      }
    }
    batch.segments.push_back(segment);
    batch.samples.push_back({sequence, sequence->slot, batch.num_rows, -1});
    ++batch.num_rows;
    ++sequence->computed;
    ++sequence->launched_output;
    if (sequence->kv_version != version) sequence->kv_mixed = true;
    ++counters_.decode_tokens;
  }
  return Verdict::kRun;
}

bool Scheduler::PlanLogits(PolicyVersion version, ScheduledBatch& batch) {
  // Such a chunk runs alone, since all logits of its batch are stored; every other step at most, so
  // that decoding goes on beside it.
  last_wanted_logits_ = !last_wanted_logits_;
  if (!last_wanted_logits_) return false;
  const auto wants = [](const SequencePtr& s) { return s->request.want_logits; };
  const auto running = std::find_if(running_.begin(), running_.end(), [&](const SequencePtr& s) {
    return wants(s) && s->phase == Phase::kPrefill && s->computed < s->known();
  });
  if (running != running_.end()) {
    PlanChunk(SequencePtr(*running), version, batch);
  } else {
    const auto waiting = std::find_if(waiting_.begin(), waiting_.end(), wants);
    if (waiting == waiting_.end() || hold_admission_ || free_slots_.empty()) return false;
    const SequencePtr sequence = *waiting;
    if (!Admit(sequence, version, batch)) return false;
    std::erase(waiting_, sequence);
    PlanChunk(sequence, version, batch);
  }
  batch.want_logits = true;
  return true;
}

void Scheduler::PlanPrefills(PolicyVersion version, ScheduledBatch& batch) {
  for (size_t i = 0; i < running_.size() && batch.num_rows < limits_.max_batched_tokens; ++i) {
    const SequencePtr sequence = running_[i];
    if (sequence->phase == Phase::kPrefill && !sequence->request.want_logits)
      PlanChunk(sequence, version, batch);
  }
  for (size_t i = 0; i < waiting_.size() && batch.num_rows < limits_.max_batched_tokens;) {
    const SequencePtr sequence = waiting_[i];
    const uint64_t group = sequence->request.group_id;
    const bool waits_for_leader =
        group != 0 && sequence->output_length() == 0 && group_leaders_.contains(group);
    if ((hold_admission_ && sequence->launched_output == 0) || waits_for_leader) {
      ++i;
      continue;
    }
    // In order of arrival: who does not fit holds up those behind, or a long prompt would wait for
    // ever. PlanLogits admits who wants logits.
    if (sequence->request.want_logits) {
      if (!CanAllocate(PagesFor(sequence->known(), limits_.page_size))) return;
      ++i;
      continue;
    }
    if (free_slots_.empty() || !Admit(sequence, version, batch)) return;
    std::erase(waiting_, sequence);
    PlanChunk(sequence, version, batch);
    // Attaching siblings may have taken others out of the queue: start over at its head.
    i = 0;
  }
}

bool Scheduler::Admit(const SequencePtr& sequence, PolicyVersion version, ScheduledBatch& batch) {
  const std::vector<int32_t> tokens = sequence->Tokens();
  std::vector<PageRef> pages;
  if (limits_.prefix_cache && !sequence->request.score_only)
    // The last token is always computed: its row is what the next token is drawn from.
    pages = cache_.Match(version, std::span(tokens).first(tokens.size() - 1));
  const int needed = PagesFor(static_cast<int>(tokens.size()), limits_.page_size);
  if (!CanAllocate(needed - static_cast<int>(pages.size()))) return false;

  sequence->computed = static_cast<int>(pages.size()) * limits_.page_size;
  counters_.cached_tokens += sequence->computed;
  if (sequence->output_length() == 0) sequence->completion.cached_tokens = sequence->computed;
  while (static_cast<int>(pages.size()) < needed) {
    pages.push_back(AllocatePage());
    RC_CHECK(pages.back());
  }
  sequence->pages = std::move(pages);
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->phase = Phase::kPrefill;
  sequence->kv_version = version;
  sequence->kv_mixed = false;
  const auto place = std::upper_bound(
      running_.begin(), running_.end(), sequence,
      [](const SequencePtr& a, const SequencePtr& b) { return a->arrival < b->arrival; });
  running_.insert(place, sequence);
  batch.slot_inits.push_back({sequence, sequence->slot});
  const uint64_t group = sequence->request.group_id;
  if (group != 0 && sequence->output_length() == 0 && !sequence->request.score_only)
    group_leaders_[group] = sequence;
  return true;
}

void Scheduler::PlanChunk(const SequencePtr& sequence, PolicyVersion version,
                          ScheduledBatch& batch) {
  const bool score = sequence->request.score_only;
  const int room = sequence->request.want_logits ? limits_.max_logit_rows
                                                 : limits_.max_batched_tokens - batch.num_rows;
  const int known = sequence->known();
  const int rows = std::min(known - sequence->computed, room);
  if (rows <= 0) return;
  RC_CHECK_EQ(sequence->kv_version, version);
  const int first_row = batch.num_rows;
  batch.segments.push_back({sequence, sequence->slot, sequence->computed, rows, false, -1});
  batch.num_rows += rows;
  counters_.prefill_tokens += rows;
  if (score) {
    for (int i = 0; i < rows; ++i) {
      const int next = sequence->computed + i + 1;
      if (next < known)
        batch.samples.push_back({sequence, sequence->slot, first_row + i, sequence->token(next)});
      else if (sequence->request.want_logits)
        batch.samples.push_back({sequence, sequence->slot, first_row + i, 0});
    }
  }
  sequence->computed += rows;
  if (sequence->computed < known || score) return;
  sequence->phase = Phase::kDecode;
  sequence->launched_output = sequence->output_length() + 1;
  const int last_row = batch.num_rows - 1;
  batch.samples.push_back({sequence, sequence->slot, last_row, -1});
  CachePages(*sequence, known);
  const auto leader = group_leaders_.find(sequence->request.group_id);
  if (leader != group_leaders_.end() && leader->second == sequence) {
    group_leaders_.erase(leader);
    AttachSiblings(sequence, last_row, batch);
  }
}

void Scheduler::AttachSiblings(const SequencePtr& leader, int row, ScheduledBatch& batch) {
  // Those of a drain that has begun meanwhile are prefilled under the new version.
  if (hold_admission_) return;
  std::vector<SequencePtr> siblings;
  for (const SequencePtr& s : waiting_)
    if (s->request.group_id == leader->request.group_id && s->output_length() == 0 &&
        !s->request.score_only && s->request.prompt == leader->request.prompt)
      siblings.push_back(s);
  for (const SequencePtr& s : siblings) {
    if (free_slots_.empty()) return;
    std::erase(waiting_, s);
    s->pages = leader->pages;
    s->computed = leader->computed;
    s->kv_version = leader->kv_version;
    s->kv_mixed = leader->kv_mixed;
    s->completion.cached_tokens = s->computed;
    counters_.cached_tokens += s->computed;
    s->phase = Phase::kDecode;
    s->launched_output = 1;
    s->slot = free_slots_.back();
    free_slots_.pop_back();
    const auto place = std::upper_bound(
        running_.begin(), running_.end(), s,
        [](const SequencePtr& a, const SequencePtr& b) { return a->arrival < b->arrival; });
    running_.insert(place, s);
    batch.slot_inits.push_back({s, s->slot});
    batch.samples.push_back({s, s->slot, row, -1});
  }
}

void Scheduler::CachePages(const Sequence& sequence, int tokens) {
  if (!limits_.prefix_cache || sequence.kv_mixed || sequence.request.score_only) return;
  const size_t pages = tokens / limits_.page_size;
  cache_.Insert(sequence.kv_version, sequence.Tokens(), std::span(sequence.pages).first(pages));
}

void Scheduler::Release(Sequence& sequence) {
  if (sequence.slot >= 0) free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.pages.clear();
  sequence.computed = 0;
  const auto leader = group_leaders_.find(sequence.request.group_id);
  if (leader != group_leaders_.end() && leader->second.get() == &sequence)
    group_leaders_.erase(leader);
}

void Scheduler::Preempt(const SequencePtr& sequence, bool keep_pages_cached) {
  if (keep_pages_cached) CachePages(*sequence, sequence->computed);
  const SequencePtr held = sequence;
  std::erase(running_, held);
  Release(*held);
  held->phase = Phase::kWaiting;
  held->launched_output = held->output_length();
  if (held->request.score_only) {  // scored again from its start
    Completion& c = held->completion;
    c.logprob.clear();
    c.logprob_raw.clear();
    c.logits.clear();
    c.spans.clear();
  }
  // Back among the preempted by arrival, ahead of what has not begun.
  const auto place = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const SequencePtr& s) { return s->arrival > held->arrival; });
  waiting_.insert(place, held);
  ++held->completion.preemptions;
  ++counters_.preemptions;
}

void Scheduler::Finish(const SequencePtr& sequence, CompletionState state,
                       std::vector<Completion>& finished) {
  const SequencePtr held = sequence;
  // The last token's KV may never be written: the device does not run a row that has stopped.
  if (held->phase == Phase::kDecode) CachePages(*held, std::min(held->computed, held->known() - 1));
  std::erase(running_, held);
  std::erase(waiting_, held);
  Release(*held);
  held->phase = Phase::kFinished;
  Completion& completion = held->completion;
  completion.state = state;
  if (state != CompletionState::kAborted && state != CompletionState::kFailed)
    completion.message.clear();
  completion.prompt = std::move(held->request.prompt);
  by_id_.erase(completion.id);
  ++(state == CompletionState::kAborted ? counters_.aborted : counters_.finished);
  if (state == CompletionState::kAborted && held->cut_off) ++cut_off_;
  finished.push_back(std::move(completion));
}

bool Scheduler::IsStopId(const Sequence& sequence, int32_t token) const {
  const SamplingParams& params = sequence.request.sampling;
  const auto in = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return in(params.stop_ids) || (!params.ignore_eos && in(limits_.eos_ids));
}

void Scheduler::Complete(const ScheduledBatch& batch, PolicyVersion version,
                         const SampleResult* results, const float* hidden, const float* logits,
                         std::vector<Completion>& finished) {
  for (size_t i = 0; i < batch.samples.size(); ++i) {
    const SequencePtr& sequence = batch.samples[i].sequence;
    // Finished by the host after this step was launched: what the step drew for it counts for
    // nothing.
    if (!sequence->live()) continue;
    const SampleResult& result = results[i];
    RC_CHECK(result.valid, "for request ", sequence->request.id, " in slot ",
             batch.samples[i].slot);
    Completion& c = sequence->completion;
    if (!std::isfinite(result.logprob_raw)) {
      c.message = StrCat("the model gave no finite log-probability for token ",
                         sequence->request.score_only ? c.logprob_raw.size() + 1 : c.output.size(),
                         "; do its weights hold NaN or infinity?");
      Finish(sequence, CompletionState::kFailed, finished);
      continue;
    }
    if (batch.want_logits) {
      const float* row = logits + i * limits_.vocab_size;
      c.logits.insert(c.logits.end(), row, row + limits_.vocab_size);
      if (c.logits.size() == static_cast<size_t>(sequence->known()) * limits_.vocab_size) continue;
    }
    c.logprob.push_back(result.logprob);
    c.logprob_raw.push_back(result.logprob_raw);
    AppendToSpans(c.spans, version);
    if (sequence->request.score_only) continue;
    c.output.push_back(result.token);
    c.logprob_filtered.push_back(result.logprob_filtered);
    c.mixed_kv = c.mixed_kv || sequence->kv_mixed;
    if (sequence->request.want_hidden) {
      const float* row = hidden + i * limits_.hidden_size;
      c.hidden.insert(c.hidden.end(), row, row + limits_.hidden_size);
    }
    if (sequence->request.progress) sequence->request.progress(c.output);
    if (result.stopped != 0 && IsStopId(*sequence, result.token)) {
      Finish(sequence, CompletionState::kStopId, finished);
    } else if (sequence->request.stop &&
               sequence->output_length() >= sequence->request.sampling.min_tokens &&
               sequence->request.stop(c.output)) {
      // Also where it is the last token that max_tokens or the context allow.
      Finish(sequence, CompletionState::kStopCallback, finished);
    } else if (result.stopped != 0) {
      Finish(sequence, CompletionState::kLength, finished);
    }
  }
  for (const ScheduledSegment& segment : batch.segments) {
    const SequencePtr& s = segment.sequence;
    if (s->live() && s->request.score_only && segment.begin + segment.rows == s->known())
      Finish(s, CompletionState::kScored, finished);
  }
}

CommitResult Scheduler::ApplyInFlightPolicy(PolicyVersion version, InFlightPolicy policy,
                                            std::vector<Completion>& finished) {
  CommitResult result;
  std::vector<SequencePtr> begun;
  for (const auto& [id, s] : by_id_)
    if (s->begun()) begun.push_back(s);
  std::sort(begun.begin(), begun.end(),
            [](const SequencePtr& a, const SequencePtr& b) { return a->arrival < b->arrival; });
  for (const SequencePtr& s : begun) {
    if (s->abort_requested) {
      Finish(s, CompletionState::kAborted, finished);
      continue;
    }
    // A prefill under way starts anew whatever the policy: KV of one prompt under two policies, or
    // a scored list under each, would be neither's, and no drawn token is lost.
    if (s->phase == Phase::kPrefill) {
      ++result.recomputed;
      Preempt(s, false);
      continue;
    }
    const InFlightPolicy chosen = s->request.in_flight.value_or(policy);
    switch (chosen) {
      case InFlightPolicy::kKeep:
      case InFlightPolicy::kDrain:
        ++result.kept;
        break;
      case InFlightPolicy::kRecompute:
        ++result.recomputed;
        if (s->phase != Phase::kWaiting) Preempt(s, false);
        break;
      case InFlightPolicy::kAbort:
        ++result.aborted;
        s->completion.message = StrCat("aborted by the update to policy version ", version);
        Finish(s, CompletionState::kAborted, finished);
        break;
    }
  }
  result.aborted += std::exchange(cut_off_, 0);
  cache_.KeepOnly(version);
  hold_admission_ = false;
  ++counters_.updates;
  return result;
}

void Scheduler::RetractAll() {
  while (!running_.empty()) Preempt(SequencePtr(running_.back()), false);
}

namespace {

/// A scored list drains nothing: it starts anew whatever the policy.
bool Drains(const Sequence& s, InFlightPolicy policy) {
  return s.begun() && !s.request.score_only &&
         s.request.in_flight.value_or(policy) == InFlightPolicy::kDrain;
}

}  // namespace

int Scheduler::NumDraining(InFlightPolicy policy) const {
  int count = 0;
  for (const auto& [id, s] : by_id_) count += Drains(*s, policy);
  return count;
}

void Scheduler::AbortDraining(InFlightPolicy policy, const std::string& message) {
  for (const auto& [id, s] : by_id_) {
    if (!Drains(*s, policy) || s->abort_requested) continue;
    s->abort_requested = s->cut_off = true;
    s->completion.message = message;
  }
}

void Scheduler::HoldAdmission(bool hold) {
  hold_admission_ = hold;
  cut_off_ = 0;
}

void Scheduler::FillStats(EngineStats& stats) const {
  stats = counters_;
  stats.running = static_cast<int>(running_.size());
  stats.waiting = static_cast<int>(waiting_.size());
  stats.pages_total = pool_.num_pages();
  stats.pages_used = pool_.num_pages() - pool_.num_free();
  stats.pages_cached = cache_.num_pages();
  stats.holding = hold_admission_;
}

}  // namespace rollcast
