#include "trainer_bridge/job_messages.h"

#include <utility>

namespace rollcast {

namespace {

template <size_t... I>
std::optional<JobMessage> DecodeAny(std::span<const std::byte> bytes, std::index_sequence<I...>) {
  const MessageType type = TypeOf(bytes);
  std::optional<JobMessage> message;
  const auto attempt = [&]<class M>(std::type_identity<M>) {
    if (M::kType == type) message = Decode<M>(bytes);
  };
  (attempt(std::type_identity<std::variant_alternative_t<I, JobMessage>>{}), ...);
  return message;
}

}  // namespace

size_t WireBytes(const Trajectory& t) {
  const size_t floats =
      t.logprob.size() + t.logprob_raw.size() + t.logprob_filtered.size() + t.hidden.size();
  return 4 * (floats + t.prompt.size() + t.completion.size()) + t.text.size() + t.message.size() +
         t.prompt_id.size() + 16 * t.spans.size() + 256;
}

std::vector<std::byte> EncodeJob(const JobMessage& message) {
  return std::visit([](const auto& m) { return Encode(m); }, message);
}

std::optional<JobMessage> DecodeJob(std::span<const std::byte> bytes) {
  return DecodeAny(bytes, std::make_index_sequence<std::variant_size_v<JobMessage>>{});
}

}  // namespace rollcast
