#pragma once

#include "kernels/device_info.h"

namespace rollcast {

DeviceInfo DescribeCudaDevice(int device);

}  // namespace rollcast
