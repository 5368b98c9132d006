#include "launch/progress.h"

#include <unistd.h>

namespace rollcast {

Progress::Progress() : Progress(stderr, isatty(STDERR_FILENO)) {}

Progress::~Progress() {
  if (!skipped_.empty()) Keep(skipped_);
  if (open_) std::fputc('\n', out_);
  std::fflush(out_);
}

void Progress::Show(std::string_view line, Clock::time_point now) {
  const auto interval =
      terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000);
  if (shown_ && now - last_ < interval) {
    skipped_ = line;
    return;
  }
  shown_ = true;
  last_ = now;
  skipped_.clear();
  const int length = static_cast<int>(line.size());
  if (terminal_)
    std::fprintf(out_, "\r%.*s\x1b[K", length, line.data());
  else
    std::fprintf(out_, "%.*s\n", length, line.data());
  open_ = terminal_;
  std::fflush(out_);
}

void Progress::Keep(std::string_view line) {
  const std::string text(line);  // `line` may be skipped_
  skipped_.clear();
  std::fprintf(out_, terminal_ ? "\r%s\x1b[K\n" : "%s\n", text.c_str());
  open_ = false;
  std::fflush(out_);
}

}  // namespace rollcast
