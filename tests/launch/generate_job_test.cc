// `rollcast generate` as its users run it, alone and under mpirun: sampling of a row, and a stop.
#include <gtest/gtest.h>
#include <signal.h>

#include <bit>
#include <fstream>
#include <map>
#include <set>

#include "launch/toy_model.h"
#include "rollout/group_work.h"
#include "rollout/trajectory_file.h"
#include "tests/testing/mpi_job.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using namespace std::chrono_literals;
using testing::MpiJob;
using testing::Quoted;
using testing::TemporaryDir;

constexpr int kGroupSize = 3;

class GenerateJobTest : public ::testing::Test {
 protected:
  GenerateJobTest() { MakeToyModel(folder_ / "model", 1); }

  std::filesystem::path file() const { return folder_ / "out.h5"; }
  void Prompts(const std::string& rows) const { std::ofstream(folder_ / "prompts.jsonl") << rows; }
  /// `ranks` 0: without mpirun.
  std::string Generate(int ranks, const std::string& options) const {
    // mpirun waits so long before it passes a signal on, and again before it kills: one second by
    // default, which may be short for a loaded test machine.
    const std::string mpirun =
        Quoted(ROLLCAST_MPIRUN) + " --mca odls_base_sigkill_timeout 3 -np " + std::to_string(ranks);
    return "exec " + (ranks == 0 ? "" : mpirun + " ") + Quoted(ROLLCAST_BINARY) +
           " generate --model " + Quoted((folder_ / "model").string()) + " --prompts " +
           Quoted((folder_ / "prompts.jsonl").string()) + " --output " + Quoted(file().string()) +
           " --group-size " + std::to_string(kGroupSize) +
           " --set engine.max_running=8 --set kernels.threads=1 " + options;
  }
  int64_t Rows() const {
    return std::filesystem::exists(file()) ? TrajectoryReader(file()).rows() : 0;
  }

  TemporaryDir temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(GenerateJobTest, ARowsSamplingIsHonouredRecordedAndReplayed) {
  Prompts(
      "{\"id\": \"plain\", \"text\": \"number \"}\n"
      "{\"id\": \"greedy\", \"text\": \"number \", \"sampling\": {\"temperature\": 0}}\n"
      "{\"id\": \"short\", \"text\": \"number \", \"sampling\": {\"max_tokens\": 2}}\n"
      "{\"id\": \"seed\", \"text\": \"number \", \"sampling\": {\"seed\": 77, \"top_k\": 20, "
      "\"min_tokens\": 3, \"repetition_penalty\": 1.5}}\n"
      "{\"id\": \"stop\", \"text\": \"number \", \"sampling\": {\"stop_strings\": [\"e\", \"a\", "
      "\" \"], \"max_tokens\": 400}}\n");
  std::map<std::string, std::string> reference;
  for (const int ranks : {0, 2}) {
    MpiJob job(Generate(ranks, "--overwrite --max-tokens 12 --ignore-eos --seed 5"), folder_);
    ASSERT_EQ(job.Wait(120s), 0) << job.err();
    const TrajectoryReader reader(file());
    EXPECT_EQ(reader.end(), "completed");
    ASSERT_EQ(reader.rows(), 5 * kGroupSize);
    std::map<std::string, std::string> prints;
    std::map<std::string, std::set<std::string>> texts;
    for (int64_t i = 0; i < reader.rows(); ++i) {
      const Trajectory t = reader.Read(i);
      const SamplingParams& s = t.sampling;
      const bool is_seed = t.prompt_id == "seed";
      EXPECT_EQ(s.seed, CompletionSeed(is_seed ? 77 : 5, PromptIdHash(t.prompt_id),
                                       static_cast<uint64_t>(t.sample_index)));
      EXPECT_EQ(s.temperature, t.prompt_id == "greedy" ? 0.0f : 1.0f);
      EXPECT_EQ(s.top_k, is_seed ? 20 : -1);
      EXPECT_EQ(s.min_tokens, is_seed ? 3 : 0);
      EXPECT_EQ(s.repetition_penalty, is_seed ? 1.5f : 1.0f);
      EXPECT_TRUE(s.ignore_eos);
      if (t.prompt_id == "stop") {
        EXPECT_EQ(s.stop_strings, (std::vector<std::string>{"e", "a", " "}));
        EXPECT_EQ(t.finish_reason, FinishReason::kStopString);
        EXPECT_EQ(t.text.find_first_of("ea "), std::string::npos) << t.text;
      } else {
        EXPECT_EQ(t.completion.size(), t.prompt_id == "short" ? 2u : 12u);
      }
      std::string print;
      for (size_t j = 0; j < t.completion.size(); ++j)
        print += " " + std::to_string(t.completion[j]) + ":" +
                 std::to_string(std::bit_cast<uint32_t>(t.logprob[j]));
      texts[t.prompt_id].insert(print);
      prints[t.prompt_id + "/" + std::to_string(t.sample_index)] = print;
    }
    EXPECT_EQ(texts["greedy"].size(), 1u) << "greedy samples are all the same";
    EXPECT_EQ(texts["plain"].size(), static_cast<size_t>(kGroupSize));
    if (reference.empty()) reference = prints;
    EXPECT_EQ(prints, reference) << ranks << " ranks";
  }
  MpiJob replay("exec " + Quoted(ROLLCAST_BINARY) + " replay " + Quoted(file().string()) +
                    " --model " + Quoted((folder_ / "model").string()),
                folder_);
  EXPECT_EQ(replay.Wait(120s), 0) << replay.err();
  EXPECT_EQ(replay.out(), "15 of 15 rows replayed, 0 differ\n");
}

TEST_F(GenerateJobTest, CompletionsAreShownOnceAndWhenAskedFor) {
  Prompts("{\"id\": \"one\", \"text\": \"number \"}\n");
  for (const int ranks : {0, 2}) {
    // Not at a terminal: mpirun's own output is a file, though its ranks see one of theirs.
    MpiJob quiet(Generate(ranks, "--overwrite --max-tokens 4"), folder_);
    ASSERT_EQ(quiet.Wait(120s), 0) << quiet.err();
    EXPECT_EQ(quiet.out().substr(0, 30), "3 completions of 1 prompts in ") << quiet.out();
    MpiJob shown(Generate(ranks, "--overwrite --max-tokens 4 --show 2"), folder_);
    ASSERT_EQ(shown.Wait(120s), 0) << shown.err();
    const std::string out = shown.out();
    EXPECT_EQ(out.substr(0, 8), "one #0: ") << out;
    EXPECT_NE(out.find("\none #1: "), std::string::npos) << out;
    EXPECT_EQ(out.find("one #", out.find("one #1: ") + 1), std::string::npos) << out;
  }
}

struct Stop {
  int ranks;
  int rank;  // that gets the signal; -1: mpirun, or the process alone
  int signal;
  const char* end;
};

class GenerateStopTest : public GenerateJobTest, public ::testing::WithParamInterface<Stop> {};

TEST_P(GenerateStopTest, EveryCompletionThatWasBegunHasOneOutcome) {
  const auto [ranks, rank, signal, end] = GetParam();
  // The first group is done at once and shows that the others are under way.
  std::string rows = "{\"id\": \"first\", \"text\": \"x\", \"sampling\": {\"max_tokens\": 1}}\n";
  constexpr int kPrompts = 3000;
  for (int i = 0; i < kPrompts; ++i)
    rows += "{\"id\": \"p" + std::to_string(i) + "\", \"text\": \"number " + std::to_string(i) +
            " is\"}\n";
  Prompts(rows);
  MpiJob job(Generate(ranks, "--max-tokens 480 --ignore-eos"), folder_);
  ASSERT_TRUE(job.WaitFor([&] { return Rows() > 0; }, 60s)) << job.err();
  if (rank >= 0)
    ASSERT_TRUE(job.KillRank(rank, signal));
  else
    job.Signal(signal);
  EXPECT_GT(job.Wait(120s), 0) << job.err();
  EXPECT_NE(job.err().find(end), std::string::npos) << job.err();

  const TrajectoryReader reader(file());
  EXPECT_TRUE(reader.closed());
  EXPECT_EQ(reader.end(), end);
  std::map<uint64_t, std::set<int>> samples;
  int with_tokens = 0, aborted = 0;
  for (int64_t i = 0; i < reader.rows(); ++i) {
    const Trajectory t = reader.Read(i);
    EXPECT_TRUE(samples[t.group_id].insert(t.sample_index).second) << "two outcomes";
    EXPECT_EQ(t.logprob.size(), t.completion.size());
    if (t.outcome == Outcome::kCompleted) {
      EXPECT_EQ(t.completion.size(), t.prompt_id == "first" ? 1u : 480u);
      continue;
    }
    ++aborted;
    EXPECT_EQ(t.outcome, Outcome::kAborted);
    EXPECT_EQ(t.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(t.message.substr(0, std::string(end).size()), end);
    EXPECT_LT(t.completion.size(), 480u);
    with_tokens += !t.completion.empty();
  }
  for (const auto& [group, seen] : samples)
    EXPECT_EQ(seen.size(), static_cast<size_t>(kGroupSize)) << "group " << group;
  EXPECT_LT(samples.size(), static_cast<size_t>(kPrompts)) << "not everything had been begun";
  EXPECT_GT(aborted, 0);
  EXPECT_GT(with_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(Signals, GenerateStopTest,
                         ::testing::Values(Stop{0, -1, SIGINT, "stopped by SIGINT"},
                                           Stop{2, -1, SIGINT,
                                                "stopped by SIGTERM"},  // what mpirun makes of it
                                           Stop{2, 1, SIGTERM, "stopped by SIGTERM"}),
                         [](const auto& info) {
                           return std::string(info.param.ranks == 0 ? "Alone"
                                              : info.param.rank < 0 ? "Mpirun"
                                                                    : "OneRank");
                         });

}  // namespace
}  // namespace rollcast
