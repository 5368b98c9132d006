// The main job as its users run it: mpirun, a toy model on disk, kill -9.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "launch/toy_model.h"
#include "rollout/hdf5.h"
#include "rollout/trajectory_file.h"
#include "tests/testing/mpi_job.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using namespace std::chrono_literals;
using testing::MpiJob;
using testing::Quoted;
using testing::TemporaryDir;

constexpr int kGroupSize = 4;
constexpr int kGroups = 4;

class MainJobTest : public ::testing::Test {
 protected:
  MainJobTest() {
    MakeToyModel(folder_ / "model", 1);
    std::ofstream prompts(folder_ / "prompts.jsonl");
    for (int i = 0; i < 12; ++i)
      prompts << "{\"id\": \"p" << i << "\", \"text\": \"number " << i << " is \"}\n";
    std::ofstream(folder_ / "job.toml")
        << "[model]\nuntie_head = true\n"
           "[kernels]\nthreads = 1\n"
           "[engine]\nmax_running = 16\nmax_batched_tokens = 64\n"
           "kv_memory_mb = 8\n"
           "[sampling]\nmax_tokens = 10\n"
           "[scorer]\nkind = \"regex\"\npattern = \"e\"\n"
           "[sync]\nheartbeat_s = 0.5\ndeadline_s = 20\n"
           "[rollout]\ngroup_size = "
        << kGroupSize << "\ngroups_per_update = " << kGroups << "\nseed = 3\n";
  }

  std::filesystem::path file() const { return folder_ / "out.h5"; }

  std::string Command(const std::string& name, const std::string& options) const {
    return Quoted(ROLLCAST_BINARY) + " " + name + " -c " + Quoted((folder_ / "job.toml").string()) +
           " --model " + Quoted((folder_ / "model").string()) +
           " --set rollout.prompts=" + Quoted((folder_ / "prompts.jsonl").string()) +
           " --set rollout.output=" + Quoted(file().string()) + " " + options;
  }
  std::string Job(const std::string& options, const std::string& mpi_options = "",
                  int workers = 2) const {
    return "exec " + Quoted(ROLLCAST_MPIRUN) + " " + mpi_options + " -np 1 " +
           Command("trainer", options) + " : -np " + std::to_string(workers) + " " +
           Command("worker", options);
  }

  /// The options of a command scorer whose reward is the Python expression `reward` of `row`.
  std::string ScoredBy(const std::string& reward) const {
    const auto script = folder_ / "scorer.py";
    std::ofstream(script) << "import json, sys\n"
                             "for line in sys.stdin:\n"
                             "    row = json.loads(line)\n"
                             "    print(json.dumps({'id': row['id'], 'reward': "
                          << reward << "}), flush=True)\n";
    return "--set scorer.kind=command --set scorer.command=" + Quoted("python3 " + script.string());
  }

  /// Rows that a reader finds now; 0 when there is no file yet.
  int64_t Rows() const {
    if (!std::filesystem::exists(file())) return 0;
    return TrajectoryReader(file()).rows();
  }

  /// The file opens, and every group in it is whole: a group is handed over at once.
  std::vector<TrajectoryRow> ReadWholeGroups() const {
    const TrajectoryReader reader(file());
    auto rows = reader.ReadRows(0, reader.rows());
    std::map<uint64_t, std::set<int>> groups;
    for (const TrajectoryRow& row : rows) {
      EXPECT_TRUE(groups[row.trajectory.group_id].insert(row.trajectory.sample_index).second)
          << "group " << row.trajectory.group_id << " has a sample twice";
    }
    for (const auto& [id, samples] : groups)
      EXPECT_EQ(samples.size(), static_cast<size_t>(kGroupSize)) << "group " << id;
    return rows;
  }

  TemporaryDir temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(MainJobTest, TrainsInBothModes) {
  for (const std::string mode : {"staged", "in_place"}) {
    MpiJob job(Job("--set trainer.updates=6 --set rollout.overwrite=true --set sync.mode=" + mode),
               folder_);
    ASSERT_EQ(job.Wait(120s), 0) << job.err();
    EXPECT_NE(job.out().find("6-6"), std::string::npos) << job.out();
    EXPECT_NE(job.out().find(file().string()), std::string::npos) << job.out();
    const TrajectoryReader reader(file());
    EXPECT_TRUE(reader.closed());
    EXPECT_EQ(reader.rows(), 6 * kGroups * kGroupSize);
    const auto updates = reader.ReadUpdates();
    ASSERT_EQ(updates.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(updates[i].committed);
      EXPECT_EQ(updates[i].version, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(updates[i].mode, mode);
    }
    std::set<int> ranks;
    for (const TrajectoryRow& row : ReadWholeGroups()) {
      EXPECT_EQ(row.trajectory.outcome, Outcome::kCompleted) << row.trajectory.message;
      EXPECT_LE(row.policy_lag(), 1);
      ranks.insert(row.trajectory.rank);
    }
    EXPECT_EQ(ranks, (std::set<int>{1, 2}));
  }
}

TEST_F(MainJobTest, ARewardThatDoesNotRiseIsAnError) {
  MpiJob job(Job("--set trainer.updates=2 --set trainer.min_reward_gain=0.9"), folder_);
  EXPECT_EQ(job.Wait(120s), 1);
  EXPECT_NE(job.err().find("trainer.min_reward_gain"), std::string::npos) << job.err();
  EXPECT_TRUE(TrajectoryReader(file()).closed());
}

class KilledRankTest : public MainJobTest, public ::testing::WithParamInterface<int> {};

// mpirun ends the others when one is killed. It must not take longer than the deadline, somebody
// must say why, and what had been returned must be in the file.
TEST_P(KilledRankTest, EndsTheJobWithAStatedErrorAndAWholeFile) {
  MpiJob job(Job("--set trainer.updates=100000"), folder_);
  ASSERT_TRUE(job.WaitFor([&] { return Rows() >= 5 * kGroups * kGroupSize; }, 60s)) << job.err();
  ASSERT_TRUE(job.KillRank(GetParam()));
  const int status = job.Wait(40s);
  EXPECT_GT(status, 0) << job.err();
  const std::string err = job.err();
  EXPECT_TRUE(err.find("is lost") != std::string::npos ||
              err.find("stopped by SIGTERM") != std::string::npos ||
              err.find("exited on signal 9") != std::string::npos)
      << err;
  EXPECT_GE(ReadWholeGroups().size(), 5u * kGroups * kGroupSize);
}

std::string RankName(const ::testing::TestParamInfo<int>& info) {
  return info.param == 0 ? "trainer" : info.param == 1 ? "coordinator" : "worker";
}
INSTANTIATE_TEST_SUITE_P(Ranks, KilledRankTest, ::testing::Values(0, 1, 2), RankName);

// With --enable-recovery mpirun lets the others live; they find out by themselves.
TEST_F(MainJobTest, RanksNoticeAKilledTrainerByThemselves) {
  MpiJob job(Job("--set trainer.updates=100000", "--enable-recovery"), folder_);
  ASSERT_TRUE(job.WaitFor([&] { return Rows() > 0; }, 60s)) << job.err();
  ASSERT_TRUE(job.KillRank(0));
  ASSERT_NE(job.Wait(40s), -1) << job.err();
  const std::string err = job.err();
  for (const std::string rank : {"rank 1] error: ", "rank 2] error: "})
    EXPECT_NE(err.find(rank + "the trainer (rank 0) is lost: no sign of life"), std::string::npos)
        << err;
  ReadWholeGroups();
}

TEST_F(MainJobTest, TheJobGoesOnWithoutAKilledWorker) {
  MpiJob job(Job("--set trainer.updates=150 --set sync.deadline_s=6", "--enable-recovery", 3),
             folder_);
  ASSERT_TRUE(job.WaitFor([&] { return Rows() >= 3 * kGroups * kGroupSize; }, 60s)) << job.err();
  ASSERT_TRUE(job.KillRank(3));
  ASSERT_NE(job.Wait(200s), -1) << job.err();
  EXPECT_NE(job.err().find("rank 3"), std::string::npos) << job.err();
  EXPECT_NE(job.out().find(file().string()), std::string::npos) << "the run has not ended well";
  const TrajectoryReader reader(file());
  EXPECT_TRUE(reader.closed());
  EXPECT_EQ(reader.rows(), 150 * kGroups * kGroupSize);
  ReadWholeGroups();
}

// mpirun passes the signal on and kills who is left. Ranks that called MPI_Finalize then left
// mpirun hanging, or crashing, in some 5 of 100 tries; so each try must end, whatever the instant.
TEST_F(MainJobTest, ASignalToMpirunEndsTheJob) {
  for (int attempt = 0; attempt < 6; ++attempt) {
    std::filesystem::remove(file());
    MpiJob job(Job("--set trainer.updates=100000"), folder_);
    ASSERT_TRUE(job.WaitFor([&] { return Rows() > attempt * kGroups * kGroupSize; }, 60s))
        << job.err();
    job.Signal(SIGTERM);
    const int status = job.Wait(30s);
    EXPECT_GT(status, 0) << job.err();
    EXPECT_LT(status, 128) << "mpirun itself has crashed: " << job.err();
    EXPECT_NE(job.err().find("stopped by SIGTERM"), std::string::npos) << job.err();
    const TrajectoryReader reader(file());
    EXPECT_TRUE(reader.closed()) << job.err();
    EXPECT_NE(reader.end().find("stopped by SIGTERM"), std::string::npos) << reader.end();
    ReadWholeGroups();
  }
}

TEST_F(MainJobTest, TheSavedModelIsTheLivePolicyBitForBit) {
  const auto saved = folder_ / "saved";
  MpiJob job(
      Job("--set trainer.updates=3 --set trainer.save_every=1 --set trainer.learning_rate=0.1 "
          "--set rollout.max_policy_lag=0 --set trainer.save=" +
          Quoted((saved / "{version}").string())),
      folder_);
  ASSERT_EQ(job.Wait(120s), 0) << job.err();
  EXPECT_NE(job.out().find("model: " + (saved / "3").string()), std::string::npos) << job.out();
  const TrajectoryReader reader(file());
  for (int version = 1; version <= 2; ++version) {
    // Without policy lag a batch is drawn under one version alone.
    std::vector<Trajectory> rows;
    std::ofstream input(folder_ / "rows.jsonl");
    for (int64_t i = 0; i < reader.rows(); ++i) {
      Trajectory t = reader.Read(i);
      if (t.version_first() != version || t.version_last() != version) continue;
      input << "{\"tokens\": [";
      for (size_t j = 0; j < t.prompt.size() + t.completion.size(); ++j)
        input << (j > 0 ? ", " : "")
              << (j < t.prompt.size() ? t.prompt[j] : t.completion[j - t.prompt.size()]);
      input << "]}\n";
      rows.push_back(std::move(t));
    }
    input.close();
    ASSERT_EQ(rows.size(), static_cast<size_t>(kGroups * kGroupSize));
    MpiJob score("exec " + Quoted(ROLLCAST_BINARY) + " score --overwrite --model " +
                     Quoted((saved / std::to_string(version)).string()) + " --input " +
                     Quoted((folder_ / "rows.jsonl").string()) + " --output " +
                     Quoted((folder_ / "scores.h5").string()),
                 folder_);
    ASSERT_EQ(score.Wait(60s), 0) << score.err();
    const Hdf5File scores = Hdf5File::Open(folder_ / "scores.h5");
    for (size_t i = 0; i < rows.size(); ++i) {
      const Trajectory& t = rows[i];
      std::vector<float> logprob(t.prompt.size() + t.completion.size() - 1);
      scores.Read<float>("row_" + std::to_string(i) + "/logprob_raw", 0, logprob);
      for (size_t j = 0; j < t.completion.size(); ++j)
        EXPECT_EQ(logprob[t.prompt.size() - 1 + j], t.logprob_raw[j]) << version << " " << i;
    }
  }
}

TEST_F(MainJobTest, AFolderThatCannotBeSavedToIsAnErrorAndTheTableSaysHowFarItCame) {
  const auto saved = folder_ / "saved";
  std::filesystem::create_directories(saved / "2");
  std::ofstream(saved / "2" / "notes.txt") << "mine";
  const std::string options = "--set trainer.updates=3 --set rollout.overwrite=true";
  const std::string save = " --set trainer.save=" + Quoted((saved / "{version}").string());
  {
    // Found out when the folder is due.
    MpiJob job(Job(options + save + " --set trainer.save_every=1"), folder_);
    EXPECT_GT(job.Wait(120s), 0);
    EXPECT_NE(job.err().find("saved/2: exists already"), std::string::npos) << job.err();
    EXPECT_NE(job.out().find("\n      2-2        2 "), std::string::npos) << job.out();
    EXPECT_NE(job.out().find("model: " + (saved / "1").string()), std::string::npos) << job.out();
  }
  // Found out at the start.
  for (const auto& [name, what] : std::map<std::string, std::string>{
           {(saved / "2").string(), "saved/2: exists already"},
           {(folder_ / "model").string(), "model: is the model that is trained"},
           {(folder_ / "job.toml" / "x").string(), "job.toml/x: cannot be created"}}) {
    MpiJob job(Job(options + " --set trainer.save=" + Quoted(name)), folder_);
    EXPECT_GT(job.Wait(120s), 0);
    EXPECT_NE(job.err().find(what), std::string::npos) << job.err();
    EXPECT_EQ(job.out().find("1-1"), std::string::npos) << job.out();
  }
  EXPECT_TRUE(std::filesystem::exists(saved / "2" / "notes.txt"));
}

TEST_F(MainJobTest, TheExampleScorerScoresAsACommandAndOverHttp) {
  const std::string scorer =
      "python3 " + std::string(ROLLCAST_TEST_DATA) + "/../../configs/scorer.py";
  const TemporaryDir server_folder;
  MpiJob server("exec " + scorer + " --port 0", server_folder.path());
  ASSERT_TRUE(server.WaitFor([&] { return server.out().ends_with("\n"); }, 30s)) << server.err();
  const std::string port = server.out().substr(0, server.out().size() - 1);
  for (const std::string& kind :
       {"command --set scorer.command=" + Quoted(scorer),
        "http --set scorer.url=" + Quoted("http://127.0.0.1:" + port + "/score")}) {
    MpiJob job(
        Job("--set trainer.updates=3 --set rollout.overwrite=true --set scorer.kind=" + kind),
        folder_);
    ASSERT_EQ(job.Wait(120s), 0) << job.err();
    double sum = 0;
    for (const TrajectoryRow& row : ReadWholeGroups()) {
      const Trajectory& t = row.trajectory;
      EXPECT_EQ(t.outcome, Outcome::kCompleted) << t.message;
      const auto count = std::count(t.text.begin(), t.text.end(), 'e');
      EXPECT_DOUBLE_EQ(t.reward, static_cast<double>(count) / row.completion_length);
      sum += t.reward;
    }
    EXPECT_GT(sum, 0);
  }
}

TEST_F(MainJobTest, TwoJobsDoNotWriteOneFile) {
  MpiJob first(Job("--set trainer.updates=100000 --set rollout.overwrite=true"), folder_);
  ASSERT_TRUE(first.WaitFor([&] { return Rows() > 0; }, 60s)) << first.err();
  const TemporaryDir other;
  MpiJob second(Job("--set trainer.updates=2 --set rollout.overwrite=true"), other.path());
  EXPECT_GT(second.Wait(60s), 0);
  EXPECT_NE(second.err().find(file().string() + ": another job is writing it"), std::string::npos)
      << second.err();
  const int64_t rows = Rows();
  EXPECT_TRUE(first.WaitFor([&] { return Rows() > rows; }, 60s)) << first.err();
}

TEST_F(MainJobTest, AShortQueueDoesNotFailTheJob) {
  MpiJob job(Job("--set trainer.updates=3 --set engine.max_queued=1"), folder_);
  ASSERT_EQ(job.Wait(120s), 0) << job.err();
  for (const TrajectoryRow& row : ReadWholeGroups())
    EXPECT_EQ(row.trajectory.outcome, Outcome::kCompleted) << row.trajectory.message;
}

TEST_F(MainJobTest, UpdatesThatThrowCompletionsAwayAreWarnedOfOnce) {
  const std::string abort =
      "--set trainer.updates=3 --set rollout.overwrite=true "
      "--set sync.in_flight=abort --set rollout.max_policy_lag=";
  for (const int lag : {0, 1}) {
    MpiJob job(Job(abort + std::to_string(lag)), folder_);
    const int status = job.Wait(120s);
    // A slow machine may have the whole of a batch in flight when an update comes.
    const bool all_thrown_away = lag == 1 && job.err().find("can be trained on") < job.err().size();
    ASSERT_EQ(status, all_thrown_away ? 1 : 0) << job.err();
    const std::string what = "sync.in_flight is abort";
    const size_t at = job.err().find(what);
    ASSERT_EQ(at != std::string::npos, lag == 1) << job.err();
    EXPECT_TRUE(lag == 0 || job.err().find(what, at + 1) == std::string::npos) << job.err();
    EXPECT_TRUE(all_thrown_away || job.out().find("aborted") != std::string::npos) << job.out();
  }
}

TEST_F(MainJobTest, EqualRewardsAreWarnedOfOnce) {
  MpiJob job(Job("--set trainer.updates=7 --set scorer.pattern=."), folder_);
  ASSERT_EQ(job.Wait(120s), 0) << job.err();
  const std::string what =
      "warning: update 5: nothing to learn from: all rewards of each group are equal, for five "
      "updates now; look at the scorer and at the completions, or raise rollout.group_size\n";
  const size_t at = job.err().find(what);
  ASSERT_NE(at, std::string::npos) << job.err();
  EXPECT_EQ(job.err().find("nothing to learn from", at + what.size()), std::string::npos);
  const auto updates = TrajectoryReader(file()).ReadUpdates();
  ASSERT_EQ(updates.size(), 7u);
  for (const SyncReport& update : updates) EXPECT_EQ(update.digest, updates[0].digest);
}

// What float32 holds is trained on, whatever its size; what it does not hold has no reward.
TEST_F(MainJobTest, HugeRewardsStayFiniteOrAreRefused) {
  MpiJob job(Job("--set trainer.updates=3 " +
                 ScoredBy("(3e38, -3e38, 1e308, -1e308)[row['completion_ids'][0] % 4]")),
             folder_);
  ASSERT_EQ(job.Wait(120s), 0) << job.err();
  for (const char* no_number : {"nan", "inf"})
    EXPECT_EQ(job.out().find(no_number), std::string::npos) << job.out();
  const TrajectoryReader reader(file());
  std::map<int, int> rows;
  for (int64_t i = 0; i < reader.rows(); ++i) {
    const Trajectory t = reader.Read(i);
    const int kind = t.completion.at(0) % 4;
    ++rows[kind];
    if (kind < 2) {
      EXPECT_EQ(t.outcome, Outcome::kCompleted) << t.message;
      EXPECT_EQ(t.reward, kind == 0 ? 3e38 : -3e38);
    } else {
      EXPECT_EQ(t.outcome, Outcome::kScoringFailed);
      EXPECT_EQ(t.message, kind == 2 ? "the reward is 1e+308, beyond float32 (3.4e+38 at most)"
                                     : "the reward is -1e+308, beyond float32 (3.4e+38 at most)");
    }
    for (const float logprob : t.logprob) EXPECT_TRUE(std::isfinite(logprob));
  }
  EXPECT_EQ(rows.size(), 4u);
  const auto updates = reader.ReadUpdates();
  ASSERT_EQ(updates.size(), 3u);
  EXPECT_NE(updates[2].digest, updates[0].digest) << "there was something to learn from";
  MpiJob inspect("exec " + Quoted(ROLLCAST_BINARY) + " inspect " + Quoted(file().string()),
                 folder_);
  EXPECT_EQ(inspect.Wait(60s), 0) << inspect.err();
  const std::string summary = inspect.out().substr(0, inspect.out().find("weight updates"));
  for (const char* no_number : {"nan", "inf"})
    EXPECT_EQ(summary.find(no_number), std::string::npos) << summary;
}

TEST_F(MainJobTest, RewardsThatAreAllBeyondFloat32EndTheJobWithTheReason) {
  MpiJob job(Job("--set trainer.updates=3 " + ScoredBy("1e308")), folder_);
  EXPECT_GT(job.Wait(120s), 0);
  EXPECT_NE(job.err().find("update 1: none of 16 completions can be trained on; the first: "
                           "scoring_failed: the reward is 1e+308, beyond float32"),
            std::string::npos)
      << job.err();
}

TEST_F(MainJobTest, AKilledScorerIsStartedAgain) {
  MpiJob job(Job("--set trainer.updates=60 --set scorer.deadline_s=20 " + ScoredBy("1")), folder_);
  ASSERT_TRUE(job.WaitFor([&] { return Rows() > 0; }, 60s)) << job.err();
  const std::vector<pid_t> scorers = job.Find("python3");
  ASSERT_GE(scorers.size(), 2u);
  for (const pid_t pid : scorers) kill(pid, SIGKILL);
  EXPECT_EQ(job.Wait(120s), 0) << job.err();
  for (const TrajectoryRow& row : ReadWholeGroups())
    EXPECT_TRUE(row.trajectory.outcome == Outcome::kCompleted ||
                row.trajectory.outcome == Outcome::kScoringFailed);
}

TEST_F(MainJobTest, AScorerThatDiesAlwaysEndsTheJobWithItsReason) {
  MpiJob job(Job("--set trainer.updates=60 --set scorer.kind=command --set scorer.deadline_s=2 "
                 "--set scorer.command=" +
                 Quoted("exit 3")),
             folder_);
  EXPECT_GT(job.Wait(120s), 0);
  EXPECT_NE(job.err().find("scor"), std::string::npos) << job.err();
  for (const TrajectoryRow& row : ReadWholeGroups()) {
    EXPECT_EQ(row.trajectory.outcome, Outcome::kScoringFailed);
  }
}

TEST_F(MainJobTest, RanksWithOtherSettingsAreNamed) {
  MpiJob job("exec " + Quoted(ROLLCAST_MPIRUN) + " -np 1 " + Command("trainer", "") + " : -np 1 " +
                 Command("worker", "") + " : -np 1 " + Command("worker", "--set sampling.top_k=5"),
             folder_);
  EXPECT_GT(job.Wait(60s), 0);
  EXPECT_NE(job.err().find("sampling.top_k is -1 on ranks 0, 1, 5 on rank 2"), std::string::npos)
      << job.err();
}

TEST_F(MainJobTest, AMissingModelIsOneClearErrorOnEveryRank) {
  std::filesystem::remove(folder_ / "model" / "config.json");
  MpiJob job(Job(""), folder_);
  EXPECT_GT(job.Wait(60s), 0);
  EXPECT_NE(job.err().find("model/config.json"), std::string::npos) << job.err();
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(MainJobTest, GenerateGivesTheSameBitsOnAnyNumberOfRanks) {
  std::vector<std::string> reference;
  for (int ranks = 0; ranks <= 3; ++ranks) {
    const std::string prefix =
        ranks == 0 ? "exec "
                   : "exec " + Quoted(ROLLCAST_MPIRUN) + " -np " + std::to_string(ranks) + " ";
    MpiJob job(prefix + Command("generate", "--overwrite --max-tokens 24"), folder_);
    ASSERT_EQ(job.Wait(60s), 0) << job.err();
    EXPECT_NE(job.out().find("48 completions of 12 prompts"), std::string::npos) << job.out();
    const TrajectoryReader reader(file());
    EXPECT_TRUE(reader.closed());
    std::vector<std::string> prints;
    for (int64_t i = 0; i < reader.rows(); ++i) {
      const Trajectory t = reader.Read(i);
      std::string print = t.prompt_id + "/" + std::to_string(t.sample_index);
      for (size_t j = 0; j < t.completion.size(); ++j)
        print += " " + std::to_string(t.completion[j]) + ":" +
                 std::to_string(std::bit_cast<uint32_t>(t.logprob[j]));
      prints.push_back(std::move(print));
    }
    std::sort(prints.begin(), prints.end());
    EXPECT_EQ(prints.size(), 48u);
    if (reference.empty()) reference = prints;
    EXPECT_EQ(prints, reference) << ranks << " ranks";
  }
}

TEST_F(MainJobTest, GenerateKeepsTheGoodOnesAndSaysWhichWereRefused) {
  std::ofstream(folder_ / "prompts.jsonl")
      << "{\"id\": \"good\", \"text\": \"a b c\"}\n"
      << "{\"id\": \"long\", \"text\": \"" << std::string(5000, 'x') << "\"}\n";
  MpiJob job("exec " + Command("generate", ""), folder_);
  EXPECT_EQ(job.Wait(60s), 1);
  EXPECT_NE(job.err().find("\"long\""), std::string::npos) << job.err();
  std::map<std::string, int> outcomes;
  for (const TrajectoryRow& row : ReadWholeGroups())
    ++outcomes[row.trajectory.prompt_id + " " + Name(row.trajectory.outcome)];
  EXPECT_EQ(outcomes, (std::map<std::string, int>{
                          {std::string("good ") + Name(Outcome::kCompleted), kGroupSize},
                          {std::string("long ") + Name(Outcome::kRefused), kGroupSize}}));
}

TEST_F(MainJobTest, AWorkerWithoutATrainerSaysWhatToDo) {
  MpiJob job("exec " + Command("worker", ""), folder_);
  EXPECT_EQ(job.Wait(60s), 1);
  EXPECT_NE(job.err().find("rollcast generate"), std::string::npos) << job.err();
}

TEST_F(MainJobTest, ATrainerAloneSaysWhatToDo) {
  MpiJob job("exec " + Command("trainer", ""), folder_);
  EXPECT_EQ(job.Wait(60s), 1);
  EXPECT_NE(job.err().find("-np N rollcast worker"), std::string::npos) << job.err();
}

TEST_F(MainJobTest, ScoreIsBitForBitWhatGenerateRecorded) {
  MpiJob generate("exec " + Command("generate", ""), folder_);
  ASSERT_EQ(generate.Wait(60s), 0) << generate.err();
  const TrajectoryReader reader(file());
  const auto scores = folder_ / "scores.h5";
  std::vector<Trajectory> rows;
  std::ofstream input(folder_ / "rows.jsonl");
  for (int64_t i = 0; i < 5; ++i) {
    rows.push_back(reader.Read(i));
    input << "{\"tokens\": [";
    bool first = true;
    for (const auto* part : {&rows.back().prompt, &rows.back().completion})
      for (int32_t token : *part) {
        input << (first ? "" : ", ") << token;
        first = false;
      }
    input << "]}\n";
  }
  input.close();
  const std::string score = "exec " + Quoted(ROLLCAST_BINARY) + " score --model " +
                            Quoted((folder_ / "model").string()) + " --set model.untie_head=true" +
                            " --input " + Quoted((folder_ / "rows.jsonl").string()) + " --output " +
                            Quoted(scores.string()) + " --logits";
  MpiJob job(score, folder_);
  ASSERT_EQ(job.Wait(60s), 0) << job.err();
  const Hdf5File file = Hdf5File::Open(scores);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Trajectory& t = rows[i];
    const size_t tokens = t.prompt.size() + t.completion.size();
    const std::string group = "row_" + std::to_string(i);
    ASSERT_EQ(file.Shape(group + "/logprob_raw"), (std::vector<uint64_t>{tokens - 1}));
    EXPECT_EQ(file.Shape(group + "/logits").at(0), tokens);
    std::vector<float> logprob(tokens - 1);
    file.Read<float>(group + "/logprob_raw", 0, logprob);
    for (size_t j = 0; j < t.completion.size(); ++j)
      EXPECT_EQ(logprob[t.prompt.size() - 1 + j], t.logprob_raw[j]) << i << " " << j;
  }
  // The output is not replaced unasked.
  MpiJob again(score, folder_);
  EXPECT_EQ(again.Wait(60s), 1);
  EXPECT_NE(again.err().find("exists already"), std::string::npos) << again.err();
}

TEST_F(MainJobTest, ScoreRefusesABadRowByLineAndLeavesNothing) {
  const std::map<std::string, std::string> cases = {
      {"{\"tokens\": [1, 2]}\n{\"tokens\": [1, 99999999]}\n", "rows.jsonl:2"},
      {"{\"tokens\": [1, 2]}\n\n{\"tokens\": [1, -2]}\n", "rows.jsonl:3"},
      {"{\"tokens\": [1]}\n", "rows.jsonl:1"},
      {"{\"tokens\": \n", "rows.jsonl:1"},
      {"{\"token\": [1, 2]}\n", "rows.jsonl:1: unknown key \"token\""},
      {"{\"id\": \"a\"}\n", "no \"tokens\""}};
  for (const auto& [rows, where] : cases) {
    std::ofstream(folder_ / "rows.jsonl") << rows;
    MpiJob job("exec " + Quoted(ROLLCAST_BINARY) + " score --model " +
                   Quoted((folder_ / "model").string()) + " --input " +
                   Quoted((folder_ / "rows.jsonl").string()) + " --output " +
                   Quoted((folder_ / "scores.h5").string()),
               folder_);
    EXPECT_EQ(job.Wait(60s), 1) << rows;
    EXPECT_NE(job.err().find(where), std::string::npos) << job.err();
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      EXPECT_EQ(entry.path().filename().string().find("scores.h5"), std::string::npos)
          << entry.path();
  }
}

}  // namespace
}  // namespace rollcast
