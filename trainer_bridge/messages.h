// The messages of liveness and of a weight update (weight_sync.h tells their order).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer_bridge/wire.h"

namespace rollcast {

/// "I am here." Whoever gets one with `reply_wanted` answers with its own, same sequence.
struct Heartbeat {
  static constexpr MessageType kType = MessageType::kHeartbeat;
  uint64_t sequence = 0;
  bool reply_wanted = false;
  PolicyVersion version = 0;  // live
  bool torn = false;
  static void Fields(auto& self, auto&& visit) {
    visit(self.sequence, self.reply_wanted, self.version, self.torn);
  }
};

enum class UpdateMode : uint8_t { kStaged, kInPlace };
constexpr int EnumCount(UpdateMode) { return 2; }

struct TensorAlias {
  std::string name;    // e.g. lm_head.weight of a tied model
  std::string target;  // a name in the entries
  bool operator==(const TensorAlias&) const = default;
  static void Fields(auto& self, auto&& visit) { visit(self.name, self.target); }
};

/// A rank's weight manifest as the trainer sees it.
struct WireManifest {
  static constexpr MessageType kType = MessageType::kManifest;
  std::vector<ManifestEntry> entries;
  std::vector<TensorAlias> aliases;
  uint64_t digest = 0;        // of WeightManifest
  PolicyVersion version = 0;  // live when it was sent
  static void Fields(auto& self, auto&& visit) {
    visit(self.entries, self.aliases, self.digest, self.version);
  }
  /// Index into entries, or -1.
  int Find(const std::string& name) const;
};

struct ManifestQuery {
  static constexpr MessageType kType = MessageType::kManifestQuery;
  static void Fields(auto&, auto&& visit) { visit(); }
};

/// Trainer to all ranks: what is coming.
struct UpdateAnnounce {
  static constexpr MessageType kType = MessageType::kAnnounce;
  uint64_t update = 0;  // grows by one an update of this trainer; also the transfer id
  std::optional<PolicyVersion> version;  // none: the engine derives live + 1
  UpdateMode mode = UpdateMode::kStaged;
  InFlightPolicy in_flight = InFlightPolicy::kKeep;
  bool partial = false;
  uint64_t manifest_digest = 0;
  std::vector<uint32_t> carried;  // indices into the manifest's entries, ascending
  std::string transport;          // its maker's name
  std::string transport_token;    // what the transport's maker needs to find its peers
  std::vector<int32_t> group;     // trainer, then the ranks in the order of the chain
  double remaining_s = 0;         // to the update's deadline
  double drain_s = 0;             // limit of a drain
  static void Fields(auto& self, auto&& visit) {
    visit(self.update, self.version, self.mode, self.in_flight, self.partial, self.manifest_digest,
          self.carried, self.transport, self.transport_token, self.group, self.remaining_s,
          self.drain_s);
  }
};

/// Rank to trainer, first vote: nothing has been written anywhere.
struct UpdateVote {
  static constexpr MessageType kType = MessageType::kVote;
  uint64_t update = 0;
  bool yes = false;
  std::string reason;  // of a no
  PolicyVersion live = 0;
  static void Fields(auto& self, auto&& visit) {
    visit(self.update, self.yes, self.reason, self.live);
  }
};

/// Trainer to all ranks: all voted yes with this live version; get ready and receive.
struct UpdateBegin {
  static constexpr MessageType kType = MessageType::kBegin;
  uint64_t update = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.update); }
};

/// Rank to trainer: drained and torn where the mode asks for it, now receiving.
struct UpdateReady {
  static constexpr MessageType kType = MessageType::kReady;
  uint64_t update = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.update); }
};

/// Rank to trainer, second vote: all bytes are here, with these checksums.
struct UpdateVerified {
  static constexpr MessageType kType = MessageType::kVerified;
  uint64_t update = 0;
  uint64_t payload_digest = 0;  // DigestFold over the carried tensors in manifest order
  uint64_t store_digest = 0;    // over all tensors, as they will be after the commit
  double receive_s = 0, digest_s = 0;
  static void Fields(auto& self, auto&& visit) {
    visit(self.update, self.payload_digest, self.store_digest, self.receive_s, self.digest_s);
  }
};

/// Trainer to all ranks: the decision, yes. `live` is what every rank voted to have.
struct UpdateCommit {
  static constexpr MessageType kType = MessageType::kCommit;
  uint64_t update = 0;
  PolicyVersion live = 0;
  double remaining_s = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.update, self.live, self.remaining_s); }
};

/// Rank to trainer: the new version is live here.
struct UpdateCommitted {
  static constexpr MessageType kType = MessageType::kCommitted;
  uint64_t update = 0;
  PolicyVersion version = 0;
  double pause_s = 0, commit_s = 0;
  int32_t kept = 0, recomputed = 0, aborted = 0;
  static void Fields(auto& self, auto&& visit) {
    visit(self.update, self.version, self.pause_s, self.commit_s, self.kept, self.recomputed,
          self.aborted);
  }
};

/// Trainer to all ranks: the decision, no. A rank that knows the update drops it; every rank
/// answers.
struct UpdateAbort {
  static constexpr MessageType kType = MessageType::kAbortUpdate;
  uint64_t update = 0;
  std::string reason;
  static void Fields(auto& self, auto&& visit) { visit(self.update, self.reason); }
};

/// Rank to trainer: the update has been dropped here.
struct UpdateAborted {
  static constexpr MessageType kType = MessageType::kUpdateAborted;
  uint64_t update = 0;
  bool torn = false;
  bool received_all = false;  // every byte had come before the abort
  static void Fields(auto& self, auto&& visit) { visit(self.update, self.torn, self.received_all); }
};

/// Rank to trainer: this rank has given the update up by itself, before it verified.
struct UpdateFailed {
  static constexpr MessageType kType = MessageType::kUpdateFailed;
  uint64_t update = 0;
  std::string reason;
  bool torn = false;
  int32_t lost_rank = -1;  // a peer that it waited for in vain
  static void Fields(auto& self, auto&& visit) {
    visit(self.update, self.reason, self.torn, self.lost_rank);
  }
};

/// Rank to trainer: verified, and no decision has come. The trainer sends it again.
struct DecisionQuery {
  static constexpr MessageType kType = MessageType::kDecisionQuery;
  uint64_t update = 0;
  static void Fields(auto& self, auto&& visit) { visit(self.update); }
};

/// Trainer to all ranks: how an update ended.
struct UpdateReport {
  static constexpr MessageType kType = MessageType::kUpdateReport;
  SyncReport report;
  static void Fields(auto& self, auto&& visit) { visit(self.report); }
};

}  // namespace rollcast
