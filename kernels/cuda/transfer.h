// Casts and checksums of device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tensor.h"

namespace rollcast::cuda {

/// ConvertFloats (kernels/float_convert.h) between two different dtypes, in device memory. Sets
/// *overflow (device memory) to 1 when a finite value became infinite.
void LaunchCast(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t elements,
                int* overflow, cudaStream_t stream);

/// What DigestSums reads of one range: it is cut into chunks of kDigestChunkBytes, which are
/// numbered through all ranges.
struct DigestJob {
  const unsigned char* data;
  uint64_t bytes;
  uint64_t first_chunk;
  uint64_t first_word;  // the place of `data` in its tensor
};
constexpr uint64_t kDigestChunkBytes = uint64_t{64} << 10;

/// Adds DigestSum (kernels/digest.h) of range i to sums[i]. `jobs` and `sums` [count] are device
/// memory; `chunks` is the number of chunks of all ranges.
void LaunchDigestSums(const DigestJob* jobs, int count, uint64_t chunks, uint64_t* sums,
                      int multiprocessors, cudaStream_t stream);

}  // namespace rollcast::cuda
