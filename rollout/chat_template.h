// Chat messages to the text that a chat model was trained on.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace rollcast {

struct ChatMessage {
  std::string role;     // "system", "user" or "assistant"
  std::string content;  // UTF-8
};

/// The ChatML family (SmolLM2, Qwen2 to Qwen3): `<|im_start|>role\ncontent<|im_end|>\n` a message,
/// behind the model's default system message where it has one and the conversation brings none.
/// Immutable and thread-safe.
class ChatTemplate {
 public:
  /// Reads `chat_template` of `dir`/tokenizer_config.json, or `dir`/chat_template.jinja. Throws
  /// Error when there is neither, or the template is of another family: it says to give prompts as
  /// "text".
  static ChatTemplate Load(const std::filesystem::path& dir);
  /// `jinja` is the template's own text; `name` is what errors call it.
  static ChatTemplate Parse(const std::string& jinja, const std::string& name);

  /// The conversation, ending where the assistant begins to speak. Throws Error when there is no
  /// message, a role is not known, or the last message is the assistant's.
  std::string Render(std::span<const ChatMessage> messages) const;

 private:
  ChatTemplate() = default;

  std::string default_system_;  // empty: none
  bool thinking_ = false;       // the template rewrites earlier turns that hold a thought
};

}  // namespace rollcast
