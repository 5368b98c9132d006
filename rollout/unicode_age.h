// Characters younger than the Unicode tables of PCRE2 and utf8proc in stable distributions.
#pragma once

namespace rollcast {

/// For a character that Unicode 15 or 16 assigned, an older one with the same length in UTF-8 and
/// the same general category (for marks and symbols: its first letter), so that the pieces of a
/// text do not depend on the version of a library; otherwise `code_point` itself.
char32_t StandIn(char32_t code_point);

}  // namespace rollcast
