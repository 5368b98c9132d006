#include "trainer_bridge/wire.h"

namespace rollcast {

void Writer::PutBytes(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), begin, begin + bytes);
}

void Reader::GetBytes(void* data, size_t bytes) {
  const size_t left = bytes_.size() - position_;
  if (bytes > left)
    throw Error(StrCat("a message is truncated: ", bytes, " bytes expected at ", position_, ", ",
                       left, " left"));
  if (bytes > 0) std::memcpy(data, bytes_.data() + position_, bytes);
  position_ += bytes;
}

size_t Reader::GetLength(size_t element_bytes) {
  uint64_t length = 0;
  GetBytes(&length, sizeof(length));
  const size_t left = bytes_.size() - position_;
  if (length > left / element_bytes)
    throw Error(StrCat("a message announces ", length, " elements at ", position_, " and has ",
                       left, " bytes left"));
  return length;
}

void Reader::GetOne(Shape& shape) {
  uint8_t rank = 0;
  GetBytes(&rank, sizeof(rank));
  if (rank > Shape::kMaxRank) FailRange(rank, Shape::kMaxRank + 1);
  int64_t extents[Shape::kMaxRank];
  GetBytes(extents, rank * sizeof(int64_t));
  shape = Shape::From(extents, extents + rank);
}

void Reader::FailRange(int64_t value, int count) {
  throw Error(StrCat("a message has the value ", value, " where less than ", count, " is allowed"));
}

void Reader::Finish() const {
  if (position_ != bytes_.size())
    throw Error(StrCat("a message has ", bytes_.size() - position_, " bytes more than expected"));
}

MessageType TypeOf(std::span<const std::byte> bytes) {
  MessageType type;
  if (bytes.size() < sizeof(type))
    throw Error(StrCat("a message of ", bytes.size(), " bytes has no type"));
  std::memcpy(&type, bytes.data(), sizeof(type));
  return type;
}

}  // namespace rollcast
