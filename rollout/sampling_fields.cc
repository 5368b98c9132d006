#include "rollout/sampling_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/json_text.h"
#include "kernels/check.h"

namespace rollcast {

namespace {

using nlohmann::json;

/// `value` as Assign takes it.
FieldValue ToFieldValue(const json& value) {
  FieldValue out;
  out.text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  out.value = std::monostate();
  const auto all = [&](const auto& is) {
    return std::all_of(value.begin(), value.end(), [&](const json& v) { return is(v); });
  };
  // Beyond int64 it is out of every field's range, whatever its value.
  const auto fits = [](const json& v) {
    return v.is_number_integer() && !(v.is_number_unsigned() && v.get<uint64_t>() > INT64_MAX);
  };
  if (value.is_boolean()) out.value = value.get<bool>();
  if (value.is_number_float()) out.value = value.get<double>();
  if (fits(value)) out.value = value.get<int64_t>();
  if (value.is_string()) out.value = value.get<std::string>();
  if (value.is_array() && all(fits))
    out.value = value.get<std::vector<int64_t>>();
  else if (value.is_array() && all([](const json& v) { return v.is_string(); }))
    out.value = value.get<std::vector<std::string>>();
  return out;
}

}  // namespace

void ListSampling(FieldList& list, SamplingParams& c) {
  list.Table("sampling", "how tokens are drawn");
  list.Add("max_tokens", c.max_tokens, "tokens of a completion at most", AtLeast(1));
  list.Add("min_tokens", c.min_tokens, "nothing stops a completion before this many tokens",
           AtLeast(0));
  list.Add("temperature", c.temperature, "0 = greedy", AtLeast(0));
  list.Add("top_p", c.top_p, "draw from the likeliest tokens of this total probability; 1 = off",
           {.min = 0, .max = 1, .above = true, .choices = {}});
  list.Add("top_k", c.top_k, "draw from this many likeliest tokens; -1 or 0 = off", AtLeast(-1));
  list.Add("min_p", c.min_p, "drop tokens below this share of the likeliest one's probability",
           Between(0, 1));
  list.Add("repetition_penalty", c.repetition_penalty,
           "over prompt and completion, multiplicative; 1 = off",
           {.min = 0, .max = 2, .above = true, .choices = {}});
  list.Add("frequency_penalty", c.frequency_penalty, "per earlier use in the completion; 0 = off",
           Between(-2, 2));
  list.Add("presence_penalty", c.presence_penalty, "once a token has been used; 0 = off",
           Between(-2, 2));
  list.Add("stop_ids", c.stop_ids, "token ids that end a completion, beside the model's own",
           AtLeast(0));
  list.Add("stop_strings", c.stop_strings, "texts that end a completion (needs a tokenizer)");
  list.Add("ignore_eos", c.ignore_eos, "the model's own end-of-sequence ids do not stop");
}

namespace {

FieldList OverridableFields(SamplingParams& params) {
  FieldList list;
  ListSampling(list, params);
  list.Add("seed", params.seed, "in the place of the run's seed", Between(0, kMaxSeed));
  return list;
}

}  // namespace

bool IsSamplingKey(std::string_view key) {
  SamplingParams params;
  return OverridableFields(params).Find(StrCat("sampling.", key)) != nullptr;
}

void OverrideSampling(std::string_view text, int32_t vocab_size, SamplingParams& params) {
  const json object = ParseJson<json>(text, "sampling");
  if (!object.is_object())
    throw Error(StrCat("\"sampling\" is ", JsonKind(object), "; it must be an object"));
  SamplingParams result = params;
  const FieldList list = OverridableFields(result);
  std::vector<std::string> names;
  for (const Field& field : list.fields()) names.emplace_back(field.name());
  for (const auto& [name, value] : object.items()) {
    const Field* field = list.Find(StrCat("sampling.", name));
    if (field == nullptr)
      throw Error(StrCat("unknown key \"", name, "\" in \"sampling\"", Suggestion(name, names)));
    Assign(*field, ToFieldValue(value));
  }
  if (const std::string fault = Validate(result, vocab_size); !fault.empty())
    throw Error(StrCat("sampling.", fault));
  params = std::move(result);
}

}  // namespace rollcast
