#include "trainer_bridge/update_plan.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "kernels/float_convert.h"

namespace rollcast {

int WireManifest::Find(const std::string& name) const {
  for (size_t i = 0; i < entries.size(); ++i)
    if (entries[i].name == name) return static_cast<int>(i);
  return -1;
}

namespace {

/// The manifest's names for a whole plan; WireManifest::Find is for single questions.
class NameIndex {
 public:
  explicit NameIndex(const WireManifest& manifest) {
    for (size_t i = 0; i < manifest.entries.size(); ++i) places_[manifest.entries[i].name] = i;
    for (const TensorAlias& alias : manifest.aliases) {
      const auto target = places_.find(alias.target);
      if (target == places_.end())
        throw Error(StrCat("the manifest's alias ", alias.name, " stands for ", alias.target,
                           ", which it does not have"));
      aliases_[alias.name] = target->second;
    }
  }

  struct Place {
    size_t entry;
    bool alias;
  };
  /// Throws Error when there is no such tensor.
  Place Find(const std::string& name) const {
    if (const auto it = places_.find(name); it != places_.end()) return {it->second, false};
    if (const auto it = aliases_.find(name); it != aliases_.end()) return {it->second, true};
    throw Error(StrCat("tensor ", name, ": the model has no tensor of this name"));
  }

 private:
  std::unordered_map<std::string, size_t> places_, aliases_;
};

constexpr size_t kChunk = 4096;  // elements converted at once

/// Index of the first finite element that `dtype` cannot hold, or -1.
int64_t FirstOverflow(const NamedTensor& tensor, DType dtype, size_t elements) {
  if (tensor.dtype == dtype || dtype == DType::kF32 || tensor.dtype == DType::kF16) return -1;
  const auto* data = static_cast<const std::byte*>(tensor.data);
  std::vector<std::byte> converted(kChunk * SizeOf(dtype));
  const auto fits = [&](size_t begin, size_t count) {
    return ConvertFloats(data + begin * SizeOf(tensor.dtype), tensor.dtype, converted.data(), dtype,
                         count);
  };
  for (size_t begin = 0; begin < elements; begin += kChunk) {
    const size_t count = std::min(kChunk, elements - begin);
    if (fits(begin, count)) continue;
    for (size_t i = begin; i < begin + count; ++i)
      if (!fits(i, 1)) return static_cast<int64_t>(i);
  }
  return -1;
}

void CheckTensor(const NamedTensor& tensor, const ManifestEntry& entry) {
  if (!(tensor.shape == entry.shape))
    throw Error(StrCat("tensor ", tensor.name, ": shape ", ToString(tensor.shape), ", expected ",
                       ToString(entry.shape)));
  if (tensor.dtype != entry.dtype && !(IsWeightDType(tensor.dtype) && IsWeightDType(entry.dtype)))
    throw Error(StrCat("tensor ", tensor.name, ": dtype ", Name(tensor.dtype),
                       " cannot become the model's ", Name(entry.dtype),
                       "; expected float32, float16 or bfloat16"));
  const auto elements = static_cast<size_t>(entry.shape.NumElements());
  if (tensor.data == nullptr && elements > 0)
    throw Error(StrCat("tensor ", tensor.name, ": no data"));
  const int64_t overflow = FirstOverflow(tensor, entry.dtype, elements);
  if (overflow >= 0)
    throw Error(StrCat("tensor ", tensor.name, ": element ", overflow, " of ", Name(tensor.dtype),
                       " is beyond the range of the model's ", Name(entry.dtype)));
}

/// Equal after the cast to the entry's dtype, bit for bit.
bool SameWeights(const NamedTensor& a, const NamedTensor& b, const ManifestEntry& entry) {
  if (a.dtype == b.dtype && a.data == b.data) return true;
  const auto elements = static_cast<size_t>(entry.shape.NumElements());
  std::vector<std::byte> left(kChunk * SizeOf(entry.dtype)), right(left.size());
  const auto take = [&](const NamedTensor& from, size_t begin, size_t count,
                        std::vector<std::byte>& to) {
    const auto* data = static_cast<const std::byte*>(from.data) + begin * SizeOf(from.dtype);
    if (from.dtype == entry.dtype)
      std::memcpy(to.data(), data, count * SizeOf(entry.dtype));
    else  // CheckTensor has seen that it fits
      RC_CHECK(ConvertFloats(data, from.dtype, to.data(), entry.dtype, count));
  };
  for (size_t begin = 0; begin < elements; begin += kChunk) {
    const size_t count = std::min(kChunk, elements - begin);
    take(a, begin, count, left);
    take(b, begin, count, right);
    if (std::memcmp(left.data(), right.data(), count * SizeOf(entry.dtype)) != 0) return false;
  }
  return true;
}

}  // namespace

UpdatePlan MakeUpdatePlan(const WireManifest& manifest, bool partial,
                          std::span<const std::string> names,
                          std::span<const NamedTensor> tensors) {
  if (!partial && !names.empty())
    throw Error("a list of tensor names belongs to a partial update; this one is whole");
  const NameIndex index(manifest);
  const size_t count = manifest.entries.size();
  std::vector<const NamedTensor*> given(count, nullptr);    // under the entry's own name
  std::vector<const NamedTensor*> aliased(count, nullptr);  // under an alias
  std::unordered_set<std::string> seen;
  for (const NamedTensor& tensor : tensors) {
    const NameIndex::Place place = index.Find(tensor.name);
    if (!seen.insert(tensor.name).second)
      throw Error(StrCat("tensor ", tensor.name, ": given twice"));
    CheckTensor(tensor, manifest.entries[place.entry]);
    (place.alias ? aliased : given)[place.entry] = &tensor;
  }
  for (size_t i = 0; i < count; ++i) {
    if (aliased[i] == nullptr) continue;
    if (given[i] != nullptr && !SameWeights(*given[i], *aliased[i], manifest.entries[i]))
      throw Error(StrCat("tensor ", aliased[i]->name, ": differs from ", given[i]->name,
                         ", but the model ties the two"));
    if (given[i] == nullptr) given[i] = aliased[i];
  }

  std::vector<bool> wanted(count, !partial);
  if (partial && names.empty()) {
    for (size_t i = 0; i < count; ++i) wanted[i] = given[i] != nullptr;
  } else if (partial) {
    for (const std::string& name : names) wanted[index.Find(name).entry] = true;
  }

  UpdatePlan plan;
  for (size_t i = 0; i < count; ++i) {
    const ManifestEntry& entry = manifest.entries[i];
    if (wanted[i] && given[i] == nullptr)
      throw Error(StrCat("tensor ", entry.name, ": missing from a ",
                         partial ? "partial update that names it" : "whole update"));
    if (!wanted[i] && given[i] != nullptr)
      throw Error(StrCat("tensor ", given[i]->name, ": the partial update does not name it"));
    if (!wanted[i]) continue;
    plan.carried.push_back(static_cast<uint32_t>(i));
    plan.sources.push_back(
        {given[i]->data, given[i]->dtype, entry.dtype, entry.shape.NumElements()});
    plan.bytes += static_cast<int64_t>(entry.bytes);
  }
  if (plan.carried.empty()) throw Error("a partial update that carries no tensor");
  return plan;
}

}  // namespace rollcast
