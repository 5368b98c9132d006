// Choosing a backend, its memory and its copies.
#include "kernels/backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/kernels/op_fixture.h"

#ifdef __SANITIZE_ADDRESS__
// A request for too much memory is tested: it must be refused, not end the program.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

namespace rollcast {
namespace {

std::string MessageOf(const BackendOptions& options) {
  try {
    MakeBackend(options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(MakeBackend, NamesWhatItHas) {
  EXPECT_EQ(MakeBackend({"cpu", 3, "plain"})->name(), "cpu (plain, 3 threads)");
  EXPECT_EQ(MakeBackend({"cpu", 1, "plain"})->kv_dtype(), DType::kF32);
}

TEST(MakeBackend, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(MessageOf({"gpu", 1, "auto"}),
            "device: expected auto, cpu, cuda or cuda:N, not \"gpu\"");
  EXPECT_EQ(
      MessageOf({"cpu", 1, "sse"}),
      "kernels.isa: this device has no kernel \"sse\"; it has avx512, avx2, plain (auto = the "
      "first that fits)");
  EXPECT_EQ(MessageOf({"cpu", -1, "auto"}), "threads: expected at least 0, not -1");
}

TEST(CpuBackendTest, ALargeCopyOnManyThreadsIsThatOfOne) {
  const auto backend = MakeBackend({"cpu", 3, "plain"});
  constexpr size_t kBytes = (size_t{5} << 20) + 7;
  std::vector<uint8_t> from(kBytes + 1), to(kBytes + 3, 0xee);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  backend->Copy(to.data() + 1, from.data() + 1, kBytes);
  EXPECT_TRUE(std::equal(from.begin() + 1, from.end(), to.begin() + 1));
  EXPECT_EQ(to.front(), 0xee);
  EXPECT_EQ(to[kBytes + 1], 0xee);
  EXPECT_EQ(to[kBytes + 2], 0xee);
  // Where the ranges overlap, the result is as if all had been read first.
  std::vector<uint8_t> shifted = from;
  backend->Copy(shifted.data() + 1, shifted.data(), kBytes);
  EXPECT_TRUE(std::equal(from.begin(), from.end() - 1, shifted.begin() + 1));
}

using BackendTest = OpTest;

TEST_P(BackendTest, MemoryIsAlignedAndCopiesArrive) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{257}, size_t{100000}})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(backend->Allocate(bytes).data()) % 256, 0u);
  std::vector<int> host = {1, 2, 3, 4};
  const DeviceArray<int> a(*backend, host), b(*backend, 4, 0);
  host.assign(4, 9);  // may be reused once Upload has returned
  backend->Copy(b.data() + 1, a.data(), 3 * sizeof(int));
  EXPECT_EQ(b.Get(), (std::vector<int>{0, 1, 2, 3}));
  backend->Synchronize();
  EXPECT_THROW(backend->Allocate(SIZE_MAX / 4), Error);
  EXPECT_THROW(backend->Allocate(SIZE_MAX), Error);
}

// A runtime that keeps its last error must not hand it to the next call, or to the next backend.
TEST_P(BackendTest, AFailedCallLeavesNoErrorBehind) {
  EXPECT_THROW(backend->AllocateHostVisible(SIZE_MAX / 4), Error);
  EXPECT_EQ(DeviceArray<int>(*backend, 3, 7).Get(), (std::vector<int>{7, 7, 7}));
  const auto another = MakeBackend(ParseDevice(GetParam()));
  EXPECT_EQ(DeviceArray<int>(*another, 2, 5).Get(), (std::vector<int>{5, 5}));
}

RC_FOR_ALL_DEVICES(BackendTest);

}  // namespace
}  // namespace rollcast
