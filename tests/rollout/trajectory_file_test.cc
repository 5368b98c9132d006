#include "rollout/trajectory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <thread>

#include "kernels/check.h"
#include "rollout/hdf5.h"

namespace rollcast {
namespace {

class TrajectoryFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "rollcast_trajectories_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ / "run.h5";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_, path_;
};

// A trajectory that depends on `index` alone; groups of four share a prompt.
Trajectory MakeTrajectory(uint64_t index, int max_length = 60) {
  const uint64_t group = index / 4;
  std::mt19937_64 random(index), group_random(group + 1000000);
  Trajectory t;
  t.prompt_id = std::string(group % 40, 'p') + std::to_string(group);
  t.group_id = group + 1;
  t.sample_index = static_cast<int32_t>(index % 4);
  t.group_size = 4;
  t.attempt = static_cast<int32_t>(random() % 3);
  t.rank = static_cast<int32_t>(random() % 8);
  t.prompt.resize(1 + group_random() % 30);
  for (int32_t& id : t.prompt) id = static_cast<int32_t>(group_random() % 50000);
  t.outcome = index % 7 == 3 ? static_cast<Outcome>(random() % 6) : Outcome::kCompleted;
  if (t.outcome != Outcome::kCompleted) t.message = "because of " + std::to_string(index);
  const int length = t.outcome == Outcome::kRefused ? 0 : static_cast<int>(random() % max_length);
  const bool filtered = index % 2 == 1;
  std::normal_distribution<float> logprob(-1.0f);
  for (int i = 0; i < length; ++i) {
    t.completion.push_back(static_cast<int32_t>(random() % 50000));
    t.logprob.push_back(logprob(random));
    t.logprob_raw.push_back(logprob(random));
    if (filtered) t.logprob_filtered.push_back(logprob(random));
    AppendToSpans(t.spans, static_cast<PolicyVersion>(index / 16 + (i > 20 ? 1 : 0)));
  }
  t.text = index % 5 == 0 ? "" : "text \xC3\xA9 of " + std::to_string(index);
  t.reward = t.outcome == Outcome::kCompleted ? std::cos(static_cast<double>(index))
                                              : std::numeric_limits<double>::quiet_NaN();
  t.finish_reason = static_cast<FinishReason>(random() % 5);
  t.live_version_at_return = static_cast<PolicyVersion>(index / 16 + 2);
  t.mixed_kv = t.spans.size() > 1;
  SamplingParams& s = t.sampling;
  s.max_tokens = 1 + static_cast<int>(random() % 100);
  s.min_tokens = static_cast<int>(random() % 5);
  s.temperature = 0.7f;
  s.top_p = filtered ? 0.9f : 1.0f;
  s.top_k = filtered ? 50 : -1;
  s.min_p = 0.05f;
  s.repetition_penalty = 1.1f;
  s.frequency_penalty = -0.5f;
  s.presence_penalty = 0.25f;
  for (uint64_t i = 0; i < index % 3; ++i) s.stop_ids.push_back(static_cast<int32_t>(i + index));
  if (index % 4 == 2) s.stop_strings = {"\n\n", "\"quoted\" \xE2\x82\xAC", ""};
  s.ignore_eos = index % 2 == 0;
  s.seed = random();
  return t;
}

template <class T>
void ExpectSameBits(const std::vector<T>& a, const std::vector<T>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0) << what;
}

void ExpectSame(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.prompt_id, b.prompt_id);
  EXPECT_EQ(a.group_id, b.group_id);
  EXPECT_EQ(a.sample_index, b.sample_index);
  EXPECT_EQ(a.group_size, b.group_size);
  EXPECT_EQ(a.attempt, b.attempt);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.sampling, b.sampling);
  ExpectSameBits(a.prompt, b.prompt, "prompt");
  ExpectSameBits(a.completion, b.completion, "completion");
  ExpectSameBits(a.logprob, b.logprob, "logprob");
  ExpectSameBits(a.logprob_raw, b.logprob_raw, "logprob_raw");
  ExpectSameBits(a.logprob_filtered, b.logprob_filtered, "logprob_filtered");
  EXPECT_EQ(a.spans, b.spans);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(std::memcmp(&a.reward, &b.reward, sizeof(double)), 0);
  EXPECT_EQ(a.outcome, b.outcome);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
  EXPECT_EQ(a.message, b.message);
  EXPECT_EQ(a.live_version_at_return, b.live_version_at_return);
  EXPECT_EQ(a.mixed_kv, b.mixed_kv);
}

void ExpectFirstRows(const std::filesystem::path& path, int64_t at_least, int64_t at_most) {
  const TrajectoryReader reader(path);
  ASSERT_GE(reader.rows(), at_least);
  ASSERT_LE(reader.rows(), at_most);
  std::vector<TrajectoryRow> rows = reader.ReadRows(0, reader.rows());
  for (int64_t i = 0; i < reader.rows(); ++i) {
    reader.ReadTokens(rows[i]);
    const Trajectory expected = MakeTrajectory(i);
    ExpectSame(rows[i].trajectory, expected);
    EXPECT_EQ(rows[i].version_first, expected.version_first());
    EXPECT_EQ(rows[i].version_last, expected.version_last());
    ASSERT_FALSE(testing::Test::HasFailure()) << "row " << i;
  }
}

std::vector<Trajectory> MakeBatch(uint64_t begin, uint64_t count) {
  std::vector<Trajectory> batch;
  for (uint64_t i = begin; i < begin + count; ++i) batch.push_back(MakeTrajectory(i));
  return batch;
}

SyncReport MakeReport(int i) {
  SyncReport r;
  r.version = i;
  r.committed = i % 3 != 0;
  r.error = r.committed ? "" : "rank 2: checksum differs";
  r.mode = i % 2 ? "staged" : "in_place";
  r.transport = "mpi";
  r.digest = 0xFEDCBA9876543210u + i;
  r.bytes = (int64_t{1} << 40) + i;
  r.total_s = 1.0 / (i + 3);
  r.announce_s = 0.01;
  r.transfer_s = 0.2;
  r.verify_s = 0.03;
  r.commit_s = 0.004;
  r.pause_s = 0.005;
  r.sequences_kept = i;
  r.sequences_recomputed = i + 1;
  r.sequences_aborted = i + 2;
  return r;
}

TEST_F(TrajectoryFileTest, RoundTripIsBitForBit) {
  TrajectoryFileInfo info;
  info.config = "[model]\npath = \"x\"\n";
  info.model_digest = 0xF000000000000001u;
  info.manifest_digest = 42;
  TrajectoryFile file(path_, info);
  uint64_t begin = 0;
  for (const uint64_t count : {1, 0, 3, 64, 1000, 2, 500}) {
    file.Append(MakeBatch(begin, count));
    begin += count;
    ASSERT_EQ(file.rows(), static_cast<int64_t>(begin));
  }
  for (int i = 0; i < 5; ++i) file.AppendUpdate(MakeReport(i));
  file.Flush();
  ExpectFirstRows(path_, begin, begin);  // while it is being written
  EXPECT_FALSE(TrajectoryReader(path_).closed());
  EXPECT_EQ(TrajectoryReader(path_).end(), "");
  file.Close(RunEnd::Completed());
  EXPECT_EQ(file.rows(), static_cast<int64_t>(begin));
  ExpectFirstRows(path_, begin, begin);

  const TrajectoryReader reader(path_);
  EXPECT_TRUE(reader.closed());
  EXPECT_EQ(reader.end(), "completed");
  EXPECT_EQ(reader.info().config, info.config);
  EXPECT_EQ(reader.info().model_digest, info.model_digest);
  EXPECT_EQ(reader.info().manifest_digest, info.manifest_digest);
  EXPECT_EQ(reader.info().rollcast_version, "0.1.0");
  ExpectSame(reader.Read(77), MakeTrajectory(77));
  const std::vector<SyncReport> updates = reader.ReadUpdates();
  ASSERT_EQ(updates.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    const SyncReport expected = MakeReport(i);
    EXPECT_EQ(updates[i].version, expected.version);
    EXPECT_EQ(updates[i].committed, expected.committed);
    EXPECT_EQ(updates[i].error, expected.error);
    EXPECT_EQ(updates[i].mode, expected.mode);
    EXPECT_EQ(updates[i].transport, expected.transport);
    EXPECT_EQ(updates[i].digest, expected.digest);
    EXPECT_EQ(updates[i].bytes, expected.bytes);
    EXPECT_EQ(updates[i].total_s, expected.total_s);
    EXPECT_EQ(updates[i].transfer_s, expected.transfer_s);
    EXPECT_EQ(updates[i].pause_s, expected.pause_s);
    EXPECT_EQ(updates[i].sequences_aborted, expected.sequences_aborted);
  }
}

TEST_F(TrajectoryFileTest, AGroupStoresItsPromptOnce) {
  TrajectoryFile file(path_, {});
  file.Append(MakeBatch(0, 8));
  const TrajectoryReader reader(path_);
  const auto rows = reader.ReadRows(0, 8);
  size_t tokens = MakeTrajectory(0).prompt.size() + MakeTrajectory(4).prompt.size();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(rows[i].prompt_offset, rows[i / 4 * 4].prompt_offset);
    tokens += rows[i].completion_length;
  }
  EXPECT_EQ(Hdf5File::Open(path_).Shape("tokens"), std::vector<uint64_t>{tokens});
}

TEST_F(TrajectoryFileTest, ColumnsHaveEqualLengthsAndFlatOnesToo) {
  TrajectoryFile file(path_, {});
  file.Append(MakeBatch(0, 70));
  const Hdf5File reader = Hdf5File::Open(path_);
  const std::vector<std::string> columns = {"prompt_id",
                                            "group_id",
                                            "sample_index",
                                            "group_size",
                                            "attempt",
                                            "rank",
                                            "seed",
                                            "reward",
                                            "outcome",
                                            "finish_reason",
                                            "message",
                                            "text",
                                            "version_first",
                                            "version_last",
                                            "mixed_kv",
                                            "live_version_at_return",
                                            "prompt_offset",
                                            "prompt_length",
                                            "completion_offset",
                                            "completion_length",
                                            "max_tokens",
                                            "min_tokens",
                                            "temperature",
                                            "top_p",
                                            "top_k",
                                            "min_p",
                                            "repetition_penalty",
                                            "frequency_penalty",
                                            "stop_ids",
                                            "stop_strings",
                                            "presence_penalty",
                                            "ignore_eos"};
  for (const std::string& column : columns)
    EXPECT_EQ(reader.Shape("trajectories/" + column), std::vector<uint64_t>{70}) << column;
  for (const char* flat : {"logprob", "logprob_raw", "logprob_filtered", "policy_version"})
    EXPECT_EQ(reader.Shape(flat), reader.Shape("tokens")) << flat;
}

TEST_F(TrajectoryFileTest, RefusesWhatIsNotWholeAndWritesNothing) {
  TrajectoryFile file(path_, {});
  file.Append(MakeBatch(0, 4));
  std::vector<Trajectory> batch = MakeBatch(4, 3);
  batch[2].completion.push_back(1);
  EXPECT_THROW(file.Append(batch), CheckFailure);
  batch = MakeBatch(4, 3);
  batch[1].completion = {1, 2};
  batch[1].logprob = batch[1].logprob_raw = {0, 0};
  batch[1].logprob_filtered.clear();
  batch[1].spans = {{0, 1, 3}};
  EXPECT_THROW(file.Append(batch), CheckFailure);
  ExpectFirstRows(path_, 4, 4);
  file.Append(MakeBatch(4, 3));
  ExpectFirstRows(path_, 7, 7);
}

// A writer is killed at arbitrary instants. Each time the file must open plainly and hold, bit for
// bit, every row of which the writer had said over a pipe that it was appended.
TEST_F(TrajectoryFileTest, KilledWriterLosesNothingThatWasAppended) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int kKills = 200;
  constexpr uint64_t kBatch = 5;
  int64_t total_rows = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    std::filesystem::remove(path_);
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipe_ends[0]);
      try {
        TrajectoryFile file(path_, {});
        for (uint64_t batch = 0; batch < 100000; ++batch) {
          file.Append(MakeBatch(batch * kBatch, kBatch));
          const char byte = 1;
          if (::write(pipe_ends[1], &byte, 1) != 1) ::_exit(1);
          if (batch % 16 == 15) file.AppendUpdate(MakeReport(static_cast<int>(batch)));
        }
      } catch (const std::exception&) {
        ::_exit(2);
      }
      ::_exit(3);
    }
    ::close(pipe_ends[1]);
    // Some batches, which differ by orders of magnitude, and then a part of one.
    const uint64_t batches = random() % (kill_number % 10 == 0 ? 300 : 40);
    char byte;
    for (uint64_t i = 0; i < batches; ++i) ASSERT_EQ(::read(pipe_ends[0], &byte, 1), 1);
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(random() % 400000);
    while (std::chrono::steady_clock::now() < until) {
    }
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << WEXITSTATUS(status);
    uint64_t acknowledged = batches;
    while (::read(pipe_ends[0], &byte, 1) == 1) ++acknowledged;
    ::close(pipe_ends[0]);
    if (acknowledged == 0 && !std::filesystem::exists(path_)) continue;  // killed while creating

    const hid_t plain = H5Fopen(path_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    ASSERT_GE(plain, 0);
    H5Fclose(plain);
    ExpectFirstRows(path_, acknowledged * kBatch, (acknowledged + 1) * kBatch);
    ASSERT_FALSE(HasFailure()) << "kill " << kill_number << " after " << acknowledged;
    const TrajectoryReader reader(path_);
    ASSERT_EQ(reader.rows() % kBatch, 0u);
    EXPECT_FALSE(reader.closed());
    const auto updates = reader.ReadUpdates();
    ASSERT_GE(updates.size(), acknowledged == 0 ? 0 : (acknowledged - 1) / 16);
    total_rows += reader.rows();
  }
  EXPECT_GT(total_rows, kKills * static_cast<int64_t>(kBatch));
}

// The writer commits as fast as it can; what a reader then sees is one of its states, whole.
TEST_F(TrajectoryFileTest, IsReadWhileItGrows) {
  constexpr int kBatches = 1500;
  constexpr int64_t kLastRows = 100;
  TrajectoryFile file(path_, {});
  std::atomic<int64_t> appended = 0;
  std::thread writer([&] {
    for (int i = 0; i < kBatches; ++i) {
      file.Append(MakeBatch(static_cast<uint64_t>(i) * 4, 4));
      file.AppendUpdate(MakeReport(i));
      appended = 4 * (i + 1);
    }
  });
  std::string failure;
  for (int64_t before = 0; before < 4 * kBatches && failure.empty() && !HasFailure();) {
    before = appended;
    try {
      const TrajectoryReader reader(path_);
      EXPECT_GE(reader.rows(), before);
      const int64_t begin = std::max<int64_t>(0, reader.rows() - kLastRows);
      std::vector<TrajectoryRow> rows = reader.ReadRows(begin, reader.rows() - begin);
      for (size_t i = 0; i < rows.size(); ++i) {
        const Trajectory expected = MakeTrajectory(begin + i);
        reader.ReadTokens(rows[i]);
        EXPECT_EQ(rows[i].trajectory.prompt_id, expected.prompt_id) << begin + i;
        EXPECT_EQ(rows[i].trajectory.text, expected.text) << begin + i;
        EXPECT_EQ(rows[i].trajectory.message, expected.message) << begin + i;
        EXPECT_EQ(rows[i].trajectory.completion, expected.completion) << begin + i;
      }
      const auto updates = static_cast<int64_t>(reader.ReadUpdates().size());
      EXPECT_GE(updates, reader.rows() / 4 - 1);
      EXPECT_LE(updates, reader.rows() / 4);
    } catch (const std::exception& e) {
      failure = e.what();
    }
  }
  writer.join();
  EXPECT_EQ(failure, "");
}

// A file size limit stands for a full disk: the write fails in the same way, and needs no root.
TEST_F(TrajectoryFileTest, FullDiskNamesThePathAndKeepsWhatWasThere) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    int64_t appended = 0;
    try {
      TrajectoryFile file(path_, {});
      const rlimit limit{3 << 20, 3 << 20};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(100);
      std::string first;
      for (; first.empty() && appended < 100000; appended += 4) {
        try {
          file.Append(MakeBatch(appended, 4));
        } catch (const Error& e) {
          first = e.what();
          break;
        }
      }
      if (first.find(path_.string() + ": cannot be ") != 0) ::_exit(101);
      if (first.find("what it held before stays readable") == std::string::npos) ::_exit(102);
      std::string second;
      try {
        file.Append(MakeBatch(appended, 4));
      } catch (const Error& e) {
        second = e.what();
      }
      if (second != first) ::_exit(103);
    } catch (const std::exception&) {
      ::_exit(104);
    }
    ::_exit(appended > 40 && appended % 4 == 0 && appended / 4 < 64 * 90 ? 0 : 105);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 0);
  ExpectFirstRows(path_, 44, 4 * 64 * 90);
}

TEST_F(TrajectoryFileTest, ReaderSaysWhatIsWrong) {
  const auto message = [](const std::filesystem::path& path) {
    try {
      TrajectoryReader reader(path);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(path_), path_.string() + ": no such file");
  EXPECT_EQ(message(directory_), directory_.string() + ": is a directory, expected an HDF5 file");
  {
    FILE* text = std::fopen(path_.c_str(), "w");
    std::fputs("not an HDF5 file", text);
    std::fclose(text);
  }
  EXPECT_EQ(message(path_).find(path_.string() + ": cannot be opened as an HDF5 file: "), 0u)
      << message(path_);
  Hdf5File::Create(path_, true).Close();
  EXPECT_EQ(message(path_), path_.string() +
                                ": is not a rollcast trajectory file: it has no attribute "
                                "schema_version");
  Hdf5File other = Hdf5File::Create(path_, true);
  other.WriteAttribute("schema_version", int64_t{9});
  other.Close();
  EXPECT_EQ(message(path_), path_.string() + ": has schema_version 9; this build reads 1");
}

// Replaces one element of a column, given as it lies in memory under the column's own type.
void Overwrite(const std::filesystem::path& path, const char* column, hsize_t row,
               const void* value) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t dataset =
      H5Dopen2(file, (std::string("trajectories/") + column).c_str(), H5P_DEFAULT);
  const hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
  const hsize_t one = 1;
  const hid_t memory = H5Screate_simple(1, &one, nullptr);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &row, nullptr, &one, nullptr);
  ASSERT_GE(H5Dwrite(dataset, type, memory, space, H5P_DEFAULT, value), 0);
  H5Sclose(memory);
  H5Sclose(space);
  H5Tclose(type);
  H5Dclose(dataset);
  ASSERT_GE(H5Fclose(file), 0);
}

TEST_F(TrajectoryFileTest, AValueThatNoWriterWritesIsNamed) {
  const char *list = "[\"a\", 1]", *cut = "[\"a\"";
  const int32_t negative = -5, huge = INT32_MAX;
  const int64_t far = int64_t{1} << 62;
  const uint8_t outcome = 200, reason = 5;
  const std::string where = path_.string() + ": trajectories/";
  const struct {
    const char* column;
    const void* value;
    std::string what;
  } kCases[] = {
      {"outcome", &outcome, "outcome[2] is 200, expected less than 6"},
      {"finish_reason", &reason, "finish_reason[2] is 5, expected less than 5"},
      {"prompt_length", &negative, " and prompt_length -5, beyond the "},
      {"completion_length", &huge, " and completion_length 2147483647, beyond the "},
      {"prompt_offset", &far, "prompt_offset[2] is 4611686018427387904 and "},
      {"stop_strings", &list, "stop_strings[2] is [\"a\", 1], expected a JSON list of texts"},
      {"stop_strings", &cut, "stop_strings[2] is [\"a\", expected a JSON list of texts"},
  };
  for (const auto& c : kCases) {
    TrajectoryFile file(path_, {.config = "", .rollcast_version = "", .overwrite = true});
    file.Append(MakeBatch(0, 4));
    file.Close(RunEnd::Completed());
    Overwrite(path_, c.column, 2, c.value);
    const TrajectoryReader reader(path_);
    EXPECT_EQ(reader.ReadRows(0, 2).size(), 2u) << c.column;
    try {
      reader.ReadRows(0, 4);
      ADD_FAILURE() << c.column;
    } catch (const Error& e) {
      const std::string what = e.what();
      EXPECT_EQ(what.find(where), 0u) << what;
      EXPECT_NE(what.find(c.what), std::string::npos) << what;
    }
  }
}

TEST(TrajectoryNames, ParseIsTheInverseOfName) {
  for (int i = 0; i <= static_cast<int>(Outcome::kFailed); ++i)
    EXPECT_EQ(ParseOutcome(Name(static_cast<Outcome>(i))), static_cast<Outcome>(i));
  for (int i = 0; i <= static_cast<int>(FinishReason::kAbort); ++i)
    EXPECT_EQ(ParseFinishReason(Name(static_cast<FinishReason>(i))), static_cast<FinishReason>(i));
  try {
    ParseOutcome("done");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "outcome \"done\": expected completed, aborted, scoring_failed, over_lag, refused "
                 "or failed");
  }
}

}  // namespace
}  // namespace rollcast
