// The host's memory as a device that the tests' own memory does not lie on.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device_transfer.h"

namespace rollcast::testing {

/// As the device "cpu" under another name. "cpu" itself: the same, with memory that cannot be
/// shared but for what Allocate returned, as with memory of a pool.
class ForeignTransfer : public DeviceTransfer {
 public:
  explicit ForeignTransfer(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  bool host_memory() const override { return false; }
  void* stream() const override { return nullptr; }
  void RunOnDevice(const std::function<void()>& call) override { call(); }
  Buffer Allocate(size_t bytes) override {
    Buffer buffer = cpu_->Allocate(bytes);
    allocated_.insert(buffer.data());
    return buffer;
  }
  Buffer AllocateHost(size_t bytes) override { return cpu_->AllocateHost(bytes); }
  void Copy(void* to, const void* from, size_t bytes) override { cpu_->Copy(to, from, bytes); }
  void Cast(const void* from, DType from_dtype, void* to, DType to_dtype,
            int64_t elements) override {
    cpu_->Cast(from, from_dtype, to, to_dtype, elements);
  }
  bool TakeCastOverflow() override { return cpu_->TakeCastOverflow(); }
  std::vector<uint64_t> DigestSums(std::span<const DeviceRange> ranges) override {
    return cpu_->DigestSums(ranges);
  }
  std::unique_ptr<Event> Record() override { return cpu_->Record(); }
  void Synchronize() override { cpu_->Synchronize(); }
  void SynchronizeDevice() override { cpu_->SynchronizeDevice(); }
  std::vector<std::string> ShareAll(std::span<const void* const> memory) override {
    std::vector<std::string> handles;
    for (const void* one : memory)
      handles.push_back(allocated_.contains(one) ? cpu_->Share(one) : std::string());
    return handles;
  }
  Buffer OpenShared(const std::string& handle) override { return cpu_->OpenShared(handle); }

 private:
  const std::string name_;
  std::set<const void*> allocated_;
  const std::unique_ptr<DeviceTransfer> cpu_ = MakeDeviceTransfer("cpu");
};

}  // namespace rollcast::testing
