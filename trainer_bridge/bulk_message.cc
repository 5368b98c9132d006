#include "trainer_bridge/bulk_message.h"

#include <span>
#include <utility>

namespace rollcast {

namespace {
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;
}  // namespace

void BulkMessages::Send(Communicator& communicator, int destination, uint64_t transfer,
                        std::vector<std::byte> bytes, Deadline deadline, const Service& service) {
  auto& kept = outgoing_[destination];
  kept.push_back(std::make_unique<Outgoing>(Outgoing{bytes.size(), std::move(bytes)}));
  const Outgoing& message = *kept.back();
  const ConstBytes spans[] = {std::as_bytes(std::span(&message.size, 1)), message.bytes};
  communicator.SendBulk(destination, transfer, spans, deadline, service);
  kept.clear();
}

std::vector<std::byte> BulkMessages::Receive(Communicator& communicator, int source,
                                             uint64_t transfer, Deadline deadline,
                                             const Service& service) {
  uint64_t size = 0;
  const MutableBytes head = std::as_writable_bytes(std::span(&size, 1));
  communicator.ReceiveBulk(source, transfer, {&head, 1}, deadline, service);
  if (size > kMaxMessageBytes)
    throw Error(StrCat("transfer ", transfer, ": a message of rank ", source, " claims to have ",
                       size, " bytes"));
  std::vector<std::byte> bytes(size);
  const MutableBytes body(bytes);
  communicator.ReceiveBulk(source, transfer, {&body, 1}, deadline, service);
  return bytes;
}

}  // namespace rollcast
