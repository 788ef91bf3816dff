#include "server/tree_response.h"

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

namespace coppice::server {

using nlohmann::ordered_json;

namespace {

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
  // The tree's names of nodes tell how many others there are: the key's own are counted anew, in the order of those names.
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

}  // namespace coppice::server
