#include "cache/salt_ids.h"

#include <algorithm>

#include "core/check.h"

namespace coppice {
namespace {

// The range of a salt; `id_of` gives the id of a tenant and a salt of its.
template <class IdOf>
SaltRange RangeOf(const CacheSalt& salt, const IdOf& id_of) {
  SaltRange range;
  if (!salt.tenant.empty()) {
    range.tenant_id = id_of(std::pair(salt.tenant, std::string_view()));
    range.tenant_begin = salt.tenant_begin;
  }
  if (!salt.salt.empty()) {
    range.id = id_of(std::pair(salt.tenant, salt.salt));
    range.begin = salt.private_begin;
    range.tenant_begin = std::min(range.tenant_begin, range.begin);  // where a salt begins, the tenant does
  }
  return range;
}

}  // namespace

SaltRange SaltIds::Intern(const CacheSalt& salt) {
  return RangeOf(salt, [this](const auto& name) {
    const auto known = ids_.find(name);
    return known != ids_.end() ? known->second : ids_.emplace(name, next_id_++).first->second;
  });
}

SaltRange SaltIds::Find(const CacheSalt& salt) const {
  return RangeOf(salt, [this](const auto& name) {
    const auto known = ids_.find(name);
    return known == ids_.end() ? UINT32_MAX : known->second;
  });
}

const std::string& SaltIds::SaltOf(uint32_t id) const {
  const auto name = std::ranges::find_if(ids_, [id](const auto& entry) { return entry.second == id; });
  COPPICE_CHECK(name != ids_.end());
  return name->first.second;
}

void SaltIds::ForgetAllBut(const std::set<uint32_t>& alive) {
  std::erase_if(ids_, [&](const auto& entry) { return !alive.contains(entry.second); });
  limit_ = 2 * ids_.size() + 1024;
}

}  // namespace coppice
