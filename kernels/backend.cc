// The one place that knows which backends there are.
#include "kernels/backend.h"

#include "kernels/cpu/cpu_backend.h"

namespace rollcast {

std::unique_ptr<Backend> MakeBackend(const BackendOptions& options) {
  if (options.device == "auto" || options.device == "cpu") return MakeCpuBackend(options);
  if (options.device == "cuda" || options.device.rfind("cuda:", 0) == 0)
    throw Error(StrCat("device: \"", options.device, "\" needs a build with ROLLCAST_CUDA"));
  throw Error(StrCat("device: expected auto, cpu, cuda or cuda:N, not \"", options.device, "\""));
}

}  // namespace rollcast
