// Devices, their memory and points in their streams, for all that runs on CUDA.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <memory>
#include <new>
#include <string>

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/cuda/cuda_error.h"

namespace rollcast::cuda {

/// N of "cuda:N"; 0 for "cuda". Throws Error when the name is another or there is no such device.
int ParseDevice(const std::string& name);

/// Throws Error when there is too little memory.
Buffer AllocateDeviceMemory(int device, size_t bytes);
/// Pinned host memory that every device can reach.
Buffer AllocatePinnedMemory(int device, size_t bytes);

/// The point that `stream` of `device` has reached now.
std::unique_ptr<Event> RecordEvent(int device, cudaStream_t stream);

/// A function of the driver; the program is not linked to it, so that it starts without one. Throws
/// CudaError when the driver does not have it.
void* FindDriverFunction(const char* name);

/// Makes `device` the current one of this thread for a scope. Afterwards the thread has the context
/// that it had before: it may belong to somebody else, a trainer's PyTorch, who relies on it.
/// Without a scope a call on a thread that has no context would make one on device 0.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  /// For destructors.
  DeviceScope(int device, std::nothrow_t) noexcept;
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  CUcontext previous_ = nullptr;
};

}  // namespace rollcast::cuda
