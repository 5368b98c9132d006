#include "engine/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/check.h"

namespace rollcast {
namespace {

/// An open descriptor, closed at the end of the scope.
class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw Error(StrCat(path.string(), ": cannot open: ", std::strerror(errno)));
    if (fstat(fd_, &status_) != 0)
      throw Error(StrCat(path.string(), ": cannot stat: ", std::strerror(errno)));
    if (!S_ISREG(status_.st_mode)) throw Error(StrCat(path.string(), ": not a regular file"));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  size_t size() const { return static_cast<size_t>(status_.st_size); }

 private:
  int fd_;
  struct stat status_ {};
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path);
  size_ = file.size();
  if (size_ == 0) return;  // an empty range cannot be mapped
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED)
    throw Error(StrCat(path.string(), ": cannot map ", size_, " bytes: ", std::strerror(errno)));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

std::string ReadTextFile(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

AtomicFileWriter::AtomicFileWriter(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = path_;
  temporary_ += StrCat(".", getpid(), ".part");
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw Error(StrCat(path_.string(), ": cannot write: ", std::strerror(errno)));
}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

void AtomicFileWriter::Write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw Error(StrCat(path_.string(), ": cannot write: ", std::strerror(errno)));
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFileWriter::Commit() {
  RC_CHECK(fd_ >= 0, path_.string());
  if (fsync(fd_) != 0)
    throw Error(StrCat(path_.string(), ": cannot write: ", std::strerror(errno)));
  if (rename(temporary_.c_str(), path_.c_str()) != 0)
    throw Error(StrCat(path_.string(), ": cannot rename: ", std::strerror(errno)));
  close(std::exchange(fd_, -1));
}

void WriteTextFile(const std::filesystem::path& path, std::string_view text) {
  AtomicFileWriter file(path);
  file.Write(text);
  file.Commit();
}

}  // namespace rollcast
