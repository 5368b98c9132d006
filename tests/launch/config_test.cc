#include "launch/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kernels/check.h"
#include "tests/testing/expect_error.h"

namespace rollcast {
namespace {

/// The message of the Error that reading `text` throws; empty when it throws none.
std::string Fault(std::string_view text, std::vector<Setting> sets = {}) {
  try {
    ParseConfig(text, "job.toml", sets);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Config, ReadsEveryKindOfValue) {
  const Config c = ParseConfig(R"([model]
path = "models/a b"
untie_head = true
[engine]
max_running = 7
prefix_cache = false
[sampling]
temperature = 1
top_p = 0.95
stop_ids = [1, 2]
stop_strings = ["\n\n", "END"]
[rollout]
seed = 9007199254740992
[sync]
in_flight = "recompute"
)",
                               "job.toml");
  EXPECT_EQ(c.model.path, "models/a b");
  EXPECT_TRUE(c.model.untie_head);
  EXPECT_EQ(c.engine.max_running, 7);
  EXPECT_FALSE(c.engine.prefix_cache);
  EXPECT_EQ(c.sampling.temperature, 1.0f);
  EXPECT_EQ(c.sampling.top_p, 0.95f);
  EXPECT_EQ(c.sampling.stop_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(c.sampling.stop_strings, (std::vector<std::string>{"\n\n", "END"}));
  EXPECT_EQ(c.rollout.seed, 9007199254740992u);
  EXPECT_EQ(c.sync.in_flight, "recompute");
  EXPECT_EQ(c.engine.max_batched_tokens, EngineConfig().max_batched_tokens);
}

TEST(Config, EmptyTextGivesTheDefaults) {
  EXPECT_EQ(ToToml(ParseConfig("", "job.toml")), ToToml(Config()));
}

TEST(Config, ResolvedTomlReadsBackToTheSame) {
  const std::vector<Setting> sets = {"sampling.top_p=0.1",
                                     "sampling.temperature=3.4e-7",
                                     "trainer.learning_rate=1e-05",
                                     "rollout.prompts=a \"quoted\" \\ name\twith\x01",
                                     "sampling.stop_ids=[3, 4]",
                                     "sampling.stop_strings=[\"\\n\", \"é\"]",
                                     "trainer.clip=3",
                                     "rollout.seed=123456789012"};
  const Config c = ParseConfig("", "job.toml", sets);
  EXPECT_EQ(c.rollout.prompts, "a \"quoted\" \\ name\twith\x01");
  const std::string text = ToToml(c);
  const Config again = ParseConfig(text, "resolved");
  EXPECT_EQ(ToToml(again), text);
  EXPECT_EQ(again.sampling, c.sampling);
  EXPECT_EQ(again.trainer.learning_rate, 1e-5);
  EXPECT_EQ(again.rollout.prompts, c.rollout.prompts);
  EXPECT_EQ(again.sampling.temperature, 3.4e-7f);
}

TEST(Config, UnknownKeyNamesLineAndNearestKey) {
  EXPECT_EQ(Fault("[engine]\nmax_runing = 3\n"),
            "job.toml:2: unknown key engine.max_runing; did you mean engine.max_running?");
  EXPECT_EQ(Fault("\n[engin]\nmax_running = 3\n"),
            "job.toml:2: unknown table [engin]; did you mean [engine]?");
  EXPECT_EQ(Fault("[engine]\ntemperature = 1\n"),
            "job.toml:2: unknown key engine.temperature; did you mean sampling.temperature?");
  EXPECT_EQ(Fault("group_size = 4\n"),
            "job.toml:1: unknown key group_size; did you mean rollout.group_size?");
  EXPECT_EQ(Fault("[engine]\nqqqqqqqqqqqqqqqq = 1\n"),
            "job.toml:2: unknown key engine.qqqqqqqqqqqqqqqq; --help-config lists all keys");
  EXPECT_EQ(Fault("[engine.kv]\npages = 1\n"),
            "job.toml:1: unknown key engine.kv; --help-config lists all keys");
  EXPECT_EQ(Fault("[[engine]]\nmax_running = 1\n").substr(0, 30), "job.toml:1: unknown key engine");
}

TEST(Config, WrongTypesNameKeyExpectedAndActual) {
  EXPECT_EQ(Fault("[engine]\n\nmax_running = \"7\"\n"),
            "job.toml:3: engine.max_running: expected an integer from 1 to 32768, got \"7\"");
  EXPECT_EQ(Fault("[engine]\nmax_running = 7.0\n"),
            "job.toml:2: engine.max_running: expected an integer from 1 to 32768, got 7.0");
  EXPECT_EQ(Fault("[engine]\nprefix_cache = 1\n"),
            "job.toml:2: engine.prefix_cache: expected true or false, got 1");
  EXPECT_EQ(Fault("[model]\npath = 3\n"), "job.toml:2: model.path: expected a string, got 3");
  EXPECT_EQ(Fault("[sampling]\nstop_ids = [1, \"a\"]\n").substr(0, 62),
            "job.toml:2: sampling.stop_ids: expected an array of integers f");
  EXPECT_EQ(Fault("[sampling]\nstop_strings = [1]\n"),
            "job.toml:2: sampling.stop_strings: expected an array of strings, got [ 1 ]");
  EXPECT_EQ(Fault("[model.path]\nx = 1\n"),
            "job.toml:1: model.path: expected a string, got a table");
  EXPECT_EQ(Fault("engine = 3\n"), "job.toml:1: unknown key engine; --help-config lists all keys");
}

TEST(Config, ValuesOutOfRangeAreRefused) {
  EXPECT_EQ(Fault("[engine]\nmax_running = 0\n"),
            "job.toml:2: engine.max_running: expected an integer from 1 to 32768, got 0");
  EXPECT_EQ(Fault("[sampling]\ntop_p = 0.0\n"),
            "job.toml:2: sampling.top_p: expected a number above 0 and at most 1, got 0.0");
  EXPECT_EQ(Fault("[sampling]\ntemperature = nan\n"),
            "job.toml:2: sampling.temperature: expected a number from 0 to 3.4028235e+38, got nan");
  EXPECT_EQ(Fault("[sampling]\ntemperature = inf\n"),
            "job.toml:2: sampling.temperature: expected a number from 0 to 3.4028235e+38, got inf");
  EXPECT_EQ(
      Fault("[sampling]\ntemperature = 1e39\n"),  // overflows a float
      "job.toml:2: sampling.temperature: expected a number from 0 to 3.4028235e+38, got 1e+39");
  EXPECT_EQ(
      Fault("[sampling]\nmax_tokens = 99999999999\n"),
      "job.toml:2: sampling.max_tokens: expected an integer from 1 to 2147483647, got 99999999999");
  EXPECT_EQ(Fault("[trainer]\nlearning_rate = 1e308\n"),
            "job.toml:2: trainer.learning_rate: expected a number above 0 and at most "
            "3.4028235e+38, got 1e+308");
  EXPECT_EQ(Fault("[rollout]\nseed = -1\n"),
            "job.toml:2: rollout.seed: expected an integer from 0 to 9007199254740992, got -1");
  EXPECT_EQ(Fault("[sync]\nmode = \"stagd\"\n"),
            "job.toml:2: sync.mode: expected one of \"staged\", \"in_place\", got \"stagd\"");
  EXPECT_EQ(
      Fault("[sampling]\nstop_ids = [-4]\n"),
      "job.toml:2: sampling.stop_ids: expected an array of integers from 0 to 2147483647, got "
      "[ -4 ]");
}

TEST(Config, UnknownPlaceholdersAreRefused) {
  EXPECT_EQ(Fault("[trainer]\nsave = \"m/{version}-{epoch}\"\n"),
            "job.toml:2: trainer.save is \"m/{version}-{epoch}\", and {epoch} stands for nothing; "
            "the only placeholder is {version}");
  EXPECT_EQ(Fault("", {"metrics.file=m{version}"}),
            "--set: metrics.file is \"m{version}\", and {version} stands for nothing; the only "
            "placeholder is {rank}");
  EXPECT_EQ(Fault("[trainer]\nsave = \"m/{version}/{version}\"\n"), "");
  EXPECT_EQ(FillIn("m/{version}/v{version}", "{version}", "12"), "m/12/v12");
}

TEST(Config, ARewardGainNeedsTwoUpdates) {
  EXPECT_EQ(Fault("[trainer]\nupdates = 1\nmin_reward_gain = 0.1\n"),
            "job.toml:3: trainer.min_reward_gain compares the last updates with the first, and "
            "trainer.updates is 1; make it at least 2, or min_reward_gain 0");
  EXPECT_EQ(Fault("[trainer]\nupdates = 2\nmin_reward_gain = 0.1\n"), "");
}

TEST(Config, BadTomlNamesTheLine) {
  EXPECT_EQ(Fault("[engine]\nmax_running 3\n").substr(0, 28), "job.toml:2: not valid TOML: ");
  EXPECT_EQ(Fault("[engine]\nmax_running = 3\nmax_running = 4\n").substr(0, 28),
            "job.toml:3: not valid TOML: ");
}

TEST(Config, RefusesALagThatReuseAloneExceeds) {
  EXPECT_EQ(Fault("[rollout]\ninterval = 4\nmax_policy_lag = 2\n"),
            "job.toml:3: rollout.max_policy_lag is 2; with rollout.interval 4 a reused rollout "
            "gets 3 versions old, so it must be at least 3");
  EXPECT_EQ(Fault("[rollout]\ninterval = 3\n").substr(0, 12), "job.toml:2: ");
  EXPECT_EQ(Fault("[rollout]\ninterval = 4\nmax_policy_lag = 3\n"), "");
  EXPECT_EQ(Fault("[rollout]\ninterval = 1\nmax_policy_lag = 0\n"), "");
  EXPECT_EQ(Fault("", {"rollout.interval=5"}).substr(0, 6), "--set:");
}

TEST(Config, RefusesFieldsThatContradictEachOther) {
  EXPECT_EQ(Fault("[sampling]\nmin_tokens = 9\nmax_tokens = 8\n"),
            "job.toml:2: sampling.min_tokens is 9; it must be between 0 and max_tokens (8)");
}

TEST(Config, SetOverridesTheFileInOrder) {
  const std::vector<Setting> sets = {"engine.max_running=5", "engine.max_running = 6",
                                     "sync.mode=in_place", "model.path=\"x=y\"", "rollout.output="};
  const Config c = ParseConfig("[engine]\nmax_running = 4\n", "job.toml", sets);
  EXPECT_EQ(c.engine.max_running, 6);
  EXPECT_EQ(c.sync.mode, "in_place");
  EXPECT_EQ(c.model.path, "x=y");
  EXPECT_EQ(c.rollout.output, "");
}

TEST(Config, SetNamesWhatIsWrongWithIt) {
  EXPECT_EQ(Fault("", {"engine.max_running"}),
            "--set engine.max_running: expected table.key=value");
  EXPECT_EQ(Fault("", {"engine.max_runnin=1"}),
            "--set engine.max_runnin=1: unknown key engine.max_runnin; did you mean "
            "engine.max_running?");
  EXPECT_EQ(Fault("", {"engine.max_running=many"}),
            "--set: engine.max_running: expected an integer from 1 to 32768, got many, which is no "
            "TOML value (1, 0.5, true, \"text\", [1, 2])");
  for (const char* value : {"99999999999999999999", "-99999999999999999999"})
    EXPECT_EQ(Fault("", {StrCat("engine.max_running=", value).c_str()}),
              StrCat("--set: engine.max_running: expected an integer from 1 to 32768, got ", value,
                     ", an integer beyond 64 bits"));
  EXPECT_EQ(Fault("", {"engine.max_running=1e30"}),
            "--set: engine.max_running: expected an integer from 1 to 32768, got 1e+30");
  // 2^53 + 1, which float64 takes for 2^53.
  EXPECT_EQ(Fault("", {"rollout.seed=9007199254740993"}),
            "--set: rollout.seed: expected an integer from 0 to 9007199254740992, got "
            "9007199254740993");
  EXPECT_EQ(Fault("", {"sampling.stop_strings=foo"}).substr(0, 72),
            "--set: sampling.stop_strings: expected an array of strings, got foo, whi");
  EXPECT_EQ(Fault("", {"engine.max_running=1\nx=2"}).substr(0, 26), "--set: engine.max_running:");
  EXPECT_EQ(Fault("", {"engine.max_running=0"}),
            "--set: engine.max_running: expected an integer from 1 to 32768, got 0");
  // The resolved configuration would be a file that nothing reads.
  EXPECT_EQ(Fault("", {"model.path=a\xFF"}), "--set: model.path: the value is not UTF-8");
  EXPECT_EQ(ParseConfig("", "x", std::vector<Setting>{"model.path=\u00e9"}).model.path, "\u00e9");
}

// The TOML library has a table, and stack, for every part.
TEST(Config, AKeyOfVeryManyPartsIsAnError) {
  std::string deep;
  for (int i = 0; i < 1000000; ++i) deep += "a.";
  EXPECT_EQ(Fault("\n" + deep + "a = 1\n", {}), "job.toml:2: a key of more than 256 parts");
  // Many values of a line are no parts of a key.
  std::string numbers;
  for (int i = 0; i < 300; ++i) numbers += "0.5, ";
  EXPECT_EQ(Fault("x = [" + numbers + "]\n", {}).find("parts"), std::string::npos);
  EXPECT_EQ(Fault("[" + deep + "a]\n", {}), "job.toml:1: a key of more than 256 parts");
  EXPECT_EQ(Fault("[scorer]\npattern = \"" + std::string(1000, '.') + "\"  # " +
                      std::string(1000, '.') + "\n",
                  {}),
            "");
  EXPECT_EQ(Fault("", {"sampling.stop_ids={" + deep + "a = 1}"}).substr(0, 58),
            "--set: sampling.stop_ids: expected an array of integers fr");
}

TEST(Config, SharedSettingsAreWhatRanksMustAgreeOn) {
  const std::string base = SharedSettings(Config());
  auto shared = [](const char* set) {
    const std::vector<Setting> sets = {set};
    return SharedSettings(ParseConfig("", "job.toml", sets));
  };
  EXPECT_EQ(base, SharedSettings(ParseConfig("", "other.toml")));
  EXPECT_NE(base.find("\nsampling.temperature = 1.0\n"), std::string::npos) << base;
  EXPECT_NE(shared("sampling.temperature=0.5").find("\nsampling.temperature = 0.5\n"),
            std::string::npos);
  EXPECT_NE(shared("rollout.seed=1"), base);
  EXPECT_NE(shared("sync.mode=in_place"), base);
  EXPECT_EQ(shared("kernels.threads=1"), base);
  EXPECT_EQ(shared("log.level=debug"), base);
  EXPECT_EQ(shared("model.path=elsewhere"), base);
}

TEST(Config, EveryFieldHasHelpAndADefaultWithinItsLimits) {
  Config c;
  const FieldList list = ListFields(c);
  EXPECT_GT(list.fields().size(), 50u);
  for (const Field& field : list.fields()) {
    EXPECT_FALSE(field.help.empty()) << field.key;
    EXPECT_EQ(list.Find(field.key), &field) << "listed twice: " << field.key;
  }
  // Reading the defaults back applies every limit to every default.
  EXPECT_NO_THROW(ParseConfig(ToToml(c), "defaults"));
  // --help-config is itself a configuration.
  EXPECT_EQ(ToToml(ParseConfig(HelpConfig(), "help")), ToToml(c));
}

TEST(Config, FileThatCannotBeReadIsNamed) {
  const std::string dir = std::filesystem::temp_directory_path(), none = dir + "/no-such-file.toml";
  testing::ExpectError([&] { LoadConfig(none); },
                       {none + ": cannot be opened: No such file or directory"});
  testing::ExpectError([&] { LoadConfig(dir); }, {dir + ": is a folder, expected a file"});
}

TEST(Config, EmptyFileReadsAsTheDefaults) {
  const auto path = std::filesystem::temp_directory_path() / "rollcast_empty_config.toml";
  std::ofstream(path).close();
  EXPECT_EQ(ToToml(LoadConfig(path.string())), ToToml(Config()));
  std::filesystem::remove(path);
}

TEST(Config, EveryCommittedConfigurationReads) {
  int files = 0;
  const auto root = std::filesystem::path(ROLLCAST_TEST_DATA).parent_path().parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(root / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const Config c = LoadConfig(entry.path().string());
    EXPECT_FALSE(c.model.path.empty()) << entry.path();
    EXPECT_TRUE(std::filesystem::exists(root / c.rollout.prompts)) << entry.path();
  }
  EXPECT_GE(files, 4);
}

TEST(EditDistance, CountsInsertionsDeletionsAndSubstitutions) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("same", "same"), 0);
}

}  // namespace
}  // namespace rollcast
