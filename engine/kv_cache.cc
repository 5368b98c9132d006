#include "engine/kv_cache.h"

#include <cstdio>
#include <cstdlib>

namespace rollcast {

PageRef::PageRef(const PageRef& other) : pool_(other.pool_), page_(other.page_) {
  if (pool_ != nullptr) ++pool_->refs_[page_];
}

PageRef::~PageRef() {
  if (pool_ == nullptr) return;
  if (--pool_->refs_[page_] == 0) pool_->free_.push_back(page_);
}

bool PageRef::shared() const { return pool_ != nullptr && pool_->refs_[page_] > 1; }

PagePool::PagePool(int num_pages) : refs_(num_pages, 0) {
  RC_CHECK_GT(num_pages, 0);
  free_.reserve(num_pages);
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

PagePool::~PagePool() {
  // A handle that outlives its pool would write into freed memory: stop here, where the fault is.
  if (num_free() != num_pages()) {
    std::fprintf(stderr, "rollcast: %d KV pages are still held at the end of their pool\n",
                 num_pages() - num_free());
    std::abort();
  }
}

PageRef PagePool::Allocate() {
  if (free_.empty()) return PageRef();
  const int32_t page = free_.back();
  free_.pop_back();
  RC_CHECK_EQ(refs_[page], 0);
  refs_[page] = 1;
  return PageRef(this, page);
}

}  // namespace rollcast
