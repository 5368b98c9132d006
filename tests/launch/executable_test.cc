// The executable itself, as a user starts it.
#include <gtest/gtest.h>

#include <algorithm>

#include "launch/config.h"
#include "tests/testing/run_command.h"

namespace rollcast {
namespace {

using std::chrono::seconds;
using testing::CommandResult;
using testing::RunCommand;
using testing::RunRollcast;

TEST(Executable, HelpVersionAndUsage) {
  CommandResult r = RunRollcast({"--version"});
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out.substr(0, 9), "rollcast ");
  r = RunRollcast({"--help"});
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.out.find("Usage: rollcast"), std::string::npos) << r.out;
  r = RunRollcast({});
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1) << r.out;
  r = RunRollcast({"no-such-command"});
  EXPECT_EQ(r.status, 2);
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
  EXPECT_EQ(r.out, "begun\n");
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
