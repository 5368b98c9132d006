// Control messages as bytes: fixed-width little-endian numbers, lengths before strings and lists.
//
// A type goes over the wire when it has a field visitor, which lists its fields once for both
// directions:
//
//   struct Ping {
//     static constexpr MessageType kType = MessageType::kPing;
//     uint64_t sequence = 0;
//     std::vector<std::string> names;
//     static void Fields(auto& self, auto&& visit) { visit(self.sequence, self.names); }
//   };
//   communicator.Send(rank, Encode(Ping{1, {"a"}}));
//   if (TypeOf(message.bytes) == MessageType::kPing) Ping ping = Decode<Ping>(message.bytes);
//
// Fields may be numbers, bool, enums that have an EnumCount, std::string, Shape, types with Fields,
// and std::vector and std::optional of these. Types of other rooms get a WireFields overload here.
#pragma once

#include <bit>
#include <concepts>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/weight_store.h"
#include "kernels/check.h"
#include "kernels/tensor.h"
#include "rollout/trajectory.h"

namespace rollcast {

static_assert(std::endian::native == std::endian::little,
              "numbers go over the wire as they lie in memory");

/// One more than the highest value of an enum; a received value beyond it is an Error. Those of
/// Outcome and FinishReason are in rollout/trajectory.h.
constexpr int EnumCount(bool) { return 2; }
constexpr int EnumCount(DType) { return 7; }
constexpr int EnumCount(InFlightPolicy) { return 4; }

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, PolicySpan> {
  visit(self.begin, self.end, self.version);
}

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, SamplingParams> {
  visit(self.max_tokens, self.min_tokens, self.temperature, self.top_p, self.top_k, self.min_p,
        self.repetition_penalty, self.frequency_penalty, self.presence_penalty, self.stop_ids,
        self.stop_strings, self.ignore_eos, self.seed);
}

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, ManifestEntry> {
  visit(self.name, self.dtype, self.shape, self.offset, self.bytes);
}

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, Trajectory> {
  visit(self.prompt_id, self.group_id, self.sample_index, self.group_size, self.attempt, self.rank,
        self.sampling, self.prompt, self.completion, self.logprob, self.logprob_raw,
        self.logprob_filtered, self.spans, self.hidden, self.text, self.reward, self.outcome,
        self.finish_reason, self.message, self.live_version_at_return, self.mixed_kv);
}

void WireFields(auto& self, auto&& visit) requires
    std::same_as<std::remove_const_t<std::remove_reference_t<decltype(self)>>, SyncReport> {
  visit(self.version, self.committed, self.error, self.mode, self.transport, self.digest,
        self.bytes, self.total_s, self.announce_s, self.transfer_s, self.verify_s, self.commit_s,
        self.receive_s, self.pause_s, self.sequences_kept, self.sequences_recomputed,
        self.sequences_aborted);
}

template <class T>
concept HasFields = requires(T& t) {
  std::remove_const_t<T>::Fields(t, [](auto&...) {});
};
template <class T>
concept HasWireFields = requires(T& t) {
  WireFields(t, [](auto&...) {});
};

/// Appends values to a byte vector.
class Writer {
 public:
  template <class... Ts>
  void Put(const Ts&... values) {
    (PutOne(values), ...);
  }
  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  template <class T>
  void PutOne(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      PutBytes(&value, sizeof(T));
    } else if constexpr (HasFields<const T>) {
      T::Fields(value, [this](const auto&... fields) { Put(fields...); });
    } else {
      static_assert(HasWireFields<const T>, "this type has no field visitor");
      WireFields(value, [this](const auto&... fields) { Put(fields...); });
    }
  }
  void PutOne(const std::string& text) {
    PutOne(static_cast<uint64_t>(text.size()));
    PutBytes(text.data(), text.size());
  }
  void PutOne(const Shape& shape) {
    PutOne(static_cast<uint8_t>(shape.rank()));
    for (int i = 0; i < shape.rank(); ++i) PutOne(shape[i]);
  }
  template <class T>
  void PutOne(const std::vector<T>& list) {
    PutOne(static_cast<uint64_t>(list.size()));
    if constexpr (std::is_arithmetic_v<T>) {
      PutBytes(list.data(), list.size() * sizeof(T));
    } else {
      for (const T& value : list) PutOne(value);
    }
  }
  template <class T>
  void PutOne(const std::optional<T>& value) {
    PutOne(value.has_value());
    if (value) PutOne(*value);
  }
  void PutBytes(const void* data, size_t bytes);

  std::vector<std::byte> bytes_;
};

/// Reads values in the order they were put. Throws Error on truncated input, on a length beyond
/// what is left, and on an enum value out of range; never allocates more than a small multiple of
/// the input.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class... Ts>
  void Get(Ts&... values) {
    (GetOne(values), ...);
  }
  /// Throws Error when bytes are left over.
  void Finish() const;

 private:
  template <class T>
  void GetOne(T& value) {
    if constexpr (std::is_same_v<T, bool> || std::is_enum_v<T>) {
      using Raw = typename std::conditional_t<std::is_enum_v<T>, std::underlying_type<T>,
                                              std::type_identity<uint8_t>>::type;
      Raw raw;
      GetBytes(&raw, sizeof(raw));
      if (static_cast<int64_t>(raw) < 0 || static_cast<int64_t>(raw) >= EnumCount(T{}))
        FailRange(static_cast<int64_t>(raw), EnumCount(T{}));
      value = static_cast<T>(raw);
    } else if constexpr (std::is_arithmetic_v<T>) {
      GetBytes(&value, sizeof(T));
    } else if constexpr (HasFields<T>) {
      T::Fields(value, [this](auto&... fields) { Get(fields...); });
    } else {
      static_assert(HasWireFields<T>, "this type has no field visitor");
      WireFields(value, [this](auto&... fields) { Get(fields...); });
    }
  }
  void GetOne(std::string& text) {
    text.resize(GetLength(1));
    GetBytes(text.data(), text.size());
  }
  void GetOne(Shape& shape);
  template <class T>
  void GetOne(std::vector<T>& list) {
    list.clear();
    if constexpr (std::is_arithmetic_v<T>) {
      list.resize(GetLength(sizeof(T)));
      GetBytes(list.data(), list.size() * sizeof(T));
    } else {
      for (size_t n = GetLength(1); n > 0; --n) GetOne(list.emplace_back());
    }
  }
  template <class T>
  void GetOne(std::optional<T>& value) {
    bool present = false;
    GetOne(present);
    value.reset();
    if (present) GetOne(value.emplace());
  }
  /// The number of elements that follow, each of at least `element_bytes`.
  size_t GetLength(size_t element_bytes);
  void GetBytes(void* data, size_t bytes);
  [[noreturn]] static void FailRange(int64_t value, int count);

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

/// The kinds of control message. Numbers are part of the protocol: never reused.
enum class MessageType : uint16_t {
  // Start (roles.cc) and liveness.
  kHello = 1,
  kRoles = 2,
  kHeartbeat = 3,
  // Weight update (messages.h); the order is that of one update.
  kManifestQuery = 20,
  kManifest = 21,
  kAnnounce = 22,
  kVote = 23,
  kBegin = 24,
  kReady = 25,
  kVerified = 26,
  kCommit = 27,
  kCommitted = 28,
  kAbortUpdate = 29,
  kUpdateAborted = 30,
  kUpdateFailed = 31,
  kDecisionQuery = 32,
  kUpdateReport = 33,
  // Rollouts (job_messages.h).
  kBeat = 100,
  kWorkerReady = 101,
  kPull = 102,
  kResults = 103,
  kSubmit = 104,
  kCollect = 105,
  kScore = 106,
  kStats = 107,
  kLeaveBehind = 108,
  kStart = 109,
  kWork = 110,
  kCollectReply = 111,
  kScoreReply = 112,
  kStatsReply = 113,
  kRankLost = 114,
  kFinish = 115,
  kFail = 116,
  kStop = 117,
  kAbort = 118,
  // Benchmarks (launch/bench_sync.cc).
  kBenchReport = 200,
};

/// Throws Error when `bytes` is too short to be a message.
MessageType TypeOf(std::span<const std::byte> bytes);

template <class M>
std::vector<std::byte> Encode(const M& message) {
  Writer writer;
  writer.Put(M::kType, message);
  return std::move(writer).Take();
}

/// `bytes` must be a message of M's type. Throws Error when it is truncated, malformed, or has
/// bytes left over.
template <class M>
M Decode(std::span<const std::byte> bytes) {
  RC_CHECK(TypeOf(bytes) == M::kType, "type ", static_cast<int>(TypeOf(bytes)));
  Reader reader(bytes.subspan(sizeof(MessageType)));
  M message;
  reader.Get(message);
  reader.Finish();
  return message;
}

}  // namespace rollcast
