#include "trainer_bridge/update_plan.h"

#include <algorithm>
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

// Elements converted at once: few enough for the caches, enough to keep a GPU busy.
size_t PieceElements(const DeviceTransfer& transfer) {
  return transfer.host_memory() ? size_t{1} << 16 : size_t{1} << 24;
}

/// One tensor of the trainer and what it is to become.
struct Given {
  const NamedTensor* tensor;
  DType dtype;
  size_t elements;
  DeviceSet::Device* device;

  bool cast() const { return tensor->dtype != dtype; }
  bool may_overflow() const {
    return cast() && dtype != DType::kF32 && tensor->dtype != DType::kF16;
  }
  const std::byte* At(size_t element) const {
    return static_cast<const std::byte*>(tensor->data) + element * SizeOf(tensor->dtype);
  }
  /// Calls visit(first element, elements, cast piece in scratch memory).
  template <class Visitor>
  void ForEachCastPiece(size_t piece, Visitor visit) const {
    void* scratch = device->Scratch(piece * SizeOf(dtype));
    for (size_t begin = 0; begin < elements; begin += piece) {
      const size_t count = std::min(piece, elements - begin);
      device->transfer->Cast(At(begin), tensor->dtype, scratch, dtype, static_cast<int64_t>(count));
      visit(begin, count, scratch);
    }
  }
};

/// Index of the first finite element that the new dtype cannot hold, or -1.
int64_t FirstOverflow(const Given& given) {
  DeviceTransfer& transfer = *given.device->transfer;
  int64_t found = -1;
  given.ForEachCastPiece(PieceElements(transfer), [&](size_t begin, size_t count, const void*) {
    if (!transfer.TakeCastOverflow() || found >= 0) return;
    std::vector<std::byte> values(count * SizeOf(given.tensor->dtype));
    transfer.Copy(values.data(), given.At(begin), values.size());
    transfer.Synchronize();
    std::byte stored[sizeof(float)];
    for (size_t i = 0; i < count && found < 0; ++i)
      if (!ConvertFloats(values.data() + i * SizeOf(given.tensor->dtype), given.tensor->dtype,
                         stored, given.dtype, 1))
        found = static_cast<int64_t>(begin + i);
  });
  return found;
}

/// All casts of a device are enqueued before its answer is waited for; only when there is an
/// overflow are they done again, one by one, to find it.
void CheckRange(const std::vector<Given>& tensors, DeviceSet& devices) {
  for (const Given& given : tensors)
    if (given.may_overflow())
      given.ForEachCastPiece(PieceElements(*given.device->transfer),
                             [](size_t, size_t, const void*) {});
  bool overflow = false;
  for (auto& [name, device] : devices) overflow |= device.transfer->TakeCastOverflow();
  if (!overflow) return;
  for (const Given& given : tensors) {
    const int64_t element = given.may_overflow() ? FirstOverflow(given) : -1;
    if (element >= 0)
      throw Error(StrCat("tensor ", given.tensor->name, ": element ", element, " of ",
                         Name(given.tensor->dtype), " is beyond the range of the model's ",
                         Name(given.dtype)));
  }
  throw Error("a tensor changes while it is being published: a value was out of range");
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
}

/// DigestSum of each piece after the cast. Pieces are the same on every device.
std::vector<uint64_t> PieceSums(const Given& given) {
  constexpr size_t kPiece = size_t{1} << 22;
  DeviceTransfer& transfer = *given.device->transfer;
  std::vector<uint64_t> sums;
  if (given.cast()) {
    given.ForEachCastPiece(kPiece, [&](size_t, size_t count, const void* cast) {
      const DeviceRange range{cast, count * SizeOf(given.dtype)};
      sums.push_back(transfer.DigestSums({&range, 1}).front());
    });
    return sums;
  }
  std::vector<DeviceRange> ranges;
  for (size_t begin = 0; begin < given.elements; begin += kPiece)
    ranges.push_back(
        {given.At(begin), std::min(kPiece, given.elements - begin) * SizeOf(given.dtype)});
  return transfer.DigestSums(ranges);
}

/// Equal after the cast.
bool SameWeights(const Given& a, const Given& b) {
  if (a.tensor->dtype == b.tensor->dtype && a.tensor->data == b.tensor->data) return true;
  return PieceSums(a) == PieceSums(b);
}

}  // namespace

UpdatePlan MakeUpdatePlan(const WireManifest& manifest, bool partial,
                          std::span<const std::string> names, std::span<const NamedTensor> tensors,
                          DeviceSet& devices) {
  if (!partial && !names.empty())
    throw Error("a list of tensor names belongs to a partial update; this one is whole");
  const NameIndex index(manifest);
  const size_t count = manifest.entries.size();
  std::vector<const Given*> given(count, nullptr);    // under the entry's own name
  std::vector<const Given*> aliased(count, nullptr);  // under an alias
  std::unordered_set<std::string> seen;
  std::vector<Given> all;
  all.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const NameIndex::Place place = index.Find(tensor.name);
    if (!seen.insert(tensor.name).second)
      throw Error(StrCat("tensor ", tensor.name, ": given twice"));
    const ManifestEntry& entry = manifest.entries[place.entry];
    CheckTensor(tensor, entry);
    all.push_back({&tensor, entry.dtype, static_cast<size_t>(entry.shape.NumElements()),
                   &devices.Of(tensor.data)});
    (place.alias ? aliased : given)[place.entry] = &all.back();
  }
  for (auto& [name, device] : devices) device.transfer->SynchronizeDevice();
  CheckRange(all, devices);
  for (size_t i = 0; i < count; ++i) {
    if (aliased[i] == nullptr) continue;
    if (given[i] != nullptr && !SameWeights(*given[i], *aliased[i]))
      throw Error(StrCat("tensor ", aliased[i]->tensor->name, ": differs from ",
                         given[i]->tensor->name, ", but the model ties the two"));
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
      throw Error(
          StrCat("tensor ", given[i]->tensor->name, ": the partial update does not name it"));
    if (!wanted[i]) continue;
    plan.carried.push_back(static_cast<uint32_t>(i));
    plan.sources.push_back({given[i]->tensor->data, given[i]->tensor->dtype, entry.dtype,
                            entry.shape.NumElements(), given[i]->tensor->name});
    plan.bytes += static_cast<int64_t>(entry.bytes);
  }
  if (plan.carried.empty()) throw Error("a partial update that carries no tensor");
  return plan;
}

}  // namespace rollcast
