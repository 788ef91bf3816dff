#include "server/tree_response.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace coppice::server {

using nlohmann::ordered_json;

namespace {

// How the last plan reads each node, by its id; a null plan says nothing.
std::map<int32_t, const PlannedRead*> ReadsOf(const StepPlan* plan) {
  std::map<int32_t, const PlannedRead*> reads;
  if (!plan) return reads;
  for (const PlannedRead& read : plan->reads) reads[read.node] = &read;
  return reads;
}

ordered_json ToJson(const std::vector<CachedPrefix>& prefixes) {
  ordered_json nodes = ordered_json::array();
  for (const CachedPrefix& node : prefixes) {
    nodes.push_back({{"id", node.id},
                     {"parent", node.parent},
                     {"begin", node.begin},
                     {"end", node.end},
                     {"hits", node.hits},
                     {"running", node.users},
                     {"pinned", node.pinned}});
  }
  return nodes;
}

}  // namespace

ordered_json TreeResponse(const EngineMetrics& metrics, const ModelInfo& model) {
  ordered_json nodes = ToJson(metrics.prefixes);
  const std::map<int32_t, const PlannedRead*> reads = ReadsOf(metrics.plan.get());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const CachedPrefix& node = metrics.prefixes[i];
    const auto found = reads.find(node.id);
    // The tree may have changed since: what runs no more is only cached, and another node may have the id.
    const bool has_reads = found != reads.end() && node.users > 1 && found->second->begin == node.begin;
    nodes[i]["read_together"] = has_reads ? ordered_json(found->second->together) : ordered_json();
    nodes[i]["reason"] = has_reads ? ordered_json(ReasonText(*found->second)) : ordered_json();
  }
  const StepMetrics& step = metrics.last_step;
  return {{"object", "prefix_tree"},
          {"num_nodes", metrics.tree_nodes},
          {"nodes", std::move(nodes)},
          {"kv_bytes_per_token", model.kv_bytes_per_token},
          {"requests_waiting", metrics.waiting},
          {"samples_running", metrics.running},
          {"pages", metrics.pages_total},
          {"pages_used", metrics.pages_used},
          {"steps", metrics.steps},
          {"step_seconds", metrics.prefill_seconds + metrics.decode_seconds},
          {"prefilled_tokens", metrics.prefilled_tokens},
          {"cached_tokens", metrics.cached_tokens},
          {"generated_tokens", metrics.generated_tokens},
          {"kv_bytes_read", metrics.kv_bytes_read},
          {"kv_bytes_read_unshared", metrics.kv_bytes_read_unshared},
          {"last_step",
           {{"step", step.step},
            {"seconds", step.seconds},
            {"decode_rows", step.decode_rows},
            {"prefill_rows", step.prefill_rows},
            {"grouped_rows", step.grouped_rows},
            {"kv_bytes_read", step.kv_bytes_read},
            {"kv_bytes_read_unshared", step.kv_bytes_read_unshared}}}};
}

ordered_json TreeResponseOf(const std::string& key, const EngineMetrics& metrics, const ModelInfo& model,
                            const ServerMetrics::Tokens& tokens) {
  std::vector<CachedPrefix> own;
  if (metrics.tenant_prefixes) {
    if (const auto found = metrics.tenant_prefixes->find(key); found != metrics.tenant_prefixes->end()) own = found->second;
  }
  // The tree's names of nodes would reveal the number of others: the key's own are counted anew, in the order of those names.
  std::map<int32_t, int32_t> ids = {{0, 0}};
  for (const CachedPrefix& node : own) ids[node.id];
  int32_t next = 0;
  for (auto& [node, id] : ids) id = next++;
  for (CachedPrefix& node : own) {
    node.id = ids.at(node.id);
    node.parent = ids.at(node.parent);
  }
  return {{"object", "prefix_tree"},
          {"num_nodes", own.size()},
          {"nodes", ToJson(own)},
          {"kv_bytes_per_token", model.kv_bytes_per_token},
          {"prompt_tokens", tokens.prompt},
          {"cached_tokens", tokens.cached},
          {"generated_tokens", tokens.generated}};
}

ordered_json PlanResponse(const StepPlan* plan) {
  if (!plan) {
    return {{"object", "step_plan"},
            {"step", nullptr},
            {"reads", ordered_json::array()},
            {"text", "nothing was planned yet: no step has read any KV\n"}};
  }
  ordered_json reads = ordered_json::array();
  for (const PlannedRead& read : plan->reads) {
    reads.push_back({{"node", read.node},
                     {"parent", read.parent},
                     {"begin", read.begin},
                     {"end", read.end},
                     {"samples", read.samples},
                     {"read_together", read.together},
                     {"reason", ReasonText(read)},
                     {"together_us", read.together_us},
                     {"apart_us", read.apart_us}});
  }
  return {{"object", "step_plan"},
          {"step", plan->step},
          {"decode_rows", plan->decode_rows},
          {"prefill_rows", plan->prefill_rows},
          {"kv_bytes_read", plan->kv_bytes_read},
          {"kv_bytes_read_unshared", plan->kv_bytes_read_unshared},
          {"reads", std::move(reads)},
          {"text", PlanText(*plan)}};
}

}  // namespace coppice::server
