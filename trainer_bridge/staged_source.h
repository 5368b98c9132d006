// Tensors of a trainer that cannot be sent from where they lie.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device_transfer.h"
#include "trainer_bridge/chunk_grid.h"
#include "trainer_bridge/weight_transport.h"

namespace rollcast {

using DeviceTransferMaker = std::function<std::unique_ptr<DeviceTransfer>()>;

/// True when the tensor's own memory holds, on `device`, the bytes that go over the wire.
bool IsWireMemory(const SourceTensor& tensor, const DeviceTransfer& device);

/// Puts pieces of tensors that need a cast, or lie in the host's or another device's memory, into
/// buffers of one device.
class StagedSource {
 public:
  /// `device` must outlive this.
  explicit StagedSource(DeviceTransfer& device) : device_(device) {}

  /// Fills `buffer` with the pieces of `chunk` that `staged` (one a tensor) names, and waits until
  /// they are there. Throws Error, naming the tensor, when a value is beyond the wire dtype's
  /// range.
  void Fill(std::span<const SourceTensor> tensors, const Chunk& chunk,
            const std::vector<bool>& staged, std::byte* buffer);

 private:
  void Enqueue(const SourceTensor& tensor, const ChunkPiece& piece, std::byte* buffer);

  DeviceTransfer& device_;
  Buffer raw_;  // where memory of elsewhere waits for its cast
};

/// The checksum of an update on the trainer's device, from pieces in any order.
class UpdateDigest {
 public:
  explicit UpdateDigest(std::span<const SourceTensor> tensors)
      : tensors_(tensors), sums_(tensors.size(), 0) {}

  /// Adds `ranges`, the i-th of them a part of tensor `owners[i]` in its wire dtype, and waits.
  void Add(DeviceTransfer& device, std::span<const DeviceRange> ranges,
           std::span<const size_t> owners);
  /// Adds those pieces of `chunk` in `buffer` that `staged` names.
  void AddChunk(DeviceTransfer& device, const Chunk& chunk, const std::vector<bool>& staged,
                const std::byte* buffer);
  /// Adds whole tensors that are not `staged`, from `next` on, about a GiB of them; the index of
  /// the first that is left.
  size_t AddWhole(DeviceTransfer& device, const std::vector<bool>& staged, size_t next);
  uint64_t value() const;

 private:
  std::span<const SourceTensor> tensors_;
  std::vector<uint64_t> sums_;
};

/// Bytes of each tensor on the wire.
std::vector<size_t> WireSizes(std::span<const SourceTensor> tensors);

}  // namespace rollcast
