// Prompt files: any bytes give prompts that keep their promises, or an Error.
#include <cstdint>
#include <set>
#include <sstream>
#include <string>

#include "kernels/check.h"
#include "rollout/prompt_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rollcast;
  static const ChatTemplate chat = ChatTemplate::Parse(
      "'<|im_start|>system\\nS<|im_end|>'{% if add_generation_prompt %}", "template");
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  try {
    std::set<std::string> ids;
    for (const Prompt& prompt :
         ReadPrompts(in, "input", {.chat_template = &chat, .vocab_size = 1000})) {
      RC_CHECK(ids.insert(prompt.id).second);
      RC_CHECK(prompt.text.empty() != prompt.tokens.empty());
      for (int32_t id : prompt.tokens) RC_CHECK(id >= 0 && id < 1000);
    }
  } catch (const Error&) {
  }
  return 0;
}
