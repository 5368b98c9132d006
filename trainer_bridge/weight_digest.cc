#include "trainer_bridge/weight_digest.h"

#include <xxhash.h>

namespace rollcast {

struct WeightDigest::State {
  State() : xxh(XXH3_createState()) {
    RC_CHECK(xxh != nullptr);
    XXH3_64bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  XXH3_state_t* xxh;
};

WeightDigest::WeightDigest() : state_(std::make_unique<State>()) {}
WeightDigest::~WeightDigest() = default;

void WeightDigest::Update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

uint64_t WeightDigest::Finish() const { return XXH3_64bits_digest(state_->xxh); }

uint64_t DigestEntries(const std::vector<ManifestEntry>& entries, std::span<const uint32_t> indices,
                       const std::vector<bool>& staged, const std::byte* live,
                       const std::byte* staging) {
  RC_CHECK_EQ(indices.size(), staged.size());
  WeightDigest digest;
  for (size_t i = 0; i < indices.size(); ++i) {
    const ManifestEntry& entry = entries[indices[i]];
    digest.Update({(staged[i] ? staging : live) + entry.offset, entry.bytes});
  }
  return digest.Finish();
}

}  // namespace rollcast
