// DeviceTransfer on CUDA; see kernels/device_transfer.h.
#pragma once

#include <memory>
#include <string>

#include "kernels/device_transfer.h"

namespace rollcast {

/// `device`: "cuda" or "cuda:N". Throws Error when it is not there.
std::unique_ptr<DeviceTransfer> MakeCudaTransfer(const std::string& device);

/// N of the device on which `memory` lies; -1 for host memory. Never makes a CUDA context, and
/// needs no driver: in a process where nobody uses CUDA all memory is the host's.
int CudaDeviceOfMemory(const void* memory);

/// The UUID of "cuda:N" as 32 hexadecimal digits.
std::string CudaDeviceIdentity(const std::string& device);

}  // namespace rollcast
