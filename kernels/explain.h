// Which kernels a decode step takes and why, without a device and without weights.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/dispatch.h"

namespace rollcast {

/// Sizes of a decode step: `batch` sequences, one row each.
struct StepSizes {
  int batch = 0;
  int hidden = 0, intermediate = 0, vocab = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int max_context = 0;  // tokens a sequence may have
};

/// One op, or the product in it.
struct KernelUse {
  std::string op;
  std::string what;    // "q, k, v", or what an op without a product does
  int N = 0, K = 0;    // of the weight; 0: no product
  std::string kernel;  // its name in the table; empty: the op has one kernel, and no table
  std::string cut;     // how its work is spread
  std::vector<PassedOver> passed_over;
};

struct Explanation {
  std::string device;         // "cuda, sm_90a (132 multiprocessors, as an H200)"
  bool in_this_build = true;  // false: a build with CUDA would do this
  std::vector<KernelUse> uses;
};

/// For options.device cpu (on this processor), cuda or cuda:N (on a device of `arch`: sm_90a or
/// sm_80, asked of no driver) or auto (what MakeBackend takes). Throws Error for names that are not
/// known, and for a kernel asked for by name whose condition fails.
Explanation ExplainDecode(const BackendOptions& options, const StepSizes& sizes,
                          const std::string& arch);

}  // namespace rollcast
