// Device memory that other processes of the host can reach, through CUDA IPC.
#pragma once

#include <string>

#include "kernels/buffer.h"

namespace rollcast::cuda {

/// DeviceTransfer::Share of memory of `device`, which is current.
std::string ShareMemory(int device, const void* memory);

/// DeviceTransfer::OpenShared on `device`, which is current. An allocation is mapped once,
/// however often it is opened, and unmapped with its last Buffer. Any thread.
Buffer OpenSharedMemory(int device, const std::string& handle);

}  // namespace rollcast::cuda
