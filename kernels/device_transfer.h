// Moves and checks bytes of a device's memory beside the engine's own work: what a weight update
// needs of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/tensor.h"

namespace rollcast {

/// A contiguous range of device memory.
struct DeviceRange {
  const void* data = nullptr;
  size_t bytes = 0;
  size_t offset = 0;  // its place in its tensor, for DigestSums; a multiple of 8
};

struct CopyRange {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

/// One stream of work of its own on one device; runs beside a Backend's stream on the same memory,
/// so the caller orders the two (Event::Wait, Synchronize). The host's memory is a device too
/// ("cpu"), whose work is done when a call returns. One thread at a time.
class DeviceTransfer {
 public:
  virtual ~DeviceTransfer() = default;
  /// "cpu", "cuda:0".
  virtual std::string name() const = 0;
  /// True when the device's memory is the host's.
  virtual bool host_memory() const = 0;
  /// The cudaStream_t, for a library that enqueues by itself (NCCL); null on the host.
  virtual void* stream() const = 0;
  /// Calls `call` while the device is the calling thread's current one, for such a library.
  virtual void RunOnDevice(const std::function<void()>& call) = 0;

  /// Device memory, 256-byte aligned, uninitialised. Throws Error when there is too little.
  virtual Buffer Allocate(size_t bytes) = 0;
  /// Host memory that the device copies at full speed.
  virtual Buffer AllocateHost(size_t bytes) = 0;

  /// Enqueues a copy. Either side may be this device's memory, another device's of this host, or
  /// the host's; host memory must stay as it is until the copy is done.
  virtual void Copy(void* to, const void* from, size_t bytes) = 0;
  /// Enqueues copies of ranges that do not overlap, in any order among themselves: cheaper than one
  /// by one, and to the side of what the device computes.
  virtual void CopyAll(std::span<const CopyRange> copies) {
    for (const CopyRange& copy : copies) Copy(copy.to, copy.from, copy.bytes);
  }
  /// Enqueues a cast in device memory to the nearest value, ties to even; kF32, kF16, kBF16.
  /// Ranges must not overlap.
  virtual void Cast(const void* from, DType from_dtype, void* to, DType to_dtype,
                    int64_t elements) = 0;
  /// Waits for the casts enqueued so far. True when, since the last call, one of them met a finite
  /// value that its new dtype cannot hold.
  virtual bool TakeCastOverflow() = 0;
  /// Enqueues DigestSum (kernels/digest.h) of each range at its offset and waits for the results.
  virtual std::vector<uint64_t> DigestSums(std::span<const DeviceRange> ranges) = 0;

  virtual std::unique_ptr<Event> Record() = 0;
  virtual void Synchronize() = 0;
  /// Waits for all work of this process on the device so far, also that of a trainer's own library.
  virtual void SynchronizeDevice() = 0;

  /// A handle by which another DeviceTransfer, also one of another process of this host on this or
  /// another device, can read `memory`. Empty when the memory cannot be shared (not its own
  /// allocation of the device, say from a pool of virtual memory); a caller then shares a buffer of
  /// Allocate and copies through it. On the host only within one process.
  std::string Share(const void* memory) { return ShareAll(std::span(&memory, 1)).front(); }
  /// One handle each; what lies in one allocation costs little more than one.
  virtual std::vector<std::string> ShareAll(std::span<const void* const> memory) = 0;
  /// The memory behind a handle; unmapped when the Buffer (of unknown, zero size) is destroyed.
  /// Throws Error, saying why, when this device cannot reach it.
  virtual Buffer OpenShared(const std::string& handle) = 0;
};

/// `device`: "cpu" or "cuda:N". Throws Error when it is not there.
std::unique_ptr<DeviceTransfer> MakeDeviceTransfer(const std::string& device);

/// The device on which `memory` lies, as MakeDeviceTransfer takes it. "cpu" for host memory, also
/// pinned, and for any memory in a build without CUDA.
std::string DeviceOfMemory(const void* memory);

/// What names a device beyond this process: its UUID. Empty for "cpu". Two ranks with one identity
/// share a device.
std::string DeviceIdentity(const std::string& device);

/// DeviceIdentity of "cuda:0", "cuda:1", ... as this process sees them; empty in a build without
/// CUDA and where there is no driver.
std::vector<std::string> GpuIdentities();

}  // namespace rollcast
