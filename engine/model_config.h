// Dimensions and constants of a decoder-only model, read from a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace rollcast {

/// Rotary embedding constants, after every rope type has been resolved to frequencies.
struct RopeConfig {
  int rotary_dim = 0;             // of head_dim; even
  std::vector<float> inv_freq;    // [rotary_dim / 2]
  float attention_factor = 1.0f;  // multiplies cos and sin (yarn)
};

struct LayerConfig {
  int window = 0;    // sliding window in tokens; 0 = full attention
  bool rope = true;  // false: no position embedding in this layer
};

/// How a family names and fuses its tensors; the mathematics is in the other fields.
enum class TensorNaming : uint8_t {
  kSeparate,  // q_proj, k_proj, v_proj, gate_proj, up_proj
  kFused,     // qkv_proj, gate_up_proj
};

/// Immutable after Load. Everything in config.json that changes the mathematics is honoured or
/// refused by name.
struct ModelConfig {
  std::string model_type;  // "llama", "qwen2", "qwen3", "mistral", "phi3", ...
  std::string architecture;
  TensorNaming naming = TensorNaming::kSeparate;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_context = 0;  // max_position_embeddings, after rope scaling
  float rms_eps = 1e-6f;
  bool tied_head = false;
  bool untie_head =
      false;  // a tied head is given memory of its own, so that it can be trained alone
  bool q_bias = false, k_bias = false, v_bias = false, o_bias = false, mlp_bias = false,
       head_bias = false;
  bool qk_norm = false;       // RMSNorm over head_dim of q and k
  float attention_scale = 0;  // 1 / sqrt(head_dim) unless the family says otherwise
  RopeConfig rope;
  std::vector<LayerConfig> layers;  // [num_layers]
  DType checkpoint_dtype = DType::kBF16;
  std::vector<int32_t> eos_ids;  // generation_config.json first, then config.json
  int32_t bos_id = -1;

  /// Reads `dir`/config.json and generation_config.json. Throws Error that names file, key,
  /// expected and actual.
  static ModelConfig Load(const std::filesystem::path& dir);
  /// From the text of a config.json; `name` is used in errors.
  static ModelConfig Parse(const std::string& json, const std::string& name);

  int q_rows() const { return num_heads * head_dim; }
  int kv_rows() const { return num_kv_heads * head_dim; }
  int qkv_rows() const { return q_rows() + 2 * kv_rows(); }
};

}  // namespace rollcast
