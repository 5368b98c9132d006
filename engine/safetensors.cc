#include "engine/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/input_stream.h"
#include "engine/json_text.h"

namespace rollcast {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr std::array<DTypeName, 7> kDTypes{{{"F32", DType::kF32},
                                            {"F16", DType::kF16},
                                            {"BF16", DType::kBF16},
                                            {"I32", DType::kI32},
                                            {"I64", DType::kI64},
                                            {"U64", DType::kU64},
                                            {"U8", DType::kU8}}};

const char* SafetensorsName(DType dtype) {
  for (const DTypeName& known : kDTypes)
    if (known.dtype == dtype) return known.name;
  RC_CHECK(false, Name(dtype));
  return nullptr;
}

size_t ReadUnsigned(const json& value, const std::string& where) {
  if (!value.is_number_unsigned())
    throw Error(
        StrCat(where, ": expected an unsigned integer, found ", value.dump().substr(0, 40)));
  return value.get<size_t>();
}

/// One header entry, its range checked against its shape; `data` is what follows the header.
HostTensor ReadEntry(const std::string& name, const json& entry, std::span<const std::byte> data,
                     const std::string& file) {
  const std::string where = StrCat(file, ": tensor \"", name, "\"");
  if (!entry.is_object()) throw Error(StrCat(where, ": its header entry is not an object"));
  for (const auto& [key, value] : entry.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      throw Error(StrCat(where, ": unknown header key \"", key, "\""));
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!entry.contains(key)) throw Error(StrCat(where, ": header key \"", key, "\" is missing"));

  HostTensor tensor;
  tensor.name = name;
  const json& dtype = entry["dtype"];
  const auto known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeName& candidate) {
    return dtype.is_string() && dtype.get_ref<const std::string&>() == candidate.name;
  });
  if (known == kDTypes.end())
    throw Error(StrCat(where, ": dtype ", dtype.dump().substr(0, 40),
                       " is not one of F32, F16, BF16, I32, I64, U64, U8"));
  tensor.dtype = known->dtype;

  if (!entry["shape"].is_array()) throw Error(StrCat(where, ": shape is not a list"));
  std::vector<int64_t> extents;
  for (const json& extent : entry["shape"]) {
    const size_t e = ReadUnsigned(extent, StrCat(where, ": shape"));
    if (e > static_cast<size_t>(Shape::kMaxElements))
      throw Error(StrCat(where, ": an extent of ", e, " is too large"));
    extents.push_back(static_cast<int64_t>(e));
  }
  if (extents.size() > static_cast<size_t>(Shape::kMaxRank))
    throw Error(StrCat(where, ": has ", extents.size(), " dimensions, at most ", Shape::kMaxRank,
                       " are supported"));
  tensor.shape = Shape::From(extents.begin(), extents.end(), where);
  const auto expected_bytes =
      static_cast<size_t>(tensor.shape.NumElements()) * SizeOf(tensor.dtype);

  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2)
    throw Error(StrCat(where, ": data_offsets is not a pair"));
  const size_t begin = ReadUnsigned(offsets[0], StrCat(where, ": data_offsets"));
  const size_t end = ReadUnsigned(offsets[1], StrCat(where, ": data_offsets"));
  if (begin > end)
    throw Error(StrCat(where, ": data_offsets [", begin, ", ", end, "] run backwards"));
  if (end - begin != expected_bytes)
    throw Error(StrCat(where, ": ", ToString(tensor.shape), " of ", Name(tensor.dtype), " takes ",
                       expected_bytes, " bytes, data_offsets give ", end - begin));
  if (end > data.size())
    throw Error(StrCat(where, ": data_offsets end at ", end, " but the file has ", data.size(),
                       " bytes of data (truncated?)"));
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

}  // namespace

std::vector<HostTensor> ParseSafetensors(std::span<const std::byte> image,
                                         const std::string& file) {
  if (image.size() < kLengthBytes)
    throw Error(StrCat(file, ": ", image.size(), " bytes are too few for a safetensors file"));
  uint64_t header_bytes = 0;
  for (size_t i = kLengthBytes; i-- > 0;)
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(image[i]);
  if (header_bytes > kMaxSafetensorsHeader)
    throw Error(StrCat(file, ": header length ", header_bytes, " is above the limit of ",
                       kMaxSafetensorsHeader, " bytes (not a safetensors file?)"));
  if (header_bytes > image.size() - kLengthBytes)
    throw Error(StrCat(file, ": header length ", header_bytes, " is beyond the file's ",
                       image.size(), " bytes (truncated?)"));
  const char* header_begin = reinterpret_cast<const char*>(image.data()) + kLengthBytes;
  const char* header_end = header_begin + header_bytes;
  if (header_bytes == 0 || *header_begin != '{')
    throw Error(StrCat(file, ": the header does not begin with '{'"));
  const json header = ParseJson<json>({header_begin, header_end}, StrCat(file, ": the header"));
  const std::span<const std::byte> data = image.subspan(kLengthBytes + header_bytes);

  std::vector<HostTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors.push_back(ReadEntry(name, entry, data, file));
      continue;
    }
    if (!entry.is_object()) throw Error(StrCat(file, ": __metadata__ is not an object"));
    for (const auto& [key, value] : entry.items())
      if (!value.is_string())
        throw Error(StrCat(file, ": __metadata__ \"", key, "\" is not a string"));
  }

  // Sorted by range, so that an empty tensor comes before the one that begins where it stands.
  std::sort(tensors.begin(), tensors.end(), [](const HostTensor& a, const HostTensor& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  const std::byte* next = data.data();
  for (const HostTensor& tensor : tensors) {
    if (tensor.bytes.data() < next)
      throw Error(StrCat(file, ": tensor \"", tensor.name, "\" overlaps another"));
    if (tensor.bytes.data() > next)
      throw Error(StrCat(file, ": ", tensor.bytes.data() - next,
                         " bytes that belong to no tensor come before \"", tensor.name, "\""));
    next += tensor.bytes.size();
  }
  const std::byte* end = data.data() + data.size();
  if (next != end)
    throw Error(StrCat(file, ": the last ", end - next, " bytes belong to no tensor"));
  return tensors;
}

void WriteSafetensors(const std::filesystem::path& path, std::span<const HostTensor> tensors,
                      std::span<const std::pair<std::string, std::string>> metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  size_t offset = 0;
  for (const HostTensor& tensor : tensors) {
    RC_CHECK_EQ(tensor.bytes.size(),
                static_cast<size_t>(tensor.shape.NumElements()) * SizeOf(tensor.dtype),
                tensor.name);
    RC_CHECK(!header.contains(tensor.name), "duplicate ", tensor.name);
    std::vector<int64_t> extents;
    for (int i = 0; i < tensor.shape.rank(); ++i) extents.push_back(tensor.shape[i]);
    header[tensor.name] = {{"dtype", SafetensorsName(tensor.dtype)},
                           {"shape", extents},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data 8-byte aligned in the file
  std::array<unsigned char, kLengthBytes> length;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<unsigned char>(static_cast<uint64_t>(text.size()) >> (8 * i));

  AtomicFileWriter file(path);
  file.Write(length.data(), length.size());
  file.Write(text);
  for (const HostTensor& tensor : tensors) file.Write(tensor.bytes.data(), tensor.bytes.size());
  file.Commit();
}

void Checkpoint::AddFile(const std::filesystem::path& path) {
  files_.emplace_back(path);
  for (HostTensor& tensor : ParseSafetensors(files_.back().bytes(), path.string())) {
    const auto [at, is_new] = index_.emplace(tensor.name, tensors_.size());
    if (!is_new)
      throw Error(StrCat(path.string(), ": tensor \"", tensor.name, "\" is also in ",
                         tensors_[at->second].file));
    tensors_.push_back({std::move(tensor), path.string()});
  }
}

Checkpoint Checkpoint::Open(const std::filesystem::path& dir) {
  Checkpoint checkpoint;
  const std::filesystem::path single = dir / "model.safetensors";
  const std::filesystem::path index_path = dir / "model.safetensors.index.json";
  if (Exists(single)) {
    checkpoint.AddFile(single);
    return checkpoint;
  }
  if (!Exists(index_path))
    throw Error(
        StrCat(dir.string(), ": holds neither model.safetensors nor model.safetensors.index.json"));

  const std::string text = ReadTextFile(index_path);
  const std::string index_name = index_path.string();
  const json index = ParseJson<json>(text, index_name);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    throw Error(StrCat(index_name, ": key \"weight_map\" is missing or not an object"));
  std::map<std::string, std::string> shard_of;
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string())
      throw Error(StrCat(index_name, ": weight_map \"", tensor, "\" is not a file name"));
    const std::string& name = shard.get_ref<const std::string&>();
    if (name.empty() || std::filesystem::path(name).filename() != name || name == "..")
      throw Error(StrCat(index_name, ": weight_map \"", tensor, "\" is \"", name,
                         "\", expected the name of a file in the same folder"));
    shard_of[tensor] = name;
    shards.insert(name);
  }
  for (const std::string& shard : shards) checkpoint.AddFile(dir / shard);

  for (const auto& [tensor, shard] : shard_of) {
    const Tensor* found = checkpoint.Find(tensor);
    if (found == nullptr || found->file != (dir / shard).string())
      throw Error(
          StrCat(index_name, ": tensor \"", tensor, "\" should be in ", shard, " and is not"));
  }
  for (const Tensor& tensor : checkpoint.tensors_)
    if (!shard_of.contains(tensor.name))
      throw Error(StrCat(tensor.file, ": tensor \"", tensor.name, "\" is not in the index"));
  return checkpoint;
}

const Checkpoint::Tensor* Checkpoint::Find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace rollcast
