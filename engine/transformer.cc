#include "engine/transformer.h"

#include <cmath>

namespace rollcast {

RopeTables::RopeTables(const ModelConfig& config, int max_context, Backend& backend)
    : rotary_dim_(config.rope.rotary_dim) {
  const int half = rotary_dim_ / 2;
  if (half == 0) return;
  RC_CHECK_EQ(static_cast<int>(config.rope.inv_freq.size()), half);
  std::vector<float> cos(static_cast<size_t>(max_context) * half), sin(cos.size());
  for (int position = 0; position < max_context; ++position)
    for (int i = 0; i < half; ++i) {
      // The angle is rounded to float32 first, as every reference implementation has it.
      const float angle = static_cast<float>(position) * config.rope.inv_freq[i];
      const size_t at = static_cast<size_t>(position) * half + i;
      cos[at] =
          static_cast<float>(std::cos(static_cast<double>(angle))) * config.rope.attention_factor;
      sin[at] =
          static_cast<float>(std::sin(static_cast<double>(angle))) * config.rope.attention_factor;
    }
  cos_ = backend.Allocate(cos.size() * sizeof(float));
  sin_ = backend.Allocate(sin.size() * sizeof(float));
  backend.Upload(cos_.data(), cos.data(), cos.size() * sizeof(float));
  backend.Upload(sin_.data(), sin.data(), sin.size() * sizeof(float));
}

RopeTable RopeTables::table() const { return {cos_.as<float>(), sin_.as<float>(), rotary_dim_}; }

void Forward(const WeightStore& store, const RopeTables& rope, const RaggedBatch& batch,
             const SlotState& slots, const KvPages& kv, const Activations& act) {
  const ModelConfig& model = store.config();
  Backend& backend = store.backend();
  backend.Embed({.batch = &batch,
                 .slots = &slots,
                 .table = store.embedding(),
                 .page_size = kv.page_size,
                 .hidden = act.hidden});
  for (int l = 0; l < model.num_layers; ++l) {
    const LayerWeights& w = store.layer(l);
    const LayerConfig& layer = model.layers[l];
    backend.AttentionInput({.batch = &batch,
                            .slots = &slots,
                            .kv = &kv,
                            .layer = l,
                            .hidden = act.hidden,
                            .hidden_size = model.hidden_size,
                            .num_heads = model.num_heads,
                            .num_kv_heads = model.num_kv_heads,
                            .head_dim = model.head_dim,
                            .norm = w.input_norm,
                            .rms_eps = model.rms_eps,
                            .qkv = w.qkv,
                            .qkv_bias = w.qkv_bias,
                            .q_norm = w.q_norm,
                            .k_norm = w.k_norm,
                            .rope = layer.rope ? rope.table() : RopeTable{},
                            .q = act.q});
    backend.Attention({.batch = &batch,
                       .slots = &slots,
                       .kv = &kv,
                       .layer = l,
                       .num_heads = model.num_heads,
                       .scale = model.attention_scale,
                       .window = layer.window,
                       .q = act.q,
                       .out = act.attention});
    backend.ProjectAdd({.batch = &batch,
                        .x = act.attention,
                        .k = model.q_rows(),
                        .weight = w.o,
                        .bias = w.o_bias,
                        .hidden = act.hidden});
    backend.MlpInput({.batch = &batch,
                      .hidden = act.hidden,
                      .hidden_size = model.hidden_size,
                      .norm = w.post_norm,
                      .rms_eps = model.rms_eps,
                      .gate_up = w.gate_up,
                      .gate_up_bias = w.gate_up_bias,
                      .intermediate = model.intermediate_size,
                      .out = act.mlp});
    backend.ProjectAdd({.batch = &batch,
                        .x = act.mlp,
                        .k = model.intermediate_size,
                        .weight = w.down,
                        .bias = w.down_bias,
                        .hidden = act.hidden});
  }
}

}  // namespace rollcast
