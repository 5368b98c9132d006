// The tables of the CPU kernels: one instruction set each, for products, attention and the rest.
#pragma once

#include "kernels/cpu/isa_kernels.h"
#include "kernels/dispatch.h"

namespace rollcast {
struct BackendOptions;
}

namespace rollcast::cpu {

/// What a processor has.
struct CpuAxes {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, VL and DQ, with avx2
};

/// Of the processor that runs this.
CpuAxes ThisProcessor();

/// The best that it runs: for what belongs to no backend.
const IsaKernels& ProcessorKernels();

/// op "isa" (all that has no key of its own), "linear" or "attention".
const OpFamily<CpuAxes>& FamilyOf(const char* op);

/// The kernels of one backend. linear and attention follow `isa` where they are not named.
struct CpuKernels {
  IsaKernels all;  // put together from the three
  KernelChoice<CpuAxes> isa, linear, attention;
};

/// Throws Error for a name that is no kernel, or one that the processor cannot run.
CpuKernels ChooseKernels(const BackendOptions& options, const CpuAxes& processor);

}  // namespace rollcast::cpu
