// A simulation beside engines that are given the same requests before the same steps: what is found in caches, what attention
// reads, how many steps requests take. Steps count as time, so no clock is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coppice/engine/engine.h"
#include "model/random_checkpoint.h"
#include "simulate/chat_mix.h"
#include "simulate/costs.h"
#include "simulate/simulation.h"

namespace coppice {
namespace {

using simulate::Policy;
using simulate::Trace;
using simulate::TraceRequest;

constexpr double kStep = 1000;  // seconds: attention's predicted ones do not count beside it
constexpr int32_t kVocab = 4000;
constexpr std::string_view kMachine = "zen5";
// SmolLM2-135M's heads, and little else.
constexpr std::string_view kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "vocab_size": 4000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2})";

struct Totals {
  int64_t prompt_tokens = 0, cached_tokens = 0, steps = 0;
  double kv_bytes_read = 0, kv_bytes_read_unshared = 0;
  double first_token = 0, request = 0;  // steps, of all requests
};

// Tokens of a trace's nodes: drawn ones, of which the first differs from node to node, or what an engine answered.
class NodeTokens {
 public:
  explicit NodeTokens(const Trace* trace) : trace_(*trace), tokens_(trace->nodes().size()) {}
  std::vector<int32_t> PathTo(int32_t node) {
    std::vector<int32_t> path;
    for (; node != simulate::kNoNode; node = trace_.nodes()[node].parent) {
      const std::vector<int32_t>& piece = Of(node);
      path.insert(path.end(), piece.rbegin(), piece.rend());
    }
    std::ranges::reverse(path);
    return path;
  }
  void Answer(int32_t node, std::vector<int32_t> tokens) { tokens_[node] = std::move(tokens); }

 private:
  const std::vector<int32_t>& Of(int32_t node) {
    std::vector<int32_t>& tokens = tokens_[node];
    for (uint64_t i = tokens.size(); std::ssize(tokens) < trace_.nodes()[node].tokens; ++i) {
      const uint64_t drawn =
          i == 0 ? static_cast<uint64_t>(node) : (static_cast<uint64_t>(node) * 7919 + i) * 0x9E3779B97F4A7C15u >> 20;
      tokens.push_back(static_cast<int32_t>(10 + drawn % (kVocab - 10)));
    }
    return tokens;
  }

  const Trace& trace_;
  std::vector<std::vector<int32_t>> tokens_;
};

class SimulateEngine : public ::testing::Test {
 protected:
  SimulateEngine() : config_(::testing::TempDir() + "simulate_engine_config.json") { std::ofstream(config_) << kConfig; }

  // The requests that the simulation sends to a replica, through an engine.
  void RunReplica(const Trace& trace, const simulate::SimulationResult& simulated, int32_t replica, const EngineOptions& options,
                  Totals* totals) {
    const Result<std::unique_ptr<Engine>> created = Engine::Create(options);
    ASSERT_TRUE(created.ok()) << created.status().ToString();
    Engine& engine = **created;
    NodeTokens tokens(&trace);
    struct Asked {
      std::vector<int32_t> answer;
      bool ended = false;
    };
    std::map<size_t, Asked> running;
    double now = 0;  // steps
    for (size_t next = 0; next < trace.requests().size() || !running.empty();) {
      if (next < trace.requests().size() && simulated.outcomes[next].replica != replica) {
        ++next;
        continue;
      }
      if (running.empty()) now = std::max(now, trace.requests()[next].arrival / kStep);
      if (next < trace.requests().size() && trace.requests()[next].arrival / kStep <= now) {
        const TraceRequest& request = trace.requests()[next];
        Asked& asked = running[next];
        Request submitted{.prompt_ids = tokens.PathTo(request.prompt), .max_tokens = request.output_tokens, .ignore_eos = true};
        submitted.sampling.temperature = 0;
        totals->prompt_tokens += std::ssize(submitted.prompt_ids);
        submitted.on_event = [&asked, totals, &now, &request](const StreamEvent& event) {
          EXPECT_TRUE(event.status.ok()) << event.status.ToString();
          if (asked.answer.empty() && !event.token_ids.empty()) totals->first_token += now - request.arrival / kStep;
          asked.answer.insert(asked.answer.end(), event.token_ids.begin(), event.token_ids.end());
          if (!event.request_done) return;
          totals->request += now - request.arrival / kStep;
          asked.ended = true;
        };
        const Result<RequestId> id = engine.Submit(std::move(submitted));
        ASSERT_TRUE(id.ok()) << id.status().ToString();
        ++next;
        continue;
      }
      now += 1;
      const Result<bool> worked = engine.Step();
      ASSERT_TRUE(worked.ok()) << worked.status().ToString();
      std::erase_if(running, [&](auto& entry) {
        if (!entry.second.ended) return false;
        tokens.Answer(trace.requests()[entry.first].output, std::move(entry.second.answer));
        return true;
      });
    }
    const EngineMetrics metrics = engine.Metrics();
    totals->cached_tokens += metrics.cached_tokens;
    totals->steps += metrics.steps;
    totals->kv_bytes_read += static_cast<double>(metrics.kv_bytes_read);
    totals->kv_bytes_read_unshared += static_cast<double>(metrics.kv_bytes_read_unshared);
  }

  struct Case {
    int32_t requests = 60, max_running = 64, max_batch_tokens = 128;
    double rate = 0.05;  // a step
    int64_t kv_tokens = 200000;
    Policy policy = Policy::kPrefixAware;
    double bound = 0.03;  // of what the engines do
  };
  simulate::SimulationResult Compare(const Case& c) {
    simulate::SimulationResult simulated;
    CompareWith(c, &simulated);
    return simulated;
  }

 private:
  void CompareWith(const Case& c, simulate::SimulationResult* result) {
    const Trace trace = simulate::MakeChatMix({.requests = c.requests,
                                               .rate = c.rate / kStep,
                                               .system_prompts = 4,
                                               .turns = 4,
                                               .think_seconds = 100 * kStep,
                                               .answer_token_seconds = 1.5 * kStep,
                                               .max_context = 2048});
    const std::unique_ptr<Checkpoint> checkpoint = MakeRandomCheckpoint(config_).value();
    const simulate::StepTimes steps =
        simulate::StepTimes::FromTable({{.rows = 1, .seconds = kStep}}, {{.rows = 1, .seconds = kStep}}).value();
    const simulate::MachineCosts costs =
        simulate::MakeCosts(checkpoint->config(), {.machine = std::string(kMachine), .threads = 1, .steps = steps}).value();
    const simulate::SimulationResult& simulated = *result = simulate::Simulate(
        trace, costs.costs,
        {.replicas = 2,
         .server = {.max_running = c.max_running, .max_batch_tokens = c.max_batch_tokens, .kv_tokens = c.kv_tokens},
         .router = {.policy = c.policy}});
    EngineOptions options{.model_path = config_,
                          .device = "cpu",
                          .kv_cache_bytes = c.kv_tokens * costs.costs.attention.kv_bytes_per_token(),
                          .max_running = c.max_running,
                          .max_batch_tokens = c.max_batch_tokens,
                          .num_threads = 1,
                          .machine_model_path = std::string(kMachine)};
    options.experiment.random_weights = true;
    Totals measured;
    for (int32_t replica = 0; replica < 2; ++replica)
      ASSERT_NO_FATAL_FAILURE(RunReplica(trace, simulated, replica, options, &measured));
    const simulate::ReplicaTotals forecast = simulated.Total();
    const auto count = static_cast<double>(trace.requests().size());
    ASSERT_EQ(forecast.prompt_tokens, measured.prompt_tokens);
    const auto expect_near = [&](const char* name, double forecast_figure, double figure) {
      RecordProperty(name, std::to_string(forecast_figure / figure));
      EXPECT_NEAR(forecast_figure / figure, 1, c.bound) << name << " of the engines: " << figure;
    };
    expect_near("cached_tokens", static_cast<double>(forecast.cached_tokens), static_cast<double>(measured.cached_tokens));
    expect_near("kv_bytes_read", forecast.kv_bytes_read, measured.kv_bytes_read);
    expect_near("kv_bytes_read_unshared", forecast.kv_bytes_read_unshared, measured.kv_bytes_read_unshared);
    expect_near("steps", static_cast<double>(forecast.steps), static_cast<double>(measured.steps));
    expect_near("first_token_steps", simulated.first_token.mean / kStep, measured.first_token / count);
    expect_near("request_steps", simulated.request.mean / kStep, measured.request / count);
  }

  const std::string config_;
};

TEST_F(SimulateEngine, ChatsOnTwoReplicas) { Compare({}); }
TEST_F(SimulateEngine, ChatsByTurns) { Compare({.policy = Policy::kRoundRobin}); }
TEST_F(SimulateEngine, ChatsThatWaitForPlaces) {
  const simulate::SimulationResult simulated = Compare({.max_running = 2});
  EXPECT_GT(simulated.first_token.mean, 20 * kStep);
}
// An engine evicts pages, a simulation whole pieces of text.
TEST_F(SimulateEngine, ChatsThatEvictEachOther) {
  const simulate::SimulationResult simulated = Compare({.kv_tokens = 5000, .bound = 0.15});
  EXPECT_GT(simulated.Total().evicted_tokens, 5000);
}

}  // namespace
}  // namespace coppice
