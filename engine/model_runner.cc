#include "engine/model_runner.h"

#include <algorithm>

#include "engine/scheduler.h"

namespace rollcast {

std::vector<int> DecodeBuckets(int max_running) {
  std::vector<int> buckets;
  for (int b = 1; b < max_running; b += b < 8 ? b : b < 128 ? 8 : 16) buckets.push_back(b);
  buckets.push_back(max_running);
  return buckets;
}

ModelRunner::ModelRunner(WeightStore& store, const RunnerLimits& limits)
    : store_(store),
      backend_(store.backend()),
      limits_(limits),
      max_samples_(limits.max_batched_tokens + limits.max_running),
      rope_(store.config(), limits.max_context, store.backend()) {
  const ModelConfig& model = store.config();
  const auto allocate = [this]<class T>(T*& pointer, size_t count) {
    owned_.push_back(backend_.Allocate(std::max<size_t>(count, 1) * sizeof(T)));
    pointer = owned_.back().template as<T>();
  };
  const auto zeroed = [&](int32_t*& pointer, size_t count) {
    allocate(pointer, count);
    const std::vector<int32_t> zeros(count, 0);
    backend_.Upload(pointer, zeros.data(), count * sizeof(int32_t));
  };

  const size_t slots = limits.max_running;
  slots_.num_slots = limits.max_running;
  slots_.max_context = limits.max_context;
  slots_.max_pages = PagesFor(limits.max_context, limits.page_size);
  zeroed(slots_.last_token, slots);
  zeroed(slots_.length, slots);
  zeroed(slots_.stopped, slots);
  zeroed(slots_.page_table, slots * slots_.max_pages);
  zeroed(slots_.history, slots * slots_.max_context);
  allocate(slots_.sampling, slots);

  kv_.dtype = backend_.kv_dtype();
  kv_.num_layers = model.num_layers;
  kv_.num_pages = limits.num_pages;
  kv_.page_size = limits.page_size;
  kv_.num_kv_heads = model.num_kv_heads;
  kv_.head_dim = model.head_dim;
  const size_t kv_bytes = static_cast<size_t>(model.num_layers) * limits.num_pages *
                          limits.page_size * model.kv_rows() * SizeOf(kv_.dtype);
  for (void** half : {&kv_.k, &kv_.v}) {
    owned_.push_back(backend_.Allocate(kv_bytes));
    *half = owned_.back().data();
  }

  const size_t rows = limits.max_batched_tokens;
  allocate(activations_.hidden, rows * model.hidden_size);
  const auto activation = [&](void*& pointer, size_t columns) {
    owned_.push_back(backend_.Allocate(rows * columns * SizeOf(backend_.activation_dtype())));
    pointer = owned_.back().data();
  };
  activation(activations_.q, model.q_rows());
  activation(activations_.attention, model.q_rows());
  activation(activations_.mlp, model.intermediate_size);
  allocate(position_, rows);
  allocate(row_slot_, rows);
  allocate(results_, max_samples_);
  allocate(hidden_out_, static_cast<size_t>(max_samples_) * model.hidden_size);
  const Inputs largest =
      Layout(static_cast<int>(rows), static_cast<int>(rows), max_samples_, false);
  allocate(input_block_, largest.ints);
  input_host_.resize(largest.ints);

  owned_.push_back(backend_.AllocateHostVisible(2 * max_samples_ * sizeof(SampleResult)));
  mailbox_ = owned_.back().as<SampleResult>();
  owned_.push_back(backend_.AllocateHostVisible(2 * static_cast<size_t>(max_samples_) *
                                                model.hidden_size * sizeof(float)));
  hidden_mailbox_ = owned_.back().as<float>();

  backend_.Reserve({.max_rows = limits.max_batched_tokens,
                    .max_segments = limits.max_running,
                    .max_samples = max_samples_,
                    .hidden_size = model.hidden_size,
                    .intermediate_size = model.intermediate_size,
                    .vocab_size = model.vocab_size,
                    .num_heads = model.num_heads,
                    .num_kv_heads = model.num_kv_heads,
                    .head_dim = model.head_dim,
                    .num_pages = limits.num_pages,
                    .page_size = limits.page_size,
                    .max_context = limits.max_context});
  if (limits_.capture) Capture();
}

void ModelRunner::Capture() {
  buckets_ = DecodeBuckets(limits_.max_running);
  bucket_inputs_.resize(buckets_.size());
  graphs_.resize(buckets_.size());
  // Largest first: what a capture allocates for the largest serves all others.
  for (size_t i = buckets_.size(); i-- > 0;) {
    bucket_inputs_[i] = Layout(buckets_[i], buckets_[i], buckets_[i], true);
    Fill(ScheduledBatch(), bucket_inputs_[i],
         0);  // all padding: a backend may run the step to warm up
    graphs_[i] = backend_.Capture([this, i] { RunStep(bucket_inputs_[i].batch, nullptr); });
    ++graphs_captured_;
  }
}

ModelRunner::Inputs ModelRunner::Layout(int rows, int segments, int samples, bool padded) const {
  Inputs inputs;
  RaggedBatch& b = inputs.batch;
  b.num_rows = rows;
  b.num_segments = segments;
  b.num_samples = samples;
  b.max_segment_rows = padded ? 1 : rows;
  b.position = position_;
  b.slot = row_slot_;
  const auto take = [&](const int32_t*& array, int count) {
    array = input_block_ + inputs.ints;
    inputs.ints += count;
  };
  take(b.segment_begin, segments + 1);
  take(b.segment_slot, segments);
  take(b.segment_new_page, segments);
  take(b.row_token, rows);
  take(b.row_position, rows);
  take(b.sample_row, samples);
  take(b.sample_slot, samples);
  take(b.sample_forced, samples);
  const int32_t* mailbox_index = nullptr;
  take(mailbox_index, 1);
  return inputs;
}

void ModelRunner::Fill(const ScheduledBatch& batch, const Inputs& layout, int half) {
  const RaggedBatch& b = layout.batch;
  const auto host = [this](const int32_t* device) {
    return input_host_.data() + (device - input_block_);
  };
  int32_t* segment_begin = host(b.segment_begin);
  int32_t* segment_slot = host(b.segment_slot);
  int32_t* segment_new_page = host(b.segment_new_page);
  int32_t* row_token = host(b.row_token);
  int32_t* row_position = host(b.row_position);
  int row = 0;
  for (int i = 0; i < b.num_segments; ++i) {
    segment_begin[i] = row;
    segment_slot[i] = -1;
    segment_new_page[i] = -1;
    if (i >= static_cast<int>(batch.segments.size())) {  // padding: one inactive row
      row_token[row] = -1;
      row_position[row++] = 0;
      continue;
    }
    const ScheduledSegment& segment = batch.segments[i];
    segment_slot[i] = segment.slot;
    segment_new_page[i] = segment.new_page;
    for (int r = 0; r < segment.rows; ++r, ++row) {
      row_token[row] = segment.decode ? -1 : segment.sequence->token(segment.begin + r);
      row_position[row] = segment.begin + r;
    }
  }
  segment_begin[b.num_segments] = row;
  RC_CHECK_EQ(row, b.num_rows);
  int32_t* sample_row = host(b.sample_row);
  int32_t* sample_slot = host(b.sample_slot);
  int32_t* sample_forced = host(b.sample_forced);
  for (int i = 0; i < b.num_samples; ++i) {
    const bool padding = i >= static_cast<int>(batch.samples.size());
    sample_row[i] = padding ? -1 : batch.samples[i].row;
    sample_slot[i] = padding ? -1 : batch.samples[i].slot;
    sample_forced[i] = padding ? -1 : batch.samples[i].forced;
  }
  input_host_[layout.ints - 1] = half;
  backend_.Upload(input_block_, input_host_.data(), layout.ints * sizeof(int32_t));
}

void ModelRunner::InitSlot(const SlotInit& init) {
  const Sequence& s = *init.sequence;
  const SamplingParams& p = s.request.sampling;
  SlotSampling sampling{};
  sampling.temperature = p.temperature < 1e-6f ? 0.0f : p.temperature;
  sampling.top_p = p.top_p;
  sampling.min_p = p.min_p;
  sampling.repetition_penalty = p.repetition_penalty;
  sampling.frequency_penalty = p.frequency_penalty;
  sampling.presence_penalty = p.presence_penalty;
  sampling.top_k = std::max(p.top_k, 0);
  sampling.prompt_length = s.prompt_length();
  // The limits of a request go up to 2^31 - 1 each.
  const auto length_with = [&](int tokens) {
    return static_cast<int32_t>(
        std::min<int64_t>(int64_t{s.prompt_length()} + tokens, limits_.max_context));
  };
  sampling.min_length = length_with(p.min_tokens);
  sampling.max_length = length_with(p.max_tokens);
  const std::vector<int32_t> stop_ids = StopIds(p, store_.config().eos_ids);
  RC_CHECK_LE(static_cast<int>(stop_ids.size()), kMaxStopIds);
  sampling.num_stop_ids = static_cast<int32_t>(stop_ids.size());
  std::copy(stop_ids.begin(), stop_ids.end(), sampling.stop_ids);
  sampling.seed = p.seed;
  backend_.Upload(slots_.sampling + init.slot, &sampling, sizeof(sampling));

  std::vector<int32_t> pages;
  for (const PageRef& page : s.pages) pages.push_back(page.page());
  backend_.Upload(slots_.page_table + static_cast<size_t>(init.slot) * slots_.max_pages,
                  pages.data(), pages.size() * sizeof(int32_t));
  if (sampling.HasPenalty()) {
    const std::vector<int32_t> tokens = s.Tokens();
    backend_.Upload(slots_.history + static_cast<size_t>(init.slot) * slots_.max_context,
                    tokens.data(), tokens.size() * sizeof(int32_t));
  }
  // Nothing of an earlier occupant may be left to replay.
  const int32_t running = 0, no_token = -1, length = s.known();
  backend_.Upload(slots_.stopped + init.slot, &running, sizeof(running));
  backend_.Upload(slots_.last_token + init.slot, &no_token, sizeof(no_token));
  backend_.Upload(slots_.length + init.slot, &length, sizeof(length));
}

void ModelRunner::RunStep(const RaggedBatch& batch, float* logits) {
  Forward(store_, rope_, batch, slots_, kv_, activations_);
  if (batch.num_samples == 0) return;
  backend_.HeadSample({.batch = &batch,
                       .slots = &slots_,
                       .hidden = activations_.hidden,
                       .hidden_size = store_.config().hidden_size,
                       .norm = store_.final_norm(),
                       .rms_eps = store_.config().rms_eps,
                       .head = store_.head(),
                       .head_bias = store_.head_bias(),
                       .result = results_,
                       .logits = logits,
                       .hidden_out = hidden_out_});
  backend_.Advance({.batch = &batch,
                    .slots = &slots_,
                    .result = results_,
                    .mailbox = mailbox_,
                    .mailbox_stride = max_samples_,
                    .mailbox_index = batch.sample_forced + batch.num_samples});
}

void ModelRunner::Launch(const ScheduledBatch& batch) {
  RC_CHECK_LT(launched_.size(), 2u);
  RC_CHECK_LE(batch.num_rows, limits_.max_batched_tokens);
  RC_CHECK_LE(static_cast<int>(batch.segments.size()), limits_.max_running);
  RC_CHECK_LE(static_cast<int>(batch.samples.size()), max_samples_);
  const ModelConfig& model = store_.config();
  Launched launched;
  launched.half = next_half_;
  launched.samples = static_cast<int>(batch.samples.size());
  next_half_ ^= 1;

  for (const SlotInit& init : batch.slot_inits) InitSlot(init);
  if (!batch.copy_from.empty())
    backend_.CopyPages(kv_, batch.copy_from.data(), batch.copy_to.data(),
                       static_cast<int>(batch.copy_from.size()));

  if (limits_.capture && batch.pure_decode()) {
    const size_t i =
        std::lower_bound(buckets_.begin(), buckets_.end(), batch.num_rows) - buckets_.begin();
    Fill(batch, bucket_inputs_[i], launched.half);
    graphs_[i]->Replay();
    ++graph_replays_;
  } else {
    Inputs inputs =
        Layout(batch.num_rows, static_cast<int>(batch.segments.size()), launched.samples, false);
    inputs.batch.max_segment_rows = 0;
    for (const ScheduledSegment& s : batch.segments)
      inputs.batch.max_segment_rows = std::max(inputs.batch.max_segment_rows, s.rows);
    Fill(batch, inputs, launched.half);
    float* logits = nullptr;
    if (batch.want_logits && launched.samples > 0) {
      const size_t bytes =
          static_cast<size_t>(limits_.max_logit_rows) * model.vocab_size * sizeof(float);
      if (logits_.data() == nullptr) {
        logits_ = backend_.Allocate(bytes);
        logits_host_ = backend_.AllocateHostVisible(2 * bytes);
      }
      logits = logits_.as<float>();
      launched.logits = true;
    }
    RunStep(inputs.batch, logits);
    if (launched.logits) {
      const size_t row_floats = static_cast<size_t>(limits_.max_logit_rows) * model.vocab_size;
      backend_.Copy(logits_host_.as<float>() + launched.half * row_floats, logits,
                    static_cast<size_t>(launched.samples) * model.vocab_size * sizeof(float));
    }
  }
  launched.hidden =
      std::any_of(batch.samples.begin(), batch.samples.end(),
                  [](const ScheduledSample& s) { return s.sequence->request.want_hidden; });
  if (launched.hidden) {
    const size_t half = static_cast<size_t>(max_samples_) * model.hidden_size;
    backend_.Copy(hidden_mailbox_ + launched.half * half, hidden_out_,
                  static_cast<size_t>(launched.samples) * model.hidden_size * sizeof(float));
  }
  launched.done = backend_.Record();
  ++steps_;
  launched_.push_back(std::move(launched));
}

StepResults ModelRunner::Wait() {
  RC_CHECK(!launched_.empty());
  Launched step = std::move(launched_.front());
  launched_.erase(launched_.begin());
  step.done->Wait();
  const ModelConfig& model = store_.config();
  StepResults results;
  results.samples = mailbox_ + static_cast<size_t>(step.half) * max_samples_;
  if (step.hidden)
    results.hidden =
        hidden_mailbox_ + static_cast<size_t>(step.half) * max_samples_ * model.hidden_size;
  if (step.logits)
    results.logits = logits_host_.as<float>() +
                     static_cast<size_t>(step.half) * limits_.max_logit_rows * model.vocab_size;
  return results;
}

}  // namespace rollcast
