// Ownership of KV pages. Host bookkeeping only: the memory itself is ModelRunner's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/check.h"

namespace rollcast {

class PagePool;

/// A ref-counted handle to one page: copy = share, destroy = free. The pool must outlive it.
class PageRef {
 public:
  PageRef() = default;
  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), page_(std::exchange(other.page_, -1)) {}
  PageRef& operator=(PageRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(page_, other.page_);
    return *this;
  }
  ~PageRef();

  explicit operator bool() const { return pool_ != nullptr; }
  int32_t page() const { return page_; }
  /// True when another handle to the page exists; a shared page must not be written.
  bool shared() const;

 private:
  friend class PagePool;
  PageRef(PagePool* pool, int32_t page) : pool_(pool), page_(page) {}

  PagePool* pool_ = nullptr;
  int32_t page_ = -1;
};

/// Reference counts of all pages. Guarded by the scheduler mutex.
class PagePool {
 public:
  explicit PagePool(int num_pages);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// Empty when no page is free.
  PageRef Allocate();
  int num_pages() const { return static_cast<int>(refs_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }

 private:
  friend class PageRef;

  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;  // a stack: the page freed last is the warmest
};

/// A sequence's pages in order: tokens [i * page_size, (i + 1) * page_size) are on page i.
using PageTable = std::vector<PageRef>;

inline int PagesFor(int tokens, int page_size) { return (tokens + page_size - 1) / page_size; }

}  // namespace rollcast
