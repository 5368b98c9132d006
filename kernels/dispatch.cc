#include "kernels/dispatch.h"

#include <algorithm>

namespace rollcast {

Profile ParseProfile(std::string_view name) {
  if (name == "invariant") return Profile::kInvariant;
  if (name == "fastest") return Profile::kFastest;
  if (name == "reference") return Profile::kReference;
  throw Error(
      StrCat("kernels.profile: expected invariant, fastest or reference, not \"", name, "\""));
}

std::vector<std::pair<std::string, std::string>> ParseOps(std::string_view text,
                                                          std::string_view name) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals + 1 == entry.size())
      throw Error(StrCat(name, ": expected op=kernel, got \"", entry,
                         "\" (for instance linear=generic,attention=whole)"));
    const std::string op(entry.substr(0, equals));
    if (op != "linear" && op != "attention")
      throw Error(StrCat(name, ": no op \"", op, "\" has kernels to choose from; linear and ",
                         "attention have"));
    for (const auto& [earlier, kernel] : out)
      if (earlier == op) throw Error(StrCat(name, ": ", op, " is given twice"));
    out.emplace_back(op, entry.substr(equals + 1));
  }
  return out;
}

}  // namespace rollcast
