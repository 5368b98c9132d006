#include "kernels/device_transfer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "kernels/digest.h"
#include "kernels/float_convert.h"
#include "tests/testing/run_command.h"
#include "tests/testing/test_devices.h"

namespace rollcast {
namespace {

using testing::DeviceBytes;

std::vector<std::byte> RandomBytes(size_t bytes, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

/// Every half; for float32 the values of all halves of both kinds, their neighbours, and random bit
/// patterns, so that ties, overflows, NaNs, infinities and denormals are all there.
std::vector<std::byte> CastInputs(DType dtype) {
  std::vector<std::byte> data;
  const auto add = [&](auto bits) {
    const size_t at = data.size();
    data.resize(at + sizeof bits);
    std::memcpy(data.data() + at, &bits, sizeof bits);
  };
  std::mt19937 random(7);
  for (uint32_t half = 0; half < 0x10000; ++half) {
    if (dtype != DType::kF32) {
      add(static_cast<uint16_t>(half));
      continue;
    }
    for (const uint32_t bits :
         {half << 16, std::bit_cast<uint32_t>(F16ToFloat(static_cast<uint16_t>(half)))})
      for (const uint32_t offset : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u})
        add(bits + offset);
    add(static_cast<uint32_t>(random()));
  }
  return data;
}

class DeviceTransferTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<DeviceTransfer> transfer_ = MakeDeviceTransfer(GetParam());
};

constexpr DType kWeightDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TEST_P(DeviceTransferTest, CastsAreThoseOfTheHostBitForBit) {
  for (const DType from : kWeightDTypes) {
    const std::vector<std::byte> input = CastInputs(from);
    for (const DType to : kWeightDTypes) {
      // Whole packs, a remainder, and addresses that suit neither loads of 16 bytes nor elements.
      for (const auto& [shift, drop] : {std::pair<size_t, size_t>{0, 0}, {0, 3}, {4, 1}, {1, 5}}) {
        const size_t elements = input.size() / SizeOf(from) - drop;
        std::vector<std::byte> expected(elements * SizeOf(to));
        const bool fits = ConvertFloats(input.data(), from, expected.data(), to, elements);
        const DeviceBytes source(*transfer_, {input.data(), elements * SizeOf(from)}, shift);
        const DeviceBytes target(*transfer_, std::vector<std::byte>(expected.size()), shift);
        transfer_->Cast(source.data(), from, target.data(), to, static_cast<int64_t>(elements));
        EXPECT_EQ(transfer_->TakeCastOverflow(), !fits);
        EXPECT_TRUE(target.Get() == expected)
            << Name(from) << " to " << Name(to) << " shifted by " << shift;
      }
    }
  }
}

TEST_P(DeviceTransferTest, OverflowIsAFiniteValueThatBecomesInfiniteAndIsReportedOnce) {
  const auto overflows = [&](std::vector<float> values, DType to) {
    const auto bytes = std::as_bytes(std::span(values));
    const DeviceBytes source(*transfer_, bytes), target(*transfer_, bytes);
    transfer_->Cast(source.data(), DType::kF32, target.data(), to,
                    static_cast<int64_t>(values.size()));
    const bool overflow = transfer_->TakeCastOverflow();
    EXPECT_FALSE(transfer_->TakeCastOverflow());
    return overflow;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(overflows({1, infinity, -infinity, NAN, 65504}, DType::kF16));
  EXPECT_TRUE(overflows({1, 2, 3, 65520}, DType::kF16));
  EXPECT_FALSE(overflows({1, 2, 3, 65520}, DType::kBF16));
  EXPECT_TRUE(overflows({1, -std::numeric_limits<float>::max()}, DType::kBF16));
  transfer_->Cast(nullptr, DType::kF32, nullptr, DType::kF16, 0);
  EXPECT_FALSE(transfer_->TakeCastOverflow());
}

TEST_P(DeviceTransferTest, DigestSumsAreThoseOfTheHost) {
  const std::vector<std::byte> data = RandomBytes(700001);
  const DeviceBytes memory(*transfer_, data);
  std::vector<DeviceRange> ranges;
  std::vector<uint64_t> expected;
  const auto add = [&](size_t begin, size_t bytes) {
    ranges.push_back({memory.data() + begin, bytes});
    expected.push_back(DigestSum(data.data() + begin, bytes));
  };
  // Around the sizes of words, loads, blocks of threads and chunks, and at every alignment.
  for (const size_t bytes : {0, 1, 7, 8, 9, 15, 16, 24, 4095, 4096, 4104, 16384, 65535, 65536,
                             65537, 65544, 131072, 600000})
    add(0, bytes);
  for (size_t begin = 1; begin <= 16; ++begin) add(begin, 300001);
  add(0, 0);
  EXPECT_EQ(transfer_->DigestSums(ranges), expected);
  // One after another gives the same as all at once.
  for (size_t i = 0; i < ranges.size(); ++i)
    EXPECT_EQ(transfer_->DigestSums({&ranges[i], 1}).front(), expected[i]);
  EXPECT_TRUE(transfer_->DigestSums({}).empty());
}

TEST_P(DeviceTransferTest, ALargeRangeAmongManySmallOnes) {
  const std::vector<std::byte> data = RandomBytes(size_t{40} << 20, 3);
  const DeviceBytes memory(*transfer_, data);
  std::vector<DeviceRange> ranges;
  std::vector<uint64_t> expected;
  for (size_t i = 0; i < 500; ++i) {
    const size_t begin = 2 * i, bytes = i == 250 ? data.size() - begin : 2 * i;
    ranges.push_back({memory.data() + begin, bytes});
    expected.push_back(DigestSum(data.data() + begin, bytes));
  }
  EXPECT_EQ(transfer_->DigestSums(ranges), expected);
}

TEST_P(DeviceTransferTest, CopiesBetweenHostPinnedAndDeviceMemory) {
  const std::vector<std::byte> data = RandomBytes(100003);
  Buffer pinned = transfer_->AllocateHost(data.size());
  std::memcpy(pinned.data(), data.data(), data.size());
  const Buffer first = transfer_->Allocate(data.size()), second = transfer_->Allocate(data.size());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.data()) % 256, 0u);
  transfer_->Copy(first.data(), pinned.data(), data.size());
  transfer_->Copy(second.data(), first.data(), data.size());
  std::vector<std::byte> back(data.size());
  transfer_->Copy(back.data(), second.data(), data.size());
  const std::unique_ptr<Event> done = transfer_->Record();
  done->Wait();
  EXPECT_TRUE(done->Ready());
  EXPECT_EQ(back, data);
}

TEST_P(DeviceTransferTest, MemoryKnowsItsDevice) {
  const Buffer memory = transfer_->Allocate(1 << 20), pinned = transfer_->AllocateHost(4096);
  EXPECT_EQ(DeviceOfMemory(memory.data()), GetParam());
  EXPECT_EQ(DeviceOfMemory(memory.as<std::byte>() + 1000), GetParam());
  EXPECT_EQ(DeviceOfMemory(pinned.data()), "cpu");
  const std::vector<int> host(100);
  EXPECT_EQ(DeviceOfMemory(host.data()), "cpu");
  EXPECT_EQ(DeviceOfMemory(nullptr), "cpu");
  EXPECT_EQ(transfer_->name(), GetParam());
  EXPECT_EQ(transfer_->host_memory(), GetParam() == "cpu");
  EXPECT_EQ(DeviceIdentity(GetParam()).size(), GetParam() == "cpu" ? 0u : 32u);
}

TEST_P(DeviceTransferTest, WithinOneProcessAHandleGivesTheMemoryItself) {
  const std::vector<std::byte> data = RandomBytes(5000);
  const DeviceBytes memory(*transfer_, data);
  const std::string handle = transfer_->Share(memory.data() + 100);
  ASSERT_FALSE(handle.empty());
  const std::unique_ptr<DeviceTransfer> other = MakeDeviceTransfer(GetParam());
  const Buffer shared = other->OpenShared(handle);
  EXPECT_EQ(shared.data(), memory.data() + 100);
  const DeviceRange range{shared.data(), 4000};
  EXPECT_EQ(other->DigestSums({&range, 1}).front(), DigestSum(data.data() + 100, 4000));
}

/// transfer_probe with a handle for each of `pieces`; it prints their sums.
std::string Probe(DeviceTransfer& transfer, const std::vector<DeviceRange>& pieces) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::vector<std::string> args = {ROLLCAST_TRANSFER_PROBE, transfer.name()};
  for (const DeviceRange& piece : pieces) {
    std::string hex;
    for (const unsigned char c : transfer.Share(piece.data)) {
      hex += kDigits[c >> 4];
      hex += kDigits[c & 15];
    }
    args.push_back(hex);
    args.push_back(std::to_string(piece.bytes));
  }
  return testing::RunCommand(args, std::chrono::seconds(60)).out;
}

TEST_P(DeviceTransferTest, AnotherProcessReadsSharedMemoryOrSaysWhyNot) {
  const std::vector<std::byte> data = RandomBytes(size_t{3} << 20);
  const DeviceBytes memory(*transfer_, data);
  // Two places of one allocation and the same place twice: mapped once.
  const std::vector<DeviceRange> pieces = {
      {memory.data(), data.size()}, {memory.data() + 12345, 100000}, {memory.data(), 1000}};
  const std::string out = Probe(*transfer_, pieces);
  if (transfer_->host_memory()) {
    EXPECT_TRUE(out.find("cannot be reached from another process") != std::string::npos) << out;
    return;
  }
  EXPECT_EQ(
      out, StrCat(DigestSum(data.data(), data.size()), "\n", DigestSum(data.data() + 12345, 100000),
                  "\n", DigestSum(data.data(), 1000), "\n"));
}

TEST_P(DeviceTransferTest, WhatIsNotItsOwnMemoryIsNotShared) {
  const std::string garbage = transfer_->host_memory() ? "cuda" : "host";
  EXPECT_THROW(transfer_->OpenShared(garbage), Error);
  EXPECT_THROW(transfer_->OpenShared(""), Error);
  if (transfer_->host_memory()) return;
  const std::vector<int> host(1000);
  const Buffer pinned = transfer_->AllocateHost(4096);
  EXPECT_EQ(transfer_->Share(host.data()), "");
  EXPECT_EQ(transfer_->Share(pinned.data()), "");
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTransferTest,
                         ::testing::ValuesIn(testing::TransferDevices()), [](const auto& info) {
                           return info.param == "cpu" ? std::string("cpu") : std::string("cuda_0");
                         });

TEST(MakeDeviceTransferTest, AnUnknownDeviceIsAnErrorThatNamesIt) {
  for (const char* name : {"", "gpu", "cpu:1", "cuda:x", "cuda:-1", "cuda:999", "cuda7"}) {
    try {
      MakeDeviceTransfer(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(StrCat('"', name, '"')), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace rollcast
