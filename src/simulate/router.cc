#include "simulate/router.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

namespace coppice::simulate {
namespace {

constexpr double kRounding = 1e-6;  // of sums that are added to and subtracted from

uint64_t Mix(uint64_t value) {  // splitmix64's finaliser
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace

Result<Policy> ParsePolicy(std::string_view text) {
  for (const Policy policy : {Policy::kRoundRobin, Policy::kLeastLoad, Policy::kPrefixHash, Policy::kPrefixAware}) {
    if (Name(policy) == text) return policy;
  }
  return InvalidArgument(fmt::format("'{}' is no policy; expected round-robin, least-load, prefix-hash or prefix-aware", text));
}

Router::Router(const Trace* trace, std::span<const Replica> replicas, const ServerOptions& server, const RouterOptions& options,
               const WorkPrices& prices)
    : trace_(*trace),
      replicas_(replicas),
      server_(server),
      options_(options),
      prices_(prices),
      work_(replicas.size()),
      work_ever_(replicas.size()),
      recent_(replicas.size()),
      work_of_(trace->requests().size()),
      holders_of_(wants_held() ? trace->nodes().size() : 0, -1),
      cached_(replicas.size()) {}

void Router::NotifyHeld(int32_t replica, int32_t node, bool held) {
  if (held) {
    int32_t at = static_cast<int32_t>(holders_.size());
    if (free_holders_.empty()) {
      holders_.emplace_back();
    } else {
      at = free_holders_.back();
      free_holders_.pop_back();
    }
    holders_[at] = {.replica = replica, .next = holders_of_[node]};
    holders_of_[node] = at;
    return;
  }
  for (int32_t* at = &holders_of_[node]; *at >= 0; at = &holders_[*at].next) {
    if (holders_[*at].replica != replica) continue;
    free_holders_.push_back(*at);
    *at = holders_[*at].next;
    return;
  }
  COPPICE_DCHECK(false);
}

double Router::MostWork() const {
  // One request is no imbalance.
  return options_.bound * all_work_ / static_cast<double>(work_.size()) * (1 + kRounding) + prices_.output_s * mean_output_;
}

int32_t Router::ChooseLeastLoad() const {
  int32_t best = 0;
  for (int32_t r = 1; r < std::ssize(work_); ++r) {
    if (HasLessWork(r, best)) best = r;
  }
  return best;
}

int32_t Router::ChooseByHash(const TraceRequest& request) const {
  int32_t node = request.prompt;
  for (int32_t n = node; n != kNoNode; n = trace_.nodes()[n].parent) {
    if (trace_.nodes()[n].end >= options_.hash_tokens) node = n;
  }
  const double most = MostWork();
  int32_t best = -1;
  uint64_t best_hash = 0;
  for (int32_t r = 0; r < std::ssize(work_); ++r) {
    const uint64_t hash = Mix((static_cast<uint64_t>(node) << 32) + static_cast<uint64_t>(r) + 1);
    if (work_[r] <= most && (best < 0 || hash > best_hash)) best = r, best_hash = hash;
  }
  return best;
}

int32_t Router::ChooseByPrefix(const TraceRequest& request) {
  const int32_t prompt = trace_.prompt_tokens(request);
  path_.clear();
  for (int32_t n = request.prompt; n != kNoNode; n = trace_.nodes()[n].parent) path_.push_back(n);
  // From the root on: a replica that lacks a piece has what is behind it for nothing.
  for (size_t i = path_.size(); i-- > 0;) {
    const TraceNode& node = trace_.nodes()[path_[i]];
    bool any = false;
    for (int32_t at = holders_of_[path_[i]]; at >= 0; at = holders_[at].next) {
      int32_t& cached = cached_[holders_[at].replica];
      if (cached == node.end - node.tokens) cached = node.end, any = true;
    }
    if (!any) break;
  }
  const double mean = all_recent_ / static_cast<double>(recent_.size());
  const double most = options_.bound * mean * (1 + kRounding);
  const double spread = mean > 0 ? options_.spread_tokens * prices_.prompt_s / mean : 0;
  // A request that finds no place waits until others have ended: of a full replica, each of its places is free after the time of an
  // answer.
  const double place_s = prices_.output_s * mean_output_;
  int32_t best = -1;
  double least = 0;
  for (int32_t r = 0; r < std::ssize(work_); ++r) {
    if (recent_[r] > most) continue;  // never all of them
    const Replica& replica = replicas_[r];
    const int64_t queued = replica.samples_waiting() + replica.samples_running() + request.samples - server_.max_running;
    const double before = static_cast<double>(replica.backlog_tokens() + prompt - cached_[r]) * prices_.prompt_s +
                          static_cast<double>(std::max<int64_t>(queued, 0)) * place_s + recent_[r] * spread;
    if (best < 0 || before < least || (before == least && HasLessWork(r, best))) best = r, least = before;
  }
  std::ranges::fill(cached_, 0);
  return best;
}

int32_t Router::Choose(int32_t request) {
  const TraceRequest& asked = trace_.requests()[request];
  int32_t chosen = 0;
  int64_t computed = trace_.prompt_tokens(asked);
  switch (options_.policy) {
    case Policy::kRoundRobin:
      chosen = next_;
      next_ = (next_ + 1) % static_cast<int32_t>(work_.size());
      break;
    case Policy::kLeastLoad: chosen = ChooseLeastLoad(); break;
    case Policy::kPrefixHash: chosen = ChooseByHash(asked); break;
    case Policy::kPrefixAware: chosen = ChooseByPrefix(asked); break;
  }
  COPPICE_CHECK(chosen >= 0);  // the least of all has no more than the bound, which is at least 1
  if (wants_held()) {
    int32_t cached = 0;  // of what is there the deepest is enough: what is above it is there, too
    for (const int32_t n : path_) {
      for (int32_t at = holders_of_[n]; at >= 0 && cached == 0; at = holders_[at].next) {
        if (holders_[at].replica == chosen) cached = trace_.nodes()[n].end;
      }
    }
    computed -= std::min<int64_t>(cached, computed - 1);
  }
  const double work = WorkOf(computed, asked.samples);
  work_of_[request] = work;
  work_[chosen] += work;
  work_ever_[chosen] += work;
  all_work_ += work;
  NoteSent(chosen, work);
  return chosen;
}

void Router::NoteSent(int32_t replica, double work) {
  recent_[replica] += work * unit_;
  all_recent_ += work * unit_;
  unit_ *= 1 + 1 / (static_cast<double>(recent_.size()) * options_.recent_requests);
  constexpr double kLargest = 1e100;
  if (unit_ < kLargest) return;
  for (double& recent : recent_) recent /= unit_;
  all_recent_ /= unit_;
  unit_ = 1;
}

void Router::Ended(int32_t request, int32_t replica) {
  work_[replica] = std::max(0.0, work_[replica] - work_of_[request]);
  all_work_ = std::max(0.0, all_work_ - work_of_[request]);
  ++outputs_seen_;
  const double weight = 1.0 / static_cast<double>(std::min<int64_t>(outputs_seen_, 1000));
  mean_output_ += (trace_.requests()[request].output_tokens - mean_output_) * weight;
}

}  // namespace coppice::simulate
