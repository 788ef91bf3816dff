#include "attention_tools/attention_cases.h"

#include <map>
#include <utility>

namespace coppice::attention {

std::vector<TreeLevel> AttentionCase::Levels() const {
  std::vector<TreeLevel> levels;
  for (size_t i = 0; i < nodes.size(); ++i)
    levels.push_back({.tokens = tokens[i], .fan_out = nodes[i] / (i == 0 ? 1 : nodes[i - 1])});
  return levels;
}

std::vector<CasePass> AttentionCase::Passes() const {
  std::map<int32_t, int32_t> requests_with;  // queries -> requests
  for (size_t i = 0; i < chunks.size(); ++i) ++requests_with[chunks[i]];
  requests_with[queries] += nodes.back() - static_cast<int32_t>(chunks.size());
  const double token_bytes = 4.0 * kv_heads * head_dim, pair_flops = 4.0 * head_dim * qo_heads;
  std::vector<CasePass> passes;
  for (size_t level = 0; level < nodes.size(); ++level) {
    const bool last = level + 1 == nodes.size();
    if (!last) passes.push_back({.bytes = token_bytes * nodes[level] * tokens[level]});
    for (const auto& [count, requests] : requests_with) {
      if (last) passes.push_back({.bytes = token_bytes * requests * tokens[level]});
      const double unseen = last ? 0.5 * count * (count - 1.0) : 0;  // queries do not see those after them
      passes.back().flops += pair_flops * requests * (static_cast<double>(tokens[level]) * count - unseen);
    }
  }
  return passes;
}

std::vector<AttentionCase> HopperCases() {
  std::vector<AttentionCase> cases = {
      {"A1", 32, 32, 128, {1, 128}, {32768, 256}, 1, 0.30, 0.383},
      {"A2", 32, 32, 128, {1, 256}, {32768, 256}, 1, 0.52, 0.692},
      {"A3", 32, 32, 128, {1, 1024}, {32768, 256}, 1, 2.0, 2.518},
      {"B", 32, 8, 128, {1, 256}, {8192, 256}, 1, 0.14, 0.205},
      {"C", 8, 1, 128, {1, 4096}, {8192, 128}, 1, 0.32, 0.525},
      {"D", 32, 8, 128, {1, 1024}, {16384, 128}, 1, 0.60, 0.984},
      {"E", 8, 1, 128, {1, 16}, {1024, 128}, 1, 0.015, 0.015},
      {"E2", 32, 8, 128, {1, 8}, {512, 64}, 1, 0.017, 0.017},
      {"F", 32, 8, 128, {64}, {8192}, 1, 0.49, 0.501},
  };
  const struct {
    std::vector<int32_t> nodes, tokens;
    double peer_mha, peer_gqa;
  } trees[] = {
      {{1, 1024}, {2048, 32}, 0.298, 0.196},
      {{1, 2, 64}, {1024, 256, 256}, 0.104, 0.048},
      {{1, 8, 512}, {512, 2048, 256}, 0.640, 0.242},
      {{1, 4, 16, 512}, {1024, 256, 128, 32}, 0.152, 0.091},
      {{1, 4, 16, 64, 256, 1024}, {256, 32, 256, 64, 32, 256}, 1.240, 0.400},
      {{8, 16, 32, 256}, {512, 512, 256, 32}, 0.155, 0.072},
      {{4, 16, 256, 512}, {512, 32, 128, 32}, 0.271, 0.112},
  };
  int index = 1;
  for (const int32_t kv_heads : {32, 8}) {
    for (const auto& tree : trees) {
      cases.push_back({"tree" + std::to_string(index++), 32, kv_heads, 128, tree.nodes, tree.tokens, 1, 0,
                       kv_heads == 32 ? tree.peer_mha : tree.peer_gqa});
    }
  }
  cases.push_back({"G", 32, 8, 128, {1}, {16384}, 4096});
  cases.push_back({"G64", 32, 8, 64, {1}, {16384}, 4096});
  cases.push_back({"G2", 32, 8, 128, {1}, {8192}, 512});
  // A chunk that ends its prompt beside requests of as many tokens that decode; peers: the best of FlashInfer's BatchPOD,
  // BatchAttention, and prefill and decode one after the other.
  cases.push_back({"H1", 28, 4, 128, {1 + 128}, {2048}, 1, 0.155, 0.222, {2048}});
  cases.push_back({"H2", 32, 8, 128, {1 + 128}, {4096}, 1, 0.60, 0.800, {4096}});
  cases.push_back({"H3", 32, 8, 128, {1 + 80}, {12288}, 1, 1.03, 1.293, {1024}});
  cases.push_back({"H4", 32, 8, 128, {1 + 128}, {8192}, 1, 1.05, 1.097, {512}});
  cases.push_back({"H5", 32, 32, 128, {1 + 64}, {8192}, 1, 0, 2.167, {1024}});
  return cases;
}

std::vector<AttentionCase> SweepCases(int* left_out) {
  std::vector<AttentionCase> cases;
  int out = 0;
  const std::pair<int32_t, int32_t> heads[] = {{32, 32}, {32, 8}, {8, 1}};
  for (const auto& [qo_heads, kv_heads] : heads) {
    for (const int32_t prefix : {64, 512, 4096, 32768}) {
      for (const int32_t unique : {16, 128, 512, 2048}) {
        for (const int32_t batch : {1, 4, 16, 64, 256, 1024, 4096}) {
          if (4.0 * 128 * kv_heads * batch * (static_cast<double>(prefix) + unique) > kMostSweepBytes) {
            ++out;
            continue;
          }
          std::string name = std::to_string(qo_heads) + "/" + std::to_string(kv_heads) + ":" + std::to_string(prefix) + "+" +
                             std::to_string(unique) + "x" + std::to_string(batch);
          cases.push_back({std::move(name), qo_heads, kv_heads, 128, {1, batch}, {prefix, unique}});
        }
      }
    }
  }
  if (left_out != nullptr) *left_out = out;
  return cases;
}

}  // namespace coppice::attention
