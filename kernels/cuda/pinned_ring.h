// Pinned memory through which small host arrays are copied to the device without waiting for it.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/cuda_raii.h"

namespace rollcast::cuda {

/// Slabs used in turn; a slab is filled again only after the copies out of it have finished.
/// Thread-compatible.
class PinnedRing {
 public:
  PinnedRing() {
    RC_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&memory_), kSlabs * kSlabBytes,
                          cudaHostAllocDefault));
    for (CudaEvent& event : done_) event = MakeEvent();
  }
  ~PinnedRing() { cudaFreeHost(memory_); }
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  /// Enqueues the copy; `host` may be reused when the call returns.
  void Upload(void* device, const void* host, size_t bytes, cudaStream_t stream) {
    for (size_t at = 0; at < bytes;) {
      if (used_ == kSlabBytes) NextSlab(stream);
      const size_t piece = std::min(bytes - at, kSlabBytes - used_);
      char* staged = memory_ + slab_ * kSlabBytes + used_;
      std::memcpy(staged, static_cast<const char*>(host) + at, piece);
      RC_CUDA(cudaMemcpyAsync(static_cast<char*>(device) + at, staged, piece,
                              cudaMemcpyHostToDevice, stream));
      used_ = std::min(kSlabBytes, (used_ + piece + 15) / 16 * 16);
      at += piece;
    }
  }

 private:
  static constexpr int kSlabs = 4;
  static constexpr size_t kSlabBytes = size_t{4} << 20;

  void NextSlab(cudaStream_t stream) {
    RC_CUDA(cudaEventRecord(done_[slab_].get(), stream));
    slab_ = (slab_ + 1) % kSlabs;
    used_ = 0;
    RC_CUDA(cudaEventSynchronize(done_[slab_].get()));
  }

  char* memory_ = nullptr;
  CudaEvent done_[kSlabs];
  int slab_ = 0;
  size_t used_ = 0;
};

}  // namespace rollcast::cuda
