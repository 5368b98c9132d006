// Devices that tests of memory run on, and bytes in their memory.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device_transfer.h"

namespace rollcast::testing {

/// "cpu", and "cuda:0" where ROLLCAST_TEST_DEVICE is a GPU.
inline std::vector<std::string> TransferDevices() {
  std::vector<std::string> devices = {"cpu"};
  const char* device = std::getenv("ROLLCAST_TEST_DEVICE");
  if (device != nullptr && std::string(device).starts_with("cuda")) devices.push_back("cuda:0");
  return devices;
}

/// A copy of `bytes` in the device's memory, `shift` bytes behind an aligned address. The
/// destructor waits for what `transfer` does with it.
class DeviceBytes {
 public:
  DeviceBytes(DeviceTransfer& transfer, std::span<const std::byte> bytes, size_t shift = 0)
      : transfer_(transfer),
        bytes_(bytes.size()),
        shift_(shift),
        buffer_(transfer.Allocate(shift + bytes.size())) {
    transfer_.Copy(data(), bytes.data(), bytes_);
    transfer_.Synchronize();
  }
  ~DeviceBytes() { transfer_.Synchronize(); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::byte* data() const { return buffer_.as<std::byte>() + shift_; }
  size_t size() const { return bytes_; }
  std::vector<std::byte> Get() const {
    std::vector<std::byte> host(bytes_);
    transfer_.Copy(host.data(), data(), bytes_);
    transfer_.Synchronize();
    return host;
  }

 private:
  DeviceTransfer& transfer_;
  size_t bytes_, shift_;
  Buffer buffer_;
};

}  // namespace rollcast::testing
