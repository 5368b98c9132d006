#include "engine/weight_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "engine/safetensors.h"
#include "kernels/float_convert.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/golden.h"
#include "tests/testing/memory_backend.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::ExpectError;
using testing::GoldenDir;
using testing::MemoryBackend;

class WeightStoreTest : public ::testing::Test {
 protected:
  testing::TemporaryDir temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
  MemoryBackend backend_;
};

/// The smallest model with every part: two layers, 2 heads over 1 KV head of 4.
ModelConfig TinyConfig() {
  ModelConfig c;
  c.model_type = "llama";
  c.num_layers = 2;
  c.hidden_size = 6;
  c.intermediate_size = 10;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 4;
  c.vocab_size = 12;
  c.max_context = 64;
  c.checkpoint_dtype = DType::kBF16;
  c.layers.resize(2);
  return c;
}

size_t Offset(const WeightManifest& manifest, const std::string& name) {
  const ManifestEntry* entry = manifest.Find(name);
  EXPECT_NE(entry, nullptr) << name;
  return entry == nullptr ? 0 : entry->offset;
}

TEST(WeightManifestTest, PartsOfABlockAreNeighboursAndBlocksAreAligned) {
  ModelConfig c = TinyConfig();
  c.q_bias = c.k_bias = c.v_bias = c.mlp_bias = true;
  const WeightManifest m = WeightManifest::Make(c, DType::kBF16);
  const std::string a = "model.layers.1.self_attn.", mlp = "model.layers.1.mlp.";
  const size_t q = Offset(m, a + "q_proj.weight");
  EXPECT_EQ(q % 256, 0u);
  EXPECT_EQ(Offset(m, a + "k_proj.weight"), q + 8 * 6 * 2);
  EXPECT_EQ(Offset(m, a + "v_proj.weight"), q + 12 * 6 * 2);
  const size_t qb = Offset(m, a + "q_proj.bias");
  EXPECT_EQ(qb % 256, 0u);
  EXPECT_EQ(Offset(m, a + "k_proj.bias"), qb + 8 * 2);
  EXPECT_EQ(Offset(m, a + "v_proj.bias"), qb + 12 * 2);
  const size_t gate = Offset(m, mlp + "gate_proj.weight");
  EXPECT_EQ(gate % 256, 0u);
  EXPECT_EQ(Offset(m, mlp + "up_proj.weight"), gate + 10 * 6 * 2);
  EXPECT_EQ(Offset(m, mlp + "up_proj.bias"), Offset(m, mlp + "gate_proj.bias") + 10 * 2);
  EXPECT_EQ(m.arena_bytes() % 256, 0u);
  EXPECT_EQ(m.entries().front().name, "model.embed_tokens.weight");
  EXPECT_EQ(m.entries().back().name, "lm_head.weight");
  // 12*6 twice, the final norm, and a layer's 2 norms, qkv, o, gate, up, down and biases.
  EXPECT_EQ(m.payload_bytes(), 2u * (2 * 72 + 6 + 2 * (12 + 16 * 6 + 16 + 48 + 120 + 20 + 60 + 6)));
}

TEST(WeightManifestTest, FusedAndSeparateHaveTheSameBytes) {
  ModelConfig c = TinyConfig();
  const WeightManifest separate = WeightManifest::Make(c, DType::kF32);
  c.naming = TensorNaming::kFused;
  const WeightManifest fused = WeightManifest::Make(c, DType::kF32);
  EXPECT_EQ(fused.arena_bytes(), separate.arena_bytes());
  EXPECT_EQ(fused.payload_bytes(), separate.payload_bytes());
  EXPECT_EQ(Offset(fused, "model.layers.1.self_attn.qkv_proj.weight"),
            Offset(separate, "model.layers.1.self_attn.q_proj.weight"));
  EXPECT_EQ(Offset(fused, "model.layers.1.mlp.gate_up_proj.weight"),
            Offset(separate, "model.layers.1.mlp.gate_proj.weight"));
  EXPECT_EQ(fused.Find("model.layers.1.self_attn.qkv_proj.weight")->shape, (Shape{16, 6}));
  EXPECT_EQ(fused.Find("model.layers.1.self_attn.q_proj.weight"), nullptr);
  EXPECT_NE(fused.digest(), separate.digest());
}

TEST(WeightManifestTest, TiedHeadIsAnAliasUntilItIsUntied) {
  ModelConfig c = TinyConfig();
  c.tied_head = true;
  const WeightManifest tied = WeightManifest::Make(c, DType::kBF16);
  EXPECT_TRUE(tied.IsAlias("lm_head.weight"));
  EXPECT_FALSE(tied.IsAlias("model.embed_tokens.weight"));
  EXPECT_EQ(tied.Find("lm_head.weight"), tied.Find("model.embed_tokens.weight"));
  EXPECT_EQ(tied.entries().back().name, "model.norm.weight");
  c.untie_head = true;
  const WeightManifest untied = WeightManifest::Make(c, DType::kBF16);
  EXPECT_FALSE(untied.IsAlias("lm_head.weight"));
  EXPECT_NE(untied.Find("lm_head.weight"), untied.Find("model.embed_tokens.weight"));
}

TEST(WeightManifestTest, DigestIsStableAndSeesEveryField) {
  const ModelConfig c = TinyConfig();
  const uint64_t digest = WeightManifest::Make(c, DType::kBF16).digest();
  EXPECT_EQ(digest, WeightManifest::Make(c, DType::kBF16).digest());
  EXPECT_NE(digest, WeightManifest::Make(c, DType::kF16).digest());
  ModelConfig wider = c;
  wider.intermediate_size = 11;
  EXPECT_NE(digest, WeightManifest::Make(wider, DType::kBF16).digest());
  EXPECT_EQ(digest, 0x573b215befa179e9u);  // ranks of different builds must agree
}

TEST_F(WeightStoreTest, LoadsEveryGoldenCheckpoint) {
  const std::vector<std::string> names = testing::GoldenNames();
  ASSERT_EQ(names.size(), 14u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    WeightStore store(ModelConfig::Load(GoldenDir(name)), backend_);
    store.LoadCheckpoint(GoldenDir(name));
    const Checkpoint checkpoint = Checkpoint::Open(GoldenDir(name));
    ASSERT_EQ(checkpoint.tensors().size(), store.manifest().entries().size());
    for (const ManifestEntry& entry : store.manifest().entries()) {
      const Checkpoint::Tensor* tensor = checkpoint.Find(entry.name);
      ASSERT_NE(tensor, nullptr) << entry.name;
      ASSERT_EQ(tensor->dtype, entry.dtype) << entry.name;
      EXPECT_EQ(std::memcmp(store.Tensor(entry.name).data, tensor->bytes.data(), entry.bytes), 0)
          << entry.name;
    }
    // What the goldens promise can only be kept with their prompts inside the vocabulary.
    const std::vector<testing::GoldenPrompt> prompts = testing::ReadGolden(name);
    ASSERT_GE(prompts.size(), 4u);
    for (const testing::GoldenPrompt& prompt : prompts)
      EXPECT_EQ(prompt.logits.size(), prompt.ids.size() * store.config().vocab_size);
  }
}

TEST_F(WeightStoreTest, LayerViewsCoverTheFusedBlocks) {
  WeightStore store(ModelConfig::Load(GoldenDir("qwen2-tied-bias")), backend_);
  store.LoadCheckpoint(GoldenDir("qwen2-tied-bias"));
  const LayerWeights& w = store.layer(1);
  EXPECT_EQ(w.qkv.shape, (Shape{128, 64}));
  EXPECT_EQ(w.qkv.data, store.Tensor("model.layers.1.self_attn.q_proj.weight").data);
  EXPECT_EQ(w.qkv_bias.shape, (Shape{128}));
  EXPECT_EQ(w.gate_up.shape, (Shape{320, 64}));
  EXPECT_EQ(w.down.shape, (Shape{64, 160}));
  EXPECT_TRUE(w.o_bias.empty());
  EXPECT_TRUE(w.q_norm.empty());
  EXPECT_EQ(store.head().data, store.embedding().data);
  EXPECT_TRUE(store.head_bias().empty());
}

TEST_F(WeightStoreTest, UntiedHeadStartsAsTheEmbedding) {
  ModelConfig config = ModelConfig::Load(GoldenDir("qwen2-tied-bias"));
  config.untie_head = true;
  WeightStore store(config, backend_);
  store.LoadCheckpoint(GoldenDir("qwen2-tied-bias"));
  EXPECT_NE(store.head().data, store.embedding().data);
  EXPECT_EQ(std::memcmp(store.head().data, store.embedding().data, store.head().bytes()), 0);
}

TEST_F(WeightStoreTest, AnAbsentBiasAmongPresentOnesIsZero) {
  ModelConfig c = TinyConfig();
  c.checkpoint_dtype = DType::kF32;
  c.k_bias = true;  // q and v have none
  WeightStore store(c, backend_);
  store.FillRandom(1);
  const TensorView bias = store.layer(0).qkv_bias;
  ASSERT_EQ(bias.shape, (Shape{16}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bias.data) % 256, 0u);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(bias.as<float>()[i] != 0, i >= 8 && i < 12) << i;
  EXPECT_EQ(store.Tensor("model.layers.0.self_attn.k_proj.bias").data, bias.as<float>() + 8);
}

TEST_F(WeightStoreTest, RandomWeightsDependOnSeedAndNameOnly) {
  WeightStore a(TinyConfig(), backend_), b(TinyConfig(), backend_), c(TinyConfig(), backend_);
  a.FillRandom(7);
  b.FillRandom(7);
  c.FillRandom(8);
  EXPECT_EQ(a.Digest(a.live()), b.Digest(b.live()));
  EXPECT_NE(a.Digest(a.live()), c.Digest(c.live()));
  const TensorView down = a.Tensor("model.layers.0.mlp.down_proj.weight");
  for (int64_t i = 0; i < down.shape.NumElements(); ++i)
    EXPECT_LE(std::abs(Bf16ToFloat(down.as<uint16_t>()[i])), std::sqrt(3.0f / 10 / 4) * 1.01f);
}

TEST_F(WeightStoreTest, DigestReadsTensorsOnly) {
  WeightStore store(TinyConfig(), backend_);
  store.FillRandom(3);
  const uint64_t live = store.Digest(store.live());
  void* staging = store.staging();
  ASSERT_NE(staging, nullptr);
  EXPECT_EQ(store.staging(), staging);
  backend_.Copy(staging, store.live(), store.manifest().arena_bytes());
  EXPECT_EQ(store.Digest(staging), live);
  const ManifestEntry& entry = store.manifest().entries()[1];
  static_cast<char*>(staging)[entry.offset + entry.bytes] ^= 1;  // the gap behind a norm
  EXPECT_EQ(store.Digest(staging), live);
  static_cast<char*>(staging)[entry.offset] ^= 1;
  EXPECT_NE(store.Digest(staging), live);
}

/// Writes TinyConfig's checkpoint as `dtype`, changed by `change`.
template <class Change>
void WriteTiny(const std::filesystem::path& dir, const ModelConfig& config, Change change) {
  MemoryBackend backend;
  WeightStore store(config, backend);
  store.FillRandom(5);
  std::vector<HostTensor> tensors;
  for (const ManifestEntry& entry : store.manifest().entries())
    tensors.push_back({entry.name,
                       entry.dtype,
                       entry.shape,
                       {store.Tensor(entry.name).as<std::byte>(), entry.bytes}});
  change(tensors);
  WriteSafetensors(dir / "model.safetensors", tensors);
}

TEST_F(WeightStoreTest, ConvertsToTheDtypeOfTheConfig) {
  ModelConfig f32 = TinyConfig();
  f32.checkpoint_dtype = DType::kF32;
  WriteTiny(dir_, f32, [](auto&) {});
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    ModelConfig config = TinyConfig();
    config.checkpoint_dtype = dtype;
    WeightStore store(config, backend_);
    store.LoadCheckpoint(dir_);
    const Checkpoint checkpoint = Checkpoint::Open(dir_);
    for (const ManifestEntry& entry : store.manifest().entries()) {
      const auto* from = reinterpret_cast<const float*>(checkpoint.Find(entry.name)->bytes.data());
      const auto* to = store.Tensor(entry.name).as<uint16_t>();
      for (int64_t i = 0; i < entry.shape.NumElements(); ++i)
        ASSERT_EQ(to[i], dtype == DType::kBF16 ? FloatToBf16(from[i]) : FloatToF16(from[i]));
    }
  }
}

TEST_F(WeightStoreTest, ABackendMayChooseTheDtype) {
  WriteTiny(dir_, TinyConfig(), [](auto&) {});
  backend_.set_weight_dtype(DType::kF32);
  WeightStore store(TinyConfig(), backend_);
  store.LoadCheckpoint(dir_);
  const Checkpoint checkpoint = Checkpoint::Open(dir_);
  const TensorView norm = store.final_norm();
  ASSERT_EQ(norm.dtype, DType::kF32);
  for (int i = 0; i < 6; ++i) {
    uint16_t bits;
    std::memcpy(&bits, checkpoint.Find("model.norm.weight")->bytes.data() + 2 * i, 2);
    EXPECT_EQ(norm.as<float>()[i], Bf16ToFloat(bits));
  }
}

TEST_F(WeightStoreTest, ValuesThatDoNotFitTheDtypeAreNamed) {
  ModelConfig f32 = TinyConfig();
  f32.checkpoint_dtype = DType::kF32;
  std::vector<float> large(6, 70000.0f);
  WriteTiny(dir_, f32, [&](std::vector<HostTensor>& tensors) {
    tensors[1].bytes = std::as_bytes(std::span(large));
  });
  ModelConfig f16 = TinyConfig();
  f16.checkpoint_dtype = DType::kF16;
  WeightStore store(f16, backend_);
  ExpectError([&] { store.LoadCheckpoint(dir_); },
              {"model.layers.0.input_layernorm.weight", "float32", "float16"});
}

TEST_F(WeightStoreTest, MissingUnexpectedAndMisshapenTensorsAreNamed) {
  WeightStore store(TinyConfig(), backend_);
  WriteTiny(dir_, TinyConfig(), [](std::vector<HostTensor>& t) { t.erase(t.begin() + 2); });
  ExpectError([&] { store.LoadCheckpoint(dir_); },
              {"no tensor model.layers.0.self_attn.q_proj.weight"});

  WriteTiny(dir_, TinyConfig(), [](std::vector<HostTensor>& t) {
    t.push_back(t[1]);
    t.back().name = "model.layers.0.self_attn.sinks";
  });
  ExpectError([&] { store.LoadCheckpoint(dir_); },
              {"model.safetensors", "model.layers.0.self_attn.sinks", "does not belong"});

  WriteTiny(dir_, TinyConfig(), [](std::vector<HostTensor>& t) { t[0].shape = Shape{6, 12}; });
  ExpectError([&] { store.LoadCheckpoint(dir_); },
              {"model.embed_tokens.weight", "expected shape [12, 6], found [6, 12]"});

  WriteTiny(dir_, TinyConfig(), [](std::vector<HostTensor>& t) {
    t[0].dtype = DType::kI32;
    t[0].bytes = t[0].bytes.first(12 * 3 * 4);
    t[0].shape = Shape{12, 3};
  });
  ExpectError([&] { store.LoadCheckpoint(dir_); }, {"model.embed_tokens.weight", "found int32"});
}

TEST_F(WeightStoreTest, AFailedLoadWritesNothing) {
  WeightStore store(TinyConfig(), backend_);
  store.FillRandom(9);
  const uint64_t before = store.Digest(store.live());
  WriteTiny(dir_, TinyConfig(), [](std::vector<HostTensor>& t) { t.pop_back(); });
  ExpectError([&] { store.LoadCheckpoint(dir_); }, {"lm_head.weight"});
  EXPECT_EQ(store.Digest(store.live()), before);
}

TEST_F(WeightStoreTest, HarmlessExtrasAreTolerated) {
  ModelConfig tied = TinyConfig();
  tied.tied_head = true;
  const float inv_freq[] = {1.0f, 0.01f};
  WriteTiny(dir_, tied, [&](std::vector<HostTensor>& t) {
    t.push_back(t[0]);
    t.back().name = "lm_head.weight";
    t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, Shape{2},
                 std::as_bytes(std::span(inv_freq))});
  });
  WeightStore store(tied, backend_);
  store.LoadCheckpoint(dir_);
  const Checkpoint checkpoint = Checkpoint::Open(dir_);
  EXPECT_EQ(std::memcmp(store.head().data, checkpoint.Find("lm_head.weight")->bytes.data(),
                        store.head().bytes()),
            0);
}

TEST_F(WeightStoreTest, ATiedHeadThatDiffersFromTheEmbeddingIsRefused) {
  ModelConfig tied = TinyConfig();
  tied.tied_head = true;
  std::vector<std::byte> other(12 * 6 * 2);
  WriteTiny(dir_, tied, [&](std::vector<HostTensor>& t) {
    t.push_back({"lm_head.weight", DType::kBF16, Shape{12, 6}, other});
  });
  WeightStore store(tied, backend_);
  ExpectError([&] { store.LoadCheckpoint(dir_); }, {"lm_head.weight", "tie_word_embeddings"});
  tied.untie_head = true;  // then the checkpoint's own head is what is wanted
  WeightStore untied(tied, backend_);
  untied.LoadCheckpoint(dir_);
  EXPECT_EQ(std::memcmp(untied.head().data, other.data(), other.size()), 0);
}

}  // namespace
}  // namespace rollcast
