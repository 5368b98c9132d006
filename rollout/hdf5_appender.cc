#include "rollout/hdf5_appender.h"

#include <fcntl.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "kernels/check.h"
#include "rollout/writer_lock.h"

namespace rollcast {

namespace {

using hdf5::ChunkEntry;
using hdf5::ElementType;
using hdf5::kNodeBytes;
using hdf5::kNodeChildren;
using hdf5::kUndefinedAddress;

constexpr uint32_t kBothFiltersSkipped = 3;
// Commits before freed space is used again, however long they take. 1 would do for a killed writer.
constexpr uint64_t kGraceCommits = 16;
constexpr size_t kHeapBytes = 1 << 20;  // a collection is closed when it has grown beyond

uint64_t Align8(uint64_t n) { return (n + 7) & ~uint64_t{7}; }

std::string ErrorText(int error) { return std::generic_category().message(error); }

// HDF5 text is UTF-8 up to the first NUL.
std::string CleanText(std::string_view text) {
  std::string clean;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t code = -1;
    const utf8proc_ssize_t length =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (length <= 0 || code == 0) {
      clean += "\xEF\xBF\xBD";
      ++at;
    } else {
      clean.append(text.substr(at, length));
      at += length;
    }
  }
  return clean;
}

}  // namespace

Hdf5Appender::Hdf5Appender(const std::filesystem::path& path, bool overwrite,
                           std::vector<Attribute> attributes, std::vector<Column> columns)
    : path_(path), attributes_(std::move(attributes)) {
  for (Column& column : columns) {
    ColumnState state;
    state.header.type = hdf5::EncodeType(column.type, column.enum_names);
    state.header.element_bytes = static_cast<uint32_t>(hdf5::ElementBytes(column.type));
    state.header.chunk_elements = column.chunk_elements;
    state.chunk_bytes = size_t{column.chunk_elements} * state.header.element_bytes;
    state.column = std::move(column);
    columns_.push_back(std::move(state));
  }
  Create(overwrite);
}

Hdf5Appender::~Hdf5Appender() {
  if (fd_ < 0) return;
  try {
    if (broken_.empty()) Close();
  } catch (...) {
    // The file is as the last commit left it; callers who want to know call Close.
  }
  if (fd_ >= 0) ::close(fd_);
}

namespace {

/// rename that fails with EEXIST when there is a `to`. 0 or -1, as rename.
int RenameToNewName(const std::filesystem::path& from, const std::filesystem::path& to) {
  int failed = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (failed == 0 || errno == EEXIST) return failed;
  // Not every file system has that (NFS), nor links (FAT); then only an earlier look guards.
  failed = ::link(from.c_str(), to.c_str());
  if (failed == 0) ::unlink(from.c_str());
  if (failed == 0 || errno == EEXIST) return failed;
  return ::rename(from.c_str(), to.c_str());
}

}  // namespace

void Hdf5Appender::Create(bool overwrite) {
  RequireReplaceable(path_, overwrite, kHdf5Output);
  for (int attempt = 0; fd_ < 0; ++attempt) {
    open_path_ = path_.string() + StrCat(".", ::getpid(), "-", attempt, ".tmp");
    fd_ = ::open(open_path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    if (fd_ < 0 && (errno != EEXIST || attempt == 100))
      throw Error(StrCat(path_.string(), ": cannot be created: ", ErrorText(errno)));
  }
  try {
    locked_ = HoldAsWriter(fd_) == WriterLock::kHeld;
    end_ = hdf5::kSuperblockBytes;
    WriteState();
    Place(overwrite);
  } catch (...) {
    ::close(std::exchange(fd_, -1));
    ::unlink(open_path_.c_str());
    throw;
  }
  open_path_ = path_;
}

void Hdf5Appender::Place(bool overwrite) {
  // Between the look for an old file and the renaming another job may have put one there.
  for (int attempt = 0;; ++attempt) {
    std::optional<FileToReplace> old;
    if (overwrite) old.emplace(path_, kHdf5Output);
    const int failed = overwrite && old->exists() ? ::rename(open_path_.c_str(), path_.c_str())
                                                  : RenameToNewName(open_path_, path_);
    if (failed == 0) return;
    if (errno != EEXIST || !overwrite || attempt == 100) Fail("cannot be created", errno);
  }
}

uint64_t Hdf5Appender::size(size_t column) const {
  const ColumnState& state = columns_.at(column);
  return state.chunks * state.header.chunk_elements +
         state.tail.size() / state.header.element_bytes;
}

template <class Body>
void Hdf5Appender::Guard(const Body& body) {
  RC_CHECK_GE(fd_, 0, path_, " has been closed");
  if (!broken_.empty()) throw Error(broken_);
  try {
    body();
  } catch (const std::exception& e) {
    broken_ = e.what();
    throw;
  }
}

void Hdf5Appender::Stage(size_t column, std::span<const uint8_t> bytes) {
  Guard([&] {
    std::vector<uint8_t>& tail = columns_.at(column).tail;
    RC_CHECK_EQ(bytes.size() % columns_[column].header.element_bytes, 0u,
                columns_[column].column.name);
    tail.insert(tail.end(), bytes.begin(), bytes.end());
  });
}

void Hdf5Appender::AppendText(size_t column, std::string_view text) {
  RC_CHECK(columns_.at(column).column.type == ElementType::kText, columns_[column].column.name);
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c != 0 && static_cast<unsigned char>(c) < 0x80;
  });
  const std::string cleaned = plain ? std::string() : CleanText(text);
  if (!plain) text = cleaned;
  StageHeap(column, {reinterpret_cast<const uint8_t*>(text.data()), text.size()}, text.size());
}

void Hdf5Appender::AppendInt32List(size_t column, std::span<const int32_t> values) {
  RC_CHECK(columns_.at(column).column.type == ElementType::kInt32List,
           columns_[column].column.name);
  StageHeap(column, {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()},
            values.size());
}

void Hdf5Appender::StageHeap(size_t column, std::span<const uint8_t> data, size_t count) {
  Guard([&] {
    std::vector<uint8_t>& tail = columns_.at(column).tail;
    if (data.empty()) {
      hdf5::AppendNullReference(tail);
      return;
    }
    if (heap_ && (heap_->full() || heap_->bytes() > kHeapBytes)) FinishHeap();
    if (!heap_) heap_.emplace(end_);
    heap_->Add(data, static_cast<uint32_t>(count), tail);
  });
}

void Hdf5Appender::FinishHeap() {
  if (!heap_) return;
  const std::vector<uint8_t> collection = heap_->Finish();
  heap_.reset();
  Write(end_, collection);
  end_ = Align8(end_ + collection.size());
}

void Hdf5Appender::SetAttribute(const std::string& name, Value value) {
  for (Attribute& attribute : attributes_) {
    if (attribute.name != name) continue;
    RC_CHECK_EQ(attribute.value.index(), value.index(), name);
    attribute.value = std::move(value);
    new_attributes_ = true;
    return;
  }
  RC_CHECK(false, "no attribute ", name);
}

void Hdf5Appender::Commit() {
  Guard([&] { WriteState(); });
}

void Hdf5Appender::Sync() {
  Guard([&] {
    if (::fdatasync(fd_) != 0) Fail("cannot be written to the disk", errno);
  });
}

void Hdf5Appender::Close() {
  Guard([&] {
    WriteState();
    for (ColumnState& state : columns_) {
      if (state.tail.empty()) continue;
      state.header.size = size(&state - columns_.data());
      state.tail.resize(state.chunk_bytes);
      StoreFullChunk(state, state.tail);
      state.tail.clear();
    }
    WriteMetadata();
    if (::ftruncate(fd_, static_cast<off_t>(end_)) != 0 || ::fsync(fd_) != 0)
      Fail("cannot be closed", errno);
    // Some network file systems report a failed write only here.
    if (::close(std::exchange(fd_, -1)) != 0) Fail("cannot be closed", errno);
  });
}

void Hdf5Appender::Fail(const std::string& what, int error) {
  throw Error(StrCat(path_.string(), ": ", what, ": ", ErrorText(error),
                     commits_ > 0 ? "; what it held before stays readable" : ""));
}

bool Hdf5Appender::MayReuse(const FreeBlock& block) {
  if (block.usable_from > commits_ || std::chrono::steady_clock::now() - block.freed < grace_)
    return false;
  // Who opens the file after this look finds the current state, which has no free block in it.
  if (!being_read_) being_read_ = IsBeingRead(fd_);
  return !*being_read_;
}

uint64_t Hdf5Appender::Allocate(uint64_t bytes) {
  const auto found = free_.find(bytes);
  if (found != free_.end() && !found->second.empty() && MayReuse(found->second.front())) {
    const uint64_t address = found->second.front().address;
    found->second.pop_front();
    return address;
  }
  const uint64_t address = end_;
  end_ = Align8(end_ + bytes);
  return address;
}

void Hdf5Appender::Free(uint64_t address, uint64_t bytes) {
  if (address != kUndefinedAddress)
    free_[bytes].push_back({address, commits_ + kGraceCommits, std::chrono::steady_clock::now()});
}

void Hdf5Appender::Write(uint64_t address, std::span<const uint8_t> bytes) {
  if (write_hook_) write_hook_(address, bytes);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(address + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) Fail("cannot be written", n < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(n);
  }
  file_size_ = std::max(file_size_, address + bytes.size());
}

void Hdf5Appender::StoreFullChunk(ColumnState& state, std::span<const uint8_t> raw) {
  const std::span<const uint8_t> packed =
      compressor_.ShuffleDeflate(raw, state.header.element_bytes);
  const bool pays = packed.size() < raw.size();
  const std::span<const uint8_t> stored = pays ? packed : raw;
  ChunkEntry chunk;
  chunk.first_element = state.chunks * state.header.chunk_elements;
  chunk.bytes = static_cast<uint32_t>(stored.size());
  chunk.filter_mask = pays ? 0 : kBothFiltersSkipped;
  chunk.address = end_;
  end_ = Align8(end_ + stored.size());
  Write(chunk.address, stored);
  PutChunk(state, chunk);
  Free(std::exchange(state.tail_address, kUndefinedAddress), state.chunk_bytes);
  ++state.chunks;
  state.tail_written = 0;
}

void Hdf5Appender::WriteTail(ColumnState& state) {
  if (state.tail.size() == state.tail_written) return;
  if (state.tail_address == kUndefinedAddress) {
    ChunkEntry chunk;
    chunk.first_element = state.chunks * state.header.chunk_elements;
    chunk.bytes = static_cast<uint32_t>(state.chunk_bytes);
    chunk.filter_mask = kBothFiltersSkipped;
    chunk.address = Allocate(state.chunk_bytes);
    PutChunk(state, chunk);
    state.tail_address = chunk.address;
  }
  Write(state.tail_address + state.tail_written, std::span(state.tail).subspan(state.tail_written));
  state.tail_written = state.tail.size();
}

void Hdf5Appender::PutChunk(ColumnState& state, const ChunkEntry& chunk) {
  state.index_changed = true;
  if (state.tail_address != kUndefinedAddress) {
    state.path[0].entries.back() = chunk;  // in place of the tail
  } else {
    PushEntry(state, 0, chunk);
  }
}

void Hdf5Appender::PushEntry(ColumnState& state, size_t level, const ChunkEntry& entry) {
  if (level == state.path.size()) state.path.emplace_back();
  if (state.path[level].entries.size() == kNodeChildren) {
    WriteNode(state, level, entry.first_element);
    // Its last writing: it keeps its place, and the level goes on with a new node.
    const Node full = std::exchange(state.path[level], Node());
    ChunkEntry child = full.entries.front();
    child.address = full.address;
    if (level + 1 == state.path.size()) {
      PushEntry(state, level + 1, child);
    } else {
      state.path[level + 1].entries.back() = child;
    }
    PushEntry(state, level + 1, entry);  // its address follows in WriteIndex
  }
  state.path[level].entries.push_back(entry);
}

void Hdf5Appender::WriteNode(ColumnState& state, size_t level, uint64_t end_element) {
  Node& node = state.path[level];
  Free(node.address, kNodeBytes);
  node.address = Allocate(kNodeBytes);
  scratch_.Clear();
  hdf5::EncodeNode(scratch_, static_cast<int>(level), node.entries, end_element);
  Write(node.address, scratch_.bytes());
}

void Hdf5Appender::WriteIndex(ColumnState& state) {
  if (!std::exchange(state.index_changed, false)) return;
  const uint64_t end_element =
      state.path[0].entries.back().first_element + state.header.chunk_elements;
  for (size_t level = 0; level < state.path.size(); ++level) {
    WriteNode(state, level, end_element);
    if (level + 1 == state.path.size()) break;
    ChunkEntry& parent = state.path[level + 1].entries.back();
    parent = state.path[level].entries.front();
    parent.address = state.path[level].address;
  }
  state.header.index_address = state.path.back().address;
}

void Hdf5Appender::WriteState() {
  FinishHeap();
  for (ColumnState& state : columns_) {
    state.header.size = size(&state - columns_.data());
    size_t stored = 0;
    for (; state.tail.size() - stored >= state.chunk_bytes; stored += state.chunk_bytes)
      StoreFullChunk(state, std::span(state.tail).subspan(stored, state.chunk_bytes));
    state.tail.erase(state.tail.begin(), state.tail.begin() + static_cast<ptrdiff_t>(stored));
    WriteTail(state);
  }
  WriteMetadata();
}

void Hdf5Appender::EncodeAttributes() {
  if (!std::exchange(new_attributes_, false)) return;
  encoded_attributes_.clear();
  const uint64_t heap_address = end_;
  hdf5::HeapCollection heap(heap_address);
  for (const Attribute& attribute : attributes_) {
    hdf5::ScalarAttribute encoded;
    encoded.name = attribute.name;
    hdf5::Encoder data;
    if (const auto* flag = std::get_if<bool>(&attribute.value)) {
      encoded.type = hdf5::EncodeType(ElementType::kBool, {});
      data.U8(*flag);
    } else if (const auto* number = std::get_if<int64_t>(&attribute.value)) {
      encoded.type = hdf5::EncodeType(ElementType::kInt64, {});
      data.U64(static_cast<uint64_t>(*number));
    } else if (const auto* digest = std::get_if<uint64_t>(&attribute.value)) {
      encoded.type = hdf5::EncodeType(ElementType::kUInt64, {});
      data.U64(*digest);
    } else {
      encoded.type = hdf5::EncodeType(ElementType::kText, {});
      const std::string text = CleanText(std::get<std::string>(attribute.value));
      std::vector<uint8_t> reference;
      if (text.empty()) {
        hdf5::AppendNullReference(reference);
      } else {
        heap.Add({reinterpret_cast<const uint8_t*>(text.data()), text.size()},
                 static_cast<uint32_t>(text.size()), reference);
      }
      data.Raw(reference);
    }
    encoded.data = data.bytes();
    encoded_attributes_.push_back(std::move(encoded));
  }
  if (heap.empty()) return;
  const std::vector<uint8_t> collection = heap.Finish();
  end_ = Align8(end_ + collection.size());
  Write(heap_address, collection);
}

uint64_t Hdf5Appender::EncodeHeaders(uint64_t base) {
  scratch_.Clear();
  const auto next_address = [&] {
    scratch_.Zeros(Align8(scratch_.size()) - scratch_.size());
    return base + scratch_.size();
  };
  std::map<std::string, std::vector<hdf5::Link>> groups;  // "" is the root
  for (const ColumnState& state : columns_) {
    const std::string& name = state.column.name;
    const size_t slash = name.find('/');
    const std::string group = slash == std::string::npos ? "" : name.substr(0, slash);
    groups[group].push_back(
        {name.substr(slash == std::string::npos ? 0 : slash + 1), next_address()});
    hdf5::EncodeDataset(scratch_, state.header);
  }
  for (const auto& [name, links] : groups) {
    if (name.empty()) continue;
    groups[""].push_back({name, next_address()});
    hdf5::EncodeGroup(scratch_, links, {});
  }
  const uint64_t root = next_address();
  hdf5::EncodeGroup(scratch_, groups[""], encoded_attributes_);
  return root;
}

void Hdf5Appender::WriteMetadata() {
  EncodeAttributes();
  for (ColumnState& state : columns_) WriteIndex(state);
  if (metadata_bytes_ == 0) {
    EncodeHeaders(0);
    metadata_bytes_ = scratch_.size();  // no value that may change changes it
  }
  Free(metadata_address_, metadata_bytes_);
  metadata_address_ = Allocate(metadata_bytes_);
  const uint64_t root = EncodeHeaders(metadata_address_);
  RC_CHECK_EQ(scratch_.size(), metadata_bytes_);
  Write(metadata_address_, scratch_.bytes());
  if (file_size_ < end_) {
    if (::ftruncate(fd_, static_cast<off_t>(end_)) != 0) Fail("cannot be extended", errno);
    file_size_ = end_;
  }
  scratch_.Clear();
  hdf5::EncodeSuperblock(scratch_, root, end_);
  Write(0, scratch_.bytes());
  ++commits_;
  being_read_.reset();
}

}  // namespace rollcast
