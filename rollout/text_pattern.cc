#define PCRE2_CODE_UNIT_WIDTH 8
#include "rollout/text_pattern.h"

#include <pcre2.h>

#include "kernels/check.h"
#include "rollout/oniguruma.h"
#include "rollout/unicode.h"
#include "rollout/unicode_age.h"

namespace rollcast {

namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
// Steps of one search. Patterns of published tokenizers need a few per character.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 256 << 10;  // of backtracking, where the stack does not do
constexpr size_t kJitStackStart = 32 << 10, kJitStackLimit = 1 << 20;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* handle) const {
    Free(handle);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

std::string Message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

/// Writes `text` with stand-ins to `out` and returns true, or returns false if it needs none.
bool WithStandIns(std::string_view text, std::string& out) {
  bool changed = false;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0xE0) {  // there are none below U+0800
      ++i;
      continue;
    }
    const CodePoint c = FirstCodePoint(text.substr(i));
    if (const char32_t stand_in = StandIn(c.value); stand_in != c.value) {
      if (!changed) out = text;
      changed = true;
      std::string bytes;
      AppendUtf8(stand_in, bytes);
      RC_CHECK_EQ(bytes.size(), c.length);
      out.replace(i, c.length, bytes);
    }
    i += c.length;
  }
  return changed;
}

pcre2_jit_stack* ThreadJitStack(void*) {
  static thread_local JitStack stack(
      pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr));
  return stack.get();
}

}  // namespace

struct TextPattern::Compiled {
  Code code;
  MatchContext context;
};

TextPattern::TextPattern() = default;
TextPattern::~TextPattern() = default;
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;

TextPattern TextPattern::Literal(std::string text) {
  // Matches everywhere, which is not what a search for a string is good at.
  if (text.empty()) return Regex("");
  TextPattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

TextPattern TextPattern::Regex(std::string_view source) {
  if (source.size() > kMaxPatternBytes)
    throw Error(StrCat("a regular expression of ", source.size(), " bytes, expected at most ",
                       kMaxPatternBytes));
  TextPattern pattern;
  pattern.text_ = source;
  const std::string translated = OnigurumaToPcre2(source);
  const CompileContext compile(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(compile.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                          &offset, compile.get()));
  if (!code) throw Error(StrCat("\"", source, "\" is no regular expression: ", Message(error)));
  // Without just-in-time compilation (an architecture or a kernel that forbids it) the same code
  // is interpreted.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  MatchContext context(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(context.get(), ThreadJitStack, nullptr);
  pattern.compiled_ = std::make_unique<Compiled>(Compiled{std::move(code), std::move(context)});
  return pattern;
}

TextPattern TextPattern::FromJson(const JsonNode& node) {
  if (const auto text = node.Find("String")) return Literal(text->String());
  const auto regex = node.Find("Regex");
  if (!regex) node.FailUnsupported();
  try {
    return Regex(regex->String());
  } catch (const Error& error) {
    regex->Fail(StrCat(": ", error.what()));
  }
}

bool TextPattern::Find(std::string_view text, size_t from, void* match_data, size_t& begin,
                       size_t& end) const {
  if (!compiled_) {
    begin = text.find(text_, from);
    end = begin + text_.size();
    return begin != std::string_view::npos;
  }
  auto* const data = static_cast<pcre2_match_data*>(match_data);
  const auto match = [&](uint32_t options) {
    return pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), from, options | PCRE2_NO_UTF_CHECK, data,
                       compiled_->context.get());
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0)
    throw Error(StrCat("tokenizer: the pattern \"", text_, "\" fails on a text of ", text.size(),
                       " bytes: ", Message(result)));
  const PCRE2_SIZE* const offsets = pcre2_get_ovector_pointer(data);
  begin = offsets[0];
  end = offsets[1];
  // \K inside a look-around could move the start past the end.
  if (begin > end || begin < from)
    throw Error(StrCat("tokenizer: the pattern \"", text_, "\" matches backwards"));
  return true;
}

void TextPattern::Cut(std::string_view text, std::vector<Part>& parts, Polling* polling) const {
  parts.clear();
  if (text.empty()) return;
  std::string changed;
  if (compiled_ && WithStandIns(text, changed)) text = changed;
  const MatchData data(
      compiled_ ? pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr) : nullptr);
  size_t covered = 0;  // parts end here
  size_t from = 0;     // search on from here
  bool any = false;    // a match has been taken
  size_t begin, end;
  while (from <= text.size() && Find(text, from, data.get(), begin, end)) {
    if (polling != nullptr) polling->DidOne();
    if (begin == end && any && begin == covered) {
      // An empty match right behind the last one would not get on.
      from = begin == text.size() ? begin + 1 : begin + FirstCodePoint(text.substr(begin)).length;
      continue;
    }
    if (covered != begin) parts.push_back({covered, begin, false});
    parts.push_back({begin, end, true});
    covered = from = end;
    any = true;
  }
  if (covered != text.size()) parts.push_back({covered, text.size(), false});
}

std::string TextPattern::ReplaceAll(std::string_view text, std::string_view with) const {
  std::vector<Part> parts;
  Cut(text, parts);
  std::string result;
  result.reserve(text.size());
  for (const Part& part : parts)
    result += part.match ? with : text.substr(part.begin, part.end - part.begin);
  return result;
}

}  // namespace rollcast
