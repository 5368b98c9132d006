// Messages between the ranks of a job.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/check.h"

namespace rollcast {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// A peer did not answer in time, or is gone. Names the rank and what was waited for.
class PeerLost : public Error {
 public:
  PeerLost(int rank, const std::string& what) : Error(what), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// One control message.
struct Message {
  int source = -1;
  std::vector<std::byte> bytes;
};

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// Called between the pieces of a bulk transfer and at least every 10 ms while one waits, so that
/// its thread goes on answering control messages. May call Poll and Send; must not start another
/// bulk transfer. An exception from it ends the transfer and reaches the caller.
using Service = std::function<void()>;

constexpr size_t kBulkPieceBytes = size_t{1} << 20;

/// Point-to-point messages on two channels: small *control* messages and *bulk* data, so a long
/// transfer never delays a vote. No collective is needed after construction, so a dead rank can be
/// left behind. Control messages of one source arrive in order. Used from one thread (the bridge
/// thread).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts sending `bytes` on the control channel and returns; never blocks on a slow peer. A rank
  /// may send to itself.
  virtual void Send(int destination, std::vector<std::byte> bytes) = 0;
  /// The next control message from anybody, if one has arrived. Also moves pending sends on.
  std::optional<Message> Poll();
  /// Puts a message back that somebody else is to see: later calls of Poll return deferred messages
  /// first, in the order of the calls of Defer.
  void Defer(Message message) { deferred_.push_back(std::move(message)); }
  /// Moves pending control sends on until all have left or `deadline`; true when all have left.
  virtual bool Flush(Deadline deadline) = 0;

  /// Bulk data. Both ends list the same sizes; every span is cut into pieces of bulk_piece_bytes()
  /// that are pipelined across spans. `transfer` names the transfer: pieces of one that was given
  /// up never reach a later one, so the ids between two ranks must grow. One transfer may be
  /// several calls in a row. All throw PeerLost at `deadline`, naming the peer that was waited for,
  /// and Error when a piece has not the size expected.
  ///
  /// Sends from the caller's own memory, without a copy where the transport can; returns when the
  /// memory may be reused. After an exception the memory must stay mapped (its contents do not
  /// matter) until this communicator is destroyed or the next SendBulk to `destination` returns.
  virtual void SendBulk(int destination, uint64_t transfer, std::span<const ConstBytes> spans,
                        Deadline deadline, const Service& service) = 0;
  /// Fills `spans` from `source`.
  virtual void ReceiveBulk(int source, uint64_t transfer, std::span<const MutableBytes> spans,
                           Deadline deadline, const Service& service) = 0;
  /// Fills `spans` from `source` and passes each piece on to `destination` as it arrives.
  virtual void RelayBulk(int source, int destination, uint64_t transfer,
                         std::span<const MutableBytes> spans, Deadline deadline,
                         const Service& service) = 0;
  virtual size_t bulk_piece_bytes() const = 0;

  /// Keeps memory of bulk transfers mapped for as long as the rule above asks for it.
  void Retain(std::shared_ptr<const void> memory) { retained_.push_back(std::move(memory)); }

  /// Gives all unfinished sends up, e.g. before exit beside a dead peer.
  virtual void Abandon() = 0;

 protected:
  virtual std::optional<Message> PollTransport() = 0;

 private:
  std::deque<Message> deferred_;
  std::vector<std::shared_ptr<const void>> retained_;
};

/// Ranks as threads of one process: element i of the result is rank i. For tests, and with size 1
/// for a job of one process without MPI.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(
    int size, size_t bulk_piece_bytes = kBulkPieceBytes);

/// Waits for less than a millisecond before a rank looks again: not at all at first, then in longer
/// and longer sleeps, so that a waiting rank leaves its core to whoever computes. Reset when
/// something happened.
class Backoff {
 public:
  void Wait();
  void Reset() {
    first_.reset();
    sleeps_ = 0;
  }

 private:
  std::optional<Clock::time_point> first_;  // the first look since something happened
  int sleeps_ = 0;
};

}  // namespace rollcast
