#include "kernels/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/testing/expect_error.h"

namespace rollcast {
namespace {

using testing::ExpectError;

Shape From(const std::vector<int64_t>& extents) {
  return Shape::From(extents.begin(), extents.end(), "tensor x");
}

TEST(ShapeTest, FromTakesWhatFits) {
  EXPECT_EQ(From({2, 3}), (Shape{2, 3}));
  EXPECT_EQ(From({}).NumElements(), 1);
  EXPECT_EQ(From({5, 0, 7}).NumElements(), 0);
  EXPECT_EQ(From({int64_t{1} << 30, int64_t{1} << 30}).NumElements(), int64_t{1} << 60);
}

// NumElements multiplies in 64 bits, from the left.
TEST(ShapeTest, FromRefusesWhatNumElementsCannotHold) {
  ExpectError([] { From({1, 2, 3, 4, 5}); }, {"tensor x: has more than 4 dimensions"});
  ExpectError([] { From({4, -2}); }, {"tensor x: shape [4, -2] is negative"});
  ExpectError([] { From({(int64_t{1} << 60) + 1}); }, {"shape [1152921504606846977] is too large"});
  ExpectError([] { From({int64_t{1} << 31, int64_t{1} << 30}); }, {"is too large"});
  const int64_t big = int64_t{1} << 40;
  ExpectError(
      [&] {
        From({big, big, 0});
      },
      {"tensor x: shape [1099511627776, 1099511627776, 0] is too large"});
  ExpectError([&] { From({0, big, big}); }, {"is too large"});
}

}  // namespace
}  // namespace rollcast
