#include "rollout/chat_template.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/input_stream.h"
#include "engine/json_text.h"
#include "kernels/check.h"

namespace rollcast {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kAdvice =
    "; rollcast renders the ChatML family (SmolLM2, Qwen) only: give prompts as \"text\" in place "
    "of \"messages\"";

std::optional<std::string> ReadFile(const fs::path& path) {
  if (!Exists(path)) return std::nullopt;
  InputStream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// `chat_template` is the text itself, or a list of {"name", "template"} of which "default" counts.
std::optional<std::string> FromTokenizerConfig(const fs::path& path) {
  const auto text = ReadFile(path);
  if (!text) return std::nullopt;
  const json config = ParseJson<json>(*text, path.string());
  if (!config.is_object())
    throw Error(StrCat(path.string(), ": is ", JsonKind(config), ", expected an object"));
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const json& entry : *found)
      if (entry.is_object() && entry.value("name", json()) == "default" &&
          entry.value("template", json()).is_string())
        return entry["template"].get<std::string>();
  throw Error(
      StrCat(path.string(), ": chat_template is neither a text nor a list with a \"default\" one"));
}

/// What stands between the markers of a system message as a literal; empty where a message is put
/// there in every case. A literal's line feeds are written as such or as backslash and n.
std::string DefaultSystem(const std::string& jinja, const std::string& name) {
  const std::string start = StrCat(kStart, "system");
  for (size_t at = jinja.find(start); at != std::string::npos; at = jinja.find(start, at + 1)) {
    // The literal ends with the quote that began it; text outside of literals with a brace.
    const char before = at > 0 ? jinja[at - 1] : '{';
    const char close = before == '\'' || before == '"' ? before : '{';
    std::string text;
    bool ended = false;
    for (size_t i = at + start.size(); i < jinja.size() && jinja[i] != close && !ended; ++i) {
      if (jinja[i] == '\\' && i + 1 < jinja.size()) {
        ++i;
        text += jinja[i] == 'n' ? '\n' : jinja[i] == 't' ? '\t' : jinja[i];
      } else {
        text += jinja[i];
      }
      ended = text.ends_with(kEnd);
    }
    if (text == "\n" || text.empty()) continue;
    if (!ended || text[0] != '\n')
      throw Error(StrCat(name, ": the chat template's system message is not understood", kAdvice));
    return text.substr(1, text.size() - 1 - kEnd.size());
  }
  return "";
}

}  // namespace

ChatTemplate ChatTemplate::Load(const fs::path& dir) {
  const fs::path config = dir / "tokenizer_config.json", file = dir / "chat_template.jinja";
  // transformers lets the file of its own win.
  if (const auto text = ReadFile(file)) return Parse(*text, file.string());
  if (const auto text = FromTokenizerConfig(config)) return Parse(*text, config.string());
  throw Error(
      StrCat(config.string(), ": has no chat_template, and there is no ", file.string(), kAdvice));
}

ChatTemplate ChatTemplate::Parse(const std::string& jinja, const std::string& name) {
  const auto has = [&](std::string_view piece) { return jinja.find(piece) != std::string::npos; };
  if (!has(kStart) || !has(kEnd) || !has("add_generation_prompt"))
    throw Error(StrCat(name, ": the chat template is not ChatML", kAdvice));
  // What would make the text differ from the plain form.
  for (std::string_view piece : {"bos_token", "eos_token", "strftime_now", "[INST]", "| trim",
                                 "|trim", "<|im_sep|>", "<|endofprompt|>"})
    if (has(piece))
      throw Error(StrCat(name, ": the chat template uses \"", piece, "\", which is not understood",
                         kAdvice));
  ChatTemplate result;
  result.thinking_ = has("</think>");
  result.default_system_ = DefaultSystem(jinja, name);
  return result;
}

std::string ChatTemplate::Render(std::span<const ChatMessage> messages) const {
  if (messages.empty()) throw Error("there are no messages");
  std::string text;
  const auto append = [&](std::string_view role, std::string_view content) {
    text.append(kStart).append(role).append("\n").append(content).append(kEnd).append("\n");
  };
  if (!default_system_.empty() && messages[0].role != "system") append("system", default_system_);
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant")
      throw Error(StrCat("a message's role is \"", message.role,
                         "\"; it must be system, user or assistant"));
    if (thinking_ && message.role == "assistant" &&
        message.content.find("</think>") != std::string::npos)
      throw Error(
          "an assistant message holds a thought (</think>), which this model's template rewrites; "
          "give the prompt as \"text\"");
    append(message.role, message.content);
  }
  if (messages.back().role == "assistant")
    throw Error("the last message is the assistant's own; there is nothing to answer");
  return text.append(kStart).append("assistant\n");
}

}  // namespace rollcast
