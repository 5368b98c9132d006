// The one place that knows which backends there are.
#include "kernels/backend.h"

#include "kernels/cpu/cpu_backend.h"
#ifdef ROLLCAST_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace rollcast {

std::unique_ptr<Backend> MakeBackend(const BackendOptions& options) {
#ifdef ROLLCAST_CUDA
  if (options.device.rfind("cuda", 0) == 0 || (options.device == "auto" && CountCudaDevices() > 0))
    return MakeCudaBackend(options);
#else
  if (options.device.rfind("cuda", 0) == 0)
    throw Error(StrCat("device \"", options.device,
                       "\": this build has no CUDA backend; configure with ",
                       "-DROLLCAST_CUDA=ON where the CUDA toolkit is installed"));
#endif
  if (options.device == "auto" || options.device == "cpu") return MakeCpuBackend(options);
  throw Error(StrCat("device: expected auto, cpu, cuda or cuda:N, not \"", options.device, "\""));
}

}  // namespace rollcast
