// What command and http scorers reply, as JSON, to scores.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/json_text.h"
#include "kernels/check.h"
#include "rollout/scorers.h"

namespace rollcast {

namespace {

using nlohmann::json;

/// `id` as we sent it, a decimal string, or the same as a number.
std::optional<uint64_t> ReplyId(const json& id) {
  if (id.is_number_unsigned()) return id.get<uint64_t>();
  if (!id.is_string()) return std::nullopt;
  const auto& text = id.get_ref<const std::string&>();
  if (text.empty() || text.size() > 18 ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  return std::stoull(text);
}

/// `who` is "the scorer" or the like; `error` and `reward` are null where there is none.
Score ToScore(const char* who, const json& error, const json& reward) {
  if (!error.is_null())
    return Unscored(StrCat(
        who, " says: ", Excerpt(error.is_string() ? error.get<std::string>() : error.dump())));
  if (reward.is_null())
    return Unscored(StrCat(who, "'s reward is null, NaN or infinite, not a finite number"));
  if (!reward.is_number())
    return Unscored(StrCat(who, "'s reward is ", Excerpt(reward.dump()), ", not a finite number"));
  return FiniteScore(reward.get<double>());
}

}  // namespace

CommandReply ReadCommandReply(std::string_view line) {
  const auto breach = [&](std::string_view what, std::string_view why = "") {
    return CommandReply{.id = 0, .score = {}, .breach = StrCat(what, Excerpt(line), why)};
  };
  json reply;
  try {
    reply = ParseJson<json>(NonFiniteToNull(line), "reply");
  } catch (const Error& error) {
    return breach("a line that is no JSON object: ", StrCat(" (", error.what(), ")"));
  }
  if (!reply.is_object()) return breach("a line that is no JSON object: ");
  if (!reply.contains("id")) return breach("a reply without an id: ");
  const auto id = ReplyId(reply["id"]);
  if (!id) return breach("a reply with an unknown id: ");
  const json error = reply.value("error", json());
  CommandReply result{.id = *id, .score = {}, .breach = ""};
  if (error.is_null() && !reply.contains("reward"))
    result.score = Unscored("the scorer command's reply has no \"reward\"");
  else
    result.score = ToScore("the scorer command", error, reply.value("reward", json()));
  return result;
}

std::vector<Score> ReadHttpReply(std::string_view body, size_t count) {
  json reply;
  try {
    reply = ParseJson<json>(NonFiniteToNull(body), "reply");
  } catch (const Error& error) {
    throw Error(
        StrCat("the reply is not {\"scores\": [...]}: ", Excerpt(body), " (", error.what(), ")"));
  }
  if (!reply.is_object() || !reply.contains("scores") || !reply["scores"].is_array())
    throw Error(StrCat("the reply is not {\"scores\": [...]}: ", Excerpt(body)));
  const json& values = reply["scores"];
  if (values.size() != count)
    throw Error(StrCat("the reply has ", values.size(), " scores for ", count, " completions"));
  std::vector<Score> scores;
  for (const json& value : values)
    scores.push_back(
        ToScore("the scorer", value.is_object() ? value.value("error", json()) : json(), value));
  return scores;
}

}  // namespace rollcast
