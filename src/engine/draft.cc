#include "engine/draft.h"

#include <algorithm>

namespace coppice {

int32_t Draft::ChildOf(int32_t parent, int32_t token, int32_t count) const {
  for (int32_t i = parent + 1; i < count; ++i) {
    if (parents[i] == parent && tokens[i] == token) return i;
  }
  return -1;
}

int32_t Draft::Extend(int32_t parent, int32_t token) {
  if (const int32_t child = ChildOf(parent, token, size()); child >= 0) return child;
  tokens.push_back(token);
  parents.push_back(parent);
  return size() - 1;
}

int32_t Draft::DepthOf(int32_t i) const {
  int32_t depth = 0;
  for (; i != kRoot; i = parents[i]) ++depth;
  return depth;
}

int32_t Draft::LinearLength() const {
  int32_t length = 0;
  while (length < size() && parents[length] == length - 1) ++length;
  return length;
}

void Draft::Path(int32_t i, std::vector<int32_t>* path) const {
  path->clear();
  for (; i != kRoot; i = parents[i]) path->push_back(tokens[i]);
  std::reverse(path->begin(), path->end());
}

}  // namespace coppice
