#include "trainer_bridge/engine_update_target.h"

#include <future>
#include <utility>
#include <vector>

namespace rollcast {

WireManifest ToWire(const WeightManifest& manifest) {
  WireManifest wire;
  wire.entries = manifest.entries();
  wire.digest = manifest.digest();
  // The only second name that a Hugging Face checkpoint of these families has.
  const std::string head = "lm_head.weight";
  if (manifest.IsAlias(head)) wire.aliases.push_back({head, manifest.Find(head)->name});
  return wire;
}

namespace {

/// Bytes [begin, end) of the arena that entries [indices] take, neighbours as one range with the
/// alignment gap between them: one large copy takes all threads, many small ones do not.
std::vector<std::pair<size_t, size_t>> Ranges(const std::vector<ManifestEntry>& entries,
                                              std::span<const uint32_t> indices) {
  std::vector<std::pair<size_t, size_t>> ranges;
  std::optional<uint32_t> last;
  for (const uint32_t i : indices) {
    const size_t begin = entries[i].offset, end = begin + entries[i].bytes;
    if (last.has_value() && i == *last + 1 && begin >= ranges.back().second)
      ranges.back().second = end;
    else
      ranges.emplace_back(begin, end);
    last = i;
  }
  return ranges;
}

}  // namespace

EngineUpdateTarget::EngineUpdateTarget(Engine& engine, WeightStore& store)
    : engine_(engine),
      store_(store),
      manifest_(ToWire(store.manifest())),
      live_sums_(manifest_.entries.size()),
      staged_sums_(manifest_.entries.size()) {}

std::vector<uint64_t> EngineUpdateTarget::DigestSums(std::span<const uint32_t> carried,
                                                     UpdateMode mode) {
  const bool staged = mode == UpdateMode::kStaged;
  staged_sums_.assign(manifest_.entries.size(), std::nullopt);
  std::vector<std::optional<uint64_t>> sums = live_sums_;
  for (const uint32_t i : carried) sums[i].reset();
  std::vector<uint32_t> missing;
  std::vector<DeviceRange> ranges;
  std::vector<bool> from_staging(sums.size(), false);
  for (const uint32_t i : carried) from_staging[i] = staged;
  for (uint32_t i = 0; i < sums.size(); ++i) {
    if (sums[i].has_value()) continue;
    const ManifestEntry& entry = manifest_.entries[i];
    missing.push_back(i);
    ranges.push_back({(from_staging[i] ? staging() : live()) + entry.offset, entry.bytes});
  }
  const std::vector<uint64_t> computed = store_.transfer().DigestSums(ranges);
  for (size_t k = 0; k < missing.size(); ++k) {
    const uint32_t i = missing[k];
    sums[i] = computed[k];
    (from_staging[i] ? staged_sums_ : live_sums_)[i] = computed[k];
  }
  std::vector<uint64_t> out;
  for (const std::optional<uint64_t>& sum : sums) out.push_back(*sum);
  return out;
}

void EngineUpdateTarget::Drain(InFlightPolicy policy, Deadline deadline, const Service& service) {
  std::future<void> drained =
      std::async(std::launch::async, [&] { engine_.Drain(policy, deadline); });
  try {
    while (drained.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
      if (service) service();
  } catch (...) {
    // Again and again: the drain may not have begun when the first one comes.
    do engine_.ResumeAdmission();
    while (drained.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready);
    throw;
  }
  drained.get();
}

void EngineUpdateTarget::MarkTorn(std::span<const uint32_t> written) {
  for (const uint32_t i : written) live_sums_[i].reset();
  const SchedulerLock lock = engine_.Lock();
  engine_.MarkTorn(lock);
}

UpdateTarget::Committed EngineUpdateTarget::Commit(std::span<const uint32_t> from_staging,
                                                   PolicyVersion live_version,
                                                   std::optional<PolicyVersion> version,
                                                   InFlightPolicy policy) {
  Committed done;
  const std::byte* staged = from_staging.empty() ? nullptr : staging();
  const SchedulerLock lock = engine_.Lock();
  const auto start = Clock::now();
  if (engine_.version(lock) != live_version)
    throw Error(StrCat("the live version became ", engine_.version(lock),
                       " between the vote and the commit, which expects ", live_version));
  Backend& backend = store_.backend();
  for (const uint32_t i : from_staging) live_sums_[i].reset();
  for (const auto& [begin, end] : Ranges(manifest_.entries, from_staging))
    backend.Copy(live() + begin, staged + begin, end - begin);
  if (!from_staging.empty()) backend.Synchronize();
  for (const uint32_t i : from_staging)
    live_sums_[i] = std::exchange(staged_sums_[i], std::nullopt);
  done.version = version.value_or(live_version + 1);
  done.sequences = engine_.Commit(lock, done.version, policy);
  done.pause_s = std::chrono::duration<double>(Clock::now() - start).count();
  return done;
}

}  // namespace rollcast
