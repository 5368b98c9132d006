#include "trainer_bridge/communicator.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "tests/testing/faulty_communicator.h"
#include "trainer_bridge/messages.h"
#include "trainer_bridge/roles.h"

namespace rollcast {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline In(milliseconds duration) { return Clock::now() + duration; }

std::vector<std::byte> Pattern(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(seed));
  return bytes;
}

Message AwaitMessage(Communicator& communicator) {
  Backoff backoff;
  for (const Deadline limit = In(seconds(20)); Clock::now() < limit; backoff.Wait())
    if (std::optional<Message> message = communicator.Poll()) return std::move(*message);
  ADD_FAILURE() << "no message came";
  return {};
}

/// Of the calling thread: the length of its slices in ns (sched_attr's sched_runtime; 0 before
/// Linux 6.12), and its policy without the flag that it is not inherited.
std::pair<uint64_t, int> Scheduling() {
  uint64_t attributes[6] = {};
  if (syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0) != 0) ADD_FAILURE();
  return {attributes[3], sched_getscheduler(0) & ~SCHED_RESET_ON_FORK};
}

TEST(BackoffTest, LeavesNiceAndTheThreadsThatAreStartedAlone) {
  std::pair<uint64_t, int> untouched;
  std::thread([&] { untouched = Scheduling(); }).join();
  std::thread([&] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, 0, 7), 0);
    Backoff backoff;
    backoff.Wait();
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 7);
    EXPECT_EQ(Scheduling().second, SCHED_OTHER);
    // One that computes must not wake ahead of others.
    std::thread([&] { EXPECT_EQ(Scheduling(), untouched); }).join();
  }).join();
}

TEST(ThreadCommunicator, MessagesOfOneSourceComeInOrderAlsoToItself) {
  auto ranks = MakeThreadCommunicators(2);
  EXPECT_EQ(ranks[1]->rank(), 1);
  EXPECT_EQ(ranks[1]->size(), 2);
  EXPECT_EQ(ranks[1]->Poll(), std::nullopt);
  for (int i = 0; i < 100; ++i) ranks[0]->Send(1, Pattern(static_cast<size_t>(i), i));
  ranks[1]->Send(1, Pattern(3, 9));
  for (int i = 0; i < 100; ++i) {
    const auto message = ranks[1]->Poll();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->source, 0);
    EXPECT_EQ(message->bytes, Pattern(static_cast<size_t>(i), i));
  }
  const auto own = ranks[1]->Poll();
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->source, 1);
  EXPECT_EQ(own->bytes, Pattern(3, 9));
  EXPECT_THROW(ranks[0]->Send(2, {}), CheckFailure);
}

TEST(ThreadCommunicator, DeferredMessagesComeFirst) {
  auto ranks = MakeThreadCommunicators(1);
  ranks[0]->Send(0, Pattern(1, 1));
  ranks[0]->Defer({0, Pattern(2, 2)});
  ranks[0]->Defer({0, Pattern(3, 3)});
  EXPECT_EQ(ranks[0]->Poll()->bytes, Pattern(2, 2));
  EXPECT_EQ(ranks[0]->Poll()->bytes, Pattern(3, 3));
  EXPECT_EQ(ranks[0]->Poll()->bytes, Pattern(1, 1));
}

TEST(ThreadCommunicator, ChainCarriesBulkDataOfManySpans) {
  auto ranks = MakeThreadCommunicators(3, 64);
  const std::vector<std::byte> a = Pattern(1000, 1), b = Pattern(1, 2), c = Pattern(64, 3);
  std::vector<std::byte> relay_a(1000), relay_b(1), relay_c(64), end_a(1000), end_b(1), end_c(64);
  int served = 0;
  std::thread middle([&] {
    const MutableBytes spans[] = {relay_a, relay_b, relay_c};
    ranks[1]->RelayBulk(0, 2, 7, spans, In(seconds(20)), [&] { ++served; });
  });
  std::thread last([&] {
    const MutableBytes spans[] = {end_a, end_b, end_c};
    ranks[2]->ReceiveBulk(1, 7, spans, In(seconds(20)), {});
  });
  const ConstBytes first[] = {a}, rest[] = {b, c};
  ranks[0]->SendBulk(1, 7, first, In(seconds(20)), {});
  ranks[0]->SendBulk(1, 7, rest, In(seconds(20)), {});
  middle.join();
  last.join();
  EXPECT_EQ(relay_a, a);
  EXPECT_EQ(end_a, a);
  EXPECT_EQ(end_b, b);
  EXPECT_EQ(end_c, c);
  EXPECT_GT(served, 0);
}

TEST(ThreadCommunicator, DeadlinesNameThePeerAndWhatWasWaitedFor) {
  auto ranks = MakeThreadCommunicators(2, 16);
  std::vector<std::byte> bytes(1000);
  const MutableBytes in[] = {bytes};
  const ConstBytes out[] = {bytes};
  try {
    ranks[0]->ReceiveBulk(1, 1, in, In(milliseconds(30)), {});
    FAIL();
  } catch (const PeerLost& lost) {
    EXPECT_EQ(lost.rank(), 1);
    EXPECT_NE(std::string(lost.what()).find("rank 1 did not send"), std::string::npos);
  }
  try {
    ranks[0]->SendBulk(1, 2, out, In(milliseconds(30)), {});
    FAIL();
  } catch (const PeerLost& lost) {
    EXPECT_EQ(lost.rank(), 1);
    EXPECT_NE(std::string(lost.what()).find("rank 1 did not take"), std::string::npos);
  }
}

TEST(ThreadCommunicator, PiecesOfAGivenUpTransferNeverReachTheNext) {
  auto ranks = MakeThreadCommunicators(2, 16);
  const std::vector<std::byte> old = Pattern(1000, 1), fresh = Pattern(32, 2);
  const ConstBytes old_span[] = {old}, fresh_span[] = {fresh};
  EXPECT_THROW(ranks[0]->SendBulk(1, 1, old_span, In(milliseconds(10)), {}), PeerLost);
  ranks[0]->SendBulk(1, 2, fresh_span, In(seconds(20)), {});
  std::vector<std::byte> got(32);
  const MutableBytes span[] = {got};
  ranks[1]->ReceiveBulk(0, 2, span, In(seconds(20)), {});
  EXPECT_EQ(got, fresh);
}

TEST(ThreadCommunicator, AnExceptionOfTheServiceEndsTheTransfer) {
  auto ranks = MakeThreadCommunicators(2);
  std::vector<std::byte> bytes(10);
  const MutableBytes span[] = {bytes};
  EXPECT_THROW(ranks[0]->ReceiveBulk(1, 1, span, In(seconds(20)), [] { throw 5; }), int);
}

TEST(FaultyCommunicator, DoesWhatItsScriptSays) {
  using testing::Fault;
  auto ranks = MakeThreadCommunicators(2);
  testing::FaultyCommunicator sender(
      std::move(ranks[0]),
      {{Fault::Kind::kDrop, Fault::On::kSend, MessageType::kHeartbeat, 2, {}},
       {Fault::Kind::kTruncate, Fault::On::kSend, MessageType::kHeartbeat, 3, {}},
       {Fault::Kind::kCorrupt, Fault::On::kSend, MessageType::kHeartbeat, 4, {}},
       {Fault::Kind::kSilence, Fault::On::kSend, MessageType::kVote, 1, {}}});
  for (uint64_t i = 1; i <= 5; ++i) sender.Send(1, Encode(Heartbeat{.sequence = i}));
  sender.Send(1, Encode(UpdateVote{}));
  sender.Send(1, Encode(Heartbeat{.sequence = 6}));
  EXPECT_EQ(Decode<Heartbeat>(ranks[1]->Poll()->bytes).sequence, 1u);
  EXPECT_THROW(Decode<Heartbeat>(ranks[1]->Poll()->bytes), Error);
  EXPECT_NE(ranks[1]->Poll()->bytes, Encode(Heartbeat{.sequence = 4}));
  EXPECT_EQ(Decode<Heartbeat>(ranks[1]->Poll()->bytes).sequence, 5u);
  EXPECT_EQ(ranks[1]->Poll(), std::nullopt);
}

TEST(FaultyCommunicator, ADelayedMessageHoldsUpTheOnesBehindIt) {
  using testing::Fault;
  auto ranks = MakeThreadCommunicators(2);
  testing::FaultyCommunicator sender(std::move(ranks[0]), {{Fault::Kind::kDelay, Fault::On::kSend,
                                                            std::nullopt, 1, milliseconds(20)}});
  sender.Send(1, Encode(Heartbeat{.sequence = 1}));
  sender.Send(1, Encode(Heartbeat{.sequence = 2}));
  EXPECT_EQ(ranks[1]->Poll(), std::nullopt);
  EXPECT_TRUE(sender.Flush(In(seconds(20))));
  EXPECT_EQ(Decode<Heartbeat>(AwaitMessage(*ranks[1]).bytes).sequence, 1u);
  EXPECT_EQ(Decode<Heartbeat>(AwaitMessage(*ranks[1]).bytes).sequence, 2u);
}

/// Every rank calls ExchangeRoles in a thread of its own; what() of what it threw, or empty.
std::vector<std::string> Exchange(const std::vector<RankInfo>& infos, std::vector<Roles>& roles,
                                  int absent = -1) {
  const int size = static_cast<int>(infos.size());
  auto ranks = MakeThreadCommunicators(size);
  std::vector<std::string> thrown(infos.size());
  roles.resize(infos.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (static_cast<int>(i) == absent) continue;
    threads.emplace_back([&, i] {
      try {
        roles[i] = ExchangeRoles(*ranks[i], infos[i],
                                 absent >= 0 ? In(milliseconds(50)) : In(seconds(20)));
      } catch (const Error& error) {
        thrown[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

TEST(Roles, EveryRankLearnsWhoIsWhat) {
  std::vector<Roles> roles;
  const RankInfo trainer{Role::kTrainer, "1.0", "a.x = 5\n", "a"},
      worker{Role::kWorker, "1.0", "a.x = 5\n", "b"};
  const auto thrown = Exchange({worker, trainer, worker}, roles);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(thrown[i], "");
    EXPECT_EQ(roles[i].trainer(), 1);
    EXPECT_EQ(roles[i].workers(), (std::vector<int>{0, 2}));
    EXPECT_EQ(roles[i].ranks[2].host, "b");
  }
}

TEST(Roles, AJobWithoutATrainerAndOfOneRank) {
  std::vector<Roles> roles;
  EXPECT_EQ(Exchange({{Role::kWorker, "1.0", "a.x = 5\n", "a"}}, roles)[0], "");
  EXPECT_EQ(roles[0].trainer(), -1);
}

TEST(Roles, DevicesAreAssignedByOneRankForAll) {
  const RankInfo trainer{Role::kTrainer, "1.0", "a.x = 5\n", "a", "cuda:0", {"x", "y"}};
  const RankInfo worker{Role::kWorker, "1.0", "a.x = 5\n", "a", "auto", {"x", "y"}};
  std::vector<Roles> roles;
  for (const std::string& error : Exchange({worker, trainer, worker}, roles)) EXPECT_EQ(error, "");
  for (const Roles& seen : roles) {
    EXPECT_EQ(seen.ranks[0].device, "cuda:1");
    EXPECT_EQ(seen.ranks[0].gpu(), "y");
    EXPECT_EQ(seen.ranks[1].device, "cuda:0");
    EXPECT_EQ(seen.ranks[2].device, "cuda:0");
    EXPECT_EQ(seen.ranks[2].gpu(), "x");
  }
  RankInfo wrong = worker;
  wrong.device = "cuda:2";
  for (const std::string& error : Exchange({worker, trainer, wrong}, roles))
    EXPECT_EQ(error, "kernels.device = \"cuda:2\": rank 2 (worker on a) sees 2 GPUs");
}

TEST(Roles, EveryRankHearsOfAMismatch) {
  std::vector<Roles> roles;
  const RankInfo trainer{Role::kTrainer, "1.0", "a.x = 5\n", "a"},
      worker{Role::kWorker, "1.0", "a.x = 5\n", "b"};
  RankInfo old = worker;
  old.rollcast_version = "0.9";
  for (const std::string& error : Exchange({trainer, worker, old}, roles))
    EXPECT_EQ(error, "rank 2 (b) runs rollcast 0.9, rank 0 (a) 1.0");
  for (const std::string& error : Exchange({trainer}, roles))
    EXPECT_EQ(error, "the job has no worker rank");
  for (const std::string& error : Exchange({trainer, trainer, worker}, roles))
    EXPECT_EQ(error, "the job has 2 trainer ranks, expected at most 1");
}

TEST(Roles, DifferentSettingsAreNamedWithTheirValuesAndRanks) {
  const auto rank = [](Role role, const std::string& settings) {
    return RankInfo{role, "1.0", settings, "h"};
  };
  std::vector<Roles> roles;
  const std::string most = "a.x = 5\na.y = \"b = c\"\na.z = 1\n";
  for (const std::string& error :
       Exchange({rank(Role::kTrainer, most), rank(Role::kWorker, most),
                 rank(Role::kWorker, "a.x = 5\na.y = \"\"\na.z = 2\n"), rank(Role::kWorker, most),
                 rank(Role::kWorker, "a.x = 5\na.y = \"\"\na.z = 3\n"),
                 rank(Role::kWorker, "a.x = 5\na.y = \"\"\na.z = 3\n")},
                roles))
    EXPECT_EQ(error,
              "the ranks have different configurations: a.y is \"b = c\" on ranks 0, 1, 3, \"\" on "
              "ranks 2, 4, 5; a.z is 1 on ranks 0, 1, 3, 2 on rank 2, 3 on ranks 4, 5; give all of "
              "them the same file and the same --set");
  // A long list is cut; equal ranks pass, and what they have agreed on is not passed around.
  std::string one, two;
  for (int i = 0; i < 12; ++i) {
    one += StrCat("k.", static_cast<char>('a' + i), " = 1\n");
    two += StrCat("k.", static_cast<char>('a' + i), " = 2\n");
  }
  const std::string error =
      Exchange({rank(Role::kWorker, one), rank(Role::kWorker, two)}, roles).at(0);
  EXPECT_NE(error.find("k.h is 1 on rank 0, 2 on rank 1; and 4 more keys;"), std::string::npos)
      << error;
  EXPECT_EQ(Exchange({rank(Role::kWorker, one), rank(Role::kWorker, one)}, roles)[0], "");
  EXPECT_EQ(roles[0].ranks[1].settings, "");
}

TEST(Roles, AnAbsentRankIsNamedEverywhere) {
  std::vector<Roles> roles;
  const RankInfo worker{Role::kWorker, "1.0", "a.x = 5\n", "b"};
  const auto thrown = Exchange({worker, worker, worker}, roles, 2);
  EXPECT_EQ(thrown[0], "rank 2 did not report to rank 0 at start in time");
  EXPECT_EQ(thrown[1], thrown[0]);
}

TEST(Roles, MessagesOfARankThatIsThroughAreKept) {
  auto ranks = MakeThreadCommunicators(3);
  const RankInfo worker{Role::kWorker, "1.0", "a.x = 5\n", "b"};
  ranks[2]->Send(1, Encode(Heartbeat{.sequence = 4}));  // before rank 1 has its answer
  std::thread zero([&] { ExchangeRoles(*ranks[0], worker, In(seconds(20))); });
  std::thread two([&] { ExchangeRoles(*ranks[2], worker, In(seconds(20))); });
  ExchangeRoles(*ranks[1], worker, In(seconds(20)));
  zero.join();
  two.join();
  EXPECT_EQ(Decode<Heartbeat>(ranks[1]->Poll()->bytes).sequence, 4u);
}

}  // namespace
}  // namespace rollcast
