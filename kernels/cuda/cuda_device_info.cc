#include "kernels/cuda/cuda_device_info.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <array>

#include "kernels/cuda/cuda_error.h"

namespace rollcast {
namespace {

// The few calls used, as nvml.h of CUDA 13.0 declares them: an int status (0 = success), an opaque
// device handle.
struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char* version, unsigned length) = nullptr;
  int (*by_bus_id)(const char* bus_id, void** device) = nullptr;
  int (*clock)(void* device, unsigned type, unsigned* mhz) = nullptr;
};

constexpr unsigned kSmClock = 1, kMemoryClock = 2;  // nvmlClockType_t

std::string VersionText(int version) { return StrCat(version / 1000, ".", version % 1000 / 10); }

void AskNvml(int device, DeviceInfo& info) {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  Nvml nvml;
  std::array<char, 32> bus_id{};
  if (find(nvml.init, "nvmlInit_v2") && find(nvml.shutdown, "nvmlShutdown") &&
      find(nvml.driver_version, "nvmlSystemGetDriverVersion") &&
      find(nvml.by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2") &&
      find(nvml.clock, "nvmlDeviceGetClockInfo") &&
      cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), device) == cudaSuccess &&
      nvml.init() == 0) {
    std::array<char, 96> driver{};
    if (nvml.driver_version(driver.data(), driver.size()) == 0) info.driver = driver.data();
    void* handle = nullptr;
    unsigned mhz = 0;
    if (nvml.by_bus_id(bus_id.data(), &handle) == 0) {
      if (nvml.clock(handle, kSmClock, &mhz) == 0) info.sm_clock_mhz = static_cast<int>(mhz);
      if (nvml.clock(handle, kMemoryClock, &mhz) == 0)
        info.memory_clock_mhz = static_cast<int>(mhz);
    }
    nvml.shutdown();
  }
  dlclose(library);
}

}  // namespace

DeviceInfo DescribeCudaDevice(int device) {
  DeviceInfo info;
  RC_CUDA(cudaSetDevice(device));
  cudaDeviceProp properties{};
  RC_CUDA(cudaGetDeviceProperties(&properties, device));
  info.name = properties.name;
  int version = 0;
  RC_CUDA(cudaRuntimeGetVersion(&version));
  info.runtime = VersionText(version);
  RC_CUDA(cudaDriverGetVersion(&version));
  info.driver = VersionText(version);
  size_t free_bytes = 0;
  RC_CUDA(cudaMemGetInfo(&free_bytes, &info.total_bytes));
  info.used_bytes = info.total_bytes - free_bytes;
  AskNvml(device, info);
  return info;
}

}  // namespace rollcast
