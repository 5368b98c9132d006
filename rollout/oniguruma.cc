#include "rollout/oniguruma.h"

#include <array>
#include <cctype>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "rollout/unicode.h"

namespace rollcast {

namespace {

// Members of a character class. PCRE2's own \s has U+180E too and its \w lacks marks.
constexpr std::string_view kSpaceSet = "\\p{Z}\\t-\\r\\x{85}";
constexpr std::string_view kWordSet = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// What \w has besides when it stands outside a class: superscript digits and fractions of Latin-1.
constexpr std::string_view kLatinWordSet = "\\xB2\\xB3\\xB9\\xBC-\\xBE";
constexpr std::string_view kHexSet = "0-9A-Fa-f";

constexpr int kMaxDepth = 100;  // of groups and nested classes: translation recurses

using NamePair = std::pair<std::string_view, std::string_view>;
// Long names of general categories (UAX 44), which PCRE2 knows by their short names only.
constexpr NamePair kCategories[] = {{"letter", "L"},
                                    {"uppercaseletter", "Lu"},
                                    {"lowercaseletter", "Ll"},
                                    {"titlecaseletter", "Lt"},
                                    {"modifierletter", "Lm"},
                                    {"otherletter", "Lo"},
                                    {"mark", "M"},
                                    {"nonspacingmark", "Mn"},
                                    {"spacingmark", "Mc"},
                                    {"enclosingmark", "Me"},
                                    {"number", "N"},
                                    {"decimalnumber", "Nd"},
                                    {"letternumber", "Nl"},
                                    {"othernumber", "No"},
                                    {"punctuation", "P"},
                                    {"connectorpunctuation", "Pc"},
                                    {"dashpunctuation", "Pd"},
                                    {"openpunctuation", "Ps"},
                                    {"closepunctuation", "Pe"},
                                    {"initialpunctuation", "Pi"},
                                    {"finalpunctuation", "Pf"},
                                    {"otherpunctuation", "Po"},
                                    {"symbol", "S"},
                                    {"mathsymbol", "Sm"},
                                    {"currencysymbol", "Sc"},
                                    {"modifiersymbol", "Sk"},
                                    {"othersymbol", "So"},
                                    {"separator", "Z"},
                                    {"spaceseparator", "Zs"},
                                    {"lineseparator", "Zl"},
                                    {"paragraphseparator", "Zp"},
                                    {"other", "C"},
                                    {"control", "Cc"},
                                    {"format", "Cf"},
                                    {"surrogate", "Cs"},
                                    {"privateuse", "Co"},
                                    {"unassigned", "Cn"},
                                    {"any", "Any"}};
// Oniguruma's POSIX names in Unicode (its doc/RE), as members of a class.
constexpr NamePair kPosix[] = {{"alnum", "\\p{Alphabetic}\\p{Nd}"},
                               {"alpha", "\\p{Alphabetic}"},
                               {"blank", "\\p{Zs}\\t"},
                               {"cntrl", "\\p{Cc}"},
                               {"digit", "\\p{Nd}"},
                               {"lower", "\\p{Lowercase}"},
                               {"punct", "\\p{P}"},
                               {"space", kSpaceSet},
                               {"upper", "\\p{Uppercase}"},
                               {"xdigit", kHexSet},
                               {"word", kWordSet}};
constexpr std::string_view kBinaryProperties[] = {
    "alphabetic",  "whitespace", "uppercase",     "lowercase",         "emoji",
    "ideographic", "math",       "emojimodifier", "emojipresentation", "extendedpictographic"};

std::optional<std::string_view> Lookup(std::span<const NamePair> table, std::string_view name) {
  for (const auto& [key, value] : table)
    if (key == name) return value;
  return std::nullopt;
}

/// What one escape or one member of a class stands for.
struct Member {
  std::string set;                    // members of a class, ready to stand between brackets
  bool negated = false;               // everything but `set`
  std::optional<char32_t> character;  // `set` is this one character: it may begin a range
};

std::string Literal(char32_t c) {
  if (c < 0x80 && std::isalnum(static_cast<int>(c))) return std::string(1, static_cast<char>(c));
  if (c < 0x20 || c >= 0x7F) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    std::string hex;
    for (char32_t rest = c; rest > 0 || hex.empty(); rest /= 16)
      hex.insert(hex.begin(), kDigits[rest % 16]);
    return "\\x{" + hex + "}";
  }
  return std::string("\\") + static_cast<char>(c);
}

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  std::string Run() {
    std::string out = Alternatives();
    if (!AtEnd()) Fail("an unmatched )");
    return out;
  }

 private:
  [[noreturn]] void Fail(std::string_view what) const {
    throw Error(StrCat("\"", in_, "\" has ", what, " at byte ", at_));
  }

  bool AtEnd() const { return at_ >= in_.size(); }
  char Peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool Take(std::string_view token) {
    if (in_.substr(at_).substr(0, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  char32_t TakeCharacter(std::string_view where) {
    if (AtEnd()) Fail(StrCat("an unfinished ", where));
    const CodePoint c = FirstCodePoint(in_.substr(at_));
    at_ += c.length;
    return c.value;
  }
  std::string_view TakeUntil(char stop, std::string_view where) {
    const size_t end = in_.find(stop, at_);
    if (end == std::string_view::npos) Fail(StrCat("an unfinished ", where));
    const std::string_view taken = in_.substr(at_, end - at_);
    at_ = end + 1;
    return taken;
  }

  /// Branches up to the end of the group or of the pattern.
  std::string Alternatives() {
    if (++depth_ > kMaxDepth) Fail("groups nested too deeply");
    std::string out;
    std::string closers;  // of the groups that isolated options open
    size_t atom = 0;      // where the last atom begins in `out`
    while (!AtEnd() && Peek() != ')') {
      if (Take("|")) {
        out += '|';
        atom = out.size();
      } else if (!Quantifier(out, atom)) {
        atom = out.size();
        out += Atom(closers);
      }
    }
    --depth_;
    return out + closers;
  }

  std::string Atom(std::string& closers) {
    if (Take("(")) return Group(closers);
    if (Take("[")) return Class();
    if (Take("\\")) return EscapeOutsideClass();
    const char c = Peek();
    if (c == '.' || c == '^' || c == '$') {
      ++at_;
      return std::string(1, c);
    }
    if (c == '*' || c == '+' || c == '?') Fail("a quantifier with nothing before it");
    return Literal(TakeCharacter("pattern"));
  }

  std::string Group(std::string& closers) {
    if (Peek() == '*') Fail("(*, which is not supported,");
    std::string open = "(";
    if (Take("?")) {
      bool known = false;
      for (const std::string_view head : {":", "=", "!", ">", "<=", "<!"}) {
        if (!Take(head)) continue;
        open = StrCat("(?", head);
        known = true;
        break;
      }
      if (!known && Take("#")) {
        TakeUntil(')', "comment");
        return "";
      }
      if (!known && Take("<")) {
        open = StrCat("(?<", TakeUntil('>', "group name"), ">");
      } else if (!known) {
        open = "(?" + Options();
        if (Take(")")) {
          // Ruby's isolated option encloses all that follows in the group, alternatives included.
          closers += ')';
          return open + ":";
        }
        if (!Take(":")) Fail("a group that is not supported");
        open += ':';
      }
    }
    std::string out = open + Alternatives();
    if (!Take(")")) Fail("an unmatched (");
    return out + ")";
  }

  std::string Options() {
    std::string out;
    for (; !AtEnd() && Peek() != ')' && Peek() != ':'; ++at_) {
      switch (Peek()) {
        case 'i':
        case '-':
          out += Peek();
          break;
        case 'm':  // Ruby's m lets the dot match a newline
          out += 's';
          break;
        default:
          Fail("a group or an option that is not supported");
      }
    }
    return out;
  }

  /// Appends a quantifier to `out`, whose last atom begins at `atom`.
  bool Quantifier(std::string& out, size_t atom) {
    const auto wrap = [&](std::string_view suffix) {
      out = StrCat(out.substr(0, atom), "(?:", out.substr(atom), ")", suffix);
    };
    if (out.size() == atom) return false;
    const char c = Peek();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      out += c;
      if (Peek() == '?' || Peek() == '+') out += in_[at_++];  // reluctant, possessive
      return true;
    }
    if (c != '{') return false;
    size_t end = at_ + 1;
    const auto digits = [&] {
      const size_t begin = end;
      while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) ++end;
      return std::string(in_.substr(begin, end - begin));
    };
    const std::string low = digits();
    const bool comma = end < in_.size() && in_[end] == ',';
    std::string high = low;
    if (comma) {
      ++end;
      high = digits();
    }
    // Not an interval: Atom takes the brace as itself.
    if (end >= in_.size() || in_[end] != '}' || (low.empty() && high.empty())) return false;
    at_ = end + 1;
    out += comma ? StrCat("{", low.empty() ? "0" : low, ",", high, "}") : StrCat("{", low, "}");
    // In Ruby syntax + after an interval repeats it, and so does ? after a fixed one.
    if (Take("+")) {
      wrap("+");
    } else if (Peek() == '?') {
      ++at_;
      if (comma)
        out += '?';
      else
        wrap("?");
    }
    return true;
  }

  std::string EscapeOutsideClass() {
    const char c = Peek();
    switch (c) {
      case 'b':
      case 'B': {
        ++at_;
        const std::string word = StrCat("[", kWordSet, "]");
        return c == 'b' ? StrCat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))")
                        : StrCat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
      }
      case 'A':
      case 'Z':
      case 'z':
      case 'G':
      case 'R':
      case 'X':
      case 'N':
        ++at_;
        return std::string("\\") + c;
      case 'O':
        ++at_;
        return "(?s:.)";
      default:
        break;
    }
    if (c >= '1' && c <= '9') {
      ++at_;
      if (std::isdigit(static_cast<unsigned char>(Peek()))) Fail("a reference past \\9");
      return StrCat("\\g{", c, "}");
    }
    Member member = Escape();
    if (member.character) return member.set;
    if (member.set == kWordSet && (c == 'w' || c == 'W')) member.set += kLatinWordSet;
    return StrCat(member.negated ? "[^" : "[", member.set, "]");
  }

  /// After a backslash: a character, or a set of them.
  Member Escape() {
    const size_t begin = at_;
    const char32_t c = TakeCharacter("escape");
    const auto one = [](char32_t value) { return Member{Literal(value), false, value}; };
    switch (c) {
      case 's':
      case 'S':
        return {std::string(kSpaceSet), c == 'S', {}};
      case 'w':
      case 'W':
        return {std::string(kWordSet), c == 'W', {}};
      case 'd':
      case 'D':
        return {"\\p{Nd}", c == 'D', {}};
      case 'h':
      case 'H':
        return {std::string(kHexSet), c == 'H', {}};
      case 'p':
      case 'P':
        return Property(c == 'P');
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'a':
        return one('\a');
      case 'e':
        return one(0x1B);
      case '0':
        if (std::isdigit(static_cast<unsigned char>(Peek()))) Fail("an octal escape");
        return one(0);
      case 'u':
        return one(HexNumber(in_.substr(at_, 4), 4));
      case 'x':
        if (Take("{")) {
          const std::string_view digits = TakeUntil('}', "\\x{");
          at_ -= digits.size() + 1;
          const char32_t value = HexNumber(digits, digits.size());
          ++at_;
          return one(value);
        } else {
          const char32_t value = HexNumber(in_.substr(at_, 2), 2);
          if (value >= 0x80) Fail("\\x with a byte that is no character");
          return one(value);
        }
      default:
        break;
    }
    if (c < 0x80 && std::isalnum(static_cast<int>(c))) {
      at_ = begin;
      Fail(StrCat("\\", static_cast<char>(c), ", which is not supported,"));
    }
    return one(c);
  }

  char32_t HexNumber(std::string_view digits, size_t length) {
    char32_t value = 0;
    if (digits.size() != length || length == 0 || length > 6) Fail("a bad hexadecimal escape");
    for (const char c : digits) {
      if (!std::isxdigit(static_cast<unsigned char>(c))) Fail("a bad hexadecimal escape");
      value = value * 16 + static_cast<char32_t>(std::isdigit(static_cast<unsigned char>(c))
                                                     ? c - '0'
                                                     : std::tolower(c) - 'a' + 10);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) Fail("\\x with no character");
    at_ += length;
    return value;
  }

  /// After \p or \P.
  Member Property(bool negated) {
    if (!Take("{")) Fail("\\p without {");
    if (Take("^")) negated = !negated;
    const std::string_view raw = TakeUntil('}', "\\p{");
    std::string name;
    for (const char c : raw) {
      if (c == ' ' || c == '_' || c == '-') continue;
      if (!std::isalnum(static_cast<unsigned char>(c))) Fail("a property that is not supported");
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    if (const auto set = Lookup(kPosix, name)) return {std::string(*set), negated, {}};
    if (const auto category = Lookup(kCategories, name))
      return {StrCat("\\p{", *category, "}"), negated, {}};
    for (const auto& [unused, category] : kCategories) {
      std::string lower;
      for (const char c : category) lower += static_cast<char>(std::tolower(c));
      if (lower == name) return {StrCat("\\p{", category, "}"), negated, {}};
    }
    for (const std::string_view property : kBinaryProperties)
      if (property == name) return {StrCat("\\p{", property, "}"), negated, {}};
    // PCRE2 takes a bare script name as its extensions.
    return {StrCat("\\p{sc:", raw, "}"), negated, {}};
  }

  /// After [: an expression that matches one character. A class with parts that do not fit between
  /// one pair of brackets becomes a choice of several.
  std::string Class() {
    if (++depth_ > kMaxDepth) Fail("classes nested too deeply");
    const bool negated = Take("^");
    std::string left;  // look-ahead for the operands of && so far
    std::string set;
    std::vector<std::string> others;
    const auto joined = [&] {
      std::string out = set.empty() ? "" : StrCat("[", set, "]");
      for (const std::string& other : others) out += (out.empty() ? "" : "|") + other;
      return out.empty() ? std::string("(?!)") : StrCat("(?:", out, ")");
    };
    for (bool first = true;; first = false) {
      if (AtEnd()) Fail("an unfinished class");
      if (!first && Take("]")) break;
      if (Take("&&")) {
        left += StrCat("(?=", joined(), ")");
        set.clear();
        others.clear();
        continue;
      }
      if (Peek() == '[' && Peek(1) == ':') {
        Add(PosixBracket(), set, others);
      } else if (Take("[")) {
        others.push_back(Class());
      } else {
        Range(set, others);
      }
    }
    --depth_;
    if (left.empty() && others.empty() && !set.empty())
      return StrCat(negated ? "[^" : "[", set, "]");
    const std::string positive = left + joined();
    return negated ? StrCat("(?:(?!", positive, ")(?s:.))") : StrCat("(?:", positive, ")");
  }

  static void Add(const Member& member, std::string& set, std::vector<std::string>& others) {
    if (member.negated)
      others.push_back(StrCat("[^", member.set, "]"));
    else
      set += member.set;
  }

  Member ClassMember() {
    if (!Take("\\")) {
      const char32_t c = TakeCharacter("class");
      return {Literal(c), false, c};
    }
    if (Take("b")) return {"\\x{8}", false, U'\b'};
    return Escape();
  }

  void Range(std::string& set, std::vector<std::string>& others) {
    const Member low = ClassMember();
    const bool dash = low.character && Peek() == '-' && Peek(1) != ']' && Peek(1) != '[' &&
                      !(Peek(1) == '&' && Peek(2) == '&') && at_ + 1 < in_.size();
    if (!dash) return Add(low, set, others);
    ++at_;
    const Member high = ClassMember();
    if (!high.character) {  // [a-\s]: the dash is itself
      Add(low, set, others);
      set += "\\-";
      return Add(high, set, others);
    }
    if (*high.character < *low.character) Fail("a range that runs backwards");
    set += StrCat(low.set, "-", high.set);
  }

  Member PosixBracket() {
    Take("[:");
    const bool negated = Take("^");
    const std::string_view name = TakeUntil(':', "POSIX bracket");
    const auto set = Lookup(kPosix, name);
    if (!set || !Take("]")) Fail("a POSIX bracket that is not supported");
    return {StrCat(*set, name == "punct" ? "\\p{S}" : ""), negated, {}};
  }

  std::string_view in_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::string OnigurumaToPcre2(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace rollcast
