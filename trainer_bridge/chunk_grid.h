// How the tensors of an update are cut: the same on every rank, from their sizes alone.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace rollcast {

/// A part of a tensor.
struct ChunkPiece {
  size_t tensor = 0;
  size_t offset = 0;  // in the tensor; a multiple of kChunkAlignment
  size_t bytes = 0;
  size_t place = 0;  // of the piece in a buffer that holds the chunk; a multiple of kChunkAlignment
};
using Chunk = std::vector<ChunkPiece>;

constexpr size_t kChunkAlignment = 256;  // bytes

/// Cuts tensors of `sizes` bytes, in order, into chunks that a buffer of `chunk_bytes` (a multiple
/// of kChunkAlignment, not 0) holds. Tensors of 0 bytes are in no chunk.
std::vector<Chunk> CutIntoChunks(std::span<const size_t> sizes, size_t chunk_bytes);

/// Runs of whole tensors, as the index after each run's last: the first run ends with the tensor
/// that brings it to `first_bytes` (not 0), each one after it with that which brings it to eight
/// times the aim of the run before.
std::vector<size_t> GrowingRuns(std::span<const size_t> sizes, size_t first_bytes);

}  // namespace rollcast
