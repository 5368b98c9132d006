// The transports of device memory, on the host's: ranks are threads, NCCL is fake_nccl.cc.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/digest.h"
#include "kernels/float_convert.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/fake_nccl_library.h"
#include "tests/testing/foreign_transfer.h"
#include "trainer_bridge/ipc_weight_transport.h"
#include "trainer_bridge/nccl_library.h"
#include "trainer_bridge/nccl_weight_transport.h"

namespace rollcast {
namespace {

using testing::ExpectError;
using testing::FakeNccl;
using testing::ForeignTransfer;

using Bytes = std::vector<std::byte>;

constexpr size_t kChunkBytes = 512;

/// Tensors of a trainer, and what is to arrive of them.
class Update {
 public:
  void Add(DType dtype, DType wire_dtype, size_t elements, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<float> values(elements);
    for (float& value : values) value = static_cast<float>(random() % 4096) / 64.0f - 31.0f;
    storage_.emplace_back(elements * SizeOf(dtype));
    expected.emplace_back(elements * SizeOf(wire_dtype));
    RC_CHECK(ConvertFloats(values.data(), DType::kF32, storage_.back().data(), dtype, elements));
    RC_CHECK(
        ConvertFloats(storage_.back().data(), dtype, expected.back().data(), wire_dtype, elements));
    tensors.push_back({storage_.back().data(), dtype, wire_dtype, static_cast<int64_t>(elements),
                       StrCat("t", tensors.size())});
  }
  std::byte* data(size_t i) { return storage_[i].data(); }
  uint64_t digest() const {
    DigestFold fold;
    for (const Bytes& bytes : expected)
      fold.Add(DigestSum(bytes.data(), bytes.size()), bytes.size());
    return fold.value();
  }

  std::vector<SourceTensor> tensors;
  std::vector<Bytes> expected;

 private:
  std::deque<Bytes> storage_;
};

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16;

/// Every size that could matter: several chunks, exactly one, odd, a few bytes, nothing.
Update Direct(unsigned seed) {
  Update update;
  for (const size_t elements : {1500u, 256u, 501u, 3u, 0u, 1u, 2048u})
    update.Add(kBF16, kBF16, elements, ++seed);
  update.Add(kF32, kF32, 333, ++seed);
  return update;
}

Update Mixed(unsigned seed) {
  Update update;
  update.Add(kF32, kBF16, 1500, ++seed);
  update.Add(kBF16, kBF16, 700, ++seed);
  update.Add(kF32, kF16, 37, ++seed);
  update.Add(kF32, kF32, 5, ++seed);
  update.Add(kF32, kBF16, 0, ++seed);
  update.Add(kBF16, kF32, 801, ++seed);
  update.Add(kF16, kF16, 9, ++seed);
  return update;
}

struct Stopped {};

/// A trainer and `n` ranks. A transport is made as WeightPublisher and WeightReceiver make it: when
/// there is none, or the trainer's is broken.
class Ranks {
 public:
  Ranks(int n, std::function<WeightTransportMaker(int rank)> maker)
      : communicators_(MakeThreadCommunicators(n + 1)), memory(communicators_.size()) {
    for (int rank = 0; rank <= n; ++rank) {
      group_.push_back(rank);
      makers_.push_back(maker(rank));
    }
    transports_.resize(group_.size());
  }

  /// Runs one transfer. A rank's failure, but for one in `lonely`, stops the others, as messages of
  /// WeightSync do. `misbehave` (may be null) is the service of a rank.
  void Run(const Update& update, double deadline_s = 20,
           const std::function<void(int rank)>& misbehave = nullptr, bool tell_others = true) {
    ++transfer_;
    std::atomic<bool> stop{false};
    digest = 0;
    errors.assign(group_.size(), "");
    lost.assign(group_.size(), 99);
    const bool remake = transports_[0] == nullptr || transports_[0]->broken();
    if (remake) token_ = makers_[0].make_token();
    const Deadline deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double>(deadline_s));
    const auto as_rank = [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const Service service = [&, rank] {
        if (stop) throw Stopped{};
        if (misbehave) misbehave(rank);
      };
      try {
        if (remake || transports_[r]->broken())
          transports_[r] = makers_[r].make(*communicators_[r], group_, token_);
        if (rank == 0) {
          digest = transports_[0]->Send(transfer_, update.tensors, deadline, service);
          return;
        }
        memory[r].clear();
        std::vector<MutableBytes> spans;
        for (const Bytes& bytes : update.expected)
          spans.emplace_back(memory[r].emplace_back(bytes.size(), std::byte{0xa5}));
        transports_[r]->Receive(transfer_, spans, deadline, service);
      } catch (const Stopped&) {
        errors[r] = "stopped";
      } catch (const PeerLost& error) {
        errors[r] = error.what();
        lost[r] = error.rank();
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      if (!errors[r].empty() && tell_others) stop = true;
    };
    std::vector<std::thread> threads;
    for (const int rank : group_) threads.emplace_back(as_rank, rank);
    for (std::thread& thread : threads) thread.join();
  }

  void ExpectArrived(const Update& update) {
    EXPECT_EQ(digest, update.digest());
    for (size_t r = 0; r < group_.size(); ++r) {
      EXPECT_EQ(errors[r], "") << "rank " << r;
      if (r == 0) continue;
      ASSERT_EQ(memory[r].size(), update.expected.size());
      for (size_t i = 0; i < update.expected.size(); ++i)
        EXPECT_EQ(memory[r][i], update.expected[i]) << "rank " << r << " tensor " << i;
    }
  }

 private:
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<int> group_;
  std::vector<WeightTransportMaker> makers_;
  std::vector<std::unique_ptr<WeightTransport>> transports_;
  std::string token_;
  uint64_t transfer_ = 0;

 public:
  uint64_t digest = 0;
  std::vector<std::string> errors;         // by rank
  std::vector<int> lost;                   // PeerLost::rank
  std::vector<std::vector<Bytes>> memory;  // [rank][tensor]
};

DeviceTransferMaker Cpu() {
  return [] { return MakeDeviceTransfer("cpu"); };
}

WeightTransportMaker Ipc(DeviceTransferMaker device = Cpu(), int ring_chunks = 2) {
  return IpcWeightTransport({std::move(device), kChunkBytes, ring_chunks});
}
WeightTransportMaker Nccl(DeviceTransferMaker device = Cpu(),
                          std::string library = ROLLCAST_FAKE_NCCL_22809) {
  return NcclWeightTransport({std::move(device), std::move(library), kChunkBytes});
}

struct Case {
  const char* name;
  WeightTransportMaker (*make)(DeviceTransferMaker device);
  int ranks;
};

class DeviceTransport : public ::testing::TestWithParam<Case> {
 protected:
  Ranks Make(const DeviceTransferMaker& trainers = Cpu()) const {
    return Ranks(GetParam().ranks,
                 [&](int rank) { return GetParam().make(rank == 0 ? trainers : Cpu()); });
  }
};

TEST_P(DeviceTransport, TensorsArriveBitForBitWithTheirChecksum) {
  Ranks ranks = Make();
  const Update update = Direct(1);
  ranks.Run(update);
  ranks.ExpectArrived(update);
}

TEST_P(DeviceTransport, CastsOnTheWayAndSendsManyUpdatesInARow) {
  Ranks ranks = Make();
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const Update update = seed % 3 == 0 ? Direct(seed) : Mixed(seed);
    ranks.Run(update);
    ranks.ExpectArrived(update);
  }
}

TEST_P(DeviceTransport, TensorsOfAnotherDeviceOrOfAPoolGoThroughABuffer) {
  for (const char* name : {"foreign", "cpu"}) {
    Ranks ranks = Make([=] { return std::make_unique<ForeignTransfer>(name); });
    for (const Update& update : {Direct(3), Mixed(4)}) {
      ranks.Run(update);
      ranks.ExpectArrived(update);
    }
  }
}

TEST_P(DeviceTransport, AValueOutOfRangeNamesTheTensorAndTheNextUpdateSucceeds) {
  Ranks ranks = Make();
  Update update = Mixed(1);
  const float large = 1e6f;
  std::memcpy(update.data(2) + 4 * 36, &large, 4);
  ranks.Run(update);
  EXPECT_EQ(ranks.errors[0],
            "tensor t2: a value of float32 is beyond the range of the model's float16");
  for (size_t r = 1; r < ranks.errors.size(); ++r) EXPECT_EQ(ranks.errors[r], "stopped");
  ranks.Run(Mixed(2));
  ranks.ExpectArrived(Mixed(2));
}

TEST_P(DeviceTransport, ARankThatGivesUpEndsTheTransferAndNothingOfItReachesTheNext) {
  Ranks ranks = Make();
  for (unsigned seed = 1; seed < 6; ++seed) {
    const int last = GetParam().ranks;
    std::atomic<int> looks{0};
    ranks.Run(Mixed(seed), 20, [&](int rank) {
      if (rank == last && ++looks > static_cast<int>(seed) % 3) throw Error("enough");
    });
    // A transfer this small may be over before the rank has looked so often.
    if (ranks.errors[static_cast<size_t>(last)].empty()) continue;
    EXPECT_EQ(ranks.errors[static_cast<size_t>(last)], "enough");
    ranks.Run(Direct(seed));
    ranks.ExpectArrived(Direct(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Transports, DeviceTransport,
    ::testing::Values(Case{"ipc", [](DeviceTransferMaker d) { return Ipc(std::move(d)); }, 1},
                      Case{"ipc", [](DeviceTransferMaker d) { return Ipc(std::move(d)); }, 2},
                      Case{"ipc", [](DeviceTransferMaker d) { return Ipc(std::move(d)); }, 4},
                      Case{"nccl", [](DeviceTransferMaker d) { return Nccl(std::move(d)); }, 1},
                      Case{"nccl", [](DeviceTransferMaker d) { return Nccl(std::move(d)); }, 3}),
    [](const auto& info) {
      return std::string(info.param.name) + std::to_string(info.param.ranks);
    });

TEST(IpcTransport, ARankThatHangsIsNamedByAll) {
  Ranks ranks(3, [](int) { return Ipc(); });
  const Deadline limit = Clock::now() + std::chrono::seconds(20);
  const Update update = Mixed(1);
  // Rank 2 sleeps in its first look at its messages, past the deadline of the transfer.
  std::atomic<bool> slept{false};
  ranks.Run(
      update, 0.4,
      [&](int rank) {
        if (rank == 2 && !slept.exchange(true))
          std::this_thread::sleep_for(std::chrono::milliseconds(800));
      },
      /*tell_others=*/false);
  EXPECT_LT(Clock::now(), limit);
  EXPECT_EQ(ranks.lost[0], 2) << ranks.errors[0];
  EXPECT_NE(ranks.errors[0].find("rank 2"), std::string::npos) << ranks.errors[0];
  EXPECT_EQ(ranks.lost[3], 2) << ranks.errors[3];
  ranks.Run(update);
  ranks.ExpectArrived(update);
}

TEST(IpcTransport, ARankOfAnotherHostIsToldWhatToDo) {
  auto communicators = MakeThreadCommunicators(2);
  ExpectError(
      [&] {
        Ipc().make(*communicators[1], {0, 1}, "/rollcast-not-there:512");
      },
      {"the ranks must run on the trainer's host"});
  ExpectError([&] { Ipc().make(*communicators[1], {0, 1}, "nonsense"); }, {"cannot be read"});
}

class NcclTransport : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_.live_comms(), 0); }

  FakeNccl fake_{ROLLCAST_FAKE_NCCL_22809};
};

TEST_F(NcclTransport, ASmallUpdateIsOneGroupAndTheCommunicatorIsKept) {
  Ranks ranks(2, [](int) { return Nccl(); });
  ranks.Run(Direct(1));
  ranks.Run(Direct(2));
  ranks.ExpectArrived(Direct(2));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(fake_.groups(rank), 2);
  EXPECT_EQ(fake_.live_comms(), 3);
}

TEST_F(NcclTransport, ALargeUpdateGoesInGrowingGroups) {
  Ranks ranks(2, [](int rank) {
    // The ranks go by what the trainer says.
    return NcclWeightTransport(
        {Cpu(), ROLLCAST_FAKE_NCCL_22809, kChunkBytes, rank == 0 ? size_t{500} : size_t{1}});
  });
  ranks.Run(Direct(1));
  ranks.ExpectArrived(Direct(1));
  // 3000 bytes, then 512 + 1002 + 6 + 2 + 4096 (4000 wanted), then 1332.
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(fake_.groups(rank), 3);
}

TEST_F(NcclTransport, OnlyTensorsThatNeedItGoInGroupsOfTheirOwn) {
  Ranks ranks(1, [](int) { return Nccl(); });
  Update update;
  update.Add(kBF16, kBF16, 5000, 1);
  update.Add(kF32, kBF16, 600, 2);  // 1200 bytes: 512, 512, 176
  ranks.Run(update);
  ranks.ExpectArrived(update);
  EXPECT_EQ(fake_.groups(0), 4);
  EXPECT_EQ(fake_.groups(1), 4);
}

TEST_F(NcclTransport, ARankThatNeverJoinsEndsTheTransferAtItsDeadline) {
  Ranks ranks(2, [](int) { return Nccl(); });
  fake_.Inject("join", 1, 1);
  ranks.Run(Direct(1), 0.3, nullptr, /*tell_others=*/false);
  EXPECT_EQ(ranks.errors[0],
            "the NCCL broadcast of ranks 0, 1, 2 did not finish in time (seen by rank 0)");
  EXPECT_EQ(ranks.lost[0], -1);
  EXPECT_EQ(fake_.live_comms(), 0);
  fake_.Reset();
  ranks.Run(Direct(2));
  ranks.ExpectArrived(Direct(2));
}

TEST_F(NcclTransport, AHangInTheMiddleIsAbortedAndTheNextUpdateHasANewCommunicator) {
  Ranks ranks(1, [](int) { return Nccl(); });
  ranks.Run(Mixed(1));
  fake_.Inject("hang", 1, fake_.groups(1) + 2);
  ranks.Run(Mixed(2), 0.3, nullptr, /*tell_others=*/false);
  EXPECT_NE(ranks.errors[0], "");
  EXPECT_EQ(ranks.lost[0], 1);
  EXPECT_EQ(ranks.lost[1], 0);
  EXPECT_EQ(fake_.live_comms(), 0);
  fake_.Reset();
  ranks.Run(Mixed(3));
  ranks.ExpectArrived(Mixed(3));
}

TEST_F(NcclTransport, AnErrorOfNcclIsGivenInItsOwnWords) {
  Ranks ranks(2, [](int) { return Nccl(); });
  fake_.Inject("fail", 2, 1);
  ranks.Run(Direct(1));
  EXPECT_NE(ranks.errors[2].find("NCCL failed on rank 2 (ranks 0, 1, 2): broadcast: remote process "
                                 "exited or there was a network error (told by the fake) [NCCL "
                                 "2.28.9, "),
            std::string::npos)
      << ranks.errors[2];
  EXPECT_EQ(ranks.errors[0], "stopped");
  fake_.Reset();
  ranks.Run(Direct(2));
  ranks.ExpectArrived(Direct(2));
}

TEST_F(NcclTransport, AnotherVersionThanTheTrainersIsRefusedNamingBoth) {
  Ranks ranks(1, [](int rank) {
    return Nccl(Cpu(), rank == 0 ? ROLLCAST_FAKE_NCCL_22809 : ROLLCAST_FAKE_NCCL_22803);
  });
  ranks.Run(Direct(1), 0.3);
  EXPECT_EQ(ranks.errors[1],
            StrCat("NCCL 2.28.3 of rank 1 (", ROLLCAST_FAKE_NCCL_22803,
                   ") cannot work with the 2.28.9 of the trainer (", ROLLCAST_FAKE_NCCL_22809,
                   "); set sync.nccl_library to a file of the same version"));
}

TEST(NcclLibrary, SaysWhatToDoWhenThereIsNoneOrItIsTooOld) {
  ExpectError([] { nccl::Library::Load("libno-such-nccl.so.2"); },
              {"set sync.nccl_library to its file"});
  ExpectError(
      [] { nccl::Library::Load(ROLLCAST_FAKE_NCCL_21200); },
      {"is version 2.12.0, expected at least 2.18.0; set sync.nccl_library to a newer one"});
  ExpectError([] { nccl::Library::Load("libm.so.6"); }, {"has no function ncclGetVersion"});
  EXPECT_EQ(nccl::Library::Load(ROLLCAST_FAKE_NCCL_22809)->version, 22809);
  EXPECT_EQ(nccl::VersionText(23203), "2.32.3");
}

}  // namespace
}  // namespace rollcast
