// Weights by the copy engine, between ranks of one host.
#pragma once

#include <cstddef>

#include "trainer_bridge/staged_source.h"
#include "trainer_bridge/weight_transport.h"

namespace rollcast {

struct IpcTransportOptions {
  /// The device of this rank's tensors or weights.
  DeviceTransferMaker make_device;
  /// The trainer's says it for all. What a rank pulls at once: a chain of n ranks takes as long as
  /// one and n chunks more.
  size_t chunk_bytes = size_t{32} << 20;
  /// The trainer's: chunks of device memory for tensors that cannot be pulled from where they lie
  /// (another dtype, host memory, memory that cannot be shared). Allocated when first needed.
  int ring_chunks = 4;
};

/// "ipc": a chain in which every rank pulls from the one before it, chunk by chunk as the chunks
/// arrive there, out of memory that DeviceTransfer::Share lets it see. group[1] pulls from the
/// trainer's own tensors. Progress is in SharedCounters, so all ranks must be on one host; decoding
/// shares nothing but memory bandwidth with it. Pulling, nobody but a rank itself writes its
/// weights: one that was taken for lost and goes on can spoil none of another's. The trainer's
/// tensors must be complete (their device synchronised) when Send is called.
WeightTransportMaker IpcWeightTransport(IpcTransportOptions options);

}  // namespace rollcast
