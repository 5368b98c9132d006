#include "rollout/sampling_fields.h"

#include <gtest/gtest.h>

#include "kernels/check.h"

namespace rollcast {
namespace {

SamplingParams Base() {
  SamplingParams base;
  base.max_tokens = 50;
  base.temperature = 0.5f;
  base.stop_strings = {"END"};
  base.seed = 9;
  return base;
}

std::string Fault(const std::string& json, int32_t vocab_size = 100) {
  SamplingParams params = Base();
  try {
    OverrideSampling(json, vocab_size, params);
  } catch (const Error& error) {
    EXPECT_EQ(params, Base()) << "a refused override changes nothing";
    return error.what();
  }
  return "";
}

TEST(OverrideSampling, EveryKeyIsTakenAndTheOthersStay) {
  SamplingParams params = Base();
  OverrideSampling(R"({"max_tokens": 7, "min_tokens": 2, "temperature": 0, "top_p": 0.9, "top_k": 5,
      "min_p": 0.1, "repetition_penalty": 1.1, "frequency_penalty": -1, "presence_penalty": 0.5,
      "stop_ids": [3, 99], "stop_strings": ["a", "é"], "ignore_eos": true, "seed": 9007199254740992})",
                   100, params);
  SamplingParams expected;
  expected.max_tokens = 7;
  expected.min_tokens = 2;
  expected.temperature = 0;
  expected.top_p = 0.9f;
  expected.top_k = 5;
  expected.min_p = 0.1f;
  expected.repetition_penalty = 1.1f;
  expected.frequency_penalty = -1;
  expected.presence_penalty = 0.5f;
  expected.stop_ids = {3, 99};
  expected.stop_strings = {"a", "é"};
  expected.ignore_eos = true;
  expected.seed = uint64_t{1} << 53;
  EXPECT_EQ(params, expected);

  params = Base();
  OverrideSampling(R"({"top_k": 1, "stop_strings": []})", 100, params);
  expected = Base();
  expected.top_k = 1;
  expected.stop_strings.clear();
  EXPECT_EQ(params, expected);
  params = Base();
  OverrideSampling("{}", 100, params);
  EXPECT_EQ(params, Base());
}

TEST(OverrideSampling, ErrorsAreThoseOfTheTable) {
  EXPECT_EQ(Fault(R"({"temprature": 1})"),
            "unknown key \"temprature\" in \"sampling\"; did you mean \"temperature\"?");
  EXPECT_NE(Fault(R"({"zzz": 1})").find("; there are max_tokens, min_tokens, temperature"),
            std::string::npos);
  EXPECT_EQ(Fault(R"({"temperature": -1})"),
            "sampling.temperature: expected a number from 0 to 3.4028235e+38, got -1");
  EXPECT_EQ(Fault(R"({"top_p": "high"})"),
            "sampling.top_p: expected a number above 0 and at most 1, got \"high\"");
  EXPECT_EQ(Fault(R"({"max_tokens": 1.5})"),
            "sampling.max_tokens: expected an integer from 1 to 2147483647, got 1.5");
  EXPECT_EQ(Fault(R"({"max_tokens": 99999999999})"),
            "sampling.max_tokens: expected an integer from 1 to 2147483647, got 99999999999");
  EXPECT_EQ(Fault(R"({"ignore_eos": null})"),
            "sampling.ignore_eos: expected true or false, got null");
  EXPECT_EQ(Fault(R"({"stop_strings": "x"})"),
            "sampling.stop_strings: expected an array of strings, got \"x\"");
  EXPECT_EQ(Fault(R"({"stop_ids": [1, "x"]})"),
            "sampling.stop_ids: expected an array of integers from 0 to 2147483647, got [1,\"x\"]");
  EXPECT_EQ(Fault(R"({"seed": 18446744073709551615})"),
            "sampling.seed: expected an integer from 0 to 9007199254740992, got "
            "18446744073709551615");
  EXPECT_EQ(Fault(R"({"seed": 9007199254740993})"),
            "sampling.seed: expected an integer from 0 to 9007199254740992, got 9007199254740993");
  EXPECT_EQ(Fault("[1]"), "\"sampling\" is an array; it must be an object");
}

TEST(OverrideSampling, WhatNoSingleKeyCanTell) {
  EXPECT_EQ(Fault(R"({"min_tokens": 51})"),
            "sampling.min_tokens is 51; it must be between 0 and max_tokens (50)");
  EXPECT_EQ(Fault(R"({"stop_ids": [5, 100]})"),
            "sampling.stop_ids has 100; an id must be in [0, 100), the vocabulary");
  EXPECT_EQ(Fault(R"({"stop_ids": [5, 100]})", 0), "");
  EXPECT_EQ(
      Fault(R"({"stop_strings": ["a", ""]})"),
      "sampling.stop_strings has an empty text, which every completion contains; leave it out");
}

}  // namespace
}  // namespace rollcast
