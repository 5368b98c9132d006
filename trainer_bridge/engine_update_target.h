// A rank's engine and weights as a weight update sees them.
#pragma once

#include "engine/engine.h"
#include "engine/weight_store.h"
#include "trainer_bridge/weight_sync.h"

namespace rollcast {

/// Over an Engine and its WeightStore, which must outlive this. Bridge thread only.
class EngineUpdateTarget final : public UpdateTarget {
 public:
  EngineUpdateTarget(Engine& engine, WeightStore& store);

  const WireManifest& manifest() const override { return manifest_; }
  PolicyVersion version() const override { return engine_.version(); }
  bool torn() const override { return engine_.torn(); }
  std::byte* live() override { return static_cast<std::byte*>(store_.live()); }
  std::byte* staging() override { return static_cast<std::byte*>(store_.staging()); }
  std::vector<uint64_t> DigestSums(std::span<const uint32_t> carried, UpdateMode mode) override;
  /// Waits on a thread of its own, so that the bridge thread can go on serving.
  void Drain(InFlightPolicy policy, Deadline deadline, const Service& service) override;
  void ResumeAdmission() override { engine_.ResumeAdmission(); }
  void MarkTorn(std::span<const uint32_t> written) override;
  Committed Commit(std::span<const uint32_t> from_staging, PolicyVersion live_version,
                   std::optional<PolicyVersion> version, InFlightPolicy policy) override;

 private:
  Engine& engine_;
  WeightStore& store_;
  WireManifest manifest_;
  // By entry. Only updates write to the store while a target is on it, so a sum stays true until
  // the next one that carries its tensor.
  std::vector<std::optional<uint64_t>> live_sums_, staged_sums_;
};

/// `manifest` as it goes over the wire, without a version.
WireManifest ToWire(const WeightManifest& manifest);

}  // namespace rollcast
