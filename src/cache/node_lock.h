// A lock on a node of the prefix tree as a value: while it is there, the node, its ancestors and their pages stay. Layer: cache.
#pragma once

#include <utility>

#include "cache/prefix_tree.h"

namespace coppice {

// Thread-compatible. Unlocking takes no memory.
class NodeLock {
 public:
  // Of nothing.
  NodeLock() = default;
  // `tree` outlives the lock.
  NodeLock(PrefixTree* tree, NodeId node) : tree_(tree), node_(node) { tree_->Lock(node_); }
  NodeLock(NodeLock&& other) noexcept : tree_(std::exchange(other.tree_, nullptr)), node_(std::exchange(other.node_, kRootNode)) {}
  // The new lock is there before the old one goes.
  NodeLock& operator=(NodeLock&& other) noexcept {
    NodeLock taken(std::move(other));
    std::swap(tree_, taken.tree_);
    std::swap(node_, taken.node_);
    return *this;
  }
  ~NodeLock() {
    if (tree_ != nullptr) tree_->Unlock(node_);
  }

  // kRootNode without a lock.
  NodeId node() const { return node_; }

 private:
  PrefixTree* tree_ = nullptr;
  NodeId node_ = kRootNode;
};

}  // namespace coppice
