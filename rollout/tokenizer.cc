#include "rollout/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "engine/input_stream.h"
#include "kernels/check.h"
#include "rollout/added_tokens.h"
#include "rollout/bpe.h"
#include "rollout/json_node.h"
#include "rollout/normalizer.h"
#include "rollout/polling.h"
#include "rollout/pre_tokenizer.h"
#include "rollout/special_template.h"
#include "rollout/token_decoder.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

/// TextStream of a tokenizer that can only decode whole lists of ids.
class DecodeAgainStream : public TextStream {
 public:
  DecodeAgainStream(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}
  std::string Append(int32_t id) override {
    ids_.push_back(id);
    const std::string text = tokenizer_.Decode(ids_, skip_special_tokens_);
    if (text.ends_with(kReplacementCharacter) || !text.starts_with(given_)) return "";
    return Give(text);
  }
  std::string Finish() override { return Give(tokenizer_.Decode(ids_, skip_special_tokens_)); }

 private:
  std::string Give(const std::string& text) {
    const std::string news = text.substr(std::min(given_.size(), text.size()));
    given_ = text;
    return news;
  }
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> ids_;
  std::string given_;
};

template <class Part>
Part ReadPart(const JsonNode& root, std::string_view key) {
  const auto node = root.Find(key);
  return node ? Part(*node) : Part();
}

class JsonTokenizer : public Tokenizer {
 public:
  explicit JsonTokenizer(const JsonNode& root)
      : normalizer_(ReadPart<Normalizer>(root, "normalizer")),
        pre_tokenizer_(ReadPart<PreTokenizer>(root, "pre_tokenizer")),
        model_(root.At("model"), pre_tokenizer_.gives_bytes()),
        template_(ReadPart<SpecialTemplate>(root, "post_processor")),
        decoder_(ReadPart<TokenDecoder>(root, "decoder")) {
    if (const auto version = root.Find("version"); version && version->String() != "1.0")
      version->FailUnsupported();
    if (const auto added = root.Find("added_tokens"))
      added_ = AddedTokens(*added, model_.vocabulary(), normalizer_);
    int32_t size = 0;
    for (const auto& [token, id] : model_.vocabulary()) size = std::max(size, id + 1);
    for (const auto& token : added_.tokens()) size = std::max(size, token.id + 1);
    tokens_.resize(static_cast<size_t>(size));
    for (const auto& [token, id] : model_.vocabulary()) tokens_[id].decoded = token;
    for (const auto& token : added_.tokens()) {
      tokens_[token.id] = {token.decoded, token.special};
      added_ids_[token.content] = token.id;
    }
    MarkSkipped();
  }

  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens,
                              const std::function<void()>& poll) const override {
    std::string repaired;
    if (!IsValidUtf8(text)) {
      AppendLossyUtf8(text, true, repaired);
      text = repaired;
    }
    std::vector<int32_t> ids;
    Bpe::Loan workspace(model_);
    Polling polling(poll);
    for (const auto& segment : added_.SplitRaw(text)) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
        continue;
      }
      NormalizedText normalized{
          std::string(text.substr(segment.begin, segment.end - segment.begin)),
          segment.begin == 0 ? FirstCodePoint(text).length : 0};
      normalizer_.Apply(normalized);
      EncodeNormalized(normalized, *workspace, polling, ids);
    }
    return template_.Apply(std::move(ids), add_special_tokens);
  }

  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override {
    TokenDecoder::Run run(decoder_);
    std::string text;
    for (const int32_t id : ids) AppendToken(id, skip_special_tokens, run, text);
    run.Finish(text);
    return text;
  }

  std::unique_ptr<TextStream> NewTextStream(bool skip_special_tokens) const override {
    return std::make_unique<Stream>(*this, skip_special_tokens);
  }

  int32_t vocab_size() const override {
    return std::max(static_cast<int32_t>(tokens_.size()), template_.vocab_size());
  }
  bool IsSpecial(int32_t id) const override {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() && tokens_[id].special;
  }
  int32_t TokenToId(std::string_view token) const override {
    if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
    const auto known = model_.vocabulary().find(token);
    return known == model_.vocabulary().end() ? -1 : known->second;
  }

 private:
  struct Token {
    std::optional<std::string> decoded;  // nothing: no token has this id
    bool special = false;
    bool skipped = false;  // with skip_special_tokens
  };

  class Stream : public TextStream {
   public:
    Stream(const JsonTokenizer& tokenizer, bool skip_special_tokens)
        : tokenizer_(tokenizer),
          skip_special_tokens_(skip_special_tokens),
          run_(tokenizer.decoder_) {}
    std::string Append(int32_t id) override {
      std::string text;
      tokenizer_.AppendToken(id, skip_special_tokens_, run_, text);
      return text;
    }
    std::string Finish() override {
      std::string text;
      run_.Finish(text);
      return text;
    }

   private:
    const JsonTokenizer& tokenizer_;
    bool skip_special_tokens_;
    TokenDecoder::Run run_;
  };

  void EncodeNormalized(const NormalizedText& normalized, Bpe::Workspace& workspace,
                        Polling& polling, std::vector<int32_t>& ids) const {
    PieceList list;
    for (const auto& segment : added_.SplitNormalized(normalized.text)) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
        continue;
      }
      const NormalizedText part{
          normalized.text.substr(segment.begin, segment.end - segment.begin),
          normalized.origin_bytes - std::min(normalized.origin_bytes, segment.begin)};
      pre_tokenizer_.Apply(part, polling, list);
      for (const PieceList::Piece& piece : list.pieces)
        model_.Tokenize(piece.text, workspace, polling, ids);
    }
  }

  void AppendToken(int32_t id, bool skip_special_tokens, TokenDecoder::Run& run,
                   std::string& text) const {
    if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return;
    const Token& token = tokens_[id];
    if (token.decoded && !(skip_special_tokens && token.skipped)) run.Append(*token.decoded, text);
  }

  /// Hugging Face tokenizers skip by the string that a token decodes to: a special token that
  /// normalization changes is kept, and a plain one that reads like a special one goes.
  void MarkSkipped() {
    Vocabulary special;
    for (const auto& token : added_.tokens())
      if (token.special) special.emplace(token.content, token.id);
    for (Token& token : tokens_) token.skipped = token.decoded && special.contains(*token.decoded);
  }

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe model_;
  SpecialTemplate template_;
  TokenDecoder decoder_;
  AddedTokens added_;
  Vocabulary added_ids_;
  std::vector<Token> tokens_;  // by id
};

}  // namespace

std::unique_ptr<TextStream> Tokenizer::NewTextStream(bool skip_special_tokens) const {
  return std::make_unique<DecodeAgainStream>(*this, skip_special_tokens);
}

std::unique_ptr<Tokenizer> Tokenizer::Load(const std::filesystem::path& path) {
  std::error_code ignored;  // opening the file finds out
  const bool folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path file = folder ? path / "tokenizer.json" : path;
  InputStream in(file);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const JsonDocument document(file.string(), text);
  return std::make_unique<JsonTokenizer>(document.Root());
}

}  // namespace rollcast
