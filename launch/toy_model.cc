#include "launch/toy_model.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/random_weights.h"
#include "engine/safetensors.h"
#include "engine/weight_store.h"
#include "kernels/float_convert.h"
#include "launch/byte_level_tokenizer.h"
#include "launch/model_folder.h"

namespace rollcast {
namespace {

using json = nlohmann::ordered_json;

constexpr int kVocabSize = 320;  // 3 special tokens, 256 bytes, pairs of letters
constexpr const char* kSpecial[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
// Frequent pairs in English, commonest first; the space is the byte-level one.
constexpr std::string_view kPairs =
    " t| a|th|in|he|er|an|re|on|at|en|nd|ti|es|or|te|of|ed|is|it|al|ar|st|to|nt|ng|se|ha|as|ou|io|"
    "le|ve|co|me|de|hi|ri|ro|ic|ne|ea|ra|ce|li|ch|ll|be|ma|si|om|ur| s| w| o| c| b| p| f| h| m";

constexpr const char* kChatTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

std::string ConfigJson() {
  return json{{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"hidden_act", "silu"},
              {"hidden_size", 64},
              {"intermediate_size", 160},
              {"num_hidden_layers", 2},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 16},
              {"max_position_embeddings", 512},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0},
              {"tie_word_embeddings", true},
              {"torch_dtype", "bfloat16"},
              {"bos_token_id", 1},
              {"eos_token_id", 2},
              {"vocab_size", kVocabSize}}
             .dump(2) +
         "\n";
}

std::string TokenizerJson() {
  std::vector<std::string> tokens, merges;
  std::vector<AddedToken> added;
  for (const char* special : kSpecial) {
    added.push_back({static_cast<int32_t>(tokens.size()), special, true});
    tokens.push_back(special);
  }
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(ByteLevelCharacter(static_cast<unsigned char>(byte)));
  for (size_t at = 0; at < kPairs.size(); at += 3) {
    const std::string left = ByteLevelCharacter(static_cast<unsigned char>(kPairs[at]));
    const std::string right = ByteLevelCharacter(static_cast<unsigned char>(kPairs[at + 1]));
    merges.push_back(left + " " + right);
    tokens.push_back(left + right);
  }
  RC_CHECK_EQ(tokens.size(), size_t{kVocabSize});
  return ByteLevelTokenizerJson(tokens, merges, added);
}

}  // namespace

void MakeToyModel(const std::filesystem::path& dir, uint64_t seed) {
  ModelFolderWriter folder(dir);
  const std::string config_json = ConfigJson();
  const ModelConfig config = ModelConfig::Parse(config_json, "the toy model");
  const WeightManifest manifest = WeightManifest::Make(config, config.checkpoint_dtype);
  std::vector<std::byte> arena(manifest.arena_bytes());
  std::vector<HostTensor> tensors;
  for (const ManifestEntry& entry : manifest.entries()) {
    std::vector<float> values(static_cast<size_t>(entry.shape.NumElements()));
    RandomWeights(config, entry, seed, 0, values);
    RC_CHECK(
        ConvertFloats(values.data(), DType::kF32, &arena[entry.offset], entry.dtype, values.size()),
        entry.name);
    tensors.push_back({entry.name, entry.dtype, entry.shape, {&arena[entry.offset], entry.bytes}});
  }
  const std::pair<std::string, std::string> metadata{"format", "pt"};
  WriteSafetensors(folder.staging() / "model.safetensors", tensors, {&metadata, 1});
  folder.Write("config.json", config_json);
  folder.Write("generation_config.json",
               json{{"bos_token_id", 1}, {"eos_token_id", 2}}.dump(2) + "\n");
  folder.Write("tokenizer.json", TokenizerJson());
  folder.Write("tokenizer_config.json", json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                             {"bos_token", kSpecial[1]},
                                             {"eos_token", kSpecial[2]},
                                             {"chat_template", kChatTemplate}}
                                                .dump(2) +
                                            "\n");
  folder.Commit();
}

}  // namespace rollcast
