#include "trainer_bridge/tensor_pack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/testing/expect_error.h"

namespace rollcast {
namespace {

using testing::ExpectError;

WireManifest Manifest() {
  WireManifest manifest;
  manifest.entries = {{"embed", DType::kBF16, {2, 2}, 0, 8}, {"norm", DType::kF16, {2}, 256, 4}};
  manifest.aliases = {{"head", "embed"}};
  return manifest;
}

std::vector<uint16_t> Bits(const NamedTensor& tensor) {
  std::vector<uint16_t> bits(static_cast<size_t>(tensor.shape.NumElements()));
  std::memcpy(bits.data(), tensor.data, bits.size() * sizeof(bits[0]));
  return bits;
}

TEST(TensorPack, CopiesInTheDtypeOfTheRanks) {
  TensorPack pack;
  std::vector<float> values = {1, -2, 0.5f, 3};
  const NamedTensor copy = pack.Add(Manifest(), {"embed", DType::kF32, {2, 2}, values.data()});
  EXPECT_EQ(copy.name, "embed");
  EXPECT_EQ(copy.dtype, DType::kBF16);
  EXPECT_EQ(copy.shape, (Shape{2, 2}));
  values.assign(4, 7);
  EXPECT_EQ(Bits(copy), (std::vector<uint16_t>{0x3f80, 0xc000, 0x3f00, 0x4040}));

  const std::vector<uint16_t> halves = {0x3c00, 0x3800};
  EXPECT_EQ(Bits(pack.Add(Manifest(), {"norm", DType::kF16, {2}, halves.data()})), halves);
  // A second name has memory of its own: the update compares the two.
  const NamedTensor head = pack.Add(Manifest(), {"head", DType::kF32, {2, 2}, values.data()});
  EXPECT_EQ(head.dtype, DType::kBF16);
  EXPECT_NE(head.data, copy.data);
}

TEST(TensorPack, KeepsTheMemoryOfAName) {
  TensorPack pack;
  const std::vector<float> first = {1, 1}, second = {2, 2};
  const NamedTensor a = pack.Add(Manifest(), {"norm", DType::kF32, {2}, first.data()});
  pack.Add(Manifest(), {"embed", DType::kF32, {2, 2}, std::vector<float>(4).data()});
  const NamedTensor b = pack.Add(Manifest(), {"norm", DType::kF32, {2}, second.data()});
  EXPECT_EQ(a.data, b.data);
  EXPECT_EQ(Bits(a), (std::vector<uint16_t>{0x4000, 0x4000}));
}

TEST(TensorPack, NamesWhatDoesNotFit) {
  TensorPack pack;
  const std::vector<float> values = {1, 70000, 1, 1};
  const auto add = [&](const char* name, Shape shape) {
    return [&pack, &values, name, shape] {
      pack.Add(Manifest(), {name, DType::kF32, shape, values.data()});
    };
  };
  ExpectError(add("norm", {2}),
              {"tensor norm: element 1 of float32 is beyond the range of the model's float16"});
  ExpectError(add("norm", {4}), {"tensor norm: shape [4], expected [2]"});
  ExpectError(add("other", {2}), {"tensor other: the model has no tensor of this name"});
}

}  // namespace
}  // namespace rollcast
