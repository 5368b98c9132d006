// The tables of the CUDA kernels and what they are asked by. Host code without CUDA headers, part
// of every build, so that `rollcast explain` can ask it anywhere.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cuda/linear_tiling.h"
#include "kernels/dispatch.h"

namespace rollcast::cuda {

/// KV tokens of one slice; slices begin at multiples of it. Each is computed from a fresh (max,
/// sum, accumulator) and they are folded left to right, so who computes a slice changes no bit.
constexpr int kAttentionSlice = 64;

constexpr int kSampleBlock = 256;  // samples whose logits are held at once

/// One product.
struct LinearAxes {
  int rows = 0, N = 0, K = 0;
  Epilogue epilogue = Epilogue::kStore;
  bool x_aligned = true, w_aligned = true;  // to 16 bytes
  bool wgmma = false;                       // the code that the device runs has it
};

/// Attention of a pure decode step: one row a sequence. (A step with longer segments has one kernel
/// only: whole.)
struct AttentionAxes {
  int segments = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int max_context = 0;      // tokens a sequence may have
  int multiprocessors = 0;  // of the device
  int shared_bytes = 0;     // that a CTA of the device may have
};

/// Places in the tables.
enum LinearKernel { kLinearWgmma, kLinearGeneric };
enum AttentionKernel { kAttentionSplit, kAttentionWhole };

const OpFamily<LinearAxes>& LinearFamily();
const OpFamily<AttentionAxes>& AttentionFamily();

/// Head dims that attention is compiled for; another is padded to the next that takes padding (64,
/// 128, 256). 0 for what attention does not take.
constexpr int CompiledHeadDim(int head_dim) {
  for (int dim : {16, 32, 48, 64, 80, 96, 128, 256})
    if (head_dim == dim) return dim;
  for (int dim : {64, 128, 256})
    if (head_dim > 0 && head_dim < dim) return dim;
  return 0;
}
/// Shared memory of K and V of one slice, rows of 16 bytes more than the head has.
constexpr int AttentionStageBytes(int head_dim) {
  return 2 * kAttentionSlice * (2 * CompiledHeadDim(head_dim) + 16);
}

/// CTAs over which the slices of a decode step are spread.
constexpr int SplitCtas(int multiprocessors) { return 6 * multiprocessors; }
/// Slices of one sequence at most.
constexpr size_t SlicesOf(int max_context) {
  return static_cast<size_t>(max_context / kAttentionSlice + 1);
}
/// Sequences up to which spreading pays and its scratch memory (512 MiB) suffices: more keep the
/// device busy by themselves.
size_t SplitSegments(const AttentionAxes& axes);

/// A device that is not there.
struct CudaArch {
  std::string name;
  bool wgmma;
  int multiprocessors;
  int shared_bytes;    // AttentionAxes
  std::string device;  // whose numbers they are
};

/// "sm_90a" or "sm_80"; throws Error for others.
CudaArch ArchByName(const std::string& name);

}  // namespace rollcast::cuda
