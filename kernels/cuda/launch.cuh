// Kernel launches with programmatic dependent launch and clusters, errors checked.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_error.h"

namespace rollcast::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  int cluster = 1;   // CTAs of a cluster, along x
  bool pdl = false;  // may start while the kernel before it runs; the kernel must wait before it
                     // reads its results
  cudaStream_t stream = nullptr;
};

/// An empty grid (a batch of no rows, or one that wants no samples) is no work; CUDA would refuse
/// it.
template <class... Params, class... Args>
void LaunchKernel(const LaunchShape& shape, void (*kernel)(Params...), const Args&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (shape.pdl) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = shape.cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  RC_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

}  // namespace rollcast::cuda
