#include "rollout/token_decoder.h"

#include <algorithm>
#include <optional>

#include "kernels/check.h"
#include "rollout/byte_alphabet.h"
#include "rollout/text_pattern.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

constexpr int kMaxDepth = 16;  // of nested sequences
constexpr int64_t kMaxStrip = 1 << 16;

using Transform = std::function<std::string(std::string_view)>;

/// Each token on its own.
class Map : public DecodeStage {
 public:
  Map(DecodeStage* next, const Transform& transform) : DecodeStage(next), transform_(transform) {}
  void Push(std::string_view token) override { next_->Push(transform_(token)); }

 private:
  const Transform& transform_;
};

/// The whole text at once: nothing is certain before its end.
class Whole : public DecodeStage {
 public:
  Whole(DecodeStage* next, const Transform& transform) : DecodeStage(next), transform_(transform) {}
  void Push(std::string_view chunk) override { text_ += chunk; }
  void Finish() override {
    next_->Push(transform_(text_));
    next_->Finish();
  }

 private:
  const Transform& transform_;
  std::string text_;
};

class Join : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void Push(std::string_view token) override {
    if (!first_) next_->Push(" ");
    first_ = false;
    next_->Push(token);
  }

 private:
  bool first_ = true;
};

/// Tokens are spelt in the byte alphabet; one that is not stands for its own bytes.
class ByteLevel : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void Push(std::string_view token) override {
    if (const auto bytes = FromByteAlphabet(token))
      pending_ += *bytes;
    else
      pending_ += token;
    Give(false);
  }
  void Finish() override {
    Give(true);
    next_->Finish();
  }

 private:
  void Give(bool at_end) {
    std::string text;
    pending_.erase(0, AppendLossyUtf8(pending_, at_end, text));
    if (!text.empty()) next_->Push(text);
  }
  std::string pending_;  // an unfinished character
};

/// A run of tokens <0x00> to <0xFF> is text if it is valid UTF-8 as a whole, and a U+FFFD for each
/// token otherwise: nothing of it is certain before it ends.
class ByteFallback : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  static std::optional<char> Byte(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
      const bool digit = c >= '0' && c <= '9';
      const char lower = static_cast<char>(c | 0x20);
      if (!digit && (lower < 'a' || lower > 'f')) return std::nullopt;
      value = value * 16 + (digit ? c - '0' : lower - 'a' + 10);
    }
    return static_cast<char>(value);
  }
  static std::string Text(const std::string& run) {
    if (IsValidUtf8(run)) return run;
    std::string text;
    for (size_t i = 0; i < run.size(); ++i) text += kReplacementCharacter;
    return text;
  }
  void Push(std::string_view token) override {
    if (const auto byte = Byte(token)) {
      run_ += *byte;
      return;
    }
    GiveRun();
    next_->Push(token);
  }
  void Finish() override {
    GiveRun();
    next_->Finish();
  }

 private:
  void GiveRun() {
    if (run_.empty()) return;
    if (IsValidUtf8(run_))
      next_->Push(run_);
    else  // each byte is a token of its own to the stages that follow
      for (size_t i = 0; i < run_.size(); ++i) next_->Push(kReplacementCharacter);
    run_.clear();
  }
  std::string run_;
};

struct StripRule {
  std::string content;  // one character
  size_t start, stop;   // how many of it at either end

  std::string operator()(std::string_view text) const {
    for (size_t i = 0; i < start && text.starts_with(content); ++i)
      text.remove_prefix(content.size());
    for (size_t i = 0; i < stop && text.ends_with(content); ++i) text.remove_suffix(content.size());
    return std::string(text);
  }
};

/// StripRule on a text that comes in chunks.
class StripChunks : public DecodeStage {
 public:
  StripChunks(DecodeStage* next, const StripRule& rule)
      : DecodeStage(next), rule_(rule), left_(rule.start) {}
  void Push(std::string_view chunk) override {
    pending_ += chunk;
    std::string_view rest = pending_;
    while (left_ > 0 && !rest.empty()) {
      if (rest.starts_with(rule_.content)) {
        rest.remove_prefix(rule_.content.size());
        --left_;
      } else {
        left_ = 0;
      }
    }
    size_t certain = rest.size();
    for (size_t i = 0; i < rule_.stop && rest.substr(0, certain).ends_with(rule_.content); ++i)
      certain -= rule_.content.size();
    if (certain > 0) next_->Push(rest.substr(0, certain));
    pending_ = std::string(rest.substr(certain));
  }

 private:
  const StripRule& rule_;
  size_t left_;
  std::string pending_;  // may be stripped from the end
};

/// Replaces a string in a text that comes in chunks.
class ReplaceChunks : public DecodeStage {
 public:
  ReplaceChunks(DecodeStage* next, const std::string& from, const std::string& to)
      : DecodeStage(next), from_(from), to_(to) {}
  void Push(std::string_view chunk) override {
    pending_ += chunk;
    std::string text;
    size_t begin = 0;
    for (size_t at; (at = pending_.find(from_, begin)) != std::string::npos;
         begin = at + from_.size())
      text.append(pending_, begin, at - begin).append(to_);
    // An end that may be the beginning of a match waits.
    size_t keep = std::min(from_.size() - 1, pending_.size() - begin);
    while (keep > 0 &&
           !from_.starts_with(std::string_view(pending_).substr(pending_.size() - keep)))
      --keep;
    text.append(pending_, begin, pending_.size() - keep - begin);
    pending_.erase(0, pending_.size() - keep);
    if (!text.empty()) next_->Push(text);
  }
  void Finish() override {
    if (!pending_.empty()) next_->Push(pending_);
    next_->Finish();
  }

 private:
  const std::string& from_;
  const std::string& to_;
  std::string pending_;
};

struct MetaspaceRule {
  std::string replacement;
  bool drop_first;  // the marks of the first token stand for nothing

  std::string operator()(std::string_view token, bool first) const {
    std::string text;
    size_t begin = 0;
    for (size_t at; (at = token.find(replacement, begin)) != std::string_view::npos;
         begin = at + replacement.size()) {
      text += token.substr(begin, at - begin);
      if (!(first && drop_first)) text += ' ';
    }
    return text.append(token.substr(begin));
  }
};

class Metaspace : public DecodeStage {
 public:
  Metaspace(DecodeStage* next, const MetaspaceRule& rule) : DecodeStage(next), rule_(rule) {}
  void Push(std::string_view token) override {
    next_->Push(rule_(token, first_));
    first_ = false;
  }

 private:
  const MetaspaceRule& rule_;
  bool first_ = true;
};

StripRule ParseStrip(const JsonNode& node) {
  const JsonNode content = node.At("content");
  if (CountCodePoints(content.String()) != 1) content.Fail("is not one character");
  return {content.String(), static_cast<size_t>(node.At("start").Int(0, kMaxStrip)),
          static_cast<size_t>(node.At("stop").Int(0, kMaxStrip))};
}

MetaspaceRule ParseMetaspace(const JsonNode& node) {
  const JsonNode replacement = node.At("replacement");
  if (CountCodePoints(replacement.String()) != 1) replacement.Fail("is not one character");
  bool never = !node.BoolOr("add_prefix_space", true);
  if (const auto scheme = node.Find("prepend_scheme")) {
    if (scheme->String() == "never")
      never = true;
    else if (scheme->String() != "first" && scheme->String() != "always")
      scheme->FailUnsupported();
  }
  return {replacement.String(), !never};
}

}  // namespace

TokenDecoder::TokenDecoder() {
  makers_.push_back([](DecodeStage* next) { return std::make_unique<Join>(next); });
}

TokenDecoder::TokenDecoder(const JsonNode& node) { AddMakers(node, 0); }

TokenDecoder::~TokenDecoder() = default;

void TokenDecoder::AddMakers(const JsonNode& node, int depth) {
  const JsonNode type_node = node.At("type");
  const std::string& type = type_node.String();
  if (type == "Sequence") {
    if (depth == kMaxDepth) node.Fail("is nested too deeply");
    const JsonNode parts = node.At("decoders");
    for (size_t i = 0; i < parts.size(); ++i) AddMakers(parts[i], depth + 1);
    return;
  }
  if (fused_) return AddFusedMaker(node, type);
  // A rule is kept by its maker, which lives as long as the decoder.
  if (type == "Fuse") {
    fused_ = true;
  } else if (type == "ByteLevel") {
    makers_.push_back([](DecodeStage* next) { return std::make_unique<ByteLevel>(next); });
    fused_ = true;
  } else if (type == "ByteFallback") {
    makers_.push_back([](DecodeStage* next) { return std::make_unique<ByteFallback>(next); });
  } else if (type == "Metaspace") {
    makers_.push_back([rule = std::make_shared<MetaspaceRule>(ParseMetaspace(node))](
                          DecodeStage* next) { return std::make_unique<Metaspace>(next, *rule); });
  } else if (type == "Replace" || type == "Strip") {
    Transform transform;
    if (type == "Strip") {
      transform = ParseStrip(node);
    } else {
      auto pattern = std::make_shared<TextPattern>(TextPattern::FromJson(node.At("pattern")));
      transform = [pattern, content = node.At("content").String()](std::string_view text) {
        return pattern->ReplaceAll(text, content);
      };
    }
    makers_.push_back([rule = std::make_shared<Transform>(transform)](DecodeStage* next) {
      return std::make_unique<Map>(next, *rule);
    });
  } else {
    type_node.FailUnsupported();
  }
}

void TokenDecoder::AddFusedMaker(const JsonNode& node, const std::string& type) {
  Transform whole;
  if (type == "Fuse") {
    return;
  } else if (type == "Strip") {
    makers_.push_back([rule = std::make_shared<StripRule>(ParseStrip(node))](DecodeStage* next) {
      return std::make_unique<StripChunks>(next, *rule);
    });
    return;
  } else if (type == "Replace") {
    auto pattern = std::make_shared<TextPattern>(TextPattern::FromJson(node.At("pattern")));
    auto content = std::make_shared<std::string>(node.At("content").String());
    if (pattern->literal() != nullptr) {
      makers_.push_back([pattern, content](DecodeStage* next) {
        return std::make_unique<ReplaceChunks>(next, *pattern->literal(), *content);
      });
      return;
    }
    whole = [pattern, content](std::string_view text) {
      return pattern->ReplaceAll(text, *content);
    };
  } else if (type == "ByteLevel") {
    whole = [](std::string_view text) {
      const auto bytes = FromByteAlphabet(text);
      std::string out;
      AppendLossyUtf8(bytes ? *bytes : text, true, out);
      return out;
    };
  } else if (type == "ByteFallback") {
    whole = [](std::string_view text) {
      const auto byte = ByteFallback::Byte(text);
      return byte ? ByteFallback::Text(std::string(1, *byte)) : std::string(text);
    };
  } else if (type == "Metaspace") {
    whole = [rule = ParseMetaspace(node)](std::string_view text) { return rule(text, true); };
  } else {
    node.At("type").FailUnsupported();
  }
  makers_.push_back([rule = std::make_shared<Transform>(std::move(whole))](DecodeStage* next) {
    return std::make_unique<Whole>(next, *rule);
  });
}

/// Collects what the last stage gives.
class TokenDecoder::Run::Sink : public DecodeStage {
 public:
  Sink() : DecodeStage(nullptr) {}
  void Push(std::string_view piece) override { text_->append(piece); }
  void Finish() override {}
  void Into(std::string& text) { text_ = &text; }

 private:
  std::string* text_ = nullptr;
};

TokenDecoder::Run::Run(const TokenDecoder& decoder) : sink_(std::make_unique<Sink>()) {
  DecodeStage* next = sink_.get();
  for (auto maker = decoder.makers_.rbegin(); maker != decoder.makers_.rend(); ++maker) {
    stages_.push_back((*maker)(next));
    next = stages_.back().get();
  }
  std::reverse(stages_.begin(), stages_.end());
}

TokenDecoder::Run::~Run() = default;

void TokenDecoder::Run::Append(std::string_view token, std::string& text) {
  sink_->Into(text);
  if (stages_.empty())
    sink_->Push(token);
  else
    stages_.front()->Push(token);
}

void TokenDecoder::Run::Finish(std::string& text) {
  sink_->Into(text);
  if (!stages_.empty()) stages_.front()->Finish();
}

}  // namespace rollcast
