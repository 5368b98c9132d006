// The executable itself, as a user starts it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "launch/config.h"
#include "launch/toy_model.h"
#include "tests/testing/run_command.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using testing::CommandResult;
using testing::RunCommand;
using testing::RunRollcast;

constexpr const char* kCommands[] = {"trainer",  "worker",  "generate", "score",   "inspect",
                                     "tokenize", "convert", "replay",   "explain", "bench"};

TEST(Executable, HelpVersionAndUsage) {
  CommandResult r = RunRollcast({"--version"});
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out.substr(0, 9), "rollcast ");
  r = RunRollcast({"--help"});
  EXPECT_EQ(r.status, 0);
  for (const char* command : kCommands)
    EXPECT_NE(r.out.find(std::string("\n  ") + command + " "), std::string::npos) << r.out;
  r = RunRollcast({});
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << r.out;
  r = RunRollcast({"no-such-command"});
  EXPECT_EQ(r.status, 2);
}

TEST(Executable, EveryCommandHasHelp) {
  for (const char* command : kCommands) {
    const CommandResult r = RunRollcast({command, "--help"});
    EXPECT_EQ(r.status, 0) << command;
    EXPECT_NE(r.out.find(std::string("Usage: rollcast ") + command), std::string::npos) << r.out;
    EXPECT_GE(std::count(r.out.begin(), r.out.end(), '\n'), 8) << r.out;
  }
}

/// A toy model and a prompt file in a folder of their own.
class ToyJob : public ::testing::Test {
 protected:
  void SetUp() override { MakeToyModel(dir_.path() / "toy", 1); }

  std::string Path(const char* name) const { return (dir_.path() / name).string(); }
  std::string Write(const char* name, const std::string& text) const {
    std::ofstream(dir_.path() / name) << text;
    return Path(name);
  }
  CommandResult Generate(const std::string& prompts, std::vector<std::string> more = {}) const {
    std::vector<std::string> args = {"generate", "--model",  Path("toy"),        "--prompts",
                                     prompts,    "--output", Path("out.h5"),     "--max-tokens",
                                     "4",        "--set",    "kernels.threads=1"};
    args.insert(args.end(), more.begin(), more.end());
    return RunRollcast(args);
  }
  /// One line, status 1, and no file.
  void ExpectRefused(const CommandResult& r, const std::string& part) const {
    EXPECT_EQ(r.status, 1) << r.out;
    EXPECT_EQ(r.out.substr(0, 10), "rollcast: ");
    EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << r.out;
    EXPECT_NE(r.out.find(part), std::string::npos) << r.out;
    EXPECT_FALSE(fs::exists(Path("out.h5")));
  }

  testing::TemporaryDir dir_;
};

TEST_F(ToyJob, GenerateWritesATrajectoryFileThatInspectReads) {
  const std::string prompts = Write(
      "p.jsonl", "{\"id\": \"text\", \"text\": \"The \"}\n{\"id\": \"ids\", \"tokens\": [5, 6]}\n");
  CommandResult r = Generate(prompts, {"--group-size", "3"});
  ASSERT_EQ(r.status, 0) << r.out;
  r = RunRollcast({"inspect", Path("out.h5")});
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_NE(r.out.find(": 6 trajectories"), std::string::npos) << r.out;
  r = RunRollcast({"inspect", Path("out.h5"), "--jsonl", "--filter", "prompt_id = ids"});
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 3) << r.out;
  EXPECT_NE(r.out.find("\"prompt\":[5,6]"), std::string::npos) << r.out;

  // The file is not overwritten unless asked for, and stays as it was.
  r = Generate(prompts);
  EXPECT_EQ(r.status, 1) << r.out;
  r = RunRollcast({"inspect", Path("out.h5")});
  EXPECT_NE(r.out.find(": 6 trajectories"), std::string::npos) << r.out;
  r = Generate(prompts, {"--group-size", "1", "--overwrite"});
  EXPECT_EQ(r.status, 0) << r.out;
  r = RunRollcast({"inspect", Path("out.h5")});
  EXPECT_NE(r.out.find(": 2 trajectories"), std::string::npos) << r.out;
}

TEST_F(ToyJob, ScoreRefusesEmptyInputAndUnknownKeys) {
  const auto score = [&](const std::string& rows) {
    return RunRollcast({"score", "--model", Path("toy"), "--input", Write("rows.jsonl", rows),
                        "--output", Path("out.h5")});
  };
  ExpectRefused(score("\n"), "rows.jsonl: has no rows");
  ExpectRefused(score("{\"tokens\": [1, 2], \"token\": [3]}\n"),
                "rows.jsonl:1: unknown key \"token\"");
}

TEST_F(ToyJob, LimitsThatMeanNothingAreRefused) {
  for (const char* limit : {"0", "-5"})
    ExpectRefused(RunRollcast({"replay", Path("out.h5"), "--model", Path("toy"), "--limit", limit}),
                  std::string("--limit is ") + limit + "; expected at least 1 row");
  ExpectRefused(RunRollcast({"inspect", Path("out.h5"), "--limit", "-5"}),
                "--limit is -5; expected at least 0 rows");
}

TEST_F(ToyJob, GenerateMakesOneCompletionAPromptUnlessToldOtherwise) {
  const std::string prompts = Write(
      "p.jsonl", "{\"id\": \"b\", \"text\": \"The \"}\n{\"id\": \"a\", \"tokens\": [5, 6]}\n");
  CommandResult r = Generate(prompts, {"--ignore-eos", "--show", "1"});
  ASSERT_EQ(r.status, 0) << r.out;
  EXPECT_NE(r.out.find("\nb: "), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("\na: "), std::string::npos) << r.out;
  r = RunRollcast({"inspect", Path("out.h5"), "--jsonl", "--filter", "completion_length = 4"});
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 2) << r.out;
  EXPECT_NE(r.out.find("\"ignore_eos\":true"), std::string::npos) << r.out;

  // A file without the key does not bring the trainer's group size back; output that is no terminal
  // gets no texts.
  r = Generate(prompts, {"--overwrite", "-c", Write("c.toml", "[engine]\nmax_running = 4\n")});
  ASSERT_EQ(r.status, 0) << r.out;
  EXPECT_EQ(r.out.find("\nb: "), std::string::npos) << r.out;
  r = RunRollcast({"inspect", Path("out.h5")});
  EXPECT_NE(r.out.find(": 2 trajectories"), std::string::npos) << r.out;

  // In the order of the file, whatever finishes first.
  r = Generate(prompts, {"--overwrite", "--group-size", "2", "--show", "3"});
  ASSERT_EQ(r.status, 0) << r.out;
  const size_t first = r.out.find("\nb #0: "), second = r.out.find("\nb #1: "),
               third = r.out.find("\na #0: ");
  ASSERT_NE(third, std::string::npos) << r.out;
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_EQ(r.out.find("\na #1: "), std::string::npos) << r.out;
}

TEST_F(ToyJob, BadPromptsAreRefusedByLine) {
  const std::string good = "{\"id\": \"a\", \"tokens\": [5]}\n";
  ExpectRefused(Generate(Path("none.jsonl")), "none.jsonl");
  ExpectRefused(Generate(Write("p.jsonl", good + "{\"id\": \n")),
                "p.jsonl:2:7: not valid JSON: the text ends before the value does");
  ExpectRefused(Generate(Write("p.jsonl", good + "{\"promt\": \"x\"}\n")),
                "p.jsonl:2: unknown key \"promt\"");
  ExpectRefused(Generate(Write("p.jsonl", good + "{\"id\": \"b\", \"tokens\": []}\n")),
                "p.jsonl:2: ");
  ExpectRefused(Generate(Write("p.jsonl", "{\"id\": \"b\", \"tokens\": [320]}\n")), "320");
  ExpectRefused(Generate(Write("p.jsonl", "{\"id\": \"b\", \"tokens\": [-1]}\n")), "-1");
}

TEST_F(ToyJob, AnEmptyOutputIsNoFile) {
  const std::string prompts = Write("p.jsonl", "{\"id\": \"a\", \"tokens\": [5]}\n");
  const CommandResult r = Generate(prompts, {"-o", "", "--show", "1"});
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_NE(r.out.find("\na: "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("no file: rollout.output is empty"), std::string::npos) << r.out;
  EXPECT_FALSE(fs::exists(Path("out.h5")));
}

TEST_F(ToyJob, MetricsGoToAFolderThatIsMadeAtTheStart) {
  const std::string prompts = Write("p.jsonl", "{\"id\": \"a\", \"tokens\": [5]}\n");
  ExpectRefused(Generate(prompts, {"--set", "metrics.file=" + prompts + "/m.prom"}),
                "p.jsonl/m.prom: cannot be created");
  ExpectRefused(Generate(prompts, {"--set", "metrics.file=" + prompts}),
                "p.jsonl: is not an earlier metrics file");
  const CommandResult r =
      Generate(prompts, {"--set", "metrics.file=" + Path("new") + "/deep/m{rank}.prom"});
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_TRUE(fs::exists(dir_.path() / "new" / "deep" / "m0.prom"));
}

TEST_F(ToyJob, TextWithoutATokenizerIsOneErrorAtTheStart) {
  fs::remove(dir_.path() / "toy" / "tokenizer.json");
  const std::string ids = "{\"id\": \"a\", \"tokens\": [5]}\n";
  const std::string text = "{\"id\": \"b\", \"text\": \"x\"}\n{\"id\": \"c\", \"text\": \"y\"}\n";
  ExpectRefused(Generate(Write("p.jsonl", ids + text)), "p.jsonl:2: \"text\" needs a tokenizer");
  ExpectRefused(Generate(Write("p.jsonl", ids), {"--set", "sampling.stop_strings=[\"x\"]"}),
                "sampling.stop_strings need a tokenizer");
  for (const std::string kind : {"exact", "numeric", "regex", "format"})
    ExpectRefused(Generate(Write("p.jsonl", "{\"tokens\": [5], \"answer\": \"1\"}\n"),
                           {"--set", "scorer.kind=" + kind, "--set", "scorer.pattern=e"}),
                  "scorer.kind \"" + kind + "\" reads the text of completions");
  EXPECT_EQ(Generate(Write("p.jsonl", ids)).status, 0);
}

TEST_F(ToyJob, BadSettingsAreRefusedByKey) {
  const std::string prompts = Write("p.jsonl", "{\"id\": \"a\", \"tokens\": [5]}\n");
  ExpectRefused(Generate(prompts, {"--max-tokens", "0"}), "sampling.max_tokens");
  ExpectRefused(Generate(prompts, {"--temperature", "-1"}), "sampling.temperature");
  ExpectRefused(Generate(prompts, {"--set", "sampling.stop_ids=[5, 99999]"}),
                "sampling.stop_ids has 99999; an id must be in [0, 320), the vocabulary");
  ExpectRefused(Generate(prompts, {"--set", "sampling.stop_strings=[\"\"]"}),
                "--set: sampling.stop_strings has an empty text");
  ExpectRefused(Generate(prompts, {"--set", "engine.max_runing=4"}),
                "did you mean engine.max_running?");
  ExpectRefused(Generate(prompts, {"--model", Path("no-model")}), "no-model");
  ExpectRefused(Generate(prompts, {"--output", Path("p.jsonl/out.h5")}), "p.jsonl/out.h5");
  ExpectRefused(Generate(prompts, {"-c", Write("c.toml", "[engine]\nmax_running = true\n")}),
                "c.toml:2: engine.max_running");
}

TEST_F(ToyJob, TruncatedWeightsAreRefused) {
  const std::string prompts = Write("p.jsonl", "{\"id\": \"a\", \"tokens\": [5]}\n");
  const fs::path weights = dir_.path() / "toy" / "model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 1);
  ExpectRefused(Generate(prompts), "model.safetensors");
  fs::remove(weights);
  ExpectRefused(Generate(prompts), "safetensors");
}

TEST_F(ToyJob, TheMainJobTrainsUnderMpirun) {
  const std::string prompts = Write("p.jsonl", "{\"id\": \"a\", \"text\": \"The \"}\n");
  const std::string config =
      Write("job.toml", "[model]\npath = '" + Path("toy") +
                            "'\nuntie_head = true\n"
                            "[kernels]\nthreads = 1\n"
                            "[engine]\nkv_memory_mb = 16\n"
                            "[sampling]\nmax_tokens = 4\n"
                            "[rollout]\nprompts = '" +
                            prompts + "'\noutput = '" + Path("out.h5") +
                            "'\ngroup_size = 4\ngroups_per_update = 2\n"
                            "[scorer]\nkind = 'regex'\npattern = 'e'\n"
                            "[trainer]\nupdates = 6\n[log]\nlevel = 'warn'\n");
  CommandResult r = RunCommand({"mpirun", "-q", "-np", "1", ROLLCAST_BINARY, "trainer", "-c",
                                config, ":", "-np", "2", ROLLCAST_BINARY, "worker", "-c", config},
                               seconds(120));
  ASSERT_EQ(r.status, 0) << r.out;
  EXPECT_NE(r.out.find("trajectories: " + Path("out.h5")), std::string::npos) << r.out;
  r = RunRollcast({"inspect", Path("out.h5")});
  EXPECT_NE(r.out.find(": 48 trajectories"), std::string::npos) << r.out;

  // A gain that cannot be reached ends with a status that says so.
  r = RunCommand({"mpirun",
                  "-q",
                  "-np",
                  "1",
                  ROLLCAST_BINARY,
                  "trainer",
                  "-c",
                  config,
                  "--set",
                  "rollout.overwrite=true",
                  "--set",
                  "trainer.min_reward_gain=2",
                  ":",
                  "-np",
                  "2",
                  ROLLCAST_BINARY,
                  "worker",
                  "-c",
                  config,
                  "--set",
                  "rollout.overwrite=true",
                  "--set",
                  "trainer.min_reward_gain=2"},
                 seconds(120));
  EXPECT_EQ(r.status, 1) << r.out;
  EXPECT_NE(r.out.find("trainer.min_reward_gain is +2.000"), std::string::npos) << r.out;

  // Ranks with different settings do not start.
  r = RunCommand({"mpirun", "-q", "-np", "1", ROLLCAST_BINARY, "trainer", "-c", config, ":", "-np",
                  "2", ROLLCAST_BINARY, "worker", "-c", config, "--set", "sampling.max_tokens=5"},
                 seconds(120));
  EXPECT_EQ(r.status, 1) << r.out;
}

// A file size limit stands for a full disk: from the first byte, and after some rows.
TEST_F(ToyJob, ScoreOnAFullDiskSaysSoAndLeavesNothing) {
  std::string rows;
  for (int i = 0; i < 20; ++i) rows += "{\"tokens\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}\n";
  const std::string input = Write("rows.jsonl", rows);
  fs::create_directory(Path("full"));
  for (const char* blocks : {"0", "1", "64"}) {
    const CommandResult r =
        RunCommand({"sh", "-c", std::string("trap '' XFSZ; ulimit -f ") + blocks + "; exec \"$@\"",
                    "sh", ROLLCAST_BINARY, "score", "--model", Path("toy"), "--input", input,
                    "--output", Path("full/s.h5"), "--logits"},
                   seconds(60));
    EXPECT_EQ(r.status, 1) << r.out;
    const size_t error = r.out.find("rollcast: ");
    ASSERT_NE(error, std::string::npos) << r.out;
    EXPECT_NE(r.out.find("File too large", error), std::string::npos) << r.out;
    EXPECT_EQ(r.out.find('\n', error), r.out.size() - 1) << r.out;
    EXPECT_TRUE(fs::is_empty(Path("full"))) << blocks;
  }
}

TEST(RunCommand, ReportsStatusOutputSignalsAndTheLimit) {
  CommandResult r = RunCommand({"sh", "-c", "echo out; echo err >&2; exit 3"}, seconds(20));
  EXPECT_EQ(r.status, 3);
  EXPECT_EQ(r.out, "out\nerr\n");
  EXPECT_FALSE(r.timed_out);
  r = RunCommand({"sh", "-c", "kill -9 $$"}, seconds(20));
  EXPECT_EQ(r.status, 128 + 9);
  r = RunCommand({"sh", "-c", "echo begun; sleep 600"}, seconds(1));
  EXPECT_TRUE(r.timed_out);
  r = RunCommand({"/no/such/program"}, seconds(20));
  EXPECT_EQ(r.status, 127);
}

TEST(RunCommand, StartsRanksUnderMpirun) {
  const CommandResult r =
      RunCommand({"mpirun", "-np", "1", "sh", "-c", "echo a$OMPI_COMM_WORLD_RANK", ":", "-np", "2",
                  "sh", "-c", "echo b$OMPI_COMM_WORLD_RANK"},
                 seconds(60));
  EXPECT_EQ(r.status, 0) << r.out;
  for (const char* line : {"a0\n", "b1\n", "b2\n"})
    EXPECT_NE(r.out.find(line), std::string::npos) << r.out;
}

}  // namespace
}  // namespace rollcast
