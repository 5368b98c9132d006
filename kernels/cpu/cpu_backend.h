// The backend that runs on the processor's cores; the specification of every op.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace rollcast {

/// Throws Error when `options.isa` is unknown or the processor does not have it.
std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options);

}  // namespace rollcast
