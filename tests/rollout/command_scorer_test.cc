// The children are shell scripts, so that the tests need nothing that a bare machine lacks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/check.h"
#include "rollout/child_process.h"
#include "rollout/scorer.h"

namespace rollcast {
namespace {

namespace fs = std::filesystem;

// Answers each line at once: the id that stands in it and a reward.
std::string Reply(const std::string& reward) {
  return R"x(sed -u 's/.*"id":\("[0-9]*"\).*/{"id":\1,"reward":)x" + reward + "}/'";
}

ScorerConfig Command(std::string command, double deadline_s = 20, int max_tries = 3) {
  ScorerConfig config;
  config.kind = "command";
  config.command = std::move(command);
  config.deadline_s = deadline_s;
  config.max_tries = max_tries;
  return config;
}

std::vector<ScoreInput> Inputs(int count) {
  std::vector<ScoreInput> inputs(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) inputs[i].completion = StrCat("c", i);
  return inputs;
}

std::vector<Score> ScoreAll(const ScorerConfig& config, int count) {
  return MakeScorer(config)->ScoreBatch(Inputs(count));
}

class CommandScorerTest : public testing::Test {
 protected:
  CommandScorerTest() {
    char name[] = "/tmp/rollcast_command_XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~CommandScorerTest() override { fs::remove_all(dir_); }

  std::string ReadFile(const std::string& name) const {
    std::ifstream in(dir_ / name);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  fs::path dir_;
};

TEST_F(CommandScorerTest, RewardsInOrder) {
  const std::string command =
      R"x(sed -u 's/.*"completion":"c\([0-9]*\)".*"id":\("[0-9]*"\).*/{"id":\2,"reward":\1.5}/')x";
  const auto scorer = MakeScorer(Command(command));
  for (int batch = 0; batch < 3; ++batch) {
    const auto scores = scorer->ScoreBatch(Inputs(5));
    ASSERT_EQ(scores.size(), 5u);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(scores[i].error, "");
      EXPECT_EQ(scores[i].reward, i + 0.5);
    }
  }
  EXPECT_TRUE(scorer->ScoreBatch({}).empty());
}

TEST_F(CommandScorerTest, RepliesMayComeInAnyOrderAndAsNumbers) {
  const std::string command =
      R"(read a; read b; read c; for i in 3 1 2; do echo "{\"id\":$i,\"reward\":$i}"; done; cat)";
  const auto scores = ScoreAll(Command(command), 3);
  EXPECT_EQ(scores[0].reward, 1);
  EXPECT_EQ(scores[1].reward, 2);
  EXPECT_EQ(scores[2].reward, 3);
}

TEST_F(CommandScorerTest, TheChildSeesTheWholeInput) {
  ScoreInput input;
  input.prompt_id = "p7";
  input.prompt = "What is \"1\n+ 1\"?";
  input.completion = "\xff two";  // not UTF-8: arrives as U+FFFD
  input.prompt_ids = {1, 2};
  input.completion_ids = {3};
  input.reference = "2";
  input.metadata = R"({"difficulty": 3})";
  const std::string command = StrCat("tee ", (dir_ / "in").string(), " | ", Reply("1"));
  const auto scores = MakeScorer(Command(command))->ScoreBatch({&input, 1});
  ASSERT_EQ(scores[0].error, "");
  const auto seen = nlohmann::json::parse(ReadFile("in"));
  EXPECT_EQ(seen["id"], "1");
  EXPECT_EQ(seen["prompt_id"], "p7");
  EXPECT_EQ(seen["prompt"], input.prompt);
  EXPECT_EQ(seen["completion"], "\uFFFD two");
  EXPECT_EQ(seen["prompt_ids"], (std::vector<int>{1, 2}));
  EXPECT_EQ(seen["completion_ids"], std::vector<int>{3});
  EXPECT_EQ(seen["answer"], "2");
  EXPECT_EQ(seen["metadata"]["difficulty"], 3);
}

TEST_F(CommandScorerTest, BadRewardsNeverCount) {
  for (const char* reward :
       {"NaN", "Infinity", "-Infinity", "1e999", "null", "\"1\"", "true", "[1]"}) {
    // A child cannot be blamed for one completion when its line is no JSON at all.
    const auto scores = ScoreAll(Command(Reply(reward), 0.3), 2);
    for (const Score& score : scores) EXPECT_NE(score.error, "") << reward;
  }
  EXPECT_NE(ScoreAll(Command(Reply("NaN")), 1)[0].error.find("not a finite number"),
            std::string::npos);
}

TEST_F(CommandScorerTest, ABadReplyDoesNotTakeItsNeighboursAlong) {
  const std::string command =
      R"(read a; echo '{"id":"1","reward":NaN}'; read b; echo '{"id":"2","reward":0.5}'; )"
      R"(read c; echo '{"id":"3","error":"cannot parse"}'; read d; echo '{"id":"4"}'; cat)";
  const auto scores = ScoreAll(Command(command), 4);
  EXPECT_NE(scores[0].error.find("reward is null, NaN or infinite, not a finite number"),
            std::string::npos);
  EXPECT_EQ(scores[1].error, "");
  EXPECT_EQ(scores[1].reward, 0.5);
  EXPECT_EQ(scores[2].error, "the scorer command says: cannot parse");
  EXPECT_EQ(scores[3].error, "the scorer command's reply has no \"reward\"");
}

TEST_F(CommandScorerTest, ASecondReplyToOneCompletionIsNoReward) {
  const std::string command =
      R"(read a; read b; echo '{"id":"1","reward":1}'; echo '{"id":"1","reward":1}'; )"
      R"(echo '{"id":"2","reward":1}'; cat >/dev/null)";
  const auto scores = ScoreAll(Command(command), 2);
  EXPECT_EQ(scores[0].error, "the scorer command replied twice to this completion");
  EXPECT_EQ(scores[1].error, "");
}

// With a deadline of a day and three tries: what belongs to no completion is an error at once, and
// what had been answered before stays.
TEST_F(CommandScorerTest, WhatIsNoReplyToAnyCompletionIsAnErrorAtOnce) {
  const std::map<std::string, std::string> cases = {
      {R"({"reward":1})", "a reply without an id: {\"reward\":1}"},
      {R"({"id":"99","reward":1})", "a reply with an unknown id: {\"id\":\"99\",\"reward\":1}"},
      {R"({"id":-1,"reward":1})", "a reply with an unknown id: {\"id\":-1,\"reward\":1}"},
      {"0.5", "a line that is no JSON object: 0.5"},
      {"loading the model",
       "a line that is no JSON object: loading the model (reply:1:1: not valid JSON: invalid "
       "literal)"}};
  for (const auto& [line, what] : cases) {
    const std::string starts = (dir_ / "starts").string();
    const auto scores =
        ScoreAll(Command(StrCat("echo x > ", starts, R"(; read a; echo '{"id":"1","reward":1}'; )",
                                "read b; echo '", line, "'; cat >/dev/null"),
                         86400),
                 3);
    EXPECT_EQ(scores[0].error, "");
    EXPECT_EQ(scores[1].error,
              StrCat("the scorer command wrote ", what,
                     "; its standard output must hold one JSON object a line, each with the \"id\" "
                     "of the completion that it is about"));
    EXPECT_EQ(scores[2].error, scores[1].error);
    EXPECT_EQ(ReadFile("starts"), "x\n") << "a second try";
  }
}

TEST_F(CommandScorerTest, IsRestartedWhenItDies) {
  // The first two die after they have answered one; the third answers the rest.
  const std::string command = StrCat("echo x >> ", (dir_ / "starts").string(), "; if [ $(wc -l < ",
                                     (dir_ / "starts").string(), ") -lt 3 ]; then head -n 1 | ",
                                     Reply("1"), "; exit 3; fi; ", Reply("2"));
  const auto scores = ScoreAll(Command(command), 4);
  EXPECT_EQ(ReadFile("starts"), "x\nx\nx\n");
  EXPECT_EQ(scores[0].reward, 1);
  EXPECT_EQ(scores[1].reward, 1);
  EXPECT_EQ(scores[2].reward, 2);
  EXPECT_EQ(scores[3].reward, 2);
  for (const Score& score : scores) EXPECT_EQ(score.error, "");
}

TEST_F(CommandScorerTest, TriesAreBounded) {
  const std::string starts = (dir_ / "starts").string();
  const auto scores = ScoreAll(Command(StrCat("echo x >> ", starts, "; read a; exit 7"), 20, 2), 2);
  EXPECT_EQ(ReadFile("starts"), "x\nx\n");
  EXPECT_EQ(scores[0].error, "the scorer command exited with status 7");
  EXPECT_EQ(scores[1].error, scores[0].error);
}

TEST_F(CommandScorerTest, ACommandThatDoesNotExist) {
  const auto scores = ScoreAll(Command("/nonexistent/scorer", 20, 1), 1);
  EXPECT_EQ(scores[0].error, "the scorer command exited with status 127");
}

TEST_F(CommandScorerTest, ADeathBetweenBatchesCostsNothing) {
  const std::string pid = (dir_ / "pid").string();
  const auto scorer =
      MakeScorer(Command(StrCat("echo $$ > ", pid, "; exec ", Reply("1")), 20, /*max_tries=*/1));
  EXPECT_EQ(scorer->ScoreBatch(Inputs(1))[0].error, "");
  const pid_t child = static_cast<pid_t>(std::stoi(ReadFile("pid")));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(scorer->ScoreBatch(Inputs(1))[0].error, "");
  EXPECT_NE(ReadFile("pid"), StrCat(child, "\n"));
}

TEST_F(CommandScorerTest, AChildThatNeitherReadsNorWrites) {
  auto inputs = Inputs(64);
  for (auto& input : inputs) input.prompt.assign(64 << 10, 'x');  // far more than a pipe holds
  const auto scorer = MakeScorer(Command("exec sleep 1000", 0.3));
  const auto begin = std::chrono::steady_clock::now();
  const auto scores = scorer->ScoreBatch(inputs);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  ASSERT_EQ(scores.size(), 64u);
  for (const Score& score : scores)
    EXPECT_EQ(score.error, "the scorer command gave no reply within 0.3 s");
}

TEST_F(CommandScorerTest, AChildThatNeverStopsWriting) {
  const auto scores = ScoreAll(Command("yes", 86400), 1);
  EXPECT_NE(scores[0].error.find("a line that is no JSON object: y (reply:1:1: "),
            std::string::npos)
      << scores[0].error;
  EXPECT_NE(ScoreAll(Command("cat /dev/zero", 5), 1)[0].error.find("more than 1048576 bytes"),
            std::string::npos);
}

TEST_F(CommandScorerTest, ALateReplyDoesNotReachTheNextBatch) {
  // The first process answers when it is too late; the one after it is prompt.
  const std::string mark = (dir_ / "mark").string();
  const auto scorer = MakeScorer(Command(StrCat("if [ -e ", mark, " ]; then exec ", Reply("2"),
                                                "; fi; touch ", mark, "; cat >/dev/null"),
                                         2));
  EXPECT_NE(scorer->ScoreBatch(Inputs(1))[0].error, "");
  const auto scores = scorer->ScoreBatch(Inputs(1));
  EXPECT_EQ(scores[0].error, "");
  EXPECT_EQ(scores[0].reward, 2);
}

TEST_F(CommandScorerTest, BigBatchesFlowBothWaysAtOnce) {
  auto inputs = Inputs(300);
  for (auto& input : inputs) input.prompt.assign(8 << 10, 'x');
  const auto scores = MakeScorer(Command(Reply("1")))->ScoreBatch(inputs);
  ASSERT_EQ(scores.size(), 300u);
  for (const Score& score : scores) EXPECT_EQ(score.error, "");
}

TEST_F(CommandScorerTest, StandardErrorIsPassedOnWithAPrefix) {
  testing::internal::CaptureStderr();
  ScoreAll(Command(StrCat("echo loading >&2; printf half >&2; ", Reply("1"))), 1);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("[scorer] loading\n"), std::string::npos) << text;
  EXPECT_NE(text.find("[scorer] half\n"), std::string::npos) << text;
}

TEST_F(CommandScorerTest, DestructionKillsTheWholeGroup) {
  // A grandchild that ignores the end of its input holds a pipe open for as long as it lives.
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  {
    const auto scorer = MakeScorer(Command(StrCat("sleep 1000 > ", pipe, " 2>&1 & ", Reply("1"))));
    EXPECT_EQ(scorer->ScoreBatch(Inputs(1))[0].error, "");
    pollfd before = {reader, POLLIN, 0};
    EXPECT_EQ(::poll(&before, 1, 0), 0);
  }
  pollfd after = {reader, POLLIN, 0};
  EXPECT_EQ(::poll(&after, 1, 20000), 1);
  EXPECT_TRUE(after.revents & POLLHUP);
  ::close(reader);
}

TEST_F(CommandScorerTest, AKilledProcessLeavesNoneOfTheGroup) {
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    const auto scorer = MakeScorer(Command(StrCat("sleep 1000 > ", pipe, " 2>&1 & ", Reply("1"))));
    scorer->ScoreBatch(Inputs(1));
    pollfd open = {reader, POLLIN, 0};
    if (::poll(&open, 1, 0) == 0) ::raise(SIGKILL);  // the sleeper has it open
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(owner, &status, 0), owner);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  pollfd after = {reader, POLLIN, 0};
  EXPECT_EQ(::poll(&after, 1, 20000), 1);
  EXPECT_TRUE(after.revents & POLLHUP);
  ::close(reader);
}

TEST_F(CommandScorerTest, TheChildIsNoRankOfOurJob) {
  ::setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  ::setenv("PMIX_RANK", "1", 1);
  ::setenv("ROLLCAST_KEPT", "yes", 1);
  const int descriptor = ::dup(0);  // not close-on-exec, as libraries leave theirs
  ScoreAll(Command(StrCat("env > ", (dir_ / "env").string(), "; ls /proc/self/fd > ",
                          (dir_ / "fds").string(), "; ", Reply("1"))),
           1);
  ::close(descriptor);
  const std::string environment = ReadFile("env");
  EXPECT_EQ(environment.find("OMPI_"), std::string::npos);
  EXPECT_EQ(environment.find("PMIX_"), std::string::npos);
  EXPECT_NE(environment.find("ROLLCAST_KEPT=yes"), std::string::npos);
  EXPECT_EQ(ReadFile("fds"), "0\n1\n2\n3\n");  // 3 is ls looking at the folder
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::unsetenv("PMIX_RANK");
  ::unsetenv("ROLLCAST_KEPT");
}

TEST_F(CommandScorerTest, AWriteToADeadChildRaisesNoSignal) {
  // SIGPIPE has its default action here: were it delivered, this test would end.
  ChildProcess child("exec <&-; echo closed; exec sleep 1000", "");
  std::string incoming;
  std::string_view nothing;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (incoming != "closed\n")
    ASSERT_EQ(child.Exchange(nothing, incoming, deadline), ChildProcess::Progress::kMoved);
  std::string_view outgoing = "text";
  EXPECT_EQ(child.Exchange(outgoing, incoming, deadline), ChildProcess::Progress::kClosed);
  EXPECT_EQ(outgoing, "text");
  sigset_t pending;
  ::sigpending(&pending);
  EXPECT_EQ(::sigismember(&pending, SIGPIPE), 0);
  EXPECT_EQ(child.End(std::chrono::milliseconds(0)), "was killed");
}

}  // namespace
}  // namespace rollcast
