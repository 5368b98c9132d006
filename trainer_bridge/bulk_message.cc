#include "trainer_bridge/bulk_message.h"

#include <memory>
#include <span>
#include <utility>

namespace rollcast {

namespace {

constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;

struct BulkMessage {
  uint64_t size = 0;
  std::vector<std::byte> bytes;
};

}  // namespace

void SendBulkMessage(Communicator& communicator, int destination, uint64_t transfer,
                     std::vector<std::byte> bytes, Deadline deadline, const Service& service) {
  const auto message =
      std::make_shared<const BulkMessage>(BulkMessage{bytes.size(), std::move(bytes)});
  const ConstBytes spans[] = {std::as_bytes(std::span(&message->size, 1)), message->bytes};
  try {
    communicator.SendBulk(destination, transfer, spans, deadline, service);
  } catch (...) {
    communicator.Retain(message);  // some of it may still be on its way
    throw;
  }
}

std::vector<std::byte> ReceiveBulkMessage(Communicator& communicator, int source, uint64_t transfer,
                                          Deadline deadline, const Service& service) {
  const auto message = std::make_shared<BulkMessage>();
  const MutableBytes head = std::as_writable_bytes(std::span(&message->size, 1));
  try {
    communicator.ReceiveBulk(source, transfer, {&head, 1}, deadline, service);
    if (message->size > kMaxMessageBytes)
      throw Error(StrCat("transfer ", transfer, ": a message of rank ", source, " claims to have ",
                         message->size, " bytes"));
    message->bytes.resize(message->size);
    const MutableBytes body(message->bytes);
    communicator.ReceiveBulk(source, transfer, {&body, 1}, deadline, service);
  } catch (...) {
    communicator.Retain(message);  // some of it may still come
    throw;
  }
  return std::move(message->bytes);
}

}  // namespace rollcast
