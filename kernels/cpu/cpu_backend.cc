#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/host_memory.h"

namespace rollcast {

namespace {

constexpr size_t kCopyPart = size_t{1} << 20;  // bytes that one thread copies at a time

int NumThreads(int threads) {
  if (threads < 0) throw Error(StrCat("threads: expected at least 0, not ", threads));
  if (threads > 0) return threads;
  return std::max(1u, std::thread::hardware_concurrency());
}

class StoredStep : public CapturedGraph {
 public:
  explicit StoredStep(std::function<void()> step) : step_(std::move(step)) {}
  void Replay() override { step_(); }

 private:
  std::function<void()> step_;
};

class CpuBackend : public Backend {
 public:
  CpuBackend(const cpu::IsaKernels& isa, int threads) : context_(isa, threads) {}

  std::string name() const override {
    return StrCat("cpu (", context_.isa.name, ", ", context_.pool.num_threads(), " threads)");
  }
  std::string device() const override { return "cpu"; }
  DType kv_dtype() const override { return DType::kF32; }
  DType activation_dtype() const override { return DType::kF32; }

  Buffer Allocate(size_t bytes) override { return AllocateHostMemory(bytes); }
  Buffer AllocateHostVisible(size_t bytes) override { return Allocate(bytes); }

  void Upload(void* device, const void* host, size_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void Copy(void* device_dst, const void* device_src, size_t bytes) override {
    auto* to = static_cast<char*>(device_dst);
    const auto* from = static_cast<const char*>(device_src);
    const bool apart = to + bytes <= from || from + bytes <= to;
    if (bytes < 2 * kCopyPart || !apart) {
      if (bytes > 0) std::memmove(to, from, bytes);
      return;
    }
    // An update's pause is such a copy: on all threads, because one core does not use all of the
    // memory's bandwidth.
    const size_t part = std::max(kCopyPart, (bytes - 1) / cpu::ThreadPool::kMaxParts + 1);
    const int parts = static_cast<int>((bytes - 1) / part + 1);
    context_.pool.ParallelFor(parts, [=](int i, int) {
      const size_t begin = part * static_cast<size_t>(i);
      StreamCopy(to + begin, from + begin, std::min(part, bytes - begin));
    });
  }
  void Download(void* host, const void* device, size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }

  void CopyPages(const KvPages& kv, const int32_t* from, const int32_t* to, int count) override {
    const size_t page =
        static_cast<size_t>(kv.page_size) * kv.num_kv_heads * kv.head_dim * SizeOf(kv.dtype);
    for (int i = 0; i < count; ++i)
      RC_CHECK(from[i] >= 0 && from[i] < kv.num_pages && to[i] >= 0 && to[i] < kv.num_pages,
               "page ", from[i], " to ", to[i], " of ", kv.num_pages);
    for (void* base : {kv.k, kv.v}) {
      for (int layer = 0; layer < kv.num_layers; ++layer) {
        char* pages = static_cast<char*>(base) + page * kv.num_pages * layer;
        for (int i = 0; i < count; ++i)
          if (from[i] != to[i]) std::memcpy(pages + page * to[i], pages + page * from[i], page);
      }
    }
  }

  void Reserve(const OpLimits&) override {}  // scratch grows as it is needed
  void Embed(const EmbedArgs& args) override { cpu::Embed(context_, args); }
  void AttentionInput(const AttentionInputArgs& args) override {
    cpu::AttentionInput(context_, args);
  }
  void Attention(const AttentionArgs& args) override { cpu::Attention(context_, args); }
  void ProjectAdd(const ProjectAddArgs& args) override { cpu::ProjectAdd(context_, args); }
  void MlpInput(const MlpInputArgs& args) override { cpu::MlpInput(context_, args); }
  void HeadSample(const HeadSampleArgs& args) override { cpu::HeadSample(context_, args); }
  void Advance(const AdvanceArgs& args) override { cpu::Advance(context_, args); }

  std::unique_ptr<CapturedGraph> Capture(std::function<void()> step) override {
    return std::make_unique<StoredStep>(std::move(step));
  }
  std::unique_ptr<Event> Record() override { return MakeDoneEvent(); }
  void Synchronize() override {}

 private:
  cpu::CpuContext context_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options) {
  const cpu::CpuKernels kernels = cpu::ChooseKernels(options, cpu::ThisProcessor());
  return std::make_unique<CpuBackend>(kernels.all, NumThreads(options.threads));
}

}  // namespace rollcast
