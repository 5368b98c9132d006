// Messages between ranks: any bytes decode to a message that encodes to the same bytes, or are an
// Error.
#include <algorithm>
#include <cstdint>
#include <span>

#include "trainer_bridge/job_messages.h"
#include "trainer_bridge/messages.h"

namespace rollcast {
namespace {

void Check(const std::vector<std::byte>& encoded, std::span<const std::byte> bytes) {
  RC_CHECK(std::ranges::equal(encoded, bytes));
}

template <class... Ms>
void CheckUpdateMessage(std::span<const std::byte> bytes) {
  const MessageType type = TypeOf(bytes);
  ((Ms::kType == type ? Check(Encode(Decode<Ms>(bytes)), bytes) : void()), ...);
}

}  // namespace
}  // namespace rollcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rollcast;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    if (const auto message = DecodeJob(bytes)) Check(EncodeJob(*message), bytes);
    CheckUpdateMessage<Heartbeat, WireManifest, ManifestQuery, UpdateAnnounce, UpdateVote,
                       UpdateBegin, UpdateReady, UpdateVerified, UpdateCommit, UpdateCommitted,
                       UpdateAbort, UpdateAborted, UpdateFailed, DecisionQuery, UpdateReport>(
        bytes);
  } catch (const Error&) {
  }
  return 0;
}
