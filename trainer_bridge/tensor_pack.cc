#include "trainer_bridge/tensor_pack.h"

#include "kernels/float_convert.h"

namespace rollcast {

NamedTensor TensorPack::Add(const WireManifest& manifest, const NamedTensor& tensor) {
  DeviceSet devices;
  const UpdatePlan plan = MakeUpdatePlan(manifest, /*partial=*/true, {},
                                         std::span<const NamedTensor>(&tensor, 1), devices);
  const SourceTensor& source = plan.sources.front();
  std::vector<std::byte>& copy = copies_[tensor.name];
  copy.resize(static_cast<size_t>(plan.bytes));
  if (!ConvertFloats(source.data, source.dtype, copy.data(), source.wire_dtype,
                     static_cast<size_t>(source.elements)))
    throw Error(StrCat("tensor ", tensor.name, " changed while it was being copied"));
  return {tensor.name, source.wire_dtype, tensor.shape, copy.data()};
}

}  // namespace rollcast
