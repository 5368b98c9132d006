// Messages between the ranks of a job.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
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

/// Control messages and bulk data travel on channels of their own, so a long transfer never delays
/// a vote.
enum class Channel : int { kControl = 0, kBulk = 1 };

struct Message {
  int source = -1;
  std::vector<std::byte> bytes;
};

/// Point-to-point messages. No collective is needed after construction, so a dead rank can be left
/// behind. Messages of one (source, channel) arrive in order. Used from one thread (the bridge
/// thread).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts sending a copy of `bytes` and returns; never blocks on a slow peer.
  virtual void Send(int destination, Channel channel, std::vector<std::byte> bytes) = 0;
  /// The next message from anybody on the control channel, if one has arrived. Also moves pending
  /// sends on.
  virtual std::optional<Message> Poll() = 0;

  /// Bulk: sends `bytes` from the caller's own memory, in pieces, without a copy where the
  /// transport can; returns when the memory may be reused. Throws PeerLost at `deadline`.
  virtual void SendBulk(int destination, std::span<const std::byte> bytes, Deadline deadline) = 0;
  /// Fills `bytes` from `source`. Throws PeerLost at `deadline`.
  virtual void ReceiveBulk(int source, std::span<std::byte> bytes, Deadline deadline) = 0;
  /// Receives `bytes` from `source` and passes each piece on to `destination` as it arrives.
  virtual void RelayBulk(int source, int destination, std::span<std::byte> bytes,
                         Deadline deadline) = 0;

  /// Gives all unfinished sends up, e.g. before exit beside a dead peer.
  virtual void Abandon() = 0;
};

/// Ranks as threads of one process, for tests: element i of the result is rank i.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int size);

}  // namespace rollcast
