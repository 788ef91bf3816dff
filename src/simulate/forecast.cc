#include "simulate/forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "core/check.h"

namespace coppice::simulate {
namespace {

// The job's tree: the requests below each piece, and all requests in the order of the tree.
struct Tree {
  std::vector<int32_t> requests_below;         // by node
  std::vector<int64_t> samples_below;          // by node
  std::vector<int32_t> order;                  // of requests
  std::vector<std::vector<int32_t>> children;  // by node, of those that prompts go through; the last one: the roots

  explicit Tree(const Trace& trace)
      : requests_below(trace.nodes().size()), samples_below(trace.nodes().size()), children(trace.nodes().size() + 1) {
    std::vector<std::vector<int32_t>> ends(trace.nodes().size());
    for (int32_t r = 0; r < std::ssize(trace.requests()); ++r) {
      const TraceRequest& request = trace.requests()[r];
      ends[request.prompt].push_back(r);
      for (int32_t n = request.prompt; n != kNoNode; n = trace.nodes()[n].parent) {
        if (requests_below[n]++ == 0) ChildrenOf(trace.nodes()[n].parent).push_back(n);
        samples_below[n] += request.samples;
      }
    }
    std::vector<int32_t> stack;
    const auto push = [&](int32_t node) {
      const std::vector<int32_t>& below = ChildrenOf(node);
      stack.insert(stack.end(), below.rbegin(), below.rend());
    };
    for (push(kNoNode); !stack.empty();) {
      const int32_t node = stack.back();
      stack.pop_back();
      order.insert(order.end(), ends[node].begin(), ends[node].end());
      push(node);
    }
  }
  std::vector<int32_t>& ChildrenOf(int32_t node) { return node == kNoNode ? children.back() : children[node]; }
};

void ListNodes(const Trace& trace, Tree& tree, std::vector<JobNode>* nodes) {
  std::vector<std::pair<int32_t, int32_t>> stack;  // node, depth
  const auto push = [&](int32_t node, int32_t depth) {
    const std::vector<int32_t>& below = tree.ChildrenOf(node);
    for (size_t i = below.size(); i-- > 0;) stack.emplace_back(below[i], depth);
  };
  // Counts the requests that are alone below a node, or below none.
  const auto count_ends = [&](int32_t node, JobNode* listed) {
    listed->shortest_end = std::numeric_limits<int32_t>::max();
    const int32_t end = node == kNoNode ? 0 : trace.nodes()[node].end;
    int64_t left = node == kNoNode ? 0 : tree.requests_below[node];
    for (const int32_t child : tree.ChildrenOf(node)) {
      left -= tree.requests_below[child];
      if (tree.requests_below[child] > 1) continue;
      int32_t last = child;
      while (!tree.ChildrenOf(last).empty()) last = tree.ChildrenOf(last).front();
      ++listed->ends;
      listed->shortest_end = std::min(listed->shortest_end, trace.nodes()[last].end - end);
      listed->longest_end = std::max(listed->longest_end, trace.nodes()[last].end - end);
    }
    if (left > 0) listed->ends += left, listed->shortest_end = 0;
    if (listed->ends == 0) listed->shortest_end = 0;
  };
  JobNode alone;  // requests that share nothing
  count_ends(kNoNode, &alone);
  for (push(kNoNode, 0); !stack.empty();) {
    const auto [node, depth] = stack.back();
    stack.pop_back();
    if (tree.requests_below[node] < 2) continue;
    JobNode listed{.node = node, .depth = depth, .requests = tree.requests_below[node], .samples = tree.samples_below[node]};
    count_ends(node, &listed);
    nodes->push_back(listed);
    push(node, depth + 1);
  }
  if (alone.ends > 0) {
    alone.requests = alone.ends;
    for (const int32_t child : tree.ChildrenOf(kNoNode)) {
      if (tree.requests_below[child] == 1) alone.samples += tree.samples_below[child];
    }
    nodes->push_back(alone);
  }
}

// Samples that decode: added one request after the other.
class Batch {
 public:
  Batch(const Trace* trace, const AttentionTimes* attention)
      : trace_(*trace),
        attention_(*attention),
        decoding_(attention->Nothing()),
        below_(trace->nodes().size()),
        reads_(trace->nodes().size(), -1) {}

  // Tokens that its KV takes more when it is added, at the end of its answer.
  int64_t TokensOf(const TraceRequest& request) const {
    int64_t tokens = int64_t{request.samples} * request.output_tokens;
    for (int32_t n = request.prompt; n != kNoNode && below_[n] == 0; n = trace_.nodes()[n].parent)
      tokens += trace_.nodes()[n].tokens;
    return tokens;
  }
  void Add(const TraceRequest& request) {
    std::vector<AttentionTimes::PathNode> path;
    for (int32_t n = request.prompt; n != kNoNode; n = trace_.nodes()[n].parent) {
      path.push_back({.tokens = trace_.nodes()[n].tokens, .end = trace_.nodes()[n].end, .samples = below_[n], .reads = &reads_[n]});
      below_[n] += request.samples;
    }
    std::ranges::reverse(path);
    attention_.ChangePath(path, request.samples, &decoding_);
    attention_.ChangeSamples(request.samples, trace_.prompt_tokens(request), &decoding_);
    samples_ += request.samples;
    own_tokens_ += int64_t{request.samples} * std::max(1, request.output_tokens / 2);
  }
  ForecastStep Step(const StepTimes& steps) const {
    const AttentionStep attention = attention_.Step(decoding_, own_tokens_, {});
    return {.samples = samples_,
            .seconds = attention.seconds + steps.Seconds({.decode = static_cast<int32_t>(samples_)}),
            .attention_seconds = attention.seconds,
            .attention_seconds_apart = attention.seconds_unshared,
            .kv_bytes_read = attention.bytes_read,
            .kv_bytes_read_unshared = attention.bytes_read_unshared};
  }
  int64_t samples() const { return samples_; }

 private:
  const Trace& trace_;
  const AttentionTimes& attention_;
  AttentionTimes::Decoding decoding_;
  std::vector<int32_t> below_, reads_;  // by node: samples, and AttentionTimes::PathNode's
  int64_t samples_ = 0, own_tokens_ = 0;
};

// Batches of 1, 2, 4, ... samples up to the limit, of one prompt.
std::vector<BreakEven> BreakEvenOf(double shared, double own, const Costs& costs, int32_t most) {
  std::vector<BreakEven> rows;
  const auto s = static_cast<int32_t>(std::max(1.0, std::round(shared)));
  const double c = std::max(1.0, own);
  for (int32_t b = 1; b <= most; b *= 2) {
    AttentionTimes::Decoding decoding = costs.attention.Nothing();
    int32_t reads = -1;
    const AttentionTimes::PathNode node = {.tokens = s, .end = s, .samples = 0, .reads = &reads};
    costs.attention.ChangePath(std::span(&node, 1), b, &decoding);
    costs.attention.ChangeSamples(b, s, &decoding);
    const AttentionStep attention = costs.attention.Step(decoding, std::llround(b * c), {});
    const double beside = costs.steps.Seconds({.decode = b});
    rows.push_back({.samples = b,
                    .attention_gain = attention.seconds_unshared / attention.seconds,
                    .relay_gain = (s + c + 2) / (static_cast<double>(s) / b + c + 7),
                    .step_gain = (attention.seconds_unshared + beside) / (attention.seconds + beside),
                    .attention_share = attention.seconds_unshared / (attention.seconds_unshared + beside)});
  }
  return rows;
}

}  // namespace

Forecast MakeForecast(const Trace& trace, const Costs& costs, const ServerOptions& server) {
  COPPICE_CHECK(!trace.requests().empty() && server.kv_tokens > 0);
  Tree tree(trace);
  Forecast forecast{.requests = std::ssize(trace.requests()), .kv_tokens = server.kv_tokens};
  double shared = 0, own = 0;  // of all samples
  for (const TraceRequest& request : trace.requests()) {
    const int64_t prompt = trace.prompt_tokens(request), output = int64_t{request.samples} * request.output_tokens;
    forecast.samples += request.samples;
    forecast.prompt_tokens += prompt;
    forecast.output_tokens += output;
    forecast.stored_tokens_apart += request.samples * prompt + output;
    int32_t n = request.prompt;
    while (n != kNoNode && tree.samples_below[n] < 2) n = trace.nodes()[n].parent;
    const double with_others = n == kNoNode ? 0 : trace.nodes()[n].end;
    shared += request.samples * with_others;
    own += request.samples * (static_cast<double>(prompt) - with_others + request.output_tokens / 2.0);
  }
  for (size_t n = 0; n < trace.nodes().size(); ++n) {
    if (tree.requests_below[n] > 0) forecast.computed_tokens += trace.nodes()[n].tokens;
  }
  forecast.stored_tokens = forecast.computed_tokens + forecast.output_tokens;
  forecast.shared_tokens = shared / static_cast<double>(forecast.samples);
  forecast.own_tokens = own / static_cast<double>(forecast.samples);

  Batch batch(&trace, &costs.attention);
  int64_t tokens = 0, tokens_apart = 0;
  bool is_full = false, is_full_apart = false;
  for (const int32_t r : tree.order) {
    TraceRequest request = trace.requests()[r];
    request.samples = std::min(request.samples, server.max_running);  // the others follow as these end
    const int64_t more = batch.TokensOf(request);
    const int64_t more_apart = request.samples * (int64_t{trace.prompt_tokens(request)} + request.output_tokens);
    is_full |= tokens + more > server.kv_tokens || batch.samples() + request.samples > server.max_running;
    is_full_apart |=
        tokens_apart + more_apart > server.kv_tokens || forecast.largest_batch_apart + request.samples > server.max_running;
    if (is_full && is_full_apart) break;
    if (!is_full) batch.Add(request), tokens += more;
    if (!is_full_apart) forecast.largest_batch_apart += request.samples, tokens_apart += more_apart;
  }
  forecast.largest_batch = batch.samples();
  if (forecast.largest_batch > 0) forecast.step = batch.Step(costs.steps);
  forecast.break_even = BreakEvenOf(forecast.shared_tokens, forecast.own_tokens, costs, std::min(server.max_running, 1024));
  ListNodes(trace, tree, &forecast.tree);
  return forecast;
}

}  // namespace coppice::simulate
