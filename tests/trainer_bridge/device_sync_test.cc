// Weight updates by the transports of device memory: weight_sync_test.cc has what all transports
// share.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/float_convert.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/fake_nccl_library.h"
#include "tests/testing/foreign_transfer.h"
#include "tests/testing/update_ranks.h"
#include "trainer_bridge/ipc_weight_transport.h"
#include "trainer_bridge/nccl_weight_transport.h"

namespace rollcast {
namespace {

using testing::BytesOf;
using testing::Contains;
using testing::FakeNccl;
using testing::Fault;
using testing::ForeignTransfer;
using testing::MakeTensors;
using testing::TensorSet;
using testing::ToyUpdateTarget;
using testing::UpdateRanks;
using testing::Weights;
using testing::With;

std::unique_ptr<DeviceTransfer> Cpu() { return MakeDeviceTransfer("cpu"); }

UpdateRanks::Options By(const std::string& transport) {
  UpdateRanks::Options options;
  options.transport = transport;
  options.transports = [](int) -> std::vector<WeightTransportMaker> {
    return {MessageWeightTransport(), IpcWeightTransport({Cpu, 256, 2}),
            NcclWeightTransport({Cpu, ROLLCAST_FAKE_NCCL_22809, 256})};
  };
  return options;
}

class DeviceSync : public ::testing::TestWithParam<std::tuple<const char*, UpdateMode>> {
 protected:
  std::string transport() const { return std::get<0>(GetParam()); }
  UpdateMode mode() const { return std::get<1>(GetParam()); }

  FakeNccl fake_{ROLLCAST_FAKE_NCCL_22809};
};

TEST_P(DeviceSync, WholePartialAndCastUpdatesInARow) {
  UpdateRanks ranks(3, By(transport()));
  const TensorSet first = Weights(1);
  SyncReport report = ranks.publisher().Publish(With(mode()), first.tensors);
  EXPECT_EQ(report.error, "");
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.transport, transport());
  for (int rank : {1, 2, 3}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(first));

  TensorSet part = Weights(2);
  part.tensors.resize(2);
  part.storage.resize(2);
  UpdateOptions partial = With(mode());
  partial.partial = true;
  report = ranks.publisher().Publish(partial, part.tensors);
  EXPECT_EQ(report.error, "");
  auto merged = BytesOf(first);
  for (const auto& [name, bytes] : BytesOf(part)) merged[name] = bytes;
  for (int rank : {1, 2, 3}) EXPECT_EQ(ranks.target(rank).Step().tensors, merged);

  TensorSet given, expected;
  for (const ManifestEntry& entry : ToyUpdateTarget::Manifest().entries) {
    const auto n = static_cast<size_t>(entry.shape.NumElements());
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = 0.001f * static_cast<float>(i) - 0.37f;
    std::vector<std::byte> f32(n * 4), wire(entry.bytes);
    std::memcpy(f32.data(), values.data(), f32.size());
    ASSERT_TRUE(ConvertFloats(values.data(), DType::kF32, wire.data(), entry.dtype, n));
    given.Add(entry.name, DType::kF32, entry.shape, f32);
    expected.Add(entry.name, entry.dtype, entry.shape, wire);
  }
  report = ranks.publisher().Publish(With(mode()), given.tensors);
  EXPECT_EQ(report.error, "");
  EXPECT_EQ(report.version, 3);
  for (int rank : {1, 2, 3}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(expected));
}

TEST_P(DeviceSync, AHundredUpdatesWhileRanksStep) {
  UpdateRanks::Options options = By(transport());
  options.step = true;
  UpdateRanks ranks(2, options);
  for (int i = 1; i <= 100; ++i) {
    const TensorSet set = Weights(i);
    ranks.Expect(i, set);
    const SyncReport report = ranks.publisher().Publish(With(mode()), set.tensors);
    ASSERT_TRUE(report.committed) << report.error;
  }
  for (int rank : {1, 2}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(100)));
  EXPECT_EQ(ranks.step_fault(), "");
}

TEST_P(DeviceSync, AMessageThatIsCutShortFailsTheUpdateAndTheNextSucceeds) {
  UpdateRanks::Options options = By(transport());
  options.faults[0] = {{Fault::Kind::kTruncate, Fault::On::kBulkOut, {}, 2, {}}};
  UpdateRanks ranks(2, options);
  SyncReport report = ranks.publisher().Publish(With(mode()), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "rank 1: ")) << report.error;
  EXPECT_TRUE(Contains(report.error, " bytes, expected ")) << report.error;
  EXPECT_EQ(Contains(report.error, "torn"), mode() == UpdateMode::kInPlace) << report.error;
  report = ranks.publisher().Publish(With(mode()), Weights(2).tensors);
  EXPECT_TRUE(report.committed) << report.error;
  for (int rank : {1, 2}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(2)));
}

TEST_P(DeviceSync, ASilentRankIsNamedAndTheOthersGoOnWithoutIt) {
  UpdateRanks::Options options = By(transport());
  // Its first bulk message.
  options.faults[2] = {{Fault::Kind::kSilence, Fault::On::kBulkIn, {}, 1, {}}};
  UpdateRanks ranks(3, options);
  const SyncReport report = ranks.publisher().Publish(With(mode(), 1.5), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "rank 2 does not answer")) << report.error;
  EXPECT_TRUE(Contains(report.error, "transfer: ")) << report.error;
  EXPECT_EQ(ranks.publisher().late(), (std::vector<int>{2}));
  for (int rank : {1, 3}) EXPECT_EQ(ranks.ended_with(rank), "");
  ranks.publisher().LeaveBehind(2);
  for (int seed : {2, 3}) {
    const SyncReport next = ranks.publisher().Publish(With(mode()), Weights(seed).tensors);
    EXPECT_TRUE(next.committed) << next.error;
    for (int rank : {1, 3}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(seed)));
  }
}

TEST_P(DeviceSync, TheTransportCanBeChangedBetweenUpdates) {
  UpdateRanks ranks(2, By(transport()));
  int seed = 0;
  for (const char* name : {"mpi", "ipc", "nccl", "ipc"}) {
    ranks.publisher().UseTransport(name);
    const SyncReport report = ranks.publisher().Publish(With(mode()), Weights(++seed).tensors);
    EXPECT_TRUE(report.committed) << report.error;
    EXPECT_EQ(report.transport, name);
    EXPECT_EQ(ranks.target(2).Step().tensors, BytesOf(Weights(seed)));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, DeviceSync,
                         ::testing::Combine(::testing::Values("ipc", "nccl"),
                                            ::testing::Values(UpdateMode::kStaged,
                                                              UpdateMode::kInPlace)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  Name(std::get<1>(info.param));
                         });

TEST(NcclSync, AnErrorInTheMiddleIsReportedAndTheNextUpdateMakesTheCommunicatorAnew) {
  FakeNccl fake(ROLLCAST_FAKE_NCCL_22809);
  UpdateRanks ranks(2, By("nccl"));
  const TensorSet old = Weights(1);
  ASSERT_TRUE(ranks.publisher().Publish(With(UpdateMode::kStaged), old.tensors).committed);
  fake.Inject("fail", 2, 2);
  SyncReport report = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(2).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "rank 2: NCCL failed on rank 2 (ranks 0, 1, 2): "))
      << report.error;
  for (int rank : {1, 2}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(old));
  report = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(3).tensors);
  EXPECT_TRUE(report.committed) << report.error;
  for (int rank : {1, 2}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(3)));
}

TEST(NcclSync, AHangEndsAtTheDeadlineOfTheUpdate) {
  FakeNccl fake(ROLLCAST_FAKE_NCCL_22809);
  UpdateRanks ranks(2, By("nccl"));
  fake.Inject("hang", 1, 1);
  SyncReport report = ranks.publisher().Publish(With(UpdateMode::kStaged, 0.6), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "the NCCL broadcast of ranks 0, 1, 2 did not finish in time"))
      << report.error;
  EXPECT_TRUE(ranks.publisher().late().empty());  // all of them answer messages
  report = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(2).tensors);
  EXPECT_TRUE(report.committed) << report.error;
}

TEST(NcclSync, ALateRankIsNamedBeforeAnyKernelWaitsForIt) {
  FakeNccl fake(ROLLCAST_FAKE_NCCL_22809);
  UpdateRanks::Options options = By("nccl");
  options.faults[2] = {{Fault::Kind::kSilence, Fault::On::kBulkOut, {}, 1, {}}};
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kInPlace, 0.6), Weights(1).tensors);
  EXPECT_TRUE(Contains(report.error, "transfer: rank 2 did not send bulk data in time"))
      << report.error;
  for (int rank : {0, 1, 2}) EXPECT_EQ(fake.groups(rank), 0);
  EXPECT_EQ(fake.live_comms(), 0);
}

TEST(NcclSync, AnUpdateThatEndsBeforeItsTransferKeepsTheCommunicator) {
  FakeNccl fake(ROLLCAST_FAKE_NCCL_22809);
  UpdateRanks::Options options = By("nccl");
  options.faults[2] = {{Fault::Kind::kDelay, Fault::On::kSend, MessageType::kReady, 2,
                        std::chrono::milliseconds(900)}};
  UpdateRanks ranks(2, options);
  ASSERT_TRUE(ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors).committed);
  SyncReport report = ranks.publisher().Publish(With(UpdateMode::kStaged, 0.6), Weights(2).tensors);
  EXPECT_TRUE(Contains(report.error, "begin: rank 2 not ready")) << report.error;
  // Rank 1 was waiting for the trainer, and has been told to stop.
  const Deadline limit = Clock::now() + std::chrono::seconds(20);
  do {
    report = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(3).tensors);
  } while (!report.committed && Clock::now() < limit);
  EXPECT_TRUE(report.committed) << report.error;
  EXPECT_EQ(fake.live_comms(), 3);
  EXPECT_EQ(fake.comms_made(), 3);
  for (int rank : {1, 2}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(3)));
}

/// A rank's copy engine that spoils a byte of its nth copy.
class SpoilingTransfer final : public ForeignTransfer {
 public:
  explicit SpoilingTransfer(int nth) : ForeignTransfer("cpu"), left_(nth) {}
  void Copy(void* to, const void* from, size_t bytes) override {
    ForeignTransfer::Copy(to, from, bytes);
    if (--left_ == 0) static_cast<std::byte*>(to)[bytes / 2] ^= std::byte{4};
  }
  std::vector<std::string> ShareAll(std::span<const void* const> memory) override {
    return Cpu()->ShareAll(memory);
  }

 private:
  int left_;
};

TEST(IpcSync, AByteThatIsSpoiltOnTheWayFailsTheChecksum) {
  UpdateRanks::Options options = By("ipc");
  options.transports = [](int rank) -> std::vector<WeightTransportMaker> {
    if (rank != 1) return {IpcWeightTransport({Cpu, 256, 2})};
    return {IpcWeightTransport({[] { return std::make_unique<SpoilingTransfer>(3); }, 256, 2})};
  };
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "received weights with checksum")) << report.error;
  EXPECT_TRUE(ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(2).tensors).committed);
  EXPECT_EQ(ranks.target(2).Step().tensors, BytesOf(Weights(2)));
}

}  // namespace
}  // namespace rollcast
