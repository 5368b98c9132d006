// What scorers are given: replies of commands and of HTTP servers, and completions with numbers. A
// reward is finite or there is a reason why there is none; a number is finite.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "kernels/check.h"
#include "rollout/numeric_answer.h"
#include "rollout/scorers.h"

namespace rollcast {
namespace {

void CheckScore(const Score& score) {
  RC_CHECK(std::isfinite(score.reward) && (score.error.empty() || score.reward == 0));
}

void CheckNumbers(std::string_view text) {
  const size_t cut = std::min(text.find('|'), text.size());
  const std::string_view a = text.substr(0, cut), b = text.substr(std::min(cut + 1, text.size()));
  for (const auto& number : {ParseNumber(a), FinalNumber(a), FinalNumber(b)}) {
    if (!number) continue;
    RC_CHECK(std::isfinite(number->value), number->value);
    RC_CHECK(SameNumber(*number, *number), number->value);
  }
  RC_CHECK_EQ(SameAnswer(a, b), SameAnswer(b, a));
}

}  // namespace
}  // namespace rollcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rollcast;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      CheckScore(ReadCommandReply(text).score);
      break;
    case 1:
      try {
        const size_t count = data[0] / 3 % 4;
        const auto scores = ReadHttpReply(text, count);
        RC_CHECK_EQ(scores.size(), count);
        std::ranges::for_each(scores, CheckScore);
      } catch (const Error&) {
      }
      break;
    default:
      CheckNumbers(text);
  }
  return 0;
}
