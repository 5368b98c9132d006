#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_raii.h"

namespace rollcast::cuda {

namespace {

// The driver maps an allocation of whole 512 MiB with pages of that size, any other with 2 MiB. A
// copy engine looks pages up one at a time: 15 GB of another GPU's memory came at 394 GB/s with the
// large pages, with the small at 300 after anything else had used the GPU, and at 225 beside a load
// (two H200s, driver 580). From where that is at most a fifth more memory.
constexpr size_t kLargePage = size_t{512} << 20;
constexpr size_t kLargePageFrom = 5 * kLargePage;

class StreamEvent final : public Event {
 public:
  StreamEvent(int device, cudaStream_t stream) : device_(device) {
    const DeviceScope scope(device_);
    event_ = MakeEvent();
    RC_CUDA(cudaEventRecord(event_.get(), stream));
  }
  ~StreamEvent() override {
    const DeviceScope scope(device_, std::nothrow);
    event_ = CudaEvent();
  }
  void Wait() override {
    const DeviceScope scope(device_);
    RC_CUDA(cudaEventSynchronize(event_.get()));
  }
  bool Ready() override {
    const DeviceScope scope(device_);
    const cudaError_t status = cudaEventQuery(event_.get());
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // it counts as an error for whoever asks next
      return false;
    }
    RC_CUDA(status);
    return true;
  }

 private:
  const int device_;
  CudaEvent event_;
};

CUcontext CurrentContext() {
  static const auto get =
      reinterpret_cast<decltype(&cuCtxGetCurrent)>(FindDriverFunction("cuCtxGetCurrent"));
  CUcontext context = nullptr;
  return get(&context) == CUDA_SUCCESS ? context : nullptr;
}

}  // namespace

int ParseDevice(const std::string& name) {
  int device = 0;
  if (name != "cuda") {
    const std::string prefix = "cuda:";
    const char* begin = name.data() + std::min(prefix.size(), name.size());
    const char* end = name.data() + name.size();
    const auto [stop, code] = std::from_chars(begin, end, device);
    if (!name.starts_with(prefix) || code != std::errc() || stop != end || device < 0)
      throw Error(StrCat("device \"", name, "\": expected auto, cpu, cuda or cuda:N"));
  }
  const int count = CountCudaDevices();
  if (device >= count)
    throw Error(StrCat("device \"", name, "\": the driver shows ", count, " CUDA devices"));
  return device;
}

Buffer AllocateDeviceMemory(int device, size_t bytes) {
  const DeviceScope scope(device);
  void* data = nullptr;
  cudaError_t status = cudaErrorMemoryAllocation;
  if (const size_t rest = bytes % kLargePage; bytes >= kLargePageFrom && rest != 0) {
    status = cudaMalloc(&data, bytes + std::min(kLargePage - rest, SIZE_MAX - bytes));
    if (status == cudaErrorMemoryAllocation) cudaGetLastError();
  }
  if (status == cudaErrorMemoryAllocation) status = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    RC_CUDA(cudaMemGetInfo(&free, &total));
    throw Error(StrCat("cuda:", device, ": no memory for ", bytes >> 20, " MiB; ", free >> 20,
                       " of ", total >> 20, " MiB are free"));
  }
  RC_CUDA(status);
  return Buffer(data, bytes, [device](void* p, size_t) {
    const DeviceScope scope(device, std::nothrow);
    cudaFree(p);
  });
}

Buffer AllocatePinnedMemory(int device, size_t bytes) {
  const DeviceScope scope(device);
  void* data = nullptr;
  RC_CUDA(cudaHostAlloc(&data, std::max<size_t>(bytes, 1),
                        cudaHostAllocMapped | cudaHostAllocPortable));
  return Buffer(data, bytes, [device](void* p, size_t) {
    const DeviceScope scope(device, std::nothrow);
    cudaFreeHost(p);
  });
}

std::unique_ptr<Event> RecordEvent(int device, cudaStream_t stream) {
  return std::make_unique<StreamEvent>(device, stream);
}

void* FindDriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  RC_CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    throw CudaError(
        StrCat("this driver has no ", name, ": a driver of CUDA 12 or later is needed"));
  return function;
}

DeviceScope::DeviceScope(int device) : previous_(CurrentContext()) {
  RC_CUDA(cudaSetDevice(device));
}

DeviceScope::DeviceScope(int device, std::nothrow_t) noexcept : previous_(CurrentContext()) {
  cudaSetDevice(device);
}

DeviceScope::~DeviceScope() {
  static const auto set =
      reinterpret_cast<decltype(&cuCtxSetCurrent)>(FindDriverFunction("cuCtxSetCurrent"));
  set(previous_);
}

}  // namespace rollcast::cuda
