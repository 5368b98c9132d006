// Failed CUDA calls as exceptions.
#pragma once

#include <cuda_runtime.h>

#include "kernels/check.h"

namespace rollcast::cuda {

/// A failed CUDA call: the expression, the code's name and text, the place.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// Takes the error out of the runtime, which would otherwise give it to a later and innocent call.
inline void CheckCuda(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw CudaError(StrCat(expression, ": ", cudaGetErrorName(status), " (",
                         cudaGetErrorString(status), ") at ", file, ":", line));
}

}  // namespace rollcast::cuda

#define RC_CUDA(expression) \
  ::rollcast::cuda::CheckCuda((expression), #expression, __FILE__, __LINE__)
