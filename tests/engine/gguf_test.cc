#include "engine/gguf.h"

#include <gtest/gtest.h>

#include "tests/testing/expect_error.h"
#include "tests/testing/gguf_image.h"
#include "tests/testing/temporary_dir.h"

namespace rollcast {
namespace {

using testing::ExpectError;
using testing::GgufImage;

GgufContent Parse(const GgufImage& image) {
  return ParseGguf(std::as_bytes(std::span(image.bytes())), "f.gguf");
}

void ExpectRefused(const GgufImage& image, std::initializer_list<std::string> parts) {
  ExpectError([&] { Parse(image); }, parts);
  ExpectError([&] { Parse(image); }, {"f.gguf"});
}

/// Two tensors: "a" of 3 floats at 0, "b" of 2 x 32 Q8_0 at 32.
GgufImage Valid() {
  GgufImage image;
  image.Header(2, 3).U32Value("x.n", 7).StringValue("x.s", "text").F32Value("x.f", 0.5f);
  image.Tensor("b", {32, 2}, 8, 32).Tensor("a", {3}, 0, 0).Align();
  image.Put(1.0f).Put(2.0f).Put(3.0f).Align().Raw(std::string(68, '\1'));
  return image;
}

TEST(GgufTest, ReadsTensorsAndMetadata) {
  const testing::TemporaryDir dir;
  WriteTextFile(dir.path() / "f.gguf", Valid().bytes());
  const GgufFile file(dir.path() / "f.gguf");
  EXPECT_EQ(file.Int("x.n"), 7);
  EXPECT_EQ(*file.String("x.s"), "text");
  EXPECT_EQ(file.Number("x.f"), 0.5);
  EXPECT_EQ(file.Int("absent"), std::nullopt);
  EXPECT_EQ(file.String("absent"), nullptr);
  ExpectError([&] { (void)file.Int("x.s"); }, {"f.gguf", "x.s", "an integer"});
  ASSERT_EQ(file.content().tensors.size(), 2u);
  EXPECT_EQ(file.content().tensors[0].name, "a");
  const GgufTensor* b = file.Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (Shape{2, 32}));  // the contiguous extent last
  EXPECT_EQ(b->bytes.size(), 68u);
  std::vector<float> a(3);
  DequantizeGguf(*file.Find("a"), a);
  EXPECT_EQ(a, (std::vector<float>{1, 2, 3}));
}

TEST(GgufTest, ReadsEveryKindOfValue) {
  GgufImage image;
  image.Header(0, 9, 2);  // version 2 has the same layout
  image.Text("u8").Put<uint32_t>(0).Put<uint8_t>(200);
  image.Text("i8").Put<uint32_t>(1).Put<int8_t>(-3);
  image.Text("i16").Put<uint32_t>(3).Put<int16_t>(-300);
  image.Text("i64").Put<uint32_t>(11).Put<int64_t>(-5000000000);
  image.Text("f64").Put<uint32_t>(12).Put<double>(0.1);
  image.BoolValue("bool", 1);
  image.StringsValue("strings", {"a", ""});
  image.I32sValue("ints", {1, -1});
  image.Text("floats").Put<uint32_t>(9).Put<uint32_t>(6).Put<uint64_t>(1).Put(2.5f);
  const auto metadata = Parse(image).metadata;
  EXPECT_EQ(std::get<int64_t>(metadata.at("u8")), 200);
  EXPECT_EQ(std::get<int64_t>(metadata.at("i8")), -3);
  EXPECT_EQ(std::get<int64_t>(metadata.at("i16")), -300);
  EXPECT_EQ(std::get<int64_t>(metadata.at("i64")), -5000000000);
  EXPECT_EQ(std::get<double>(metadata.at("f64")), 0.1);
  EXPECT_TRUE(std::get<bool>(metadata.at("bool")));
  EXPECT_EQ(std::get<std::vector<std::string>>(metadata.at("strings")),
            (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(std::get<std::vector<int64_t>>(metadata.at("ints")), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(std::get<std::vector<double>>(metadata.at("floats")), (std::vector<double>{2.5}));
}

TEST(GgufTest, Dequantizes) {
  // Half 0x3800 = 0.5, 0xbc00 = -1.
  std::string nibbles;
  for (int i = 0; i < 16; ++i) nibbles += static_cast<char>(i | (15 - i) << 4);
  std::string signed_bytes;
  for (int i = 0; i < 32; ++i) signed_bytes += static_cast<char>(i - 16);
  GgufImage image;
  image.Header(5, 0);
  image.Tensor("q40", {32}, 2, 0).Tensor("q41", {32}, 3, 32).Tensor("q80", {32}, 8, 64);
  image.Tensor("f16", {2}, 1, 128).Tensor("bf16", {2}, 30, 160).Align();
  image.Put<uint16_t>(0x3800).Raw(nibbles).Align();
  image.Put<uint16_t>(0x3800).Put<uint16_t>(0xbc00).Raw(nibbles).Align();
  image.Put<uint16_t>(0x3800).Raw(signed_bytes).Align();
  image.Put<uint16_t>(0x3c00).Put<uint16_t>(0xbc00).Align();
  image.Put<uint16_t>(0x3f80).Put<uint16_t>(0xbf00);
  const GgufContent content = Parse(image);
  std::map<std::string, std::vector<float>> values;
  for (const GgufTensor& tensor : content.tensors) {
    values[tensor.name].resize(static_cast<size_t>(tensor.shape.NumElements()));
    DequantizeGguf(tensor, values[tensor.name]);
  }
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values["q40"][i], 0.5f * static_cast<float>(i - 8));
    EXPECT_EQ(values["q40"][i + 16], 0.5f * static_cast<float>(15 - i - 8));
    EXPECT_EQ(values["q41"][i], 0.5f * static_cast<float>(i) - 1);
    EXPECT_EQ(values["q41"][i + 16], 0.5f * static_cast<float>(15 - i) - 1);
    EXPECT_EQ(values["q80"][i], 0.5f * static_cast<float>(i - 16));
  }
  EXPECT_EQ(values["f16"], (std::vector<float>{1, -1}));
  EXPECT_EQ(values["bf16"], (std::vector<float>{1, -0.5f}));
}

TEST(GgufTest, EveryTruncationIsRefused) {
  const std::string image = Valid().bytes();
  for (size_t size = 0; size < image.size(); ++size)
    EXPECT_THROW(Parse(GgufImage().Raw(image.substr(0, size))), Error) << size;
}

TEST(GgufTest, RefusesHeadersThatLie) {
  ExpectRefused(GgufImage().Raw("GGML").Put<uint32_t>(3), {"\"GGUF\""});
  ExpectRefused(GgufImage().Header(0, 0, 1), {"version 1"});
  ExpectRefused(GgufImage().Header(1ull << 60, 0), {"tensors", "more than fit"});
  ExpectRefused(GgufImage().Header(0, 1ull << 60), {"metadata values", "more than fit"});
  ExpectRefused(GgufImage().Header(0, 1).Put<uint64_t>(~0ull).Raw(std::string(16, ' ')),
                {"truncated"});
  ExpectRefused(GgufImage().Header(0, 2).U32Value("k", 1).U32Value("k", 1),
                {"key \"k\" is there twice"});
  ExpectRefused(GgufImage().Header(0, 1).Text("k").Put<uint32_t>(99).Put<uint64_t>(0),
                {"key \"k\"", "value type 99"});
  ExpectRefused(GgufImage().Header(0, 1).BoolValue("k", 2), {"key \"k\"", "bool", "2"});
  ExpectRefused(
      GgufImage().Header(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(9).Put<uint64_t>(0),
      {"key \"k\"", "arrays of value type 9"});
  ExpectRefused(GgufImage().Header(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(4).Put<uint64_t>(
                    1ull << 40),
                {"numbers", "more than fit"});
  ExpectRefused(GgufImage().Header(0, 1).U32Value("general.alignment", 24),
                {"general.alignment", "power of two"});
}

TEST(GgufTest, RefusesTensorsThatLie) {
  const auto one = [](auto&&... tensor) {
    GgufImage image;
    image.Header(1, 0).Tensor(tensor...).Align().Raw(std::string(64, '\0'));
    return image;
  };
  using Extents = std::vector<uint64_t>;
  ExpectRefused(one("a", Extents{16, 1, 1, 1, 1}, 0, 0), {"\"a\"", "5 dimensions"});
  ExpectRefused(one("a", Extents{}, 0, 0), {"\"a\"", "0 dimensions"});
  ExpectRefused(one("a", Extents{16}, 12, 0), {"\"a\"", "storage type 12"});
  ExpectRefused(one("a", Extents{33}, 8, 0), {"\"a\"", "rows of 33"});
  ExpectRefused(one("a", Extents{1ull << 33, 1ull << 33}, 0, 0), {"\"a\"", "too large"});
  ExpectRefused(one("a", Extents{~0ull}, 0, 0), {"\"a\"", "too large"});
  // No elements, and a product that is beyond 64 bits before the 0 is reached.
  ExpectRefused(one("a", Extents{0, 1ull << 40, 1ull << 40}, 0, 0), {"\"a\"", "too large"});
  ExpectRefused(one("a", Extents{17}, 0, 0), {"\"a\"", "truncated"});
  ExpectRefused(one("a", Extents{8}, 0, 32), {"\"a\"", "begins at byte 32", "expected 0"});
  ExpectRefused(one("a", Extents{4}, 0, 0), {"last 32 bytes belong to no tensor"});
  const auto two = [](const std::string& second, uint64_t offset) {
    GgufImage image;
    image.Header(2, 0).Tensor("a", {4}, 0, 0).Tensor(second, {4}, 0, offset).Align();
    return image.Raw(std::string(64, '\0'));
  };
  EXPECT_EQ(Parse(two("b", 32)).tensors.size(), 2u);
  ExpectRefused(two("a", 32), {"tensor \"a\" is there twice"});
  ExpectRefused(two("b", 16), {"\"b\"", "begins at byte 16"});
  ExpectRefused(two("b", 0), {"\"b\"", "overlap"});
  ExpectRefused(two("b", ~0ull), {"\"b\"", "begins at byte"});
}

}  // namespace
}  // namespace rollcast
