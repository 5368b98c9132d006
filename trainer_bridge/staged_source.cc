#include "trainer_bridge/staged_source.h"

#include <algorithm>

#include "kernels/digest.h"

namespace rollcast {

namespace {

constexpr size_t kRawBytes = size_t{32} << 20;    // of the buffer for memory of elsewhere
constexpr size_t kDigestBytes = size_t{1} << 30;  // at once: a quarter of a millisecond of an H200

size_t WireBytes(const SourceTensor& tensor) {
  return static_cast<size_t>(tensor.elements) * SizeOf(tensor.wire_dtype);
}

}  // namespace

bool IsWireMemory(const SourceTensor& tensor, const DeviceTransfer& device) {
  return tensor.dtype == tensor.wire_dtype && DeviceOfMemory(tensor.data) == device.name();
}

std::vector<size_t> WireSizes(std::span<const SourceTensor> tensors) {
  std::vector<size_t> sizes;
  for (const SourceTensor& tensor : tensors) sizes.push_back(WireBytes(tensor));
  return sizes;
}

void StagedSource::Enqueue(const SourceTensor& tensor, const ChunkPiece& piece, std::byte* buffer) {
  const size_t wire_size = SizeOf(tensor.wire_dtype), source_size = SizeOf(tensor.dtype);
  RC_CHECK_EQ(piece.bytes % wire_size, 0u);
  const size_t begin = piece.offset / wire_size, elements = piece.bytes / wire_size;
  const auto* source = static_cast<const std::byte*>(tensor.data) + begin * source_size;
  std::byte* target = buffer + piece.place;
  if (tensor.dtype == tensor.wire_dtype) {
    device_.Copy(target, source, piece.bytes);
    return;
  }
  if (DeviceOfMemory(tensor.data) == device_.name()) {
    device_.Cast(source, tensor.dtype, target, tensor.wire_dtype, static_cast<int64_t>(elements));
    return;
  }
  if (raw_.data() == nullptr) raw_ = device_.Allocate(kRawBytes);
  const size_t step = kRawBytes / source_size;
  for (size_t done = 0; done < elements; done += step) {
    const size_t count = std::min(step, elements - done);
    device_.Copy(raw_.data(), source + done * source_size, count * source_size);
    device_.Cast(raw_.data(), tensor.dtype, target + done * wire_size, tensor.wire_dtype,
                 static_cast<int64_t>(count));
  }
}

void StagedSource::Fill(std::span<const SourceTensor> tensors, const Chunk& chunk,
                        const std::vector<bool>& staged, std::byte* buffer) {
  for (const ChunkPiece& piece : chunk)
    if (staged[piece.tensor]) Enqueue(tensors[piece.tensor], piece, buffer);
  const bool overflow = device_.TakeCastOverflow();
  device_.Synchronize();
  if (!overflow) return;
  for (const ChunkPiece& piece : chunk) {  // once more, to find out which
    const SourceTensor& tensor = tensors[piece.tensor];
    if (!staged[piece.tensor]) continue;
    Enqueue(tensor, piece, buffer);
    if (device_.TakeCastOverflow())
      throw Error(StrCat("tensor ", tensor.name, ": a value of ", Name(tensor.dtype),
                         " is beyond the range of the model's ", Name(tensor.wire_dtype)));
  }
  throw Error("a tensor changed while it was being sent: a value was out of range");
}

void UpdateDigest::Add(DeviceTransfer& device, std::span<const DeviceRange> ranges,
                       std::span<const size_t> owners) {
  const std::vector<uint64_t> sums = device.DigestSums(ranges);
  for (size_t i = 0; i < sums.size(); ++i) sums_[owners[i]] += sums[i];
}

void UpdateDigest::AddChunk(DeviceTransfer& device, const Chunk& chunk,
                            const std::vector<bool>& staged, const std::byte* buffer) {
  std::vector<DeviceRange> ranges;
  std::vector<size_t> owners;
  for (const ChunkPiece& piece : chunk) {
    if (!staged[piece.tensor]) continue;
    ranges.push_back({buffer + piece.place, piece.bytes, piece.offset});
    owners.push_back(piece.tensor);
  }
  Add(device, ranges, owners);
}

size_t UpdateDigest::AddWhole(DeviceTransfer& device, const std::vector<bool>& staged,
                              size_t next) {
  std::vector<DeviceRange> ranges;
  std::vector<size_t> owners;
  for (size_t bytes = 0; next < tensors_.size() && bytes < kDigestBytes; ++next) {
    if (staged[next]) continue;
    ranges.push_back({tensors_[next].data, WireBytes(tensors_[next]), 0});
    owners.push_back(next);
    bytes += ranges.back().bytes;
  }
  if (!ranges.empty()) Add(device, ranges, owners);
  return next;
}

uint64_t UpdateDigest::value() const {
  DigestFold fold;
  for (size_t i = 0; i < sums_.size(); ++i) fold.Add(sums_[i], WireBytes(tensors_[i]));
  return fold.value();
}

}  // namespace rollcast
