#include "engine/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/mapped_file.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/golden.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using nlohmann::json;
using testing::ExpectError;
using testing::GoldenDir;

json Llama() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 160},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 512},
          {"max_position_embeddings", 1024}};
}

json Of(const std::string& type, const std::string& architecture) {
  json config = Llama();
  config["model_type"] = type;
  config["architectures"] = {architecture};
  return config;
}

json Qwen2() { return Of("qwen2", "Qwen2ForCausalLM"); }

ModelConfig Parse(const json& config) { return ModelConfig::Parse(config.dump(), "config.json"); }

json With(json config, const json& changes) {
  config.update(changes);
  return config;
}

void ExpectRefused(const json& config, std::initializer_list<std::string> parts) {
  SCOPED_TRACE(config.dump());
  ExpectError([&] { Parse(config); }, parts);
  ExpectError([&] { Parse(config); }, {"config.json"});
}

std::vector<int> Windows(const ModelConfig& config) {
  std::vector<int> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  return windows;
}

TEST(ModelConfigTest, LlamaDefaults) {
  const ModelConfig c = Parse(Llama());
  EXPECT_EQ(c.model_type, "llama");
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_EQ(c.naming, TensorNaming::kSeparate);
  EXPECT_EQ(c.num_layers, 3);
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.intermediate_size, 160);
  EXPECT_EQ(c.num_heads, 4);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.vocab_size, 512);
  EXPECT_EQ(c.max_context, 1024);
  EXPECT_EQ(c.rms_eps, 1e-6f);
  EXPECT_EQ(c.attention_scale, 0.25f);
  EXPECT_FALSE(c.tied_head || c.q_bias || c.o_bias || c.mlp_bias || c.head_bias || c.qk_norm);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  EXPECT_EQ(c.rope.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(c.rope.inv_freq[4], 0.01f);  // 10000^(-8/16)
  EXPECT_EQ(Windows(c), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(c.checkpoint_dtype, DType::kBF16);
  EXPECT_TRUE(c.eos_ids.empty());
  EXPECT_EQ(c.qkv_rows(), 128);
}

TEST(ModelConfigTest, LlamaWithoutKvHeadsHasAsManyAsHeads) {
  json config = Llama();
  config.erase("num_key_value_heads");
  EXPECT_EQ(Parse(config).num_kv_heads, 4);
  config = Qwen2();  // transformers' default there is 32, whatever the number of heads
  config.erase("num_key_value_heads");
  ExpectRefused(config, {"num_key_value_heads", "missing"});
}

TEST(ModelConfigTest, Biases) {
  ModelConfig c = Parse(With(Llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(c.q_bias && c.k_bias && c.v_bias && c.o_bias && c.mlp_bias);
  c = Parse(Qwen2());
  EXPECT_TRUE(c.q_bias && c.k_bias && c.v_bias);
  EXPECT_FALSE(c.o_bias || c.mlp_bias);
  c = Parse(With(Of("qwen3", "Qwen3ForCausalLM"), {{"attention_bias", true}}));
  EXPECT_TRUE(c.q_bias && c.o_bias && c.qk_norm);
  EXPECT_EQ(c.head_dim, 128);  // the family's default, not hidden / heads
  ExpectRefused(With(Of("mistral", "MistralForCausalLM"), {{"attention_bias", true}}),
                {"attention_bias", "mistral"});
}

TEST(ModelConfigTest, FusedPhi3WithPartialRotary) {
  const ModelConfig c = Parse(With(Of("phi3", "Phi3ForCausalLM"),
                                   {{"partial_rotary_factor", 0.5}, {"sliding_window", 2047}}));
  EXPECT_EQ(c.naming, TensorNaming::kFused);
  EXPECT_EQ(c.rope.rotary_dim, 8);
  EXPECT_EQ(c.rope.inv_freq.size(), 4u);
  EXPECT_EQ(c.rms_eps, 1e-5f);
  EXPECT_EQ(Windows(c), (std::vector<int>{2047, 2047, 2047}));
  ExpectRefused(With(Llama(), {{"partial_rotary_factor", 0.5}}), {"partial_rotary_factor 0.5"});
  ExpectRefused(With(Of("phi3", "Phi3ForCausalLM"), {{"partial_rotary_factor", 0.45}}),
                {"rope over 7 of head_dim 16", "even"});
}

TEST(ModelConfigTest, SlidingWindows) {
  EXPECT_EQ(Windows(Parse(Of("mistral", "MistralForCausalLM"))), (std::vector<int>(3, 4096)));
  EXPECT_EQ(
      Windows(Parse(With(Of("mistral", "MistralForCausalLM"), {{"sliding_window", nullptr}}))),
      (std::vector<int>(3, 0)));
  const json off{{"sliding_window", 100}, {"use_sliding_window", false}, {"max_window_layers", 1}};
  EXPECT_EQ(Windows(Parse(With(Qwen2(), off))), (std::vector<int>(3, 0)));
  const json on{{"sliding_window", 100}, {"use_sliding_window", true}, {"max_window_layers", 1}};
  EXPECT_EQ(Windows(Parse(With(Qwen2(), on))), (std::vector<int>{0, 100, 100}));
  json typed = With(Qwen2(), on);
  typed["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(Windows(Parse(typed)), (std::vector<int>{100, 0, 0}));
  typed["use_sliding_window"] = false;
  ExpectRefused(typed, {"layer_types", "sliding window"});
  typed["layer_types"] = {"linear_attention", "full_attention", "full_attention"};
  ExpectRefused(typed, {"layer_types", "linear_attention"});
  typed["layer_types"] = {"full_attention"};
  ExpectRefused(typed, {"layer_types", "list of 3"});
  ExpectRefused(With(Llama(), {{"sliding_window", 16}}), {"sliding_window", "llama"});
}

TEST(ModelConfigTest, LayersWithoutRope) {
  const json base = Of("smollm3", "SmolLM3ForCausalLM");
  ModelConfig c = Parse(With(base, {{"no_rope_layer_interval", 2}}));
  EXPECT_TRUE(c.layers[0].rope);
  EXPECT_FALSE(c.layers[1].rope);
  EXPECT_TRUE(c.layers[2].rope);
  EXPECT_TRUE(c.tied_head);
  c = Parse(With(
      base, {{"no_rope_layers", {0, 1, 1}}, {"use_sliding_window", true}, {"sliding_window", 8}}));
  EXPECT_FALSE(c.layers[0].rope);
  EXPECT_TRUE(c.layers[1].rope);
  EXPECT_EQ(Windows(c), (std::vector<int>{8, 0, 0}));
  ExpectRefused(With(base, {{"no_rope_layers", {1, 1}}}), {"no_rope_layers", "list of 3"});
  ExpectRefused(With(Llama(), {{"no_rope_layers", {1, 0, 1}}}), {"no_rope_layers"});
}

TEST(ModelConfigTest, RopeFrequenciesAreThoseOfTransformers) {
  const json rows =
      json::parse(ReadTextFile(std::filesystem::path(ROLLCAST_TEST_DATA) / "rope.json"));
  ASSERT_EQ(rows.size(), 12u);
  for (const json& row : rows) {
    SCOPED_TRACE(row["rope_parameters"].dump());
    const std::string type = row["model_type"];
    const char* architecture = type == "llama"   ? "LlamaForCausalLM"
                               : type == "qwen2" ? "Qwen2ForCausalLM"
                               : type == "qwen3" ? "Qwen3ForCausalLM"
                                                 : "Phi3ForCausalLM";
    json v5 = With(Of(type, architecture), {{"head_dim", row["head_dim"]},
                                            {"max_position_embeddings", 131072},
                                            {"rope_parameters", row["rope_parameters"]}});
    json v4 = v5;  // the same under the keys of transformers 4
    json scaling = row["rope_parameters"];
    v4.erase("rope_parameters");
    v4["rope_theta"] = scaling["rope_theta"];
    scaling.erase("rope_theta");
    scaling["type"] = scaling["rope_type"];
    scaling.erase("rope_type");
    v4["rope_scaling"] = scaling["type"] == "default" && scaling.size() == 1 ? json() : scaling;
    for (const json& config : {v5, v4}) {
      const RopeConfig rope = Parse(config).rope;
      ASSERT_EQ(rope.inv_freq.size(), row["inv_freq"].size());
      EXPECT_EQ(rope.rotary_dim, 2 * static_cast<int>(row["inv_freq"].size()));
      EXPECT_FLOAT_EQ(rope.attention_factor, row["attention_factor"].get<float>());
      for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
        const float expected = row["inv_freq"][i];
        EXPECT_NEAR(rope.inv_freq[i], expected, 1e-6f * expected) << i;
      }
    }
  }
}

TEST(ModelConfigTest, ContextAfterRopeScaling) {
  EXPECT_EQ(
      Parse(With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}})).max_context,
      1024);
  EXPECT_EQ(
      Parse(With(Llama(),
                 {{"rope_scaling",
                   {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 1024}}}}))
          .max_context,
      4096);
  // Beyond this length the frequencies of "dynamic" would change under cached keys.
  EXPECT_EQ(
      Parse(
          With(Llama(),
               {{"rope_scaling",
                 {{"type", "dynamic"}, {"factor", 4}, {"original_max_position_embeddings", 512}}}}))
          .max_context,
      512);
}

TEST(ModelConfigTest, RopeThatIsNotUnderstoodIsRefused) {
  const auto scaling = [](const json& value) { return With(Llama(), {{"rope_scaling", value}}); };
  ExpectRefused(scaling({{"rope_type", "longrope"}, {"factor", 4}}), {"\"longrope\"", "known are"});
  ExpectRefused(scaling({{"type", "mrope"}}), {"\"mrope\""});
  ExpectRefused(scaling({{"type", "linear"}}), {"\"factor\" is missing"});
  ExpectRefused(scaling({{"type", "linear"}, {"factor", 0}}), {"factor", "positive"});
  ExpectRefused(scaling({{"type", "linear"}, {"factor", "4"}}), {"factor", "positive"});
  ExpectRefused(scaling({{"type", "linear"}, {"factor", 4}, {"alpha", 2}}), {"alpha", "linear"});
  ExpectRefused(scaling({{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 4}}), {"\"type\""});
  ExpectRefused(
      scaling({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
      {"high_freq_factor"});
  ExpectRefused(scaling("linear"), {"rope_scaling", "object"});
  ExpectRefused(
      scaling({{"type", "dynamic"}, {"factor", 2}, {"original_max_position_embeddings", 0.5}}),
      {"original_max_position_embeddings 0.5"});
  ExpectRefused(With(Llama(), {{"rope_theta", 1e-300}}), {"rope_theta 1e-300", "not finite"});
  ExpectRefused(With(Llama(), {{"rope_theta", 5}, {"rope_parameters", {{"rope_theta", 6.0}}}}),
                {"rope_theta", "6"});
  ExpectRefused(With(Llama(), {{"rope_parameters", {{"full_attention", {{"rope_theta", 6.0}}}}}}),
                {"full_attention"});
  ExpectRefused(
      With(Of("phi3", "Phi3ForCausalLM"), {{"rope_scaling", {{"type", "yarn"}, {"factor", 4}}}}),
      {"\"yarn\"", "phi3"});
}

TEST(ModelConfigTest, MixturesOfExpertsAreRefusedByName) {
  ExpectError([] { ModelConfig::Load(GoldenDir("qwen3-moe")); },
              {"config.json", "\"qwen3_moe\" is a mixture of experts"});
  ExpectRefused(With(Llama(), {{"model_type", "mixtral"}}),
                {"\"mixtral\" is a mixture of experts"});
  ExpectRefused(With(Llama(), {{"num_local_experts", 8}}), {"mixture of experts"});
}

TEST(ModelConfigTest, UnknownModelsAreRefusedWithTheListOfKnownOnes) {
  ExpectRefused(With(Llama(), {{"model_type", "gemma2"}}),
                {"\"gemma2\"", "llama, mistral, qwen2, qwen3, phi3, smollm3"});
  ExpectRefused(With(Llama(), {{"model_type", nullptr}}), {"model_type", "missing"});
  ExpectRefused(With(Llama(), {{"architectures", {"LlamaForSequenceClassification"}}}),
                {"architectures", "LlamaForCausalLM", "LlamaForSequenceClassification"});
}

TEST(ModelConfigTest, KeysThatCouldChangeResultsAreRefusedUnlessNeutral) {
  for (const json& change :
       {json{{"attn_logit_softcapping", 50.0}}, json{{"final_logit_softcapping", 30.0}},
        json{{"query_pre_attn_scalar", 256}}, json{{"logit_scale", 0.0625}},
        json{{"residual_multiplier", 0.22}}, json{{"embedding_multiplier", 12}},
        json{{"clip_qkv", 8.0}}, json{{"quantization_config", {{"bits", 4}}}},
        json{{"rope_interleaved", true}}, json{{"some_new_key", "on"}},
        json{{"embedding_multiplier", 0}}, json{{"use_qk_norm", true}}}) {
    ExpectRefused(With(Llama(), change), {change.begin().key(), "may change results"});
  }
  for (const json& change :
       {json{{"attn_logit_softcapping", nullptr}}, json{{"logit_scale", 1.0}},
        json{{"residual_multiplier", 1}}, json{{"clip_qkv", nullptr}},
        json{{"rope_interleaved", false}}, json{{"some_new_key", 0}},
        json{{"some_list", json::array()}}, json{{"pretraining_tp", 2}},
        json{{"transformers.js_config", {{"dtype", "q4"}}}}, json{{"is_llama_config", true}}})
    EXPECT_NO_THROW(Parse(With(Llama(), change))) << change;
}

TEST(ModelConfigTest, HiddenActOtherThanSiluIsRefused) {
  ExpectRefused(With(Llama(), {{"hidden_act", "gelu"}}), {"hidden_act", "silu", "gelu"});
  EXPECT_NO_THROW(Parse(With(Llama(), {{"hidden_act", "silu"}})));
}

TEST(ModelConfigTest, ImpossibleDimensionsAreRefused) {
  ExpectRefused(With(Llama(), {{"hidden_size", 0}}), {"hidden_size", "found 0"});
  ExpectRefused(With(Llama(), {{"hidden_size", -64}}), {"hidden_size", "found -64"});
  ExpectRefused(With(Llama(), {{"hidden_size", 64.5}}), {"hidden_size", "found 64.5"});
  ExpectRefused(With(Llama(), {{"hidden_size", "64"}}), {"hidden_size", "found \"64\""});
  ExpectRefused(With(Llama(), {{"vocab_size", 1e30}}), {"vocab_size"});
  ExpectRefused(With(Llama(), {{"vocab_size", 18446744073709551615u}}), {"vocab_size"});
  ExpectRefused(With(Llama(), {{"num_key_value_heads", 3}}), {"4", "multiple", "3"});
  ExpectRefused(With(Llama(), {{"num_attention_heads", 6}}), {"head_dim", "64", "6"});
  ExpectRefused(With(Llama(), {{"head_dim", 15}}), {"head_dim 15", "even"});
  ExpectRefused(With(Llama(), {{"rms_norm_eps", -1}}), {"rms_norm_eps"});
  ExpectRefused(With(Llama(), {{"rms_norm_eps", 1e300}}), {"rms_norm_eps", "float32", "1e+300"});
  ExpectRefused(With(Llama(), {{"rms_norm_eps", 1e-60}}), {"rms_norm_eps", "float32", "1e-60"});
  ExpectRefused(With(Llama(), {{"tie_word_embeddings", "yes"}}), {"tie_word_embeddings"});
  json config = Llama();
  config.erase("vocab_size");
  ExpectRefused(config, {"\"vocab_size\" is missing"});
}

TEST(ModelConfigTest, MalformedJsonIsRefused) {
  ExpectError([] { ModelConfig::Parse("{", "config.json"); }, {"config.json", "not valid JSON"});
  ExpectError([] { ModelConfig::Parse("[]", "config.json"); }, {"config.json", "object"});
  ExpectError([] { ModelConfig::Load("/nonexistent"); }, {"/nonexistent/config.json", "open"});
}

TEST(ModelConfigTest, DTypes) {
  EXPECT_EQ(Parse(With(Llama(), {{"dtype", "float32"}})).checkpoint_dtype, DType::kF32);
  EXPECT_EQ(Parse(With(Llama(), {{"torch_dtype", "float16"}})).checkpoint_dtype, DType::kF16);
  ExpectRefused(With(Llama(), {{"dtype", "float8_e4m3fn"}}), {"dtype", "float8_e4m3fn"});
}

TEST(ModelConfigTest, EosIds) {
  EXPECT_EQ(Parse(With(Llama(), {{"eos_token_id", 2}})).eos_ids, (std::vector<int32_t>{2}));
  EXPECT_EQ(Parse(With(Llama(), {{"eos_token_id", {5, 7, 5}}})).eos_ids,
            (std::vector<int32_t>{5, 7}));
  ExpectRefused(With(Llama(), {{"eos_token_id", 512}}), {"eos_token_id", "511"});
  ExpectRefused(With(Llama(), {{"eos_token_id", "</s>"}}), {"eos_token_id"});

  const testing::TemporaryDir dir;
  WriteTextFile(dir.path() / "config.json",
                With(Llama(), {{"eos_token_id", 2}, {"dtype", "bfloat16"}}).dump());
  EXPECT_EQ(ModelConfig::Load(dir.path()).eos_ids, (std::vector<int32_t>{2}));
  WriteTextFile(dir.path() / "generation_config.json", R"({"eos_token_id": [9, 8]})");
  EXPECT_EQ(ModelConfig::Load(dir.path()).eos_ids, (std::vector<int32_t>{9, 8}));
  WriteTextFile(dir.path() / "generation_config.json", R"({"eos_token_id": 1000})");
  ExpectError([&] { ModelConfig::Load(dir.path()); }, {"generation_config.json", "eos_token_id"});
}

TEST(ModelConfigTest, GoldenConfigs) {
  ModelConfig c = ModelConfig::Load(GoldenDir("llama3-rope-scaled"));
  EXPECT_EQ(c.max_context, 1024);
  EXPECT_EQ(c.eos_ids, (std::vector<int32_t>{2}));
  EXPECT_EQ(c.bos_id, 1);
  c = ModelConfig::Load(GoldenDir("qwen3-qknorm"));
  EXPECT_TRUE(c.qk_norm);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.q_rows(), 128);
  c = ModelConfig::Load(GoldenDir("qwen2-tied-bias"));
  EXPECT_TRUE(c.tied_head && c.q_bias);
  c = ModelConfig::Load(GoldenDir("llama-yarn"));
  EXPECT_FLOAT_EQ(c.rope.attention_factor, 1.1386294f);
  EXPECT_EQ(c.max_context, 128);
  c = ModelConfig::Load(GoldenDir("phi3-partial-rotary"));
  EXPECT_EQ(c.rope.rotary_dim, 8);
  EXPECT_EQ(c.naming, TensorNaming::kFused);
  c = ModelConfig::Load(GoldenDir("mistral-window16"));
  EXPECT_EQ(Windows(c), (std::vector<int>{16, 16}));
  c = ModelConfig::Load(GoldenDir("qwen2-window-layers"));
  EXPECT_EQ(Windows(c), (std::vector<int>{0, 24}));
  c = ModelConfig::Load(GoldenDir("smollm3-no-rope"));
  EXPECT_TRUE(c.layers[0].rope && !c.layers[1].rope && c.layers[2].rope);
  c = ModelConfig::Load(GoldenDir("llama-biases"));
  EXPECT_TRUE(c.q_bias && c.o_bias && c.mlp_bias);
  EXPECT_EQ(c.num_kv_heads, 1);
  EXPECT_EQ(ModelConfig::Load(GoldenDir("llama-f32")).checkpoint_dtype, DType::kF32);
  EXPECT_EQ(ModelConfig::Load(GoldenDir("llama-f16")).checkpoint_dtype, DType::kF16);
}

}  // namespace
}  // namespace rollcast
