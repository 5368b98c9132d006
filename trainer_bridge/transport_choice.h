// Which way weights take to the ranks.
#pragma once

#include <string>
#include <vector>

#include "trainer_bridge/roles.h"
#include "trainer_bridge/weight_transport.h"

namespace rollcast {

struct TransportChoice {
  std::string name;     // "mpi", "nccl", "ipc"
  std::string warning;  // why it is not a faster one although there are GPUs; usually empty
};

/// The trainer's choice. `wanted` (sync.transport) "auto": the copy engine ("ipc") where the
/// trainer and every worker have a GPU and all are on one host, NCCL where each has a GPU of its
/// own, MPI otherwise. Throws Error, naming the rank and the reason, when another `wanted` cannot
/// work.
TransportChoice ChooseTransport(const std::string& wanted, const Roles& roles);

/// The transports that a rank on `device` ("cpu", "cuda:N") has.
std::vector<WeightTransportMaker> OfferedTransports(const std::string& device,
                                                    const std::string& nccl_library);

}  // namespace rollcast
