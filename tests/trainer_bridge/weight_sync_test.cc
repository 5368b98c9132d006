#include "trainer_bridge/weight_sync.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "kernels/float_convert.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/update_ranks.h"

namespace rollcast {
namespace {

using testing::BytesOf;
using testing::Contains;
using testing::ExpectError;
using testing::Fault;
using testing::MakeTensors;
using testing::TensorSet;
using testing::ToyUpdateTarget;
using testing::UpdateRanks;
using testing::Weights;
using testing::With;

constexpr const char* kNorm = "model.norm.weight";
constexpr const char* kUp = "model.layers.0.mlp.up_proj.weight";

/// Bytes of `base` with the tensors of `change` in place of its own.
std::map<std::string, std::vector<std::byte>> Merged(const TensorSet& base,
                                                     const TensorSet& change) {
  auto bytes = BytesOf(base);
  for (const auto& [name, value] : BytesOf(change)) bytes[name] = value;
  return bytes;
}

/// Waits, with a limit, for something that another thread does soon.
bool Eventually(const std::function<bool()>& condition) {
  const Deadline limit = Clock::now() + std::chrono::seconds(20);
  for (Backoff backoff; Clock::now() < limit; backoff.Wait())
    if (condition()) return true;
  return false;
}

struct Case {
  UpdateMode mode;
  int ranks;
};

class BothModes : public ::testing::TestWithParam<Case> {};

TEST_P(BothModes, AnUpdateReachesEveryRankBitForBit) {
  const auto [mode, n] = GetParam();
  UpdateRanks ranks(n, {});
  const TensorSet set = Weights(1);
  const SyncReport report = ranks.publisher().Publish(With(mode), set.tensors);
  EXPECT_EQ(report.error, "");
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.version, 1);
  EXPECT_EQ(report.mode, Name(mode));
  EXPECT_EQ(report.transport, "mpi");
  EXPECT_EQ(report.bytes, 17 * 12 * 2 + 12 * 4 + 24 * 12 * 2 + 30 * 12 * 2 + 12 * 2);
  EXPECT_EQ(report.sequences_kept, 3 * n);
  EXPECT_GT(report.pause_s, 0);
  EXPECT_GE(report.total_s, report.announce_s + report.transfer_s + report.verify_s);
  for (int rank = 1; rank <= n; ++rank) {
    const auto seen = ranks.target(rank).Step();
    EXPECT_FALSE(seen.torn);
    EXPECT_EQ(seen.version, 1);
    EXPECT_EQ(seen.tensors, BytesOf(set));
    EXPECT_FALSE(ranks.target(rank).admission_held());
    EXPECT_EQ(ranks.target(rank).drains(), 1);
    EXPECT_EQ(report.digest, ranks.target(rank).Digest());
    EXPECT_TRUE(Eventually([&] { return ranks.reports(rank).size() == 1; }));
    EXPECT_EQ(ranks.reports(rank)[0].digest, report.digest);
  }
  EXPECT_TRUE(ranks.publisher().late().empty());
}

TEST_P(BothModes, APartialUpdateChangesOnlyWhatItCarries) {
  const auto [mode, n] = GetParam();
  UpdateRanks ranks(n, {});
  const TensorSet first = Weights(1);
  TensorSet second = Weights(2);
  ASSERT_TRUE(ranks.publisher().Publish(With(mode), first.tensors).committed);
  second.tensors.resize(2);  // norm and up_proj
  second.storage.resize(2);
  UpdateOptions options = With(mode);
  options.partial = true;
  options.names = {kUp, kNorm};
  options.in_flight = InFlightPolicy::kRecompute;
  const SyncReport report = ranks.publisher().Publish(options, second.tensors);
  EXPECT_EQ(report.error, "");
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.bytes, 30 * 12 * 2 + 12 * 2);
  EXPECT_EQ(report.sequences_recomputed, 3 * n);
  for (int rank = 1; rank <= n; ++rank) {
    EXPECT_EQ(ranks.target(rank).Step().version, 2);
    EXPECT_EQ(ranks.target(rank).Step().tensors, Merged(first, second));
    EXPECT_EQ(report.digest, ranks.target(rank).Digest());
  }
}

TEST_P(BothModes, AHundredUpdatesWhileRanksStep) {
  const auto [mode, n] = GetParam();
  UpdateRanks::Options options;
  options.step = true;
  UpdateRanks ranks(n, options);
  for (int i = 1; i <= 100; ++i) {
    const TensorSet set = Weights(i);
    ranks.Expect(i, set);
    const SyncReport report = ranks.publisher().Publish(With(mode), set.tensors);
    ASSERT_TRUE(report.committed) << report.error;
    ASSERT_EQ(report.version, i);
  }
  for (int rank = 1; rank <= n; ++rank)
    EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(100)));
  EXPECT_EQ(ranks.step_fault(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, BothModes,
    ::testing::Values(Case{UpdateMode::kStaged, 1}, Case{UpdateMode::kStaged, 2},
                      Case{UpdateMode::kStaged, 4}, Case{UpdateMode::kInPlace, 1},
                      Case{UpdateMode::kInPlace, 3}),
    [](const auto& info) {
      return std::string(Name(info.param.mode)) + "_" + std::to_string(info.param.ranks);
    });

TEST(WeightSync, FloatTensorsAreCastOnTheWay) {
  UpdateRanks ranks(2, {});
  const WireManifest manifest = ToyUpdateTarget::Manifest();
  TensorSet given, expected;
  for (const ManifestEntry& entry : manifest.entries) {
    const auto n = static_cast<size_t>(entry.shape.NumElements());
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = 0.001f * static_cast<float>(i) - 0.37f;
    std::vector<std::byte> f32(n * 4), wire(entry.bytes);
    std::memcpy(f32.data(), values.data(), f32.size());
    ASSERT_TRUE(ConvertFloats(values.data(), DType::kF32, wire.data(), entry.dtype, n));
    given.Add(entry.name, DType::kF32, entry.shape, f32);
    expected.Add(entry.name, entry.dtype, entry.shape, wire);
  }
  const SyncReport report = ranks.publisher().Publish(With(UpdateMode::kStaged), given.tensors);
  EXPECT_TRUE(report.committed) << report.error;
  for (int rank : {1, 2}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(expected));
}

TEST(WeightSync, AGivenVersionMayJumpButNotFallBack) {
  UpdateRanks ranks(2, {});
  const TensorSet set = Weights(1);
  UpdateOptions options = With(UpdateMode::kStaged);
  options.version = 7;
  EXPECT_EQ(ranks.publisher().Publish(options, set.tensors).version, 7);
  EXPECT_EQ(ranks.target(2).Step().version, 7);
  const SyncReport report = ranks.publisher().Publish(options, Weights(2).tensors);
  EXPECT_FALSE(report.committed);
  // Both ranks say no; whose answer comes first is named.
  EXPECT_TRUE(Contains(report.error, ": version 7 is not above the live version 7"))
      << report.error;
  EXPECT_EQ(report.version, 7);
  EXPECT_EQ(ranks.target(1).Step().tensors, BytesOf(set));
  EXPECT_EQ(ranks.publisher().Publish(With(UpdateMode::kStaged), set.tensors).version, 8);
}

TEST(WeightSync, NothingIsAboveTheHighestVersion) {
  UpdateRanks ranks(2, {});
  UpdateOptions options = With(UpdateMode::kStaged);
  options.version = std::numeric_limits<PolicyVersion>::max();
  EXPECT_TRUE(ranks.publisher().Publish(options, Weights(1).tensors).committed);
  options.version.reset();
  const SyncReport report = ranks.publisher().Publish(options, Weights(2).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "no version is above the live version 9223372036854775807"))
      << report.error;
  for (int rank : {1, 2}) {
    EXPECT_EQ(ranks.ended_with(rank), "");
    EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(1)));
  }
}

// As when the trainer's GPU has no memory left for the buffers of one.
TEST(WeightSync, ATransportThatCouldNotBeMadeIsMadeAgain) {
  std::atomic<bool> broken{false};
  UpdateRanks::Options options;
  options.transports = [&](int rank) {
    WeightTransportMaker maker = MessageWeightTransport();
    if (rank == 0)
      maker.make = [&broken, make = maker.make](Communicator& communicator,
                                                const std::vector<int>& group,
                                                const std::string& token) {
        if (broken) throw Error("out of memory");
        return make(communicator, group, token);
      };
    return std::vector<WeightTransportMaker>{maker};
  };
  UpdateRanks ranks(2, options);
  const TensorSet set = Weights(2);
  EXPECT_TRUE(ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors).committed);
  ranks.publisher().LeaveBehind(1);  // another group: another transport
  broken = true;
  ExpectError([&] { ranks.publisher().Publish(With(UpdateMode::kStaged), set.tensors); },
              {"out of memory"});
  broken = false;
  const SyncReport report = ranks.publisher().Publish(With(UpdateMode::kStaged, 5), set.tensors);
  EXPECT_TRUE(report.committed) << report.error;
  EXPECT_EQ(ranks.target(2).Step().tensors, BytesOf(set));
}

TEST(WeightSync, RanksMustHaveTheSameLiveVersion) {
  UpdateRanks ranks(2, {});
  ranks.target(2).Commit({}, 0, 5, InFlightPolicy::kKeep);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_EQ(report.error, "rank 2 has policy version 5 live, rank 1 has 0");
  EXPECT_EQ(ranks.target(1).Step().version, 0);
}

TEST(WeightSync, ANoOfOneRankStopsTheUpdateBeforeAnythingIsWritten) {
  UpdateRanks::Options options;
  options.no_staging[2] = true;
  UpdateRanks ranks(2, options);
  const auto before = ranks.target(1).Step().tensors;
  SyncReport report = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_EQ(report.error, "rank 2: staged: no memory for a staging arena");
  EXPECT_EQ(ranks.target(1).Step().tensors, before);
  UpdateOptions over_lag = With(UpdateMode::kInPlace);
  over_lag.version = 13;
  report = ranks.publisher().Publish(over_lag, Weights(1).tensors);
  EXPECT_TRUE(Contains(report.error, "version 13 is over the lag limit")) << report.error;
  EXPECT_FALSE(ranks.target(1).Step().torn);
  EXPECT_TRUE(ranks.publisher().Publish(With(UpdateMode::kInPlace), Weights(1).tensors).committed);
}

TEST(WeightSync, TensorsThatDoNotFitAreRefusedBeforeAnythingIsSent) {
  UpdateRanks ranks(1, {});
  TensorSet set = Weights(1);
  set.tensors.pop_back();
  EXPECT_THROW(ranks.publisher().Publish(With(UpdateMode::kInPlace), set.tensors), Error);
  EXPECT_THROW(ranks.publisher().Publish(With(UpdateMode::kStaged, 0), Weights(1).tensors), Error);
  EXPECT_FALSE(ranks.target(1).Step().torn);
  EXPECT_TRUE(ranks.publisher().Publish(With(UpdateMode::kInPlace), Weights(1).tensors).committed);
}

TEST(WeightSync, ACorruptedByteFailsTheChecksumAndTheOldWeightsStay) {
  UpdateRanks::Options options;
  options.faults[0] = {{Fault::Kind::kCorrupt, Fault::On::kBulkOut, {}, 60, {}}};
  UpdateRanks ranks(2, options);
  const TensorSet old = Weights(1);
  ASSERT_TRUE(ranks.publisher().Publish(With(UpdateMode::kStaged), old.tensors).committed);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(2).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "verify: rank 1 received weights with checksum"))
      << report.error;
  EXPECT_EQ(report.version, 1);
  for (int rank : {1, 2}) {
    EXPECT_EQ(ranks.target(rank).Step().version, 1);
    EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(old));
  }
  EXPECT_EQ(ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(2).tensors).version, 2);
  EXPECT_EQ(ranks.target(2).Step().tensors, BytesOf(Weights(2)));
}

TEST(WeightSync, ARelayThatCorruptsIsNamed) {
  UpdateRanks::Options options;
  options.faults[1] = {{Fault::Kind::kCorrupt, Fault::On::kBulkOut, {}, 3, {}}};
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors);
  EXPECT_TRUE(Contains(report.error, "rank 2 received weights with checksum")) << report.error;
  EXPECT_EQ(ranks.target(1).Step().version, 0);
}

TEST(WeightSync, ATruncatedPieceIsAnErrorOfTheRankThatGotIt) {
  UpdateRanks::Options options;
  options.faults[0] = {{Fault::Kind::kTruncate, Fault::On::kBulkOut, {}, 2, {}}};
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "rank 1: ")) << report.error;
  EXPECT_TRUE(Contains(report.error, "has 32 bytes, expected 64")) << report.error;
  EXPECT_TRUE(ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors).committed);
}

TEST(WeightSync, AFailedInPlaceUpdateTearsUntilAWholeOneSucceeds) {
  UpdateRanks::Options options;
  options.faults[0] = {{Fault::Kind::kCorrupt, Fault::On::kBulkOut, {}, 5, {}}};
  UpdateRanks ranks(2, options);
  SyncReport report = ranks.publisher().Publish(With(UpdateMode::kInPlace), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "the weights of ranks 1, 2 are torn until a whole update"))
      << report.error;
  for (int rank : {1, 2}) EXPECT_TRUE(ranks.target(rank).Step().torn);

  TensorSet part = Weights(2);
  part.tensors.resize(1);
  for (const UpdateMode mode : {UpdateMode::kStaged, UpdateMode::kInPlace}) {
    UpdateOptions partial = With(mode);
    partial.partial = true;
    report = ranks.publisher().Publish(partial, part.tensors);
    EXPECT_FALSE(report.committed);
    EXPECT_TRUE(Contains(report.error, "only a whole update repairs them")) << report.error;
  }
  report = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(3).tensors);
  EXPECT_TRUE(report.committed) << report.error;
  EXPECT_EQ(report.version, 1);
  for (int rank : {1, 2}) {
    EXPECT_FALSE(ranks.target(rank).Step().torn);
    EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(3)));
  }
}

TEST(WeightSync, WeightsOutsideAPartialUpdateThatDifferBetweenRanksAreFound) {
  UpdateRanks ranks(2, {});
  ASSERT_TRUE(ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors).committed);
  ranks.target(2).live()[3] ^= std::byte{1};  // in the embedding
  TensorSet part = Weights(2);
  part.tensors.resize(1);
  UpdateOptions partial = With(UpdateMode::kStaged);
  partial.partial = true;
  const SyncReport report = ranks.publisher().Publish(partial, part.tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "rank 2 outside this update differ from those of rank 1"))
      << report.error;
  EXPECT_EQ(ranks.target(1).Step().version, 1);
}

/// Rank 2 of 3 goes silent at some point; the update ends in time, names it, and those who are left
/// agree and go on without it.
struct Silence {
  const char* phase;
  Fault fault;
  const char* error;
  bool torn_in_place;
};

class SilentRank : public ::testing::TestWithParam<std::tuple<Silence, UpdateMode>> {};

TEST_P(SilentRank, IsNamedAndTheOthersStayConsistent) {
  const auto& [silence, mode] = GetParam();
  UpdateRanks::Options options;
  options.faults[2] = {silence.fault};
  UpdateRanks ranks(3, options);
  const double deadline_s = 1.5;
  const auto start = Clock::now();
  const SyncReport report = ranks.publisher().Publish(With(mode, deadline_s), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "rank 2 does not answer")) << report.error;
  EXPECT_TRUE(Contains(report.error, silence.error)) << report.error;
  EXPECT_EQ(ranks.publisher().late(), (std::vector<int>{2}));
  // No measure of speed: it tells a deadline from a hang on a busy machine.
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  const bool torn = mode == UpdateMode::kInPlace && silence.torn_in_place;
  for (int rank : {1, 3}) {
    EXPECT_EQ(ranks.target(rank).Step().torn, torn) << rank;
    EXPECT_EQ(ranks.target(rank).version(), 0);
    EXPECT_EQ(ranks.ended_with(rank), "");
    EXPECT_FALSE(ranks.target(rank).admission_held());
  }
  EXPECT_EQ(Contains(report.error, "torn until"), torn) << report.error;

  ranks.publisher().LeaveBehind(2);
  const SyncReport next = ranks.publisher().Publish(With(mode), Weights(2).tensors);
  EXPECT_TRUE(next.committed) << next.error;
  for (int rank : {1, 3}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(2)));
}

INSTANTIATE_TEST_SUITE_P(
    Phases, SilentRank,
    ::testing::Combine(
        ::testing::Values(
            Silence{"announce",
                    {Fault::Kind::kSilence, Fault::On::kReceive, MessageType::kAnnounce, 1, {}},
                    "announce: no vote from rank 2",
                    false},
            Silence{"vote",
                    {Fault::Kind::kSilence, Fault::On::kSend, MessageType::kVote, 1, {}},
                    "announce: no vote from rank 2",
                    false},
            Silence{"begin",
                    {Fault::Kind::kSilence, Fault::On::kReceive, MessageType::kBegin, 1, {}},
                    "begin: rank 2 not ready",
                    true},
            Silence{"ready",
                    {Fault::Kind::kSilence, Fault::On::kSend, MessageType::kReady, 1, {}},
                    "begin: rank 2 not ready",
                    true},
            Silence{
                "bulk", {Fault::Kind::kSilence, Fault::On::kBulkIn, {}, 4, {}}, "transfer: ", true},
            Silence{"verify",
                    {Fault::Kind::kSilence, Fault::On::kSend, MessageType::kVerified, 1, {}},
                    "verify: no checksum from rank 2",
                    true}),
        ::testing::Values(UpdateMode::kStaged, UpdateMode::kInPlace)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).phase) + "_" + Name(std::get<1>(info.param));
    });

TEST(WeightSync, ARankThatDiesAfterTheDecisionIsReportedAndTheOthersHaveCommitted) {
  for (const Fault fault :
       {Fault{Fault::Kind::kSilence, Fault::On::kReceive, MessageType::kCommit, 1, {}},
        Fault{Fault::Kind::kSilence, Fault::On::kSend, MessageType::kCommitted, 1, {}}}) {
    UpdateRanks::Options options;
    options.faults[2] = {fault};
    UpdateRanks ranks(3, options);
    const SyncReport report =
        ranks.publisher().Publish(With(UpdateMode::kStaged, 1.0), Weights(1).tensors);
    EXPECT_TRUE(report.committed);
    EXPECT_EQ(report.version, 1);
    EXPECT_TRUE(Contains(report.error,
                         "commit: rank 2 did not confirm within 1 s; the others "
                         "serve version 1"))
        << report.error;
    EXPECT_EQ(ranks.publisher().late(), (std::vector<int>{2}));
    for (int rank : {1, 3}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(1)));
    if (fault.on == Fault::On::kReceive) {
      // It has verified and hears nothing: it must not live on undecided.
      EXPECT_TRUE(Eventually([&] { return !ranks.ended_with(2).empty(); }));
      EXPECT_TRUE(
          Contains(ranks.ended_with(2), "rank 0 (the trainer) sent no decision on update 1"))
          << ranks.ended_with(2);
    }
  }
}

TEST(WeightSync, ALostCommitIsAskedForAgain) {
  UpdateRanks::Options options;
  options.faults[2] = {{Fault::Kind::kDrop, Fault::On::kReceive, MessageType::kCommit, 1, {}}};
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged, 2.0), Weights(1).tensors);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.error, "");
  EXPECT_EQ(ranks.target(2).Step().tensors, BytesOf(Weights(1)));
}

TEST(WeightSync, ALostAbortIsAskedForAgain) {
  UpdateRanks::Options options;
  options.faults[0] = {{Fault::Kind::kCorrupt, Fault::On::kBulkOut, {}, 1, {}}};
  options.faults[2] = {{Fault::Kind::kDrop, Fault::On::kReceive, MessageType::kAbortUpdate, 1, {}}};
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged, 1.0), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  // Rank 2 has no answer to give: the next update finds it undecided, and its question is answered.
  SyncReport next;
  ASSERT_TRUE(Eventually([&] {
    next = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(2).tensors);
    return next.committed;
  })) << next.error
      << ranks.ended_with(2);
  EXPECT_EQ(ranks.target(2).Step().tensors, BytesOf(Weights(2)));
}

TEST(WeightSync, ASlowRankDropsTheUpdateAndTakesTheNext) {
  UpdateRanks::Options options;
  options.faults[1] = {{Fault::Kind::kDelay, Fault::On::kSend, MessageType::kVerified, 1,
                        std::chrono::milliseconds(2500)}};
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged, 2.0), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "no checksum from rank 1")) << report.error;
  SyncReport next;
  ASSERT_TRUE(Eventually([&] {
    next = ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(2).tensors);
    return next.committed;
  })) << next.error;
  EXPECT_EQ(next.version, 1);
  for (int rank : {1, 2}) EXPECT_EQ(ranks.target(rank).Step().tensors, BytesOf(Weights(2)));
}

TEST(WeightSync, AMessageThatCannotBeReadNamesItsSender) {
  UpdateRanks::Options options;
  options.faults[2] = {{Fault::Kind::kTruncate, Fault::On::kSend, MessageType::kVote, 1, {}}};
  UpdateRanks ranks(2, options);
  const SyncReport report =
      ranks.publisher().Publish(With(UpdateMode::kStaged), Weights(1).tensors);
  EXPECT_FALSE(report.committed);
  EXPECT_TRUE(Contains(report.error, "rank 2: a message is truncated")) << report.error;
  EXPECT_EQ(ranks.target(1).Step().version, 0);
}

TEST(WeightSync, NoRankAtAllIsAnErrorAndAnAbsentFirstRankIsReported) {
  auto communicators = MakeThreadCommunicators(2);
  WeightPublisher publisher(*communicators[0], {1}, {MessageWeightTransport()}, "mpi",
                            [](Message) {});
  const SyncReport report = publisher.Publish(With(UpdateMode::kStaged, 0.05), Weights(1).tensors);
  EXPECT_EQ(report.error, "rank 1 did not send its weight manifest in time");
  EXPECT_EQ(publisher.late(), (std::vector<int>{1}));
  publisher.LeaveBehind(1);
  EXPECT_THROW(publisher.Publish(With(UpdateMode::kStaged), Weights(1).tensors), Error);
}

TEST(UpdateMode, NamesAreParsed) {
  EXPECT_EQ(ParseUpdateMode("staged"), UpdateMode::kStaged);
  EXPECT_EQ(ParseUpdateMode("in_place"), UpdateMode::kInPlace);
  EXPECT_THROW(ParseUpdateMode("inplace"), Error);
}

}  // namespace
}  // namespace rollcast
