#include "engine/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "engine/input_stream.h"
#include "engine/json_text.h"
#include "engine/mapped_file.h"
#include "engine/rope.h"
#include "engine/safetensors.h"
#include "kernels/float_convert.h"

namespace rollcast {
namespace {

using nlohmann::json;

/// Which layers have a sliding window.
enum class WindowRule : uint8_t {
  kNone,       // no such key
  kAllLayers,  // sliding_window, unless null
  kSwitched,   // use_sliding_window; layer_types, or else the layers from max_window_layers on
  kNoRope,     // use_sliding_window; layer_types, or else the layers without rope
};

/// What config.json does not say because the architecture implies it, and the value of a key that
/// is left out (those of transformers 5). A new family is a row here.
struct Family {
  const char* model_type;
  const char* architecture;
  TensorNaming naming = TensorNaming::kSeparate;
  bool qkv_bias = false;            // q, k and v always have one, o never
  bool attention_bias_key = false;  // "attention_bias" gives one to q, k, v and o
  bool mlp_bias_key = false;
  bool qk_norm = false;
  WindowRule window = WindowRule::kNone;
  bool partial_rotary = false;
  bool no_rope_layers = false;
  double theta = 10000;
  double rms_eps = 1e-6;
  bool tied_head = false;
  bool kv_heads_optional = false;  // left out = as many as num_attention_heads
  int head_dim = 0;                // 0 = hidden_size / num_attention_heads
  int window_tokens = 4096;
};

constexpr std::array kFamilies{
    Family{.model_type = "llama",
           .architecture = "LlamaForCausalLM",
           .attention_bias_key = true,
           .mlp_bias_key = true,
           .kv_heads_optional = true},
    Family{.model_type = "mistral",
           .architecture = "MistralForCausalLM",
           .window = WindowRule::kAllLayers},
    Family{.model_type = "qwen2",
           .architecture = "Qwen2ForCausalLM",
           .qkv_bias = true,
           .window = WindowRule::kSwitched},
    Family{.model_type = "qwen3",
           .architecture = "Qwen3ForCausalLM",
           .attention_bias_key = true,
           .qk_norm = true,
           .window = WindowRule::kSwitched,
           .head_dim = 128},
    Family{.model_type = "phi3",
           .architecture = "Phi3ForCausalLM",
           .naming = TensorNaming::kFused,
           .window = WindowRule::kAllLayers,
           .partial_rotary = true,
           .rms_eps = 1e-5,
           .kv_heads_optional = true,
           .window_tokens = 0},
    Family{.model_type = "smollm3",
           .architecture = "SmolLM3ForCausalLM",
           .attention_bias_key = true,
           .mlp_bias_key = true,
           .window = WindowRule::kNoRope,
           .no_rope_layers = true,
           .theta = 2000000,
           .tied_head = true,
           .window_tokens = 0},
};

constexpr std::array kMixtures{"mixtral",  "deepseek_v2", "deepseek_v3", "dbrx",   "jetmoe",
                               "gpt_oss",  "llama4",      "jamba",       "grok-1", "ernie4_5_moe",
                               "glm4_moe", "minimax",     "hunyuan_moe", "dots1"};

/// Keys that cannot change the logits of a causal language model in evaluation: names, training,
/// generation defaults (a request carries its own sampling parameters) and token ids.
constexpr std::array kHarmlessKeys{"_attn_implementation",
                                   "_attn_implementation_autoset",
                                   "_commit_hash",
                                   "_flash_attn_2_enabled",
                                   "_from_model_config",
                                   "_name_or_path",
                                   "add_cross_attention",
                                   "architectures",
                                   "attention_dropout",
                                   "attn_implementation",
                                   "auto_map",
                                   "bad_words_ids",
                                   "begin_suppress_tokens",
                                   "bos_token_id",
                                   "chunk_size_feed_forward",
                                   "cross_attention_hidden_size",
                                   "decoder_start_token_id",
                                   "diversity_penalty",
                                   "do_sample",
                                   "dtype",
                                   "early_stopping",
                                   "embd_pdrop",
                                   "encoder_no_repeat_ngram_size",
                                   "eos_token_id",
                                   "exponential_decay_length_penalty",
                                   "finetuning_task",
                                   "forced_bos_token_id",
                                   "forced_eos_token_id",
                                   "hidden_dropout",
                                   "id2label",
                                   "initializer_range",
                                   "is_decoder",
                                   "is_llama_config",
                                   "label2id",
                                   "length_penalty",
                                   "max_length",
                                   "max_window_layers",
                                   "min_length",
                                   "model_max_length",
                                   "model_type",
                                   "no_repeat_ngram_size",
                                   "num_beam_groups",
                                   "num_beams",
                                   "num_return_sequences",
                                   "output_attentions",
                                   "output_hidden_states",
                                   "output_scores",
                                   "pad_token_id",
                                   "prefix",
                                   "pretraining_tp",
                                   "problem_type",
                                   "remove_invalid_values",
                                   "repetition_penalty",
                                   "resid_pdrop",
                                   "return_dict",
                                   "return_dict_in_generate",
                                   "sep_token_id",
                                   "suppress_tokens",
                                   "task_specific_params",
                                   "temperature",
                                   "tf_legacy_loss",
                                   "tie_encoder_decoder",
                                   "tokenizer_class",
                                   "top_k",
                                   "top_p",
                                   "torch_dtype",
                                   "torchscript",
                                   "transformers.js_config",
                                   "transformers_version",
                                   "typical_p",
                                   "unk_token_id",
                                   "unsloth_fixed",
                                   "unsloth_version",
                                   "use_bfloat16",
                                   "use_cache"};

/// Multipliers that other architectures have; 1 does nothing, 0 would not.
constexpr std::array kMultipliers{
    "attention_multiplier", "embedding_multiplier", "logit_scale", "logits_scaling",
    "residual_multiplier",  "scale_depth",          "scale_emb"};

constexpr int kMaxExtent = 1 << 24;  // of any dimension; keeps every product within 64 bits
constexpr int kMaxLayers = 4096;

template <class Container>
bool Contains(const Container& container, std::string_view value) {
  return std::find(container.begin(), container.end(), value) != container.end();
}

/// Reads keys of one JSON object with types and ranges checked, and remembers which were read. A
/// key whose value is null counts as absent.
class ConfigReader {
 public:
  ConfigReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const json* Get(const char* key) {
    read_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  std::optional<int> Int(const char* key, int min, int max) {
    const json* value = Get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer() || value->get<double>() < min || value->get<double>() > max)
      Fail(key, StrCat("expected an integer from ", min, " to ", max), *value);
    return value->get<int>();
  }

  int RequiredInt(const char* key, int min, int max) {
    const std::optional<int> value = Int(key, min, max);
    if (!value) throw Error(StrCat(where_, ": key \"", key, "\" is missing"));
    return *value;
  }

  std::optional<double> Positive(const char* key) {
    const json* value = Get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>()))
      Fail(key, "expected a positive number", *value);
    return value->get<double>();
  }

  double RequiredPositive(const char* key) {
    const std::optional<double> value = Positive(key);
    if (!value) throw Error(StrCat(where_, ": key \"", key, "\" is missing"));
    return *value;
  }

  std::optional<bool> Bool(const char* key) {
    const json* value = Get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) Fail(key, "expected true or false", *value);
    return value->get<bool>();
  }

  std::optional<std::string> String(const char* key) {
    const json* value = Get(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) Fail(key, "expected a string", *value);
    return value->get<std::string>();
  }

  [[noreturn]] void Fail(const char* key, const std::string& expected, const json& found) const {
    throw Error(
        StrCat(where_, ": key \"", key, "\": ", expected, ", found ", found.dump().substr(0, 80)));
  }

  const json& object() const { return object_; }
  const std::string& where() const { return where_; }
  bool WasRead(const std::string& key) const { return read_.contains(key); }

 private:
  const json& object_;
  std::string where_;
  std::set<std::string> read_;
};

json ParseObject(const std::string& text, const std::string& name) {
  json parsed = ParseJson<json>(text, name);
  if (!parsed.is_object())
    throw Error(StrCat(name, ": is ", JsonKind(parsed), ", expected an object"));
  return parsed;
}

const Family& FindFamily(ConfigReader& reader) {
  const std::string type = reader.String("model_type").value_or("");
  if (type.empty()) throw Error(StrCat(reader.where(), ": key \"model_type\" is missing"));
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const Family& f) { return type == f.model_type; });
  bool mixture = type.find("moe") != std::string::npos || Contains(kMixtures, type);
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const json* experts = reader.Get(key);
    mixture |= experts != nullptr && !(experts->is_number() && experts->get<double>() == 0);
  }
  if (mixture)
    throw Error(StrCat(reader.where(), ": model_type \"", type,
                       "\" is a mixture of experts, which is not supported"));
  if (family == kFamilies.end()) {
    std::string known;
    for (const Family& f : kFamilies) known += StrCat(known.empty() ? "" : ", ", f.model_type);
    throw Error(
        StrCat(reader.where(), ": model_type \"", type, "\" is not supported; known are ", known));
  }
  const json* architectures = reader.Get("architectures");
  if (architectures != nullptr && *architectures != json::array({family->architecture}))
    reader.Fail("architectures", StrCat("expected [\"", family->architecture, "\"]"),
                *architectures);
  return *family;
}

/// `key` of the object of rope parameters, or of config.json itself; an error when they disagree.
std::optional<double> EitherPlace(ConfigReader& rope, ConfigReader& top, const char* key) {
  const std::optional<double> inner = rope.Positive(key), outer = top.Positive(key);
  if (inner && outer && *inner != *outer)
    top.Fail(key, StrCat("expected what ", rope.where(), " says, ", *inner), *top.Get(key));
  return inner ? inner : outer;
}

/// Fills rope and max_context. `config` has head_dim and max_context = max_position_embeddings.
void ReadRope(ConfigReader& top, const Family& family, ModelConfig& config) {
  const json* layout4 = top.Get("rope_scaling");
  const json* layout5 = top.Get("rope_parameters");
  const char* key = layout4 != nullptr ? "rope_scaling" : "rope_parameters";
  const json* found = layout4 != nullptr ? layout4 : layout5;
  if (layout4 != nullptr && layout5 != nullptr && *layout4 != *layout5)
    top.Fail("rope_scaling", "expected it to be absent or equal to rope_parameters", *layout4);
  const json empty = json::object();
  const json& object = found != nullptr ? *found : empty;
  if (!object.is_object()) top.Fail(key, "expected an object", object);
  ConfigReader rope(object, StrCat(top.where(), ": ", key));

  const std::optional<std::string> new_name = rope.String("rope_type"),
                                   old_name = rope.String("type");
  if (new_name && old_name && *new_name != *old_name)
    rope.Fail("type", StrCat("expected it to equal rope_type \"", *new_name, "\""), object["type"]);
  const std::string type = new_name ? *new_name : old_name.value_or("default");

  RopeParameters p;
  p.theta = EitherPlace(rope, top, "rope_theta").value_or(family.theta);
  const double partial = EitherPlace(rope, top, "partial_rotary_factor").value_or(1.0);
  if (partial > 1 || (partial != 1 && !family.partial_rotary))
    throw Error(StrCat(top.where(), ": partial_rotary_factor ", partial, " is not supported for ",
                       family.model_type));
  p.rotary_dim = static_cast<int>(config.head_dim * partial);
  if (p.rotary_dim < 2 || p.rotary_dim % 2 != 0)
    throw Error(StrCat(top.where(), ": rope over ", p.rotary_dim, " of head_dim ", config.head_dim,
                       " elements; expected an even number, at least 2"));
  if (type != "default" && family.partial_rotary)
    throw Error(StrCat(rope.where(), ": rope_type \"", type, "\" is not supported for ",
                       family.model_type, ", only \"default\""));

  const auto original = EitherPlace(rope, top, "original_max_position_embeddings");
  if (original && *original < 1)
    throw Error(
        StrCat(rope.where(), ": original_max_position_embeddings ", *original, " is less than 1"));
  p.original_context = original.value_or(config.max_context);
  if (type == "default") {
  } else if (type == "linear") {
    p.type = RopeParameters::Type::kLinear;
    p.factor = rope.RequiredPositive("factor");
  } else if (type == "dynamic") {
    // The base grows with the length once the sequence is longer than this. Frequencies that
    // change under cached keys would make a token's logits depend on how its sequence was run, so
    // longer sequences are refused; up to here the type is the same as "default".
    rope.RequiredPositive("factor");
    config.max_context = static_cast<int>(std::min<double>(config.max_context, p.original_context));
  } else if (type == "llama3") {
    p.type = RopeParameters::Type::kLlama3;
    p.factor = rope.RequiredPositive("factor");
    p.low_freq_factor = rope.RequiredPositive("low_freq_factor");
    p.high_freq_factor = rope.RequiredPositive("high_freq_factor");
    if (p.high_freq_factor <= p.low_freq_factor)
      rope.Fail("high_freq_factor",
                StrCat("expected more than low_freq_factor ", p.low_freq_factor),
                object["high_freq_factor"]);
  } else if (type == "yarn") {
    p.type = RopeParameters::Type::kYarn;
    p.factor = rope.Positive("factor").value_or(config.max_context / p.original_context);
    p.attention_factor = rope.Positive("attention_factor").value_or(0);
    // transformers takes an mscale of 0 for one that is not given.
    for (auto [name, value] :
         {std::pair("mscale", &p.mscale), std::pair("mscale_all_dim", &p.mscale_all_dim)}) {
      const json* given = rope.Get(name);
      if (given != nullptr && *given != 0) *value = rope.RequiredPositive(name);
    }
    p.beta_fast = rope.Positive("beta_fast").value_or(32);
    p.beta_slow = rope.Positive("beta_slow").value_or(1);
    p.truncate = rope.Bool("truncate").value_or(true);
    config.max_context = static_cast<int>(std::min<double>(
        kMaxExtent,
        std::max<double>(config.max_context, std::floor(p.original_context * p.factor))));
  } else {
    throw Error(StrCat(rope.where(), ": rope_type \"", type,
                       "\" is not supported; known are default, linear, dynamic, llama3, yarn"));
  }
  for (const auto& [name, value] : object.items())
    if (!rope.WasRead(name) && !value.is_null())
      rope.Fail(name.c_str(), StrCat("not understood for rope_type \"", type, "\""), value);
  config.rope = MakeRope(p);
  for (float inv_freq : config.rope.inv_freq)
    if (!std::isfinite(inv_freq) || !std::isfinite(config.rope.attention_factor))
      throw Error(StrCat(rope.where(), ": rope_theta ", p.theta, " and factor ", p.factor,
                         " give frequencies that are not finite"));
}

/// "layer_types" as sliding or not; nothing when the key is absent.
std::optional<std::vector<bool>> ReadLayerTypes(ConfigReader& reader, int num_layers) {
  const json* types = reader.Get("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || types->size() != static_cast<size_t>(num_layers))
    reader.Fail("layer_types", StrCat("expected a list of ", num_layers, " layer types"), *types);
  std::vector<bool> sliding;
  for (const json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention")
      reader.Fail("layer_types", "expected full_attention or sliding_attention", type);
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

void ReadLayers(ConfigReader& reader, const Family& family, ModelConfig& config) {
  const int n = config.num_layers;
  config.layers.assign(static_cast<size_t>(n), LayerConfig{});

  if (family.no_rope_layers) {
    const json* list = reader.Get("no_rope_layers");  // 1 = this layer has rope
    const int interval = reader.Int("no_rope_layer_interval", 1, kMaxLayers).value_or(4);
    if (list != nullptr && (!list->is_array() || list->size() < static_cast<size_t>(n)))
      reader.Fail("no_rope_layers", StrCat("expected a list of ", n, " numbers"), *list);
    for (int i = 0; i < n; ++i) {
      if (list != nullptr && (*list)[i] != 0 && (*list)[i] != 1)
        reader.Fail("no_rope_layers", "expected 0 or 1", (*list)[i]);
      config.layers[i].rope = list != nullptr ? (*list)[i] == 1 : (i + 1) % interval != 0;
    }
  }

  const std::optional<std::vector<bool>> types = ReadLayerTypes(reader, n);
  int window = 0;
  std::vector<bool> sliding(static_cast<size_t>(n), false);
  switch (family.window) {
    case WindowRule::kNone:
      break;
    case WindowRule::kAllLayers: {
      const bool absent = !reader.object().contains("sliding_window");
      window =
          reader.Int("sliding_window", 1, kMaxExtent).value_or(absent ? family.window_tokens : 0);
      sliding.assign(sliding.size(), window > 0);
      break;
    }
    case WindowRule::kSwitched:
    case WindowRule::kNoRope: {
      const std::optional<int> given = reader.Int("sliding_window", 1, kMaxExtent);
      if (!reader.Bool("use_sliding_window").value_or(false)) break;
      const bool absent = !reader.object().contains("sliding_window");
      window = given.value_or(absent ? family.window_tokens : 0);
      const int first = reader.Int("max_window_layers", 0, kMaxLayers).value_or(28);
      for (int i = 0; i < n && window > 0; ++i)
        sliding[i] = types                                    ? (*types)[i]
                     : family.window == WindowRule::kSwitched ? i >= first
                                                              : !config.layers[i].rope;
      break;
    }
  }
  if (types && *types != sliding)
    reader.Fail("layer_types", "expected layers that agree with the sliding window keys",
                *reader.Get("layer_types"));
  for (int i = 0; i < n; ++i) config.layers[i].window = sliding[i] ? window : 0;
}

DType ReadDType(ConfigReader& reader, DType absent) {
  const std::optional<std::string> v5 = reader.String("dtype"), v4 = reader.String("torch_dtype");
  if (!v5 && !v4) return absent;
  const char* key = v5 ? "dtype" : "torch_dtype";
  const std::string name = v5 ? *v5 : *v4;
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    if (name == Name(dtype)) return dtype;
  reader.Fail(key, "expected bfloat16, float16 or float32", name);
}

/// The ids under "eos_token_id": one, a list, or none.
std::vector<int32_t> ReadEosIds(ConfigReader& reader, int vocab_size) {
  const json* value = reader.Get("eos_token_id");
  std::vector<int32_t> ids;
  if (value == nullptr) return ids;
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() >= vocab_size)
      reader.Fail("eos_token_id", StrCat("expected token ids from 0 to ", vocab_size - 1), *value);
    if (std::find(ids.begin(), ids.end(), id.get<int32_t>()) == ids.end())
      ids.push_back(id.get<int32_t>());
  }
  return ids;
}

bool IsNeutral(const json& value) {
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();  // null, [] and {}
}

/// Whatever has not been read must be known to be harmless or switched off.
void RefuseUnknownKeys(const ConfigReader& reader, const Family& family) {
  for (const auto& [key, value] : reader.object().items()) {
    if (reader.WasRead(key) || Contains(kHarmlessKeys, key) || value.is_null()) continue;
    const bool neutral = Contains(kMultipliers, key) ? value == 1 : IsNeutral(value);
    if (!neutral)
      reader.Fail(key.c_str(),
                  StrCat("not understood for ", family.model_type,
                         " and may change results; remove it if it does not"),
                  value);
  }
}

}  // namespace

ModelConfig ModelConfig::Parse(const std::string& text, const std::string& name) {
  const json parsed = ParseObject(text, name);
  ConfigReader reader(parsed, name);
  const Family& family = FindFamily(reader);

  ModelConfig config;
  config.model_type = family.model_type;
  config.architecture = family.architecture;
  config.naming = family.naming;
  config.num_layers = reader.RequiredInt("num_hidden_layers", 1, kMaxLayers);
  config.hidden_size = reader.RequiredInt("hidden_size", 1, kMaxExtent);
  config.intermediate_size = reader.RequiredInt("intermediate_size", 1, kMaxExtent);
  config.num_heads = reader.RequiredInt("num_attention_heads", 1, kMaxExtent);
  if (!family.kv_heads_optional && !parsed.contains("num_key_value_heads"))
    throw Error(StrCat(name, ": key \"num_key_value_heads\" is missing"));
  config.num_kv_heads = reader.Int("num_key_value_heads", 1, kMaxExtent).value_or(config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0)
    throw Error(StrCat(name, ": num_attention_heads ", config.num_heads,
                       " is not a multiple of num_key_value_heads ", config.num_kv_heads));
  config.vocab_size = reader.RequiredInt("vocab_size", 1, kMaxExtent);
  config.max_context = reader.RequiredInt("max_position_embeddings", 1, kMaxExtent);

  const std::optional<int> head_dim = reader.Int("head_dim", 1, 1 << 16);
  if (!head_dim && family.head_dim == 0 && config.hidden_size % config.num_heads != 0)
    throw Error(StrCat(name, ": key \"head_dim\" is missing and hidden_size ", config.hidden_size,
                       " is not a multiple of num_attention_heads ", config.num_heads));
  config.head_dim = head_dim              ? *head_dim
                    : family.head_dim > 0 ? family.head_dim
                                          : config.hidden_size / config.num_heads;
  if (int64_t{config.num_heads} * config.head_dim > kMaxExtent)
    throw Error(StrCat(name, ": num_attention_heads * head_dim is ",
                       int64_t{config.num_heads} * config.head_dim, ", at most ", kMaxExtent));
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(config.head_dim));

  const std::optional<std::string> act = reader.String("hidden_act");
  if (act && *act != "silu" && *act != "swish")
    reader.Fail("hidden_act", "expected \"silu\"", *act);
  config.rms_eps = static_cast<float>(reader.Positive("rms_norm_eps").value_or(family.rms_eps));
  if (config.rms_eps == 0 || !std::isfinite(config.rms_eps))
    reader.Fail("rms_norm_eps", "expected a positive number that float32 holds",
                *reader.Get("rms_norm_eps"));
  config.tied_head = reader.Bool("tie_word_embeddings").value_or(family.tied_head);
  config.qk_norm = family.qk_norm;
  config.q_bias = config.k_bias = config.v_bias = family.qkv_bias;
  if (family.attention_bias_key && reader.Bool("attention_bias").value_or(false))
    config.q_bias = config.k_bias = config.v_bias = config.o_bias = true;
  if (family.qkv_bias) reader.Bool("attention_bias");  // says nothing new
  if (family.mlp_bias_key) config.mlp_bias = reader.Bool("mlp_bias").value_or(false);

  ReadRope(reader, family, config);
  ReadLayers(reader, family, config);
  config.checkpoint_dtype = ReadDType(reader, DType::kBF16);
  config.eos_ids = ReadEosIds(reader, config.vocab_size);
  config.bos_id = reader.Int("bos_token_id", -1, kMaxExtent).value_or(-1);
  RefuseUnknownKeys(reader, family);
  return config;
}

ModelConfig ModelConfig::Load(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "config.json";
  const std::string text = ReadTextFile(path);
  ModelConfig config = Parse(text, path.string());

  const json parsed = ParseObject(text, path.string());
  ConfigReader reader(parsed, path.string());
  if (reader.Get("dtype") == nullptr && reader.Get("torch_dtype") == nullptr) {
    // Older checkpoints do not say: take what the embedding is stored in.
    const Checkpoint checkpoint = Checkpoint::Open(dir);
    const Checkpoint::Tensor* embedding = checkpoint.Find("model.embed_tokens.weight");
    if (embedding != nullptr && IsWeightDType(embedding->dtype))
      config.checkpoint_dtype = embedding->dtype;
  }

  const std::filesystem::path generation_path = dir / "generation_config.json";
  if (Exists(generation_path)) {
    const json generation = ParseObject(ReadTextFile(generation_path), generation_path.string());
    ConfigReader generation_reader(generation, generation_path.string());
    const std::vector<int32_t> ids = ReadEosIds(generation_reader, config.vocab_size);
    if (!ids.empty()) config.eos_ids = ids;
  }
  return config;
}

}  // namespace rollcast
