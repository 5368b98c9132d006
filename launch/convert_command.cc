#include "launch/convert_command.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/gguf.h"
#include "engine/safetensors.h"
#include "engine/weight_store.h"
#include "kernels/float_convert.h"
#include "launch/byte_level_tokenizer.h"
#include "launch/model_folder.h"
#include "launch/runtime.h"
#include "launch/toy_model.h"

namespace rollcast {
namespace {

using json = nlohmann::ordered_json;

int64_t RequiredInt(const GgufFile& gguf, const char* key) {
  const std::optional<int64_t> value = gguf.Int(key);
  if (!value) throw Error(StrCat(gguf.name(), ": key \"", key, "\" is missing"));
  return *value;
}

/// GGUF keeps float32; the shortest decimal that gives the same one is what config.json had.
double ShortestDecimal(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value));
  double shortest = 0;
  std::from_chars(text.data(), end.ptr, shortest);
  return shortest;
}

/// The config.json that the metadata of a llama file amount to. Every "llama." key is either read
/// here or refused.
json MakeConfig(const GgufFile& gguf) {
  const std::string* architecture = gguf.String("general.architecture");
  if (architecture == nullptr || *architecture != "llama")
    throw Error(StrCat(gguf.name(), ": key \"general.architecture\": expected \"llama\", found ",
                       architecture == nullptr ? "nothing" : StrCat('"', *architecture, '"')));
  const GgufTensor* embedding = gguf.Find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.rank() != 2)
    throw Error(StrCat(gguf.name(), ": tensor \"token_embd.weight\" is missing or no matrix"));
  const int64_t heads = RequiredInt(gguf, "llama.attention.head_count");
  const int64_t hidden = RequiredInt(gguf, "llama.embedding_length");
  const int64_t vocab = embedding->shape[0];
  if (heads <= 0 || hidden <= 0)
    throw Error(StrCat(gguf.name(), ": ", heads, " heads and embedding_length ", hidden));
  const int64_t head_dim = gguf.Int("llama.attention.key_length").value_or(hidden / heads);
  const auto expect = [&](const char* key, int64_t expected) {
    const std::optional<int64_t> value = gguf.Int(key);
    if (value && *value != expected)
      throw Error(
          StrCat(gguf.name(), ": key \"", key, "\": expected ", expected, ", found ", *value));
  };
  expect("llama.vocab_size", vocab);
  expect("llama.rope.dimension_count", head_dim);
  expect("llama.attention.value_length", head_dim);
  expect("llama.expert_count", 0);
  expect("llama.expert_used_count", 0);

  static const std::set<std::string, std::less<>> kRead{
      "llama.attention.head_count",   "llama.attention.head_count_kv",
      "llama.attention.key_length",   "llama.attention.layer_norm_rms_epsilon",
      "llama.attention.value_length", "llama.block_count",
      "llama.context_length",         "llama.embedding_length",
      "llama.expert_count",           "llama.expert_used_count",
      "llama.feed_forward_length",    "llama.rope.dimension_count",
      "llama.rope.freq_base",         "llama.vocab_size"};
  for (const auto& [key, value] : gguf.content().metadata)
    if (key.starts_with("llama.") && !kRead.contains(key))
      throw Error(StrCat(gguf.name(), ": key \"", key, "\" is not understood"));

  json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"attention_bias", false},
      {"head_dim", head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", hidden},
      {"intermediate_size", RequiredInt(gguf, "llama.feed_forward_length")},
      {"max_position_embeddings", RequiredInt(gguf, "llama.context_length")},
      {"mlp_bias", false},
      {"model_type", "llama"},
      {"num_attention_heads", heads},
      {"num_hidden_layers", RequiredInt(gguf, "llama.block_count")},
      {"num_key_value_heads", gguf.Int("llama.attention.head_count_kv").value_or(heads)},
      {"rope_scaling", nullptr},
      {"rope_theta", ShortestDecimal(gguf.Number("llama.rope.freq_base").value_or(10000.0))},
      {"tie_word_embeddings", gguf.Find("output.weight") == nullptr},
      {"torch_dtype", "bfloat16"},
      {"vocab_size", vocab}};
  const std::optional<double> eps = gguf.Number("llama.attention.layer_norm_rms_epsilon");
  if (!eps)
    throw Error(StrCat(gguf.name(), ": key \"llama.attention.layer_norm_rms_epsilon\" is missing"));
  config["rms_norm_eps"] = ShortestDecimal(*eps);
  for (const auto& [key, name] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                  std::pair("tokenizer.ggml.eos_token_id", "eos_token_id"),
                                  std::pair("tokenizer.ggml.padding_token_id", "pad_token_id")}) {
    const std::optional<int64_t> id = gguf.Int(key);
    if (id && (*id < 0 || *id >= vocab))
      throw Error(StrCat(gguf.name(), ": key \"", key, "\": expected an id below ", vocab,
                         ", found ", *id));
    if (id) config[name] = *id;
  }
  return config;
}

/// The GGUF name of a Llama tensor.
std::string GgufName(std::string_view name) {
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name == "model.norm.weight") return "output_norm.weight";
  if (name == "lm_head.weight") return "output.weight";
  constexpr std::string_view kLayers = "model.layers.";
  RC_CHECK(name.starts_with(kLayers), name);
  name.remove_prefix(kLayers.size());
  const size_t dot = name.find('.');
  static constexpr std::pair<std::string_view, std::string_view> kParts[] = {
      {"input_layernorm.weight", "attn_norm.weight"},
      {"self_attn.q_proj.weight", "attn_q.weight"},
      {"self_attn.k_proj.weight", "attn_k.weight"},
      {"self_attn.v_proj.weight", "attn_v.weight"},
      {"self_attn.o_proj.weight", "attn_output.weight"},
      {"post_attention_layernorm.weight", "ffn_norm.weight"},
      {"mlp.gate_proj.weight", "ffn_gate.weight"},
      {"mlp.up_proj.weight", "ffn_up.weight"},
      {"mlp.down_proj.weight", "ffn_down.weight"}};
  for (const auto& [hugging_face, gguf] : kParts)
    if (name.substr(dot + 1) == hugging_face) return StrCat("blk.", name.substr(0, dot), ".", gguf);
  RC_CHECK(false, name);
  return {};
}

/// GGUF's llama files keep the two halves of a rotary pair in neighbouring rows of a head (2i and
/// 2i + 1); Hugging Face has them head_dim / 2 apart. Puts the rows of q or k back.
void UndoRotaryOrder(std::vector<float>& matrix, int64_t columns, int head_dim) {
  const size_t row = static_cast<size_t>(columns);
  const size_t head = row * static_cast<size_t>(head_dim);
  std::vector<float> ordered(head);
  for (size_t begin = 0; begin < matrix.size(); begin += head) {
    for (int i = 0; i < head_dim; ++i) {
      const int from = i < head_dim / 2 ? 2 * i : 2 * (i - head_dim / 2) + 1;
      std::copy_n(&matrix[begin + static_cast<size_t>(from) * row], row,
                  &ordered[static_cast<size_t>(i) * row]);
    }
    std::copy(ordered.begin(), ordered.end(), matrix.begin() + static_cast<ptrdiff_t>(begin));
  }
}

void WriteWeights(const GgufFile& gguf, const ModelConfig& config,
                  const std::filesystem::path& path) {
  const WeightManifest manifest = WeightManifest::Make(config, DType::kBF16);
  std::set<std::string> wanted;
  for (const ManifestEntry& entry : manifest.entries()) wanted.insert(GgufName(entry.name));
  for (const GgufTensor& tensor : gguf.content().tensors)
    if (!wanted.contains(tensor.name))
      throw Error(StrCat(gguf.name(), ": tensor \"", tensor.name, "\" is not understood"));

  std::vector<std::byte> arena(manifest.arena_bytes());
  std::vector<HostTensor> tensors;
  std::vector<float> values;
  for (const ManifestEntry& entry : manifest.entries()) {
    ThrowIfSignalled();
    const std::string name = GgufName(entry.name);
    const GgufTensor* tensor = gguf.Find(name);
    if (tensor == nullptr) throw Error(StrCat(gguf.name(), ": tensor \"", name, "\" is missing"));
    if (tensor->shape != entry.shape)
      throw Error(StrCat(gguf.name(), ": tensor \"", name, "\": expected shape ",
                         ToString(entry.shape), ", found ", ToString(tensor->shape)));
    values.resize(static_cast<size_t>(entry.shape.NumElements()));
    DequantizeGguf(*tensor, values);
    if (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight"))
      UndoRotaryOrder(values, entry.shape[1], config.head_dim);
    if (!ConvertFloats(values.data(), DType::kF32, &arena[entry.offset], DType::kBF16,
                       values.size()))
      throw Error(
          StrCat(gguf.name(), ": tensor \"", name, "\" has values that do not fit in bfloat16"));
    tensors.push_back({entry.name, entry.dtype, entry.shape, {&arena[entry.offset], entry.bytes}});
  }
  ThrowIfSignalled();
  const std::pair<std::string, std::string> metadata{"format", "pt"};
  WriteSafetensors(path, tensors, {&metadata, 1});
}

/// What tokenizer.ggml.token_type says of a token.
enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5 };

std::string MakeTokenizer(const GgufFile& gguf, int vocab_size) {
  const auto expect = [&](const char* key, std::initializer_list<std::string_view> known) {
    const std::string* value = gguf.String(key);
    if (value == nullptr || std::find(known.begin(), known.end(), *value) == known.end())
      throw Error(StrCat(gguf.name(), ": key \"", key, "\": expected \"", *known.begin(),
                         "\", found ", value == nullptr ? "nothing" : StrCat('"', *value, '"')));
  };
  expect("tokenizer.ggml.model", {"gpt2"});
  expect("tokenizer.ggml.pre", {"smollm"});  // digits one by one, then GPT-2's pattern
  const std::vector<std::string>* tokens = gguf.Strings("tokenizer.ggml.tokens");
  const std::vector<std::string>* merges = gguf.Strings("tokenizer.ggml.merges");
  const std::vector<int64_t>* types = gguf.Ints("tokenizer.ggml.token_type");
  if (tokens == nullptr || merges == nullptr || types == nullptr)
    throw Error(StrCat(gguf.name(), ": key \"tokenizer.ggml.",
                       tokens == nullptr   ? "tokens"
                       : merges == nullptr ? "merges"
                                           : "token_type",
                       "\" is missing"));
  if (tokens->size() != static_cast<size_t>(vocab_size) || types->size() != tokens->size())
    throw Error(StrCat(gguf.name(), ": ", tokens->size(), " tokens and ", types->size(),
                       " token types for a vocabulary of ", vocab_size));
  std::vector<AddedToken> added;
  for (size_t id = 0; id < tokens->size(); ++id) {
    const int64_t type = (*types)[id];
    if (type < kNormal || type > kUnused)
      throw Error(StrCat(gguf.name(), ": token ", id, " \"", (*tokens)[id], "\" has token type ",
                         type, ", expected 1 to 5"));
    if (type == kUnknown || type == kControl || type == kUserDefined)
      added.push_back({static_cast<int32_t>(id), (*tokens)[id], type != kUserDefined});
  }
  return ByteLevelTokenizerJson(*tokens, *merges, added);
}

/// tokenizer_config.json: names of the special tokens and the chat template.
json MakeTokenizerConfig(const GgufFile& gguf) {
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"add_bos_token", gguf.Bool("tokenizer.ggml.add_bos_token").value_or(false)},
                 {"add_prefix_space", gguf.Bool("tokenizer.ggml.add_space_prefix").value_or(false)},
                 {"clean_up_tokenization_spaces", false}};
  const std::vector<std::string>& tokens = *gguf.Strings("tokenizer.ggml.tokens");
  for (const auto& [key, name] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token"),
                                  std::pair("tokenizer.ggml.eos_token_id", "eos_token"),
                                  std::pair("tokenizer.ggml.unknown_token_id", "unk_token"),
                                  std::pair("tokenizer.ggml.padding_token_id", "pad_token")}) {
    const std::optional<int64_t> id = gguf.Int(key);
    if (id && *id >= 0 && *id < static_cast<int64_t>(tokens.size()))
      config[name] = tokens[static_cast<size_t>(*id)];
  }
  if (const std::string* chat = gguf.String("tokenizer.chat_template"))
    config["chat_template"] = *chat;
  return config;
}

void ConvertGguf(const ConvertOptions& options) {
  const GgufFile gguf(options.input);
  ModelFolderWriter folder(options.output);
  const json config = MakeConfig(gguf);
  const std::string config_text = config.dump(2) + "\n";
  // What is written must be readable: the engine's own checks apply.
  const ModelConfig parsed = ModelConfig::Parse(config_text, gguf.name());
  folder.Write("config.json", config_text);
  json generation = json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(key)) generation[key] = config[key];
  folder.Write("generation_config.json", generation.dump(2) + "\n");
  folder.Write("tokenizer.json", MakeTokenizer(gguf, parsed.vocab_size));
  folder.Write("tokenizer_config.json", MakeTokenizerConfig(gguf).dump(2) + "\n");
  WriteWeights(gguf, parsed, folder.staging() / "model.safetensors");
  ThrowIfSignalled();
  folder.Commit();
}

}  // namespace

int RunConvert(const ConvertOptions& options) {
  if (options.toy_seed && !options.input.empty())
    throw Error("convert: give either an input file or a toy seed, not both");
  if (options.toy_seed) {
    MakeToyModel(options.output, *options.toy_seed);
  } else {
    if (options.input.empty()) throw Error("convert: an input file or a toy seed is needed");
    ConvertGguf(options);
  }
  return 0;
}

}  // namespace rollcast
