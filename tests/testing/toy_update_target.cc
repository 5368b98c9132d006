#include "tests/testing/toy_update_target.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "kernels/digest.h"

namespace rollcast::testing {

WireManifest ToyUpdateTarget::Manifest() {
  WireManifest manifest;
  size_t offset = 0;
  const auto add = [&](const char* name, DType dtype, Shape shape) {
    const size_t bytes = static_cast<size_t>(shape.NumElements()) * SizeOf(dtype);
    manifest.entries.push_back({name, dtype, shape, offset, bytes});
    offset = (offset + bytes + 255) / 256 * 256;
  };
  add("model.embed_tokens.weight", DType::kBF16, {17, 12});
  add("model.layers.0.input_layernorm.weight", DType::kF32, {12});
  add("model.layers.0.self_attn.q_proj.weight", DType::kBF16, {24, 12});
  add("model.layers.0.mlp.up_proj.weight", DType::kF16, {30, 12});
  add("model.norm.weight", DType::kBF16, {12});
  manifest.aliases = {{"lm_head.weight", "model.embed_tokens.weight"}};
  manifest.digest = 0x1234567890abcdefu;
  return manifest;
}

ToyUpdateTarget::ToyUpdateTarget(bool staging_possible)
    : manifest_(Manifest()), staging_possible_(staging_possible) {
  const ManifestEntry& last = manifest_.entries.back();
  live_.assign(last.offset + last.bytes, std::byte{0});
}

PolicyVersion ToyUpdateTarget::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

bool ToyUpdateTarget::torn() const {
  const std::lock_guard lock(mutex_);
  return torn_;
}

std::byte* ToyUpdateTarget::staging() {
  if (!staging_possible_) throw Error("no memory for a staging arena");
  staging_.resize(live_.size());
  return staging_.data();
}

std::vector<uint64_t> ToyUpdateTarget::DigestSums(std::span<const uint32_t> carried,
                                                  UpdateMode mode) {
  std::vector<const std::vector<std::byte>*> arenas(manifest_.entries.size(), &live_);
  if (mode == UpdateMode::kStaged)
    for (const uint32_t i : carried) arenas[i] = &staging_;
  std::vector<uint64_t> sums;
  for (size_t i = 0; i < manifest_.entries.size(); ++i) {
    const ManifestEntry& entry = manifest_.entries[i];
    sums.push_back(DigestSum(arenas[i]->data() + entry.offset, entry.bytes));
  }
  return sums;
}

uint64_t ToyUpdateTarget::Digest() {
  const std::vector<uint64_t> sums = DigestSums({}, UpdateMode::kStaged);
  DigestFold fold;
  for (size_t i = 0; i < sums.size(); ++i) fold.Add(sums[i], manifest_.entries[i].bytes);
  return fold.value();
}

void ToyUpdateTarget::Drain(InFlightPolicy, Deadline, const Service& service) {
  ++drains_;
  admission_held_ = true;
  service();
}

void ToyUpdateTarget::MarkTorn(std::span<const uint32_t>) {
  const std::lock_guard lock(mutex_);
  torn_ = true;
}

UpdateTarget::Committed ToyUpdateTarget::Commit(std::span<const uint32_t> from_staging,
                                                PolicyVersion live_version,
                                                std::optional<PolicyVersion> version,
                                                InFlightPolicy policy) {
  const std::lock_guard lock(mutex_);
  if (version_ != live_version) throw Error("another version is live");
  for (const uint32_t i : from_staging) {
    const ManifestEntry& entry = manifest_.entries[i];
    std::memcpy(live_.data() + entry.offset, staging_.data() + entry.offset, entry.bytes);
  }
  version_ = version.value_or(live_version + 1);
  torn_ = false;
  admission_held_ = false;
  Committed done;
  done.version = version_;
  done.sequences.kept = policy == InFlightPolicy::kKeep ? 3 : 0;
  done.sequences.recomputed = policy == InFlightPolicy::kRecompute ? 3 : 0;
  done.sequences.aborted = policy == InFlightPolicy::kAbort ? 3 : 0;
  done.pause_s = 0.25;
  return done;
}

ToyUpdateTarget::Snapshot ToyUpdateTarget::Step() {
  const std::lock_guard lock(mutex_);
  Snapshot snapshot;
  snapshot.torn = torn_;
  snapshot.version = version_;
  if (torn_) return snapshot;
  for (const ManifestEntry& entry : manifest_.entries) {
    const auto begin = live_.begin() + static_cast<ptrdiff_t>(entry.offset);
    snapshot.tensors[entry.name].assign(begin, begin + static_cast<ptrdiff_t>(entry.bytes));
  }
  return snapshot;
}

void TensorSet::Add(const std::string& name, DType dtype, const Shape& shape,
                    std::vector<std::byte> bytes) {
  storage.push_back(std::move(bytes));
  tensors.push_back({name, dtype, shape, storage.back().data()});
}

const NamedTensor& TensorSet::at(const std::string& name) const {
  for (const NamedTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::out_of_range(name);
}

TensorSet MakeTensors(const WireManifest& manifest, int seed) {
  TensorSet set;
  for (size_t i = manifest.entries.size(); i-- > 0;) {
    const ManifestEntry& entry = manifest.entries[i];
    std::mt19937 random(static_cast<unsigned>(seed) * 1000u + static_cast<unsigned>(i));
    std::vector<std::byte> bytes(entry.bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    set.Add(entry.name, entry.dtype, entry.shape, std::move(bytes));
  }
  return set;
}

std::map<std::string, std::vector<std::byte>> BytesOf(const TensorSet& set) {
  std::map<std::string, std::vector<std::byte>> bytes;
  for (size_t i = 0; i < set.tensors.size(); ++i) bytes[set.tensors[i].name] = set.storage[i];
  return bytes;
}

}  // namespace rollcast::testing
