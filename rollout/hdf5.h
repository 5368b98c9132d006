// Reading and plain writing of HDF5 files through the serial HDF5 library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "rollout/writer_lock.h"

namespace rollcast {

/// A failed HDF5 call: file, dataset or attribute, and the most specific reason of the library's
/// error stack, on one line.
class Hdf5Error : public Error {
 public:
  using Error::Error;
};

/// Move-only owner of one HDF5 identifier of any kind.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;
  /// `close` is the identifier's own function (H5Dclose, ...).
  Hdf5Handle(int64_t id, int (*close)(int64_t)) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle() {
    if (id_ >= 0) close_(id_);
  }
  int64_t get() const { return id_; }
  /// Negative when closing failed.
  int Close() { return id_ < 0 ? 0 : close_(std::exchange(id_, -1)); }

 private:
  int64_t id_ = -1;
  int (*close_)(int64_t) = nullptr;
};

/// One file. Every call throws Hdf5Error when it fails. Element types: int8_t, uint8_t, int32_t,
/// int64_t, uint64_t, float, double; the library converts between numbers.
/// Thread rule: the library has global state; all Hdf5Files of a process share one thread at a
/// time. File locks are not taken: on a shared file system that has none, opening would fail.
class Hdf5File {
 public:
  /// Opens for reading. What an Hdf5Appender writes at the same time is seen as it was at this
  /// moment until the Hdf5File is destroyed: while it is there, the appender uses no space again
  /// (where the file system has no locks, for Hdf5Appender::kGrace only).
  static Hdf5File Open(const std::filesystem::path& path);
  /// Creates; throws Error when `path` exists and `overwrite` is false.
  static Hdf5File Create(const std::filesystem::path& path, bool overwrite);

  const std::filesystem::path& path() const { return path_; }
  /// Whether a dataset or group of that name ("a/b") exists.
  bool Has(const std::string& name) const;
  std::vector<uint64_t> Shape(const std::string& dataset) const;

  /// Elements [begin, begin + out.size()) of a one-dimensional dataset, or with begin 0 all
  /// elements of any, in row-major order.
  template <class T>
  void Read(const std::string& dataset, uint64_t begin, std::span<T> out) const;
  std::vector<std::string> ReadText(const std::string& dataset, uint64_t begin,
                                    uint64_t count) const;
  std::vector<std::vector<int32_t>> ReadInt32Lists(const std::string& dataset, uint64_t begin,
                                                   uint64_t count) const;

  /// Creates `dataset` (and the groups in its name) with `shape`; `compress` = shuffle and deflate.
  template <class T>
  void Write(const std::string& dataset, std::span<const T> values,
             const std::vector<uint64_t>& shape, bool compress = false);
  /// UTF-8 texts of any length.
  void WriteText(const std::string& dataset, std::span<const std::string> values);

  /// Scalar attributes of the root; empty when there is none of that name.
  std::optional<std::string> TextAttribute(const std::string& name) const;
  std::optional<int64_t> IntAttribute(const std::string& name) const;
  std::optional<uint64_t> UIntAttribute(const std::string& name) const;
  std::optional<bool> FlagAttribute(const std::string& name) const;
  void WriteAttribute(const std::string& name, const std::string& value);
  void WriteAttribute(const std::string& name, int64_t value);

  /// Hands everything to the operating system.
  void Flush();
  /// Flushes and closes; the destructor closes too but cannot say that it failed.
  void Close();

 private:
  Hdf5File(std::filesystem::path path, Hdf5Handle file)
      : path_(std::move(path)), file_(std::move(file)) {}
  /// Stays open with its cache of decompressed chunks.
  const Hdf5Handle& OpenDataset(const std::string& name) const;
  [[noreturn]] void Fail(const std::string& what) const;
  template <class T>
  std::optional<T> NumberAttribute(const std::string& name) const;

  std::filesystem::path path_;
  ReaderMark read_mark_;  // on no file when it was created here
  Hdf5Handle file_;
  mutable std::unordered_map<std::string, Hdf5Handle> datasets_;  // opened for reading
};

}  // namespace rollcast
