#include "kernels/cuda/tensor_maps.h"

#include "kernels/cuda/cuda_device.h"

namespace rollcast::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

CUtensorMap MakeMap(void* encode, const void* data, int rank, const cuuint64_t* extents,
                    const cuuint64_t* strides, const cuuint32_t* box) {
  const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = reinterpret_cast<Encode>(encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void*>(data), extents, strides, box,
      ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw CudaError(StrCat("cuTensorMapEncodeTiled: code ", static_cast<int>(result),
                           " for a tensor of rank ", rank, ", extents ", extents[0], " and ",
                           extents[1]));
  return map;
}

}  // namespace

TensorMaps::TensorMaps() : encode_(FindDriverFunction("cuTensorMapEncodeTiled")) {}

const CUtensorMap& TensorMaps::Matrix(const void* data, int64_t rows, int64_t K, int box_rows) {
  const auto [place, fresh] = matrices_.try_emplace(Key{data, rows, K, box_rows});
  if (fresh) {
    const cuuint64_t extents[2] = {static_cast<cuuint64_t>(K), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(K * 2)};
    const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
    place->second = MakeMap(encode_, data, 2, extents, strides, box);
  }
  return place->second;
}

const CUtensorMap& TensorMaps::GateUp(const void* data, int64_t half_rows, int64_t K, int groups) {
  const auto [place, fresh] = gate_ups_.try_emplace(Key{data, half_rows, K, groups});
  if (fresh) {
    const cuuint64_t row = static_cast<cuuint64_t>(K * 2);
    const cuuint64_t extents[4] = {static_cast<cuuint64_t>(K), 8, 2,
                                   static_cast<cuuint64_t>(half_rows / 8)};
    const cuuint64_t strides[3] = {row, row * half_rows, row * 8};
    const cuuint32_t box[4] = {64, 8, 2, static_cast<cuuint32_t>(groups)};
    place->second = MakeMap(encode_, data, 4, extents, strides, box);
  }
  return place->second;
}

}  // namespace rollcast::cuda
