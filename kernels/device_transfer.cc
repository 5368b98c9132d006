#include "kernels/device_transfer.h"

#include "kernels/cpu/cpu_transfer.h"

namespace rollcast {

std::unique_ptr<DeviceTransfer> MakeDeviceTransfer(const std::string& device) {
  if (device == "cpu") return MakeCpuTransfer();
  throw Error(StrCat("device: expected cpu or cuda:N, not \"", device, "\""));
}

std::string DeviceOfMemory(const void*) { return "cpu"; }

std::string DeviceIdentity(const std::string&) { return {}; }

}  // namespace rollcast
