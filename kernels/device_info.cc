#include "kernels/device_info.h"

#include "kernels/check.h"
#ifdef ROLLCAST_CUDA
#include "kernels/cuda/cuda_device_info.h"
#endif

namespace rollcast {

DeviceInfo DescribeDevice(const std::string& device) {
  if (device == "cpu") {
    DeviceInfo info;
    info.name = "cpu";
    return info;
  }
#ifdef ROLLCAST_CUDA
  if (device.starts_with("cuda:")) return DescribeCudaDevice(std::stoi(device.substr(5)));
#endif
  throw Error(StrCat("device: expected cpu or cuda:N, not \"", device, "\""));
}

}  // namespace rollcast
