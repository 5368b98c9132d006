// The part of the HDF5 file format that Hdf5Appender writes: superblock 2, object headers 2 with
// compact links and attributes, chunked datasets under a version 1 B-tree, global heaps. From the
// "HDF5 File Format Specification Version 3.0"; every HDF5 library since 1.8 reads it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rollcast::hdf5 {

constexpr uint64_t kUndefinedAddress = ~uint64_t{0};
constexpr size_t kSuperblockBytes = 48;
/// Children of a chunk B-tree node: 2K for the K = 32 that a superblock without extension implies.
constexpr size_t kNodeChildren = 64;
constexpr size_t kNodeKeyBytes = 24, kNodeChildBytes = 8;
/// What the library reads of a node, used or not.
constexpr size_t kNodeBytes = 24 + kNodeChildren * kNodeChildBytes + (kNodeChildren + 1) * 24;
constexpr size_t kHeapReferenceBytes = 16;

/// Little-endian bytes, growing.
class Encoder {
 public:
  void U8(uint64_t v) { Little(v, 1); }
  void U16(uint64_t v) { Little(v, 2); }
  void U32(uint64_t v) { Little(v, 4); }
  void U64(uint64_t v) { Little(v, 8); }
  void Raw(std::string_view text) { bytes_.insert(bytes_.end(), text.begin(), text.end()); }
  void Raw(const std::vector<uint8_t>& more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  void Zeros(size_t count) { bytes_.insert(bytes_.end(), count, 0); }
  void PatchU32(size_t at, uint32_t v) { std::memcpy(bytes_.data() + at, &v, 4); }
  void PatchU64(size_t at, uint64_t v) { std::memcpy(bytes_.data() + at, &v, 8); }
  size_t size() const { return bytes_.size(); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  void Clear() { bytes_.clear(); }

 private:
  void Little(uint64_t v, int count) {
    for (int i = 0; i < count; ++i) bytes_.push_back(static_cast<uint8_t>(v >> (8 * i)));
  }
  std::vector<uint8_t> bytes_;
};

/// Element types. kText (UTF-8) and kInt32List elements are references into a global heap.
enum class ElementType : uint8_t {
  kBool,  // an enum of int8, as h5py writes it
  kEnum,  // of uint8, with names
  kInt32,
  kInt64,
  kUInt64,
  kFloat32,
  kFloat64,
  kText,
  kInt32List,
};
size_t ElementBytes(ElementType type);

/// Datatype message. `names` are the members 0, 1, ... of kEnum.
std::vector<uint8_t> EncodeType(ElementType type, const std::vector<std::string>& names);

/// Where a chunk's bytes, or a B-tree node, are.
struct ChunkEntry {
  uint64_t first_element = 0;
  uint64_t address = 0;
  uint32_t bytes = 0;
  uint32_t filter_mask = 0;  // bit i set: filter i of the pipeline was skipped
};
/// `entries`: at most kNodeChildren; `end_element`: one past the last chunk below this node.
void EncodeNode(Encoder& out, int level, std::span<const ChunkEntry> entries, uint64_t end_element);

struct DatasetHeader {
  std::vector<uint8_t> type;  // EncodeType
  uint32_t element_bytes = 0;
  uint64_t size = 0;            // elements
  uint32_t chunk_elements = 0;  // a power of two
  uint64_t index_address = kUndefinedAddress;
};
/// A one-dimensional, unlimited, chunked dataset with shuffle and deflate. Its length depends on
/// `type` alone.
void EncodeDataset(Encoder& out, const DatasetHeader& header);

struct Link {
  std::string name;
  uint64_t address = 0;
};
/// `data` holds one element of `type`, a scalar.
struct ScalarAttribute {
  std::string name;
  std::vector<uint8_t> type;
  std::vector<uint8_t> data;
};
void EncodeGroup(Encoder& out, std::span<const Link> links,
                 std::span<const ScalarAttribute> attributes);

/// kSuperblockBytes of it.
void EncodeSuperblock(Encoder& out, uint64_t root_address, uint64_t end_of_file);

/// Collects byte strings into one global heap collection.
class HeapCollection {
 public:
  explicit HeapCollection(uint64_t address) : address_(address) {}
  bool full() const { return count_ == 65000; }
  bool empty() const { return count_ == 0; }
  size_t bytes() const { return bytes_.size(); }
  /// Appends the 16 bytes that refer to `data` (`count` elements of a sequence) to `reference`.
  void Add(std::span<const uint8_t> data, uint32_t count, std::vector<uint8_t>& reference);
  /// The collection; nothing can be added afterwards.
  std::vector<uint8_t> Finish();

 private:
  uint64_t address_;
  uint32_t count_ = 0;
  Encoder bytes_;
};
/// The reference of an empty sequence or text.
void AppendNullReference(std::vector<uint8_t>& reference);

/// Bob Jenkins' lookup3 ("hashlittle", initial value 0), the checksum of HDF5 metadata.
uint32_t Checksum(std::span<const uint8_t> bytes);

/// The shuffle filter and then deflate, as the pipeline of EncodeDataset declares them. Keeps its
/// working memory from chunk to chunk.
class Compressor {
 public:
  Compressor();
  ~Compressor();
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;
  /// Valid until the next call.
  std::span<const uint8_t> ShuffleDeflate(std::span<const uint8_t> chunk, size_t element_bytes);

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
  std::vector<uint8_t> shuffled_, result_;
};

}  // namespace rollcast::hdf5
