// Regular expressions as tokenizer.json writes them, in PCRE2's syntax.
#pragma once

#include <string>
#include <string_view>

namespace rollcast {

/// Translates Oniguruma's Ruby syntax, which Hugging Face tokenizers compile, to a pattern for
/// PCRE2 with UTF, UCP and MULTILINE. The two differ silently in \s, \w, \b, \h, (?m), script
/// names, nested and intersected classes, possessive intervals and the reach of an isolated (?i). A
/// construct with no counterpart is an Error that names it. REQUIRES: `pattern` is valid UTF-8.
std::string OnigurumaToPcre2(std::string_view pattern);

}  // namespace rollcast
