// One rank's part in an update, driven by hand: weight_sync_test.cc has whole updates.
#include <gtest/gtest.h>

#include "tests/testing/expect_error.h"
#include "tests/testing/toy_update_target.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {
namespace {

using testing::Contains;
using testing::ToyUpdateTarget;

/// The rank and its trainer on this thread.
class ReceiverTest : public ::testing::Test {
 protected:
  ReceiverTest()
      : communicators_(MakeThreadCommunicators(2)),
        receiver_(*communicators_[1], target_, {MessageWeightTransport()},
                  {[this] { service_(); }, nullptr, nullptr}) {}

  UpdateAnnounce Announcement(uint64_t update) {
    UpdateAnnounce announce;
    announce.update = update;
    announce.manifest_digest = target_.manifest().digest;
    announce.carried = {0, 1, 2, 3, 4};
    announce.transport = "mpi";
    announce.group = {0, 1};
    announce.remaining_s = 20;
    return announce;
  }
  template <class M>
  void Give(const M& message) {
    EXPECT_TRUE(receiver_.Handle({0, Encode(message)}));
  }
  template <class M>
  M Answer() {
    const auto message = communicators_[0]->Poll();
    if (!message) throw Error("no answer");
    return Decode<M>(message->bytes);
  }
  UpdateVote VoteOn(const UpdateAnnounce& announce) {
    Give(announce);
    return Answer<UpdateVote>();
  }

  std::vector<std::unique_ptr<Communicator>> communicators_;
  ToyUpdateTarget target_;
  std::function<void()> service_ = [] {};
  WeightReceiver receiver_;
};

TEST_F(ReceiverTest, VotesNoWithAReason) {
  UpdateAnnounce announce = Announcement(1);
  announce.manifest_digest ^= 1;
  EXPECT_TRUE(Contains(VoteOn(announce).reason, "the weight manifest differs"));
  announce = Announcement(1);
  announce.carried = {0, 1, 2, 3};
  EXPECT_EQ(VoteOn(announce).reason, "a whole update carries 4 of 5 tensors");
  for (const std::vector<uint32_t>& list :
       {std::vector<uint32_t>{0, 0}, {1, 0}, {5}, {4294967295u}}) {
    announce.partial = true;
    announce.carried = list;
    EXPECT_EQ(VoteOn(announce).reason,
              "the list of carried tensors is not an ascending list below 5");
  }
  announce = Announcement(1);
  announce.transport = "nccl";
  EXPECT_EQ(VoteOn(announce).reason, "weight transport \"nccl\": there is mpi");
  announce = Announcement(1);
  announce.group = {0, 3};
  EXPECT_EQ(VoteOn(announce).reason, "this rank is not in the update's group");
  announce = Announcement(1);
  announce.version = 0;
  EXPECT_EQ(VoteOn(announce).reason, "version 0 is not above the live version 0");
  EXPECT_FALSE(receiver_.updating());
}

TEST_F(ReceiverTest, AnotherTrainerCannotStepIntoAnUpdate) {
  EXPECT_TRUE(VoteOn(Announcement(1)).yes);
  UpdateAnnounce other = Announcement(9);
  other.group = {1, 1};
  EXPECT_TRUE(receiver_.Handle({1, Encode(other)}));
  const auto answer = communicators_[1]->Poll();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(Decode<UpdateVote>(answer->bytes).reason, "update 1 has not ended on this rank");
}

TEST_F(ReceiverTest, ANewerAnnouncementReplacesOneThatNeverBegan) {
  EXPECT_TRUE(VoteOn(Announcement(1)).yes);
  EXPECT_TRUE(VoteOn(Announcement(2)).yes);
  Give(UpdateBegin{1});
  EXPECT_EQ(Answer<UpdateFailed>().update, 1u);
  Give(UpdateAbort{2, "test"});
  EXPECT_EQ(Answer<UpdateAborted>().update, 2u);
  EXPECT_FALSE(receiver_.updating());
}

TEST_F(ReceiverTest, DropsAnAnnouncementAtItsDeadline) {
  UpdateAnnounce announce = Announcement(1);
  announce.remaining_s = 0;
  EXPECT_TRUE(VoteOn(announce).yes);
  receiver_.Tick();
  EXPECT_FALSE(receiver_.updating());
}

TEST_F(ReceiverTest, ACommitOfWhatWasNotVerifiedEndsTheRank) {
  EXPECT_TRUE(VoteOn(Announcement(1)).yes);
  EXPECT_THROW(receiver_.Handle({0, Encode(UpdateCommit{1, 0, 1})}), Error);
}

TEST_F(ReceiverTest, ExceptionsOfTheRankItselfAreNotTakenForATransferFailure) {
  EXPECT_TRUE(VoteOn(Announcement(1)).yes);
  service_ = [] { throw Error("the engine broke"); };
  EXPECT_THROW(receiver_.Handle({0, Encode(UpdateBegin{1})}), Error);
  EXPECT_FALSE(receiver_.updating());
}

TEST_F(ReceiverTest, HeartbeatsAreServedWhileATransferWaitsAndAnAbortEndsIt) {
  EXPECT_TRUE(VoteOn(Announcement(1)).yes);
  int heartbeats = 0;
  service_ = [&] {
    while (auto message = communicators_[1]->Poll())
      if (!receiver_.Handle(*message)) ++heartbeats;
  };
  communicators_[0]->Send(1, Encode(Heartbeat{}));
  communicators_[0]->Send(1, Encode(UpdateAbort{1, "enough"}));
  Give(UpdateBegin{1});  // waits for data that never comes
  EXPECT_EQ(heartbeats, 1);
  Answer<UpdateReady>();
  const auto aborted = Answer<UpdateAborted>();
  EXPECT_FALSE(aborted.received_all);
  EXPECT_FALSE(aborted.torn);
  EXPECT_FALSE(receiver_.updating());
}

TEST_F(ReceiverTest, AnInPlaceTransferThatNeverComesGivesUpAtTheDeadlineTorn) {
  UpdateAnnounce announce = Announcement(1);
  announce.mode = UpdateMode::kInPlace;
  announce.remaining_s = 0.05;
  EXPECT_TRUE(VoteOn(announce).yes);
  Give(UpdateBegin{1});
  Answer<UpdateReady>();
  const auto failed = Answer<UpdateFailed>();
  EXPECT_TRUE(failed.torn);
  EXPECT_EQ(failed.lost_rank, 0);
  EXPECT_TRUE(target_.Step().torn);
  EXPECT_FALSE(target_.admission_held());
}

TEST_F(ReceiverTest, MessagesOfOthersAreLeftAlone) {
  EXPECT_FALSE(receiver_.Handle({0, Encode(Heartbeat{})}));
}

}  // namespace
}  // namespace rollcast
