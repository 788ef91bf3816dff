#include "server/tree_response.h"

#include <nlohmann/json.hpp>

namespace coppice::server {

using nlohmann::ordered_json;

ordered_json TreeResponse(const EngineMetrics& metrics, const ModelInfo& model) {
  ordered_json nodes = ordered_json::array();
  for (const CachedPrefix& node : metrics.prefixes) {
    nodes.push_back({{"id", node.id},
                     {"parent", node.parent},
                     {"begin", node.begin},
                     {"end", node.end},
                     {"hits", node.hits},
                     {"running", node.users},
                     {"pinned", node.pinned}});
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

}  // namespace coppice::server
