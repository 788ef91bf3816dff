#include "simulate/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "simulate/chat_mix.h"
#include "simulate/testing/simple_costs.h"

namespace coppice::simulate {
namespace {

constexpr double kNear = 0.01;  // of attention and draws over a few one-second steps

class OneReplica : public ::testing::Test {
 protected:
  SimulationResult Run(const ServerOptions& server = {.kv_tokens = 100000}) {
    return Simulate(trace_, costs_, {.replicas = 1, .server = server, .router = {.policy = Policy::kRoundRobin}});
  }
  void Add(double arrival, std::vector<Segment> prompt, int32_t output, int32_t samples = 1) {
    trace_.Add({.arrival = arrival, .prompt = std::move(prompt), .output_tokens = output, .samples = samples});
  }

  Trace trace_;
  const Costs costs_ = testing::OneSecondSteps();
};

// A prompt's step gives the first token, each further one a token more; a request that comes meanwhile waits for the end of a step.
TEST_F(OneReplica, StepsFollowEachOther) {
  Add(0, {{1, 100}}, 5);
  Add(2.5, {{2, 100}}, 2);
  Add(50, {{3, 1000}}, 1);  // in chunks of 512
  const SimulationResult result = Run();
  EXPECT_NEAR(result.outcomes[0].first_token_seconds, 1, kNear);
  EXPECT_NEAR(result.outcomes[0].seconds, 5, kNear);
  EXPECT_NEAR(result.outcomes[1].first_token_seconds, 4 - 2.5, kNear);
  EXPECT_NEAR(result.outcomes[1].seconds, 5 - 2.5, kNear);
  EXPECT_NEAR(result.outcomes[2].seconds, 2, kNear);
  EXPECT_EQ(result.Total().steps, 5 + 2);
  EXPECT_NEAR(result.Total().busy_seconds, 7, kNear);
  EXPECT_EQ(result.Total().output_tokens, 8);
}

TEST_F(OneReplica, FindsWhatWasComputed) {
  Add(0, {{1, 100}, {2, 10}}, 3);
  Add(20, {{1, 100}, {3, 30}}, 3);
  Add(40, {{1, 100}, {2, 10}}, 3);  // the last token is computed again
  trace_.Add({.arrival = 60, .prompt = {{1, 100}, {4, 10}}, .output_tokens = 7, .output_id = 5});
  Add(80, {{1, 100}, {4, 10}, {5, 7}, {6, 1}}, 1);  // with the answer
  const SimulationResult result = Run();
  EXPECT_EQ(result.outcomes[0].cached_tokens, 0);
  EXPECT_EQ(result.outcomes[1].cached_tokens, 100);
  EXPECT_EQ(result.outcomes[2].cached_tokens, 109);
  EXPECT_EQ(result.outcomes[4].cached_tokens, 117);
  EXPECT_NEAR(result.hit_rate, EndlessHitRate(trace_), 1e-12);
}

// Two equal prompts at once: the second waits for the first one's text, and computes its last token alone.
TEST_F(OneReplica, EqualPromptsInFlightAreComputedOnce) {
  Add(0, {{1, 2000}}, 2);
  Add(0, {{1, 2000}}, 2);
  Add(0.5, {{2, 100}}, 2);
  const SimulationResult result = Run();
  EXPECT_EQ(result.outcomes[0].cached_tokens + result.outcomes[1].cached_tokens, 1999);
  EXPECT_NEAR(result.outcomes[0].first_token_seconds, 4, kNear);  // 512, 512, 512, 464
  EXPECT_LE(result.outcomes[1].first_token_seconds, 5 + kNear);
}

TEST_F(OneReplica, EvictsWhatWasUsedLongestAgo) {
  const ServerOptions server{.max_running = 4, .kv_tokens = 2000};
  Add(0, {{1, 800}}, 2);
  Add(10, {{2, 800}}, 2);
  Add(20, {{1, 800}}, 2);  // still there
  Add(30, {{3, 800}}, 2);  // in place of 2
  Add(40, {{1, 800}}, 2);
  Add(50, {{2, 800}}, 2);
  Add(60, {{9, 2000}}, 2);  // fits nowhere
  const SimulationResult result = Run(server);
  EXPECT_EQ(result.outcomes[2].cached_tokens, 799);
  EXPECT_EQ(result.outcomes[4].cached_tokens, 799);
  EXPECT_EQ(result.outcomes[5].cached_tokens, 0);
  EXPECT_GE(result.Total().evicted_tokens, 1600);
  EXPECT_TRUE(result.outcomes[6].refused);
  EXPECT_EQ(result.refused, 1);
}

TEST_F(OneReplica, PlacesAndPagesAreWaitedFor) {
  for (int i = 0; i < 4; ++i) Add(0, {{static_cast<uint64_t>(i), 10}}, 10);
  const SimulationResult two_at_once = Run({.max_running = 2, .kv_tokens = 100000});
  std::vector<float> ends;
  for (const Outcome& outcome : two_at_once.outcomes) ends.push_back(outcome.seconds);
  std::ranges::sort(ends);
  // The first one's step has begun when the second one comes, at the same moment.
  EXPECT_NEAR(ends[0], 10, kNear);
  EXPECT_NEAR(ends[1], 11, kNear);
  EXPECT_NEAR(ends[2], 20, kNear);
  EXPECT_NEAR(ends[3], 21, kNear);
  // Answers that do not fit beside each other: the newest gives way and comes to its end all the same.
  trace_ = {};
  Add(0, {{1, 100}}, 300);
  Add(0, {{2, 100}}, 300);
  const SimulationResult small = Run({.max_running = 2, .kv_tokens = 600});
  EXPECT_GE(small.Total().preemptions, 1);
  EXPECT_EQ(small.Total().output_tokens, 600);
  EXPECT_GT(small.outcomes[1].seconds, small.outcomes[0].seconds);
}

TEST_F(OneReplica, SamplesShareTheirPrompt) {
  Add(0, {{1, 100}}, 4, 8);
  const SimulationResult result = Run();
  EXPECT_NEAR(result.outcomes[0].seconds, 4, kNear);
  EXPECT_EQ(result.Total().output_tokens, 32);
  EXPECT_LT(result.Total().kv_bytes_read, result.Total().kv_bytes_read_unshared);
}

// Random lives of a replica that is short of everything, its sums looked at after each event.
TEST(Replica, KeepsItsSums) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Trace trace = MakeChatMix({.requests = 400, .rate = 2, .system_prompts = 5, .max_context = 2048, .seed = seed});
    const Costs costs = testing::OneSecondSteps();
    std::vector<Outcome> outcomes(trace.requests().size());
    std::map<int32_t, int> held;
    int32_t ended = 0;
    Replica replica(
        0, &trace, &costs, {.max_running = 6, .max_batch_tokens = 256, .kv_tokens = 5000}, outcomes, [&](int32_t) { ++ended; },
        [&](int32_t node, bool is) {
          held[node] += is ? 1 : -1;
          ASSERT_TRUE(held[node] == 0 || held[node] == 1);
        });
    int32_t refused = 0;
    for (int32_t i = 0; i < std::ssize(trace.requests()); ++i) {
      while (replica.next_event() <= trace.requests()[i].arrival) {
        replica.Advance();
        ASSERT_TRUE(replica.CheckIntegrity());
      }
      replica.Submit(i, trace.requests()[i].arrival);
      refused += outcomes[i].refused;
      ASSERT_TRUE(replica.CheckIntegrity());
    }
    while (replica.next_event() != Replica::kNever) {
      replica.Advance();
      ASSERT_TRUE(replica.CheckIntegrity());
    }
    EXPECT_EQ(ended + refused, 400);
    EXPECT_EQ(replica.outstanding(), 0);
    EXPECT_EQ(replica.backlog_tokens(), 0);
    EXPECT_EQ(replica.samples_outstanding(), 0);
  }
}

// ----------------------------------------------------------------------------------------------------------------------- routers

struct Routed {
  double endless = 0;
  std::map<Policy, SimulationResult> results;
};

// Costs of a model of 8 B parameters on an H100, in round numbers.
Costs LargeModel() {
  const std::vector<LayerKind> kinds = {{.spec = {.num_qo_heads = 32, .num_kv_heads = 8, .head_dim = 128},
                                         .traits = {.workers = 132,
                                                    .dense_tile_rows = 128,
                                                    .dense_min_rows = 17,
                                                    .dense_row_unit = 64,
                                                    .stream_warps = 8,
                                                    .cooperative_warps = 8,
                                                    .kv_tile = 128,
                                                    .native_head_dim = 128,
                                                    .cuts_kv = true},
                                         .layers = 32}};
  return {.steps = StepTimes::FromRoofline({.layer_bytes = 14e9,
                                            .layer_flops = 14e9,
                                            .head_bytes = 1e9,
                                            .head_flops = 1e9,
                                            .bytes_per_s = 3e12,
                                            .flops_per_s = 545e12}),
          .attention = AttentionTimes(kinds, attention::ShippedMachineModel("h100").value())};
}

Routed Route(int64_t requests, int32_t replicas, double rate, const std::vector<Policy>& policies) {
  const Trace trace = MakeChatMix({.requests = requests, .rate = rate});
  Routed routed{.endless = EndlessHitRate(trace)};
  const Costs costs = LargeModel();
  for (const Policy policy : policies)
    routed.results.emplace(
        policy, Simulate(trace, costs, {.replicas = replicas, .server = {.kv_tokens = 400000}, .router = {.policy = policy}}));
  return routed;
}

TEST(Router, PrefixAwareFindsWhatOneMachineWouldAndIsBalanced) {
  const Routed routed = Route(40000, 8, 20, {Policy::kRoundRobin, Policy::kLeastLoad, Policy::kPrefixHash, Policy::kPrefixAware});
  const SimulationResult& aware = routed.results.at(Policy::kPrefixAware);
  EXPECT_GT(aware.hit_rate, routed.endless * 0.97);
  EXPECT_LT(aware.imbalance, 1.2);
  EXPECT_LT(aware.busy_imbalance, 1.2);
  EXPECT_GT(aware.hit_rate, routed.results.at(Policy::kRoundRobin).hit_rate + 0.1);
  EXPECT_GT(aware.hit_rate, routed.results.at(Policy::kLeastLoad).hit_rate + 0.1);
  EXPECT_LT(routed.results.at(Policy::kRoundRobin).imbalance, 1.2);
  for (const auto& [policy, result] : routed.results) {
    EXPECT_EQ(result.refused, 0);
    EXPECT_EQ(result.Total().requests, 40000);
  }
}

// A prompt of all requests comes to be on all replicas, since one could not answer them all.
TEST(Router, AHotPrefixIsOnAllReplicas) {
  Trace trace;
  std::mt19937 random(1);
  for (uint64_t i = 0; i < 2000; ++i)
    trace.Add({.arrival = 0.002 * static_cast<double>(i), .prompt = {{0, 2000}, {1 + i, 50}}, .output_tokens = 100});
  const SimulationResult result =
      Simulate(trace, LargeModel(), {.replicas = 8, .server = {.kv_tokens = 400000}, .router = {.policy = Policy::kPrefixAware}});
  EXPECT_LT(result.imbalance, 1.2);
  EXPECT_GT(result.hit_rate, 0.96);
  const SimulationResult hashed =
      Simulate(trace, LargeModel(), {.replicas = 8, .server = {.kv_tokens = 400000}, .router = {.policy = Policy::kPrefixHash}});
  EXPECT_GT(hashed.hit_rate, 0.95);
  EXPECT_LT(hashed.imbalance, 1.6);  // its bound
}

TEST(Router, AMillionRequestsOnAHundredReplicas) {
  if (std::getenv("COPPICE_LONG_TEST") == nullptr) GTEST_SKIP() << "COPPICE_LONG_TEST is not set";
  const auto begin = std::chrono::steady_clock::now();
  const Routed routed = Route(1000000, 100, 300, {Policy::kPrefixAware});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const SimulationResult& aware = routed.results.at(Policy::kPrefixAware);
  RecordProperty("hit_rate", std::to_string(aware.hit_rate));
  EXPECT_GT(aware.hit_rate, routed.endless * 0.97);
  EXPECT_LT(aware.imbalance, 1.2);
  EXPECT_LT(aware.busy_imbalance, 1.2);
  EXPECT_LT(seconds.count(), 60);
}

}  // namespace
}  // namespace coppice::simulate
