#include "engine/input_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <streambuf>
#include <string>
#include <vector>

#include "kernels/check.h"

namespace rollcast {

namespace {

constexpr size_t kBufferBytes = 64 << 10;

/// The standard input is read by its descriptor: /dev/stdin would open a file that has been
/// redirected a second time, at its beginning, whatever a shell has read of it.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(const std::filesystem::path& path)
      : name_(path == "-" ? "standard input" : path.string()), bytes_(kBufferBytes) {
    if (path != "-") fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (fd_ < 0 || ::fstat(fd_, &status) != 0) Fail("cannot be opened");
    if (!S_ISDIR(status.st_mode)) return;
    Close();
    throw Error(StrCat(name_, ": is a folder, expected a file"));
  }
  ~DescriptorBuffer() override { Close(); }
  DescriptorBuffer(const DescriptorBuffer&) = delete;
  DescriptorBuffer& operator=(const DescriptorBuffer&) = delete;

 protected:
  int_type underflow() override {
    ssize_t n;
    while ((n = ::read(fd_, bytes_.data(), bytes_.size())) < 0 && errno == EINTR) {
    }
    if (n < 0) Fail("cannot be read");
    setg(bytes_.data(), bytes_.data(), bytes_.data() + n);
    return n == 0 ? traits_type::eof() : traits_type::to_int_type(*gptr());
  }

 private:
  [[noreturn]] void Fail(const char* what) const {
    throw Error(StrCat(name_, ": ", what, ": ", std::strerror(errno)));
  }
  void Close() const {
    if (fd_ > STDIN_FILENO) ::close(fd_);
  }

  const std::string name_;  // for messages
  std::vector<char> bytes_;
  int fd_ = STDIN_FILENO;
};

}  // namespace

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::none)
    throw Error(StrCat(path.string(), ": cannot be found: ", error.message()));
  return type != std::filesystem::file_type::not_found;
}

InputStream::InputStream(const std::filesystem::path& path)
    : std::istream(nullptr), buffer_(std::make_unique<DescriptorBuffer>(path)) {
  rdbuf(buffer_.get());
  exceptions(std::ios::badbit);  // what underflow throws passes through
}

}  // namespace rollcast
