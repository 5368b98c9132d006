// A configuration file and, behind a line "--set", one --set a line: a configuration that is
// written and read back the same, or an Error.
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "launch/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rollcast;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string divider = "\n--set\n";
  const size_t end = std::min(text.find(divider), text.size());
  std::vector<Setting> sets;
  if (end < text.size()) {
    std::istringstream lines(text.substr(end + divider.size()));
    for (std::string line; std::getline(lines, line);) sets.emplace_back(line);
  }
  std::string written;
  try {
    written = ToToml(ParseConfig(text.substr(0, end), "fuzz", sets));
  } catch (const Error&) {
    return 0;
  }
  RC_CHECK_EQ(ToToml(ParseConfig(written, "written")), written);
  return 0;
}
