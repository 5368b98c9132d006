#include "engine/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <type_traits>

#include "kernels/float_convert.h"

namespace rollcast {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies");

constexpr size_t kBlock = 32;                // elements of a quantised block
constexpr uint64_t kDefaultAlignment = 32;   // bytes
constexpr uint64_t kMaxAlignment = 1 << 20;  // beyond any that is in use
constexpr uint32_t kMaxDimensions = Shape::kMaxRank;

/// Value types of the metadata, as the file numbers them.
enum ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kFloat64 = 12,
};

struct Storage {
  GgufType type;
  size_t block_elements;
  size_t block_bytes;
};
constexpr Storage kStorages[] = {{GgufType::kF32, 1, 4},        {GgufType::kF16, 1, 2},
                                 {GgufType::kBF16, 1, 2},       {GgufType::kQ4_0, kBlock, 18},
                                 {GgufType::kQ4_1, kBlock, 20}, {GgufType::kQ8_0, kBlock, 34}};

/// Reads values one after another; throws Error at the end of the image.
class Cursor {
 public:
  Cursor(std::span<const std::byte> image, const std::string& file) : image_(image), file_(file) {}

  template <class T>
  T Read() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string ReadString() {
    const auto length = Read<uint64_t>();
    const std::span<const std::byte> bytes = Take(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// A count of things that take at least `min_bytes` each, so that a lie cannot ask for memory.
  uint64_t ReadCount(const char* what, size_t min_bytes) {
    const auto count = Read<uint64_t>();
    if (count > (image_.size() - position_) / min_bytes)
      throw Error(StrCat(file_, ": ", count, " ", what, " are more than fit in the file"));
    return count;
  }

  size_t position() const { return position_; }

 private:
  std::span<const std::byte> Take(uint64_t bytes) {
    if (bytes > image_.size() - position_)
      throw Error(StrCat(file_, ": ends at byte ", image_.size(), " inside a value at byte ",
                         position_, " (truncated?)"));
    const std::span<const std::byte> taken = image_.subspan(position_, bytes);
    position_ += bytes;
    return taken;
  }

  std::span<const std::byte> image_;
  const std::string& file_;
  size_t position_ = 0;
};

/// Calls `f` with a zero of the C++ type behind `type`; false when `type` is no number.
template <class F>
bool WithNumber(uint32_t type, F&& f) {
  switch (type) {
    case kU8:
      return f(uint8_t{}), true;
    case kI8:
      return f(int8_t{}), true;
    case kU16:
      return f(uint16_t{}), true;
    case kI16:
      return f(int16_t{}), true;
    case kU32:
      return f(uint32_t{}), true;
    case kI32:
      return f(int32_t{}), true;
    case kU64:
      return f(uint64_t{}), true;
    case kI64:
      return f(int64_t{}), true;
    case kFloat32:
      return f(float{}), true;
    case kFloat64:
      return f(double{}), true;
    default:
      return false;
  }
}

bool ReadBool(Cursor& cursor, const std::string& where) {
  const auto value = cursor.Read<uint8_t>();
  if (value > 1) throw Error(StrCat(where, ": expected a bool, found ", int{value}));
  return value == 1;
}

GgufValue ReadArray(Cursor& cursor, const std::string& where) {
  const auto type = cursor.Read<uint32_t>();
  if (type == kString) {
    std::vector<std::string> strings(cursor.ReadCount("strings", sizeof(uint64_t)));
    for (std::string& s : strings) s = cursor.ReadString();
    return strings;
  }
  if (type == kBool) {
    std::vector<int64_t> values(cursor.ReadCount("bools", 1));
    for (int64_t& value : values) value = ReadBool(cursor, where);
    return values;
  }
  GgufValue result;
  const auto read_all = [&]<class T>(T) {
    using Element = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    std::vector<Element> values(cursor.ReadCount("numbers", sizeof(T)));
    for (Element& value : values) value = static_cast<Element>(cursor.Read<T>());
    result = std::move(values);
  };
  if (!WithNumber(type, read_all))
    throw Error(StrCat(where, ": arrays of value type ", type, " are not supported"));
  return result;
}

GgufValue ReadValue(Cursor& cursor, const std::string& where) {
  const auto type = cursor.Read<uint32_t>();
  if (type == kString) return cursor.ReadString();
  if (type == kArray) return ReadArray(cursor, where);
  if (type == kBool) return ReadBool(cursor, where);
  GgufValue result;
  const auto read = [&]<class T>(T) {
    const T value = cursor.Read<T>();
    if constexpr (std::is_floating_point_v<T>)
      result = static_cast<double>(value);
    else
      result = static_cast<int64_t>(value);
  };
  if (!WithNumber(type, read)) throw Error(StrCat(where, ": unknown value type ", type));
  return result;
}

struct TensorInfo {
  GgufTensor tensor;
  uint64_t offset;
  size_t bytes;
};

TensorInfo ReadTensorInfo(Cursor& cursor, const std::string& file) {
  TensorInfo info{};
  info.tensor.name = cursor.ReadString();
  const std::string where = StrCat(file, ": tensor \"", info.tensor.name, "\"");
  const auto dimensions = cursor.Read<uint32_t>();
  if (dimensions == 0 || dimensions > kMaxDimensions)
    throw Error(StrCat(where, ": has ", dimensions, " dimensions, expected 1 to ", kMaxDimensions));
  std::vector<int64_t> extents;  // the file has the contiguous one first
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = cursor.Read<uint64_t>();
    if (extent > static_cast<uint64_t>(Shape::kMaxElements))
      throw Error(StrCat(where, ": an extent of ", extent, " is too large"));
    extents.insert(extents.begin(), static_cast<int64_t>(extent));
  }
  info.tensor.shape = Shape::From(extents.begin(), extents.end(), where);
  const auto type = cursor.Read<uint32_t>();
  const auto* storage =
      std::find_if(std::begin(kStorages), std::end(kStorages),
                   [&](const auto& s) { return static_cast<uint32_t>(s.type) == type; });
  if (storage == std::end(kStorages))
    throw Error(StrCat(where, ": storage type ", type,
                       " is not supported; known are F32, F16, BF16, Q4_0, Q4_1, Q8_0"));
  info.tensor.type = storage->type;
  if (extents.back() % static_cast<int64_t>(storage->block_elements) != 0)
    throw Error(StrCat(where, ": rows of ", extents.back(), " elements are not whole blocks of ",
                       storage->block_elements));
  info.bytes = static_cast<size_t>(info.tensor.shape.NumElements()) / storage->block_elements *
               storage->block_bytes;
  info.offset = cursor.Read<uint64_t>();
  return info;
}

float ReadHalf(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return F16ToFloat(bits);
}

/// One 4-bit block: byte i holds element i in its low and element i + 16 in its high half.
template <class F>
void UnpackNibbles(const std::byte* packed, float* out, F&& value) {
  for (size_t i = 0; i < kBlock / 2; ++i) {
    const auto byte = std::to_integer<int>(packed[i]);
    out[i] = value(byte & 15);
    out[i + kBlock / 2] = value(byte >> 4);
  }
}

}  // namespace

GgufContent ParseGguf(std::span<const std::byte> image, const std::string& file) {
  Cursor cursor(image, file);
  const auto magic = cursor.Read<uint32_t>();
  if (magic != 0x46554747) throw Error(StrCat(file, ": does not begin with \"GGUF\""));
  const auto version = cursor.Read<uint32_t>();
  if (version != 2 && version != 3)
    throw Error(StrCat(file, ": GGUF version ", version, ", expected 2 or 3"));
  // A tensor takes at least its name's length, dimensions, one extent, type and offset.
  const uint64_t num_tensors = cursor.ReadCount("tensors", 8 + 4 + 8 + 4 + 8);
  const uint64_t num_values = cursor.ReadCount("metadata values", 8 + 4 + 1);

  GgufContent content;
  for (uint64_t i = 0; i < num_values; ++i) {
    std::string key = cursor.ReadString();
    GgufValue value = ReadValue(cursor, StrCat(file, ": key \"", key, "\""));
    if (!content.metadata.emplace(key, std::move(value)).second)
      throw Error(StrCat(file, ": key \"", key, "\" is there twice"));
  }
  uint64_t alignment = kDefaultAlignment;
  if (const auto it = content.metadata.find("general.alignment"); it != content.metadata.end()) {
    const int64_t* given = std::get_if<int64_t>(&it->second);
    if (given == nullptr || *given <= 0 || *given > static_cast<int64_t>(kMaxAlignment) ||
        !std::has_single_bit(static_cast<uint64_t>(*given)))
      throw Error(StrCat(file, ": key \"general.alignment\": expected a power of two up to ",
                         kMaxAlignment));
    alignment = static_cast<uint64_t>(*given);
  }
  const auto align = [&](uint64_t n) { return (n + alignment - 1) / alignment * alignment; };

  std::vector<TensorInfo> infos;
  std::set<std::string> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    infos.push_back(ReadTensorInfo(cursor, file));
    if (!names.insert(infos.back().tensor.name).second)
      throw Error(StrCat(file, ": tensor \"", infos.back().tensor.name, "\" is there twice"));
  }
  std::stable_sort(infos.begin(), infos.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  const uint64_t data_begin = std::min<uint64_t>(align(cursor.position()), image.size());
  const std::span<const std::byte> data = image.subspan(data_begin);
  uint64_t end = 0;
  for (TensorInfo& info : infos) {
    const std::string where = StrCat(file, ": tensor \"", info.tensor.name, "\"");
    if (info.offset != align(end))
      throw Error(StrCat(where, ": begins at byte ", info.offset, " of the data, expected ",
                         align(end), " (tensors overlap, leave a gap or are not aligned)"));
    if (info.offset > data.size() || info.bytes > data.size() - info.offset)
      throw Error(StrCat(where, ": ends at byte ", info.offset + info.bytes, " of ", data.size(),
                         " bytes of data (truncated?)"));
    info.tensor.bytes = data.subspan(info.offset, info.bytes);
    end = info.offset + info.bytes;
    content.tensors.push_back(std::move(info.tensor));
  }
  if (data.size() > align(end))
    throw Error(
        StrCat(file, ": the last ", data.size() - align(end), " bytes belong to no tensor"));
  return content;
}

void DequantizeGguf(const GgufTensor& tensor, std::span<float> out) {
  RC_CHECK_EQ(static_cast<int64_t>(out.size()), tensor.shape.NumElements(), tensor.name);
  const std::byte* in = tensor.bytes.data();
  bool fits = true;
  switch (tensor.type) {
    case GgufType::kF32:
      fits = ConvertFloats(in, DType::kF32, out.data(), DType::kF32, out.size());
      break;
    case GgufType::kF16:
      fits = ConvertFloats(in, DType::kF16, out.data(), DType::kF32, out.size());
      break;
    case GgufType::kBF16:
      fits = ConvertFloats(in, DType::kBF16, out.data(), DType::kF32, out.size());
      break;
    case GgufType::kQ4_0:
      for (size_t i = 0; i < out.size(); i += kBlock, in += 18) {
        const float scale = ReadHalf(in);
        UnpackNibbles(in + 2, &out[i], [&](int q) { return static_cast<float>(q - 8) * scale; });
      }
      break;
    case GgufType::kQ4_1:
      for (size_t i = 0; i < out.size(); i += kBlock, in += 20) {
        const float scale = ReadHalf(in), minimum = ReadHalf(in + 2);
        UnpackNibbles(in + 4, &out[i],
                      [&](int q) { return static_cast<float>(q) * scale + minimum; });
      }
      break;
    case GgufType::kQ8_0:
      for (size_t i = 0; i < out.size(); i += kBlock, in += 34) {
        const float scale = ReadHalf(in);
        for (size_t j = 0; j < kBlock; ++j)
          out[i + j] = static_cast<float>(std::to_integer<int8_t>(in[2 + j])) * scale;
      }
      break;
  }
  RC_CHECK(fits, tensor.name);  // nothing is wider than float32
}

GgufFile::GgufFile(const std::filesystem::path& path)
    : name_(path.string()), file_(path), content_(ParseGguf(file_.bytes(), name_)) {}

const GgufTensor* GgufFile::Find(std::string_view name) const {
  const auto it = std::find_if(content_.tensors.begin(), content_.tensors.end(),
                               [&](const GgufTensor& tensor) { return tensor.name == name; });
  return it == content_.tensors.end() ? nullptr : &*it;
}

template <class T>
const T* GgufFile::Get(std::string_view key, const char* expected) const {
  const auto it = content_.metadata.find(key);
  if (it == content_.metadata.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  if (value == nullptr) throw Error(StrCat(name_, ": key \"", key, "\": expected ", expected));
  return value;
}

const std::string* GgufFile::String(std::string_view key) const {
  return Get<std::string>(key, "a string");
}

const std::vector<std::string>* GgufFile::Strings(std::string_view key) const {
  return Get<std::vector<std::string>>(key, "a list of strings");
}

const std::vector<int64_t>* GgufFile::Ints(std::string_view key) const {
  return Get<std::vector<int64_t>>(key, "a list of integers");
}

std::optional<int64_t> GgufFile::Int(std::string_view key) const {
  const int64_t* value = Get<int64_t>(key, "an integer");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> GgufFile::Number(std::string_view key) const {
  const double* value = Get<double>(key, "a number");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<bool> GgufFile::Bool(std::string_view key) const {
  const bool* value = Get<bool>(key, "true or false");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

}  // namespace rollcast
