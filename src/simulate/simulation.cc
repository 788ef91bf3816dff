#include "simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "core/check.h"

namespace coppice::simulate {
namespace {

constexpr int64_t kAskEvery = 1 << 12;  // requests

struct Event {
  double time;
  int32_t replica;
  // Of equals the replica with the lower id.
  bool operator>(const Event& other) const { return std::pair(time, replica) > std::pair(other.time, other.replica); }
};

Latencies LatenciesOf(std::vector<float> seconds) {
  if (seconds.empty()) return {};
  double sum = 0;
  for (const float s : seconds) sum += s;
  const auto at = [&](double part) {
    const double place = part * static_cast<double>(seconds.size() - 1);
    const auto below = seconds.begin() + static_cast<ptrdiff_t>(place);
    std::nth_element(seconds.begin(), below, seconds.end());
    const auto above = below + 1 == seconds.end() ? below : std::min_element(below + 1, seconds.end());
    return static_cast<double>(std::lerp(*below, *above, static_cast<float>(place - std::floor(place))));
  };
  return {.mean = sum / static_cast<double>(seconds.size()), .p50 = at(0.5), .p99 = at(0.99)};
}

// The largest over the mean.
template <class Load>
double Imbalance(const std::vector<ReplicaTotals>& replicas, const Load& load) {
  double most = 0, sum = 0;
  for (const ReplicaTotals& replica : replicas) {
    most = std::max(most, load(replica));
    sum += load(replica);
  }
  return sum > 0 ? most * static_cast<double>(replicas.size()) / sum : 1;
}

}  // namespace

ReplicaTotals SimulationResult::Total() const {
  ReplicaTotals total;
  for (const ReplicaTotals& r : replicas) {
    total.requests += r.requests, total.prompt_tokens += r.prompt_tokens, total.cached_tokens += r.cached_tokens;
    total.output_tokens += r.output_tokens, total.steps += r.steps, total.preemptions += r.preemptions;
    total.evicted_tokens += r.evicted_tokens, total.busy_seconds += r.busy_seconds;
    total.kv_bytes_read += r.kv_bytes_read, total.kv_bytes_read_unshared += r.kv_bytes_read_unshared;
  }
  return total;
}

SimulationResult Simulate(const Trace& trace, const Costs& costs, const SimulationOptions& options,
                          const std::function<bool(int64_t done)>& go_on) {
  COPPICE_CHECK(options.replicas >= 1 && options.server.kv_tokens > 0);
  SimulationResult result;
  result.outcomes.resize(trace.requests().size());
  // Prices by steps of half a budget of prompt tokens, and of a few dozen samples.
  const int32_t rows = std::max(1, options.server.max_batch_tokens / 2), samples = std::min(32, options.server.max_running);
  const WorkPrices prices = {.prompt_s = costs.steps.Seconds({.prompt = rows}) / rows,
                             .output_s = costs.steps.Seconds({.decode = samples}) / samples};
  std::vector<Replica> replicas;
  replicas.reserve(options.replicas);
  Router router(&trace, std::span(replicas.data(), options.replicas), options.server, options.router, prices);
  for (int32_t r = 0; r < options.replicas; ++r) {
    OnHeld notify;
    if (router.wants_held()) notify = [&router, r](int32_t node, bool held) { router.NotifyHeld(r, node, held); };
    replicas.emplace_back(
        r, &trace, &costs, options.server, result.outcomes, [&router, r](int32_t request) { router.Ended(request, r); },
        std::move(notify));
  }
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  // Events of a replica whose end has changed since are passed over.
  const auto advance_until = [&](double time) {
    while (!events.empty() && events.top().time <= time) {
      const Event event = events.top();
      events.pop();
      Replica& replica = replicas[event.replica];
      if (replica.next_event() != event.time) continue;
      replica.Advance();
      result.seconds = std::max(result.seconds, event.time);
      if (replica.next_event() != Replica::kNever) events.push({replica.next_event(), event.replica});
    }
  };
  const auto count = static_cast<int32_t>(trace.requests().size());
  for (int32_t request = 0; request < count; ++request) {
    if (go_on && request % kAskEvery == 0 && !go_on(request)) break;
    const double now = trace.requests()[request].arrival;
    advance_until(now);
    Replica& replica = replicas[router.Choose(request)];
    const double planned = replica.next_event();
    replica.Submit(request, now);
    if (replica.next_event() != planned) events.push({replica.next_event(), result.outcomes[request].replica});
    if (result.outcomes[request].refused) {
      router.Ended(request, result.outcomes[request].replica);
      ++result.refused;
    }
  }
  advance_until(Replica::kNever);
  for (const Replica& replica : replicas) result.replicas.push_back(replica.totals());
  const ReplicaTotals total = result.Total();
  result.hit_rate = static_cast<double>(total.cached_tokens) / static_cast<double>(std::max<int64_t>(total.prompt_tokens, 1));
  result.imbalance = Imbalance(result.replicas, [&](const ReplicaTotals& r) {
    return prices.prompt_s * static_cast<double>(r.prompt_tokens - r.cached_tokens) +
           prices.output_s * static_cast<double>(r.output_tokens);
  });
  result.busy_imbalance = Imbalance(result.replicas, [](const ReplicaTotals& r) { return r.busy_seconds; });
  std::vector<float> first, whole;
  for (const Outcome& outcome : result.outcomes) {
    if (outcome.refused || outcome.replica < 0) continue;
    first.push_back(outcome.first_token_seconds);
    whole.push_back(outcome.seconds);
  }
  result.first_token = LatenciesOf(std::move(first));
  result.request = LatenciesOf(std::move(whole));
  return result;
}

}  // namespace coppice::simulate
