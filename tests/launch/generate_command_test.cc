#include "launch/generate_command.h"

#include <gtest/gtest.h>

namespace rollcast {
namespace {

Trajectory Sample(const std::string& text) {
  Trajectory t;
  t.prompt_id = "q";
  t.text = text;
  t.completion = {1, 2};
  t.reward = 0.5;
  return t;
}

TEST(Preview, IsOneShortLine) {
  EXPECT_EQ(Preview(Sample("a\tb\r\n\x1b[1mc\xC2\x85"), false), "q: a\\x09b\\x0d\\n\\x1b[1mc\\x85");
  std::string hundred;
  for (int i = 0; i < 100; ++i) hundred += "\xC3\xA9";
  EXPECT_EQ(Preview(Sample(hundred), false), "q: " + hundred);
  EXPECT_EQ(Preview(Sample(hundred + "x"), false), "q: " + hundred + " ...");
  EXPECT_EQ(Preview(Sample("\xFF"), false), "q: \xEF\xBF\xBD");
}

TEST(Preview, TellsSampleRewardAndOutcome) {
  Trajectory t = Sample("yes");
  EXPECT_EQ(Preview(t, true), "q [reward 0.5]: yes");
  t.group_size = 4;
  t.sample_index = 3;
  EXPECT_EQ(Preview(t, false), "q #3: yes");
  t.outcome = Outcome::kAborted;
  EXPECT_EQ(Preview(t, true), "q #3 [aborted]: yes");
  t.outcome = Outcome::kRefused;
  t.text.clear();
  t.completion.clear();
  t.message = "the prompt is too long";
  EXPECT_EQ(Preview(t, true), "q #3 [refused]: the prompt is too long");
}

TEST(Preview, CountsTokensWhereThereIsNoText) {
  EXPECT_EQ(Preview(Sample(""), false), "q: (2 tokens without text)");
}

}  // namespace
}  // namespace rollcast
