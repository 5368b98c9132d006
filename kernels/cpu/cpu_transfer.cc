#include "kernels/cpu/cpu_transfer.h"

#include <cstring>
#include <utility>

#include "kernels/cpu/host_memory.h"
#include "kernels/digest.h"
#include "kernels/float_convert.h"
#include "kernels/process_key.h"

namespace rollcast {
namespace {

// A handle of host memory: good within the process that made it.
struct HostHandle {
  char kind[4];  // "host"
  ProcessKey process;
  const void* memory;
};

class CpuTransfer final : public DeviceTransfer {
 public:
  std::string name() const override { return "cpu"; }
  bool host_memory() const override { return true; }
  void* stream() const override { return nullptr; }
  void RunOnDevice(const std::function<void()>& call) override { call(); }
  Buffer Allocate(size_t bytes) override { return AllocateHostMemory(bytes); }
  Buffer AllocateHost(size_t bytes) override { return AllocateHostMemory(bytes); }

  void Copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Cast(const void* from, DType from_dtype, void* to, DType to_dtype,
            int64_t elements) override {
    overflow_ |=
        !ConvertFloats(static_cast<const std::byte*>(from), from_dtype, static_cast<std::byte*>(to),
                       to_dtype, static_cast<size_t>(elements));
  }
  bool TakeCastOverflow() override { return std::exchange(overflow_, false); }
  std::vector<uint64_t> DigestSums(std::span<const DeviceRange> ranges) override {
    std::vector<uint64_t> sums;
    for (const DeviceRange& range : ranges)
      sums.push_back(DigestSum(range.data, range.bytes, range.offset));
    return sums;
  }

  std::unique_ptr<Event> Record() override { return MakeDoneEvent(); }
  void Synchronize() override {}
  void SynchronizeDevice() override {}

  std::vector<std::string> ShareAll(std::span<const void* const> memory) override {
    std::vector<std::string> handles;
    for (const void* one : memory) handles.push_back(ShareOne(one));
    return handles;
  }
  Buffer OpenShared(const std::string& bytes) override {
    HostHandle handle{};
    if (bytes.size() != sizeof handle || bytes.compare(0, 4, "host") != 0)
      throw Error("a handle of shared memory is not one of host memory");
    std::memcpy(&handle, bytes.data(), sizeof handle);
    if (handle.process != ProcessKey::Mine())
      throw Error(StrCat("host memory of process ", handle.process.process,
                         " cannot be reached from another process"));
    return Buffer(const_cast<void*>(handle.memory), 0, nullptr);
  }

 private:
  static std::string ShareOne(const void* memory) {
    HostHandle handle{};
    std::memcpy(handle.kind, "host", 4);
    handle.process = ProcessKey::Mine();
    handle.memory = memory;
    return std::string(reinterpret_cast<const char*>(&handle), sizeof handle);
  }

  bool overflow_ = false;
};

}  // namespace

std::unique_ptr<DeviceTransfer> MakeCpuTransfer() { return std::make_unique<CpuTransfer>(); }

}  // namespace rollcast
