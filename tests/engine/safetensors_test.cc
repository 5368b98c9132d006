#include "engine/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/testing/expect_error.h"
#include "tests/testing/golden.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::ExpectError;

/// A file image: header length, `header`, `data_bytes` bytes that count up.
std::string Image(const std::string& header, size_t data_bytes) {
  std::string image;
  for (int i = 0; i < 8; ++i) image += static_cast<char>(header.size() >> (8 * i));
  image += header;
  for (size_t i = 0; i < data_bytes; ++i) image += static_cast<char>(i);
  return image;
}

std::vector<HostTensor> Parse(const std::string& image) {
  return ParseSafetensors(std::as_bytes(std::span(image)), "f.safetensors");
}

/// Parsing `header` with `data_bytes` of data must fail with a message that holds `parts`.
void ExpectRefused(const std::string& header, size_t data_bytes,
                   std::initializer_list<std::string> parts) {
  SCOPED_TRACE(header.substr(0, 200));
  ExpectError([&] { Parse(Image(header, data_bytes)); }, parts);
  ExpectError([&] { Parse(Image(header, data_bytes)); }, {"f.safetensors"});
}

TEST(SafetensorsTest, ReadsTensorsInOrderOfOffset) {
  const std::string image =
      Image(R"({"__metadata__":{"format":"pt"},)"
            R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[6,14]},)"
            R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
            R"("none":{"dtype":"I64","shape":[0,4],"data_offsets":[6,6]},)"
            R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[14,15]}}   )",
            15);
  const std::vector<HostTensor> tensors = Parse(image);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(tensors[0].shape, Shape{3});
  EXPECT_EQ(tensors[0].bytes.size(), 6u);
  EXPECT_EQ(tensors[1].name, "none");
  EXPECT_EQ(tensors[2].name, "b");
  EXPECT_EQ(tensors[2].shape, (Shape{1, 2}));
  EXPECT_EQ(tensors[2].bytes[0], std::byte{6});
  EXPECT_EQ(tensors[3].name, "scalar");
  EXPECT_EQ(tensors[3].shape.rank(), 0);
  EXPECT_EQ(tensors[3].bytes[0], std::byte{14});
}

TEST(SafetensorsTest, RefusesLengthsThatLie) {
  ExpectError([] { Parse(""); }, {"f.safetensors", "0 bytes"});
  ExpectError([] { Parse("1234567"); }, {"7 bytes"});
  std::string image = Image("{}", 0);
  image[0] = 3;
  ExpectError([&] { Parse(image); }, {"header length 3", "10 bytes"});
  image[7] = '\x7f';
  ExpectError([&] { Parse(image); }, {"above the limit"});
  ExpectRefused("", 0, {"does not begin with '{'"});
}

TEST(SafetensorsTest, RefusesHeadersThatAreNotOneObject) {
  ExpectRefused("[]", 0, {"does not begin with '{'"});
  ExpectRefused(" {}", 0, {"does not begin with '{'"});
  ExpectRefused(R"({"a":)", 0, {"not valid JSON"});
  ExpectRefused("{} {}", 0, {"not valid JSON"});
  ExpectRefused("{\"\xff\":1}", 0, {"not valid JSON"});
  ExpectRefused("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", 0,
                {"nested too deeply"});
  ExpectRefused(R"({"__metadata__":[]})", 0, {"__metadata__ is not an object"});
  ExpectRefused(R"({"__metadata__":{"a":1}})", 0, {"__metadata__ \"a\" is not a string"});
}

TEST(SafetensorsTest, RefusesDuplicateNames) {
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                2, {"names \"a\" twice"});
  ExpectRefused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
                {"names \"dtype\" twice"});
}

TEST(SafetensorsTest, RefusesMalformedEntries) {
  ExpectRefused(R"({"a":1})", 0, {"tensor \"a\"", "not an object"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1]}})", 1, {"\"data_offsets\" is missing"});
  ExpectRefused(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, {"\"dtype\" is missing"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1,
                {"unknown header key \"x\""});
  ExpectRefused(R"({"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", 1,
                {"\"F8_E4M3\" is not one of"});
  ExpectRefused(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1, {"dtype 7"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1,
                {"shape is not a list"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
                {"shape", "found -1"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1,
                {"shape", "found 1.0"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[0,1]}})", 1,
                {"5 dimensions"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, {"not a pair"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":["0",1]}})", 1, {"found \"0\""});
}

TEST(SafetensorsTest, RefusesRangesThatLie) {
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                {"[2] of float32 takes 8 bytes, data_offsets give 4"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,1]}})", 2, {"run backwards"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", 4,
                {"end at 5", "4 bytes of data", "truncated"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                3, {"\"b\" overlaps"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                3, {"1 bytes that belong to no tensor", "\"b\""});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3,
                {"last 2 bytes belong to no tensor"});
  // 2^32 * 2^32 elements wrap to 0 bytes in 64 bits.
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                {"too large"});
  ExpectRefused(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
                {"too large"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0,
                {"\"a\"", "shape [4294967296, 4294967296, 0] is too large"});
  ExpectRefused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,99999999999999999999]}})", 1,
                {"expected an unsigned integer"});
}

TEST(SafetensorsTest, EveryTruncationOfAValidFileIsRefused) {
  const std::string image = Image(R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}})", 6);
  EXPECT_EQ(Parse(image).size(), 1u);
  for (size_t size = 0; size < image.size(); ++size)
    EXPECT_THROW(Parse(image.substr(0, size)), Error) << size;
}

TEST(SafetensorsTest, WriterRoundTrips) {
  const testing::TemporaryDir dir;
  const float f[] = {1.5f, -2.0f};
  const uint16_t h[] = {1, 2, 3};
  const std::vector<HostTensor> tensors{
      {"x\"y", DType::kF32, Shape{2, 1}, std::as_bytes(std::span(f))},
      {"h", DType::kF16, Shape{3}, std::as_bytes(std::span(h))}};
  const std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
  WriteSafetensors(dir.path() / "model.safetensors", tensors, metadata);
  const Checkpoint checkpoint = Checkpoint::Open(dir.path());
  ASSERT_EQ(checkpoint.tensors().size(), 2u);
  const Checkpoint::Tensor* x = checkpoint.Find("x\"y");
  ASSERT_NE(x, nullptr);
  EXPECT_EQ(x->shape, (Shape{2, 1}));
  EXPECT_EQ(x->file, (dir.path() / "model.safetensors").string());
  EXPECT_EQ(std::memcmp(x->bytes.data(), f, sizeof(f)), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x->bytes.data()) % 8, 0u);
  EXPECT_EQ(std::memcmp(checkpoint.Find("h")->bytes.data(), h, sizeof(h)), 0);
  EXPECT_EQ(checkpoint.Find("absent"), nullptr);
  // Nothing but the file is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(SafetensorsTest, UnwritableOutputIsAnErrorAndLeavesNothing) {
  ExpectError([] { WriteSafetensors("/nonexistent/dir/model.safetensors", {}); },
              {"/nonexistent/dir/model.safetensors", "cannot write"});
  std::vector<std::byte> large(1 << 20);
  // The name is taken by a folder, which shows only at the rename.
  const testing::TemporaryDir dir;
  std::filesystem::create_directory(dir.path() / "taken");
  const HostTensor tensor{"a", DType::kU8, Shape{1 << 20}, large};
  ExpectError([&] { WriteSafetensors(dir.path() / "taken", {&tensor, 1}); }, {"taken"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

class CheckpointTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    WriteTextFile(dir_.path() / name, text);
  }
  static std::string OneTensor(const std::string& name) {
    return Image("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1);
  }
  void ExpectOpenFails(std::initializer_list<std::string> parts) {
    ExpectError([&] { Checkpoint::Open(dir_.path()); }, parts);
  }

  testing::TemporaryDir dir_;
};

TEST_F(CheckpointTest, ReadsShards) {
  const Checkpoint checkpoint = Checkpoint::Open(testing::GoldenDir("llama-untied"));
  EXPECT_EQ(checkpoint.tensors().size(), 30u);
  EXPECT_NE(checkpoint.Find("lm_head.weight")->file,
            checkpoint.Find("model.embed_tokens.weight")->file);
}

TEST_F(CheckpointTest, NamesWhatIsMissing) {
  ExpectOpenFails({dir_.path().string(), "neither model.safetensors nor"});
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  ExpectOpenFails({"1.safetensors", "cannot open"});
  Write("1.safetensors", OneTensor("b"));
  ExpectOpenFails({"index.json", "\"a\" should be in 1.safetensors"});
  Write("model.safetensors.index.json", R"({"weight_map":{}})");
  EXPECT_TRUE(Checkpoint::Open(dir_.path()).tensors().empty());
  // As in a cache whose files have been cleared away.
  std::filesystem::create_symlink("gone", dir_.path() / "model.safetensors");
  ExpectOpenFails({"model.safetensors: cannot open: No such file or directory"});
}

TEST_F(CheckpointTest, RefusesAnIndexThatDisagreesWithItsShards) {
  Write("1.safetensors", OneTensor("a"));
  Write("2.safetensors", OneTensor("a"));
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  ExpectOpenFails({"2.safetensors", "\"a\" is also in", "1.safetensors"});
  Write("2.safetensors", OneTensor("c"));
  Write("model.safetensors.index.json",
        R"({"weight_map":{"c":"1.safetensors","a":"2.safetensors"}})");
  ExpectOpenFails({"\"a\" should be in 2.safetensors"});
  Write("1.safetensors", Image(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("extra":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                               2));
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"1.safetensors"}})");
  ExpectOpenFails({"\"extra\" is not in the index"});
}

TEST_F(CheckpointTest, RefusesAMalformedIndex) {
  for (const auto& [text, part] : {std::pair{"{", "not valid JSON"},
                                   {"[]", "weight_map"},
                                   {R"({"weight_map":[]})", "weight_map"},
                                   {R"({"weight_map":{"a":1}})", "\"a\" is not a file name"},
                                   {R"({"weight_map":{"a":"../x"}})", "in the same folder"},
                                   {R"({"weight_map":{"a":"/etc/passwd"}})", "in the same folder"},
                                   {R"({"weight_map":{"a":".."}})", "in the same folder"},
                                   {R"({"weight_map":{"a":""}})", "in the same folder"},
                                   {R"({"weight_map":{"a":"x","a":"y"}})", "names \"a\" twice"}}) {
    Write("model.safetensors.index.json", text);
    ExpectOpenFails({"model.safetensors.index.json", part});
  }
}

}  // namespace
}  // namespace rollcast
