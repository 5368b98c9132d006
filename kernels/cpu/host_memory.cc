#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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

void StreamCopy(void* to, const void* from, size_t bytes) {
  size_t done = 0;
#ifdef __SSE2__
  constexpr size_t kLine = 64;
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  done = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine);
  if (done > 0) std::memcpy(out, in, done);
  for (; done + kLine <= bytes; done += kLine) {
    __m128i line[kLine / sizeof(__m128i)];
    std::memcpy(line, in + done, kLine);
    auto* place = reinterpret_cast<__m128i*>(out + done);
    for (size_t i = 0; i < kLine / sizeof(__m128i); ++i) _mm_stream_si128(place + i, line[i]);
  }
  _mm_sfence();  // streamed stores are not ordered with those of the thread that says "done"
#endif
  if (done < bytes)
    std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, bytes - done);
}

std::unique_ptr<Event> MakeDoneEvent() { return std::make_unique<DoneEvent>(); }

}  // namespace rollcast
