#include "rollout/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/check.h"

namespace rollcast {
namespace {

namespace fs = std::filesystem;

// As SmolLM2-135M-Instruct's tokenizer has it, with line feeds as such in its literals.
constexpr const char* kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}";

// In the manner of Qwen2.5: the default stands alone, too, where tools are listed.
constexpr const char* kQwen =
    R"({%- if tools %}{{- '<|im_start|>system\n' }}{{- 'You are Q.' }}{%- else %})"
    R"({%- if messages[0]['role'] == 'system' %})"
    R"({{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- else %})"
    R"({{- '<|im_start|>system\nYou are Q.<|im_end|>\n' }}{%- endif %}{%- endif %})"
    R"({%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";

// In the manner of Qwen3: no default, thoughts of earlier turns are cut out.
constexpr const char* kThinking =
    R"({%- if messages[0].role == 'system' %})"
    R"({{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %})"
    R"({%- set content = message.content.split('</think>')[-1] %})"
    R"({%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";

std::string Render(const char* jinja, std::vector<ChatMessage> messages) {
  return ChatTemplate::Parse(jinja, "t").Render(messages);
}

template <class F>
std::string ErrorOf(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChatTemplateTest, SmolLm2WithItsDefaultSystemMessage) {
  EXPECT_EQ(Render(kSmolLm2, {{"user", "What is the capital of France?"}}),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, AGivenSystemMessageReplacesTheDefault) {
  EXPECT_EQ(Render(kSmolLm2, {{"system", "Be brief."}, {"user", "Hi\n"}}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\n<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, SeveralTurns) {
  EXPECT_EQ(Render(kSmolLm2, {{"system", "S"}, {"user", "1"}, {"assistant", "2"}, {"user", "3"}}),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n1<|im_end|>\n"
            "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\n3<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, QwenDefaults) {
  EXPECT_EQ(Render(kQwen, {{"user", "Hi"}}),
            "<|im_start|>system\nYou are Q.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(Render(kThinking, {{"user", "Hi"}}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, TheDefaultMayHoldQuotes) {
  const auto with_default = [](const std::string& literal) {
    return literal + "{% if add_generation_prompt %}";
  };
  const std::string single =
      with_default(R"('<|im_start|>system\nIt\'s a "good"\\day.<|im_end|>\n')");
  EXPECT_EQ(Render(single.c_str(), {{"user", "x"}}).substr(0, 50),
            "<|im_start|>system\nIt's a \"good\"\\day.<|im_end|>\n<|");
  const std::string broken =
      with_default(R"('<|im_start|>system\nYou are ' + name + '<|im_end|>')");
  EXPECT_NE(ErrorOf([&] { ChatTemplate::Parse(broken, "t"); }).find("system message"),
            std::string::npos);
}

TEST(ChatTemplateTest, ThoughtsAreNotRewrittenButRefused) {
  const std::vector<ChatMessage> messages = {
      {"user", "a"}, {"assistant", "<think>x</think>b"}, {"user", "c"}};
  EXPECT_NE(ErrorOf([&] { Render(kThinking, messages); }).find("</think>"), std::string::npos);
  EXPECT_NE(Render(kSmolLm2, messages).find("<think>x</think>b"), std::string::npos);
}

TEST(ChatTemplateTest, OtherFamiliesAreRefused) {
  for (const char* jinja :
       {"", "{{ bos_token }}[INST] {{ message.content }} [/INST]",
        "{{ bos_token }}<|im_start|><|im_end|>{% if add_generation_prompt %}{% endif %}",
        "<|im_start|><|im_end|>{{ content | trim }}{% if add_generation_prompt %}{% endif %}"}) {
    const std::string error = ErrorOf([&] { ChatTemplate::Parse(jinja, "dir/config"); });
    EXPECT_EQ(error.find("dir/config: "), 0u) << error;
    EXPECT_NE(error.find("give prompts as \"text\""), std::string::npos) << error;
  }
}

TEST(ChatTemplateTest, ConversationsThatNobodyCanAnswer) {
  EXPECT_EQ(ErrorOf([] { Render(kSmolLm2, {}); }), "there are no messages");
  EXPECT_NE(ErrorOf([] {
              Render(kSmolLm2, {{"robot", "x"}});
            }).find("\"robot\""),
            std::string::npos);
  EXPECT_NE(ErrorOf([] {
              Render(kSmolLm2, {{"user", "x"}, {"assistant", "y"}});
            }).find("last message"),
            std::string::npos);
}

class ChatTemplateLoadTest : public testing::Test {
 protected:
  ChatTemplateLoadTest() {
    char name[] = "/tmp/rollcast_chat_XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~ChatTemplateLoadTest() override { fs::remove_all(dir_); }
  void Write(const char* name, const std::string& text) { std::ofstream(dir_ / name) << text; }
  std::string Load() {
    const std::vector<ChatMessage> messages = {{"user", "x"}};
    return ChatTemplate::Load(dir_).Render(messages);
  }

  fs::path dir_;
};

TEST_F(ChatTemplateLoadTest, FromTokenizerConfig) {
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", kSmolLm2}}).dump());
  EXPECT_EQ(Load(), Render(kSmolLm2, {{"user", "x"}}));
  const nlohmann::json list = {{{"name", "tool_use"}, {"template", kThinking}},
                               {{"name", "default"}, {"template", kQwen}}};
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", list}}).dump());
  EXPECT_EQ(Load(), Render(kQwen, {{"user", "x"}}));
}

TEST_F(ChatTemplateLoadTest, AFileOfItsOwnWins) {
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", kSmolLm2}}).dump());
  Write("chat_template.jinja", kThinking);
  EXPECT_EQ(Load(), Render(kThinking, {{"user", "x"}}));
}

TEST_F(ChatTemplateLoadTest, WhatIsMissingOrBrokenIsNamed) {
  EXPECT_NE(ErrorOf([&] { Load(); }).find("tokenizer_config.json: has no chat_template"),
            std::string::npos);
  Write("tokenizer_config.json", "{}");
  EXPECT_NE(ErrorOf([&] { Load(); }).find("has no chat_template"), std::string::npos);
  Write("tokenizer_config.json", "{\"chat_template\": ");
  EXPECT_NE(ErrorOf([&] {
              Load();
            }).find("tokenizer_config.json:1:18: not valid JSON: the text ends before"),
            std::string::npos);
  Write("tokenizer_config.json", "{\"chat_template\": [3]}");
  EXPECT_NE(ErrorOf([&] { Load(); }).find("neither a text nor a list"), std::string::npos);
}

}  // namespace
}  // namespace rollcast
