#include "engine/weight_store.h"

#include <algorithm>
#include <cstring>

#include "engine/random_weights.h"
#include "engine/safetensors.h"
#include "kernels/digest.h"
#include "kernels/float_convert.h"

namespace rollcast {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;  // staged on the host at a time
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

std::byte* At(const void* arena, size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(arena)) + offset;
}

/// Gives the bytes between tensors a value: parts of a fused bias that the model does not have are
/// read by the ops, and a copy of the whole arena should read nothing undefined.
void ZeroGaps(DeviceTransfer& transfer, void* arena, const WeightManifest& manifest) {
  const std::vector<std::byte> zeros(kChunkBytes);
  size_t end = 0;
  const auto zero_until = [&](size_t begin) {
    for (; end < begin; end += std::min(zeros.size(), begin - end))
      transfer.Copy(At(arena, end), zeros.data(), std::min(zeros.size(), begin - end));
  };
  for (const ManifestEntry& entry : manifest.entries()) {
    zero_until(entry.offset);
    end = entry.offset + entry.bytes;
  }
  zero_until(manifest.arena_bytes());
  transfer.Synchronize();
}

/// Tensors that checkpoints carry although a model does not need them.
bool IsKnownExtra(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq");  // older transformers saved the buffer
}

}  // namespace

WeightStore::WeightStore(ModelConfig config, Backend& backend)
    : config_(std::move(config)),
      backend_(backend),
      manifest_(
          WeightManifest::Make(config_, backend.weight_dtype().value_or(config_.checkpoint_dtype))),
      transfer_(MakeDeviceTransfer(backend.device())),
      live_(backend.Allocate(manifest_.arena_bytes())) {
  ZeroGaps(*transfer_, live_.data(), manifest_);
  // The matrix or vector that begins with the tensor `first` and has `rows` rows.
  const auto block = [this](const std::string& first, int64_t rows) {
    const ManifestEntry* entry = manifest_.Find(first);
    RC_CHECK(entry != nullptr, first);
    TensorView view{At(live_.data(), entry->offset), entry->dtype, entry->shape};
    view.shape = entry->shape.rank() == 1 ? Shape{rows} : Shape{rows, entry->shape[1]};
    return view;
  };
  const ModelConfig& c = config_;
  const bool fused = c.naming == TensorNaming::kFused;
  for (int i = 0; i < c.num_layers; ++i) {
    const std::string layer = StrCat("model.layers.", i, ".");
    const std::string attention = layer + "self_attn.";
    const std::string mlp = layer + "mlp.";
    LayerWeights w;
    w.input_norm = Tensor(layer + "input_layernorm.weight");
    w.qkv = block(attention + (fused ? "qkv_proj.weight" : "q_proj.weight"), c.qkv_rows());
    if (fused && c.q_bias) w.qkv_bias = Tensor(attention + "qkv_proj.bias");
    if (!fused && (c.q_bias || c.k_bias || c.v_bias)) {
      // The block begins where q's bias is or, without one, would be.
      const char* first = c.q_bias ? "q_proj.bias" : c.k_bias ? "k_proj.bias" : "v_proj.bias";
      const int skipped = c.q_bias ? 0 : c.k_bias ? c.q_rows() : c.q_rows() + c.kv_rows();
      w.qkv_bias = block(attention + first, c.qkv_rows());
      w.qkv_bias.data = static_cast<std::byte*>(w.qkv_bias.data) -
                        static_cast<size_t>(skipped) * SizeOf(w.qkv_bias.dtype);
    }
    if (c.qk_norm) {
      w.q_norm = Tensor(attention + "q_norm.weight");
      w.k_norm = Tensor(attention + "k_norm.weight");
    }
    w.o = Tensor(attention + "o_proj.weight");
    if (c.o_bias) w.o_bias = Tensor(attention + "o_proj.bias");
    w.post_norm = Tensor(layer + "post_attention_layernorm.weight");
    const std::string gate = mlp + (fused ? "gate_up_proj" : "gate_proj");
    w.gate_up = block(gate + ".weight", 2 * c.intermediate_size);
    if (c.mlp_bias) w.gate_up_bias = block(gate + ".bias", 2 * c.intermediate_size);
    w.down = Tensor(mlp + "down_proj.weight");
    if (c.mlp_bias) w.down_bias = Tensor(mlp + "down_proj.bias");
    layers_.push_back(w);
  }
  embedding_ = Tensor(kEmbedding);
  final_norm_ = Tensor("model.norm.weight");
  head_ = Tensor(kHead);
  if (c.head_bias) head_bias_ = Tensor("lm_head.bias");
}

TensorView WeightStore::Tensor(std::string_view name) const {
  const ManifestEntry* entry = manifest_.Find(name);
  RC_CHECK(entry != nullptr, "no tensor ", name);
  return {At(live_.data(), entry->offset), entry->dtype, entry->shape};
}

void* WeightStore::staging() {
  if (staging_.data() == nullptr) {
    staging_ = transfer_->Allocate(manifest_.arena_bytes());
    ZeroGaps(*transfer_, staging_.data(), manifest_);
  }
  return staging_.data();
}

void WeightStore::LoadCheckpoint(const std::filesystem::path& dir) {
  const Checkpoint checkpoint = Checkpoint::Open(dir);

  // Everything is checked before anything is written.
  for (const Checkpoint::Tensor& tensor : checkpoint.tensors()) {
    const ManifestEntry* entry = manifest_.Find(tensor.name);
    const std::string where = StrCat(tensor.file, ": tensor \"", tensor.name, "\"");
    if (entry == nullptr) {
      if (IsKnownExtra(tensor.name)) continue;
      throw Error(StrCat(where, " does not belong to a ", config_.model_type,
                         " model with this config.json"));
    }
    if (!IsWeightDType(tensor.dtype))
      throw Error(
          StrCat(where, ": expected float32, float16 or bfloat16, found ", Name(tensor.dtype)));
    if (tensor.shape != entry->shape)
      throw Error(StrCat(where, ": expected shape ", ToString(entry->shape), ", found ",
                         ToString(tensor.shape)));
  }
  const bool copy_head = config_.tied_head && config_.untie_head && !checkpoint.Find(kHead);
  std::string missing;
  int num_missing = 0;
  for (const ManifestEntry& entry : manifest_.entries()) {
    if (checkpoint.Find(entry.name) != nullptr || (copy_head && entry.name == kHead)) continue;
    if (++num_missing <= 3) missing += StrCat(num_missing > 1 ? ", " : "", entry.name);
  }
  if (num_missing > 0)
    throw Error(StrCat(dir.string(), ": the checkpoint has no tensor ", missing,
                       num_missing > 3 ? StrCat(" and ", num_missing - 3, " more") : ""));
  if (manifest_.IsAlias(kHead)) {
    // A tied checkpoint may carry its head twice; two different ones contradict config.json.
    const Checkpoint::Tensor* head = checkpoint.Find(kHead);
    const Checkpoint::Tensor* embedding = checkpoint.Find(kEmbedding);
    if (head != nullptr &&
        (head->dtype != embedding->dtype ||
         std::memcmp(head->bytes.data(), embedding->bytes.data(), head->bytes.size()) != 0))
      throw Error(StrCat(head->file, ": tensor \"", kHead, "\" differs from \"", kEmbedding,
                         "\", but config.json says tie_word_embeddings"));
  }

  std::vector<std::byte> converted;
  for (const ManifestEntry& entry : manifest_.entries()) {
    const bool is_copy = copy_head && entry.name == kHead;
    const Checkpoint::Tensor& tensor = *checkpoint.Find(is_copy ? kEmbedding : entry.name);
    if (tensor.dtype == entry.dtype) {
      backend_.Upload(At(live_.data(), entry.offset), tensor.bytes.data(), entry.bytes);
      continue;
    }
    const size_t count = static_cast<size_t>(entry.shape.NumElements());
    const size_t chunk = kChunkBytes / sizeof(float);
    converted.resize(std::min(chunk, count) * SizeOf(entry.dtype));
    for (size_t begin = 0; begin < count; begin += chunk) {
      const size_t n = std::min(chunk, count - begin);
      if (!ConvertFloats(tensor.bytes.data() + begin * SizeOf(tensor.dtype), tensor.dtype,
                         converted.data(), entry.dtype, n))
        throw Error(StrCat(tensor.file, ": tensor \"", tensor.name, "\" of ", Name(tensor.dtype),
                           " has values that do not fit in ", Name(entry.dtype)));
      backend_.Upload(At(live_.data(), entry.offset + begin * SizeOf(entry.dtype)),
                      converted.data(), n * SizeOf(entry.dtype));
    }
  }
  backend_.Synchronize();
}

void WeightStore::FillRandom(uint64_t seed) {
  std::vector<float> values;
  std::vector<std::byte> stored;
  for (const ManifestEntry& entry : manifest_.entries()) {
    const size_t count = static_cast<size_t>(entry.shape.NumElements());
    const size_t chunk = kChunkBytes / sizeof(float);
    for (size_t begin = 0; begin < count; begin += chunk) {
      values.resize(std::min(chunk, count - begin));
      stored.resize(values.size() * SizeOf(entry.dtype));
      RandomWeights(config_, entry, seed, static_cast<int64_t>(begin), values);
      RC_CHECK(ConvertFloats(values.data(), DType::kF32, stored.data(), entry.dtype, values.size()),
               entry.name);
      backend_.Upload(At(live_.data(), entry.offset + begin * SizeOf(entry.dtype)), stored.data(),
                      stored.size());
    }
  }
  backend_.Synchronize();
}

uint64_t WeightStore::Digest(const void* arena) const {
  std::vector<DeviceRange> ranges;
  for (const ManifestEntry& entry : manifest_.entries())
    ranges.push_back({At(arena, entry.offset), entry.bytes});
  const std::vector<uint64_t> sums = transfer_->DigestSums(ranges);
  DigestFold fold;
  for (size_t i = 0; i < ranges.size(); ++i) fold.Add(sums[i], ranges[i].bytes);
  return fold.value();
}

}  // namespace rollcast
