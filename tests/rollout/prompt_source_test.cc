#include "rollout/prompt_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "kernels/check.h"

namespace rollcast {
namespace {

std::vector<Prompt> Read(const std::string& text, const PromptOptions& options = {}) {
  std::istringstream in(text);
  return ReadPrompts(in, "p.jsonl", options);
}

std::string ReadError(const std::string& text, const PromptOptions& options = {}) {
  try {
    Read(text, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ReadPromptsTest, TextTokensAndIds) {
  const auto prompts = Read(
      "{\"id\": \"a\", \"text\": \"Hi \\u00e9\", \"answer\": \"x\", "
      "\"metadata\": {\"level\": [2, null]}}\r\n"
      "\n"
      "{\"tokens\": [0, 7], \"answer\": 12}\n"
      "{\"id\": 9, \"text\": \"last, without a line feed\"}");
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].id, "a");
  EXPECT_EQ(prompts[0].text, "Hi \u00e9");
  EXPECT_TRUE(prompts[0].tokens.empty());
  EXPECT_FALSE(prompts[0].rendered);
  EXPECT_EQ(prompts[0].answer, "x");
  EXPECT_EQ(prompts[0].metadata_json, "{\"level\":[2,null]}");
  EXPECT_EQ(prompts[1].metadata_json, "");
  EXPECT_EQ(prompts[1].id, "3");  // the line it stands on
  EXPECT_EQ(prompts[1].tokens, (std::vector<int32_t>{0, 7}));
  EXPECT_EQ(prompts[1].answer, "12");
  EXPECT_EQ(prompts[2].id, "9");
  EXPECT_EQ(prompts[2].answer, "");
}

TEST(ReadPromptsTest, MessagesAreRendered) {
  const auto chat =
      ChatTemplate::Parse("'<|im_start|>'<|im_end|>{% if add_generation_prompt %}", "t");
  const auto prompts =
      Read(R"({"messages": [{"role": "user", "content": "Hi"}]})", {.chat_template = &chat});
  EXPECT_EQ(prompts[0].text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_TRUE(prompts[0].rendered);
  EXPECT_NE(ReadError(R"({"messages": [{"role": "user", "content": "Hi"}]})").find("as \"text\""),
            std::string::npos);
  for (const char* bad :
       {R"({"messages": []})", R"({"messages": "x"})", R"({"messages": ["x"]})",
        R"({"messages": [{"role": "user"}]})", R"({"messages": [{"role": 1, "content": "x"}]})",
        R"({"messages": [{"role": "user", "content": null}]})",
        R"({"messages": [{"role": "user", "content": "x", "name": "y"}]})",
        R"({"messages": [{"role": "tool", "content": "x"}]})"})
    EXPECT_EQ(ReadError(bad, {.chat_template = &chat}).find("p.jsonl:1: "), 0u) << bad;
}

TEST(ReadPromptsTest, MalformedRowsNameFileAndLine) {
  const std::string good = "{\"text\": \"x\"}\n";
  for (const char* bad : {
           "{",
           "nonsense",
           "[]",
           "3",
           "null",
           "{}",
           "{\"text\": \"x\"} {}",
           R"({"text": ""})",
           R"({"text": 3})",
           R"({"text": null})",
           R"({"text": "x", "tokens": [1]})",
           R"({"id": "a"})",
           R"({"tokens": []})",
           R"({"tokens": 3})",
           R"({"tokens": "abc"})",
           R"({"tokens": [1, -1]})",
           R"({"tokens": [1.5]})",
           R"({"tokens": [1.0]})",
           R"({"tokens": [1e2]})",
           R"({"tokens": ["1"]})",
           R"({"tokens": [true]})",
           R"({"tokens": [null]})",
           R"({"tokens": [[1]]})",
           R"({"tokens": [2147483648]})",
           R"({"tokens": [18446744073709551615]})",
           R"({"tokens": [99999999999999999999]})",
           R"({"id": "", "text": "x"})",
           R"({"id": null, "text": "x"})",
           R"({"id": 1.5, "text": "x"})",
           R"({"id": [1], "text": "x"})",
           R"({"text": "x", "answer": [1]})",
           R"({"text": "x", "answer": true})",
           R"({"text": "x", "sampling": 1})",
           R"({"text": "x", "sampling": null})",
           R"({"text": "x", "sampling": {"seed": -1}})",
           R"({"text": "\ud800"})",
           "{\"text\": \"\xff\"}",
           "{\"text\": \"a\xc3\"}",
           "{\"text\": \"\xed\xa0\x80\"}",
           "{\"text\": \"a\tb\"}",
       })
    EXPECT_EQ(ReadError(good + "\n" + bad + "\n" + good).find("p.jsonl:3:"), 0u)
        << bad << " gave " << ReadError(good + "\n" + bad + "\n" + good);
}

TEST(ReadPromptsTest, UnknownAndDoubleKeysAreErrors) {
  EXPECT_EQ(
      ReadError("{\"text\": \"x\"}\n{\"txt\": \"y\"}\n"),
      "p.jsonl:2: unknown key \"txt\"; did you mean \"text\"? (what is for a scorer alone goes "
      "under \"metadata\")");
  EXPECT_EQ(ReadError(R"({"text": "x", "difficulty": 3})"),
            "p.jsonl:1: unknown key \"difficulty\"; there are id, text, tokens, messages, answer, "
            "sampling, metadata (what is for a scorer alone goes under \"metadata\")");
  EXPECT_EQ(ReadError(R"({"text": "x", "temperature": 0})"),
            "p.jsonl:1: unknown key \"temperature\"; it goes under \"sampling\"");
  EXPECT_EQ(ReadError(R"({"text": "x", "text": "y"})"),
            "p.jsonl:1:20: an object names \"text\" twice");
  EXPECT_EQ(ReadError("{\"text\": \"x\"}\n"
                      R"({"text": "x", "metadata": {"a": 1, "a": 2}})"),
            "p.jsonl:2:38: an object names \"a\" twice");
}

TEST(ReadPromptsTest, ARowOverridesSampling) {
  PromptOptions options;
  options.vocab_size = 50;
  options.sampling.max_tokens = 8;
  options.sampling.top_p = 0.5f;
  options.sampling.seed = 11;
  const auto prompts = Read(
      "{\"text\": \"x\"}\n"
      "{\"text\": \"y\", \"sampling\": {\"top_p\": 1, \"stop_ids\": [49], \"seed\": 3}}\n"
      "{\"text\": \"z\", \"sampling\": {\"temperature\": 0}}\n",
      options);
  EXPECT_FALSE(prompts[0].sampling.has_value());
  SamplingParams expected = options.sampling;
  expected.top_p = 1;
  expected.stop_ids = {49};
  expected.seed = 3;
  EXPECT_EQ(prompts[1].sampling, expected);
  expected = options.sampling;
  expected.temperature = 0;
  EXPECT_EQ(prompts[2].sampling, expected) << "the run's seed stays";
  EXPECT_EQ(ReadError("{\"text\": \"y\", \"sampling\": {\"stop_ids\": [50]}}", options),
            "p.jsonl:1: sampling.stop_ids has 50; an id must be in [0, 50), the vocabulary");
}

TEST(ReadPromptsTest, WithoutATokenizerTheFirstTextIsNamed) {
  PromptOptions options;
  options.has_tokenizer = false;
  EXPECT_EQ(Read(R"({"tokens": [1, 2]})", options)[0].tokens.size(), 2u);
  EXPECT_EQ(ReadError("{\"tokens\": [1]}\n{\"text\": \"x\"}\n{\"text\": \"y\"}\n", options),
            "p.jsonl:2: \"text\" needs a tokenizer, and the model's folder has none: give "
            "\"tokens\", or name one with rollout.tokenizer");
  EXPECT_EQ(ReadError(R"({"tokens": [1], "sampling": {"stop_strings": ["x"]}})", options),
            "p.jsonl:1: sampling.stop_strings need a tokenizer, and the model's folder has none");
}

TEST(ReadPromptsTest, AScorerThatComparesNeedsAnAnswerInEveryRow) {
  PromptOptions options;
  options.needs_answer = true;
  EXPECT_EQ(Read(R"({"text": "x", "answer": 0})", options)[0].answer, "0");
  EXPECT_EQ(Read(R"({"text": "x", "answer": 9007199254740993})", options)[0].answer,
            "9007199254740993");
  EXPECT_EQ(ReadError("{\"text\": \"x\", \"answer\": \"a\"}\n{\"text\": \"x\", \"answer\": null}",
                      options),
            "p.jsonl:2: there is no \"answer\", and the scorer compares with it");
  for (const char* key : {"id", "answer", "metadata"})
    EXPECT_EQ(ReadError(StrCat("{\"text\": \"x\", \"", key, "\": 99999999999999999999}"), options),
              StrCat("p.jsonl:1:", std::string_view(key).size() + 19,
                     ": the integer 99999999999999999999 is beyond 64 bits; write it as a text, in "
                     "quotes"));
}

TEST(ReadPromptsTest, TokensMustBeInTheVocabulary) {
  EXPECT_EQ(Read(R"({"tokens": [99]})", {.vocab_size = 100})[0].tokens[0], 99);
  EXPECT_EQ(ReadError(R"({"tokens": [5, 100]})", {.vocab_size = 100}),
            "p.jsonl:1: \"tokens\"[1] is 100; it must be an integer in [0, 100)");
}

TEST(ReadPromptsTest, IdsAreUnique) {
  EXPECT_EQ(ReadError("{\"id\": \"a\", \"text\": \"x\"}\n{\"id\": \"a\", \"text\": \"y\"}\n"),
            "p.jsonl:2: \"id\" a is that of line 1 already");
  // A number is the same as its text, and as the line number of a row without one.
  EXPECT_EQ(ReadError("{\"id\": 2, \"text\": \"x\"}\n{\"text\": \"y\"}\n"),
            "p.jsonl:2: \"id\" 2 is that of line 1 already");
}

TEST(ReadPromptsTest, NothingToRead) {
  EXPECT_EQ(ReadError(""), "p.jsonl: has no prompts");
  EXPECT_EQ(ReadError("\n \n\t\n"), "p.jsonl: has no prompts");
  EXPECT_THROW(ReadPrompts("/nonexistent/p.jsonl", {}), Error);
  EXPECT_THROW(ReadPrompts("/tmp", {}), Error);
}

TEST(ReadPromptsTest, LongLinesAndDeepNesting) {
  EXPECT_EQ(Read("{\"text\": \"" + std::string(8 << 20, 'x') + "\"}")[0].text.size(), 8u << 20);
  const auto deep = [](size_t depth) {
    return "{\"text\": \"x\", \"metadata\": " + std::string(depth, '[') + std::string(depth, ']') +
           "}";
  };
  EXPECT_EQ(ReadError(deep(100000)), "p.jsonl:1:282: nested too deeply, more than 256 levels");
  EXPECT_EQ(Read(deep(200))[0].text, "x");
}

std::vector<Prompt> Numbered(int count) {
  std::vector<Prompt> prompts(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) prompts[i].id = StrCat(i);
  return prompts;
}

std::vector<std::string> Take(PromptSource& source, int count) {
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) ids.push_back(source.Next().id);
  return ids;
}

TEST(PromptSourceTest, WithoutShuffleTheFilesOrder) {
  PromptSource source(Numbered(3), 1, false);
  EXPECT_EQ(Take(source, 7), (std::vector<std::string>{"0", "1", "2", "0", "1", "2", "0"}));
  EXPECT_EQ(source.position(), 7u);
  EXPECT_EQ(source.epoch(), 2u);
}

TEST(PromptSourceTest, EachEpochHasEachPromptOnceInItsOwnOrder) {
  PromptSource source(Numbered(50), 1, true);
  const auto first = Take(source, 50), second = Take(source, 50);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 50u);
  EXPECT_EQ(std::set(second.begin(), second.end()).size(), 50u);
  EXPECT_NE(first, second);
  PromptSource again(Numbered(50), 1, true), other(Numbered(50), 2, true);
  EXPECT_EQ(Take(again, 50), first);
  EXPECT_NE(Take(other, 50), first);
}

TEST(PromptSourceTest, OrderIsTheSameOnEveryMachine) {
  PromptSource source(Numbered(8), 7, true);
  EXPECT_EQ(Take(source, 8), (std::vector<std::string>{"2", "4", "1", "5", "3", "0", "6", "7"}));
}

TEST(PromptSourceTest, ResumesAnywhere) {
  PromptSource source(Numbered(10), 3, true);
  const auto all = Take(source, 35);
  for (uint64_t position : {0u, 9u, 10u, 27u, 5u}) {
    source.Seek(position);
    EXPECT_EQ(source.Next().id, all[position]);
    EXPECT_EQ(source.Next().id, all[position + 1]);
  }
}

TEST(PromptSourceTest, FindsById) {
  PromptSource source(Numbered(3), 0, true);
  ASSERT_NE(source.Find("2"), nullptr);
  EXPECT_EQ(source.Find("2")->id, "2");
  EXPECT_EQ(source.Find("3"), nullptr);
}

}  // namespace
}  // namespace rollcast
