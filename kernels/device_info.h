// What a benchmark has to say of the device that it ran on.
#pragma once

#include <cstddef>
#include <string>

namespace rollcast {

struct DeviceInfo {
  std::string name;                            // "NVIDIA H200", or "cpu"
  std::string driver;                          // of the NVIDIA driver; empty on a CPU
  std::string runtime;                         // of the CUDA runtime; empty on a CPU
  int sm_clock_mhz = 0, memory_clock_mhz = 0;  // as they are now; 0 = not known
  size_t used_bytes = 0, total_bytes = 0;      // of device memory, by all processes; 0 on a CPU
};

/// `device` as MakeDeviceTransfer takes it: "cpu" or "cuda:N". The clocks come from the NVIDIA
/// management library, loaded at run time, and stay 0 without it. Throws Error when there is no
/// such device.
DeviceInfo DescribeDevice(const std::string& device);

}  // namespace rollcast
