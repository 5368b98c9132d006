// How the bytes of an update get from the trainer to every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "trainer_bridge/communicator.h"

namespace rollcast {

/// One tensor of an update on the trainer's side: contiguous, row-major. Where the dtypes differ it
/// is cast on the way, to the nearest value, ties to even; kF32, kF16 and kBF16 only.
struct SourceTensor {
  const void* data = nullptr;
  DType dtype = DType::kF32;       // of `data`
  DType wire_dtype = DType::kF32;  // of the manifest's entry
  int64_t elements = 0;
  std::string name;  // for messages
};

/// Moves one update from group[0] to the other ranks of the group. Made from the ranks that take
/// part, and made again from those who are left when one is lost. Bridge thread only.
class WeightTransport {
 public:
  virtual ~WeightTransport() = default;
  /// "mpi", "nccl", "ipc".
  virtual const char* name() const = 0;
  /// True when a failed transfer has left it unusable; a new one is made for the next update.
  virtual bool broken() const = 0;

  /// group[0]: does what Send of the same `transfer` and tensors, if it follows, needs no rank for,
  /// so that the ranks wait less. Not necessary. Throws Error where Send would.
  virtual void Prepare([[maybe_unused]] uint64_t transfer,
                       [[maybe_unused]] std::span<const SourceTensor> tensors) {}
  /// group[0]: sends `tensors` in order. Returns the checksum of what was sent: DigestFold
  /// (kernels/digest.h) over the tensors in their wire dtypes. `transfer` grows from update to
  /// update. Throws PeerLost at `deadline`; Communicator::SendBulk says what holds
  /// for the tensors' memory then.
  virtual uint64_t Send(uint64_t transfer, std::span<const SourceTensor> tensors, Deadline deadline,
                        const Service& service) = 0;
  /// The other ranks: fills `spans`, one a tensor, in the same order, all of one device's memory.
  /// When it returns the bytes are there for every stream of the device.
  virtual void Receive(uint64_t transfer, std::span<const MutableBytes> spans, Deadline deadline,
                       const Service& service) = 0;
};

/// One kind of transport that a rank or a trainer has. `group`: the trainer, then the ranks.
/// `token` is what the trainer's side made with make_token (an NCCL unique id, say); it reaches the
/// ranks with the announcement. A trainer's tensors and a rank's weights may be memory of any
/// device that DeviceOfMemory knows.
struct WeightTransportMaker {
  std::string name;  // what WeightTransport::name() of those made returns
  std::function<std::string()> make_token;
  std::function<std::unique_ptr<WeightTransport>(
      Communicator& communicator, const std::vector<int>& group, const std::string& token)>
      make;
};

/// The one of `makers` with this name. Throws Error, saying which there are.
const WeightTransportMaker& FindTransport(std::span<const WeightTransportMaker> makers,
                                          const std::string& name);

/// A pipelined chain over the communicator's bulk channel: trainer -> group[1] -> group[2] -> ...,
/// each piece passed on as soon as it has arrived, from the trainer's tensors into the ranks'
/// arenas. What lies on a device goes through two pinned buffers on the host: while the wire has
/// one, the device has the other.
WeightTransportMaker MessageWeightTransport();

}  // namespace rollcast
