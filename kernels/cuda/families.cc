#include "kernels/cuda/families.h"

#include <algorithm>

namespace rollcast::cuda {

namespace {

constexpr size_t kMaxPartialBytes = size_t{512} << 20;  // of attention slices kept apart
constexpr int kMaxGroup = 16;  // query heads a KV head: the rows of one warp's tile

const Condition<AttentionAxes> kHeadDim = {
    [](const AttentionAxes& a) { return CompiledHeadDim(a.head_dim) > 0; },
    [](const AttentionAxes& a) {
      return StrCat("head_dim is ", a.head_dim, "; 1 to 256 are supported");
    }};

/// `kStages` slices at once in shared memory.
template <int kStages>
constexpr Condition<AttentionAxes> kSharedMemory = {
    [](const AttentionAxes& a) {
      return kStages * AttentionStageBytes(a.head_dim) <= a.shared_bytes;
    },
    [](const AttentionAxes& a) {
      return StrCat("head_dim is ", a.head_dim, "; it takes ",
                    kStages * AttentionStageBytes(a.head_dim),
                    " bytes of shared memory, and the device has ", a.shared_bytes);
    }};

}  // namespace

const OpFamily<LinearAxes>& LinearFamily() {
  using A = LinearAxes;
  static const OpFamily<A> family(
      "linear",
      {{"wgmma",
        {{[](const A& a) { return a.wgmma; },
          [](const A&) {
            return std::string("the device or the build has no wgmma; it needs code for sm_90a");
          }},
         {[](const A& a) { return a.K % 8 == 0; },
          [](const A& a) {
            return StrCat("K is ", a.K, "; rows of whole 16 bytes need a multiple of 8");
          }},
         {[](const A& a) { return a.x_aligned && a.w_aligned; },
          [](const A& a) {
            return StrCat(a.w_aligned ? "x" : "the weight",
                          " does not begin at a multiple of 16 bytes");
          }},
         {[](const A& a) { return a.epilogue != Epilogue::kGated || a.N % 16 == 0; },
          [](const A& a) {
            return StrCat("N is ", a.N, "; gate and up rows in pairs of 8 need a multiple of 16");
          }}}},
       {"generic", {}}});
  return family;
}

size_t SplitSegments(const AttentionAxes& a) {
  const size_t bytes = SlicesOf(a.max_context) * a.num_heads * (a.head_dim + 2) * sizeof(float);
  return std::min<size_t>(SplitCtas(a.multiprocessors) / a.num_kv_heads, kMaxPartialBytes / bytes);
}

const OpFamily<AttentionAxes>& AttentionFamily() {
  using A = AttentionAxes;
  static const OpFamily<A> family(
      "attention",
      {{"split_kv",
        {kHeadDim,
         kSharedMemory<1>,
         {[](const A& a) { return a.num_heads / a.num_kv_heads <= kMaxGroup; },
          [](const A& a) {
            return StrCat(a.num_heads / a.num_kv_heads, " query heads share a KV head; up to ",
                          kMaxGroup, " fit a warp");
          }},
         {[](const A& a) { return static_cast<size_t>(a.segments) <= SplitSegments(a); },
          [](const A& a) {
            return StrCat(a.segments, " sequences; with ", a.num_kv_heads, " KV heads and ",
                          a.max_context, " tokens of context it takes up to ", SplitSegments(a));
          }}}},
       {"whole", {kHeadDim, kSharedMemory<2>}}});
  return family;
}

CudaArch ArchByName(const std::string& name) {
  if (name == "sm_90a") return {name, true, 132, 227 << 10, "H200"};
  if (name == "sm_80") return {name, false, 108, 163 << 10, "A100"};
  throw Error(StrCat("--arch ", name, ": known are sm_90a and sm_80"));
}

}  // namespace rollcast::cuda
