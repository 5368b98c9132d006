// IsaKernels in AVX-512.
#if defined(__x86_64__)
#define RC_LANES "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/isa_impl.h"

namespace rollcast::cpu {

const IsaKernels kAvx512Kernels = {"avx512",       Product,       RmsNorm,         Convert, SiluMul,
                                   AttentionSlice, AttentionFold, SliceStatistics, Draw,    Digest};

}  // namespace rollcast::cpu
#endif  // __x86_64__
