#include "trainer_bridge/nccl_weight_transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "trainer_bridge/bulk_message.h"
#include "trainer_bridge/nccl_library.h"
#include "trainer_bridge/transfer_wait.h"
#include "trainer_bridge/wire.h"

namespace rollcast {
namespace {

// How long NCCL may be enqueuing a group before looks are TransferWait's pause apart.
constexpr auto kEnqueueLooks = std::chrono::microseconds(500);
// For kernels to leave the device once their communicator is aborted.
constexpr auto kQuiet = std::chrono::seconds(10);

/// What the ranks need to know before they join the broadcasts. It also is the trainer's side of a
/// handshake: a receiving kernel that waits for a late trainer would hold multiprocessors.
struct Plan {
  uint64_t first_group_bytes = 0;
  uint64_t group_bytes = 0;     // of the groups of staged tensors, which come last
  std::vector<uint8_t> staged;  // one a tensor: 1 = not sent from where it lies
  static void Fields(auto& self, auto&& visit) {
    visit(self.first_group_bytes, self.group_bytes, self.staged);
  }
};

struct Token {
  int32_t version = 0;
  std::string file, id;
  static void Fields(auto& self, auto&& visit) { visit(self.version, self.file, self.id); }
};

template <class T>
T Unpack(std::span<const std::byte> bytes) {
  T value;
  Reader reader(bytes);
  reader.Get(value);
  reader.Finish();
  return value;
}

template <class T>
std::vector<std::byte> Pack(const T& value) {
  Writer writer;
  writer.Put(value);
  return std::move(writer).Take();
}

struct Range {
  std::byte* data;
  size_t bytes;
};

class NcclTransport final : public WeightTransport {
 public:
  NcclTransport(Communicator& communicator, std::vector<int> group,
                const NcclTransportOptions& options, std::shared_ptr<const nccl::Library> library,
                const std::string& id)
      : communicator_(communicator),
        group_(std::move(group)),
        first_group_bytes_(options.first_group_bytes),
        group_bytes_(options.group_bytes),
        library_(std::move(library)),
        device_(options.make_device()),
        beside_(options.make_device()),
        source_(*beside_) {
    const auto mine = std::find(group_.begin(), group_.end(), communicator_.rank());
    RC_CHECK(mine != group_.end(), "rank ", communicator_.rank(), " is not in the group");
    RC_CHECK_GE(group_.size(), 2u);
    RC_CHECK_GT(first_group_bytes_, 0u);
    RC_CHECK(group_bytes_ > 0 && group_bytes_ % kChunkAlignment == 0, group_bytes_);
    place_ = static_cast<size_t>(mine - group_.begin());
    RC_CHECK_EQ(id.size(), sizeof id_.internal);
    std::memcpy(id_.internal, id.data(), id.size());
  }
  // Never by ncclCommDestroy, which may wait for a peer.
  ~NcclTransport() override {
    if (comm_ == nullptr) return;
    try {
      device_->RunOnDevice([&] { library_->comm_abort(comm_); });
    } catch (const std::exception&) {
      // The device is lost, and with it what the communicator holds.
    }
  }

  const char* name() const override { return "nccl"; }
  bool broken() const override { return broken_; }

  void Prepare(uint64_t transfer, std::span<const SourceTensor> tensors) override {
    prepared_ = Prepared();
    prepared_.transfer = transfer;
    const std::vector<size_t> sizes = WireSizes(tensors);
    Plan plan;
    plan.first_group_bytes = first_group_bytes_;
    plan.group_bytes = group_bytes_;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const bool staged = sizes[i] > 0 && !IsWireMemory(tensors[i], *device_);
      prepared_.staged.push_back(staged);
      plan.staged.push_back(staged);
      prepared_.staged_sizes.push_back(staged ? sizes[i] : 0);
      auto* data = static_cast<std::byte*>(const_cast<void*>(tensors[i].data));
      if (!staged) prepared_.whole.push_back({data, sizes[i]});
    }
    prepared_.message = Pack(plan);
  }

  uint64_t Send(uint64_t transfer, std::span<const SourceTensor> tensors, Deadline deadline,
                const Service& service) override {
    RC_CHECK_EQ(place_, 0u);
    if (prepared_.transfer != transfer) Prepare(transfer, tensors);
    HearFromAll(transfer, deadline, service);
    uint64_t digest = 0;
    Try([&] { digest = Broadcast(transfer, tensors, deadline, service); });
    return digest;
  }

  void Receive(uint64_t transfer, std::span<const MutableBytes> spans, Deadline deadline,
               const Service& service) override {
    RC_CHECK_GT(place_, 0u);
    SendBulkMessage(communicator_, group_[0], transfer, {}, deadline, service);
    const auto plan =
        Unpack<Plan>(ReceiveBulkMessage(communicator_, group_[0], transfer, deadline, service));
    if (plan.staged.size() != spans.size())
      throw Error(StrCat("transfer ", transfer, ": the trainer sends ", plan.staged.size(),
                         " tensors, expected ", spans.size()));
    Try([&] {
      TransferWait wait(deadline, service);
      Join(wait);
      std::vector<Range> whole;
      std::vector<size_t> sizes;  // of the staged tensors
      for (size_t i = 0; i < spans.size(); ++i) {
        sizes.push_back(plan.staged[i] != 0 ? spans[i].size() : 0);
        if (plan.staged[i] == 0) whole.push_back({spans[i].data(), spans[i].size()});
      }
      EnqueueAll(whole, plan.first_group_bytes, wait);
      for (const Chunk& chunk : CutIntoChunks(sizes, plan.group_bytes)) {
        std::vector<Range> ranges;
        for (const ChunkPiece& piece : chunk)
          ranges.push_back({spans[piece.tensor].data() + piece.offset, piece.bytes});
        Enqueue(ranges, wait);
      }
      Await(*device_->Record(), wait);
      // The trainer's own part ends before ours does.
      SendBulkMessage(communicator_, group_[0], transfer, {}, deadline, service);
    });
  }

 private:
  uint64_t Broadcast(uint64_t transfer, std::span<const SourceTensor> tensors, Deadline deadline,
                     const Service& service) {
    const Prepared prepared = std::exchange(prepared_, Prepared());
    const std::vector<bool>& staged = prepared.staged;
    for (size_t place = 1; place < group_.size(); ++place)
      SendBulkMessage(communicator_, group_[place], transfer, prepared.message, deadline, service);
    TransferWait wait(deadline, service);
    Join(wait);

    UpdateDigest digest(tensors);
    const std::unique_ptr<Event> last_begins = EnqueueAll(prepared.whole, first_group_bytes_, wait);
    std::unique_ptr<Event> enqueued = device_->Record();
    // A checksum holds all multiprocessors: groups that it was ahead of would wait for it.
    if (last_begins != nullptr) Await(*last_begins, wait);
    for (size_t next = 0; next < tensors.size();) {
      next = digest.AddWhole(*beside_, staged, next);
      Busy();
      Pause(wait, true);
    }
    // While one buffer is being broadcast, the other is filled and summed.
    std::array<std::unique_ptr<Event>, 2> sent;
    size_t turn = 0;
    for (const Chunk& chunk : CutIntoChunks(prepared.staged_sizes, group_bytes_)) {
      Buffer& buffer = buffers_[turn];
      if (buffer.data() == nullptr) buffer = device_->Allocate(group_bytes_);
      if (sent[turn] != nullptr) Await(*sent[turn], wait);
      auto* data = buffer.as<std::byte>();
      source_.Fill(tensors, chunk, staged, data);
      std::vector<Range> ranges;
      for (const ChunkPiece& piece : chunk) ranges.push_back({data + piece.place, piece.bytes});
      Enqueue(ranges, wait);
      enqueued = device_->Record();
      sent[turn] = device_->Record();
      digest.AddChunk(*beside_, chunk, staged, data);
      turn = 1 - turn;
    }
    Await(*enqueued, wait);
    HearFromAll(transfer, deadline, service);
    return digest.value();
  }

  /// The trainer's wait for one empty message of each rank; names the late one.
  void HearFromAll(uint64_t transfer, Deadline deadline, const Service& service) {
    for (size_t place = 1; place < group_.size(); ++place)
      ReceiveBulkMessage(communicator_, group_[place], transfer, deadline, service);
  }

  /// Runs `body`; whatever ends it early aborts the communicator and waits until nothing of it can
  /// write to memory any more. A rank is in here only after the trainer, and the trainer leaves it
  /// well only after all ranks: so where one communicator is aborted the trainer's is too, and the
  /// next update makes all of them anew.
  template <class Body>
  void Try(Body body) {
    try {
      body();
    } catch (...) {
      Abort();
      throw;
    }
  }

  void Abort() {
    broken_ = true;
    if (comm_ == nullptr) return;
    device_->RunOnDevice([&] { library_->comm_abort(std::exchange(comm_, nullptr)); });
    const std::unique_ptr<Event> event = device_->Record();
    const Deadline limit = Clock::now() + kQuiet;
    for (Backoff backoff; !event->Ready(); backoff.Wait())
      // Not an Error: what it writes from now on would go unnoticed, so this ends the process.
      RC_CHECK(Clock::now() < limit, "NCCL kernels of rank ", communicator_.rank(),
               " do not end although their communicator was aborted");
    for (Buffer& buffer : buffers_) buffer = Buffer();  // nobody reads them now
  }

  void Join(TransferWait& wait) {
    if (comm_ != nullptr) return;
    device_->RunOnDevice([&] {
      nccl::Config config;
      config.blocking = 0;
      library_->Check(library_->comm_init_rank_config(&comm_, static_cast<int>(group_.size()), id_,
                                                      static_cast<int>(place_), &config),
                      "ncclCommInitRankConfig");
    });
    while (Busy()) Pause(wait, false);
  }

  /// Broadcasts from the trainer, in this order on every rank. A group's first byte leaves once all
  /// its broadcasts are enqueued, which takes NCCL microseconds for each; so the first group is
  /// small, and each one after it, enqueued while the one before runs, larger: groups cost the
  /// device something, too. The event is there when the last group is about to run; null when there
  /// is one at most.
  std::unique_ptr<Event> EnqueueAll(std::span<const Range> ranges, size_t first_group_bytes,
                                    TransferWait& wait) {
    std::vector<size_t> sizes;
    for (const Range& range : ranges) sizes.push_back(range.bytes);
    size_t begin = 0;
    std::unique_ptr<Event> event;
    for (const size_t end : GrowingRuns(sizes, first_group_bytes)) {
      if (begin > 0) event = device_->Record();
      Enqueue(ranges.subspan(begin, end - begin), wait);
      begin = end;
    }
    return event;
  }

  /// One group.
  void Enqueue(std::span<const Range> ranges, TransferWait& wait) {
    if (std::all_of(ranges.begin(), ranges.end(), [](const Range& r) { return r.bytes == 0; }))
      return;
    device_->RunOnDevice([&] { Launch(ranges); });
    // NCCL enqueues on a thread of its own, in less than a pause would take.
    for (const Deadline soon = Clock::now() + kEnqueueLooks; Busy() && Clock::now() < soon;)
      std::this_thread::yield();
    while (Busy()) Pause(wait, false);
  }

  void Launch(std::span<const Range> ranges) {
    library_->Check(library_->group_start(), "ncclGroupStart", comm_);
    nccl::Result result = nccl::kSuccess;
    for (const Range& range : ranges) {
      if (range.bytes == 0) continue;
      result = library_->broadcast(range.data, range.data, range.bytes, nccl::kUint8, 0, comm_,
                                   device_->stream());
      if (result != nccl::kSuccess && result != nccl::kInProgress) break;
    }
    const nccl::Result end = library_->group_end();  // also after a failure: groups are a thread's
    library_->Check(result, "ncclBroadcast", comm_);
    library_->Check(end, "ncclGroupEnd", comm_);
  }

  void Await(Event& event, TransferWait& wait) {
    while (!event.Ready()) {
      Busy();
      Pause(wait, false);
    }
  }

  /// True while the communicator works on the last call. Throws PeerLost on its errors.
  bool Busy() {
    nccl::Result state = nccl::kSuccess;
    library_->Check(library_->comm_get_async_error(comm_, &state), "ncclCommGetAsyncError", comm_);
    if (state != nccl::kSuccess && state != nccl::kInProgress)
      throw PeerLost(Suspect(), StrCat("NCCL failed on rank ", communicator_.rank(), " (", Ranks(),
                                       "): ", library_->Explain(state, "broadcast", comm_)));
    return state == nccl::kInProgress;
  }

  void Pause(TransferWait& wait, bool moved) {
    if (!wait.Next(moved))
      throw PeerLost(Suspect(),
                     StrCat("the NCCL broadcast of ", Ranks(),
                            " did not finish in time (seen by rank ", communicator_.rank(), ")"));
  }

  int Suspect() const { return group_.size() == 2 ? group_[1 - place_] : -1; }
  std::string Ranks() const {
    std::string text = "ranks";
    for (size_t i = 0; i < group_.size(); ++i) text += StrCat(i > 0 ? ", " : " ", group_[i]);
    return text;
  }

  /// What Send needs, from Prepare.
  struct Prepared {
    uint64_t transfer = 0;  // no transfer has this number
    std::vector<bool> staged;
    std::vector<size_t> staged_sizes;  // of those tensors, 0 for the others
    std::vector<Range> whole;          // the others
    std::vector<std::byte> message;
  };

  Communicator& communicator_;
  const std::vector<int> group_;
  const size_t first_group_bytes_, group_bytes_;
  size_t place_ = 0;  // of this rank in the group
  const std::shared_ptr<const nccl::Library> library_;
  nccl::UniqueId id_{};
  const std::unique_ptr<DeviceTransfer> device_;  // its stream is NCCL's
  const std::unique_ptr<DeviceTransfer> beside_;  // for casts and checksums
  StagedSource source_;
  Prepared prepared_;  // trainer only, as buffers_ are
  std::array<Buffer, 2> buffers_;
  nccl::Comm comm_ = nullptr;  // made in the first transfer
  bool broken_ = false;
};

/// What the transports of one maker have in common.
struct MakerState {
  std::shared_ptr<const nccl::Library> library;
};

}  // namespace

WeightTransportMaker NcclWeightTransport(NcclTransportOptions options) {
  RC_CHECK(options.make_device != nullptr);
  auto state = std::make_shared<MakerState>();
  const auto load = [state, file = options.library] {
    if (state->library == nullptr) state->library = nccl::Library::Load(file);
    return state->library;
  };
  WeightTransportMaker maker;
  maker.name = "nccl";
  maker.make_token = [load] {
    const std::shared_ptr<const nccl::Library> library = load();
    nccl::UniqueId id{};
    library->Check(library->get_unique_id(&id), "ncclGetUniqueId");
    const std::vector<std::byte> bytes =
        Pack(Token{library->version, library->file, std::string(id.internal, sizeof id.internal)});
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  maker.make = [state, load, options = std::move(options)](
                   Communicator& communicator, const std::vector<int>& group,
                   const std::string& text) -> std::unique_ptr<WeightTransport> {
    const auto token = Unpack<Token>(std::as_bytes(std::span(text)));
    const std::shared_ptr<const nccl::Library> library = load();
    if (library->version != token.version)
      throw Error(StrCat("NCCL ", nccl::VersionText(library->version), " of rank ",
                         communicator.rank(), " (", library->file, ") cannot work with the ",
                         nccl::VersionText(token.version), " of the trainer (", token.file,
                         "); set sync.nccl_library to a file of the same version"));
    return std::make_unique<NcclTransport>(communicator, group, options, library, token.id);
  };
  return maker;
}

}  // namespace rollcast
