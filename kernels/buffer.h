// The owner of device memory.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

namespace rollcast {

/// Owns a range of memory that a Backend allocated; move-only. Thread-compatible.
class Buffer {
 public:
  using Free = std::function<void(void* data, size_t bytes)>;

  Buffer() = default;
  /// Takes ownership of `data`; `free` must not throw.
  Buffer(void* data, size_t bytes, Free free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      Reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      free_ = std::exchange(other.free_, nullptr);
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { Reset(); }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void Reset() noexcept {
    if (data_ != nullptr && free_) free_(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Free free_;
};

}  // namespace rollcast
