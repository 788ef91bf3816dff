// Prompts that stay cached under a name: pinned when they are computed, let go by name, copied out of the cache for a file and put
// into it from one. The files themselves are prefix_file.h's.
// Layer: engine. RelayAttention section 3: a system prompt's KV, filled once and kept.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "coppice/engine/engine.h"
#include "engine/prefix_file.h"
#include "engine/request_state.h"
#include "runner/runner.h"

namespace coppice {

// Unpin and CheckPinned are thread-safe, all else is the stepping thread's. A name counts as pinned from the commit of its prompt
// until Unpin, though the cache lets go with the next step only.
class Prefixes {
 public:
  struct Parts {
    KvCache* cache = nullptr;  // this and the runner outlive the prefixes
    Runner* runner = nullptr;
    bool deterministic = false;
  };
  explicit Prefixes(const Parts& parts) : cache_(*parts.cache), runner_(*parts.runner), deterministic_(parts.deterministic) {}

  // NOT_FOUND if nothing is pinned under that name (yet). ApplyUnpins lets the prompt go.
  Status Unpin(const std::string& name);
  // NOT_FOUND likewise; FAILED_PRECONDITION where its prompt is to be computed anew.
  Status CheckPinned(const std::string& name) const;

  // The origin of KV that files of these prefixes name, and that files to be read must name: the model as it was loaded, and the
  // number of updates that its weights have had since, whose contents are not hashed.
  KvOrigin origin() const;
  void set_weight_version(int64_t version) { weight_version_ = version; }
  void ApplyUnpins();
  // Nothing is pinned: the cache was cleared.
  void Clear();
  // Pins the computed prompt of a request's branch under the name that the request gives it; a pin of the same name is moved. One
  // that was let go is pinned anew by the request that TakeRepins made of it, unless its name was unpinned or taken meanwhile. A
  // branch with KV of older weights is let go at once.
  void Pin(const RequestState& request, BranchId branch);
  // Lets go of the pages of all pins, since they hold KV of other weights.
  void LetGo();
  // Pins that were let go of, and are not pinned yet.
  int32_t num_let_go() const;
  // Requests that compute anew, after all others that wait, what was let go since the last call; after LetGo(), whatever was let go
  // and is not pinned yet.
  std::vector<Request> TakeRepins();
  // A copy of a pinned prompt and its KV. REQUIRES: CheckPinned; no step is under way, no edits wait for one.
  Result<StoredPrefix> Copy(const std::string& name) const;
  // Puts a tenant's prefix into the cache and pins it; errors as KvCache::Restore. REQUIRES: as Copy, but CheckPinned.
  Status Restore(const std::string& name, const StoredPrefix& prefix, const CacheTenant& tenant);

 private:
  // REQUIRES: mutex_.
  void LetGo(const std::string& name, PinnedPrompts::Prompt prompt, const CacheTenant& tenant);
  // `name` is pinned now, for a tenant; an Unpin that was not applied meant the prompt before this one.
  void NotePin(const std::string& name, const CacheTenant& tenant);

  KvCache& cache_;
  Runner& runner_;
  const bool deterministic_;
  int64_t weight_version_ = 0;
  mutable std::mutex mutex_;                   // guards what follows
  std::map<std::string, CacheTenant> pinned_;  // whose they are, by name
  std::vector<std::string> unpinned_;          // names that the cache is to let go
  std::map<std::string, Request> let_go_;      // what computes prompts anew, by name
  std::set<std::string> untaken_;              // names of them that TakeRepins has not given
};

}  // namespace coppice
