// IsaKernels in plain C++.

#define RC_LANES "kernels/cpu/lanes_plain.h"
#include "kernels/cpu/isa_impl.h"

namespace rollcast::cpu {

const IsaKernels kPlainKernels = {"plain",        Product,       RmsNorm,         Convert, SiluMul,
                                  AttentionSlice, AttentionFold, SliceStatistics, Draw,    Digest};

}  // namespace rollcast::cpu
