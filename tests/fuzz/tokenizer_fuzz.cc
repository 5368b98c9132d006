// Arbitrary bytes as tokenizer.json, as regular expression, as text and as ids: only Error may come
// out.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "rollout/text_pattern.h"
#include "rollout/tokenizer.h"
#include "rollout/unicode.h"
#include "tests/fuzz/small_tokenizer.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

std::unique_ptr<Tokenizer> LoadText(const std::string& file) {
  static const testing::TemporaryDir folder;
  const auto path = folder.path() / "tokenizer.json";
  std::ofstream(path, std::ios::binary) << file;
  return Tokenizer::Load(path);
}

const std::vector<std::unique_ptr<Tokenizer>>& GoodTokenizers() {
  static const auto tokenizers = [] {
    std::vector<std::unique_ptr<Tokenizer>> loaded;
    const auto data = std::filesystem::path(ROLLCAST_TEST_DATA) / "tokenizers";
    for (const char* name : {"gpt2", "llama3", "qwen2", "llama2", "metaspace"})
      loaded.push_back(Tokenizer::Load(data / name));
    return loaded;
  }();
  return tokenizers;
}

void CheckStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip : {false, true}) {
    IncrementalDecoder decoder(tokenizer, skip);
    std::string text;
    for (const int32_t id : ids) {
      const std::string news = decoder.Append(id);
      Require(IsValidUtf8(news));
      text += news;
    }
    Require(text + decoder.Finish() == tokenizer.Decode(ids, skip));
  }
}

void FuzzText(const std::string& text) {
  std::string repaired;
  AppendLossyUtf8(text, true, repaired);
  for (size_t i = 0; i < GoodTokenizers().size(); ++i) {
    const Tokenizer& tokenizer = *GoodTokenizers()[i];
    const auto ids = tokenizer.Encode(text);
    for (const int32_t id : ids) Require(id >= 0 && id < tokenizer.vocab_size());
    CheckStream(tokenizer, ids);
    // gpt2 and llama3 change nothing on the way; added tokens that strip swallow spaces.
    if (i < 2 && repaired.find("tool>") == std::string::npos)
      Require(tokenizer.Decode(ids, false) == repaired);
  }
}

void FuzzIds(const std::string& bytes) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2)
    ids.push_back(
        (static_cast<uint8_t>(bytes[i]) << 8 | static_cast<uint8_t>(bytes[i + 1])) % 1000 - 2);
  for (const auto& tokenizer : GoodTokenizers()) CheckStream(*tokenizer, ids);
}

void FuzzPattern(const std::string& bytes) {
  const size_t cut = bytes.find('\n');
  std::string pattern, text;
  AppendLossyUtf8(bytes.substr(0, cut), true, pattern);
  AppendLossyUtf8(cut == std::string::npos ? "aB1 \t\n.é" : bytes.substr(cut + 1), true, text);
  (void)TextPattern::Regex(pattern).ReplaceAll(text, "_");
}

/// `bytes` is the whole file, or a merge patch on a good one.
void FuzzFile(const std::string& bytes, bool patch) {
  std::string file = bytes;
  if (patch) {
    static const auto base = testing::SmallTokenizer(std::filesystem::path(ROLLCAST_TEST_DATA) /
                                                     "tokenizers/smollm2/tokenizer.json");
    nlohmann::json patched = base;
    const auto change = nlohmann::json::parse(bytes, nullptr, false);
    if (change.is_discarded()) return;
    patched.merge_patch(change);
    file = patched.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  const auto tokenizer = LoadText(file);
  const auto ids =
      tokenizer->Encode(" The quick\n\t\xC3\xA9 123 <|im_end|> \xE2\x96\x81 fox's", true);
  CheckStream(*tokenizer, ids);
}

}  // namespace
}  // namespace rollcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rollcast;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 5) {
      case 0:
        FuzzText(bytes);
        break;
      case 1:
        FuzzIds(bytes);
        break;
      case 2:
        FuzzPattern(bytes);
        break;
      default:
        FuzzFile(bytes, data[0] % 5 == 3);
    }
  } catch (const Error&) {
  }
  return 0;
}
