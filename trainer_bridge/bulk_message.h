// Messages of any size over the bulk channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "trainer_bridge/communicator.h"

namespace rollcast {

/// What two ranks tell each other at the start of a transfer, in the transfer's own order. Keeps
/// what a send that was given up may still read (Communicator::SendBulk), so it is to live as long
/// as the communicator. Bridge thread only.
class BulkMessages {
 public:
  void Send(Communicator& communicator, int destination, uint64_t transfer,
            std::vector<std::byte> bytes, Deadline deadline, const Service& service);
  /// Throws Error when the message claims to be larger than a GiB.
  std::vector<std::byte> Receive(Communicator& communicator, int source, uint64_t transfer,
                                 Deadline deadline, const Service& service);

 private:
  struct Outgoing {
    uint64_t size;
    std::vector<std::byte> bytes;
  };
  std::map<int, std::vector<std::unique_ptr<Outgoing>>> outgoing_;  // by destination
};

}  // namespace rollcast
