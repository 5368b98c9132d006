// Products with a weight matrix: ProjectAdd, MlpInput, and what the other ops use of them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/cpu/cpu_ops.h"

namespace rollcast::cpu {

float* Scratch::Get(size_t count) {
  if (count > size_) {
    const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    data_.reset();
    size_ = 0;
    data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw Error(StrCat("no memory for ", bytes, " bytes of workspace"));
    size_ = count;
  }
  return data_.get();
}

void Scratch::Free::operator()(float* p) const { std::free(p); }

WeightType TypeOf(const TensorView& weight) {
  switch (weight.dtype) {
    case DType::kF32:
      return WeightType::kF32;
    case DType::kF16:
      return WeightType::kF16;
    case DType::kBF16:
      return WeightType::kBF16;
    default:
      break;
  }
  RC_CHECK(false, "weights are float32, float16 or bfloat16, not ", Name(weight.dtype));
  return WeightType::kF32;
}

const std::vector<int32_t>& ActiveRows(CpuContext& context, const RaggedBatch& batch) {
  context.rows.clear();
  for (int i = 0; i < batch.num_rows; ++i)
    if (batch.position[i] >= 0) context.rows.push_back(i);
  return context.rows;
}

namespace {

// Fewer rows than this are packed by the caller: waking the others costs more.
constexpr int kParallelRows = 32;

int64_t Padded(int k) { return (k + kLanes - 1) / kLanes * kLanes; }

const uint8_t* RowOf(const TensorView& weight, int64_t row, int64_t k) {
  return weight.as<uint8_t>() + row * k * static_cast<int64_t>(SizeOf(weight.dtype));
}

void CheckWeight(const TensorView& weight, int64_t n, int64_t k) {
  RC_CHECK(!weight.empty());
  RC_CHECK(weight.shape == Shape({n, k}), ToString(weight.shape), " against [", n, ", ", k, "]");
}

void CheckVector(const TensorView& vector, int64_t n) {
  if (!vector.empty()) RC_CHECK_EQ(vector.shape.NumElements(), n);
}

}  // namespace

const float* PackRows(CpuContext& context, const float* src, int64_t stride, int k,
                      const int32_t* rows, int count, const TensorView* norm, float eps) {
  const int64_t padded = Padded(k);
  float* packed = context.packed.Get(count * padded);
  const auto pack = [&](int i) {
    const int block = i / kRowBlock * kRowBlock;
    const int64_t step = kLanes * std::min(kRowBlock, count - block);
    float* out = packed + block * padded + (i - block) * kLanes;
    const float* x = src + rows[i] * stride;
    if (norm != nullptr) {
      context.isa.rms_norm(x, k, norm->data, TypeOf(*norm), eps, out, step);
      return;
    }
    for (int j = 0; j < k; j += kLanes, out += step) {
      const int n = std::min(kLanes, k - j);
      std::memcpy(out, x + j, n * sizeof(float));
      std::fill(out + n, out + kLanes, 0.0f);
    }
  };
  if (count < kParallelRows) {
    for (int i = 0; i < count; ++i) pack(i);
  } else {
    const int parts = (count + kRowBlock - 1) / kRowBlock;
    context.pool.ParallelFor(parts, [&](int part, int) {
      for (int i = part * kRowBlock; i < std::min(count, (part + 1) * kRowBlock); ++i) pack(i);
    });
  }
  return packed;
}

int PartColumns(int num_columns, int num_rows) {
  // A multiple of every tile width; large enough that a claim is cheap beside the work.
  int columns = num_rows >= 8 ? 48 : 96;
  while (num_columns / columns >= ThreadPool::kMaxParts || num_columns / columns > 512)
    columns *= 2;
  return columns;
}

void Product(const CpuContext& context, const float* packed, int first_row, int num_rows, int k,
             const TensorView& weight, int begin, int end, float* out, int64_t out_stride) {
  ProductArgs args;
  args.x = packed + first_row * Padded(k);
  args.num_rows = num_rows;
  args.k = k;
  args.weight = RowOf(weight, begin, k);
  args.type = TypeOf(weight);
  args.num_columns = end - begin;
  args.out = out;
  args.out_stride = out_stride;
  context.isa.product(args);
}

void LoadBias(const CpuContext& context, const TensorView& bias, int begin, int end, float* out) {
  if (bias.empty())
    std::fill(out, out + (end - begin), 0.0f);
  else
    context.isa.convert(RowOf(bias, begin, 1), TypeOf(bias), end - begin, 1.0f, out);
}

void ProjectAdd(CpuContext& context, const ProjectAddArgs& args) {
  const int n = static_cast<int>(args.weight.shape[0]), k = args.k;
  CheckWeight(args.weight, n, k);
  CheckVector(args.bias, n);
  const std::vector<int32_t>& rows = ActiveRows(context, *args.batch);
  const int count = static_cast<int>(rows.size());
  if (count == 0) return;
  const float* packed =
      PackRows(context, static_cast<const float*>(args.x), k, k, rows.data(), count, nullptr, 0);
  const int columns = PartColumns(n, count);
  for (Scratch& tile : context.tiles) tile.Get((kRowGroup + 1) * columns);
  context.pool.ParallelFor((n + columns - 1) / columns, [&](int part, int thread) {
    const int begin = part * columns, end = std::min(n, begin + columns);
    float* tile = context.tiles[thread].Get(0);
    float* bias = tile + kRowGroup * columns;
    if (!args.bias.empty()) LoadBias(context, args.bias, begin, end, bias);
    for (int first = 0; first < count; first += kRowGroup) {
      const int group = std::min(kRowGroup, count - first);
      Product(context, packed, first, group, k, args.weight, begin, end, tile, columns);
      for (int r = 0; r < group; ++r) {
        float* hidden = args.hidden + static_cast<int64_t>(rows[first + r]) * n + begin;
        float* product = tile + r * columns;
        if (!args.bias.empty())
          for (int j = 0; j < end - begin; ++j) product[j] += bias[j];
        for (int j = 0; j < end - begin; ++j) hidden[j] += product[j];
      }
    }
  });
}

void MlpInput(CpuContext& context, const MlpInputArgs& args) {
  const int n = args.intermediate, k = args.hidden_size;
  CheckWeight(args.gate_up, 2 * static_cast<int64_t>(n), k);
  CheckVector(args.gate_up_bias, 2 * static_cast<int64_t>(n));
  RC_CHECK_EQ(args.norm.shape.NumElements(), k);
  const std::vector<int32_t>& rows = ActiveRows(context, *args.batch);
  const int count = static_cast<int>(rows.size());
  if (count == 0) return;
  const float* packed =
      PackRows(context, args.hidden, k, k, rows.data(), count, &args.norm, args.rms_eps);
  const int columns = PartColumns(n, count);
  for (Scratch& tile : context.tiles) tile.Get((2 * kRowGroup + 2) * columns);
  context.pool.ParallelFor((n + columns - 1) / columns, [&](int part, int thread) {
    const int begin = part * columns, end = std::min(n, begin + columns), width = end - begin;
    float* gate = context.tiles[thread].Get(0);
    float* up = gate + kRowGroup * columns;
    float* gate_bias = up + kRowGroup * columns;
    float* up_bias = gate_bias + columns;
    const bool biased = !args.gate_up_bias.empty();
    if (biased) {
      LoadBias(context, args.gate_up_bias, begin, end, gate_bias);
      LoadBias(context, args.gate_up_bias, n + begin, n + end, up_bias);
    }
    for (int first = 0; first < count; first += kRowGroup) {
      const int group = std::min(kRowGroup, count - first);
      Product(context, packed, first, group, k, args.gate_up, begin, end, gate, columns);
      Product(context, packed, first, group, k, args.gate_up, n + begin, n + end, up, columns);
      for (int r = 0; r < group; ++r) {
        float* g = gate + r * columns;
        float* u = up + r * columns;
        if (biased) {
          for (int j = 0; j < width; ++j) g[j] += gate_bias[j];
          for (int j = 0; j < width; ++j) u[j] += up_bias[j];
        }
        context.isa.silu_mul(
            g, u, width,
            static_cast<float*>(args.out) + static_cast<int64_t>(rows[first + r]) * n + begin);
      }
    }
  });
}

}  // namespace rollcast::cpu
