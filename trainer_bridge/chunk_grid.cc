#include "trainer_bridge/chunk_grid.h"

#include <algorithm>

#include "kernels/check.h"

namespace rollcast {

std::vector<Chunk> CutIntoChunks(std::span<const size_t> sizes, size_t chunk_bytes) {
  RC_CHECK(chunk_bytes > 0 && chunk_bytes % kChunkAlignment == 0, "chunk of ", chunk_bytes);
  std::vector<Chunk> chunks;
  size_t used = chunk_bytes;  // of the last chunk
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (size_t offset = 0; offset < sizes[tensor];) {
      if (used >= chunk_bytes) {
        chunks.emplace_back();
        used = 0;
      }
      const size_t bytes = std::min(sizes[tensor] - offset, chunk_bytes - used);
      chunks.back().push_back({tensor, offset, bytes, used});
      offset += bytes;
      used += (bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
    }
  }
  return chunks;
}

}  // namespace rollcast
