// The devices that a caller's tensors lie on.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/device_transfer.h"

namespace rollcast {

/// A DeviceTransfer for each device that has been asked for, made on first use. One thread at a
/// time.
class DeviceSet {
 public:
  struct Device {
    std::unique_ptr<DeviceTransfer> transfer;
    Buffer scratch;

    /// Device memory for what the transfer's stream does next; waits for it when it must grow.
    void* Scratch(size_t bytes) {
      if (scratch.bytes() < bytes) {
        transfer->Synchronize();
        scratch = transfer->Allocate(bytes);
      }
      return scratch.data();
    }
  };

  /// The device on which `memory` lies. The reference is good as long as the set.
  Device& Of(const void* memory) {
    const std::string name = DeviceOfMemory(memory);
    const auto [it, fresh] = devices_.try_emplace(name);
    if (fresh) it->second.transfer = MakeDeviceTransfer(name);
    return it->second;
  }

  auto begin() { return devices_.begin(); }
  auto end() { return devices_.end(); }

 private:
  std::map<std::string, Device> devices_;
};

}  // namespace rollcast
