#include "engine/prefix_cache.h"

#include <string_view>

namespace rollcast {

struct PrefixCache::Node {
  Node* parent = nullptr;
  std::string key;  // the page's tokens as bytes; empty at a root
  PageRef page;
  uint64_t last_use = 0;
  std::unordered_map<std::string, std::unique_ptr<Node>> children;
};

namespace {

std::string PageKey(std::span<const int32_t> tokens, size_t page, size_t page_size) {
  const auto part = tokens.subspan(page * page_size, page_size);
  return std::string(reinterpret_cast<const char*>(part.data()), part.size_bytes());
}

}  // namespace

PrefixCache::PrefixCache(int page_size) : page_size_(page_size) { RC_CHECK_GT(page_size, 0); }
PrefixCache::~PrefixCache() = default;

PrefixCache::Node* PrefixCache::Root(PolicyVersion version) {
  auto& root = roots_[version];
  if (!root) root = std::make_unique<Node>();
  return root.get();
}

void PrefixCache::Touch(Node* node) {
  const bool leaf = node->children.empty();
  if (leaf) leaves_.erase({node->last_use, node});
  node->last_use = ++clock_;
  if (leaf) leaves_.insert({node->last_use, node});
}

std::vector<PageRef> PrefixCache::Match(PolicyVersion version, std::span<const int32_t> tokens) {
  std::vector<PageRef> pages;
  const auto root = roots_.find(version);
  if (root == roots_.end()) return pages;
  Node* node = root->second.get();
  for (size_t i = 0; (i + 1) * page_size_ <= tokens.size(); ++i) {
    const auto child = node->children.find(PageKey(tokens, i, page_size_));
    if (child == node->children.end()) break;
    node = child->second.get();
    Touch(node);
    pages.push_back(node->page);
  }
  return pages;
}

void PrefixCache::Insert(PolicyVersion version, std::span<const int32_t> tokens,
                         std::span<const PageRef> pages) {
  Node* node = Root(version);
  for (size_t i = 0; i < pages.size() && (i + 1) * page_size_ <= tokens.size(); ++i) {
    std::string key = PageKey(tokens, i, page_size_);
    auto child = node->children.find(key);
    if (child == node->children.end()) {
      if (node->parent != nullptr && node->children.empty()) leaves_.erase({node->last_use, node});
      auto fresh = std::make_unique<Node>();
      fresh->parent = node;
      fresh->key = key;
      fresh->page = pages[i];
      child = node->children.emplace(std::move(key), std::move(fresh)).first;
      ++num_pages_;
    }
    node = child->second.get();
    Touch(node);
  }
}

bool PrefixCache::EvictOne() {
  for (auto leaf = leaves_.begin(); leaf != leaves_.end(); ++leaf) {
    Node* const node = leaf->second;
    if (node->page.shared()) continue;
    Node* const parent = node->parent;
    leaves_.erase(leaf);
    parent->children.erase(std::string(node->key));
    --num_pages_;
    if (parent->parent != nullptr && parent->children.empty())
      leaves_.insert({parent->last_use, parent});
    return true;
  }
  return false;
}

int PrefixCache::NumEvictable() const {
  // A node can go once all below it can: count subtrees that no sequence holds a page of.
  struct Counter {
    int count = 0;
    bool Visit(const Node& node) {
      bool free = true;
      for (const auto& [key, child] : node.children) free = Visit(*child) && free;
      if (node.parent == nullptr) return free;
      free = free && !node.page.shared();
      count += free;
      return free;
    }
  } counter;
  for (const auto& [version, root] : roots_) counter.Visit(*root);
  return counter.count;
}

void PrefixCache::Drop(PolicyVersion version) {
  struct Remover {
    std::set<std::pair<uint64_t, Node*>>& leaves;
    int count = 0;
    void Visit(Node& node) {
      if (node.parent != nullptr) {
        ++count;
        if (node.children.empty()) leaves.erase({node.last_use, &node});
      }
      for (auto& [key, child] : node.children) Visit(*child);
    }
  } remover{leaves_};
  const auto root = roots_.find(version);
  remover.Visit(*root->second);
  num_pages_ -= remover.count;
  roots_.erase(root);
}

void PrefixCache::KeepOnly(PolicyVersion version) {
  std::vector<PolicyVersion> stale;
  for (const auto& [key, root] : roots_)
    if (key != version) stale.push_back(key);
  for (PolicyVersion key : stale) Drop(key);
}

void PrefixCache::Clear() {
  leaves_.clear();
  roots_.clear();
  num_pages_ = 0;
}

}  // namespace rollcast
