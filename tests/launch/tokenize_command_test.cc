#include "launch/tokenize_command.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/check.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/run_command.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using nlohmann::json;

const std::filesystem::path kData = std::filesystem::path(ROLLCAST_TEST_DATA) / "tokenizers";

class TokenizeCommandTest : public ::testing::Test {
 protected:
  std::filesystem::path Input(const std::string& text) {
    std::ofstream(folder_ / "in.jsonl") << text;
    return folder_ / "in.jsonl";
  }
  std::string Output() {
    std::ifstream in(folder_ / "out.jsonl");
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  size_t Files() {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator());
  }
  void ExpectRefused(const std::string& input, const std::string& message) {
    const auto in = Input(input);
    testing::ExpectError(
        [&] {
          RunTokenize({kData / "gpt2", in, folder_ / "out.jsonl", false, /*overwrite=*/true});
        },
        {in.string() + message});
  }

  const testing::TemporaryDir temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(TokenizeCommandTest, WritesARowForEachRow) {
  const auto cases = kData / "llama3" / "cases.jsonl";
  ASSERT_EQ(RunTokenize({kData / "llama3", cases, folder_ / "out.jsonl"}), 0);
  std::ifstream want(cases), got(folder_ / "out.jsonl");
  size_t rows = 0;
  for (std::string line, other; std::getline(want, line); ++rows) {
    ASSERT_TRUE(std::getline(got, other));
    json expected = json::parse(line);
    expected.erase("text");
    EXPECT_EQ(json::parse(other), expected);
  }
  EXPECT_EQ(rows, 58u);
  EXPECT_EQ(Files(), 1u);
}

TEST_F(TokenizeCommandTest, ADashIsTheStandardInputAndOutput) {
  const std::string folder = kData / "llama3", cases = folder + "/cases.jsonl";
  const std::string tokenize =
      ROLLCAST_BINARY " tokenize --input - --output - --tokenizer " + folder + " < " + cases;
  const auto shell = [](const std::string& command) {
    const auto result = testing::RunCommand({"sh", "-c", command}, std::chrono::seconds(60));
    EXPECT_EQ(result.status, 0) << result.out;
    return result.out;
  };
  ASSERT_EQ(RunTokenize({folder, cases, folder_ / "out.jsonl"}), 0);
  const std::string rows = Output();
  EXPECT_EQ(shell("exec " + tokenize), rows);
  EXPECT_EQ(Files(), 1u);

  // A file on either side is gone on with where it stands.
  const std::string out = folder_ / "out.jsonl";
  shell("echo first > " + out + " && " + tokenize + " >> " + out);
  EXPECT_EQ(Output(), "first\n" + rows);
  EXPECT_EQ(shell("{ read -r row; " + tokenize.substr(0, tokenize.find(" <")) + "; } < " + cases),
            rows.substr(rows.find('\n') + 1));

  const auto full = testing::RunCommand({"sh", "-c", "exec " + tokenize + " > /dev/full"},
                                        std::chrono::seconds(60));
  EXPECT_EQ(full.status, 1);
  EXPECT_EQ(full.out, "rollcast: standard output: cannot be written: No space left on device\n");
}

TEST_F(TokenizeCommandTest, AddsSpecialTokensOnRequest) {
  json file = json::parse(std::ifstream(kData / "gpt2" / "tokenizer.json"));
  file["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"x", 1}}, {"sep", {"y", 2}}};
  std::ofstream(folder_ / "tokenizer.json") << file;
  RunTokenize({folder_, Input("{\"text\": \"a\"}\n"), folder_ / "out.jsonl", true});
  EXPECT_EQ(json::parse(Output())["ids"], json({1, 67, 2}));
  RunTokenize({folder_, Input("{\"text\": \"a\"}\n"), folder_ / "out.jsonl", false, true});
  EXPECT_EQ(json::parse(Output())["ids"], json({67}));
}

TEST_F(TokenizeCommandTest, NamesTheLineAndLeavesTheOutputAlone) {
  RunTokenize({kData / "gpt2", Input("{\"text\": \"b\"}\n"), folder_ / "out.jsonl"});
  const std::string before = Output();
  ExpectRefused("{\"text\": \"a\"}\n\n{\"text\": \n",
                ":3:9: not valid JSON: the text ends before the value does");
  ExpectRefused("[1]\n", ":1: is an array, expected an object");
  ExpectRefused("{\"text\": \"a\"}\n{\"id\": 1}", ":2: has no \"text\"");
  ExpectRefused("{\"text\": 1}", ":1: \"text\" is a number, expected a string");
  ExpectRefused("{\"text\": \"\xFF\"}", ":1:11: not valid JSON: a byte that is no valid UTF-8");
  EXPECT_EQ(Output(), before);
  EXPECT_EQ(Files(), 2u);
}

TEST_F(TokenizeCommandTest, NamesFilesThatItCannotUse) {
  const auto in = Input("{\"text\": \"a\"}\n");
  const auto out = in / "out.jsonl";
  testing::ExpectError(
      [&] {
        RunTokenize({kData / "gpt2", in, out});
      },
      {out.string() + ": cannot be "});
  EXPECT_THROW(RunTokenize({kData / "gpt2", folder_ / "none", folder_ / "out.jsonl"}), Error);
  EXPECT_THROW(RunTokenize({kData / "gpt2", folder_, folder_ / "out.jsonl"}), Error);
}

TEST_F(TokenizeCommandTest, AFullDiskIsAnError) {
  EXPECT_THROW(RunTokenize({kData / "gpt2", kData / "gpt2" / "cases.jsonl", "/dev/full"}), Error);
}

TEST_F(TokenizeCommandTest, ReplacesOnlyAnEarlierOutput) {
  const auto in = Input("{\"text\": \"a\"}\n"), out = folder_ / "out.jsonl";
  const auto run = [&](const std::filesystem::path& to, bool overwrite) {
    RunTokenize({kData / "gpt2", in, to, false, overwrite});
  };
  testing::ExpectError([&] { run(in, true); }, {"is the input as well"});
  run(out, false);
  testing::ExpectError([&] { run(out, false); }, {"out.jsonl: exists already", "--overwrite"});
  run(out, true);
  EXPECT_EQ(json::parse(Output())["ids"], json({67}));
  std::ofstream(folder_ / "notes.md") << "notes";
  testing::ExpectError([&] { run(folder_ / "notes.md", true); },
                       {"notes.md: is not an output of rollcast tokenize"});
  std::filesystem::create_symlink(out, folder_ / "link");
  testing::ExpectError([&] { run(folder_ / "link", true); }, {"link: is a symbolic link to "});
}

}  // namespace
}  // namespace rollcast
