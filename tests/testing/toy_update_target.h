// A small weight arena that takes updates, without a model.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trainer_bridge/weight_sync.h"

namespace rollcast::testing {

/// Five tensors: an embedding with the alias lm_head.weight, float32, float16 and bfloat16 ones,
/// with gaps between them. Step may be called from another thread while an update runs.
class ToyUpdateTarget final : public UpdateTarget {
 public:
  explicit ToyUpdateTarget(bool staging_possible = true);

  static WireManifest Manifest();

  const WireManifest& manifest() const override { return manifest_; }
  PolicyVersion version() const override;
  bool torn() const override;
  std::byte* live() override { return live_.data(); }
  std::byte* staging() override;
  std::vector<uint64_t> DigestSums(std::span<const uint32_t> carried, UpdateMode mode) override;
  void Drain(InFlightPolicy policy, Deadline deadline, const Service& service) override;
  void ResumeAdmission() override { admission_held_ = false; }
  void MarkTorn(std::span<const uint32_t> written) override;
  Committed Commit(std::span<const uint32_t> from_staging, PolicyVersion live_version,
                   std::optional<PolicyVersion> version, InFlightPolicy policy) override;

  /// What an engine step would read: the live bytes of every tensor and the version, or nothing
  /// when torn. Takes the lock that Commit takes.
  struct Snapshot {
    bool torn = false;
    PolicyVersion version = 0;
    std::map<std::string, std::vector<std::byte>> tensors;
  };
  Snapshot Step();

  /// DigestFold over the live tensors.
  uint64_t Digest();

  int drains() const { return drains_; }
  bool admission_held() const { return admission_held_; }

 private:
  WireManifest manifest_;
  bool staging_possible_;
  std::vector<std::byte> live_, staging_;
  mutable std::mutex mutex_;  // the scheduler lock
  PolicyVersion version_ = 0;
  bool torn_ = false;
  int drains_ = 0;
  bool admission_held_ = false;
};

/// Owns the tensors of an update.
struct TensorSet {
  std::vector<std::vector<std::byte>> storage;
  std::vector<NamedTensor> tensors;

  void Add(const std::string& name, DType dtype, const Shape& shape, std::vector<std::byte> bytes);
  /// Throws std::out_of_range when there is none.
  const NamedTensor& at(const std::string& name) const;
};

/// Every tensor of the manifest in its own dtype, filled with bytes that depend on `seed` and the
/// name; in reverse order, because order must not matter.
TensorSet MakeTensors(const WireManifest& manifest, int seed);

/// Bytes by name, as Snapshot::tensors has them after `set` was committed.
std::map<std::string, std::vector<std::byte>> BytesOf(const TensorSet& set);

}  // namespace rollcast::testing
