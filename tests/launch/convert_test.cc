#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/mapped_file.h"
#include "engine/safetensors.h"
#include "engine/weight_store.h"
#include "kernels/float_convert.h"
#include "launch/convert_command.h"
#include "launch/signals.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/gguf_image.h"
#include "tests/testing/memory_backend.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using nlohmann::json;
using testing::ExpectError;
using testing::GgufImage;

/// A one-layer Llama of hidden 8, 2 heads of 4 over 1 KV head, 5 tokens; every element of a float32
/// matrix is 100 * row + column, so that rows can be told apart.
class TinyGguf {
 public:
  std::vector<std::string> tokens{"<|end|>", "a", "b", "ab", "<tool>"};
  std::vector<int32_t> types{3, 1, 1, 1, 4};
  std::vector<std::string> merges{"a b"};
  std::string architecture = "llama", pre = "smollm";
  std::string extra_key;     // a metadata key more
  std::string extra_tensor;  // a tensor more
  std::string left_out;      // a tensor less
  uint64_t norm_elements = 8;

  std::string Bytes() const {
    struct Entry {
      std::string name;
      uint64_t rows, columns;
    };
    std::vector<Entry> entries{
        {"token_embd.weight", 5, 8},        {"output_norm.weight", 1, norm_elements},
        {"blk.0.attn_norm.weight", 1, 8},   {"blk.0.attn_q.weight", 8, 8},
        {"blk.0.attn_k.weight", 4, 8},      {"blk.0.attn_v.weight", 4, 8},
        {"blk.0.attn_output.weight", 8, 8}, {"blk.0.ffn_norm.weight", 1, 8},
        {"blk.0.ffn_gate.weight", 6, 8},    {"blk.0.ffn_up.weight", 6, 8},
        {"blk.0.ffn_down.weight", 8, 6}};
    if (!extra_tensor.empty()) entries.push_back({extra_tensor, 1, 8});
    std::erase_if(entries, [&](const Entry& e) { return e.name == left_out; });
    GgufImage image;
    image.Header(entries.size(), extra_key.empty() ? 15 : 16);
    image.StringValue("general.architecture", architecture);
    image.U32Value("llama.block_count", 1).U32Value("llama.context_length", 64);
    image.U32Value("llama.embedding_length", 8).U32Value("llama.feed_forward_length", 6);
    image.U32Value("llama.attention.head_count", 2).U32Value("llama.attention.head_count_kv", 1);
    image.F32Value("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    image.F32Value("llama.rope.freq_base", 50000.0f);
    image.StringValue("tokenizer.ggml.model", "gpt2").StringValue("tokenizer.ggml.pre", pre);
    image.StringsValue("tokenizer.ggml.tokens", tokens);
    image.I32sValue("tokenizer.ggml.token_type", types);
    image.StringsValue("tokenizer.ggml.merges", merges);
    image.U32Value("tokenizer.ggml.eos_token_id", 0);
    if (!extra_key.empty()) image.U32Value(extra_key, 3);
    uint64_t offset = 0;
    for (const Entry& e : entries) {
      const bool is_vector = e.name.find("norm") != std::string::npos;
      image.Tensor(e.name,
                   is_vector ? std::vector<uint64_t>{e.columns} : std::vector{e.columns, e.rows}, 0,
                   offset);
      offset += (e.rows * e.columns * 4 + 31) / 32 * 32;
    }
    image.Align();
    for (const Entry& e : entries) {
      for (uint64_t row = 0; row < e.rows; ++row)
        for (uint64_t column = 0; column < e.columns; ++column)
          image.Put(static_cast<float>(100 * row + column));
      image.Align();
    }
    return image.bytes();
  }
};

class ConvertTest : public ::testing::Test {
 protected:
  int Convert(const TinyGguf& gguf) {
    WriteTextFile(input_, gguf.Bytes());
    return RunConvert({input_, output_, std::nullopt});
  }
  void ExpectRefused(const TinyGguf& gguf, std::initializer_list<std::string> parts) {
    ExpectError([&] { Convert(gguf); }, parts);
    EXPECT_FALSE(std::filesystem::exists(output_));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
  }
  json ReadJson(const std::string& name) { return json::parse(ReadTextFile(output_ / name)); }

  testing::TemporaryDir dir_;
  const std::filesystem::path input_ = dir_.path() / "model.gguf";
  const std::filesystem::path output_ = dir_.path() / "model";
};

TEST_F(ConvertTest, WritesAFolderThatTheEngineReads) {
  ASSERT_EQ(Convert(TinyGguf()), 0);
  const ModelConfig config = ModelConfig::Load(output_);
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.hidden_size, 8);
  EXPECT_EQ(config.intermediate_size, 6);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.vocab_size, 5);
  EXPECT_EQ(config.max_context, 64);
  EXPECT_EQ(config.rms_eps, 1e-5f);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{0}));
  const json written = ReadJson("config.json");
  EXPECT_EQ(written["rms_norm_eps"], 1e-5);  // not 9.999999747378752e-06
  EXPECT_EQ(written["rope_theta"], 50000.0);
  testing::MemoryBackend backend;
  WeightStore store(config, backend);
  store.LoadCheckpoint(output_);

  // Rows of a head come as pairs 0 2, 1 3 and go back to halves.
  const auto first_column = [&](const std::string& name) {
    const TensorView view = store.Tensor(name);
    std::vector<float> column;
    for (int64_t row = 0; row < view.shape[0]; ++row)
      column.push_back(Bf16ToFloat(view.as<uint16_t>()[row * view.shape[1]]));
    return column;
  };
  const std::string attention = "model.layers.0.self_attn.";
  EXPECT_EQ(first_column(attention + "q_proj.weight"),
            (std::vector<float>{0, 200, 100, 300, 400, 600, 500, 700}));
  EXPECT_EQ(first_column(attention + "k_proj.weight"), (std::vector<float>{0, 200, 100, 300}));
  EXPECT_EQ(first_column(attention + "v_proj.weight"), (std::vector<float>{0, 100, 200, 300}));
  EXPECT_EQ(first_column("model.layers.0.mlp.down_proj.weight").size(), 8u);
}

TEST_F(ConvertTest, WritesTheTokenizer) {
  ASSERT_EQ(Convert(TinyGguf()), 0);
  const json tokenizer = ReadJson("tokenizer.json");
  EXPECT_EQ(tokenizer["model"]["vocab"]["ab"], 3);
  EXPECT_EQ(tokenizer["model"]["merges"], json::parse(R"([["a","b"]])"));
  EXPECT_EQ(tokenizer["pre_tokenizer"]["pretokenizers"][0]["type"], "Digits");
  ASSERT_EQ(tokenizer["added_tokens"].size(), 2u);
  EXPECT_EQ(tokenizer["added_tokens"][0]["content"], "<|end|>");
  EXPECT_TRUE(tokenizer["added_tokens"][0]["special"]);
  EXPECT_EQ(tokenizer["added_tokens"][1]["id"], 4);
  EXPECT_FALSE(tokenizer["added_tokens"][1]["special"]);
  EXPECT_EQ(ReadJson("tokenizer_config.json")["eos_token"], "<|end|>");
}

TEST_F(ConvertTest, WhatIsNotUnderstoodIsRefusedAndNothingIsLeft) {
  TinyGguf gguf;
  gguf.architecture = "gemma";
  ExpectRefused(gguf, {"model.gguf", "\"llama\"", "\"gemma\""});
  gguf = {};
  gguf.extra_key = "llama.rope.scaling.factor";
  ExpectRefused(gguf, {"llama.rope.scaling.factor", "not understood"});
  gguf = {};
  gguf.extra_key = "llama.expert_count";
  ExpectRefused(gguf, {"llama.expert_count", "expected 0, found 3"});
  gguf = {};
  gguf.extra_tensor = "rope_freqs.weight";
  ExpectRefused(gguf, {"rope_freqs.weight", "not understood"});
  gguf = {};
  gguf.left_out = "blk.0.attn_v.weight";
  ExpectRefused(gguf, {"blk.0.attn_v.weight", "missing"});
  gguf = {};
  gguf.norm_elements = 16;
  ExpectRefused(gguf, {"output_norm.weight", "expected shape [8], found [16]"});
  gguf = {};
  gguf.pre = "deepseek-llm";
  ExpectRefused(gguf, {"tokenizer.ggml.pre", "smollm", "deepseek-llm"});
  gguf = {};
  gguf.tokens[2] = "a";
  ExpectRefused(gguf, {"token 2 \"a\" is there twice"});
  gguf = {};
  gguf.tokens.push_back("more");
  ExpectRefused(gguf, {"6 tokens and 5 token types", "5"});
  gguf = {};
  gguf.types[1] = 6;
  ExpectRefused(gguf, {"token 1", "type 6"});
  gguf = {};
  gguf.merges = {"ab"};
  ExpectRefused(gguf, {"merge \"ab\""});
}

TEST_F(ConvertTest, RefusesAnOutputThatExists) {
  std::filesystem::create_directory(output_);
  EXPECT_EQ(Convert(TinyGguf()), 0);  // an empty folder is filled
  ExpectError([&] { Convert(TinyGguf()); }, {output_.string(), "exists already"});
  ExpectError(
      [&] {
        RunConvert({dir_.path() / "absent.gguf", dir_.path() / "x", std::nullopt});
      },
      {"absent.gguf", "cannot open"});
  ExpectError([&] { RunConvert({{}, dir_.path() / "x", std::nullopt}); }, {"input"});
  ExpectError([&] { RunConvert({{}, "-", 1}); }, {"-: ", "cannot go to the standard output"});
  ExpectError([&] { RunConvert({input_, dir_.path() / "x", 1}); }, {"not both"});
  WriteTextFile(input_, TinyGguf().Bytes());
  ExpectError(
      [&] {
        RunConvert({input_, "/proc/none/model", std::nullopt});
      },
      {"/proc/none/model", "cannot be created"});
}

TEST_F(ConvertTest, ASignalLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    CatchSignals();
    std::raise(signal);
    ExpectError([&] { Convert(TinyGguf()); }, {SignalName(signal)});
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1)
        << "the input";
  }
  CatchSignals();
  EXPECT_EQ(Convert(TinyGguf()), 0);
}

TEST_F(ConvertTest, ToyModelsAreReproducible) {
  for (const auto& [name, seed] : {std::pair("a", 3), std::pair("b", 3), std::pair("c", 4)})
    ASSERT_EQ(RunConvert({{}, dir_.path() / name, seed}), 0);
  for (const char* file : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "model.safetensors"})
    EXPECT_EQ(ReadTextFile(dir_.path() / "a" / file), ReadTextFile(dir_.path() / "b" / file));
  EXPECT_NE(ReadTextFile(dir_.path() / "a" / "model.safetensors"),
            ReadTextFile(dir_.path() / "c" / "model.safetensors"));
  testing::MemoryBackend backend;
  WeightStore store(ModelConfig::Load(dir_.path() / "a"), backend);
  store.LoadCheckpoint(dir_.path() / "a");
  WeightStore random(ModelConfig::Load(dir_.path() / "a"), backend);
  random.FillRandom(3);
  EXPECT_EQ(store.Digest(store.live()), random.Digest(random.live()));
}

}  // namespace
}  // namespace rollcast
