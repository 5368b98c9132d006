#include "kernels/cpu/families.h"

#include <cstring>

#include "kernels/backend.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rollcast::cpu {

namespace {

OpFamily<CpuAxes> Table(const char* op) {
  return {op,
          {{"avx512",
            {{[](const CpuAxes& a) { return a.avx512; },
              [](const CpuAxes&) {
                return std::string("this processor does not have avx512 (F, BW, VL and DQ)");
              }}}},
           {"avx2",
            {{[](const CpuAxes& a) { return a.avx2; },
              [](const CpuAxes&) {
                return std::string("this processor does not have avx2 with FMA and F16C");
              }}}},
           {"plain", {}}}};
}

const IsaKernels& KernelsAt(int place) {
#if defined(__x86_64__)
  if (place == 0) return kAvx512Kernels;
  if (place == 1) return kAvx2Kernels;
#endif
  RC_CHECK_EQ(place, 2);
  return kPlainKernels;
}

}  // namespace

CpuAxes ThisProcessor() {
  CpuAxes axes;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Clang 14 does not know "f16c" here: CPUID leaf 1, ECX bit 29.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
  axes.avx2 = f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  axes.avx512 = axes.avx2 && __builtin_cpu_supports("avx512f") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq");
#endif
  return axes;
}

const IsaKernels& ProcessorKernels() {
  static const IsaKernels& best = KernelsAt(
      KernelChoice<CpuAxes>(FamilyOf("isa"), Profile::kInvariant, "auto").Choose(ThisProcessor()));
  return best;
}

const OpFamily<CpuAxes>& FamilyOf(const char* op) {
  static const OpFamily<CpuAxes> isa = Table("isa"), linear = Table("linear"),
                                 attention = Table("attention");
  for (const OpFamily<CpuAxes>* family : {&isa, &linear, &attention})
    if (family->op() == op) return *family;
  RC_CHECK(false, op);
  return isa;
}

CpuKernels ChooseKernels(const BackendOptions& options, const CpuAxes& processor) {
  const Profile profile = ParseProfile(options.profile);
  const KernelChoice<CpuAxes> isa(FamilyOf("isa"), profile, options.isa);
  const auto of = [&](const char* op, const std::string& name) {
    const KernelChoice<CpuAxes> own(FamilyOf(op), profile, name);
    return name == "auto" && options.isa != "auto" ? isa : own;
  };
  CpuKernels out{{}, isa, of("linear", options.linear), of("attention", options.attention)};
  out.all = KernelsAt(isa.Choose(processor));
  out.all.product = KernelsAt(out.linear.Choose(processor)).product;
  const IsaKernels& attention = KernelsAt(out.attention.Choose(processor));
  out.all.attention_slice = attention.attention_slice;
  out.all.attention_fold = attention.attention_fold;
  return out;
}

}  // namespace rollcast::cpu
