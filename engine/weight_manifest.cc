#include <xxhash.h>

#include <memory>

#include "engine/weight_store.h"

namespace rollcast {
namespace {

constexpr size_t kBlockAlignment = 256;  // bytes; what a device's vector loads and copies like best
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

}  // namespace

/// Places tensors one after another. A block is what an op reads as one matrix or vector.
class ManifestBuilder {
 public:
  ManifestBuilder(std::vector<ManifestEntry>& entries, DType dtype)
      : entries_(entries), dtype_(dtype) {}

  void BeginBlock() { end_ = (end_ + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment; }

  /// Appends to the block that has begun.
  void Append(std::string name, Shape shape) {
    const size_t bytes = static_cast<size_t>(shape.NumElements()) * SizeOf(dtype_);
    entries_.push_back({std::move(name), dtype_, shape, end_, bytes});
    end_ += bytes;
  }

  /// Leaves room in the block for a part that the checkpoint does not have; it stays zero.
  void Skip(int64_t elements) { end_ += static_cast<size_t>(elements) * SizeOf(dtype_); }

  void Add(std::string name, Shape shape) {
    BeginBlock();
    Append(std::move(name), shape);
  }

  size_t end() const { return end_; }

 private:
  std::vector<ManifestEntry>& entries_;
  DType dtype_;
  size_t end_ = 0;
};

namespace {

void AddAttention(ManifestBuilder& builder, const ModelConfig& c, const std::string& layer) {
  const std::string attention = layer + "self_attn.";
  const bool any_bias = c.q_bias || c.k_bias || c.v_bias;
  if (c.naming == TensorNaming::kFused) {
    RC_CHECK(!any_bias || (c.q_bias && c.k_bias && c.v_bias), "a fused bias is whole or not there");
    builder.Add(attention + "qkv_proj.weight", {c.qkv_rows(), c.hidden_size});
    if (any_bias) builder.Add(attention + "qkv_proj.bias", {c.qkv_rows()});
  } else {
    struct Part {
      const char* name;
      int rows;
      bool bias;
    };
    const Part parts[] = {{"q_proj", c.q_rows(), c.q_bias},
                          {"k_proj", c.kv_rows(), c.k_bias},
                          {"v_proj", c.kv_rows(), c.v_bias}};
    builder.BeginBlock();
    for (const Part& part : parts)
      builder.Append(attention + part.name + ".weight", {part.rows, c.hidden_size});
    if (any_bias) {
      builder.BeginBlock();
      for (const Part& part : parts) {
        if (part.bias)
          builder.Append(attention + part.name + ".bias", {part.rows});
        else
          builder.Skip(part.rows);
      }
    }
  }
  if (c.qk_norm) {
    builder.Add(attention + "q_norm.weight", {c.head_dim});
    builder.Add(attention + "k_norm.weight", {c.head_dim});
  }
  builder.Add(attention + "o_proj.weight", {c.hidden_size, c.q_rows()});
  if (c.o_bias) builder.Add(attention + "o_proj.bias", {c.hidden_size});
}

void AddMlp(ManifestBuilder& builder, const ModelConfig& c, const std::string& layer) {
  const std::string mlp = layer + "mlp.";
  if (c.naming == TensorNaming::kFused) {
    builder.Add(mlp + "gate_up_proj.weight", {2 * c.intermediate_size, c.hidden_size});
    if (c.mlp_bias) builder.Add(mlp + "gate_up_proj.bias", {2 * c.intermediate_size});
  } else {
    builder.Add(mlp + "gate_proj.weight", {c.intermediate_size, c.hidden_size});
    builder.Append(mlp + "up_proj.weight", {c.intermediate_size, c.hidden_size});
    if (c.mlp_bias) {
      builder.Add(mlp + "gate_proj.bias", {c.intermediate_size});
      builder.Append(mlp + "up_proj.bias", {c.intermediate_size});
    }
  }
  builder.Add(mlp + "down_proj.weight", {c.hidden_size, c.intermediate_size});
  if (c.mlp_bias) builder.Add(mlp + "down_proj.bias", {c.hidden_size});
}

}  // namespace

WeightManifest WeightManifest::Make(const ModelConfig& c, DType dtype) {
  WeightManifest manifest;
  ManifestBuilder builder(manifest.entries_, dtype);
  builder.Add(kEmbedding, {c.vocab_size, c.hidden_size});
  for (int i = 0; i < c.num_layers; ++i) {
    const std::string layer = StrCat("model.layers.", i, ".");
    builder.Add(layer + "input_layernorm.weight", {c.hidden_size});
    AddAttention(builder, c, layer);
    builder.Add(layer + "post_attention_layernorm.weight", {c.hidden_size});
    AddMlp(builder, c, layer);
  }
  builder.Add("model.norm.weight", {c.hidden_size});
  if (!c.tied_head || c.untie_head)
    builder.Add(kHead, {c.vocab_size, c.hidden_size});
  else
    manifest.aliases_.emplace(kHead, kEmbedding);
  if (c.head_bias) builder.Add("lm_head.bias", {c.vocab_size});
  builder.BeginBlock();
  manifest.arena_bytes_ = builder.end();
  for (size_t i = 0; i < manifest.entries_.size(); ++i)
    manifest.index_.emplace(manifest.entries_[i].name, i);
  return manifest;
}

size_t WeightManifest::payload_bytes() const {
  size_t sum = 0;
  for (const ManifestEntry& entry : entries_) sum += entry.bytes;
  return sum;
}

const ManifestEntry* WeightManifest::Find(std::string_view name) const {
  std::string key(name);
  if (const auto alias = aliases_.find(key); alias != aliases_.end()) key = alias->second;
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

bool WeightManifest::IsAlias(std::string_view name) const {
  return aliases_.contains(std::string(name));
}

uint64_t WeightManifest::digest() const {
  std::string text;
  for (const ManifestEntry& entry : entries_)
    text += StrCat(entry.name, ' ', Name(entry.dtype), ' ', ToString(entry.shape), ' ',
                   entry.offset, '\n');
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace rollcast
