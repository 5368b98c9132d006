#include "trainer_bridge/transport_choice.h"

#include <algorithm>

#include "kernels/device_transfer.h"
#include "trainer_bridge/device_choice.h"
#include "trainer_bridge/ipc_weight_transport.h"
#include "trainer_bridge/nccl_weight_transport.h"

namespace rollcast {

namespace {

/// Empty when the trainer and every worker have a GPU.
std::string WithoutGpu(const Roles& roles) {
  for (size_t rank = 0; rank < roles.ranks.size(); ++rank) {
    const RankInfo& info = roles.ranks[rank];
    if (!info.gpu().empty()) continue;
    if (info.role == Role::kTrainer)
      return StrCat("the trainer (rank ", rank, ") has no GPU of its own");
    return StrCat("rank ", rank, " on ", info.host, " has no GPU");
  }
  return {};
}

std::string AgainstIpc(const Roles& roles) {
  if (const std::string why = WithoutGpu(roles); !why.empty()) return why;
  const RankInfo& first = roles.ranks.front();
  for (size_t rank = 1; rank < roles.ranks.size(); ++rank)
    if (roles.ranks[rank].host != first.host)
      return StrCat("rank ", rank, " is on host ", roles.ranks[rank].host, ", rank 0 on ",
                    first.host);
  return {};
}

std::string AgainstNccl(const Roles& roles) {
  if (const std::string why = WithoutGpu(roles); !why.empty()) return why;
  return SharedDevices(roles);
}

}  // namespace

TransportChoice ChooseTransport(const std::string& wanted, const Roles& roles) {
  if (wanted == "mpi" || roles.trainer() < 0) return {"mpi", {}};
  if (wanted == "ipc" || wanted == "nccl") {
    const std::string why = wanted == "ipc" ? AgainstIpc(roles) : AgainstNccl(roles);
    if (!why.empty())
      throw Error(StrCat("sync.transport = \"", wanted, "\" cannot work: ", why,
                         "; set it to auto or mpi"));
    return {wanted, {}};
  }
  if (wanted != "auto")
    throw Error(StrCat("sync.transport = \"", wanted, "\": expected auto, mpi, nccl or ipc"));
  if (AgainstIpc(roles).empty()) return {"ipc", {}};
  const std::string why = AgainstNccl(roles);
  if (why.empty()) return {"nccl", {}};
  const bool any = std::any_of(roles.ranks.begin(), roles.ranks.end(),
                               [](const RankInfo& info) { return !info.gpu().empty(); });
  return {"mpi", any ? StrCat("weights go over MPI, through the host's memory: ", why) : ""};
}

std::vector<WeightTransportMaker> OfferedTransports(const std::string& device,
                                                    const std::string& nccl_library) {
  std::vector<WeightTransportMaker> makers = {MessageWeightTransport()};
  if (device == "cpu") return makers;
  const DeviceTransferMaker make_device = [device] { return MakeDeviceTransfer(device); };
  IpcTransportOptions ipc;
  ipc.make_device = make_device;
  makers.push_back(IpcWeightTransport(std::move(ipc)));
  NcclTransportOptions nccl;
  nccl.make_device = make_device;
  nccl.library = nccl_library;
  makers.push_back(NcclWeightTransport(std::move(nccl)));
  return makers;
}

}  // namespace rollcast
