// How a job without a trainer ends early: every sample has one outcome.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/testing/coordinator_fixture.h"

namespace rollcast {
namespace {

using namespace std::chrono_literals;
using testing::CoordinatorTest;

class StopTest : public CoordinatorTest {
 protected:
  // Ranks 0 and 1, no trainer, two groups of 3; each rank has one, a third group waits.
  void Begin() {
    Make({0, 1}, 3, 1, /*trainer=*/-1);
    Start(/*room=*/3);
    std::vector<GroupWork> groups(3);
    for (uint64_t id = 1; id <= 3; ++id) {
      groups[id - 1].group_id = id;
      groups[id - 1].prompt_id = StrCat("p", id);
      groups[id - 1].prompt = {1, 2, 3};
      groups[id - 1].group_size = 3;
    }
    coordinator_->Submit(std::move(groups));
    for (int rank : {0, 1}) {
      work_[rank] = TakeWork(rank);
      ASSERT_EQ(work_[rank].size(), 1u);
    }
  }

  void ReturnOne(int rank, int32_t sample, Outcome outcome = Outcome::kCompleted) {
    ResultsMessage results;
    results.trajectories.push_back(Done(work_[rank][0], sample, 0, outcome));
    Say(rank, results);
  }

  // "group/sample" to outcome and message of what has been appended.
  std::map<std::string, std::string> Outcomes() {
    std::map<std::string, std::string> outcomes;
    coordinator_->TakeReady(100);
    for (const Trajectory& t : appended_)
      EXPECT_TRUE(outcomes
                      .emplace(StrCat(t.group_id, "/", t.sample_index),
                               StrCat(Name(t.outcome), " ", t.completion.size(), " ", t.message))
                      .second);
    return outcomes;
  }

  std::map<int, std::vector<GroupWork>> work_;
};

TEST_F(StopTest, EverySampleHasOneOutcomeAndFinishedOnesStayCompleted) {
  Begin();
  ReturnOne(0, 1);  // finished, in a group that is not
  EXPECT_TRUE(Outcomes().empty());
  Say(1, StopMessage{"stopped by SIGTERM"});
  EXPECT_EQ(coordinator_->stop_reason(), "stopped by SIGTERM");
  for (int rank : {0, 1}) {
    const auto aborts = Take<AbortMessage>(rank);
    ASSERT_EQ(aborts.size(), 1u);
    EXPECT_EQ(aborts[0].message, "stopped by SIGTERM");
  }
  // A second one changes nothing; a pull gets no work.
  Say(0, StopMessage{"stopped by SIGINT"});
  EXPECT_TRUE(Take<AbortMessage>(0).empty());
  Pull(0, 64);
  EXPECT_TRUE(TakeWork(0).empty());

  ReturnOne(0, 0, Outcome::kAborted);
  ReturnOne(0, 2, Outcome::kAborted);
  for (int32_t sample : {0, 1, 2})
    ReturnOne(1, sample, sample == 1 ? Outcome::kCompleted : Outcome::kAborted);
  EXPECT_EQ(Outcomes(), (std::map<std::string, std::string>{
                            {"1/0", "aborted 2 "},
                            {"1/1", "completed 2 "},
                            {"1/2", "aborted 2 "},
                            {"2/0", "aborted 2 "},
                            {"2/1", "completed 2 "},
                            {"2/2", "aborted 2 "},
                            {"3/0", "aborted 0 stopped by SIGTERM"},
                            {"3/1", "aborted 0 stopped by SIGTERM"},
                            {"3/2", "aborted 0 stopped by SIGTERM"},
                        }));
  EXPECT_EQ(coordinator_->pending_groups(), 0);
}

TEST_F(StopTest, ARankThatDoesNotAnswerOrIsLostIsAccountedFor) {
  Begin();
  ReturnOne(1, 0);
  Say(0, StopMessage{"stopped by SIGINT"});
  now_ += 1s;
  coordinator_->Tick(now_);
  EXPECT_EQ(coordinator_->pending_groups(), 3 - 0);
  coordinator_->Lose(1, "it was killed", now_);
  now_ += 1s;
  coordinator_->Tick(now_);
  const std::string late = "aborted 0 stopped by SIGINT; rank 0 had not returned it within 2 s";
  const std::string lost = "failed 0 rollout rank 1 is lost: it was killed";
  EXPECT_EQ(Outcomes(), (std::map<std::string, std::string>{
                            {"1/0", late},
                            {"1/1", late},
                            {"1/2", late},
                            {"2/0", "completed 2 "},
                            {"2/1", lost},
                            {"2/2", lost},
                            {"3/0", "aborted 0 stopped by SIGINT"},
                            {"3/1", "aborted 0 stopped by SIGINT"},
                            {"3/2", "aborted 0 stopped by SIGINT"},
                        }));
  // What comes after all is dropped.
  ReturnOne(0, 0);
  EXPECT_EQ(Outcomes().at("1/0"), late);
  EXPECT_EQ(coordinator_->pending_groups(), 0);
}

}  // namespace
}  // namespace rollcast
