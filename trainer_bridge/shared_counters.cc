#include "trainer_bridge/shared_counters.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "kernels/check.h"

namespace rollcast {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters are shared between processes");

namespace {

// Ranks that are threads of one process share one mapping: then tools that watch addresses (thread
// sanitizers) see what orders their accesses.
struct Mappings {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<SharedCounters>> by_name;
};
Mappings& ProcessMappings() {
  static Mappings mappings;
  return mappings;
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string NewName() {
  std::random_device random;
  const uint64_t number = (uint64_t{random()} << 32) | random();
  return StrCat("/rollcast-", getpid(), "-", std::hex, number);
}

}  // namespace

SharedCounters::SharedCounters(std::string name, bool created)
    : name_(std::move(name)), created_(created), linked_(created) {
  const auto fail = [&](const char* what) {
    const int code = errno;
    if (created_) shm_unlink(name_.c_str());
    throw Error(StrCat("shared memory ", name_, ": ", what, ": ", std::strerror(code),
                       created_ ? "; is there room in /dev/shm?"
                                : "; the ranks must run on the trainer's host and see its "
                                  "/dev/shm, else set sync.transport to nccl or mpi"));
  };
  const int flags = created_ ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
  const File file(shm_open(name_.c_str(), flags, 0600));
  if (file.fd() < 0) {
    linked_ = false;
    fail("cannot be opened");
  }
  constexpr size_t kBytes = kCount * sizeof(Cell);
  if (created_ && ftruncate(file.fd(), kBytes) != 0) fail("cannot be sized");
  struct stat status {};
  if (fstat(file.fd(), &status) != 0 || static_cast<size_t>(status.st_size) < kBytes)
    fail("is too small");
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (memory == MAP_FAILED) fail("cannot be mapped");
  cells_ = static_cast<Cell*>(memory);
}

SharedCounters::~SharedCounters() {
  Unlink();
  munmap(cells_, kCount * sizeof(Cell));
}

void SharedCounters::Unlink() noexcept {
  if (linked_.exchange(false)) shm_unlink(name_.c_str());
}

std::shared_ptr<SharedCounters> SharedCounters::Create() {
  std::shared_ptr<SharedCounters> counters(new SharedCounters(NewName(), true));
  Mappings& mappings = ProcessMappings();
  const std::lock_guard lock(mappings.mutex);
  std::erase_if(mappings.by_name, [](const auto& entry) { return entry.second.expired(); });
  mappings.by_name[counters->name()] = counters;
  return counters;
}

std::shared_ptr<SharedCounters> SharedCounters::Open(const std::string& name) {
  Mappings& mappings = ProcessMappings();
  const std::lock_guard lock(mappings.mutex);
  std::weak_ptr<SharedCounters>& known = mappings.by_name[name];
  std::shared_ptr<SharedCounters> counters = known.lock();
  if (counters == nullptr) {
    counters.reset(new SharedCounters(name, false));
    known = counters;
  }
  return counters;
}

std::atomic<uint64_t>& SharedCounters::operator[](int i) {
  RC_CHECK(i >= 0 && i < kCount, "counter ", i, " of ", kCount);
  return cells_[i].value;
}

}  // namespace rollcast
