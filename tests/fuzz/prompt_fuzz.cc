// Prompt files and, in front of a line "---", a chat template: any bytes give prompts that keep
// their promises, or an Error.
#include <cstdint>
#include <set>
#include <sstream>
#include <string>

#include "kernels/check.h"
#include "rollout/prompt_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rollcast;
  const std::string divider = "\n---\n";
  std::string rows(reinterpret_cast<const char*>(data), size);
  std::string jinja = "'<|im_start|>system\\nS<|im_end|>'{% if add_generation_prompt %}";
  if (const size_t end = rows.find(divider); end != std::string::npos) {
    jinja = rows.substr(0, end);
    rows.erase(0, end + divider.size());
  }
  std::istringstream in(rows);
  try {
    const ChatTemplate chat = ChatTemplate::Parse(jinja, "template");
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
