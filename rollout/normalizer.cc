#include "rollout/normalizer.h"

#include <algorithm>

#include "rollout/byte_alphabet.h"
#include "rollout/text_pattern.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {
constexpr int kMaxDepth = 16;  // of nested sequences
}  // namespace

class Normalizer::Step {
 public:
  virtual ~Step() = default;
  /// REQUIRES: the text is not empty.
  virtual void Apply(NormalizedText& text) const = 0;
};

namespace {

class Form : public Normalizer::Step {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void Apply(NormalizedText& text) const override {
    const size_t first = FirstCodePoint(text.text).length;
    const std::string alone =
        text.origin_bytes > 0 ? ToNormalForm(std::string_view(text.text).substr(0, first), form_)
                              : std::string();
    text.text = ToNormalForm(text.text, form_);
    // The first character alone may compose with what follows it, or come apart.
    if (text.origin_bytes > 0)
      text.origin_bytes = text.text.starts_with(alone) ? std::max(alone.size(), size_t{1})
                                                       : FirstCodePoint(text.text).length;
  }

 private:
  NormalForm form_;
};

class Prepend : public Normalizer::Step {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void Apply(NormalizedText& text) const override {
    text.text.insert(0, prefix_);
    if (text.origin_bytes > 0) text.origin_bytes += prefix_.size();
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer::Step {
 public:
  Replace(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(NormalizedText& text) const override {
    std::vector<TextPattern::Part> parts;
    pattern_.Cut(text.text, parts);
    std::string result;
    result.reserve(text.text.size() + text.text.size() / 4);
    size_t origin = 0;
    for (const TextPattern::Part& part : parts) {
      if (part.match) {
        result += content_;
        // A replacement stands where the last byte that it replaces stood.
        if (part.end <= text.origin_bytes) origin = result.size();
      } else {
        result.append(text.text, part.begin, part.end - part.begin);
        if (part.begin < text.origin_bytes)
          origin = result.size() - (part.end - std::min(part.end, text.origin_bytes));
      }
    }
    text.text = std::move(result);
    text.origin_bytes = text.origin_bytes > 0 ? origin : 0;
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class Strip : public Normalizer::Step {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void Apply(NormalizedText& text) const override {
    std::string_view rest = text.text;
    while (left_ && !rest.empty() && IsWhitespace(FirstCodePoint(rest).value))
      rest.remove_prefix(FirstCodePoint(rest).length);
    if (rest.size() < text.text.size()) text.origin_bytes = 0;
    while (right_ && !rest.empty() && IsWhitespace(LastCodePoint(rest).value))
      rest.remove_suffix(LastCodePoint(rest).length);
    text.text = std::string(rest);
  }

 private:
  bool left_, right_;
};

/// Each character on its own, to nothing or more.
template <void (*Map)(char32_t, std::string&)>
class PerCharacter : public Normalizer::Step {
 public:
  void Apply(NormalizedText& text) const override {
    std::string result;
    result.reserve(text.text.size());
    size_t origin = 0;
    for (std::string_view rest = text.text; !rest.empty();) {
      const CodePoint c = FirstCodePoint(rest);
      Map(c.value, result);
      if (text.text.size() - rest.size() < text.origin_bytes) origin = result.size();
      rest.remove_prefix(c.length);
    }
    text.text = std::move(result);
    text.origin_bytes = origin;
  }
};

void KeepUnlessMark(char32_t c, std::string& out) {
  if (!IsMark(c)) AppendUtf8(c, out);
}

void ToBytes(char32_t c, std::string& out) {
  std::string bytes;
  AppendUtf8(c, bytes);
  out += ToByteAlphabet(bytes);
}

}  // namespace

Normalizer::Normalizer() = default;
Normalizer::~Normalizer() = default;

Normalizer::Normalizer(const JsonNode& node) { AddSteps(node, 0); }

void Normalizer::AddSteps(const JsonNode& node, int depth) {
  const JsonNode type_node = node.At("type");
  const std::string& type = type_node.String();
  if (type == "Sequence") {
    if (depth == kMaxDepth) node.Fail("is nested too deeply");
    const JsonNode parts = node.At("normalizers");
    for (size_t i = 0; i < parts.size(); ++i) AddSteps(parts[i], depth + 1);
  } else if (type == "NFC") {
    steps_.push_back(std::make_unique<Form>(NormalForm::kNfc));
  } else if (type == "NFD") {
    steps_.push_back(std::make_unique<Form>(NormalForm::kNfd));
  } else if (type == "NFKC") {
    steps_.push_back(std::make_unique<Form>(NormalForm::kNfkc));
  } else if (type == "NFKD") {
    steps_.push_back(std::make_unique<Form>(NormalForm::kNfkd));
  } else if (type == "Prepend") {
    steps_.push_back(std::make_unique<Prepend>(node.At("prepend").String()));
  } else if (type == "Replace") {
    steps_.push_back(std::make_unique<Replace>(TextPattern::FromJson(node.At("pattern")),
                                               node.At("content").String()));
  } else if (type == "Strip") {
    steps_.push_back(
        std::make_unique<Strip>(node.At("strip_left").Bool(), node.At("strip_right").Bool()));
  } else if (type == "StripAccents") {
    steps_.push_back(std::make_unique<PerCharacter<KeepUnlessMark>>());
  } else if (type == "Lowercase") {
    steps_.push_back(std::make_unique<PerCharacter<AppendLowercase>>());
  } else if (type == "ByteLevel") {
    steps_.push_back(std::make_unique<PerCharacter<ToBytes>>());
  } else {
    type_node.FailUnsupported();
  }
}

void Normalizer::Apply(NormalizedText& text) const {
  for (const auto& step : steps_) {
    if (text.text.empty()) return;
    step->Apply(text);
  }
}

std::string Normalizer::Apply(std::string_view text) const {
  NormalizedText normalized{std::string(text), 0};
  Apply(normalized);
  return std::move(normalized.text);
}

}  // namespace rollcast
