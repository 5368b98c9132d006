#include "trainer_bridge/ipc_weight_transport.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <utility>

#include "trainer_bridge/bulk_message.h"
#include "trainer_bridge/shared_counters.h"
#include "trainer_bridge/transfer_wait.h"
#include "trainer_bridge/wire.h"

namespace rollcast {
namespace {

// A counter holds (transfer, chunks that are there). A value of another transfer counts as none, so
// what a rank that gave up still writes can never pass for a part of a later transfer.
constexpr int kChunkBits = 24;
constexpr uint64_t kOpened = 1;  // transfer 0: the rank has opened the counters
// Chunks that wait for nobody's buffer are copied and counted in batches.
constexpr size_t kChunksABatch = 16;
constexpr size_t kBatchesAhead = 4;

/// How a rank reaches the memory that it pulls from.
struct SharedTensors {
  std::vector<std::string> tensors;  // handles, one a tensor; empty: through the ring
  std::vector<std::string> ring;     // handles of the ring's chunks, in order
  static void Fields(auto& self, auto&& visit) { visit(self.tensors, self.ring); }
};

std::vector<std::byte> Pack(const SharedTensors& shared) {
  Writer writer;
  writer.Put(shared);
  return std::move(writer).Take();
}

SharedTensors Unpack(const std::vector<std::byte>& bytes) {
  SharedTensors shared;
  Reader reader(bytes);
  reader.Get(shared);
  reader.Finish();
  return shared;
}

/// Which chunks go through the ring: those with a piece of a tensor that does.
std::vector<bool> RingChunks(const std::vector<Chunk>& chunks, const std::vector<bool>& staged) {
  std::vector<bool> through;
  for (const Chunk& chunk : chunks)
    through.push_back(std::any_of(chunk.begin(), chunk.end(),
                                  [&](const ChunkPiece& piece) { return staged[piece.tensor]; }));
  return through;
}

class IpcTransport final : public WeightTransport {
 public:
  IpcTransport(Communicator& communicator, std::vector<int> group,
               const IpcTransportOptions& options, size_t chunk_bytes,
               std::shared_ptr<SharedCounters> counters)
      : communicator_(communicator),
        group_(std::move(group)),
        chunk_bytes_(chunk_bytes),
        ring_chunks_(static_cast<size_t>(options.ring_chunks)),
        counters_(std::move(counters)),
        device_(options.make_device()),
        beside_(options.make_device()),
        source_(*device_) {
    const auto mine = std::find(group_.begin(), group_.end(), communicator_.rank());
    RC_CHECK(mine != group_.end(), "rank ", communicator_.rank(), " is not in the group");
    RC_CHECK_GE(group_.size(), 2u);
    RC_CHECK_GT(ring_chunks_, 0u);
    if (group_.size() > static_cast<size_t>(SharedCounters::kCount))
      throw Error(StrCat("transport ipc: ", group_.size(), " ranks, it serves at most ",
                         SharedCounters::kCount, "; set sync.transport to nccl"));
    place_ = static_cast<size_t>(mine - group_.begin());
    if (Counter(place_).load(std::memory_order_relaxed) == 0)
      Counter(place_).store(kOpened, std::memory_order_release);
  }

  const char* name() const override { return "ipc"; }
  bool broken() const override { return broken_; }

  void Prepare(uint64_t transfer, std::span<const SourceTensor> tensors) override {
    prepared_ = Prepared();
    prepared_.transfer = transfer;
    const std::vector<size_t> sizes = WireSizes(tensors);
    prepared_.chunks = Cut(sizes);
    SharedTensors shared = ShareWireMemory(tensors, sizes);
    for (size_t i = 0; i < tensors.size(); ++i)
      prepared_.staged.push_back(sizes[i] > 0 && shared.tensors[i].empty());
    const std::vector<bool> through = RingChunks(prepared_.chunks, prepared_.staged);
    for (size_t i = 0; i < through.size(); ++i)
      if (through[i]) prepared_.ring.push_back(i);
    if (!prepared_.ring.empty()) shared.ring = ShareRing();
    prepared_.message = Pack(shared);
  }

  uint64_t Send(uint64_t transfer, std::span<const SourceTensor> tensors, Deadline deadline,
                const Service& service) override {
    RC_CHECK_EQ(place_, 0u);
    if (prepared_.transfer != transfer) Prepare(transfer, tensors);
    const Prepared prepared = std::exchange(prepared_, Prepared());
    const std::vector<Chunk>& chunks = prepared.chunks;
    const std::vector<bool>& staged = prepared.staged;
    const std::vector<size_t>& ring = prepared.ring;
    UpdateDigest digest(tensors);
    if (chunks.empty()) return digest.value();

    const auto publish = [&](size_t filled) {  // chunks of the ring
      Publish(transfer, filled < ring.size() ? ring[filled] : chunks.size());
    };
    Attempt attempt(*this);
    publish(0);
    SendBulkMessage(communicator_, group_[1], transfer, prepared.message, deadline, service);
    TransferWait wait(deadline, service);
    size_t filled = 0, digested = 0;
    for (;;) {
      bool moved = false;
      if (filled < ring.size() &&
          (filled < ring_.size() || ChunksAt(1, transfer) > ring[filled - ring_.size()])) {
        auto* slot = ring_[filled % ring_.size()].as<std::byte>();
        const Chunk& chunk = chunks[ring[filled]];
        source_.Fill(tensors, chunk, staged, slot);
        publish(++filled);
        digest.AddChunk(*beside_, chunk, staged, slot);
        moved = true;
      } else if (digested < tensors.size() && ChunksAt(1, transfer) == chunks.size()) {
        // Not before nobody pulls from here: the sums read memory as fast as it goes. The ranks
        // take as long over theirs.
        digested = digest.AddWhole(*beside_, staged, digested);
        moved = true;
      }
      bool opened = true, done = true;
      for (size_t place = 1; place < group_.size(); ++place) {
        opened &= Counter(place).load(std::memory_order_acquire) != 0;
        done &= ChunksAt(place, transfer) == chunks.size();
      }
      if (opened) counters_->Unlink();
      if (done && digested == tensors.size()) break;
      if (!wait.Next(moved) && !done) ThrowLate(transfer, chunks.size());
    }
    attempt.Succeeded();
    return digest.value();
  }

  void Receive(uint64_t transfer, std::span<const MutableBytes> spans, Deadline deadline,
               const Service& service) override {
    RC_CHECK_GT(place_, 0u);
    std::vector<size_t> sizes;
    for (const MutableBytes span : spans) sizes.push_back(span.size());
    const std::vector<Chunk> chunks = Cut(sizes);
    if (chunks.empty()) return;
    Publish(transfer, 0);
    if (place_ + 1 < group_.size())
      SendBulkMessage(communicator_, group_[place_ + 1], transfer, Pack(ShareSpans(spans)),
                      deadline, service);
    const SharedTensors shared =
        Unpack(ReceiveBulkMessage(communicator_, group_[place_ - 1], transfer, deadline, service));
    if (shared.tensors.size() != spans.size())
      throw Error(StrCat("transfer ", transfer, ": rank ", group_[place_ - 1], " shares ",
                         shared.tensors.size(), " tensors, expected ", spans.size()));

    std::vector<const std::byte*> tensors, ring;
    std::vector<bool> staged;
    for (size_t i = 0; i < spans.size(); ++i) {
      staged.push_back(sizes[i] > 0 && shared.tensors[i].empty());
      tensors.push_back(shared.tensors[i].empty() ? nullptr : Open(shared.tensors[i], transfer));
    }
    for (const std::string& handle : shared.ring) ring.push_back(Open(handle, transfer));
    const std::vector<bool> through = RingChunks(chunks, staged);
    RC_CHECK(!ring.empty() || std::find(through.begin(), through.end(), true) == through.end(),
             "rank ", group_[place_ - 1], " has no ring");

    Attempt attempt(*this);
    TransferWait wait(deadline, service);
    struct Batch {
      std::unique_ptr<Event> copied;
      size_t end;  // chunks that are there when it is
    };
    std::deque<Batch> batches;  // under way, the oldest first
    size_t next = 0, done = 0, ring_next = 0;
    while (done < chunks.size()) {
      bool moved = false;
      const size_t there = std::min(ChunksAt(place_ - 1, transfer), chunks.size());
      while (next < there && batches.size() < kBatchesAhead) {
        const size_t begin = next;
        std::vector<CopyRange> copies;
        bool ring_chunk = false;  // its sender waits for the buffer
        while (next < there && next - begin < kChunksABatch && !ring_chunk) {
          ring_chunk = through[next];
          const std::byte* slot = ring_chunk ? ring[ring_next++ % ring.size()] : nullptr;
          for (const ChunkPiece& piece : chunks[next])
            copies.push_back(
                {spans[piece.tensor].data() + piece.offset,
                 staged[piece.tensor] ? slot + piece.place : tensors[piece.tensor] + piece.offset,
                 piece.bytes});
          ++next;
        }
        device_->CopyAll(copies);
        batches.push_back({device_->Record(), next});
        moved = true;
      }
      for (; !batches.empty() && batches.front().copied->Ready(); moved = true) {
        done = batches.front().end;
        batches.pop_front();
        Publish(transfer, done);
      }
      if (done == chunks.size()) break;
      if (!wait.Next(moved)) ThrowLate(transfer, chunks.size());
    }
    attempt.Succeeded();
    std::erase_if(opened_, [&](const auto& entry) { return entry.second.last_used != transfer; });
  }

 private:
  /// A try that fails leaves nothing enqueued behind it: a copy that is still running would fall
  /// into memory that the next update fills.
  class Attempt {
   public:
    explicit Attempt(IpcTransport& transport) : transport_(transport) {}
    ~Attempt() {
      if (succeeded_) return;
      try {
        transport_.device_->Synchronize();
        transport_.beside_->Synchronize();
      } catch (const std::exception&) {
        transport_.broken_ = true;
      }
    }
    void Succeeded() { succeeded_ = true; }

   private:
    IpcTransport& transport_;
    bool succeeded_ = false;
  };

  /// What Send needs, from Prepare.
  struct Prepared {
    uint64_t transfer = 0;  // no transfer has this number
    std::vector<Chunk> chunks;
    std::vector<bool> staged;
    std::vector<size_t> ring;  // the chunks that go through it
    std::vector<std::byte> message;
  };

  struct Opened {
    Buffer memory;
    uint64_t last_used = 0;  // transfer
  };

  std::vector<Chunk> Cut(std::span<const size_t> sizes) const {
    std::vector<Chunk> chunks = CutIntoChunks(sizes, chunk_bytes_);
    RC_CHECK_LT(chunks.size(), size_t{1} << kChunkBits);
    return chunks;
  }

  std::atomic<uint64_t>& Counter(size_t place) const {
    return (*counters_)[static_cast<int>(place)];
  }
  /// What came before it, copies that have finished included, is there for who sees it.
  void Publish(uint64_t transfer, size_t chunks) {
    Counter(place_).store(transfer << kChunkBits | chunks, std::memory_order_release);
  }
  size_t ChunksAt(size_t place, uint64_t transfer) const {
    const uint64_t value = Counter(place).load(std::memory_order_acquire);
    return value >> kChunkBits == transfer ? value & ((uint64_t{1} << kChunkBits) - 1) : 0;
  }

  /// The rank that everybody waits for is the first that has not pulled what was there for it.
  [[noreturn]] void ThrowLate(uint64_t transfer, size_t chunks) const {
    const size_t end = place_ == 0 ? group_.size() : place_ + 1;
    size_t late = 0;
    for (size_t place = 1; place < end && late == 0; ++place)
      if (ChunksAt(place, transfer) < ChunksAt(place - 1, transfer)) late = place;
    throw PeerLost(group_[late],
                   StrCat("rank ", group_[late], " has ", ChunksAt(late, transfer), " of ", chunks,
                          " chunks of transfer ", transfer,
                          " and did not go on in time (seen by rank ", communicator_.rank(), ")"));
  }

  std::vector<std::string> ShareRing() {
    while (ring_.size() < ring_chunks_) ring_.push_back(device_->Allocate(chunk_bytes_));
    std::vector<std::string> handles;
    for (const Buffer& slot : ring_) {
      handles.push_back(device_->Share(slot.data()));
      if (handles.back().empty())
        throw Error(StrCat("transport ipc: memory of ", device_->name(),
                           " cannot be shared with other processes; set sync.transport to nccl or "
                           "mpi"));
    }
    return handles;
  }

  SharedTensors ShareWireMemory(std::span<const SourceTensor> tensors,
                                std::span<const size_t> sizes) {
    std::vector<const void*> memory;
    std::vector<size_t> places;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (sizes[i] == 0 || !IsWireMemory(tensors[i], *device_)) continue;
      memory.push_back(tensors[i].data);
      places.push_back(i);
    }
    SharedTensors shared;
    shared.tensors.resize(tensors.size());
    std::vector<std::string> handles = device_->ShareAll(memory);
    for (size_t i = 0; i < places.size(); ++i) shared.tensors[places[i]] = std::move(handles[i]);
    return shared;
  }

  SharedTensors ShareSpans(std::span<const MutableBytes> spans) {
    std::vector<const void*> memory;
    for (const MutableBytes span : spans) memory.push_back(span.data());
    SharedTensors shared;
    shared.tensors = device_->ShareAll(memory);
    for (size_t i = 0; i < spans.size(); ++i) {
      if (spans[i].empty())
        shared.tensors[i].clear();
      else if (shared.tensors[i].empty())
        throw Error(StrCat("transport ipc: the weights of rank ", communicator_.rank(), " on ",
                           device_->name(),
                           " cannot be shared with other processes; set sync.transport to nccl or "
                           "mpi"));
    }
    return shared;
  }

  const std::byte* Open(const std::string& handle, uint64_t transfer) {
    auto it = opened_.find(handle);
    if (it == opened_.end()) {
      try {
        it = opened_.emplace(handle, Opened{device_->OpenShared(handle)}).first;
      } catch (const Error& error) {
        throw Error(StrCat("transport ipc: rank ", communicator_.rank(),
                           " cannot reach the memory of rank ", group_[place_ - 1], ": ",
                           error.what(), "; set sync.transport to nccl or mpi"));
      }
    }
    it->second.last_used = transfer;
    return it->second.memory.as<std::byte>();
  }

  Communicator& communicator_;
  const std::vector<int> group_;
  const size_t chunk_bytes_, ring_chunks_;
  size_t place_ = 0;  // of this rank in the group
  const std::shared_ptr<SharedCounters> counters_;
  const std::unique_ptr<DeviceTransfer> device_;
  const std::unique_ptr<DeviceTransfer> beside_;  // for checksums, while others copy
  StagedSource source_;
  Prepared prepared_;  // trainer only, as ring_ is
  std::vector<Buffer> ring_;
  std::map<std::string, Opened> opened_;  // by handle
  bool broken_ = false;
};

/// "name:chunk bytes".
std::pair<std::string, size_t> ParseToken(const std::string& token) {
  const size_t colon = token.rfind(':');
  size_t chunk_bytes = 0;
  const char* end = token.data() + token.size();
  if (colon == std::string::npos ||
      std::from_chars(token.data() + colon + 1, end, chunk_bytes).ptr != end || chunk_bytes == 0 ||
      chunk_bytes % kChunkAlignment != 0)
    throw Error(StrCat("transport ipc: the trainer's token \"", token, "\" cannot be read"));
  return {token.substr(0, colon), chunk_bytes};
}

/// What the transports of one maker have in common.
struct MakerState {
  std::shared_ptr<SharedCounters> offered;  // by the last make_token
};

}  // namespace

WeightTransportMaker IpcWeightTransport(IpcTransportOptions options) {
  RC_CHECK(options.make_device != nullptr);
  auto state = std::make_shared<MakerState>();
  WeightTransportMaker maker;
  maker.name = "ipc";
  maker.make_token = [state, chunk_bytes = options.chunk_bytes] {
    if (state->offered != nullptr) state->offered->Unlink();
    state->offered = SharedCounters::Create();
    return StrCat(state->offered->name(), ":", chunk_bytes);
  };
  maker.make = [state, options = std::move(options)](
                   Communicator& communicator, const std::vector<int>& group,
                   const std::string& token) -> std::unique_ptr<WeightTransport> {
    const auto [name, chunk_bytes] = ParseToken(token);
    const bool offered = state->offered != nullptr && state->offered->name() == name;
    return std::make_unique<IpcTransport>(communicator, group, options, chunk_bytes,
                                          offered ? state->offered : SharedCounters::Open(name));
  };
  return maker;
}

}  // namespace rollcast
