// The host's memory as a device of weight updates.
#pragma once

#include <memory>

#include "kernels/device_transfer.h"

namespace rollcast {

std::unique_ptr<DeviceTransfer> MakeCpuTransfer();

}  // namespace rollcast
