// An HDF5 file of growing columns that is whole at every instant.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/check.h"
#include "rollout/hdf5_format.h"

namespace rollcast {

/// Writes columns (one-dimensional datasets) so that, whenever the process is killed, the file on
/// disk is a valid HDF5 file with exactly the state of the last Commit, which any reader opens
/// without flags or repair.
///
/// Why not through the HDF5 library: it changes metadata in place. Between the first and the last
/// write of a flush (object headers, chunk indexes, end of file, of ~60 datasets) the file is torn,
/// its cache may evict a dirty half at any time, and in SWMR mode the superblock carries an
/// "open for writing" mark that makes a plain open fail once the writer is gone. A journal would
/// need a repair step. Here nothing that the file's current state refers to is ever overwritten:
///
///   1. new elements go behind the last committed one of a column's tail chunk, which is stored
///      uncompressed, or into new space; a full chunk is compressed into new space;
///   2. every object header, and each B-tree node that changed, is written again into free space;
///   3. the file is extended to cover all of it;
///   4. one write of the 48 bytes of the superblock, inside one page, makes the new root current.
///
/// Before 4 the old state holds, after it the new one; Linux copies those bytes with no point in
/// between at which a signal is taken. What the last state used is free afterwards and is used
/// again, but only when it has been free for kGrace (and some commits), and while nobody holds the
/// reader's mark (writer_lock.h), so that a reader's state stays whole: for an Hdf5File as long as
/// it is open, for any other program, or where there are no locks, for kGrace from opening the
/// file. This is the order of events for a killed process; after a power failure the file is as
/// the disk kept it, and Sync is the means to say when.
///
/// A lock that keeps other writers out, but no reader, is held on the file (writer_lock.h). No HDF5
/// library is called: neither its locking nor its lack of thread safety matter here.
///
/// A failed call (a full disk, say) throws Error naming the path, leaves the last commit readable,
/// and every later call refuses with the same message. Used from one thread.
class Hdf5Appender {
 public:
  /// At 200 commits a second of some 12 KiB of metadata each, this holds back some 25 MiB.
  static constexpr std::chrono::nanoseconds kGrace = std::chrono::seconds(10);

  using Value = std::variant<bool, int64_t, uint64_t, std::string>;
  struct Attribute {
    std::string name;
    Value value;
  };
  struct Column {
    std::string name;  // "tokens", or "trajectories/reward": at most one group deep
    hdf5::ElementType type = hdf5::ElementType::kInt32;
    std::vector<std::string> enum_names;
    uint32_t chunk_elements = 1024;  // a power of two
  };

  /// Creates the file with empty columns; it appears under `path` only when it is valid. Throws
  /// Error when it cannot, when `path` exists and `overwrite` is false, or when another process
  /// is writing it.
  Hdf5Appender(const std::filesystem::path& path, bool overwrite, std::vector<Attribute> attributes,
               std::vector<Column> columns);
  ~Hdf5Appender();
  Hdf5Appender(const Hdf5Appender&) = delete;
  Hdf5Appender& operator=(const Hdf5Appender&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// False where the file system has no locks, so that a second writer would go unnoticed.
  bool locked() const { return locked_; }
  /// Elements of a column, those not yet committed included.
  uint64_t size(size_t column) const;

  /// Stages elements for the next Commit. `column` indexes the constructor's list; T must be the
  /// type of its elements.
  template <class T>
  void Append(size_t column, std::span<const T> values) {
    RC_CHECK_EQ(sizeof(T), hdf5::ElementBytes(columns_.at(column).column.type),
                columns_[column].column.name);
    Stage(column, {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
  }
  template <class T>
  void AppendOne(size_t column, T value) {
    Append(column, std::span<const T>(&value, 1));
  }
  /// To a kText column. NUL, which ends a string in HDF5, and what is no UTF-8 become U+FFFD.
  void AppendText(size_t column, std::string_view text);
  void AppendInt32List(size_t column, std::span<const int32_t> values);
  void SetAttribute(const std::string& name, Value value);

  /// For fault injection: called before each write to the file with its place and bytes.
  using WriteHook = std::function<void(uint64_t address, std::span<const uint8_t> bytes)>;
  void SetWriteHook(WriteHook hook) { write_hook_ = std::move(hook); }

  /// Instead of kGrace; for tests of what space is used again.
  void SetGrace(std::chrono::nanoseconds grace) { grace_ = grace; }

  /// Makes everything staged part of the file.
  void Commit();
  /// Waits until the disk has what has been committed.
  void Sync();
  /// Commits, compresses the tails and closes. Later calls are broken preconditions.
  void Close();

 private:
  struct Node {
    std::vector<hdf5::ChunkEntry> entries;
    uint64_t address = hdf5::kUndefinedAddress;
  };
  struct ColumnState {
    Column column;
    hdf5::DatasetHeader header;
    size_t chunk_bytes = 0;
    std::vector<uint8_t> tail;  // elements after the last full chunk
    size_t tail_written = 0;    // bytes of it that are in the file
    uint64_t tail_address = hdf5::kUndefinedAddress;
    uint64_t chunks = 0;  // full ones
    // The rightmost node of each level of the chunk B-tree, leaf first. All others are final.
    std::vector<Node> path;
    bool index_changed = false;
  };
  struct FreeBlock {
    uint64_t address;
    uint64_t usable_from;  // commit
    std::chrono::steady_clock::time_point freed;
  };

  void Create(bool overwrite);
  void Place(bool overwrite);
  void Stage(size_t column, std::span<const uint8_t> bytes);
  void StageHeap(size_t column, std::span<const uint8_t> data, size_t count);
  void FinishHeap();
  bool MayReuse(const FreeBlock& block);
  uint64_t Allocate(uint64_t bytes);
  void Free(uint64_t address, uint64_t bytes);
  void Write(uint64_t address, std::span<const uint8_t> bytes);
  /// `raw`: chunk_bytes of the tail.
  void StoreFullChunk(ColumnState& state, std::span<const uint8_t> raw);
  void WriteTail(ColumnState& state);
  void PutChunk(ColumnState& state, const hdf5::ChunkEntry& chunk);
  void PushEntry(ColumnState& state, size_t level, const hdf5::ChunkEntry& entry);
  void WriteNode(ColumnState& state, size_t level, uint64_t end_element);
  void WriteIndex(ColumnState& state);
  void WriteState();
  void EncodeAttributes();
  uint64_t EncodeHeaders(uint64_t base);
  void WriteMetadata();
  [[noreturn]] void Fail(const std::string& what, int error);
  template <class Body>
  void Guard(const Body& body);

  std::filesystem::path path_;
  std::filesystem::path open_path_;  // path_, or the temporary name until the file is valid
  int fd_ = -1;
  bool locked_ = false;
  std::string broken_;
  std::vector<Attribute> attributes_;
  std::vector<ColumnState> columns_;
  std::optional<hdf5::HeapCollection> heap_;  // of the staged elements, at end_ of the file
  bool new_attributes_ = true;
  std::vector<hdf5::ScalarAttribute> encoded_attributes_;
  uint64_t end_ = 0;        // of the space in use
  uint64_t file_size_ = 0;  // on disk
  uint64_t commits_ = 0;
  uint64_t metadata_address_ = hdf5::kUndefinedAddress;
  uint64_t metadata_bytes_ = 0;
  std::map<uint64_t, std::deque<FreeBlock>> free_;  // by size
  std::chrono::nanoseconds grace_ = kGrace;
  std::optional<bool> being_read_;  // looked up once a commit
  hdf5::Encoder scratch_;
  hdf5::Compressor compressor_;
  WriteHook write_hook_;
};

}  // namespace rollcast
