// The checksum of an update's bytes: XXH3-64, as WeightStore::Digest computes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/weight_store.h"

namespace rollcast {

/// Over host memory that comes in pieces; how it is cut does not matter.
class WeightDigest {
 public:
  WeightDigest();
  ~WeightDigest();
  WeightDigest(const WeightDigest&) = delete;
  WeightDigest& operator=(const WeightDigest&) = delete;

  void Update(std::span<const std::byte> bytes);
  uint64_t Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Over host memory: `entries` [indices] in order, each from `staging` where `staged[i]`, else from
/// `live`.
uint64_t DigestEntries(const std::vector<ManifestEntry>& entries, std::span<const uint32_t> indices,
                       const std::vector<bool>& staged, const std::byte* live,
                       const std::byte* staging);

}  // namespace rollcast
