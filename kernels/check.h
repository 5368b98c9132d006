// Errors and precondition checks. Standard library only, so that .cu files can include it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace rollcast {

/// An error that a user can act on: a bad file, configuration or request. The message names the
/// file, key or tensor, what was expected and what was found.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A broken precondition or invariant: a fault of the program, never of its input.
class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Concatenates the arguments as `operator<<` prints them.
template <class... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

namespace internal {

[[noreturn]] inline void FailCheck(const char* file, int line, const std::string& what) {
  throw CheckFailure(StrCat(file, ":", line, ": check failed: ", what));
}

}  // namespace internal

}  // namespace rollcast

/// Throws CheckFailure unless `condition` holds; further arguments are appended to the message.
#define RC_CHECK(condition, ...)                                                           \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::rollcast::internal::FailCheck(__FILE__, __LINE__,                                  \
                                      ::rollcast::StrCat(#condition, " ", ##__VA_ARGS__)); \
  } while (false)

#define RC_CHECK_OP(op, a, b, ...)                                                                 \
  do {                                                                                             \
    const auto& rc_a = (a);                                                                        \
    const auto& rc_b = (b);                                                                        \
    if (!(rc_a op rc_b)) [[unlikely]]                                                              \
      ::rollcast::internal::FailCheck(__FILE__, __LINE__,                                          \
                                      ::rollcast::StrCat(#a " " #op " " #b " (", rc_a,             \
                                                         " against ", rc_b, ") ", ##__VA_ARGS__)); \
  } while (false)

#define RC_CHECK_EQ(a, b, ...) RC_CHECK_OP(==, a, b, ##__VA_ARGS__)
#define RC_CHECK_LE(a, b, ...) RC_CHECK_OP(<=, a, b, ##__VA_ARGS__)
#define RC_CHECK_LT(a, b, ...) RC_CHECK_OP(<, a, b, ##__VA_ARGS__)
#define RC_CHECK_GE(a, b, ...) RC_CHECK_OP(>=, a, b, ##__VA_ARGS__)
#define RC_CHECK_GT(a, b, ...) RC_CHECK_OP(>, a, b, ##__VA_ARGS__)
