// Safetensors files and sharded checkpoints. The format: 8 bytes of little-endian header length, a
// JSON header of that many bytes, then the tensors' bytes without gaps
// (https://github.com/huggingface/safetensors, "Format").
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/mapped_file.h"
#include "kernels/tensor.h"

namespace rollcast {

/// One tensor in host memory: a range of a mapped file, or what is to be written. `data` may have
/// any alignment.
struct HostTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// The longest header that is accepted, in bytes (the limit of the reference implementation).
constexpr size_t kMaxSafetensorsHeader = 100'000'000;

/// Parses a whole file image and checks everything that the format promises: header length, JSON,
/// unique names, known dtypes, sizes that fit shapes, ranges that cover the data exactly once.
/// Throws Error that begins with `file` and names the tensor. The result points into `image`, in
/// order of offset.
std::vector<HostTensor> ParseSafetensors(std::span<const std::byte> image, const std::string& file);

/// Writes one file, tensors in the order given, atomically. Throws Error naming the path.
void WriteSafetensors(const std::filesystem::path& path, std::span<const HostTensor> tensors,
                      std::span<const std::pair<std::string, std::string>> metadata = {});

/// The tensors of a checkpoint folder: `model.safetensors`, or the shards that
/// `model.safetensors.index.json` lists. Owns the mappings; immutable, thread-safe to read.
class Checkpoint {
 public:
  struct Tensor : HostTensor {
    std::string file;  // path of the file that holds it, for messages
  };

  /// Throws Error naming file and tensor: no checkpoint in `dir`, missing shard, tensor that the
  /// index lists and the shard does not hold (or the other way round), malformed file.
  static Checkpoint Open(const std::filesystem::path& dir);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Null when there is no such tensor.
  const Tensor* Find(std::string_view name) const;

 private:
  void AddFile(const std::filesystem::path& path);

  std::vector<MappedFile> files_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace rollcast
