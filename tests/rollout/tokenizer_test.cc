#include "rollout/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "kernels/check.h"
#include "rollout/unicode.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using nlohmann::json;

const std::filesystem::path kData = std::filesystem::path(ROLLCAST_TEST_DATA) / "tokenizers";
constexpr const char* kNames[] = {"gpt2", "llama2", "llama3", "metaspace", "qwen2", "smollm2"};

std::vector<json> ReadRows(const std::filesystem::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  std::vector<json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(json::parse(line));
  EXPECT_GT(rows.size(), 10u) << path;
  return rows;
}

json ReadJson(const std::filesystem::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

json BaseFile(const std::string& name) { return ReadJson(kData / name / "tokenizer.json"); }

std::unique_ptr<Tokenizer> LoadJson(const json& file) {
  const testing::TemporaryDir folder;
  std::ofstream(folder.path() / "tokenizer.json") << file.dump();
  return Tokenizer::Load(folder.path());
}

/// Decodes one by one and checks each bit of text that comes out.
std::string DecodeIncrementally(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                                bool skip) {
  IncrementalDecoder decoder(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) {
    const std::string news = decoder.Append(id);
    EXPECT_TRUE(IsValidUtf8(news)) << json(ids);
    text += news;
  }
  const std::string rest = decoder.Finish();
  EXPECT_TRUE(IsValidUtf8(rest)) << json(ids);
  return text + rest;
}

void ExpectDecodes(const Tokenizer& tokenizer, const json& row) {
  const std::vector<int32_t> ids = row["ids"];
  EXPECT_EQ(tokenizer.Decode(ids, false), row["decoded"].get<std::string>()) << row;
  EXPECT_EQ(tokenizer.Decode(ids, true), row["decoded_skip_special"].get<std::string>()) << row;
  EXPECT_EQ(DecodeIncrementally(tokenizer, ids, false), row["decoded"].get<std::string>()) << row;
  EXPECT_EQ(DecodeIncrementally(tokenizer, ids, true),
            row["decoded_skip_special"].get<std::string>())
      << row;
}

void ExpectRow(const Tokenizer& tokenizer, const json& row, bool add_special_tokens) {
  EXPECT_EQ(json(tokenizer.Encode(row["text"].get<std::string>(), add_special_tokens)), row["ids"])
      << row;
  ExpectDecodes(tokenizer, row);
}

class FamilyTest : public ::testing::TestWithParam<const char*> {
 protected:
  const std::filesystem::path folder_ = kData / GetParam();
  const std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::Load(folder_);
};
INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, ::testing::ValuesIn(kNames));

TEST_P(FamilyTest, AgreesWithReferences) {
  for (const json& row : ReadRows(folder_ / "cases.jsonl")) ExpectRow(*tokenizer_, row, false);
}

TEST_P(FamilyTest, AgreesOnRandomTexts) {
  for (const json& row : ReadRows(folder_ / "more_cases.jsonl")) ExpectRow(*tokenizer_, row, false);
}

TEST_P(FamilyTest, DecodesRandomIds) {
  const auto path = folder_ / "decode_cases.jsonl";
  if (std::string(GetParam()) == "smollm2") {
    EXPECT_FALSE(std::filesystem::exists(path));  // its vocabulary is cut down to its cases
    return;
  }
  for (const json& row : ReadRows(path)) ExpectDecodes(*tokenizer_, row);
}

TEST_P(FamilyTest, IncrementalTextIsDecodedText) {
  std::mt19937 random(20240601);
  const int32_t size = tokenizer_->vocab_size();
  for (int round = 0; round < 300; ++round) {
    std::vector<int32_t> ids(random() % 40);
    // Low ids are special tokens and bytes: where decoding is delicate.
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random() % 3 == 0 ? random() % (size + 2) : random() % 300);
    for (const bool skip : {false, true})
      EXPECT_EQ(DecodeIncrementally(*tokenizer_, ids, skip), tokenizer_->Decode(ids, skip))
          << json(ids);
  }
}

TEST_P(FamilyTest, InvalidBytesAreReplacementCharacters) {
  const std::string broken = "a\xFF\xE2\x82z\xC3";
  const std::string repaired = "a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD";
  EXPECT_EQ(tokenizer_->Encode(broken), tokenizer_->Encode(repaired));
}

TEST_P(FamilyTest, ThreadsGetTheSameIds) {
  const auto rows = ReadRows(folder_ / "cases.jsonl");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (const json& row : rows)
        wrong[t] += json(tokenizer_->Encode(row["text"].get<std::string>())) != row["ids"];
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(TokenizerTest, EachPartAgreesWithReferences) {
  std::map<std::string, json> bases;
  for (const char* name : kNames) bases[name] = BaseFile(name);
  for (const json& variant : ReadRows(kData / "variants.jsonl")) {
    SCOPED_TRACE(variant["name"]);
    json file = bases.at(variant["base"]);
    file.merge_patch(variant["patch"]);
    const auto tokenizer = LoadJson(file);
    EXPECT_GE(variant["cases"].size(), 8u);
    for (const json& row : variant["cases"]) ExpectRow(*tokenizer, row, true);
    for (const json& row : variant["decode_cases"]) ExpectDecodes(*tokenizer, row);
  }
}

TEST(TokenizerTest, MergesMayBeStrings) {
  json file = BaseFile("gpt2");
  json lines = {"#version: 0.2"};
  for (const json& merge : file["model"]["merges"])
    lines.push_back(StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>()));
  file["model"]["merges"] = lines;
  const auto tokenizer = LoadJson(file);
  for (const json& row : ReadRows(kData / "gpt2" / "cases.jsonl"))
    ExpectRow(*tokenizer, row, false);
}

TEST(TokenizerTest, KnowsItsTokens) {
  const auto tokenizer = Tokenizer::Load(kData / "gpt2" / "tokenizer.json");
  EXPECT_EQ(tokenizer->vocab_size(), 903);
  EXPECT_EQ(tokenizer->TokenToId("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer->TokenToId("lazy"), 902);
  EXPECT_EQ(tokenizer->TokenToId("\xC4\xA0"), 223);
  EXPECT_EQ(tokenizer->TokenToId("no such token"), -1);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_FALSE(tokenizer->IsSpecial(902));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_FALSE(tokenizer->IsSpecial(903));
}

TEST(TokenizerTest, HoldsBackHalfACharacter) {
  const auto tokenizer = Tokenizer::Load(kData / "gpt2");
  const std::string emoji = "\xF0\x9F\x9A\x80";  // no token of its own
  const auto ids = tokenizer->Encode("a" + emoji);
  ASSERT_GT(ids.size(), 2u);
  IncrementalDecoder decoder(*tokenizer, false);
  EXPECT_EQ(decoder.Append(ids[0]), "a");
  for (size_t i = 1; i + 1 < ids.size(); ++i) EXPECT_EQ(decoder.Append(ids[i]), "");
  EXPECT_EQ(decoder.Append(ids.back()), emoji);
  EXPECT_EQ(decoder.Append(ids[1]), "");
  EXPECT_EQ(decoder.Finish(), kReplacementCharacter);
}

TEST(TokenizerTest, FirstSpaceOfSentencePieceGoesOnce) {
  const auto tokenizer = Tokenizer::Load(kData / "llama2");
  const int32_t space = tokenizer->TokenToId("\xE2\x96\x81");
  const int32_t word = tokenizer->TokenToId(
      "\xE2\x96\x81"
      "a");
  ASSERT_GE(space, 0);
  ASSERT_GE(word, 0);
  IncrementalDecoder decoder(*tokenizer, false);
  EXPECT_EQ(decoder.Append(space), "");
  EXPECT_EQ(decoder.Append(space), " ");
  EXPECT_EQ(decoder.Append(word), " a");
  EXPECT_EQ(decoder.Finish(), "");
}

/// Only what the interface demands.
class MinimalTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view, bool, const std::function<void()>&) const override {
    return {};
  }
  std::string Decode(std::span<const int32_t> ids, bool) const override {
    std::string bytes, text;
    for (const int32_t id : ids) bytes += static_cast<char>(id);
    AppendLossyUtf8(bytes, true, text);
    return text;
  }
  int32_t vocab_size() const override { return 256; }
  bool IsSpecial(int32_t) const override { return false; }
  int32_t TokenToId(std::string_view) const override { return -1; }
};

TEST(TokenizerTest, AnyTokenizerCanBeDecodedIncrementally) {
  const MinimalTokenizer tokenizer;
  IncrementalDecoder kept(tokenizer, false);
  EXPECT_EQ(kept.Append('a'), "a");
  EXPECT_EQ(kept.Append(0xC3), "");
  EXPECT_EQ(kept.Append(0xA9), "\xC3\xA9");
  EXPECT_EQ(kept.Append(0xC3), "");
  EXPECT_EQ(kept.Finish(), kReplacementCharacter);
}

struct BadFile {
  const char* patch;  // RFC 7386, on gpt2's file
  const char* message;
};

TEST(TokenizerTest, NamesWhatItDoesNotUnderstand) {
  const BadFile kBad[] = {
      {R"({"version": "2.0"})", R"(version "2.0" is not supported)"},
      {R"({"normalizer": {"type": "Precompiled"}})", R"(normalizer.type "Precompiled" is not)"},
      {R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]}})",
       R"(normalizer.normalizers[1].type "Nmt" is not supported)"},
      {R"x({"normalizer": {"type": "Replace", "pattern": {"Regex": "a(?~b|c)"}, "content": ""}})x",
       R"x(normalizer.pattern.Regex : "a(?~b|c)" has a group or an option that is not supported)x"},
      {R"({"normalizer": {"type": "Prepend"}})", R"(normalizer has no "prepend")"},
      {R"({"normalizer": {"type": "Prepend", "prepend": 7}})",
       R"(normalizer.prepend is a number, expected a string)"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"}]}})",
       R"(pre_tokenizer.pretokenizers[0].type "UnicodeScripts" is not supported)"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated",
           "invert": false}})",
       R"(pre_tokenizer.pattern.Regex : "(a" has an unmatched ( at byte 2)"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Doubled",
           "invert": false}})",
       R"(pre_tokenizer.behavior "Doubled" is not supported)"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}})",
       "pre_tokenizer.replacement is not one character"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}})",
       R"(pre_tokenizer.prepend_scheme "last" is not supported)"},
      {R"({"pre_tokenizer": {"type": null}})", R"(pre_tokenizer has no "type")"},
      {R"({"post_processor": {"type": "Other"}})", R"(post_processor.type "Other" is not)"},
      {R"({"post_processor": {"type": "TemplateProcessing", "special_tokens": {},
           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}})",
       R"(post_processor.special_tokens has no "<s>")"},
      {R"({"post_processor": {"type": "TemplateProcessing", "special_tokens": {},
           "single": [{"Sequence": {"id": "B", "type_id": 0}}]}})",
       R"(post_processor.single[0].Sequence.id "B" is not supported)"},
      {R"({"decoder": {"type": "WordPiece"}})", R"(decoder.type "WordPiece" is not supported)"},
      {R"({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "CTC"}]}})",
       R"(decoder.decoders[1].type "CTC" is not supported)"},
      {R"({"model": {"type": "Unigram"}})", R"(model.type "Unigram" is not supported)"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout is not 0"},
      {R"({"model": {"vocab": {"a": -1}}})", R"(model.vocab["a"] is -1, expected 0 to)"},
      {R"({"model": {"vocab": {"a": 1e3}}})",
       R"(model.vocab["a"] is a number, expected an integer)"},
      {R"({"model": {"vocab": {"a": 99999999999}}})", R"(is 99999999999, expected 0 to)"},
      {R"({"model": {"merges": [["q", "no"]]}})",
       R"(model.merges[0] needs "no", which is not in the vocabulary)"},
      {R"({"model": {"merges": ["a b c"]}})", R"(model.merges[0] is "a b c", expected two tokens)"},
      {R"({"model": {"merges": [["a", "b", "c"]]}})", "model.merges[0] has 3 elements, expected 2"},
      {R"({"model": null})", R"(top level has no "model")"},
      {R"({"added_tokens": [{"id": 905, "content": "<x>", "single_word": false, "lstrip": false,
           "rstrip": false, "normalized": false, "special": true}]})",
       R"(added_tokens[0] "<x>" has id 905, expected 900, the next one after the vocabulary)"},
      {R"({"added_tokens": [{"id": 5, "content": "<|im_end|>", "single_word": false, "lstrip": false,
           "rstrip": false, "normalized": false, "special": true}]})",
       R"(added_tokens[0] "<|im_end|>" has id 5, expected 2, its id in the vocabulary)"},
      {R"({"added_tokens": [{"id": 5}]})", R"(added_tokens[0] has no "content")"}};
  const json base = BaseFile("gpt2");
  for (const BadFile& bad : kBad) {
    json file = base;
    file.merge_patch(json::parse(bad.patch));
    testing::ExpectError([&] { LoadJson(file); }, {bad.message});
  }
}

TEST(TokenizerTest, NamesTheFile) {
  const auto load = [](const std::filesystem::path& path) {
    return [path] { Tokenizer::Load(path); };
  };
  testing::ExpectError(load("/no/such/folder"),
                       {"/no/such/folder: cannot be opened: No such file or directory"});
  testing::ExpectError(load(kData),
                       {(kData / "tokenizer.json").string() + ": cannot be opened: No such file"});
  const auto jsonl = kData / "gpt2" / "cases.jsonl";
  testing::ExpectError(load(jsonl), {jsonl.string() + ":2:1: not valid JSON: "});
}

TEST(TokenizerTest, UnknownTokenOutsideTheVocabularyIsAnErrorWhenItIsNeeded) {
  json file = BaseFile("llama2");
  file["model"]["unk_token"] = "<nothing>";
  file["model"]["byte_fallback"] = false;
  const auto tokenizer = LoadJson(file);
  EXPECT_FALSE(tokenizer->Encode("a").empty());
  EXPECT_THROW((void)tokenizer->Encode("\xE2\x82\xAC"), Error);
}

TEST(TokenizerTest, TruncationAndPaddingOfTheFileAreNotApplied) {
  json file = BaseFile("gpt2");
  file["truncation"] = {
      {"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  file["padding"] = {{"strategy", {{"Fixed", 64}}}, {"direction", "Right"}, {"pad_id", 0}};
  const std::string text = "The quick brown fox";
  EXPECT_EQ(LoadJson(file)->Encode(text), Tokenizer::Load(kData / "gpt2")->Encode(text));
}

TEST(TokenizerTest, ALongTextCanBeLeft) {
  // One piece without an end, and many words.
  const std::string run(200000, 'a');
  std::string words;
  for (int i = 0; i < 40000; ++i) words += StrCat("w", i, " ");
  for (const char* name : {"gpt2", "llama2", "metaspace"}) {
    const auto tokenizer = Tokenizer::Load(kData / name);
    for (const std::string& text : {run, words}) {
      int polls = 0;
      const auto ids = tokenizer->Encode(text, false, [&] { ++polls; });
      EXPECT_EQ(ids, tokenizer->Encode(text)) << "asking changes nothing";
      EXPECT_GE(polls, 9) << name << ": in 40000 units of work and more";
      int left = 0;
      const auto leave = [&] {
        if (++left == 3) throw Error("enough");
      };
      testing::ExpectError([&] { (void)tokenizer->Encode(text, false, leave); }, {"enough"});
      EXPECT_EQ(left, 3);
      EXPECT_EQ(tokenizer->Encode(text), ids) << "nothing is left over";
    }
  }
}

TEST(TokenizerTest, LongRunsTakeLinearithmicTime) {
  // One piece of 200 thousand equal characters: quadratic merging would take minutes.
  for (const char* name : {"gpt2", "llama2", "metaspace"}) {
    const auto tokenizer = Tokenizer::Load(kData / name);
    for (const std::string& unit :
         {std::string("a"), std::string(" "), std::string("\xE4\xBD\xA0")}) {
      std::string text;
      for (int i = 0; i < 200000; ++i) text += unit;
      const auto ids = tokenizer->Encode(text);
      EXPECT_EQ(tokenizer->Decode(ids, false).substr(0, 100), text.substr(0, 100)) << name;
    }
  }
}

}  // namespace
}  // namespace rollcast
