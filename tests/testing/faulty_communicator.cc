#include "tests/testing/faulty_communicator.h"

#include <algorithm>
#include <thread>

namespace rollcast::testing {

FaultyCommunicator::FaultyCommunicator(std::unique_ptr<Communicator> inner,
                                       std::vector<Fault> faults)
    : inner_(std::move(inner)) {
  for (const Fault& fault : faults) faults_.push_back({fault});
}

const Fault* FaultyCommunicator::Strike(Fault::On on, std::optional<MessageType> type) {
  const Fault* strikes = nullptr;
  for (Counted& counted : faults_) {
    const Fault& fault = counted.fault;
    if (fault.on != on || (fault.type && fault.type != type)) continue;
    if (++counted.seen == fault.nth) strikes = &fault;
  }
  return strikes;
}

bool FaultyCommunicator::Alter(const Fault* fault, std::vector<std::byte>& bytes) {
  if (fault != nullptr) {
    switch (fault->kind) {
      case Fault::Kind::kDrop:
        return false;
      case Fault::Kind::kDelay:
        break;
      case Fault::Kind::kTruncate:
        bytes.resize(bytes.size() / 2);
        break;
      case Fault::Kind::kCorrupt:
        if (!bytes.empty()) bytes[bytes.size() / 2] ^= std::byte{0x10};
        break;
      case Fault::Kind::kSilence:
        silent_ = true;
        break;
    }
  }
  return !silent_;
}

void FaultyCommunicator::Send(int destination, std::vector<std::byte> bytes) {
  if (silent_) return;
  const Fault* fault = Strike(Fault::On::kSend, TypeOf(bytes));
  if (!Alter(fault, bytes)) return;
  ReleaseHeld();
  const bool delayed = fault != nullptr && fault->kind == Fault::Kind::kDelay;
  if (delayed || !held_.empty())
    held_.push_back({Clock::now() + (delayed ? fault->delay : std::chrono::milliseconds(0)),
                     destination, std::move(bytes)});
  else
    inner_->Send(destination, std::move(bytes));
}

void FaultyCommunicator::ReleaseHeld() {
  for (; !held_.empty() && held_.front().release <= Clock::now(); held_.pop_front())
    inner_->Send(held_.front().destination, std::move(held_.front().bytes));
}

bool FaultyCommunicator::Flush(Deadline deadline) {
  while (!silent_ && !held_.empty() && Clock::now() < deadline) {
    ReleaseHeld();
    std::this_thread::yield();
  }
  return inner_->Flush(deadline) && held_.empty();
}

std::optional<Message> FaultyCommunicator::PollTransport() {
  if (!silent_) ReleaseHeld();
  while (std::optional<Message> message = inner_->Poll()) {
    if (silent_) continue;
    const Fault* fault = Strike(Fault::On::kReceive, TypeOf(message->bytes));
    if (Alter(fault, message->bytes)) return message;
  }
  return std::nullopt;
}

void FaultyCommunicator::Hang(int peer, Deadline deadline) {
  std::this_thread::sleep_until(deadline);
  throw PeerLost(peer, "this rank plays dead");
}

void FaultyCommunicator::SendPiece(int destination, uint64_t transfer, ConstBytes piece,
                                   Deadline deadline, const Service& service) {
  if (silent_) Hang(destination, deadline);
  const Fault* fault = Strike(Fault::On::kBulkOut, std::nullopt);
  std::vector<std::byte> bytes(piece.begin(), piece.end());
  if (!Alter(fault, bytes)) {
    if (silent_) Hang(destination, deadline);
    return;
  }
  if (fault != nullptr && fault->kind == Fault::Kind::kDelay)
    std::this_thread::sleep_for(fault->delay);
  const ConstBytes altered(bytes);
  inner_->SendBulk(destination, transfer, {&altered, 1}, deadline, service);
}

void FaultyCommunicator::ReceivePiece(int source, uint64_t transfer, MutableBytes piece,
                                      Deadline deadline, const Service& service) {
  if (silent_) Hang(source, deadline);
  const Fault* fault = Strike(Fault::On::kBulkIn, std::nullopt);
  inner_->ReceiveBulk(source, transfer, {&piece, 1}, deadline, service);
  if (fault == nullptr) return;
  if (fault->kind == Fault::Kind::kDelay) std::this_thread::sleep_for(fault->delay);
  std::vector<std::byte> bytes(piece.begin(), piece.end());
  if (!Alter(fault, bytes) && silent_) Hang(source, deadline);
  std::copy(bytes.begin(), bytes.end(), piece.begin());
}

namespace {
template <class Span, class Each>
void ForEachPiece(std::span<const Span> spans, size_t piece_bytes, Each each) {
  for (const Span span : spans)
    for (size_t begin = 0; begin < span.size(); begin += piece_bytes)
      each(span.subspan(begin, std::min(piece_bytes, span.size() - begin)));
}
}  // namespace

void FaultyCommunicator::SendBulk(int destination, uint64_t transfer,
                                  std::span<const ConstBytes> spans, Deadline deadline,
                                  const Service& service) {
  ForEachPiece(spans, bulk_piece_bytes(), [&](ConstBytes piece) {
    SendPiece(destination, transfer, piece, deadline, service);
  });
}

void FaultyCommunicator::ReceiveBulk(int source, uint64_t transfer,
                                     std::span<const MutableBytes> spans, Deadline deadline,
                                     const Service& service) {
  ForEachPiece(spans, bulk_piece_bytes(), [&](MutableBytes piece) {
    ReceivePiece(source, transfer, piece, deadline, service);
  });
}

void FaultyCommunicator::RelayBulk(int source, int destination, uint64_t transfer,
                                   std::span<const MutableBytes> spans, Deadline deadline,
                                   const Service& service) {
  ForEachPiece(spans, bulk_piece_bytes(), [&](MutableBytes piece) {
    ReceivePiece(source, transfer, piece, deadline, service);
    SendPiece(destination, transfer, piece, deadline, service);
  });
}

}  // namespace rollcast::testing
