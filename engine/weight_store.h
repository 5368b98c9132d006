// One arena that holds all weights at fixed addresses, and the ordered list of what is in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/model_config.h"
#include "engine/policy_version.h"
#include "kernels/backend.h"
#include "kernels/device_transfer.h"

namespace rollcast {

/// One tensor under its Hugging Face name. q, k, v (and gate, up) of a layer are neighbours without
/// a gap, so a fused checkpoint and a separate one have the same bytes in the arena.
struct ManifestEntry {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  size_t offset = 0;  // bytes from the start of the arena
  size_t bytes = 0;
  bool operator==(const ManifestEntry&) const = default;
};

/// The ordered tensors of a model. Immutable; equal on all ranks that serve the same model.
class WeightManifest {
 public:
  WeightManifest() = default;
  /// Lays out every tensor that `config` calls for, in execution order, each weight matrix at a
  /// multiple of 256.
  static WeightManifest Make(const ModelConfig& config, DType dtype);

  const std::vector<ManifestEntry>& entries() const { return entries_; }
  size_t arena_bytes() const { return arena_bytes_; }
  /// Sum of the tensors' bytes, without alignment gaps.
  size_t payload_bytes() const;
  /// Null when there is no such tensor. `name` may be an alias (lm_head.weight of a tied model).
  const ManifestEntry* Find(std::string_view name) const;
  /// True when `name` is a second name of a tensor that has another in entries().
  bool IsAlias(std::string_view name) const;
  /// XXH3-64 over names, dtypes, shapes and offsets.
  uint64_t digest() const;

 private:
  std::vector<ManifestEntry> entries_;
  std::unordered_map<std::string, size_t> index_;  // name -> entry
  std::unordered_map<std::string, std::string> aliases_;
  size_t arena_bytes_ = 0;
};

/// Weights of one decoder layer as the ops want them.
struct LayerWeights {
  TensorView input_norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias;
  TensorView post_norm, gate_up, gate_up_bias, down, down_bias;
};

/// Owner of the live arena (and of a staging arena where one is asked for). Addresses never change
/// after construction. Writing needs the scheduler lock: callers hold a SchedulerLock
/// (engine/engine.h).
class WeightStore {
 public:
  WeightStore(ModelConfig config, Backend& backend);

  /// Fills the arena from the safetensors files of `dir`. Throws Error naming file and tensor:
  /// missing, unknown, wrong shape, truncated.
  void LoadCheckpoint(const std::filesystem::path& dir);
  /// Seeded random weights (scaled so that a deep model stays finite), for toy models and
  /// benchmarks.
  void FillRandom(uint64_t seed);

  const ModelConfig& config() const { return config_; }
  const WeightManifest& manifest() const { return manifest_; }
  Backend& backend() const { return backend_; }
  void* live() const { return live_.data(); }
  /// Allocates the staging arena on first use; null data never.
  void* staging();
  void FreeStaging() { staging_ = Buffer(); }

  /// Live tensor by name or alias; throws CheckFailure when there is none.
  TensorView Tensor(std::string_view name) const;
  const LayerWeights& layer(int i) const { return layers_[i]; }
  TensorView embedding() const { return embedding_; }
  TensorView final_norm() const { return final_norm_; }
  TensorView head() const { return head_; }
  TensorView head_bias() const { return head_bias_; }

  /// The checksum of kernels/digest.h over the tensors in the order of the manifest, alignment gaps
  /// left out. `arena` is live() or staging(); what writes it has finished.
  uint64_t Digest(const void* arena) const;
  /// Works on the arenas beside the backend's stream: with it a thread that brings new weights does
  /// its part while another steps the engine. staging() and Digest use it too.
  DeviceTransfer& transfer() const { return *transfer_; }

 private:
  ModelConfig config_;
  Backend& backend_;
  WeightManifest manifest_;
  std::unique_ptr<DeviceTransfer> transfer_;
  Buffer live_, staging_;
  std::vector<LayerWeights> layers_;
  TensorView embedding_, final_norm_, head_, head_bias_;
};

}  // namespace rollcast
