#include "launch/inspect_command.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/check.h"
#include "launch/row_filter.h"
#include "rollout/hdf5.h"
#include "rollout/trajectory_file.h"

namespace rollcast {
namespace {

class InspectTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "rollcast_inspect_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    options_.file = directory_ / "run.h5";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // 20 rows in 5 groups; row i has reward i / 10, i tokens, and lag i % 3; row 7 was aborted.
  void WriteRun() {
    TrajectoryFileInfo info;
    info.config = "[rollout]\ninterval = 2\n";
    info.model_digest = 0xABC;
    TrajectoryFile file(options_.file, info);
    for (int i = 0; i < 20; ++i) {
      Trajectory t;
      t.prompt_id = "task-" + std::to_string(i / 4);
      t.group_id = i / 4 + 1;
      t.sample_index = i % 4;
      t.group_size = 4;
      t.prompt = {5, 6, 7};
      for (int k = 0; k < i; ++k) {
        t.completion.push_back(k);
        t.logprob.push_back(-0.1f * static_cast<float>(k + 1));
        t.logprob_raw.push_back(-1.0f / 3.0f);
        AppendToSpans(t.spans, 10);
      }
      t.sampling.temperature = 0.7f;
      t.sampling.seed = 0xFFFFFFFFFFFFFFFFu - i;
      t.text = "the \"answer\" is " + std::to_string(i);
      t.reward = i / 10.0;
      t.finish_reason = i % 2 == 0 ? FinishReason::kStopId : FinishReason::kLength;
      t.live_version_at_return = 10 + i % 3;
      if (i == 7) {
        t.outcome = Outcome::kAborted;
        t.message = "update 12";
        t.finish_reason = FinishReason::kAbort;
        t.reward = std::numeric_limits<double>::quiet_NaN();
      }
      file.Append({&t, 1});
    }
    SyncReport report;
    report.version = 11;
    report.committed = true;
    report.mode = "staged";
    report.transport = "mpi";
    report.bytes = 269000000;
    report.transfer_s = 0.5;
    report.pause_s = 0.0125;
    report.digest = 0xFEEDull;
    file.AppendUpdate(report);
    report.version = 11;
    report.committed = false;
    report.error = "rank 2: checksum differs";
    file.AppendUpdate(report);
    file.Close(RunEnd::StoppedBy("SIGTERM"));
  }

  std::string Run() {
    std::ostringstream out;
    EXPECT_EQ(RunInspect(options_, out), 0);
    return out.str();
  }
  std::vector<nlohmann::json> RunJsonl() {
    options_.jsonl = true;
    std::istringstream lines(Run());
    std::vector<nlohmann::json> rows;
    for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
    return rows;
  }
  std::string Failure() {
    std::ostringstream out;
    try {
      RunInspect(options_, out);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  std::filesystem::path directory_;
  InspectOptions options_;
};

TEST_F(InspectTest, SummaryHasCountsDistributionsAndUpdates) {
  WriteRun();
  const std::string text = Run();
  const auto has = [&](const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
  };
  has("run.h5: 20 trajectories, written by rollcast 0.1.0\n");
  has("the run: stopped by SIGTERM\n");
  has("model digest 0000000000000abc");
  has("groups         5 of 5 prompts\n");
  has("outcomes       completed 19, aborted 1\n");
  has("finish reasons stop_id 10, length 9, abort 1\n");
  has("tokens         60 of prompts, 190 of completions\n");
  // Row 0 has no tokens: its version is the live one, 10.
  has("policies       10 to 10; 0 continued on KV of an older one\n");
  // 0, 0.1, ... 1.9 without 0.7: numpy.quantile gives 0.18, 1.0 and 1.72.
  has("reward (of 19): min 0  p10 0.18  median 1  p90 1.72  max 1.9  mean 0.963158\n");
  has("completion length (of 20): min 0  p10 1.9  median 9.5  p90 17.1  max 19  mean 9.5\n");
  has("policy lag (of 19): min 0  p10 0  median 1  p90 2  max 2  mean 1\n");
  has("  0        6 ####");
  has("  2        6 ####");
  has("weight updates: 1 committed, 1 refused\n");
  has("staged   mpi      269.0     0.538");
  has("12.5");
  has("feed  rank 2: checksum differs\n");
  EXPECT_EQ(text.find("not closed"), std::string::npos);
}

TEST_F(InspectTest, JsonlHasEveryValueInFull) {
  WriteRun();
  const auto rows = RunJsonl();
  ASSERT_EQ(rows.size(), 20u);
  for (int i = 0; i < 20; ++i) {
    const nlohmann::json& row = rows[i];
    EXPECT_EQ(row["prompt_id"], "task-" + std::to_string(i / 4));
    EXPECT_EQ(row["text"], "the \"answer\" is " + std::to_string(i));
    EXPECT_EQ(row["seed"].get<uint64_t>(), 0xFFFFFFFFFFFFFFFFu - i);
    EXPECT_EQ(row["policy_lag"], i % 3);
    EXPECT_EQ(row["prompt"], (std::vector<int>{5, 6, 7}));
    EXPECT_EQ(row["temperature"].dump(), "0.7");
    ASSERT_EQ(row["completion"].size(), static_cast<size_t>(i));
    for (int k = 0; k < i; ++k) {
      EXPECT_EQ(static_cast<float>(row["logprob"][k].get<double>()),
                -0.1f * static_cast<float>(k + 1));
      EXPECT_EQ(static_cast<float>(row["logprob_raw"][k].get<double>()), -1.0f / 3.0f);
    }
    EXPECT_EQ(row["policy_spans"].dump(), i == 0 ? "[]" : "[[0," + std::to_string(i) + ",10]]");
    if (i == 7) {
      EXPECT_TRUE(row["reward"].is_null());
      EXPECT_EQ(row["outcome"], "aborted");
      EXPECT_EQ(row["message"], "update 12");
    } else {
      EXPECT_EQ(row["reward"].get<double>(), i / 10.0);
    }
  }
}

TEST_F(InspectTest, FiltersAndLimit) {
  WriteRun();
  const auto count = [&](std::vector<std::string> filters, int64_t limit = -1) {
    options_.filters = std::move(filters);
    options_.limit = limit;
    return RunJsonl().size();
  };
  EXPECT_EQ(count({"outcome=completed"}), 19u);
  EXPECT_EQ(count({"outcome != completed"}), 1u);
  EXPECT_EQ(count({"reward>0.5"}), 13u);
  EXPECT_EQ(count({"reward>=0.5"}), 14u);
  EXPECT_EQ(count({"reward<0.5"}), 5u);
  EXPECT_EQ(count({"reward==0.5"}), 1u);
  EXPECT_EQ(count({"policy_lag=2"}), 6u);
  EXPECT_EQ(count({"policy_lag=2", "reward > 0.5"}), 4u);
  EXPECT_EQ(count({"version_last>=10"}), 20u);
  EXPECT_EQ(count({"version_last>10"}), 0u);
  EXPECT_EQ(count({"finish_reason=length"}), 9u);
  EXPECT_EQ(count({"temperature=0.7"}), 20u);
  EXPECT_EQ(count({"seed=18446744073709551614"}), 1u);
  EXPECT_EQ(count({"prompt_id=task-2"}), 4u);
  EXPECT_EQ(count({"text~is 1"}), 11u);
  EXPECT_EQ(count({"mixed_kv=false"}), 20u);
  EXPECT_EQ(count({"mixed_kv=true"}), 0u);
  EXPECT_EQ(count({"reward>0.5"}, 4), 4u);
  EXPECT_EQ(count({}, 0), 0u);
}

TEST_F(InspectTest, FilterThatIsNotUnderstoodIsQuoted) {
  WriteRun();
  const auto failure = [&](const std::string& filter) {
    options_.filters = {filter};
    return Failure();
  };
  EXPECT_EQ(failure("reward"),
            "filter \"reward\": expected FIELD OP VALUE with one of = != < <= > >= ~");
  EXPECT_EQ(failure("reward>x"), "filter \"reward>x\": expected a number, found \"x\"");
  EXPECT_EQ(failure("rank=1.5"), "filter \"rank=1.5\": expected a whole number, found \"1.5\"");
  EXPECT_EQ(failure("rank="), "filter \"rank=\": expected a whole number, found \"\"");
  EXPECT_EQ(failure("outcome>completed"),
            "filter \"outcome>completed\": outcome is one of a few names: use = or !=");
  EXPECT_EQ(failure("outcome ~ comp"),
            "filter \"outcome ~ comp\": outcome is one of a few names: use = or !=");
  EXPECT_EQ(failure("text<a"), "filter \"text<a\": text is a text: use =, != or ~");
  EXPECT_EQ(failure("mixed_kv>false"),
            "filter \"mixed_kv>false\": mixed_kv is true or false: use = or !=");
  EXPECT_EQ(failure("rank~1"), "filter \"rank~1\": rank is a number: use =, !=, <, <=, > or >=");
  EXPECT_EQ(failure("mixed_kv=yes"),
            "filter \"mixed_kv=yes\": expected true or false, found \"yes\"");
  EXPECT_NE(failure("outcome=done").find("expected completed, aborted"), std::string::npos);
  EXPECT_NE(failure("rewad>1").find("there is no field \"rewad\"; there are prompt_id, group_id"),
            std::string::npos);
}

TEST_F(InspectTest, ConfigIsPrintedAsItIs) {
  WriteRun();
  options_.config = true;
  EXPECT_EQ(Run(), "[rollout]\ninterval = 2\n");
}

TEST_F(InspectTest, AnEmptyUnclosedRunIsSummarised) {
  TrajectoryFile file(options_.file, {});
  const std::string text = Run();
  EXPECT_NE(text.find("0 trajectories, begun by"), std::string::npos);
  EXPECT_NE(text.find("has not closed the file"), std::string::npos);
  EXPECT_NE(text.find("\nno trajectories\n"), std::string::npos);
  EXPECT_EQ(text.find("reward"), std::string::npos);
  EXPECT_NE(text.find("no weight updates"), std::string::npos);
}

TEST_F(InspectTest, AFilterThatNothingPassesSaysSo) {
  WriteRun();
  options_.filters = {"reward > 100"};
  const std::string text = Run();
  EXPECT_NE(text.find("shown: 0 of 20\n\nno trajectory passes\n"), std::string::npos) << text;
  for (const char* part : {"nan", "reward", "outcomes", "policies", "none"})
    EXPECT_EQ(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_NE(text.find("weight updates: 1 committed"), std::string::npos) << text;
  options_.jsonl = true;
  EXPECT_EQ(Run(), "");
}

TEST_F(InspectTest, AFileThatIsNotOursIsRefused) {
  Hdf5File::Create(options_.file, false).Close();
  EXPECT_NE(Failure().find("is not a rollcast trajectory file"), std::string::npos);
}

TEST_F(InspectTest, OutputThatFailsIsAnError) {
  WriteRun();
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  EXPECT_THROW(RunInspect(options_, out), Error);
}

}  // namespace
}  // namespace rollcast
