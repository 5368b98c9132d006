// Messages of any size over the bulk channel: what two ranks tell each other at the start of a
// transfer, in the transfer's own order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer_bridge/communicator.h"

namespace rollcast {

void SendBulkMessage(Communicator& communicator, int destination, uint64_t transfer,
                     std::vector<std::byte> bytes, Deadline deadline, const Service& service);
/// Throws Error when the message claims to be larger than a GiB.
std::vector<std::byte> ReceiveBulkMessage(Communicator& communicator, int source, uint64_t transfer,
                                          Deadline deadline, const Service& service);

}  // namespace rollcast
