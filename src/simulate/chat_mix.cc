#include "simulate/chat_mix.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <random>
#include <vector>

#include "core/check.h"
#include "simulate/draws.h"

namespace coppice::simulate {
namespace {

struct LengthShape {
  double median, sigma;
  int32_t least, most;
};
constexpr LengthShape kSystem = {600, 0.8, 50, 4000}, kUser = {60, 1.0, 4, 1500}, kSingle = {150, 1.0, 4, 3000},
                      kOutput = {200, 0.8, 4, 1500};

int32_t Draw(std::mt19937_64& random, const LengthShape& shape) {
  return static_cast<int32_t>(std::clamp<double>(LogNormal(random, shape.median, shape.sigma), shape.least, shape.most));
}

// A conversation whose next turn comes at `time`.
struct Conversation {
  double time = 0;
  int32_t text = kNoNode;  // all before the next turn
  int32_t turns_left = 1;
  bool single = false;
  bool operator>(const Conversation& other) const { return time > other.time; }
};

}  // namespace

Trace MakeChatMix(const ChatMixOptions& options) {
  COPPICE_CHECK(options.rate > 0 && options.turns >= 1 && options.system_prompts > 0 && options.max_context >= 256);
  std::mt19937_64 random(options.seed);
  Trace trace;
  uint64_t next_id = 0;
  std::vector<int32_t> systems;
  std::vector<double> up_to;  // sums of what is asked for
  for (int32_t i = 0; i < options.system_prompts; ++i) {
    const int32_t tokens = std::min(Draw(random, kSystem), options.max_context / 2);
    systems.push_back(trace.Find(kNoNode, {.id = next_id++, .tokens = tokens}));
    up_to.push_back((up_to.empty() ? 0 : up_to.back()) + 1.0 / (i + 1));
  }
  const double mean_turns = options.single_share + (1 - options.single_share) * options.turns;
  const double between_starts = mean_turns / options.rate;
  std::priority_queue<Conversation, std::vector<Conversation>, std::greater<>> coming;
  double next_start = Exponential(random, between_starts);
  while (std::ssize(trace.requests()) < options.requests) {
    if (coming.empty() || next_start < coming.top().time) {
      Conversation begun{.time = next_start};
      begun.text = systems[std::ranges::lower_bound(up_to, Uniform(random) * up_to.back()) - up_to.begin()];
      begun.single = Uniform(random) < options.single_share;
      if (!begun.single && options.turns > 1)
        begun.turns_left = 1 + static_cast<int32_t>(std::log(Uniform(random)) / std::log(1 - 1 / options.turns));
      coming.push(begun);
      next_start += Exponential(random, between_starts);
      continue;
    }
    Conversation turn = coming.top();
    coming.pop();
    const int32_t room = options.max_context - trace.nodes()[turn.text].end;
    if (room < 2) continue;
    const int32_t user = std::min(Draw(random, turn.single ? kSingle : kUser), room / 2);
    const int32_t output = std::min(Draw(random, kOutput), room - user);
    if (user < 1 || output < 1) continue;
    const int32_t prompt = trace.Find(turn.text, {.id = next_id++, .tokens = user});
    const int32_t answer = trace.Find(prompt, {.id = next_id++, .tokens = output});
    trace.AddRequest({.arrival = turn.time, .prompt = prompt, .output_tokens = output, .output = answer});
    if (--turn.turns_left == 0) continue;
    turn.text = answer;
    turn.time += output * options.answer_token_seconds + Exponential(random, options.think_seconds);
    coming.push(turn);
  }
  trace.Sort();
  return trace;
}

}  // namespace coppice::simulate
