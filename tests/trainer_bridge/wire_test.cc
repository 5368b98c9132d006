#include "trainer_bridge/wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "trainer_bridge/messages.h"

namespace rollcast {
namespace {

struct Everything {
  static constexpr MessageType kType = MessageType::kHeartbeat;
  uint8_t small = 0;
  int32_t negative = 0;
  uint64_t large = 0;
  double real = 0;
  bool flag = false;
  DType dtype = DType::kF32;
  std::string text;
  std::vector<float> floats;
  std::vector<std::string> texts;
  std::optional<int64_t> present, absent;
  Shape shape;
  Trajectory trajectory;
  ManifestEntry entry;
  SyncReport report;
  static void Fields(auto& self, auto&& visit) {
    visit(self.small, self.negative, self.large, self.real, self.flag, self.dtype, self.text,
          self.floats, self.texts, self.present, self.absent, self.shape, self.trajectory,
          self.entry, self.report);
  }
};

Everything MakeEverything() {
  Everything e;
  e.small = 200;
  e.negative = -5;
  e.large = std::numeric_limits<uint64_t>::max();
  e.real = -0.125;
  e.flag = true;
  e.dtype = DType::kBF16;
  e.text = std::string("a\0b", 3);
  e.floats = {1.5f, -2.25f};
  e.texts = {"", "x", "yz"};
  e.present = -7;
  e.shape = {3, 0, 5};
  Trajectory& t = e.trajectory;
  t.prompt_id = "p1";
  t.group_id = 77;
  t.sample_index = 3;
  t.group_size = 8;
  t.attempt = 1;
  t.rank = 2;
  t.sampling.max_tokens = 9;
  t.sampling.temperature = 0.5f;
  t.sampling.stop_ids = {1, 2};
  t.sampling.stop_strings = {"\n\n"};
  t.sampling.seed = 1234567890123u;
  t.prompt = {5, 6, 7};
  t.completion = {8, 9};
  t.logprob = {-0.5f, -0.25f};
  t.logprob_raw = {-1.5f, -1.25f};
  t.spans = {{0, 1, 4}, {1, 2, 5}};
  t.hidden = {0.1f, 0.2f};
  t.text = "ok";
  t.reward = 0.75;
  t.outcome = Outcome::kOverLag;
  t.finish_reason = FinishReason::kStopString;
  t.message = "late";
  t.live_version_at_return = 6;
  t.mixed_kv = true;
  e.entry = {"w", DType::kF16, {4, 2}, 256, 16};
  e.report.version = 3;
  e.report.error = "rank 1: no";
  e.report.pause_s = 0.5;
  e.report.sequences_aborted = 4;
  return e;
}

TEST(Wire, EveryKindOfFieldComesBackAsItWas) {
  const Everything e = MakeEverything();
  const std::vector<std::byte> bytes = Encode(e);
  EXPECT_EQ(TypeOf(bytes), MessageType::kHeartbeat);
  const auto back = Decode<Everything>(bytes);
  EXPECT_EQ(back.small, 200);
  EXPECT_EQ(back.negative, -5);
  EXPECT_EQ(back.large, e.large);
  EXPECT_EQ(back.real, -0.125);
  EXPECT_TRUE(back.flag);
  EXPECT_EQ(back.dtype, DType::kBF16);
  EXPECT_EQ(back.text, e.text);
  EXPECT_EQ(back.floats, e.floats);
  EXPECT_EQ(back.texts, e.texts);
  EXPECT_EQ(back.present, -7);
  EXPECT_EQ(back.absent, std::nullopt);
  EXPECT_EQ(back.shape, (Shape{3, 0, 5}));
  EXPECT_EQ(back.entry, e.entry);
  EXPECT_EQ(back.trajectory.sampling, e.trajectory.sampling);
  EXPECT_EQ(back.trajectory.spans, e.trajectory.spans);
  EXPECT_EQ(back.trajectory.completion, e.trajectory.completion);
  EXPECT_EQ(back.trajectory.outcome, Outcome::kOverLag);
  EXPECT_EQ(back.trajectory.finish_reason, FinishReason::kStopString);
  EXPECT_EQ(back.trajectory.live_version_at_return, 6);
  EXPECT_TRUE(back.trajectory.mixed_kv);
  EXPECT_EQ(back.report.error, "rank 1: no");
  // Every field, those not listed above included.
  EXPECT_EQ(Encode(back), bytes);
}

TEST(Wire, TheLayoutIsFixed) {
  Heartbeat beat;
  beat.sequence = 0x0102;
  beat.reply_wanted = true;
  beat.version = -1;
  const std::vector<std::byte> bytes = Encode(beat);
  ASSERT_EQ(bytes.size(), 2u + 8 + 1 + 8 + 1);
  EXPECT_EQ(bytes[0], std::byte{3});  // kHeartbeat, little-endian
  EXPECT_EQ(bytes[1], std::byte{0});
  EXPECT_EQ(bytes[2], std::byte{2});
  EXPECT_EQ(bytes[3], std::byte{1});
  EXPECT_EQ(bytes[10], std::byte{1});
  EXPECT_EQ(bytes[11], std::byte{0xff});
}

TEST(Wire, EveryTruncationIsAnError) {
  const std::vector<std::byte> bytes = Encode(MakeEverything());
  for (size_t size = 2; size < bytes.size(); ++size)
    EXPECT_THROW(Decode<Everything>(std::span(bytes).first(size)), Error) << size;
  for (size_t size : {0, 1}) EXPECT_THROW(TypeOf(std::span(bytes).first(size)), Error) << size;
}

TEST(Wire, LeftOverBytesAreAnError) {
  std::vector<std::byte> bytes = Encode(Heartbeat{});
  bytes.push_back(std::byte{0});
  EXPECT_THROW(Decode<Heartbeat>(bytes), Error);
}

TEST(Wire, RandomDamageThrowsOrDecodesAndNeverMore) {
  const std::vector<std::byte> good = Encode(MakeEverything());
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::byte> bytes = good;
    for (int hits = 1 + static_cast<int>(random() % 4); hits > 0; --hits)
      bytes[2 + random() % (bytes.size() - 2)] = static_cast<std::byte>(random());
    try {
      Decode<Everything>(bytes);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Wire, AHugeLengthIsRefusedBeforeAnyMemoryIsTaken) {
  Writer writer;
  writer.Put(std::numeric_limits<uint64_t>::max() / 2);
  const std::vector<std::byte> bytes = std::move(writer).Take();
  std::vector<double> doubles;
  std::vector<std::string> texts;
  std::string text;
  EXPECT_THROW(Reader(bytes).Get(doubles), Error);
  EXPECT_THROW(Reader(bytes).Get(texts), Error);
  EXPECT_THROW(Reader(bytes).Get(text), Error);
}

TEST(Wire, EnumsAndBoolsOutOfRangeAreErrors) {
  const std::vector<std::byte> bytes = {std::byte{7}};
  DType dtype;
  bool flag;
  UpdateMode mode;
  EXPECT_THROW(Reader(bytes).Get(dtype), Error);
  EXPECT_THROW(Reader(bytes).Get(flag), Error);
  EXPECT_THROW(Reader(bytes).Get(mode), Error);
  Shape shape;
  EXPECT_THROW(Reader(bytes).Get(shape), Error);
}

TEST(Wire, DecodingAsAnotherTypeIsAFaultOfTheProgram) {
  EXPECT_THROW(Decode<UpdateVote>(Encode(Heartbeat{})), CheckFailure);
}

}  // namespace
}  // namespace rollcast
