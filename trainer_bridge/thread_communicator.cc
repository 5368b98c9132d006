// Ranks as threads: every rank has a mailbox, a bulk piece is a copied vector in it.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "trainer_bridge/communicator.h"

namespace rollcast {
namespace {

constexpr size_t kPiecesInFlight = 4;  // of one transfer between two ranks
constexpr auto kServicePeriod = std::chrono::milliseconds(2);

struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Message> control;
  std::map<std::pair<int, uint64_t>, std::deque<std::vector<std::byte>>> bulk;  // source, transfer
};

using World = std::vector<Mailbox>;

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, int rank, size_t piece_bytes)
      : world_(std::move(world)), rank_(rank), piece_bytes_(piece_bytes) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_->size()); }
  size_t bulk_piece_bytes() const override { return piece_bytes_; }

  void Send(int destination, std::vector<std::byte> bytes) override {
    Mailbox& box = BoxOf(destination);
    const std::lock_guard lock(box.mutex);
    box.control.push_back({rank_, std::move(bytes)});
  }

  bool Flush(Deadline) override { return true; }

  void SendBulk(int destination, uint64_t transfer, std::span<const ConstBytes> spans,
                Deadline deadline, const Service& service) override {
    for (const ConstBytes span : spans)
      for (size_t begin = 0; begin < span.size(); begin += piece_bytes_)
        PutPiece(destination, transfer,
                 span.subspan(begin, std::min(piece_bytes_, span.size() - begin)), deadline,
                 service);
  }

  void ReceiveBulk(int source, uint64_t transfer, std::span<const MutableBytes> spans,
                   Deadline deadline, const Service& service) override {
    for (const MutableBytes span : spans)
      for (size_t begin = 0; begin < span.size(); begin += piece_bytes_)
        TakePiece(source, transfer,
                  span.subspan(begin, std::min(piece_bytes_, span.size() - begin)), deadline,
                  service);
  }

  void RelayBulk(int source, int destination, uint64_t transfer,
                 std::span<const MutableBytes> spans, Deadline deadline,
                 const Service& service) override {
    for (const MutableBytes span : spans) {
      for (size_t begin = 0; begin < span.size(); begin += piece_bytes_) {
        const MutableBytes piece = span.subspan(begin, std::min(piece_bytes_, span.size() - begin));
        TakePiece(source, transfer, piece, deadline, service);
        PutPiece(destination, transfer, piece, deadline, service);
      }
    }
  }

  void Abandon() override {}

 protected:
  std::optional<Message> PollTransport() override {
    Mailbox& box = BoxOf(rank_);
    const std::lock_guard lock(box.mutex);
    if (box.control.empty()) return std::nullopt;
    Message message = std::move(box.control.front());
    box.control.pop_front();
    return message;
  }

 private:
  Mailbox& BoxOf(int rank) {
    RC_CHECK(rank >= 0 && rank < size(), "rank ", rank, " of ", size());
    return (*world_)[static_cast<size_t>(rank)];
  }

  /// Waits on `box` until `ready`, calling `service` without the lock; false at `deadline`.
  template <class Ready>
  static bool WaitOn(Mailbox& box, std::unique_lock<std::mutex>& lock, Deadline deadline,
                     const Service& service, Ready ready) {
    while (!ready()) {
      const auto now = Clock::now();
      if (now >= deadline) return false;
      box.changed.wait_until(lock, std::min(deadline, now + kServicePeriod), ready);
      if (service) {
        lock.unlock();
        service();
        lock.lock();
      }
    }
    return true;
  }

  void PutPiece(int destination, uint64_t transfer, ConstBytes piece, Deadline deadline,
                const Service& service) {
    if (service) service();
    Mailbox& box = BoxOf(destination);
    std::unique_lock lock(box.mutex);
    const std::pair key(rank_, transfer);
    if (!WaitOn(box, lock, deadline, service,
                [&] { return box.bulk[key].size() < kPiecesInFlight; }))
      throw PeerLost(destination,
                     StrCat("rank ", destination, " did not take bulk data in time (rank ", rank_,
                            " sends transfer ", transfer, ")"));
    box.bulk[key].emplace_back(piece.begin(), piece.end());
    box.changed.notify_all();
  }

  void TakePiece(int source, uint64_t transfer, MutableBytes piece, Deadline deadline,
                 const Service& service) {
    if (service) service();
    Mailbox& box = BoxOf(rank_);
    std::unique_lock lock(box.mutex);
    const std::pair key(source, transfer);
    // Pieces of earlier transfers from this source were given up.
    std::erase_if(box.bulk, [&](const auto& entry) {
      return entry.first.first == source && entry.first.second < transfer;
    });
    if (!WaitOn(box, lock, deadline, service, [&] { return !box.bulk[key].empty(); }))
      throw PeerLost(source, StrCat("rank ", source, " did not send bulk data in time (rank ",
                                    rank_, " receives transfer ", transfer, ")"));
    const std::vector<std::byte> data = std::move(box.bulk[key].front());
    box.bulk[key].pop_front();
    if (box.bulk[key].empty()) box.bulk.erase(key);
    box.changed.notify_all();
    lock.unlock();
    if (data.size() != piece.size())
      throw Error(StrCat("transfer ", transfer, ": a piece from rank ", source, " has ",
                         data.size(), " bytes, expected ", piece.size()));
    std::copy(data.begin(), data.end(), piece.begin());
  }

  std::shared_ptr<World> world_;
  int rank_;
  size_t piece_bytes_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int size,
                                                                   size_t bulk_piece_bytes) {
  RC_CHECK_GT(size, 0);
  RC_CHECK_GT(bulk_piece_bytes, 0u);
  auto world = std::make_shared<World>(static_cast<size_t>(size));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<ThreadCommunicator>(world, rank, bulk_piece_bytes));
  return ranks;
}

}  // namespace rollcast
