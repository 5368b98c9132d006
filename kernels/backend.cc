// The one place that knows which backends there are.
#include "kernels/backend.h"

#include "kernels/cpu/cpu_backend.h"
#ifdef ROLLCAST_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace rollcast {

bool BuildHasCuda() {
#ifdef ROLLCAST_CUDA
  return true;
#else
  return false;
#endif
}

bool TakesCuda(const BackendOptions& options) {
  if (options.device == "cpu") return false;
  if (options.device.rfind("cuda", 0) == 0) return true;
  if (options.device != "auto")
    throw Error(StrCat("device: expected auto, cpu, cuda or cuda:N, not \"", options.device, "\""));
#ifdef ROLLCAST_CUDA
  return CountCudaDevices() > 0;
#else
  return false;
#endif
}

std::unique_ptr<Backend> MakeBackend(const BackendOptions& options) {
  if (!TakesCuda(options)) return MakeCpuBackend(options);
#ifdef ROLLCAST_CUDA
  return MakeCudaBackend(options);
#else
  throw Error(StrCat("device \"", options.device,
                     "\": this build has no CUDA backend; configure with ",
                     "-DROLLCAST_CUDA=ON where the CUDA toolkit is installed"));
#endif
}

}  // namespace rollcast
