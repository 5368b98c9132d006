// Index from token prefixes and policy version to KV pages.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/policy_version.h"

namespace rollcast {

/// A radix tree whose edges are whole pages of tokens, one tree a policy version, so that a stale
/// match cannot happen. Holds a reference to each page in it; a page nobody else holds can be
/// evicted, least recently used first, leaves before their parents. Guarded by the scheduler mutex.
class PrefixCache {
 public:
  explicit PrefixCache(int page_size);
  ~PrefixCache();

  /// Pages of the longest cached prefix of `tokens` under `version`, in order; whole pages only.
  std::vector<PageRef> Match(PolicyVersion version, std::span<const int32_t> tokens);
  /// Adds pages[i] for tokens [i * page_size, (i + 1) * page_size). Pages already there stay as
  /// they are.
  void Insert(PolicyVersion version, std::span<const int32_t> tokens,
              std::span<const PageRef> pages);
  /// Frees the least recently used page that only the cache holds; false when there is none.
  bool EvictOne();
  /// Pages that EvictOne could free, one call after the other.
  int NumEvictable() const;
  int num_pages() const { return num_pages_; }
  /// Drops every tree but that of `version`.
  void KeepOnly(PolicyVersion version);
  void Clear();

 private:
  struct Node;
  Node* Root(PolicyVersion version);
  void Touch(Node* node);
  void Drop(PolicyVersion version);

  int page_size_;
  int num_pages_ = 0;
  uint64_t clock_ = 0;
  std::map<PolicyVersion, std::unique_ptr<Node>> roots_;
  std::set<std::pair<uint64_t, Node*>> leaves_;  // by last use
};

}  // namespace rollcast
