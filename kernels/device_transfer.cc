#include "kernels/device_transfer.h"

#include "kernels/cpu/cpu_transfer.h"
#ifdef ROLLCAST_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_transfer.h"
#endif

namespace rollcast {

std::unique_ptr<DeviceTransfer> MakeDeviceTransfer(const std::string& device) {
  if (device == "cpu") return MakeCpuTransfer();
#ifdef ROLLCAST_CUDA
  if (device.starts_with("cuda")) return MakeCudaTransfer(device);
#endif
  throw Error(StrCat("device: expected cpu or cuda:N, not \"", device, "\""));
}

std::string DeviceOfMemory([[maybe_unused]] const void* memory) {
#ifdef ROLLCAST_CUDA
  if (const int device = CudaDeviceOfMemory(memory); device >= 0) return StrCat("cuda:", device);
#endif
  return "cpu";
}

std::string DeviceIdentity([[maybe_unused]] const std::string& device) {
#ifdef ROLLCAST_CUDA
  if (device.starts_with("cuda")) return CudaDeviceIdentity(device);
#endif
  return {};
}

std::vector<std::string> GpuIdentities() {
  std::vector<std::string> identities;
#ifdef ROLLCAST_CUDA
  for (int i = 0; i < CountCudaDevices(); ++i)
    identities.push_back(DeviceIdentity(StrCat("cuda:", i)));
#endif
  return identities;
}

}  // namespace rollcast
