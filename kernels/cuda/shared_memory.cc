#include "kernels/cuda/shared_memory.h"

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/process_key.h"

namespace rollcast::cuda {

namespace {

// What a handle says. Plain bytes: it goes from process to process of one host and one program.
struct Handle {
  char kind[4];  // "cuda"
  int32_t device;
  ProcessKey process;
  const void* memory;  // in that process
  uint64_t offset;     // of `memory` in its allocation
  cudaIpcMemHandle_t allocation;
};

// Allocations of other processes that are mapped into this one.
class Mappings {
 public:
  static Mappings& Instance() {
    static Mappings* const instance = new Mappings;  // Buffers may outlive static destruction
    return *instance;
  }

  Buffer Open(int device, const Handle& handle) {
    Key key{device, {}};
    std::memcpy(key.second.data(), &handle.allocation, sizeof handle.allocation);
    const std::lock_guard lock(mutex_);
    Mapping& mapping = open_[key];
    if (mapping.users == 0) {
      const cudaError_t status =
          cudaIpcOpenMemHandle(&mapping.base, handle.allocation, cudaIpcMemLazyEnablePeerAccess);
      if (status != cudaSuccess) {
        cudaGetLastError();
        open_.erase(key);
        throw CudaError(StrCat("cuda:", device, " cannot map memory of cuda:", handle.device,
                               " of process ", handle.process.process, ": ",
                               cudaGetErrorName(status), " (", cudaGetErrorString(status),
                               "); both processes must see both GPUs and share /dev/shm and their "
                               "IPC namespace, and the two GPUs must reach each other"));
      }
    }
    ++mapping.users;
    return Buffer(static_cast<std::byte*>(mapping.base) + handle.offset, 0,
                  [this, key](void*, size_t) { Close(key); });
  }

 private:
  using Key = std::pair<int, std::array<char, sizeof(cudaIpcMemHandle_t)>>;
  struct Mapping {
    void* base = nullptr;
    int users = 0;
  };

  void Close(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto it = open_.find(key);
    if (--it->second.users > 0) return;
    const DeviceScope scope(key.first, std::nothrow);
    cudaIpcCloseMemHandle(it->second.base);
    open_.erase(it);
  }

  std::mutex mutex_;
  std::map<Key, Mapping> open_;
};

// Memory of another device of this process: by its own address, over a link between the two where
// there is one.
Buffer OpenOwn(int device, const Handle& handle) {
  if (handle.device != device) {
    int reachable = 0;
    RC_CUDA(cudaDeviceCanAccessPeer(&reachable, device, handle.device));
    const cudaError_t status =
        reachable != 0 ? cudaDeviceEnablePeerAccess(handle.device, 0) : cudaSuccess;
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      RC_CUDA(status);
  }
  return Buffer(const_cast<void*>(handle.memory), 0, nullptr);
}

}  // namespace

std::vector<std::string> ShareMemory(int device, std::span<const void* const> memory) {
  static const auto get_range =
      reinterpret_cast<decltype(&cuMemGetAddressRange)>(FindDriverFunction("cuMemGetAddressRange"));
  // Many tensors lie in one allocation, whose handle is asked for once. It may be kept no longer
  // than this call: the same address is another allocation after a free.
  std::map<CUdeviceptr, std::optional<cudaIpcMemHandle_t>> allocations;
  std::vector<std::string> handles;
  for (const void* one : memory) {
    const auto address = reinterpret_cast<CUdeviceptr>(one);
    CUdeviceptr base = 0;
    size_t bytes = 0;
    handles.emplace_back();
    if (get_range(&base, &bytes, address) != CUDA_SUCCESS) continue;
    const auto [it, is_new] = allocations.try_emplace(base);
    if (is_new) {
      cudaIpcMemHandle_t allocation;
      if (cudaIpcGetMemHandle(&allocation, reinterpret_cast<void*>(base)) == cudaSuccess)
        it->second = allocation;
      else
        cudaGetLastError();
    }
    if (!it->second.has_value()) continue;
    Handle handle{};
    std::memcpy(handle.kind, "cuda", 4);
    handle.device = device;
    handle.process = ProcessKey::Mine();
    handle.memory = one;
    handle.offset = address - base;
    handle.allocation = *it->second;
    handles.back().assign(reinterpret_cast<const char*>(&handle), sizeof handle);
  }
  return handles;
}

Buffer OpenSharedMemory(int device, const std::string& bytes) {
  Handle handle{};
  if (bytes.size() != sizeof handle || bytes.compare(0, 4, "cuda") != 0)
    throw Error(StrCat("cuda:", device, ": a handle of shared memory is not one of a GPU's"));
  std::memcpy(&handle, bytes.data(), sizeof handle);
  if (handle.process == ProcessKey::Mine()) return OpenOwn(device, handle);
  return Mappings::Instance().Open(device, handle);
}

}  // namespace rollcast::cuda
