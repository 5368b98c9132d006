// A whole decoder of random weights that runs on a Backend, for tests of what holds between steps
// and for benchmarks.
#pragma once

#include <vector>

#include "tests/kernels/op_fixture.h"

namespace rollcast {

struct ToyDims {
  int layers = 2, hidden = 100, intermediate = 70, heads = 4, kv_heads = 2, head_dim = 16;
  int vocab = 301, rotary_dim = 16, window = 0, page_size = 16;
  int num_slots = 4, max_context = 256;
  bool bias = false, qk_norm = false;
  DType dtype = DType::kBF16;
  float kv_fill = kPoison;  // of KV that no step has written
};

class ToyDecoder {
 public:
  struct Segment {
    int slot;
    int first_position;           // ignored where tokens is {-1}
    std::vector<int32_t> tokens;  // {-1} = decode: the slot's last token
  };
  struct SampleAt {
    int row, slot, forced;
  };

  ToyDecoder(Backend& backend, const ToyDims& dims, uint64_t seed)
      : backend_(backend),
        dims_(dims),
        slots(backend, dims.num_slots, dims.max_context, dims.page_size) {
    Random random(seed);
    const auto make = [&](int64_t n, int64_t k) {
      return Weight(backend, random.Normal(n * k, 1 / std::sqrt(static_cast<float>(k))), {n, k},
                    dims.dtype);
    };
    const auto vector = [&](int64_t n, float mean, float scale) {
      return Weight(backend, random.Normal(n, scale, mean), {n}, dims.dtype);
    };
    const int q = dims.heads * dims.head_dim, kv = dims.kv_heads * dims.head_dim;
    embedding_ = Weight(backend, random.Normal(static_cast<size_t>(dims.vocab) * dims.hidden, 0.2f),
                        {dims.vocab, dims.hidden}, dims.dtype);
    final_norm_ = vector(dims.hidden, 1, 0.2f);
    for (int i = 0; i < dims.layers; ++i) {
      Layer layer;
      layer.norm = vector(dims.hidden, 1, 0.2f);
      layer.mlp_norm = vector(dims.hidden, 1, 0.2f);
      layer.qkv = make(q + 2 * kv, dims.hidden);
      layer.o = make(dims.hidden, q);
      layer.gate_up = make(2 * dims.intermediate, dims.hidden);
      layer.down = make(dims.hidden, dims.intermediate);
      if (dims.bias) {
        layer.qkv_bias = vector(q + 2 * kv, 0, 0.3f);
        layer.o_bias = vector(dims.hidden, 0, 0.3f);
      }
      if (dims.qk_norm) {
        layer.q_norm = vector(dims.head_dim, 1, 0.2f);
        layer.k_norm = vector(dims.head_dim, 1, 0.2f);
      }
      layers_.push_back(std::move(layer));
    }
    const int half = dims.rotary_dim / 2;
    std::vector<float> cos, sin;
    for (int p = 0; p < dims.max_context; ++p)
      for (int i = 0; i < half; ++i) {
        const double angle = p * std::pow(10000.0, -static_cast<double>(i) / half);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    cos_ = DeviceArray<float>(backend, cos);
    sin_ = DeviceArray<float>(backend, sin);
    const size_t kv_size = static_cast<size_t>(dims.layers) * slots.num_pages * dims.page_size * kv;
    k_ = Numbers(backend, std::vector<float>(kv_size, dims.kv_fill), backend.kv_dtype());
    v_ = Numbers(backend, std::vector<float>(kv_size, dims.kv_fill), backend.kv_dtype());
    this->kv.dtype = backend.kv_dtype();
    this->kv.k = k_.data();
    this->kv.v = v_.data();
    this->kv.num_layers = dims.layers;
    this->kv.num_pages = slots.num_pages;
    this->kv.page_size = dims.page_size;
    this->kv.num_kv_heads = dims.kv_heads;
    this->kv.head_dim = dims.head_dim;
  }

  /// Fills the batch; Step then runs it as often as wanted.
  void SetBatch(const std::vector<Segment>& segments, const std::vector<SampleAt>& samples) {
    std::vector<int32_t> begin = {0}, slot, token, position, row, sample_slot, forced;
    batch = RaggedBatch();
    for (const Segment& s : segments) {
      slot.push_back(s.slot);
      for (size_t i = 0; i < s.tokens.size(); ++i) {
        token.push_back(s.tokens[i]);
        position.push_back(s.first_position + static_cast<int>(i));
      }
      begin.push_back(static_cast<int32_t>(token.size()));
      batch.max_segment_rows = std::max(batch.max_segment_rows, static_cast<int>(s.tokens.size()));
    }
    for (const SampleAt& s : samples) {
      row.push_back(s.row);
      sample_slot.push_back(s.slot);
      forced.push_back(s.forced);
    }
    arrays_.clear();
    const auto put = [&](const std::vector<int32_t>& v) {
      arrays_.emplace_back(backend_, v);
      return arrays_.back().data();
    };
    const int rows = static_cast<int>(token.size());
    batch.num_rows = rows;
    batch.num_segments = static_cast<int>(segments.size());
    batch.segment_begin = put(begin);
    batch.segment_slot = put(slot);
    batch.row_token = put(token);
    batch.row_position = put(position);
    batch.position = put(std::vector<int32_t>(rows, 12345));
    batch.slot = put(std::vector<int32_t>(rows, 12345));
    batch.num_samples = static_cast<int>(samples.size());
    batch.sample_row = put(row);
    batch.sample_slot = put(sample_slot);
    batch.sample_forced = put(forced);
    hidden = DeviceArray<float>(backend_, static_cast<size_t>(rows) * dims_.hidden, kPoison);
    const auto poisoned = [&](int width) {
      return Numbers(backend_, std::vector<float>(static_cast<size_t>(rows) * width, kPoison),
                     backend_.activation_dtype());
    };
    q_ = poisoned(dims_.heads * dims_.head_dim);
    attended_ = poisoned(dims_.heads * dims_.head_dim);
    mlp_ = poisoned(dims_.intermediate);
    result_ = DeviceArray<SampleResult>(backend_, samples.size(), SampleResult{});
    mailbox_ = backend_.AllocateHostVisible(samples.size() * sizeof(SampleResult));
    logits = want_logits ? DeviceArray<float>(backend_, samples.size() * dims_.vocab, kPoison)
                         : DeviceArray<float>();
  }

  void Step() {
    backend_.Embed({&batch, &slots.state, embedding_.view, dims_.page_size, 1.0f, hidden.data()});
    for (int i = 0; i < dims_.layers; ++i) {
      const Layer& layer = layers_[i];
      AttentionInputArgs in = {};
      in.batch = &batch;
      in.slots = &slots.state;
      in.kv = &kv;
      in.layer = i;
      in.hidden = hidden.data();
      in.hidden_size = dims_.hidden;
      in.num_heads = dims_.heads;
      in.num_kv_heads = dims_.kv_heads;
      in.head_dim = dims_.head_dim;
      in.norm = layer.norm.view;
      in.rms_eps = 1e-5f;
      in.qkv = layer.qkv.view;
      in.qkv_bias = layer.qkv_bias.view;
      in.q_norm = layer.q_norm.view;
      in.k_norm = layer.k_norm.view;
      in.rope = {cos_.data(), sin_.data(), dims_.rotary_dim};
      in.q = q_.data();
      backend_.AttentionInput(in);
      backend_.Attention({&batch, &slots.state, &kv, i, dims_.heads,
                          1 / std::sqrt(static_cast<float>(dims_.head_dim)), dims_.window,
                          q_.data(), attended_.data()});
      backend_.ProjectAdd({&batch, attended_.data(), dims_.heads * dims_.head_dim, layer.o.view,
                           layer.o_bias.view, hidden.data()});
      backend_.MlpInput({&batch, hidden.data(), dims_.hidden, layer.mlp_norm.view, 1e-5f,
                         layer.gate_up.view, TensorView(), dims_.intermediate, mlp_.data()});
      backend_.ProjectAdd(
          {&batch, mlp_.data(), dims_.intermediate, layer.down.view, TensorView(), hidden.data()});
    }
    HeadSampleArgs head = {};
    head.batch = &batch;
    head.slots = &slots.state;
    head.hidden = hidden.data();
    head.hidden_size = dims_.hidden;
    head.norm = final_norm_.view;
    head.rms_eps = 1e-5f;
    head.head = embedding_.view;
    head.result = result_.data();
    head.logits = want_logits ? logits.data() : nullptr;
    backend_.HeadSample(head);
    backend_.Advance(
        {&batch, &slots.state, result_.data(), mailbox_.as<SampleResult>(), 0, nullptr});
  }

  std::vector<SampleResult> Run(const std::vector<Segment>& segments,
                                const std::vector<SampleAt>& samples) {
    SetBatch(segments, samples);
    Step();
    return Results();
  }

  std::vector<SampleResult> Results() {
    backend_.Record()->Wait();
    return std::vector<SampleResult>(mailbox_.as<SampleResult>(),
                                     mailbox_.as<SampleResult>() + batch.num_samples);
  }

  bool want_logits = false;
  RaggedBatch batch;
  KvPages kv;
  DeviceArray<float> hidden, logits;

 private:
  struct Layer {
    Weight norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, mlp_norm, gate_up, down;
  };

  Backend& backend_;
  ToyDims dims_;

 public:
  TestSlots slots;

 private:
  Weight embedding_, final_norm_;
  std::vector<Layer> layers_;
  DeviceArray<float> cos_, sin_;
  Numbers k_, v_, q_, attended_, mlp_;
  DeviceArray<SampleResult> result_;
  Buffer mailbox_;
  std::vector<DeviceArray<int32_t>> arrays_;
};

}  // namespace rollcast
