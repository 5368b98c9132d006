#include "rollout/hdf5_format.h"

#include <zlib.h>

#include <algorithm>
#include <bit>

#include "kernels/check.h"

namespace rollcast::hdf5 {

static_assert(std::endian::native == std::endian::little, "HDF5 types here are little-endian");

namespace {

constexpr int kDeflateLevel = 1;
constexpr size_t kMinHeapBytes = 4096;  // the library refuses a smaller collection

// Message types of an object header.
enum Message : uint8_t {
  kDataspace = 0x01,
  kLinkInfo = 0x02,
  kDatatype = 0x03,
  kFillValue = 0x05,
  kLink = 0x06,
  kLayout = 0x08,
  kGroupInfo = 0x0A,
  kFilters = 0x0B,
  kAttribute = 0x0C,
};

// An object header of version 2 in one chunk; the length and the checksum are filled in at the end.
class ObjectHeader {
 public:
  explicit ObjectHeader(Encoder& out) : out_(out), start_(out.size()) {
    out_.Raw("OHDR");
    out_.U8(2);
    out_.U8(0x02);  // a 4-byte length, no times, no creation order
    out_.U32(0);
  }
  template <class Body>
  void Add(Message type, const Body& body) {
    out_.U8(type);
    const size_t length_at = out_.size();
    out_.U16(0);
    out_.U8(0);
    const size_t begin = out_.size();
    body(out_);
    const size_t length = out_.size() - begin;
    RC_CHECK_LE(length, size_t{65535}, "bytes of an object header message");
    // Length and the flags byte after it.
    out_.PatchU32(length_at - 1, static_cast<uint32_t>(type | length << 8));
  }
  void Finish() {
    out_.PatchU32(start_ + 6, static_cast<uint32_t>(out_.size() - start_ - 10));
    out_.U32(Checksum(std::span(out_.bytes()).subspan(start_)));
  }

 private:
  Encoder& out_;
  size_t start_;
};

void FixedPoint(Encoder& out, int bytes, bool is_signed) {
  out.U8(0x10);
  out.U8(is_signed ? 0x08 : 0);
  out.U16(0);
  out.U32(bytes);
  out.U16(0);
  out.U16(8 * bytes);
}

void FloatingPoint(Encoder& out, int bytes, int exponent_bits, int mantissa_bits, uint32_t bias) {
  out.U8(0x11);
  out.U8(0x20);  // little-endian, the leading 1 of the mantissa is implied
  out.U8(8 * bytes - 1);
  out.U8(0);
  out.U32(bytes);
  out.U16(0);
  out.U16(8 * bytes);
  out.U8(mantissa_bits);
  out.U8(exponent_bits);
  out.U8(0);
  out.U8(mantissa_bits);
  out.U32(bias);
}

void Enumeration(Encoder& out, bool is_signed, const std::vector<std::string>& names) {
  out.U8(0x18);
  out.U16(names.size());
  out.U8(0);
  out.U32(1);
  FixedPoint(out, 1, is_signed);
  for (const std::string& name : names) {
    out.Raw(name);
    out.Zeros(8 - name.size() % 8);
  }
  for (size_t i = 0; i < names.size(); ++i) out.U8(i);
}

void VariableLength(Encoder& out, bool text) {
  out.U8(0x19);
  out.U8(text ? 1 : 0);
  out.U8(text ? 1 : 0);  // UTF-8
  out.U8(0);
  out.U32(kHeapReferenceBytes);
  if (text) {
    FixedPoint(out, 1, false);
  } else {
    FixedPoint(out, 4, true);
  }
}

}  // namespace

size_t ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kBool:
    case ElementType::kEnum:
      return 1;
    case ElementType::kInt32:
    case ElementType::kFloat32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kUInt64:
    case ElementType::kFloat64:
      return 8;
    case ElementType::kText:
    case ElementType::kInt32List:
      return kHeapReferenceBytes;
  }
  RC_CHECK(false, "element type ", static_cast<int>(type));
}

std::vector<uint8_t> EncodeType(ElementType type, const std::vector<std::string>& names) {
  Encoder out;
  switch (type) {
    case ElementType::kBool:
      Enumeration(out, true, {"FALSE", "TRUE"});
      break;
    case ElementType::kEnum:
      Enumeration(out, false, names);
      break;
    case ElementType::kInt32:
      FixedPoint(out, 4, true);
      break;
    case ElementType::kInt64:
      FixedPoint(out, 8, true);
      break;
    case ElementType::kUInt64:
      FixedPoint(out, 8, false);
      break;
    case ElementType::kFloat32:
      FloatingPoint(out, 4, 8, 23, 127);
      break;
    case ElementType::kFloat64:
      FloatingPoint(out, 8, 11, 52, 1023);
      break;
    case ElementType::kText:
      VariableLength(out, true);
      break;
    case ElementType::kInt32List:
      VariableLength(out, false);
      break;
  }
  return out.bytes();
}

void EncodeNode(Encoder& out, int level, std::span<const ChunkEntry> entries,
                uint64_t end_element) {
  RC_CHECK_LE(entries.size(), kNodeChildren);
  out.Raw("TREE");
  out.U8(1);  // of raw data chunks
  out.U8(level);
  out.U16(entries.size());
  // Siblings serve a walk along a level; the library descends from the root for every lookup and
  // every iteration, so nodes that are only ever replaced need not know their neighbours.
  out.U64(kUndefinedAddress);
  out.U64(kUndefinedAddress);
  for (const ChunkEntry& entry : entries) {
    out.U32(entry.bytes);
    out.U32(entry.filter_mask);
    out.U64(entry.first_element);
    out.U64(0);  // the dimension within an element
    out.U64(entry.address);
  }
  out.U32(0);
  out.U32(0);
  out.U64(end_element);
  out.U64(0);
}

void EncodeDataset(Encoder& out, const DatasetHeader& header) {
  ObjectHeader object(out);
  object.Add(kDataspace, [&](Encoder& body) {
    body.U8(2);
    body.U8(1);  // dimensions
    body.U8(1);  // maximum is given
    body.U8(1);  // simple
    body.U64(header.size);
    body.U64(kUndefinedAddress);  // unlimited
  });
  object.Add(kDatatype, [&](Encoder& body) { body.Raw(header.type); });
  object.Add(kFillValue, [](Encoder& body) {
    body.U8(2);
    body.U8(3);  // space is taken as chunks come
    body.U8(2);  // written when set
    body.U8(1);  // defined: zero bytes of it, the default
    body.U32(0);
  });
  object.Add(kLayout, [&](Encoder& body) {
    body.U8(3);
    body.U8(2);  // chunked
    body.U8(2);  // dimensions and one for the element
    body.U64(header.index_address);
    body.U32(header.chunk_elements);
    body.U32(header.element_bytes);
  });
  object.Add(kFilters, [&](Encoder& body) {
    body.U8(2);
    body.U8(2);
    const uint32_t filters[2][2] = {{2, header.element_bytes}, {1, kDeflateLevel}};
    for (const auto& [id, value] : filters) {
      body.U16(id);
      body.U16(1);  // optional: may be skipped for a chunk
      body.U16(1);
      body.U32(value);
    }
  });
  object.Finish();
}

void EncodeGroup(Encoder& out, std::span<const Link> links,
                 std::span<const ScalarAttribute> attributes) {
  ObjectHeader object(out);
  object.Add(kLinkInfo, [](Encoder& body) {
    body.U8(0);
    body.U8(0);
    body.U64(kUndefinedAddress);
    body.U64(kUndefinedAddress);
  });
  object.Add(kGroupInfo, [](Encoder& body) { body.U16(0); });
  for (const Link& link : links)
    object.Add(kLink, [&](Encoder& body) {
      RC_CHECK_LT(link.name.size(), size_t{256}, link.name);
      body.U8(1);
      body.U8(0);  // a hard link, its name's length in one byte
      body.U8(link.name.size());
      body.Raw(link.name);
      body.U64(link.address);
    });
  for (const ScalarAttribute& attribute : attributes)
    object.Add(kAttribute, [&](Encoder& body) {
      body.U8(3);
      body.U8(0);
      body.U16(attribute.name.size() + 1);
      body.U16(attribute.type.size());
      body.U16(4);
      body.U8(1);  // UTF-8
      body.Raw(attribute.name);
      body.U8(0);
      body.Raw(attribute.type);
      body.U32(2);  // dataspace version 2, rank 0, no flags, scalar
      body.Raw(attribute.data);
    });
  object.Finish();
}

void EncodeSuperblock(Encoder& out, uint64_t root_address, uint64_t end_of_file) {
  const size_t start = out.size();
  out.Raw("\x89HDF\r\n\x1a\n");
  out.U8(2);
  out.U8(8);  // bytes of an address
  out.U8(8);  // bytes of a length
  out.U8(0);
  out.U64(0);
  out.U64(kUndefinedAddress);
  out.U64(end_of_file);
  out.U64(root_address);
  out.U32(Checksum(std::span(out.bytes()).subspan(start)));
}

void HeapCollection::Add(std::span<const uint8_t> data, uint32_t count,
                         std::vector<uint8_t>& reference) {
  RC_CHECK(!full());
  if (count_ == 0) bytes_.Zeros(16);
  ++count_;
  bytes_.U16(count_);
  bytes_.U16(1);
  bytes_.U32(0);
  bytes_.U64(data.size());
  bytes_.Raw(std::string_view(reinterpret_cast<const char*>(data.data()), data.size()));
  bytes_.Zeros((8 - data.size() % 8) % 8);
  Encoder out;
  out.U32(count);
  out.U64(address_);
  out.U32(count_);
  reference.insert(reference.end(), out.bytes().begin(), out.bytes().end());
}

std::vector<uint8_t> HeapCollection::Finish() {
  if (bytes_.size() < kMinHeapBytes) {
    // Object 0 is the free space; its size counts its own header of 16 bytes.
    const size_t free = std::max<size_t>(kMinHeapBytes - bytes_.size(), 16);
    bytes_.U64(0);
    bytes_.U64(free);
    bytes_.Zeros(free - 16);
  }
  Encoder header;
  header.Raw("GCOL");
  header.U32(1);
  header.U64(bytes_.size());
  std::vector<uint8_t> result = bytes_.bytes();
  std::copy(header.bytes().begin(), header.bytes().end(), result.begin());
  return result;
}

void AppendNullReference(std::vector<uint8_t>& reference) {
  reference.insert(reference.end(), kHeapReferenceBytes, 0);
}

uint32_t Checksum(std::span<const uint8_t> bytes) {
  uint32_t a = 0xDEADBEEFu + static_cast<uint32_t>(bytes.size()), b = a, c = a;
  if (bytes.empty()) return c;
  const auto take = [&](size_t at, size_t count) {
    uint32_t words[3] = {0, 0, 0};
    std::memcpy(words, bytes.data() + at, count);
    a += words[0];
    b += words[1];
    c += words[2];
  };
  size_t at = 0;
  for (; bytes.size() - at > 12; at += 12) {
    take(at, 12);
    // One round: x -= z; x ^= rot(z, k); z += y, with the roles of a, b, c moving on.
    constexpr int kMix[] = {4, 6, 8, 16, 19, 4};
    for (const int k : kMix) {
      a = (a - c) ^ std::rotl(c, k);
      c += b;
      const uint32_t next = a;
      a = b;
      b = c;
      c = next;
    }
  }
  take(at, bytes.size() - at);
  constexpr int kFinal[] = {14, 11, 25, 16, 4, 14, 24};
  for (const int k : kFinal) {
    c = (c ^ b) - std::rotl(b, k);
    const uint32_t next = a;
    a = b;
    b = c;
    c = next;
  }
  // Seven rounds moved the roles on by one: what was last changed lies in b.
  return b;
}

struct Compressor::Stream {
  z_stream z{};
};

Compressor::Compressor() : stream_(std::make_unique<Stream>()) {
  // Run lengths and Huffman codes alone: after the shuffle there is little else to find (the upper
  // bytes of ids and log-probabilities repeat, the lower ones are noise), and it is several times
  // as fast as the search for matches.
  RC_CHECK_EQ(deflateInit2(&stream_->z, kDeflateLevel, Z_DEFLATED, 15, 8, Z_RLE), Z_OK);
}

Compressor::~Compressor() { deflateEnd(&stream_->z); }

std::span<const uint8_t> Compressor::ShuffleDeflate(std::span<const uint8_t> chunk,
                                                    size_t element_bytes) {
  z_stream& z = stream_->z;
  shuffled_.resize(chunk.size());
  const size_t count = chunk.size() / element_bytes;
  for (size_t byte = 0; byte < element_bytes; ++byte)
    for (size_t i = 0; i < count; ++i)
      shuffled_[byte * count + i] = chunk[i * element_bytes + byte];
  deflateReset(&z);
  result_.resize(std::max<size_t>(result_.size(), deflateBound(&z, shuffled_.size())));
  z.next_in = shuffled_.data();
  z.avail_in = static_cast<uInt>(shuffled_.size());
  z.next_out = result_.data();
  z.avail_out = static_cast<uInt>(result_.size());
  RC_CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  return std::span(result_).first(z.total_out);
}

}  // namespace rollcast::hdf5
