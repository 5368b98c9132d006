// Device memory that other processes of the host can reach, through CUDA IPC.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/buffer.h"

namespace rollcast::cuda {

/// DeviceTransfer::Share of memory of `device`, which is current.
std::vector<std::string> ShareMemory(int device, std::span<const void* const> memory);

/// DeviceTransfer::OpenShared on `device`, which is current. An allocation is mapped once,
/// however often it is opened, and unmapped with its last Buffer. Any thread.
Buffer OpenSharedMemory(int device, const std::string& handle);

}  // namespace rollcast::cuda
