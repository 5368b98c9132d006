// The folder of a small job whose trainer is a program of the user's, for tests of
// librollcast_trainer.so.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "launch/toy_model.h"
#include "tests/testing/mpi_job.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast::testing {

class TrainerLibraryTest : public ::testing::Test {
 protected:
  TrainerLibraryTest() {
    MakeToyModel(model(), 1);
    std::ofstream(folder_ / "job.toml")
        << "[kernels]\ndevice = \"cpu\"\nthreads = 1\n"
           "[engine]\nmax_running = 16\nmax_batched_tokens = 64\nkv_memory_mb = 8\n"
           "[sampling]\nmax_tokens = 10\n"
           "[scorer]\nkind = \"regex\"\npattern = \"e\"\n"
           "[sync]\nheartbeat_s = 0.5\ndeadline_s = 20\n"
           "[rollout]\ngroup_size = 4\nseed = 3\n";
  }

  std::filesystem::path model() const { return folder_ / "model"; }
  std::string Config() const { return Quoted((folder_ / "job.toml").string()); }
  std::string Output() const { return (model() / "out.h5").string(); }

  /// mpirun of `trainer` (a program and its arguments) beside `workers` ranks.
  std::string Job(const std::string& trainer, int workers, const std::string& mpi_options = "",
                  const std::string& worker_options = "") const {
    return "exec " + Quoted(ROLLCAST_MPIRUN) + " " + mpi_options + " -np 1 " + trainer + " : -np " +
           std::to_string(workers) + " " + Quoted(ROLLCAST_BINARY) + " worker -c " + Config() +
           " --model " + Quoted(model().string()) + " " + worker_options;
  }
  std::string WithOutput() const { return "--output " + Quoted(Output()); }

  TemporaryDir temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace rollcast::testing
