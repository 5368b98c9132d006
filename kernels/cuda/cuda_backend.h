// The CUDA backend; see kernels/backend.h.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace rollcast {

/// Devices that the driver shows; 0 without a driver.
int CountCudaDevices();

/// `device`: "cuda" or "cuda:N". Throws Error when there is no such device or it is older than
/// sm_80.
std::unique_ptr<Backend> MakeCudaBackend(const BackendOptions& options);

}  // namespace rollcast
