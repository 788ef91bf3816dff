// Numbers of tenants and of their salts, by which nodes of the prefix tree are kept apart. Layer: cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cache/prefix_tree.h"

namespace coppice {

// The requests that may share a token's KV: from `private_begin` on only those of the same tenant and salt, before that, from
// `tenant_begin` on, all of the tenant's, and before both all requests.
struct CacheSalt {
  std::string_view salt;  // empty: none
  int32_t private_begin = 0;
  std::string_view tenant;  // empty: none
  int32_t tenant_begin = 0;
};

// Thread-compatible.
class SaltIds {
 public:
  // A tenant and its salt; an empty salt: what all of the tenant's requests share. Two strings, so that no pair spells another.
  using Name = std::pair<std::string, std::string>;
  struct Order {
    using is_transparent = void;
    static std::pair<std::string_view, std::string_view> ViewOf(const auto& name) { return {name.first, name.second}; }
    bool operator()(const auto& a, const auto& b) const { return ViewOf(a) < ViewOf(b); }
  };

  // The range of a salt. A part without an id gets a new one.
  SaltRange Intern(const CacheSalt& salt);
  // The same without new ids: a part without one gets an id that no node has.
  SaltRange Find(const CacheSalt& salt) const;
  // The salt of `id`; empty for what all of a tenant's requests share. REQUIRES: an id that Intern gave. O(salts).
  const std::string& SaltOf(uint32_t id) const;
  // Whether there are so many names that those no longer in use should be forgotten: twice as many as after the last Forget.
  bool is_full() const { return ids_.size() >= limit_; }
  // Forgets the names of all ids but `alive`.
  void ForgetAllBut(const std::set<uint32_t>& alive);

  const std::map<Name, uint32_t, Order>& all() const { return ids_; }

 private:
  std::map<Name, uint32_t, Order> ids_;
  size_t limit_ = 1024;
  uint32_t next_id_ = 1;
};

}  // namespace coppice
