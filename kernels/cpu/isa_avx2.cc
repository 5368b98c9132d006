// IsaKernels in AVX2 with FMA and F16C.
#if defined(__x86_64__)
#define RC_LANES "kernels/cpu/lanes_avx2.h"
#include "kernels/cpu/isa_impl.h"

namespace rollcast::cpu {

const IsaKernels kAvx2Kernels = {"avx2",         Product,       RmsNorm,         Convert, SiluMul,
                                 AttentionSlice, AttentionFold, SliceStatistics, Draw,    Digest};

}  // namespace rollcast::cpu
#endif  // __x86_64__
