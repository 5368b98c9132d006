#include "trainer_bridge/shared_counters.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/testing/expect_error.h"

namespace rollcast {
namespace {

TEST(SharedCounters, LieInAnObjectThatOtherProcessesSee) {
  const auto counters = SharedCounters::Create();
  (*counters)[0] = 7;
  (*counters)[SharedCounters::kCount - 1] = uint64_t{3} << 40;
  std::ifstream object("/dev/shm" + counters->name(), std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(object), {}};
  ASSERT_EQ(bytes.size(), 64u * SharedCounters::kCount);
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), 8);
  EXPECT_EQ(value, 7u);
  std::memcpy(&value, bytes.data() + bytes.size() - 64, 8);
  EXPECT_EQ(value, uint64_t{3} << 40);
  EXPECT_EQ((*counters)[1].load(), 0u);
}

TEST(SharedCounters, NothingIsLeftOnceUnlinkedOrDestroyed) {
  auto first = SharedCounters::Create();
  const std::string name = first->name();
  const auto again = SharedCounters::Open(name);
  (*first)[3] = 5;
  EXPECT_EQ((*again)[3].load(), 5u);
  first->Unlink();
  EXPECT_NE(access(("/dev/shm" + name).c_str(), F_OK), 0);
  std::string second;
  {
    const auto counters = SharedCounters::Create();
    second = counters->name();
    EXPECT_NE(second, name);
    EXPECT_EQ(access(("/dev/shm" + second).c_str(), F_OK), 0);
  }
  EXPECT_NE(access(("/dev/shm" + second).c_str(), F_OK), 0);
  testing::ExpectError([&] { SharedCounters::Open(second); },
                       {"cannot be opened: No such file or directory"});
}

}  // namespace
}  // namespace rollcast
