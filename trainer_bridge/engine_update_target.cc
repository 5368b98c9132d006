#include "trainer_bridge/engine_update_target.h"

#include <future>

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

EngineUpdateTarget::EngineUpdateTarget(Engine& engine, WeightStore& store)
    : engine_(engine), store_(store), manifest_(ToWire(store.manifest())) {}

std::vector<uint64_t> EngineUpdateTarget::DigestSums(const std::vector<bool>& staged) {
  RC_CHECK_EQ(staged.size(), manifest_.entries.size());
  std::vector<DeviceRange> ranges;
  for (size_t i = 0; i < staged.size(); ++i) {
    const ManifestEntry& entry = manifest_.entries[i];
    ranges.push_back({(staged[i] ? staging() : live()) + entry.offset, entry.bytes});
  }
  return store_.transfer().DigestSums(ranges);
}

void EngineUpdateTarget::Drain(InFlightPolicy policy, Deadline deadline, const Service& service) {
  std::future<void> drained =
      std::async(std::launch::async, [&] { engine_.Drain(policy, deadline); });
  while (drained.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    if (service) service();
  drained.get();
}

void EngineUpdateTarget::MarkTorn() {
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
  // One copy for neighbours, with the gap between them, which is zero in both arenas: the whole
  // arena then goes at the speed of the memory.
  for (size_t i = 0, next = 0; i < from_staging.size(); i = next) {
    for (next = i + 1; next < from_staging.size(); ++next)
      if (from_staging[next] != from_staging[next - 1] + 1) break;
    const size_t begin = manifest_.entries[from_staging[i]].offset;
    const ManifestEntry& last = manifest_.entries[from_staging[next - 1]];
    backend.Copy(live() + begin, staged + begin, last.offset + last.bytes - begin);
  }
  if (!from_staging.empty()) backend.Synchronize();
  done.version = version.value_or(live_version + 1);
  done.sequences = engine_.Commit(lock, done.version, policy);
  done.pause_s = std::chrono::duration<double>(Clock::now() - start).count();
  return done;
}

}  // namespace rollcast
