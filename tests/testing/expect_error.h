// Assertion on the message of an Error.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "kernels/check.h"

namespace rollcast::testing {

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Expects that `call` throws Error and that the message holds every one of `parts`.
template <class Call>
void ExpectError(Call&& call, std::initializer_list<std::string> parts) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    for (const std::string& part : parts)
      EXPECT_TRUE(Contains(error.what(), part)) << "\"" << part << "\" is not in: " << error.what();
    return;
  }
  ADD_FAILURE() << "no Error was thrown" << (parts.size() ? ", expected: " + *parts.begin() : "");
}

}  // namespace rollcast::testing
