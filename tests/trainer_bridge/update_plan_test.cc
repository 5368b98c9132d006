#include "trainer_bridge/update_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/float_convert.h"
#include "tests/testing/test_devices.h"
#include "tests/testing/toy_update_target.h"

namespace rollcast {
namespace {

using testing::MakeTensors;
using testing::TensorSet;
using testing::ToyUpdateTarget;

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kNorm = "model.norm.weight";

class UpdatePlanTest : public ::testing::Test {
 protected:
  std::string WhyRefused(bool partial, const std::vector<std::string>& names = {}) {
    try {
      MakeUpdatePlan(manifest_, partial, names, set_.tensors, devices_);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  NamedTensor& Tensor(const std::string& name) {
    return *std::find_if(set_.tensors.begin(), set_.tensors.end(),
                         [&](const NamedTensor& tensor) { return tensor.name == name; });
  }
  void Remove(const std::string& name) {
    std::erase_if(set_.tensors, [&](const NamedTensor& tensor) { return tensor.name == name; });
  }

  WireManifest manifest_ = ToyUpdateTarget::Manifest();
  TensorSet set_ = MakeTensors(manifest_, 1);
  DeviceSet devices_;
};

TEST_F(UpdatePlanTest, AnyOrderBecomesManifestOrder) {
  const UpdatePlan plan = MakeUpdatePlan(manifest_, false, {}, set_.tensors, devices_);
  EXPECT_EQ(plan.carried, (std::vector<uint32_t>{0, 1, 2, 3, 4}));
  ASSERT_EQ(plan.sources.size(), 5u);
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(plan.sources[i].data, set_.at(manifest_.entries[i].name).data);
  EXPECT_EQ(plan.bytes, 17 * 12 * 2 + 12 * 4 + 24 * 12 * 2 + 30 * 12 * 2 + 12 * 2);
}

TEST_F(UpdatePlanTest, WhatDoesNotFitIsNamed) {
  Tensor(kNorm).shape = {13};
  EXPECT_EQ(WhyRefused(false), "tensor model.norm.weight: shape [13], expected [12]");
  Tensor(kNorm).shape = {12};
  Tensor(kNorm).dtype = DType::kI32;
  EXPECT_EQ(WhyRefused(false),
            "tensor model.norm.weight: dtype int32 cannot become the model's bfloat16; expected "
            "float32, float16 or bfloat16");
  Tensor(kNorm).dtype = DType::kBF16;
  Tensor(kNorm).data = nullptr;
  EXPECT_EQ(WhyRefused(false), "tensor model.norm.weight: no data");
  Remove(kNorm);
  EXPECT_EQ(WhyRefused(false), "tensor model.norm.weight: missing from a whole update");
  set_.Add(kNorm, DType::kBF16, {12}, std::vector<std::byte>(24));
  set_.Add(kNorm, DType::kBF16, {12}, std::vector<std::byte>(24));
  EXPECT_EQ(WhyRefused(false), "tensor model.norm.weight: given twice");
  set_.tensors.pop_back();
  set_.Add("model.norm.bias", DType::kBF16, {12}, std::vector<std::byte>(24));
  EXPECT_EQ(WhyRefused(false), "tensor model.norm.bias: the model has no tensor of this name");
}

TEST_F(UpdatePlanTest, AValueBeyondFloat16IsRefusedBeforeAnythingIsSent) {
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  std::vector<float> values(30 * 12, 1.0f);
  values[7] = 70000.0f;
  Tensor(name).dtype = DType::kF32;
  Tensor(name).data = values.data();
  EXPECT_EQ(WhyRefused(false), "tensor " + name +
                                   ": element 7 of float32 is beyond the range of the model's "
                                   "float16");
}

TEST_F(UpdatePlanTest, APartialUpdateCarriesWhatIsGivenOrExactlyWhatItNames) {
  set_.tensors.resize(2);  // norm and up_proj: reverse order
  const UpdatePlan plan = MakeUpdatePlan(manifest_, true, {}, set_.tensors, devices_);
  EXPECT_EQ(plan.carried, (std::vector<uint32_t>{3, 4}));
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(WhyRefused(true, {kNorm, up}), "");
  EXPECT_EQ(WhyRefused(true, {kNorm}), "tensor " + up + ": the partial update does not name it");
  EXPECT_EQ(WhyRefused(true, {kNorm, up, kEmbedding}),
            "tensor model.embed_tokens.weight: missing from a partial update that names it");
  EXPECT_EQ(WhyRefused(true, {"nothing"}), "tensor nothing: the model has no tensor of this name");
  EXPECT_EQ(WhyRefused(false, {kNorm}),
            "a list of tensor names belongs to a partial update; this one is whole");
  set_.tensors.clear();
  EXPECT_EQ(WhyRefused(true), "a partial update that carries no tensor");
}

TEST_F(UpdatePlanTest, ATiedAliasIsSkippedOrStandsForItsTarget) {
  const NamedTensor embedding = set_.at(kEmbedding);
  NamedTensor head = embedding;
  head.name = "lm_head.weight";
  set_.tensors.push_back(head);  // the same memory, as a tied PyTorch model has it
  EXPECT_EQ(WhyRefused(false), "");

  const auto* begin = static_cast<const std::byte*>(embedding.data);
  std::vector<std::byte> copy(begin, begin + 17 * 12 * 2);
  set_.tensors.back().data = copy.data();
  EXPECT_EQ(WhyRefused(false), "");
  copy[100] ^= std::byte{1};
  EXPECT_EQ(WhyRefused(false),
            "tensor lm_head.weight: differs from model.embed_tokens.weight, but the model ties the "
            "two");

  Remove(kEmbedding);
  const UpdatePlan plan = MakeUpdatePlan(manifest_, false, {}, set_.tensors, devices_);
  EXPECT_EQ(plan.sources[0].data, copy.data());
  set_.tensors = {set_.tensors.back()};
  EXPECT_EQ(WhyRefused(true, {"lm_head.weight"}), "");
}

/// The same checks where the trainer's tensors are in a device's memory.
class DeviceUpdatePlanTest : public UpdatePlanTest,
                             public ::testing::WithParamInterface<std::string> {
 protected:
  NamedTensor OnDevice(const std::string& name, const std::vector<float>& values) {
    memory_.push_back(
        std::make_unique<testing::DeviceBytes>(*transfer_, std::as_bytes(std::span(values))));
    return {name, DType::kF32, manifest_.entries[static_cast<size_t>(manifest_.Find(name))].shape,
            memory_.back()->data()};
  }

  std::unique_ptr<DeviceTransfer> transfer_ = MakeDeviceTransfer(GetParam());
  std::vector<std::unique_ptr<testing::DeviceBytes>> memory_;
};

TEST_P(DeviceUpdatePlanTest, TheElementThatDoesNotFitIsNamed) {
  const std::string up = "model.layers.0.mlp.up_proj.weight";  // float16
  std::vector<float> values(30 * 12, 1.5f);
  Tensor(up) = OnDevice(up, values);
  EXPECT_EQ(WhyRefused(false), "");
  values[359] = 65520.0f;
  Tensor(up) = OnDevice(up, values);
  EXPECT_EQ(WhyRefused(false), "tensor " + up +
                                   ": element 359 of float32 is beyond the range of the model's "
                                   "float16");
  values[359] = std::numeric_limits<float>::infinity();
  Tensor(up) = OnDevice(up, values);
  EXPECT_EQ(WhyRefused(false), "");
}

TEST_P(DeviceUpdatePlanTest, TiedTensorsAreComparedAfterTheCast) {
  std::vector<float> values(17 * 12);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>(i);
  Tensor(kEmbedding) = OnDevice(kEmbedding, values);
  set_.tensors.push_back(OnDevice(kEmbedding, values));
  set_.tensors.back().name = "lm_head.weight";
  EXPECT_EQ(WhyRefused(false), "");
  // The head as bfloat16 on the host, the embedding as float32 on the device.
  std::vector<uint16_t> stored(values.size());
  ASSERT_TRUE(
      ConvertFloats(values.data(), DType::kF32, stored.data(), DType::kBF16, values.size()));
  set_.tensors.back().data = stored.data();
  set_.tensors.back().dtype = DType::kBF16;
  EXPECT_EQ(WhyRefused(false), "");
  stored.back() ^= 1;
  EXPECT_EQ(WhyRefused(false),
            "tensor lm_head.weight: differs from model.embed_tokens.weight, but the model ties the "
            "two");
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceUpdatePlanTest,
                         ::testing::ValuesIn(testing::TransferDevices()),
                         [](const auto& info) { return info.param.substr(0, 4); });

}  // namespace
}  // namespace rollcast
