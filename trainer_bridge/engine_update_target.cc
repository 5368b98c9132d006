#include "trainer_bridge/engine_update_target.h"

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "trainer_bridge/weight_digest.h"

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
    : engine_(engine), store_(store), manifest_(ToWire(store.manifest())) {}

bool EngineUpdateTarget::host_memory() const { return store_.backend().name().starts_with("cpu"); }

uint64_t EngineUpdateTarget::Digest(std::span<const uint32_t> indices,
                                    const std::vector<bool>& staged) {
  RC_CHECK(host_memory(), "checksums of device memory need a device backend's own kernel");
  const bool any_staged = std::find(staged.begin(), staged.end(), true) != staged.end();
  return DigestEntries(manifest_.entries, indices, staged, live(),
                       any_staged ? staging() : nullptr);
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
  for (const auto& [begin, end] : Ranges(manifest_.entries, from_staging))
    backend.Copy(live() + begin, staged + begin, end - begin);
  if (!from_staging.empty()) backend.Synchronize();
  done.version = version.value_or(live_version + 1);
  done.sequences = engine_.Commit(lock, done.version, policy);
  done.pause_s = std::chrono::duration<double>(Clock::now() - start).count();
  return done;
}

}  // namespace rollcast
