// A backend that only has memory: for tests of what is stored, where no op runs.
#pragma once

#include <cstdlib>
#include <cstring>

#include "kernels/backend.h"

namespace rollcast::testing {

/// Host memory filled with 0xcd on allocation, so that what nobody wrote shows. Ops and capture
/// throw CheckFailure.
class MemoryBackend : public Backend {
 public:
  std::string name() const override { return "memory"; }
  std::string device() const override { return "cpu"; }
  DType kv_dtype() const override { return DType::kF32; }
  DType activation_dtype() const override { return DType::kF32; }
  std::optional<DType> weight_dtype() const override { return weight_dtype_; }
  void set_weight_dtype(DType dtype) { weight_dtype_ = dtype; }

  Buffer Allocate(size_t bytes) override {
    const size_t rounded = (bytes + 255) / 256 * 256;
    void* data = std::aligned_alloc(256, rounded);
    if (data == nullptr) throw Error(StrCat("no memory for ", bytes, " bytes"));
    std::memset(data, 0xcd, rounded);
    return Buffer(data, bytes, [](void* p, size_t) { std::free(p); });
  }
  Buffer AllocateHostVisible(size_t bytes) override { return Allocate(bytes); }
  void Upload(void* device, const void* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void Copy(void* device_dst, const void* device_src, size_t bytes) override {
    std::memmove(device_dst, device_src, bytes);
  }
  void Download(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void CopyPages(const KvPages&, const int32_t*, const int32_t*, int) override { Refuse(); }
  void Reserve(const OpLimits&) override {}
  void Embed(const EmbedArgs&) override { Refuse(); }
  void AttentionInput(const AttentionInputArgs&) override { Refuse(); }
  void Attention(const AttentionArgs&) override { Refuse(); }
  void ProjectAdd(const ProjectAddArgs&) override { Refuse(); }
  void MlpInput(const MlpInputArgs&) override { Refuse(); }
  void HeadSample(const HeadSampleArgs&) override { Refuse(); }
  void Advance(const AdvanceArgs&) override { Refuse(); }
  std::unique_ptr<CapturedGraph> Capture(std::function<void()>) override {
    Refuse();
    return nullptr;
  }
  std::unique_ptr<Event> Record() override {
    Refuse();
    return nullptr;
  }
  void Synchronize() override {}

 private:
  void Refuse() const { RC_CHECK(false, "the memory backend has no ops"); }

  std::optional<DType> weight_dtype_;
};

}  // namespace rollcast::testing
