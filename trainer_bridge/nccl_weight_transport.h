// Weights by NCCL broadcast, between GPUs of any hosts.
#pragma once

#include <cstddef>
#include <string>

#include "trainer_bridge/staged_source.h"
#include "trainer_bridge/weight_transport.h"

namespace rollcast {

struct NcclTransportOptions {
  /// The device of this rank's tensors or weights; no two ranks may share one.
  DeviceTransferMaker make_device;
  /// nccl::Library::Load; loaded when first needed.
  std::string library = "libnccl.so.2";
  /// The trainer's: bytes of one group of broadcasts of tensors that do not lie as they are sent on
  /// its device. It allocates two such buffers when they are first needed.
  size_t group_bytes = size_t{128} << 20;
  /// The trainer's: the first group of broadcasts straight from its tensors ends with the tensor
  /// that brings it to this; later ones grow (GrowingRuns).
  size_t first_group_bytes = size_t{64} << 20;
};

/// "nccl": grouped broadcasts straight from the trainer's tensors into the ranks' memory; tensors
/// that need a cast or lie elsewhere follow in groups of group_bytes. The communicator is
/// non-blocking and is aborted when a transfer fails. Every rank needs the trainer's NCCL version.
/// The trainer's tensors must be complete (their device synchronised) when Send is called. Where a
/// PeerLost cannot say which of several ranks is at fault, its rank() is -1.
WeightTransportMaker NcclWeightTransport(NcclTransportOptions options);

}  // namespace rollcast
