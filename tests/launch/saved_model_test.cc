#include "launch/saved_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "engine/mapped_file.h"
#include "engine/model_config.h"
#include "launch/toy_model.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

namespace fs = std::filesystem;
using testing::ExpectError;

class SavedModelTest : public ::testing::Test {
 protected:
  SavedModelTest() {
    MakeToyModel(from_, 3);
    const ModelConfig config = ModelConfig::Load(from_);
    head_.resize(static_cast<size_t>(config.vocab_size) * static_cast<size_t>(config.hidden_size));
    for (size_t i = 0; i < head_.size(); ++i) head_[i] = static_cast<uint16_t>(i);
    norm_.assign(static_cast<size_t>(config.hidden_size), 0x3f80);
    updated_ = {{"model.norm.weight",
                 DType::kBF16,
                 {config.hidden_size},
                 std::as_bytes(std::span<const uint16_t>(norm_))},
                {"lm_head.weight",
                 DType::kBF16,
                 {config.vocab_size, config.hidden_size},
                 std::as_bytes(std::span<const uint16_t>(head_))}};
  }

  std::set<std::string> Names(const fs::path& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder))
      names.insert(entry.path().filename().string());
    return names;
  }

  testing::TemporaryDir dir_;
  const fs::path from_ = dir_.path() / "model", to_ = dir_.path() / "saved";
  std::vector<uint16_t> norm_, head_;
  std::vector<HostTensor> updated_;
};

TEST_F(SavedModelTest, HoldsTheUpdatedTensorsTheOthersAndEverySmallFile) {
  std::ofstream(from_ / "chat_template.jinja") << "{{ messages }}";
  std::ofstream(from_ / "old.bin") << "weights";
  SaveModel(from_, to_, updated_, false);
  std::set<std::string> expected = Names(from_);
  expected.erase("old.bin");
  EXPECT_EQ(Names(to_), expected);
  EXPECT_EQ(ReadTextFile(to_ / "tokenizer.json"), ReadTextFile(from_ / "tokenizer.json"));

  const ModelConfig before = ModelConfig::Load(from_), after = ModelConfig::Load(to_);
  ASSERT_TRUE(before.tied_head);
  EXPECT_FALSE(after.tied_head);
  EXPECT_EQ(after.vocab_size, before.vocab_size);
  EXPECT_EQ(after.rms_eps, before.rms_eps);

  const Checkpoint source = Checkpoint::Open(from_), saved = Checkpoint::Open(to_);
  EXPECT_EQ(saved.tensors().size(), source.tensors().size() + 1);
  for (const HostTensor& tensor : updated_) {
    const Checkpoint::Tensor* found = saved.Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape);
    ASSERT_EQ(found->bytes.size(), tensor.bytes.size());
    EXPECT_EQ(std::memcmp(found->bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0);
  }
  for (const Checkpoint::Tensor& tensor : source.tensors()) {
    if (tensor.name == "model.norm.weight") continue;
    const Checkpoint::Tensor* found = saved.Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->dtype, tensor.dtype);
    ASSERT_EQ(found->bytes.size(), tensor.bytes.size());
    EXPECT_EQ(std::memcmp(found->bytes.data(), tensor.bytes.data(), tensor.bytes.size()), 0);
  }
}

TEST_F(SavedModelTest, ReplacesAModelFolderWholeAndNothingElse) {
  SaveModel(from_, to_, updated_, false);
  std::ofstream(to_ / "stale.txt") << "of the earlier run";
  ExpectError([&] { SaveModel(from_, to_, updated_, false); }, {to_.string() + ": exists already"});
  head_[0] = 0x4000;
  SaveModel(from_, to_, updated_, true);
  EXPECT_EQ(Names(to_), Names(from_));
  uint16_t first = 0;
  const Checkpoint saved = Checkpoint::Open(to_);
  std::memcpy(&first, saved.Find("lm_head.weight")->bytes.data(), sizeof(first));
  EXPECT_EQ(first, 0x4000);

  const fs::path mine = dir_.path() / "mine";
  fs::create_directory(mine);
  std::ofstream(mine / "thesis.txt") << "x";
  ExpectError([&] { SaveModel(from_, mine, updated_, true); }, {"is no model folder"});
  EXPECT_EQ(Names(mine), (std::set<std::string>{"thesis.txt"}));
  EXPECT_EQ(Names(dir_.path()), (std::set<std::string>{"mine", "model", "saved"}));
}

TEST_F(SavedModelTest, AFailureLeavesNothing) {
  fs::remove(from_ / "config.json");
  ExpectError([&] { SaveModel(from_, to_, updated_, false); }, {"config.json"});
  EXPECT_EQ(Names(dir_.path()), (std::set<std::string>{"model"}));
}

TEST_F(SavedModelTest, WhatCannotBeSavedToIsFoundOutBefore) {
  EXPECT_NO_THROW(CheckSaveFolder(from_, dir_.path() / "a" / "b", false));
  EXPECT_TRUE(fs::is_directory(dir_.path() / "a"));
  EXPECT_FALSE(fs::exists(dir_.path() / "a" / "b"));
  ExpectError([&] { CheckSaveFolder(from_, from_ / ".", true); }, {"is the model that is trained"});
  ExpectError([&] { CheckSaveFolder(from_, from_ / "config.json", true); }, {"is no model folder"});
  ExpectError([&] { CheckSaveFolder(from_, from_ / "config.json" / "x", false); },
              {"cannot be created"});
  ExpectError([&] { CheckSaveFolder(from_, "/proc/x", false); }, {"/proc/x: cannot be created"});
  EXPECT_EQ(Names(dir_.path()), (std::set<std::string>{"a", "model"}));
  EXPECT_TRUE(fs::is_empty(dir_.path() / "a"));
}

}  // namespace
}  // namespace rollcast
