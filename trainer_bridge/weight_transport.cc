#include "trainer_bridge/weight_transport.h"

#include <algorithm>

#include "kernels/float_convert.h"
#include "trainer_bridge/weight_digest.h"

namespace rollcast {
namespace {

class ChainTransport final : public WeightTransport {
 public:
  ChainTransport(Communicator& communicator, std::vector<int> group)
      : communicator_(communicator), group_(std::move(group)) {
    const auto mine = std::find(group_.begin(), group_.end(), communicator_.rank());
    RC_CHECK(mine != group_.end(), "rank ", communicator_.rank(), " is not in the group");
    RC_CHECK_GE(group_.size(), 2u);
    place_ = static_cast<size_t>(mine - group_.begin());
  }

  const char* name() const override { return "mpi"; }
  bool broken() const override { return false; }  // a transfer has an id of its own

  uint64_t Send(uint64_t transfer, std::span<const SourceTensor> tensors, Deadline deadline,
                const Service& service) override {
    RC_CHECK_EQ(place_, 0u);
    const size_t piece_bytes = communicator_.bulk_piece_bytes();
    // What goes to the communicator in one call: enough to keep its pipeline busy, little enough
    // that checksum and cast of the next batch do not let it run dry for long.
    const size_t batch_limit = 16 * piece_bytes;
    WeightDigest digest;
    std::vector<ConstBytes> batch;
    size_t batch_bytes = 0, cast_used = 0;
    const auto flush = [&] {
      communicator_.SendBulk(group_[1], transfer, batch, deadline, service);
      batch.clear();
      batch_bytes = cast_used = 0;
    };
    for (const SourceTensor& tensor : tensors) {
      const size_t wire_size = SizeOf(tensor.wire_dtype);
      const auto elements = static_cast<size_t>(tensor.elements);
      const auto* data = static_cast<const std::byte*>(tensor.data);
      const bool cast = tensor.dtype != tensor.wire_dtype;
      // The receiver cuts every tensor at multiples of piece_bytes from its start, so do these.
      RC_CHECK_EQ(piece_bytes % wire_size, 0u);
      const size_t piece_elements = piece_bytes / wire_size;
      for (size_t begin = 0; begin < elements; begin += piece_elements) {
        const size_t count = std::min(piece_elements, elements - begin);
        const size_t bytes = count * wire_size;
        if (batch_bytes > 0 && batch_bytes + bytes > batch_limit) flush();
        ConstBytes piece(data + begin * SizeOf(tensor.dtype), bytes);
        if (cast) {
          cast_buffer_.resize(batch_limit);
          std::byte* target = cast_buffer_.data() + cast_used;
          if (!ConvertFloats(piece.data(), tensor.dtype, target, tensor.wire_dtype, count))
            throw Error("a tensor changed while it was being sent: a value is out of range now");
          piece = ConstBytes(target, bytes);
          cast_used += bytes;
        }
        digest.Update(piece);
        batch.push_back(piece);
        batch_bytes += bytes;
      }
    }
    flush();
    return digest.Finish();
  }

  void Receive(uint64_t transfer, std::span<const MutableBytes> spans, Deadline deadline,
               const Service& service) override {
    RC_CHECK_GT(place_, 0u);
    const int source = group_[place_ - 1];
    if (place_ + 1 == group_.size())
      communicator_.ReceiveBulk(source, transfer, spans, deadline, service);
    else
      communicator_.RelayBulk(source, group_[place_ + 1], transfer, spans, deadline, service);
  }

 private:
  Communicator& communicator_;
  std::vector<int> group_;
  size_t place_ = 0;                    // of this rank in the group
  std::vector<std::byte> cast_buffer_;  // outlives a failed Send (Communicator::SendBulk)
};

}  // namespace

const WeightTransportMaker& FindTransport(std::span<const WeightTransportMaker> makers,
                                          const std::string& name) {
  std::string there;
  for (const WeightTransportMaker& maker : makers) {
    if (maker.name == name) return maker;
    there += StrCat(there.empty() ? "" : ", ", maker.name);
  }
  throw Error(StrCat("weight transport \"", name, "\": there is ", there));
}

WeightTransportMaker MessageWeightTransport() {
  return {"mpi", [] { return std::string(); },
          [](Communicator& communicator, const std::vector<int>& group, const std::string&) {
            return std::make_unique<ChainTransport>(communicator, group);
          }};
}

}  // namespace rollcast
