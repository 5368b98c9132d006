// A communicator that misbehaves by script.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "trainer_bridge/communicator.h"
#include "trainer_bridge/wire.h"

namespace rollcast::testing {

/// One thing that goes wrong, once; kSilence lasts.
struct Fault {
  enum class Kind {
    kDrop,
    kDelay,     // by `delay`; later messages queue up behind it
    kTruncate,  // to half
    kCorrupt,   // one bit in the middle
    kSilence,   // this and all that follows is swallowed, and nothing is received any more
  };
  enum class On { kSend, kReceive, kBulkOut, kBulkIn };  // control messages; pieces of bulk data

  Kind kind = Kind::kDrop;
  On on = On::kSend;
  std::optional<MessageType> type;  // control messages only; none = any
  int nth = 1;                      // counted from 1 among those that match
  std::chrono::milliseconds delay{0};
};

/// Wraps a communicator. A bulk call with faults in its direction goes piece by piece.
class FaultyCommunicator final : public Communicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, std::vector<Fault> faults);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  size_t bulk_piece_bytes() const override { return inner_->bulk_piece_bytes(); }
  void Send(int destination, std::vector<std::byte> bytes) override;
  bool Flush(Deadline deadline) override;
  void SendBulk(int destination, uint64_t transfer, std::span<const ConstBytes> spans,
                Deadline deadline, const Service& service) override;
  void ReceiveBulk(int source, uint64_t transfer, std::span<const MutableBytes> spans,
                   Deadline deadline, const Service& service) override;
  void RelayBulk(int source, int destination, uint64_t transfer,
                 std::span<const MutableBytes> spans, Deadline deadline,
                 const Service& service) override;
  void Abandon() override { inner_->Abandon(); }

  /// Silence from now on, as by a kSilence fault.
  void GoSilent() { silent_ = true; }

 protected:
  std::optional<Message> PollTransport() override;

 private:
  struct Counted {
    Fault fault;
    int seen = 0;
  };
  struct Held {
    Deadline release;
    int destination;
    std::vector<std::byte> bytes;
  };

  /// The fault that strikes now, if one does.
  const Fault* Strike(Fault::On on, std::optional<MessageType> type);
  /// False when the message or piece is not to go on.
  bool Alter(const Fault* fault, std::vector<std::byte>& bytes);
  void ReleaseHeld();
  void SendPiece(int destination, uint64_t transfer, ConstBytes piece, Deadline deadline,
                 const Service& service);
  void ReceivePiece(int source, uint64_t transfer, MutableBytes piece, Deadline deadline,
                    const Service& service);
  [[noreturn]] void Hang(int peer, Deadline deadline);

  std::unique_ptr<Communicator> inner_;
  std::vector<Counted> faults_;
  std::deque<Held> held_;
  bool silent_ = false;
};

}  // namespace rollcast::testing
