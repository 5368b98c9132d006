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

std::vector<size_t> GrowingRuns(std::span<const size_t> sizes, size_t first_bytes) {
  RC_CHECK_GT(first_bytes, 0u);
  std::vector<size_t> ends;
  size_t aim = first_bytes, bytes = 0;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    bytes += sizes[tensor];
    if (bytes < aim) continue;
    ends.push_back(tensor + 1);
    aim *= 8;
    bytes = 0;
  }
  if (!sizes.empty() && (ends.empty() || ends.back() < sizes.size())) ends.push_back(sizes.size());
  return ends;
}

}  // namespace rollcast
