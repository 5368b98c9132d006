// `rollcast bench` as its users run it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "launch/bench_model.h"
#include "launch/model_shapes.h"
#include "launch/toy_model.h"
#include "tests/testing/mpi_job.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::Quoted;

class BenchTest : public ::testing::Test {
 protected:
  BenchTest() { MakeToyModel(folder_ / "model", 1); }
  std::string Bench(const std::string& arguments) const {
    return Quoted(ROLLCAST_BINARY) + " bench " + arguments + " --model " +
           Quoted((folder_ / "model").string()) +
           " --set kernels.device=cpu --set kernels.threads=1 --set engine.page_size=8";
  }
  testing::TemporaryDir temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(BenchTest, DecodeTimesTheModelOfAFolder) {
  testing::MpiJob job(Bench("decode --batch 3 --context 64 --steps 4 --repeats 2"), folder_);
  ASSERT_EQ(job.Wait(std::chrono::seconds(120)), 0) << job.err();
  const auto line = nlohmann::json::parse(job.out());
  EXPECT_EQ(line.at("bench"), "decode");
  EXPECT_EQ(line.at("batch"), 3);
  EXPECT_GT(line.at("ms").get<double>(), 0);
  EXPECT_NEAR(line.at("tokens_per_s").get<double>(), 3e3 / line.at("ms").get<double>(), 1);
  EXPECT_FALSE(line.contains("fraction_of_floor")) << "the floor of a GPU, on a processor";
}

TEST_F(BenchTest, PrefillSaysWhatDecodeSays) {
  testing::MpiJob job(Bench("prefill --batch 2 --context 32 --repeats 2"), folder_);
  ASSERT_EQ(job.Wait(std::chrono::seconds(120)), 0) << job.err();
  const auto line = nlohmann::json::parse(job.out());
  EXPECT_EQ(line.at("model"), (folder_ / "model").string());
  const double ms = line.at("ms");
  EXPECT_NEAR(ms, (line.at("ms_min").get<double>() + line.at("ms_max").get<double>()) / 2, 1e-9);
  EXPECT_NEAR(line.at("tokens_per_s").get<double>(), 64e3 / ms, 1);
  EXPECT_GT(line.at("host_us").get<double>(), 0);
  EXPECT_FALSE(line.contains("graph")) << "a processor captures nothing";
}

TEST_F(BenchTest, ARolloutCountsTheTokensOfItsRequests) {
  nlohmann::json config = nlohmann::json::parse(std::ifstream(folder_ / "model" / "config.json"));
  config["max_position_embeddings"] = 4096;
  std::ofstream(folder_ / "model" / "config.json") << config;
  testing::MpiJob job(Bench("rollout --requests 2 --temperature 0"), folder_);
  ASSERT_EQ(job.Wait(std::chrono::seconds(120)), 0) << job.err();
  const auto line = nlohmann::json::parse(job.out());
  EXPECT_EQ(line.at("bench"), "rollout");
  EXPECT_EQ(line.at("model"), (folder_ / "model").string());
  EXPECT_EQ(line.at("temperature"), 0);
  const double ms = line.at("ms"), outputs = line.at("output_tokens");
  EXPECT_EQ(line.at("ms_max").get<double>(), ms);
  EXPECT_GE(outputs, 200) << "two of 100..1024";
  EXPECT_NEAR(line.at("tokens_per_s").get<double>(), outputs * 1e3 / ms, 1);
  EXPECT_GT(line.at("host_us").get<double>(), 0);
}

TEST_F(BenchTest, AContextThatTheModelHasNotSaysWhatToLower) {
  testing::MpiJob decode(Bench("decode --context 100000"), folder_);
  EXPECT_EQ(decode.Wait(std::chrono::seconds(60)), 1);
  EXPECT_NE(decode.err().find("lower --context or --steps"), std::string::npos) << decode.err();
  testing::MpiJob rollout(Bench("rollout --requests 2"), folder_);
  EXPECT_EQ(rollout.Wait(std::chrono::seconds(60)), 1);
  EXPECT_NE(rollout.err().find("bench rollout: needs a context of "), std::string::npos)
      << rollout.err();
}

TEST_F(BenchTest, SyncUpdatesARankThatDecodes) {
  for (const std::string mode : {"staged", "in_place"}) {
    testing::MpiJob job(
        Quoted(ROLLCAST_MPIRUN) + " -np 3 " +
            Bench("sync --batch 2 --context 16 --updates 2 --set sync.mode=" + mode),
        folder_);
    ASSERT_EQ(job.Wait(std::chrono::seconds(120)), 0) << job.err();
    const auto line = nlohmann::json::parse(job.out());
    EXPECT_EQ(line.at("model"), (folder_ / "model").string());
    EXPECT_EQ(line.at("temperature"), 1);
    EXPECT_EQ(line.at("logprobs"), true);
    EXPECT_EQ(line.at("mode"), mode);
    EXPECT_EQ(line.at("transport"), "mpi");
    EXPECT_EQ(line.at("ranks"), 2);
    EXPECT_GT(line.at("gb_per_s").get<double>(), 0);
    EXPECT_GT(line.at("pause_ms").get<double>(), 0);
    ASSERT_EQ(line.at("load").size(), 2u);
    for (const auto& rank : line.at("load")) {
      EXPECT_GT(rank.at("tokens_per_s_before").get<double>(), 0);
      EXPECT_GT(rank.at("tokens_per_s_after").get<double>(), 0);
      EXPECT_FALSE(rank.contains("memory_gb")) << "of a GPU";
    }
  }
}

TEST(BenchModel, TheMedianOfAnEvenNumberLiesBetween) {
  EXPECT_EQ(Median({3, 1}), 2);
  EXPECT_EQ(Median({9, 1, 4}), 4);
  EXPECT_EQ(Median({8, 1, 4, 2}), 3);
}

TEST(BenchModel, TheFloorOfARolloutAddsUpItsSteps) {
  const ModelConfig model = ShapeByName("qwen2.5-7b");
  const double prefills = PrefillFloor(model, 100, 100, {}) + PrefillFloor(model, 50, 50, {});
  const auto decode = [&](int batch, double context) {
    return DecodeFloor(model, batch, context, {});
  };
  const std::vector<RolloutLengths> requests = {{100, 3}, {50, 2}};
  // The prefill draws the first token of each.
  const double one = decode(1, 101) + decode(1, 102) + decode(1, 51);
  EXPECT_NEAR(RolloutFloor(model, requests, 1, {}), prefills + one, 1e-9);
  const double together = decode(2, 76) + decode(1, 102);
  EXPECT_NEAR(RolloutFloor(model, requests, 2, {}), prefills + together, 1e-9);
}

TEST_F(BenchTest, SyncAloneSaysHowToStartIt) {
  testing::MpiJob job(Bench("sync"), folder_);
  EXPECT_EQ(job.Wait(std::chrono::seconds(60)), 1);
  EXPECT_NE(job.err().find("mpirun -np 2 rollcast bench sync"), std::string::npos) << job.err();
}

}  // namespace
}  // namespace rollcast
