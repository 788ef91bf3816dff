// Which of several servers a request is sent to. A router knows what it has sent where, what was answered, and what servers say of
// their caches; it does not know how long an answer will be. Layer: simulate.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "simulate/replica.h"
#include "simulate/trace.h"

namespace coppice::simulate {

enum class Policy : uint8_t {
  kRoundRobin,  // one after the other
  kLeastLoad,   // the one with the least work under way
  // By a hash of how the prompt begins; to the next one in the hash's order where that has too much (rendezvous hashing with
  // bounded loads: Thaler and Ravishankar 1998, Mirrokni et al. 2018).
  kPrefixHash,
  // The one where least stands before its first token: queued prompt tokens, its own that are not cached, and a price on what the
  // replica was sent of late beyond the others. So a request whose text is nowhere goes where least was sent, one with a long
  // history goes where that is, and a prompt that one replica cannot answer alone comes to be on more. None that was sent too much.
  kPrefixAware,
};
constexpr std::string_view Name(Policy policy) {
  switch (policy) {
    case Policy::kRoundRobin: return "round-robin";
    case Policy::kLeastLoad: return "least-load";
    case Policy::kPrefixHash: return "prefix-hash";
    case Policy::kPrefixAware: return "prefix-aware";
  }
  return "?";
}
Result<Policy> ParsePolicy(std::string_view text);

struct RouterOptions {
  Policy policy = Policy::kPrefixAware;
  // Work of a replica over that of all in the mean, from which on others have the request: kPrefixHash, of what is under way;
  // kPrefixAware, of what was sent of late.
  double bound = 1.25;
  int32_t hash_tokens = 256;  // kPrefixHash: of the prompt, up to whole pieces
  // kPrefixAware: prompt tokens that a request is computed anew for rather than sent to a replica that had twice the mean's work of
  // late; "of late" is so many requests of each replica.
  int32_t spread_tokens = 4096, recent_requests = 200;
};

// Seconds that work takes a replica, for comparing: of a prompt token, and of a token of one of many samples.
struct WorkPrices {
  double prompt_s = 0, output_s = 0;
};

// Thread-compatible.
class Router {
 public:
  // All outlive the router.
  Router(const Trace* trace, std::span<const Replica> replicas, const ServerOptions& server, const RouterOptions& options,
         const WorkPrices& prices);

  // Where the request goes; it counts as being there until Ended.
  int32_t Choose(int32_t request);
  // A request of a replica was answered or refused.
  void Ended(int32_t request, int32_t replica);
  // OnHeld of a replica; only where wants_held().
  void NotifyHeld(int32_t replica, int32_t node, bool held);
  bool wants_held() const { return options_.policy == Policy::kPrefixAware; }

 private:
  struct Holder {
    int32_t replica, next;
  };
  int32_t ChooseLeastLoad() const;
  int32_t ChooseByHash(const TraceRequest& request) const;
  int32_t ChooseByPrefix(const TraceRequest& request);
  void NoteSent(int32_t replica, double work);
  // Work of a request before its answer's length is known.
  double WorkOf(int64_t computed, int32_t samples) const {
    return prices_.prompt_s * static_cast<double>(computed) + prices_.output_s * samples * mean_output_;
  }
  // Work under way from which on a replica has too much.
  double MostWork() const;
  bool HasLessWork(int32_t a, int32_t b) const {
    return work_[a] < work_[b] || (work_[a] == work_[b] && work_ever_[a] < work_ever_[b]);
  }

  const Trace& trace_;
  const std::span<const Replica> replicas_;
  const ServerOptions server_;
  const RouterOptions options_;
  const WorkPrices prices_;
  int32_t next_ = 0;
  double mean_output_ = 100;  // of what was answered so far
  int64_t outputs_seen_ = 0;
  std::vector<double> work_, work_ever_;  // by replica: under way, and all that was sent
  double all_work_ = 0;
  // Work sent of late, in units that grow with each request, so that earlier work weighs less and less.
  std::vector<double> recent_;
  double all_recent_ = 0, unit_ = 1;
  std::vector<double> work_of_;      // by request that is under way
  std::vector<int32_t> holders_of_;  // by node: the first of its holders_, -1: none
  std::vector<Holder> holders_;
  std::vector<int32_t> free_holders_;
  std::vector<int32_t> cached_;  // by replica, of the request at hand
  std::vector<int32_t> path_;
};

}  // namespace coppice::simulate
