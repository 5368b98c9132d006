// The trainer's side in C: a program in C beside real ranks.
#include "tests/testing/trainer_library_test.h"

#include <gtest/gtest.h>

#include "rollout/trajectory_file.h"
#include "tests/testing/mpi_job.h"

namespace rollcast {
namespace {

using namespace std::chrono_literals;
using testing::MpiJob;
using testing::Quoted;
using testing::TrainerLibraryTest;

TEST_F(TrainerLibraryTest, ServesAProgramInC) {
  MpiJob job(Job(Quoted(ROLLCAST_TRAINER_PROBE) + " " + Config() + " " + Quoted(model().string()),
                 2, "", WithOutput()),
             folder_);
  ASSERT_EQ(job.Wait(120s), 0) << job.err() << job.out();
  EXPECT_NE(job.out().find("the probe has ended well"), std::string::npos) << job.out();
  const TrajectoryReader reader(Output());
  EXPECT_TRUE(reader.closed());
  EXPECT_EQ(reader.rows(), 8);
  EXPECT_EQ(reader.ReadUpdates().size(), 1u);
}

}  // namespace
}  // namespace rollcast
