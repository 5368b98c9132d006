// The ops of the CPU backend, one family a file, and what they share.
//
// This backend is the specification of the ops. Its bit contract: what is computed for a row
// depends on that row's sequence only, never on its batch mates, its place, the chunking of its
// prompt, the number of threads, or the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace rollcast::cpu {

/// A block of floats, 64-byte aligned, that grows and never shrinks; its content is not kept.
class Scratch {
 public:
  float* Get(size_t count);

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float, Free> data_;
  size_t size_ = 0;
};

struct CpuContext {
  CpuContext(const IsaKernels& isa_kernels, int threads)
      : isa(isa_kernels), pool(threads), tiles(threads) {}

  const IsaKernels isa;
  ThreadPool pool;
  std::vector<int32_t> rows;    // active rows of the op that is running
  Scratch packed;               // input rows of a product
  Scratch wide;                 // rows of a product that are needed whole
  Scratch partial;              // slices of attention; adjusted logits
  std::vector<Scratch> tiles;   // [threads]
  std::vector<int32_t> counts;  // [vocab] zeros between uses
};

WeightType TypeOf(const TensorView& weight);

/// Fills context.rows with the rows of the batch whose position is not -1, and returns it.
const std::vector<int32_t>& ActiveRows(CpuContext& context, const RaggedBatch& batch);

/// Packs rows src[rows[i] * stride ..] of k floats as ProductArgs::x has it, into context.packed.
/// With `norm`, each is divided by its root mean square and multiplied by the weights first.
const float* PackRows(CpuContext& context, const float* src, int64_t stride, int k,
                      const int32_t* rows, int count, const TensorView* norm, float eps);

/// Columns of a product that one part computes.
int PartColumns(int num_columns, int num_rows);
constexpr int kRowGroup = 64;  // rows of one tile of output; a multiple of kRowBlock

/// out[r, j - begin] = packed row first_row + r . weight row j, for j in [begin, end), by the
/// calling thread.
void Product(const CpuContext& context, const float* packed, int first_row, int num_rows, int k,
             const TensorView& weight, int begin, int end, float* out, int64_t out_stride);

/// A bias as floats: out[i] = bias[begin + i]; zeros when it is empty.
void LoadBias(const CpuContext& context, const TensorView& bias, int begin, int end, float* out);

void Embed(CpuContext& context, const EmbedArgs& args);
void AttentionInput(CpuContext& context, const AttentionInputArgs& args);
void Attention(CpuContext& context, const AttentionArgs& args);
void ProjectAdd(CpuContext& context, const ProjectAddArgs& args);
void MlpInput(CpuContext& context, const MlpInputArgs& args);
void HeadSample(CpuContext& context, const HeadSampleArgs& args);
void Advance(CpuContext& context, const AdvanceArgs& args);

}  // namespace rollcast::cpu
