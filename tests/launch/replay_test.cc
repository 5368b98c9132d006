// rollcast replay on files that generate has written, as they are and altered.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>

#include "launch/toy_model.h"
#include "rollout/trajectory_file.h"
#include "tests/testing/run_command.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::CommandResult;
using testing::RunRollcast;

class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeToyModel(dir_.path() / "toy", 1);
    std::ofstream(dir_.path() / "p.jsonl") << "{\"id\": \"a\", \"text\": \"Once \"}\n"
                                              "{\"id\": \"b\", \"tokens\": [5, 6, 7, 8]}\n";
    const CommandResult r =
        RunRollcast({"generate", "--model", Path("toy"), "--prompts", Path("p.jsonl"), "--output",
                     Path("out.h5"), "--group-size", "4", "--max-tokens", "24", "--top-p", "0.9",
                     "--seed", "3"});
    ASSERT_EQ(r.status, 0) << r.out;
  }
  std::string Path(const char* name) const { return (dir_.path() / name).string(); }
  CommandResult Replay(const char* file, const char* model,
                       std::vector<std::string> more = {}) const {
    std::vector<std::string> args = {"replay", Path(file), "--model", Path(model)};
    args.insert(args.end(), more.begin(), more.end());
    return RunRollcast(args);
  }
  /// A copy of out.h5 with its first row, and what is said of the file, changed.
  template <class Change>
  void WriteChanged(const char* name, Change change,
                    const std::function<void(TrajectoryFileInfo&)>& change_info = nullptr) const {
    const TrajectoryReader reader(Path("out.h5"));
    TrajectoryFileInfo info = reader.info();
    if (change_info) change_info(info);
    TrajectoryFile file(Path(name), info);
    for (int64_t i = 0; i < reader.rows(); ++i) {
      Trajectory t = reader.Read(i);
      if (i == 0) change(t);
      file.Append(std::span(&t, 1));
    }
  }

  testing::TemporaryDir dir_;
};

TEST_F(ReplayTest, AFileOfTheSameWeightsReplaysBitForBit) {
  for (const char* batch : {"1", "16"}) {
    const CommandResult r =
        Replay("out.h5", "toy", {"--set", std::string("engine.max_running=") + batch});
    EXPECT_EQ(r.status, 0) << r.out;
    EXPECT_NE(r.out.find("8 of 8 rows replayed, 0 differ"), std::string::npos) << r.out;
  }
}

TEST_F(ReplayTest, WhatFilledAShorterContextEndsWhereItHad) {
  const CommandResult made =
      RunRollcast({"generate", "--model", Path("toy"), "--prompts", Path("p.jsonl"), "--output",
                   Path("short.h5"), "--max-tokens", "200", "--set", "engine.max_context=30",
                   "--set", "sampling.ignore_eos=true"});
  ASSERT_EQ(made.status, 0) << made.out;
  const CommandResult r = Replay("short.h5", "toy");
  EXPECT_EQ(r.status, 0) << r.out;
  EXPECT_NE(r.out.find(" 0 differ"), std::string::npos) << r.out;
}

TEST_F(ReplayTest, ALastBitOfALogProbabilityIsFound) {
  WriteChanged("changed.h5",
               [](Trajectory& t) { t.logprob[3] = std::nextafter(t.logprob[3], 0.0f); });
  const CommandResult r = Replay("changed.h5", "toy");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find("logprob differs"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("8 of 8 rows replayed, 1 differ"), std::string::npos) << r.out;
}

TEST_F(ReplayTest, AnotherTokenIsFound) {
  WriteChanged("changed.h5", [](Trajectory& t) { t.completion[2] ^= 1; });
  const CommandResult r = Replay("changed.h5", "toy");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find(": token 2 is "), std::string::npos) << r.out;
}

TEST_F(ReplayTest, OtherWeightsAndOtherVersionsAreErrors) {
  MakeToyModel(dir_.path() / "other", 2);
  CommandResult r = Replay("out.h5", "other");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find("was made with weights of digest"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("it was made with model.path = \"" + Path("toy") + "\" (here \"" +
                       Path("other") + "\"); give the folder of those weights, or --version"),
            std::string::npos)
      << r.out;
  r = Replay("out.h5", "toy", {"--version", "1"});
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find("none of its 8 rows was drawn wholly under policy version 1"),
            std::string::npos)
      << r.out;
}

TEST_F(ReplayTest, WeightsOfALaterVersionOfTheRunAreNamedByIt) {
  MakeToyModel(dir_.path() / "other", 2);
  // The second model is what the run had after its third update.
  SyncReport update;
  update.committed = true;
  update.version = 3;
  uint64_t digest = 0;
  {
    const CommandResult r = Replay("out.h5", "other");
    const size_t at = r.out.find(" have ");
    ASSERT_NE(at, std::string::npos) << r.out;
    digest = std::stoull(r.out.substr(at + 6, 16), nullptr, 16);
  }
  update.digest = digest;
  const TrajectoryReader reader(Path("out.h5"));
  {
    TrajectoryFile file(Path("updated.h5"), reader.info());
    for (int64_t i = 0; i < reader.rows(); ++i) {
      const Trajectory t = reader.Read(i);
      file.Append(std::span(&t, 1));
    }
    file.AppendUpdate(update);
  }
  const CommandResult r = Replay("updated.h5", "other");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find("they are those of its policy version 3; give --version 3\n"),
            std::string::npos)
      << r.out;
}

TEST_F(ReplayTest, AnotherUntieHeadIsNamedWithItsRemedy) {
  const CommandResult r = Replay("out.h5", "toy", {"--set", "model.untie_head=true"});
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find(": it was made with model.untie_head = false (here true); give --set "
                       "model.untie_head=false\n"),
            std::string::npos)
      << r.out;
  EXPECT_EQ(Replay("out.h5", "toy", {"--set", "model.untie_head=false"}).status, 0);
}

TEST_F(ReplayTest, ChangedFilesOfTheSameFolderAreNamed) {
  std::filesystem::remove_all(dir_.path() / "toy");
  MakeToyModel(dir_.path() / "toy", 2);
  const CommandResult r = Replay("out.h5", "toy");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find("the files in that folder have changed since"), std::string::npos) << r.out;
}

TEST_F(ReplayTest, AConfigurationOfAnotherVersionIsSaidToBeUnknown) {
  WriteChanged(
      "old.h5", [](Trajectory&) {},
      [](TrajectoryFileInfo& info) {
        info.config = "[model]\nno_such_key = 1\n";
        info.model_digest ^= 1;
      });
  const CommandResult r = Replay("old.h5", "toy");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.out.find("is not known: the file's configuration:2: unknown key model.no_such_key"),
            std::string::npos)
      << r.out;
}

}  // namespace
}  // namespace rollcast
