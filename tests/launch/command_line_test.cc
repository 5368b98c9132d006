#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "kernels/check.h"
#include "launch/command.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

struct Result {
  int status = 0;
  std::string out, err;
};

Result RunWith(const std::vector<Command>& commands, std::vector<const char*> args) {
  args.insert(args.begin(), "rollcast");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Result result;
  result.status = RunCommandLine(commands, static_cast<int>(args.size()), args.data());
  result.out = ::testing::internal::GetCapturedStdout();
  result.err = ::testing::internal::GetCapturedStderr();
  return result;
}

struct Options {
  std::string input;
  int limit = 5;
  double scale = 1.5;
  bool logits = false;
  std::vector<std::string> names;
  std::filesystem::path folder;
  std::optional<uint64_t> seed;
};

Command Sample(Options& o, std::function<int(const Config&)> run) {
  return {.name = "sample",
          .summary = "A command for tests.",
          .details = "Rows in, rows out.",
          .options = {Required("--input", &o.input, "what is read"),
                      Optional("--limit", &o.limit, "rows at most"),
                      Optional("--scale", &o.scale, "a factor"),
                      Optional("--logits", &o.logits, "also logits"),
                      Optional("--name", &o.names, "again and again"),
                      Optional("--folder", &o.folder, "a place"),
                      Optional("--seed", &o.seed, "of the draw"),
                      ForKey("--temperature", "sampling.temperature"),
                      ForKey("--top-k", "sampling.top_k"), ForKey("--model", "model.path"),
                      ForKey("--overwrite", "rollout.overwrite")},
          .takes_config = true,
          .needs = {{"model.path"}},
          .run = std::move(run)};
}

TEST(CommandLine, AConfigurationIsReadOverTheDefaultsOfTheCommand) {
  Options o;
  Config seen;
  Command command = Sample(o, [&](const Config& c) {
    seen = c;
    return 0;
  });
  command.defaults.sampling.top_k = 33;
  command.defaults.rollout.group_size = 5;
  EXPECT_EQ(RunWith({command}, {"sample", "--input", "a", "--model", "m"}).status, 0);
  EXPECT_EQ(seen.rollout.group_size, 5);
  EXPECT_EQ(seen.sampling.top_k, 33);
  const Result set = RunWith({command}, {"sample", "--input", "a", "--model", "m", "--set",
                                         "rollout.group_size=6", "--top-k", "2"});
  EXPECT_EQ(set.status, 0) << set.err;
  EXPECT_EQ(seen.rollout.group_size, 6);
  EXPECT_EQ(seen.sampling.top_k, 2);
  const Result help = RunWith({command}, {"sample", "--help"});
  EXPECT_NE(help.out.find("default 33"), std::string::npos) << help.out;
  const Result keys = RunWith({command}, {"sample", "--input", "a", "--help-config"});
  EXPECT_NE(keys.out.find("\ngroup_size = 5\n"), std::string::npos) << keys.out;
}

TEST(CommandLine, FillsOptionsAndConfiguration) {
  Options o;
  Config seen;
  const Command command = Sample(o, [&](const Config& c) {
    seen = c;
    return 7;
  });
  const Result r = RunWith({command}, {"sample",
                                       "--input",
                                       "a.jsonl",
                                       "--limit",
                                       "9",
                                       "--logits",
                                       "--name",
                                       "x",
                                       "--name",
                                       "y",
                                       "--folder",
                                       "some where",
                                       "--seed",
                                       "18446744073709551615",
                                       "--temperature",
                                       "0.25",
                                       "--overwrite",
                                       "--top-k",
                                       "-1",
                                       "--model",
                                       "m",
                                       "--set",
                                       "engine.max_running=3"});
  EXPECT_EQ(r.status, 7);
  EXPECT_EQ(r.err, "");
  EXPECT_EQ(o.input, "a.jsonl");
  EXPECT_EQ(o.limit, 9);
  EXPECT_TRUE(o.logits);
  EXPECT_EQ(o.names, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(o.folder, "some where");
  EXPECT_EQ(o.seed, UINT64_MAX);
  EXPECT_EQ(seen.sampling.temperature, 0.25f);
  EXPECT_EQ(seen.sampling.top_k, -1);
  EXPECT_TRUE(seen.rollout.overwrite);
  EXPECT_EQ(seen.model.path, "m");
  EXPECT_EQ(seen.engine.max_running, 3);
}

TEST(CommandLine, UsageErrorsExitWith2) {
  Options o;
  const Command command = Sample(o, [](const Config&) -> int { throw Error("not reached"); });
  for (const auto& args :
       std::vector<std::vector<const char*>>{{},
                                             {"smaple"},
                                             {"sample"},
                                             {"sample", "--input"},
                                             {"sample", "--input", "a", "--limit", "many"},
                                             {"sample", "--input", "a", "--unknown"},
                                             {"sample", "--input", "a", "stray"},
                                             {"sample", "--input", "a", "--seed", "-1"},
                                             {"sample", "--input", "a", "--limit", "2147483648"},
                                             {"sample", "--input", "a", "--scale", "1e400"},
                                             {"sample", "--input", "a", "--scale", "nan"}}) {
    const Result r = RunWith({command}, args);
    EXPECT_EQ(r.status, 2) << ::testing::PrintToString(args);
    EXPECT_EQ(r.err.substr(0, 10), "rollcast: ");
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_EQ(r.out, "");
  }
}

TEST(CommandLine, AnUnknownCommandIsNamedWithThoseThatThereAre) {
  Options o;
  const Result r =
      RunWith({Sample(o, [](const Config&) { return 0; })}, {"smaple", "--input", "a"});
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "rollcast: no command \"smaple\"; there are sample\n");
}

TEST(CommandLine, NumbersBeyondTheirTypeAreRefusedWithItsRange) {
  Options o;
  int64_t version = 3;
  Command command = Sample(o, [](const Config&) { return 0; });
  command.options.push_back(Optional("--version", &version, "of the weights"));
  const auto run = [&](const char* name, const char* value) {
    return RunWith({command}, {"sample", "--input", "a", "--model", "m", name, value});
  };
  for (const char* value :
       {"9223372036854775808", "99999999999999999999", "-9223372036854775809", "1e3", "1.5", "0x1"})
    EXPECT_EQ(
        run("--version", value).err,
        StrCat("rollcast: sample: --version: expected an integer from -9223372036854775808 to "
               "9223372036854775807, got ",
               value, " (--help lists what there is)\n"));
  EXPECT_EQ(version, 3);
  EXPECT_EQ(run("--version", "9223372036854775807").status, 0);
  EXPECT_EQ(version, INT64_MAX);
  EXPECT_EQ(run("--version", "-9223372036854775808").status, 0);
  EXPECT_EQ(version, INT64_MIN);
  EXPECT_EQ(run("--scale", "-2.5e3").status, 0);
  EXPECT_EQ(o.scale, -2500);
  const std::string help = RunWith({command}, {"sample", "--help"}).out;
  // Versions of the option parser show a default in either way.
  EXPECT_TRUE(help.find("--limit INT=5") != std::string::npos ||
              help.find("--limit INT [5]") != std::string::npos)
      << help;
}

TEST(CommandLine, FaultsAreOneLineAndAStatus) {
  Options o;
  auto fail = [&](std::function<int(const Config&)> run) {
    return RunWith({Sample(o, std::move(run))}, {"sample", "--input", "a", "--model", "m"});
  };
  Result r = fail([](const Config&) -> int { throw Error("a.jsonl:3: not JSON"); });
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err, "rollcast: a.jsonl:3: not JSON\n");

  r = fail([](const Config&) -> int {
    RC_CHECK_EQ(1, 2);
    return 0;
  });
  EXPECT_EQ(r.status, 70);
  EXPECT_NE(r.err.find("this is a bug in rollcast: "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("command_line_test.cc:"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("(1 against 2)"), std::string::npos) << r.err;

  r = fail([](const Config&) -> int { throw std::bad_alloc(); });
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err, "rollcast: out of memory\n");

  r = fail([](const Config&) -> int { throw std::runtime_error("odd"); });
  EXPECT_EQ(r.status, 70);
}

TEST(CommandLine, FlagsOfKeysAreCheckedLikeTheFile) {
  Options o;
  const Command command = Sample(o, [](const Config&) { return 0; });
  Result r =
      RunWith({command}, {"sample", "--input", "a", "--model", "m", "--temperature", "-0.5"});
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err,
            "rollcast: --temperature: sampling.temperature: expected a number from 0 to "
            "3.4028235e+38, got "
            "-0.5\n");
  r = RunWith({command}, {"sample", "--input", "a", "--set", "sampling.temperature=-0.5"});
  EXPECT_EQ(r.err,
            "rollcast: --set: sampling.temperature: expected a number from 0 to 3.4028235e+38, got "
            "-0.5\n");
  r = RunWith({command}, {"sample", "--input", "a"});
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err,
            "rollcast: sample: model.path is not set: give it in the configuration file, with "
            "--set model.path=... or with --model\n");
  r = RunWith({command}, {"sample", "--input", "a", "-c", "no/such.toml"});
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err, "rollcast: no/such.toml: cannot be opened: No such file or directory\n");
}

TEST(CommandLine, WhatWorksInOneProcessRefusesMore) {
  Options o;
  Command command = Sample(o, [](const Config&) { return 0; });
  const auto run = [&](const char* ranks) {
    setenv("OMPI_COMM_WORLD_SIZE", ranks, 1);
    const Result result = RunWith({command}, {"sample", "--input", "a", "--model", "m"});
    unsetenv("OMPI_COMM_WORLD_SIZE");
    return result;
  };
  EXPECT_EQ(run("1").status, 0);
  const Result refused = run("3");
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.err,
            "rollcast: sample works in one process, and 3 have been started: start it without "
            "mpirun\n");
  command.on_ranks = true;
  EXPECT_EQ(run("3").status, 0);

  command.on_ranks = false;
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);  // of a batch script, say
  EXPECT_EQ(RunWith({command}, {"sample", "--input", "a", "--model", "m"}).status, 0);
  setenv("PMIX_RANK", "1", 1);
  EXPECT_EQ(RunWith({command}, {"sample", "--input", "a", "--model", "m"}).status, 1);
  unsetenv("PMIX_RANK");
  unsetenv("SLURM_STEP_NUM_TASKS");
}

TEST(CommandLine, WhatAllRanksWouldSayIsSaidOnceACommandLine) {
  Options o;
  const Command command = Sample(o, [](const Config&) { return 0; });
  for (const char* flag : {"--help", "--help-config", "--print-config"}) {
    const auto said = [&](const char* rank) {
      setenv("OMPI_COMM_WORLD_RANK", rank, 1);
      setenv("OMPI_APP_CTX_NUM_PROCS", "1 2 3", 1);
      const Result result = RunWith({command}, {"sample", "--input", "a", flag});
      unsetenv("OMPI_COMM_WORLD_RANK");
      unsetenv("OMPI_APP_CTX_NUM_PROCS");
      EXPECT_EQ(result.status, 0);
      return result.out;
    };
    const std::string alone = RunWith({command}, {"sample", "--input", "a", flag}).out;
    EXPECT_GT(alone.size(), 100u);
    for (const char* first : {"0", "1", "3"}) EXPECT_EQ(said(first), alone) << flag << first;
    for (const char* other : {"2", "4", "5"}) EXPECT_EQ(said(other), "") << flag << other;
  }
}

TEST(CommandLine, AnOptionOfItsOwnWinsOverSetAndSetOverTheFile) {
  Options o;
  Config seen;
  const Command command = Sample(o, [&](const Config& c) {
    seen = c;
    return 0;
  });
  const testing::TemporaryDir folder;
  const std::string file = (folder.path() / "c.toml").string();
  std::ofstream(file) << "[sampling]\ntop_k = 1\ntemperature = 0.1\nmin_p = 0.1\n";
  const Result r =
      RunWith({command}, {"sample", "--input", "a", "--model", "m", "--top-k", "4", "--top-k", "5",
                          "--set", "sampling.top_k=2", "--set", "sampling.temperature=0.2", "--set",
                          "sampling.temperature=0.3", "-c", file.c_str()});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(seen.sampling.top_k, 5);
  EXPECT_EQ(seen.sampling.temperature, 0.3f);
  EXPECT_EQ(seen.sampling.min_p, 0.1f);
  const Result help = RunWith({command}, {"sample", "--help"});
  EXPECT_NE(help.out.find("An option of its own wins over --set"), std::string::npos) << help.out;
}

TEST(CommandLine, AKeyThatMayBeEmptyMustBeGivenAllTheSame) {
  Options o;
  int runs = 0;
  Command command = Sample(o, [&](const Config& c) {
    EXPECT_EQ(c.rollout.output, "");
    return ++runs, 0;
  });
  command.needs = {{"rollout.output", /*may_be_empty=*/true}};
  EXPECT_EQ(RunWith({command}, {"sample", "--input", "a"}).err,
            "rollcast: sample: rollout.output is not set: give it in the configuration file, with "
            "--set rollout.output=...; an empty text stands for none\n");
  EXPECT_EQ(RunWith({command}, {"sample", "--input", "a", "--set", "rollout.output="}).status, 0);
  EXPECT_EQ(runs, 1);
}

// The environment stands between the file and --set.
TEST(CommandLine, KernelsAreNamedInTheEnvironment) {
  Options o;
  Config seen;
  const Command command = Sample(o, [&](const Config& c) {
    seen = c;
    return 0;
  });
  const auto run = [&](const char* ops, std::vector<const char*> more = {}) {
    std::vector<const char*> args = {"sample", "--input", "a", "--model", "m"};
    args.insert(args.end(), more.begin(), more.end());
    setenv("ROLLCAST_OPS", ops, 1);
    const Result r = RunWith({command}, args);
    unsetenv("ROLLCAST_OPS");
    return r;
  };
  EXPECT_EQ(run("linear=plain,attention=whole").status, 0);
  EXPECT_EQ(seen.kernels.linear, "plain");
  EXPECT_EQ(seen.kernels.attention, "whole");
  EXPECT_EQ(run("linear=plain", {"--set", "kernels.linear=avx2"}).status, 0);
  EXPECT_EQ(seen.kernels.linear, "avx2");
  EXPECT_EQ(seen.kernels.attention, "auto");
  EXPECT_EQ(run("").status, 0);
  EXPECT_EQ(seen.kernels.linear, "auto");
  const Result r = run("embed=fast");
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err,
            "rollcast: ROLLCAST_OPS: no op \"embed\" has kernels to choose from; linear and "
            "attention have\n");
}

TEST(CommandLine, PrintsConfigurationWithoutRunning) {
  Options o;
  const Command command = Sample(o, [](const Config&) { return 5; });
  Result r = RunWith({command}, {"sample", "--input", "a", "--print-config", "--top-k", "3"});
  EXPECT_EQ(r.status, 0);
  const std::vector<Setting> sets = {"sampling.top_k=3"};
  EXPECT_EQ(r.out, ToToml(ParseConfig("", "job.toml", sets)));
  r = RunWith({command}, {"sample", "--input", "a", "--help-config"});
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out, HelpConfig());
}

TEST(CommandLine, HelpShowsOptionsWithMeaningAndDefault) {
  Options o;
  const Command command = Sample(o, [](const Config&) { return 5; });
  Result r = RunWith({command}, {"sample", "--help"});
  EXPECT_EQ(r.status, 0);
  for (const char* part :
       {"--input", "REQUIRED", "rows at most", "Rows in, rows out.",
        "0 = greedy (a number from 0 to 3.4028235e+38; default 1.0)", "--print-config"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
  r = RunWith({command}, {"--help"});
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.out.find("A command for tests."), std::string::npos) << r.out;
}

}  // namespace
}  // namespace rollcast
