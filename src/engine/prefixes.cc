#include "engine/prefixes.h"

#include <limits>
#include <span>
#include <utility>

#include "core/check.h"

namespace coppice {
namespace {

Status NotPinned(const std::string& name) {
  return NotFound("no prompt is pinned as \"" + name + "\": it may not be computed yet");
}

}  // namespace

KvOrigin Prefixes::origin() const {
  const RunnerInfo& info = runner_.info();
  return {.model = info.fingerprint + (weight_version_ == 0 ? "" : "+" + std::to_string(weight_version_)),
          .dtype = info.kv_dtype,
          .num_layers = info.model.num_layers,
          .num_kv_heads = info.model.num_kv_heads,
          .head_dim = info.model.head_dim,
          .deterministic = deterministic_};
}

Status Prefixes::Unpin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  untaken_.erase(name);
  if (let_go_.erase(name) > 0) return OkStatus();
  const auto pinned = pinned_.find(name);
  if (pinned == pinned_.end()) return NotPinned(name);
  unpinned_.push_back(name);
  pinned_.erase(pinned);
  return OkStatus();
}

Status Prefixes::CheckPinned(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  if (pinned_.contains(name)) return OkStatus();
  if (!let_go_.contains(name)) return NotPinned(name);
  return FailedPrecondition("the prompt that is pinned as \"" + name +
                            "\" is to be computed anew, since the weights have changed: save it once a step has done so");
}

void Prefixes::ApplyUnpins() {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    names.swap(unpinned_);
  }
  for (const std::string& name : names) cache_.pins().Unpin(name);
}

void Prefixes::Clear() {
  const std::lock_guard lock(mutex_);
  pinned_.clear();
  unpinned_.clear();
  let_go_.clear();
  untaken_.clear();
}

void Prefixes::Pin(const RequestState& request, BranchId branch) {
  const std::string& name = request.params.pin_prompt_as;
  {
    const std::lock_guard lock(mutex_);
    if (let_go_.erase(name) == 0 && request.repins) return;
    untaken_.erase(name);
    if (!cache_.pins().Pin(name, branch)) {
      const Request& params = request.params;
      return LetGo(name, {.tokens = params.prompt_ids, .salt = params.cache_salt, .private_begin = params.cache_private_begin},
                   params.cache_tenant);
    }
  }
  NotePin(name, request.params.cache_tenant);
}

void Prefixes::NotePin(const std::string& name, const CacheTenant& tenant) {
  const std::lock_guard lock(mutex_);
  std::erase(unpinned_, name);
  pinned_.insert_or_assign(name, tenant);
}

int32_t Prefixes::num_let_go() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(let_go_.size());
}

void Prefixes::LetGo() {
  ApplyUnpins();
  const std::lock_guard lock(mutex_);
  for (const auto& [name, tenant] : pinned_) {
    LetGo(name, cache_.pins().Find(name).value(), tenant);
    cache_.pins().Unpin(name);
  }
  pinned_.clear();
  for (const auto& [name, request] : let_go_) untaken_.insert(name);
}

void Prefixes::LetGo(const std::string& name, PinnedPrompts::Prompt prompt, const CacheTenant& tenant) {
  Request request;
  request.prompt_ids = std::move(prompt.tokens);
  request.max_tokens = 0;
  request.cache_salt = std::move(prompt.salt);
  request.cache_private_begin = prompt.private_begin;
  request.cache_tenant = tenant;
  request.pin_prompt_as = name;
  request.priority = std::numeric_limits<int32_t>::min();
  let_go_.insert_or_assign(name, std::move(request));
  untaken_.insert(name);
}

std::vector<Request> Prefixes::TakeRepins() {
  const std::lock_guard lock(mutex_);
  std::vector<Request> requests;
  for (const std::string& name : untaken_) requests.push_back(let_go_.at(name));
  untaken_.clear();
  return requests;
}

Result<StoredPrefix> Prefixes::Copy(const std::string& name) const {
  PinnedPrompts::Prompt pinned = cache_.pins().Find(name).value();
  StoredPrefix prefix{.origin = origin()};
  prefix.kv.resize(pinned.tokens.size() * prefix.origin.bytes_per_token());
  COPPICE_RETURN_IF_ERROR(runner_.ReadKv(pinned.pages, static_cast<int32_t>(pinned.tokens.size()), prefix.kv));
  prefix.tokens = std::move(pinned.tokens);
  prefix.salt = std::move(pinned.salt);
  prefix.private_begin = pinned.private_begin;
  return prefix;
}

Status Prefixes::Restore(const std::string& name, const StoredPrefix& prefix, const CacheTenant& tenant) {
  const auto write = [&](std::span<const PageId> pages, int32_t begin) {
    return runner_.WriteKv(pages, begin, static_cast<int32_t>(prefix.tokens.size()), prefix.kv);
  };
  const CacheSalt salt = {
      .salt = prefix.salt, .private_begin = prefix.private_begin, .tenant = tenant.name, .tenant_begin = tenant.begin};
  COPPICE_RETURN_IF_ERROR(cache_.pins().Restore(name, prefix.tokens, salt, write));
  NotePin(name, tenant);
  return OkStatus();
}

}  // namespace coppice
