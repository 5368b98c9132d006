#include "rollout/byte_alphabet.h"

#include <array>

#include "rollout/unicode.h"

namespace rollcast {

namespace {

struct Alphabet {
  std::array<std::string, 256> stand_in;
  std::array<int16_t, 512> byte;  // of a code point; -1: none

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable =
          (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      const char32_t code_point = printable ? static_cast<char32_t>(b) : next++;
      AppendUtf8(code_point, stand_in[b]);
      byte[code_point] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string ToByteAlphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) text += TheAlphabet().stand_in[static_cast<uint8_t>(c)];
  return text;
}

std::optional<std::string> FromByteAlphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const CodePoint c = FirstCodePoint(text);
    if (c.value >= 512 || TheAlphabet().byte[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(TheAlphabet().byte[c.value]);
    text.remove_prefix(c.length);
  }
  return bytes;
}

}  // namespace rollcast
