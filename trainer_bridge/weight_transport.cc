#include "trainer_bridge/weight_transport.h"

#include <algorithm>

#include "kernels/digest.h"
#include "trainer_bridge/device_set.h"

namespace rollcast {
namespace {

constexpr size_t kBatchPieces = 16;
constexpr size_t kPieceAlignment = 256;  // in the buffers, for the device's copies and casts

/// Two host buffers: one is on the wire while the other is filled or emptied by a device.
class HostBuffers {
 public:
  /// `bytes` of each, from the first transfer that asks.
  std::byte* Get(size_t which, size_t bytes, DeviceTransfer& transfer) {
    Buffer& buffer = buffers_[which];
    if (buffer.bytes() < bytes) buffer = transfer.AllocateHost(bytes);
    return buffer.as<std::byte>();
  }

 private:
  Buffer buffers_[2];
};

class ChainTransport final : public WeightTransport {
 public:
  ChainTransport(Communicator& communicator, std::vector<int> group)
      : communicator_(communicator),
        group_(std::move(group)),
        piece_bytes_(communicator.bulk_piece_bytes()),
        batch_bytes_(kBatchPieces * std::max(piece_bytes_, kPieceAlignment)),
        buffers_(std::make_shared<HostBuffers>()) {
    const auto mine = std::find(group_.begin(), group_.end(), communicator_.rank());
    RC_CHECK(mine != group_.end(), "rank ", communicator_.rank(), " is not in the group");
    RC_CHECK_GE(group_.size(), 2u);
    place_ = static_cast<size_t>(mine - group_.begin());
    // What a transfer that is given up leaves on its way may still be read or written.
    communicator_.Retain(buffers_);
  }

  const char* name() const override { return "mpi"; }
  bool broken() const override { return false; }  // a transfer has an id of its own

  uint64_t Send(uint64_t transfer, std::span<const SourceTensor> tensors, Deadline deadline,
                const Service& service) override {
    RC_CHECK_EQ(place_, 0u);
    Outgoing out;
    for (const SourceTensor& tensor : tensors) {
      // The receiver cuts every tensor at multiples of piece_bytes_ from its start, so do these.
      RC_CHECK_EQ(piece_bytes_ % SizeOf(tensor.wire_dtype), 0u);
      out.tensors.push_back({tensor, &devices_.Of(tensor.data)});
    }
    std::vector<uint64_t> sums(tensors.size(), 0);
    Batch batch = NextBatch(out);
    while (!batch.pieces.empty()) {
      AwaitDevices();
      Batch next = NextBatch(out);
      for (size_t i = 0; i < batch.pieces.size(); ++i)
        sums[batch.places[i].tensor] +=
            DigestSum(batch.pieces[i].data(), batch.pieces[i].size(), batch.places[i].offset);
      communicator_.SendBulk(group_[1], transfer, batch.pieces, deadline, service);
      batch = std::move(next);
    }
    DigestFold fold;
    for (size_t i = 0; i < tensors.size(); ++i)
      fold.Add(sums[i], static_cast<uint64_t>(tensors[i].elements) * SizeOf(tensors[i].wire_dtype));
    return fold.value();
  }

  void Receive(uint64_t transfer, std::span<const MutableBytes> spans, Deadline deadline,
               const Service& service) override {
    RC_CHECK_GT(place_, 0u);
    if (spans.empty()) return;
    DeviceTransfer& device = *devices_.Of(spans.front().data()).transfer;
    if (device.host_memory()) return ReceiveOnHost(transfer, spans, deadline, service);
    struct Upload {
      std::byte* to;
      MutableBytes from;
    };
    size_t turn = 0, used = 0;
    std::vector<Upload> uploads;
    const auto receive = [&] {
      std::vector<MutableBytes> pieces;
      for (const Upload& upload : uploads) pieces.push_back(upload.from);
      ReceiveOnHost(transfer, pieces, deadline, service);
      device.Synchronize();  // the other buffer is free for the next batch
      for (const Upload& upload : uploads)
        device.Copy(upload.to, upload.from.data(), upload.from.size());
      uploads.clear();
      used = 0;
      ++turn;
    };
    for (const MutableBytes span : spans) {
      for (size_t begin = 0; begin < span.size(); begin += piece_bytes_) {
        const size_t bytes = std::min(piece_bytes_, span.size() - begin);
        if (used + bytes > batch_bytes_) receive();
        std::byte* buffer = buffers_->Get(turn % 2, batch_bytes_, device);
        uploads.push_back({span.data() + begin, {buffer + used, bytes}});
        used = Aligned(used + bytes);
      }
    }
    receive();
    device.Synchronize();
  }

 private:
  struct OutgoingTensor {
    SourceTensor source;
    DeviceSet::Device* device;
  };
  struct Outgoing {
    std::vector<OutgoingTensor> tensors;
    size_t tensor = 0, element = 0;  // the next to go
    size_t turn = 0;
  };
  /// What goes to the communicator in one call: enough to keep its pipeline busy, little enough
  /// that checksum and cast of the next batch do not let it run dry for long.
  struct Batch {
    struct Place {
      size_t tensor, offset;  // in bytes on the wire
    };
    std::vector<ConstBytes> pieces;
    std::vector<Place> places;
  };

  static size_t Aligned(size_t bytes) {
    return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  }

  /// Begins to bring the next pieces into host memory; AwaitDevices ends it. Empty at the end.
  Batch NextBatch(Outgoing& out) {
    Batch batch;
    const size_t which = out.turn++ % 2;
    size_t used = 0;
    for (; out.tensor < out.tensors.size(); ++out.tensor, out.element = 0) {
      const OutgoingTensor& tensor = out.tensors[out.tensor];
      const size_t wire_size = SizeOf(tensor.source.wire_dtype);
      const auto elements = static_cast<size_t>(tensor.source.elements);
      while (out.element < elements) {
        const size_t count = std::min(piece_bytes_ / wire_size, elements - out.element);
        const size_t bytes = count * wire_size;
        if (used + bytes > batch_bytes_) return batch;
        batch.pieces.emplace_back(Fetch(tensor, out.element, count, which, used), bytes);
        batch.places.push_back({out.tensor, out.element * wire_size});
        used = Aligned(used + bytes);
        out.element += count;
      }
    }
    return batch;
  }

  /// Where `count` elements will be in host memory, in their wire dtype: in place if they are.
  const std::byte* Fetch(const OutgoingTensor& tensor, size_t element, size_t count, size_t which,
                         size_t used) {
    const SourceTensor& source = tensor.source;
    DeviceTransfer& transfer = *tensor.device->transfer;
    const auto* from = static_cast<const std::byte*>(source.data) + element * SizeOf(source.dtype);
    const bool cast = source.dtype != source.wire_dtype;
    if (transfer.host_memory() && !cast) return from;
    std::byte* to = buffers_->Get(which, batch_bytes_, transfer) + used;
    const auto elements = static_cast<int64_t>(count);
    if (!cast) {
      transfer.Copy(to, from, count * SizeOf(source.dtype));
    } else if (transfer.host_memory()) {
      transfer.Cast(from, source.dtype, to, source.wire_dtype, elements);
    } else {
      std::byte* scratch = static_cast<std::byte*>(tensor.device->Scratch(batch_bytes_)) + used;
      transfer.Cast(from, source.dtype, scratch, source.wire_dtype, elements);
      transfer.Copy(to, scratch, count * SizeOf(source.wire_dtype));
    }
    return to;
  }

  void AwaitDevices() {
    for (auto& [name, device] : devices_) {
      device.transfer->Synchronize();
      if (device.transfer->TakeCastOverflow())
        throw Error("a tensor changed while it was being sent: a value is out of range now");
    }
  }

  /// From the rank before this one into host memory, and on to the one after it.
  void ReceiveOnHost(uint64_t transfer, std::span<const MutableBytes> spans, Deadline deadline,
                     const Service& service) {
    const int source = group_[place_ - 1];
    if (place_ + 1 == group_.size())
      communicator_.ReceiveBulk(source, transfer, spans, deadline, service);
    else
      communicator_.RelayBulk(source, group_[place_ + 1], transfer, spans, deadline, service);
  }

  Communicator& communicator_;
  const std::vector<int> group_;
  const size_t piece_bytes_, batch_bytes_;
  size_t place_ = 0;  // of this rank in the group
  DeviceSet devices_;
  std::shared_ptr<HostBuffers> buffers_;
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
