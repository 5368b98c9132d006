// The printable stand-ins for the 256 bytes in byte-level vocabularies (GPT-2's encoder.py): a byte
// that is a printable Latin-1 character stands for itself, the others for U+0100 onwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rollcast {

/// Each byte of `bytes` as the UTF-8 of its stand-in.
std::string ToByteAlphabet(std::string_view bytes);
/// The bytes that `text`, valid UTF-8, stands for; nothing if a character is no stand-in.
std::optional<std::string> FromByteAlphabet(std::string_view text);

}  // namespace rollcast
