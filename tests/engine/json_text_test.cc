#include "engine/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/testing/expect_error.h"

namespace rollcast {
namespace {

using nlohmann::json;
using testing::ExpectError;

std::string Fault(const std::string& text, size_t first_line = 1) {
  try {
    ParseJson<json>(text, "f.json", first_line);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(JsonText, ReadsWhatJsonIs) {
  const std::string text =
      R"({"a": [1, -2, 3.5, true, null, "x\u00e9\n"], "b": {"c": {}, "d": []}, "a ": 1e2})";
  EXPECT_EQ(ParseJson<json>(text, "f"), json::parse(text));
  for (const char* scalar : {"0", "-0.0", "18446744073709551615", "\"\"", "true", "null", "[[[]]]"})
    EXPECT_EQ(ParseJson<json>(scalar, "f").dump(), json::parse(scalar).dump()) << scalar;
  // The same name in different objects, and a byte order mark, as editors leave one.
  EXPECT_EQ(ParseJson<json>("\xEF\xBB\xBF[{\"a\": 1}, {\"a\": {\"a\": 2}}]", "f"),
            json::parse(R"([{"a": 1}, {"a": {"a": 2}}])"));
}

TEST(JsonText, SaysWhereAndWhatWithoutTheParsersOwnWords) {
  EXPECT_EQ(Fault("{\"a\": 1,\n  \"b\": tru}", 7), "f.json:8:11: not valid JSON: invalid literal");
  EXPECT_EQ(Fault("{\"a\" 1}"),
            "f.json:1:6: not valid JSON: unexpected number literal; expected ':'");
  EXPECT_EQ(Fault("[1, 2"), "f.json:1:5: not valid JSON: the text ends before the value does");
  EXPECT_EQ(Fault("\"abc"), "f.json:1:4: not valid JSON: the text ends before the value does");
  EXPECT_EQ(Fault(""), "f.json:1:1: not valid JSON: the text ends before the value does");
  // Columns count characters: two of two bytes stand before the byte.
  EXPECT_EQ(Fault("\"\xc3\xa9\xc3\xa9\xff\""),
            "f.json:1:4: not valid JSON: a byte that is no valid UTF-8");
  for (const char* bad : {"{} {}", "[1,]", "nan", "\"\t\"", "01", "'a'", "{a: 1}", "1e999"}) {
    const std::string fault = Fault(bad);
    EXPECT_EQ(fault.find("f.json:1:"), 0u) << bad;
    EXPECT_EQ(fault.find("json.exception"), std::string::npos) << fault;
    EXPECT_EQ(fault.find("last read"), std::string::npos) << fault;
  }
}

TEST(JsonText, AZeroByteDoesNotEndTheText) {
  using namespace std::string_literals;
  EXPECT_EQ(Fault("{\"a\": 1}\n\0\0"s), "f.json:2:1: not valid JSON: a byte of zero");
  EXPECT_EQ(Fault("\"a\0b\""s), "f.json:1:3: not valid JSON: a byte of zero");
}

TEST(JsonText, LargeIntegersAreFloatsOrRefused) {
  const auto refuse = [](const std::string& text) {
    return ParseJson<json>(text, "f.json", 1, LargeIntegers::kRefused);
  };
  EXPECT_EQ(ParseJson<json>("18446744073709551616", "f"), json(18446744073709551616.0));
  for (const char* held :
       {"18446744073709551615", "-9223372036854775808", "18446744073709551616.0", "1e30"})
    EXPECT_EQ(refuse(held), json::parse(held)) << held;
  ExpectError(
      [&] { refuse(R"({"a": [18446744073709551616, 1]})"); },
      {"f.json:1:8: the integer 18446744073709551616 is beyond 64 bits; write it as a text"});
  ExpectError([&] { refuse("{\"a\":\n-9223372036854775809}"); },
              {"f.json:2:1: the integer -9223372036854775809 is beyond 64 bits"});
  ExpectError([&] { refuse("99999999999999999999"); }, {"f.json:1:1: the integer 999"});
}

TEST(JsonText, AKeyGivenTwiceIsAnError) {
  EXPECT_EQ(Fault("{\"a\": 1, \"b\": 2,\n \"a\": 1}"), "f.json:2:4: an object names \"a\" twice");
  EXPECT_EQ(Fault(R"({"x": [{"k": {"k": 1, "k": 2}}]})"),
            "f.json:1:25: an object names \"k\" twice");
  EXPECT_EQ(Fault(R"({"a": 1, "\u0061": 2})"), "f.json:1:17: an object names \"a\" twice");
}

TEST(JsonText, DepthIsBounded) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(Fault(nested(kMaxJsonDepth)), "");
  EXPECT_EQ(Fault(nested(kMaxJsonDepth + 1)),
            "f.json:1:257: nested too deeply, more than 256 levels");
  EXPECT_NE(Fault(std::string(1000000, '[')).find("nested too deeply"), std::string::npos);
}

TEST(JsonText, KindsHaveArticles) {
  EXPECT_STREQ(JsonKind(json::array()), "an array");
  EXPECT_STREQ(JsonKind(json::object()), "an object");
  EXPECT_STREQ(JsonKind(json("x")), "a string");
  EXPECT_STREQ(JsonKind(json(1.5)), "a number");
  EXPECT_STREQ(JsonKind(json(true)), "true or false");
  EXPECT_STREQ(JsonKind(json()), "null");
}

}  // namespace
}  // namespace rollcast
