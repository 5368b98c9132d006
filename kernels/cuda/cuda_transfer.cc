#include "kernels/cuda/cuda_transfer.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_raii.h"
#include "kernels/cuda/shared_memory.h"
#include "kernels/cuda/transfer.h"
#include "kernels/float_convert.h"

namespace rollcast {

namespace cuda {

namespace {

class CudaTransfer final : public DeviceTransfer {
 public:
  explicit CudaTransfer(int device) : device_(device) {
    const DeviceScope scope(device_);
    RC_CUDA(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_));
    // Decoding goes first: what this stream does may wait for a free multiprocessor.
    int lowest = 0, highest = 0;
    RC_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaStream_t stream = nullptr;
    RC_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, lowest));
    stream_ = Stream(stream);
    overflow_ = AllocateDeviceMemory(device_, sizeof(int));
    RC_CUDA(cudaMemsetAsync(overflow_.data(), 0, sizeof(int), stream));
  }
  ~CudaTransfer() override {
    const DeviceScope scope(device_, std::nothrow);
    cudaStreamSynchronize(stream_.get());
    stream_ = Stream();
  }

  std::string name() const override { return StrCat("cuda:", device_); }
  bool host_memory() const override { return false; }
  void* stream() const override { return stream_.get(); }
  void RunOnDevice(const std::function<void()>& call) override {
    const DeviceScope scope(device_);
    call();
  }

  Buffer Allocate(size_t bytes) override { return AllocateDeviceMemory(device_, bytes); }
  Buffer AllocateHost(size_t bytes) override { return AllocatePinnedMemory(device_, bytes); }

  void Copy(void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return;
    const DeviceScope scope(device_);
    RC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()));
  }

  void CopyAll(std::span<const CopyRange> copies) override {
#if CUDART_VERSION >= 13000
    // One by one every copy costs the copy engine several us: 368 GB/s between two H200s where this
    // reaches 393 (tests/bench/README.md).
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<size_t> bytes;
    for (const CopyRange& copy : copies) {
      if (copy.bytes == 0) continue;
      to.push_back(copy.to);
      from.push_back(copy.from);
      bytes.push_back(copy.bytes);
    }
    if (to.empty()) return;
    const DeviceScope scope(device_);
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    size_t first = 0;
    RC_CUDA(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes,
                                 &first, 1, stream_.get()));
#else
    DeviceTransfer::CopyAll(copies);
#endif
  }

  void Cast(const void* from, DType from_dtype, void* to, DType to_dtype,
            int64_t elements) override {
    RC_CHECK(IsWeightDType(from_dtype) && IsWeightDType(to_dtype), Name(from_dtype), " to ",
             Name(to_dtype));
    if (from_dtype == to_dtype)
      return Copy(to, from, static_cast<size_t>(elements) * SizeOf(to_dtype));
    const DeviceScope scope(device_);
    LaunchCast(from, from_dtype, to, to_dtype, elements, overflow_.as<int>(), stream_.get());
  }

  bool TakeCastOverflow() override {
    const DeviceScope scope(device_);
    int overflow = 0;
    RC_CUDA(cudaMemcpyAsync(&overflow, overflow_.data(), sizeof overflow, cudaMemcpyDeviceToHost,
                            stream_.get()));
    RC_CUDA(cudaMemsetAsync(overflow_.data(), 0, sizeof overflow, stream_.get()));
    RC_CUDA(cudaStreamSynchronize(stream_.get()));
    return overflow != 0;
  }

  std::vector<uint64_t> DigestSums(std::span<const DeviceRange> ranges) override {
    std::vector<uint64_t> sums(ranges.size(), 0);
    if (ranges.empty()) return sums;
    const DeviceScope scope(device_);
    std::vector<DigestJob> jobs;
    uint64_t chunks = 0;
    for (const DeviceRange& range : ranges) {
      RC_CHECK_EQ(range.offset % 8, 0u);
      jobs.push_back(
          {static_cast<const unsigned char*>(range.data), range.bytes, chunks, range.offset / 8});
      chunks += (range.bytes + kDigestChunkBytes - 1) / kDigestChunkBytes;
    }
    const size_t job_bytes = jobs.size() * sizeof(DigestJob);
    const size_t sum_bytes = sums.size() * sizeof(uint64_t);
    if (digest_scratch_.bytes() < job_bytes + sum_bytes)
      digest_scratch_ = AllocateDeviceMemory(device_, job_bytes + sum_bytes);
    auto* device_jobs = digest_scratch_.as<DigestJob>();
    auto* device_sums = reinterpret_cast<uint64_t*>(device_jobs + jobs.size());
    cudaStream_t stream = stream_.get();
    RC_CUDA(cudaMemcpyAsync(device_jobs, jobs.data(), job_bytes, cudaMemcpyHostToDevice, stream));
    RC_CUDA(cudaMemsetAsync(device_sums, 0, sum_bytes, stream));
    LaunchDigestSums(device_jobs, static_cast<int>(jobs.size()), chunks, device_sums,
                     multiprocessors_, stream);
    RC_CUDA(cudaMemcpyAsync(sums.data(), device_sums, sum_bytes, cudaMemcpyDeviceToHost, stream));
    RC_CUDA(cudaStreamSynchronize(stream));
    return sums;
  }

  std::unique_ptr<Event> Record() override { return RecordEvent(device_, stream_.get()); }
  void Synchronize() override {
    const DeviceScope scope(device_);
    RC_CUDA(cudaStreamSynchronize(stream_.get()));
  }
  void SynchronizeDevice() override {
    const DeviceScope scope(device_);
    RC_CUDA(cudaDeviceSynchronize());
  }

  std::vector<std::string> ShareAll(std::span<const void* const> memory) override {
    const DeviceScope scope(device_);
    return ShareMemory(device_, memory);
  }
  Buffer OpenShared(const std::string& handle) override {
    const DeviceScope scope(device_);
    return OpenSharedMemory(device_, handle);
  }

 private:
  const int device_;
  int multiprocessors_ = 0;
  Stream stream_;
  Buffer overflow_;  // one int: a cast has met a value out of range
  Buffer digest_scratch_;
};

}  // namespace

}  // namespace cuda

std::unique_ptr<DeviceTransfer> MakeCudaTransfer(const std::string& device) {
  return std::make_unique<cuda::CudaTransfer>(cuda::ParseDevice(device));
}

namespace {

using PointerGetAttribute = decltype(&cuPointerGetAttribute);

/// Null while the process has no driver. Whoever uses CUDA in it, we or a trainer's library, has
/// loaded one. Found once: an update asks for each of its tensors.
PointerGetAttribute LoadedPointerGetAttribute() {
  static std::atomic<PointerGetAttribute> found{nullptr};
  if (found == nullptr) {
    // Left open: the driver is to stay where the pointer points.
    if (void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD))
      found = reinterpret_cast<PointerGetAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  }
  return found;
}

}  // namespace

int CudaDeviceOfMemory(const void* memory) {
  const PointerGetAttribute get_attribute = LoadedPointerGetAttribute();
  if (get_attribute == nullptr) return -1;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  CUmemorytype type{};
  int device = -1;
  CUresult result = get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  if (result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE)
    result = get_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  // An address that CUDA does not know is ordinary host memory.
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE &&
      result != CUDA_ERROR_NOT_INITIALIZED)
    throw cuda::CudaError(StrCat("cuPointerGetAttribute: code ", static_cast<int>(result)));
  return device;
}

std::string CudaDeviceIdentity(const std::string& device) {
  cudaDeviceProp properties{};
  RC_CUDA(cudaGetDeviceProperties(&properties, cuda::ParseDevice(device)));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : properties.uuid.bytes) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

}  // namespace rollcast
