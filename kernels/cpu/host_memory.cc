#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/check.h"

namespace rollcast {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kHugePage = size_t{2} << 20;

class DoneEvent final : public Event {
 public:
  void Wait() override {}
  bool Ready() override { return true; }
};

}  // namespace

Buffer AllocateHostMemory(size_t bytes) {
  // Weights and KV are read through once a step: huge pages save most of the address look-ups.
  const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* data = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
  if (data == nullptr) throw Error(StrCat("cpu: no memory for ", bytes, " bytes"));
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);  // no harm if refused
#endif
  return Buffer(data, bytes, [](void* p, size_t) { std::free(p); });
}

std::unique_ptr<Event> MakeDoneEvent() { return std::make_unique<DoneEvent>(); }

}  // namespace rollcast
