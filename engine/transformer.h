// The forward pass of a decoder-only model as a sequence of ops.
#pragma once

#include "engine/weight_store.h"
#include "kernels/backend.h"

namespace rollcast {

/// Activations of one forward pass, at fixed addresses; all but the hidden state in the backend's
/// activation_dtype().
struct Activations {
  float* hidden = nullptr;    // [rows, hidden_size]
  void* q = nullptr;          // [rows, num_heads * head_dim]
  void* attention = nullptr;  // [rows, num_heads * head_dim]
  void* mlp = nullptr;        // [rows, intermediate_size]
};

/// Rotary tables of one model in device memory, [max_context, rotary_dim / 2] float32 each, with
/// the attention factor of the rope type multiplied in.
class RopeTables {
 public:
  RopeTables(const ModelConfig& config, int max_context, Backend& backend);
  RopeTable table() const;

 private:
  Buffer cos_, sin_;
  int rotary_dim_;
};

/// Enqueues Embed to the last layer's MLP for `batch`; hidden states end in `activations.hidden`.
void Forward(const WeightStore& store, const RopeTables& rope, const RaggedBatch& batch,
             const SlotState& slots, const KvPages& kv, const Activations& activations);

}  // namespace rollcast
