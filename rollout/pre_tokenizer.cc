#include "rollout/pre_tokenizer.h"

#include <algorithm>

#include "rollout/byte_alphabet.h"
#include "rollout/text_pattern.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

constexpr int kMaxDepth = 16;  // of nested sequences
// GPT-2's encoder.py.
constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

using Piece = PieceList::Piece;
using Part = TextPattern::Part;

/// What becomes of the matches: the names are tokenizer.json's.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior ParseBehavior(const JsonNode& node) {
  constexpr std::string_view kNames[] = {"Removed", "Isolated", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous"};
  for (int i = 0; i < 5; ++i)
    if (node.String() == kNames[i]) return static_cast<Behavior>(i);
  node.FailUnsupported();
}

/// Applies `behavior` to parts that cover a text.
void Arrange(Behavior behavior, std::vector<Part>& parts) {
  if (behavior == Behavior::kIsolated) return;
  if (behavior == Behavior::kRemoved) {
    std::erase_if(parts, [](const Part& part) { return part.match; });
    return;
  }
  std::vector<Part> arranged;
  bool previous_match = false;
  if (behavior == Behavior::kMergedWithNext) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->match && !previous_match && !arranged.empty())
        arranged.back().begin = part->begin;
      else
        arranged.push_back(*part);
      previous_match = part->match;
    }
    std::reverse(arranged.begin(), arranged.end());
  } else {
    for (const Part& part : parts) {
      const bool merges = behavior == Behavior::kContiguous ? part.match == previous_match
                                                            : part.match && !previous_match;
      if (merges && !arranged.empty())
        arranged.back().end = part.end;
      else
        arranged.push_back(part);
      previous_match = part.match;
    }
  }
  parts = std::move(arranged);
}

/// Appends the non-empty parts of `piece`.
void AppendParts(const Piece& piece, const std::vector<Part>& parts, std::vector<Piece>& out) {
  for (const Part& part : parts)
    if (part.end > part.begin)
      out.push_back({piece.text.substr(part.begin, part.end - part.begin),
                     piece.origin_bytes - std::min(piece.origin_bytes, part.begin)});
}

/// Parts of one character each where `matches`, and what lies between.
template <class Matches>
void CutCharacters(std::string_view text, Matches matches, std::vector<Part>& parts) {
  parts.clear();
  size_t covered = 0;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = FirstCodePoint(text.substr(i));
    if (matches(c.value)) {
      if (covered < i) parts.push_back({covered, i, false});
      covered = i + c.length;
      parts.push_back({i, covered, true});
    }
    i += c.length;
  }
  if (covered < text.size()) parts.push_back({covered, text.size(), false});
}

}  // namespace

class PreTokenizer::Step {
 public:
  virtual ~Step() = default;
  /// Appends what `piece` turns into; new text goes to `storage`.
  virtual void Apply(const Piece& piece, Polling& polling, std::vector<Piece>& out,
                     std::deque<std::string>& storage) const = 0;
  /// Told when no step follows.
  virtual bool LeaveBytes() { return false; }
};

namespace {

class Split : public PreTokenizer::Step {
 public:
  Split(TextPattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void Apply(const Piece& piece, Polling& polling, std::vector<Piece>& out,
             std::deque<std::string>&) const override {
    static thread_local std::vector<Part> parts;
    pattern_.Cut(piece.text, parts, &polling);
    if (invert_)
      for (Part& part : parts) part.match = !part.match;
    Arrange(behavior_, parts);
    AppendParts(piece, parts, out);
  }

 private:
  TextPattern pattern_;
  Behavior behavior_;
  bool invert_;
};

class SplitCharacters : public PreTokenizer::Step {
 public:
  SplitCharacters(bool (*matches)(char32_t), Behavior behavior)
      : matches_(matches), behavior_(behavior) {}
  void Apply(const Piece& piece, Polling&, std::vector<Piece>& out,
             std::deque<std::string>&) const override {
    static thread_local std::vector<Part> parts;
    CutCharacters(piece.text, matches_, parts);
    Arrange(behavior_, parts);
    AppendParts(piece, parts, out);
  }

 private:
  bool (*matches_)(char32_t);
  Behavior behavior_;
};

/// \w+|[^\w\s]+ of the regular expression engine that Hugging Face's Whitespace uses.
class Words : public PreTokenizer::Step {
 public:
  void Apply(const Piece& piece, Polling&, std::vector<Piece>& out,
             std::deque<std::string>&) const override {
    const auto kind = [](char32_t c) { return IsWhitespace(c) ? 0 : IsWordCharacter(c) ? 1 : 2; };
    std::vector<Part> parts;
    int previous = 0;
    for (size_t i = 0; i < piece.text.size();) {
      const CodePoint c = FirstCodePoint(piece.text.substr(i));
      const int current = kind(c.value);
      if (current != 0) {
        if (current == previous)
          parts.back().end = i + c.length;
        else
          parts.push_back({i, i + c.length, true});
      }
      previous = current;
      i += c.length;
    }
    AppendParts(piece, parts, out);
  }
};

class ByteLevel : public PreTokenizer::Step {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) pattern_ = TextPattern::Regex(kGpt2Pattern);
  }
  bool LeaveBytes() override { return leave_bytes_ = true; }
  void Apply(const Piece& piece, Polling& polling, std::vector<Piece>& out,
             std::deque<std::string>& storage) const override {
    Piece whole = piece;
    if (add_prefix_space_ && !whole.text.starts_with(' ')) {
      whole.text = storage.emplace_back(" ").append(piece.text);
      if (whole.origin_bytes > 0) ++whole.origin_bytes;
    }
    const size_t first = out.size();
    if (pattern_) {
      static thread_local std::vector<Part> parts;
      pattern_->Cut(whole.text, parts, &polling);
      AppendParts(whole, parts, out);
    } else {
      out.push_back(whole);
    }
    if (leave_bytes_) return;
    for (size_t i = first; i < out.size(); ++i) {
      Piece& part = out[i];
      const size_t origin = std::min(part.origin_bytes, part.text.size());
      part.origin_bytes = ToByteAlphabet(part.text.substr(0, origin)).size();
      part.text = storage.emplace_back(ToByteAlphabet(part.text));
    }
  }

 private:
  bool add_prefix_space_;
  bool leave_bytes_ = false;
  std::optional<TextPattern> pattern_;
};

class Metaspace : public PreTokenizer::Step {
 public:
  enum class Scheme { kFirst, kNever, kAlways };
  Metaspace(std::string replacement, Scheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}
  void Apply(const Piece& piece, Polling&, std::vector<Piece>& out,
             std::deque<std::string>& storage) const override {
    std::string& text = storage.emplace_back();
    text.reserve(piece.text.size() + piece.text.size() / 2 + replacement_.size());
    size_t origin = 0;
    for (size_t i = 0; i < piece.text.size(); ++i) {
      if (piece.text[i] == ' ')
        text += replacement_;
      else
        text += piece.text[i];
      if (i < piece.origin_bytes) origin = text.size();
    }
    const bool wanted = scheme_ == Scheme::kAlways || (scheme_ == Scheme::kFirst && origin > 0);
    if (wanted && !text.starts_with(replacement_)) {
      text.insert(0, replacement_);
      if (origin > 0) origin += replacement_.size();
    }
    const Piece whole{text, origin};
    if (!split_) {
      out.push_back(whole);
      return;
    }
    const char32_t mark = FirstCodePoint(replacement_).value;
    std::vector<Part> parts;
    CutCharacters(
        text, [&](char32_t c) { return c == mark; }, parts);
    Arrange(Behavior::kMergedWithNext, parts);
    AppendParts(whole, parts, out);
  }

 private:
  std::string replacement_;
  Scheme scheme_;
  bool split_;
};

std::unique_ptr<Metaspace> ParseMetaspace(const JsonNode& node) {
  const JsonNode replacement = node.At("replacement");
  if (CountCodePoints(replacement.String()) != 1) replacement.Fail("is not one character");
  auto scheme = Metaspace::Scheme::kAlways;
  const auto scheme_node = node.Find("prepend_scheme");
  if (scheme_node) {
    const std::string& name = scheme_node->String();
    if (name == "first")
      scheme = Metaspace::Scheme::kFirst;
    else if (name == "never")
      scheme = Metaspace::Scheme::kNever;
    else if (name != "always")
      scheme_node->FailUnsupported();
  }
  // The older way to say "never".
  if (!node.BoolOr("add_prefix_space", true)) {
    if (scheme_node && scheme != Metaspace::Scheme::kNever)
      node.Fail("has add_prefix_space = false, which contradicts its prepend_scheme");
    scheme = Metaspace::Scheme::kNever;
  }
  return std::make_unique<Metaspace>(replacement.String(), scheme, node.BoolOr("split", true));
}

}  // namespace

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

PreTokenizer::PreTokenizer(const JsonNode& node) {
  AddSteps(node, 0);
  if (!steps_.empty()) gives_bytes_ = steps_.back()->LeaveBytes();
}

void PreTokenizer::AddSteps(const JsonNode& node, int depth) {
  const JsonNode type_node = node.At("type");
  const std::string& type = type_node.String();
  if (type == "Sequence") {
    if (depth == kMaxDepth) node.Fail("is nested too deeply");
    const JsonNode parts = node.At("pretokenizers");
    for (size_t i = 0; i < parts.size(); ++i) AddSteps(parts[i], depth + 1);
  } else if (type == "ByteLevel") {
    // trim_offsets concerns offsets into the text, which rollcast does not give.
    steps_.push_back(std::make_unique<ByteLevel>(node.At("add_prefix_space").Bool(),
                                                 node.BoolOr("use_regex", true)));
  } else if (type == "Split") {
    steps_.push_back(std::make_unique<Split>(TextPattern::FromJson(node.At("pattern")),
                                             ParseBehavior(node.At("behavior")),
                                             node.At("invert").Bool()));
  } else if (type == "Digits") {
    steps_.push_back(std::make_unique<SplitCharacters>(
        IsNumeric,
        node.At("individual_digits").Bool() ? Behavior::kIsolated : Behavior::kContiguous));
  } else if (type == "Punctuation") {
    const auto behavior = node.Find("behavior");
    steps_.push_back(std::make_unique<SplitCharacters>(
        IsPunctuation, behavior ? ParseBehavior(*behavior) : Behavior::kIsolated));
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(std::make_unique<SplitCharacters>(IsWhitespace, Behavior::kRemoved));
  } else if (type == "Whitespace") {
    steps_.push_back(std::make_unique<Words>());
  } else if (type == "Metaspace") {
    steps_.push_back(ParseMetaspace(node));
  } else {
    type_node.FailUnsupported();
  }
}

void PreTokenizer::Apply(const NormalizedText& text, Polling& polling, PieceList& list) const {
  list.pieces.clear();
  list.storage.clear();
  if (text.text.empty()) return;
  list.pieces.push_back({text.text, text.origin_bytes});
  std::vector<Piece> next;
  for (const auto& step : steps_) {
    next.clear();
    for (const Piece& piece : list.pieces) step->Apply(piece, polling, next, list.storage);
    list.pieces.swap(next);
  }
}

}  // namespace rollcast
