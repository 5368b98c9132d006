// A small program that device_transfer_test runs: opens memory of its parent and prints the
// DigestSum of each piece. Arguments: device, then handle (hexadecimal) and bytes of each piece.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "kernels/device_transfer.h"

int main(int argc, char** argv) {
  try {
    const auto transfer = rollcast::MakeDeviceTransfer(argv[1]);
    std::vector<rollcast::Buffer> open;
    std::vector<rollcast::DeviceRange> ranges;
    for (int i = 2; i + 1 < argc; i += 2) {
      const std::string hex = argv[i];
      std::string handle;
      for (size_t at = 0; at + 1 < hex.size(); at += 2)
        handle += static_cast<char>(std::strtol(hex.substr(at, 2).c_str(), nullptr, 16));
      open.push_back(transfer->OpenShared(handle));
      ranges.push_back({open.back().data(), std::strtoull(argv[i + 1], nullptr, 10)});
    }
    for (const uint64_t sum : transfer->DigestSums(ranges))
      std::printf("%llu\n", static_cast<unsigned long long>(sum));
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
