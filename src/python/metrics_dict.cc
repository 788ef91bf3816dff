#include "python/metrics_dict.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "coppice/engine/step_plan.h"

namespace coppice::python {
namespace {

namespace nb = nanobind;

nb::dict ToDict(const StepMetrics& step) {
  nb::dict dict;
  dict["step"] = step.step;
  dict["weight_version"] = step.weight_version;
  dict["decode_rows"] = step.decode_rows;
  dict["prefill_rows"] = step.prefill_rows;
  dict["grouped_rows"] = step.grouped_rows;
  dict["kv_bytes_read"] = step.kv_bytes_read;
  dict["kv_bytes_read_unshared"] = step.kv_bytes_read_unshared;
  dict["ran_as_graph"] = step.ran_as_graph;
  dict["new_shape"] = step.new_shape;
  dict["kv_bytes_stored"] = step.kv_bytes_stored;
  dict["kv_bytes_stored_unshared"] = step.kv_bytes_stored_unshared;
  dict["kv_page_rounding_bytes"] = step.kv_page_rounding_bytes;
  dict["seconds"] = step.seconds;
  dict["plan_seconds"] = step.plan_seconds;
  dict["forward_seconds"] = step.forward_seconds;
  dict["sample_seconds"] = step.sample_seconds;
  dict["host_seconds"] = step.host_seconds;
  dict["detokenize_seconds"] = step.detokenize_seconds;
  return dict;
}

nb::dict ToDict(const CachedPrefix& prefix) {
  nb::dict dict;
  dict["id"] = prefix.id;
  dict["parent"] = prefix.parent;
  dict["begin"] = prefix.begin;
  dict["end"] = prefix.end;
  dict["hits"] = prefix.hits;
  dict["users"] = prefix.users;
  dict["pinned"] = prefix.pinned;
  return dict;
}

nb::dict ToDict(const PlannedRead& read) {
  nb::dict dict;
  dict["node"] = read.node;
  dict["parent"] = read.parent;
  dict["begin"] = read.begin;
  dict["end"] = read.end;
  dict["samples"] = read.samples;
  dict["together"] = read.together;
  dict["reason"] = ReasonText(read);
  dict["together_us"] = read.together_us;
  dict["apart_us"] = read.apart_us;
  return dict;
}

nb::object ToDict(const StepPlan* plan) {
  if (plan == nullptr) return nb::none();
  nb::dict dict;
  dict["step"] = plan->step;
  dict["decode_rows"] = plan->decode_rows;
  dict["prefill_rows"] = plan->prefill_rows;
  dict["kv_bytes_read"] = plan->kv_bytes_read;
  dict["kv_bytes_read_unshared"] = plan->kv_bytes_read_unshared;
  nb::list reads;
  for (const PlannedRead& read : plan->reads) reads.append(ToDict(read));
  dict["reads"] = reads;
  dict["text"] = PlanText(*plan);
  return dict;
}

nb::dict ToDict(const ChunkSpeed& speed) {
  nb::dict dict;
  dict["tokens"] = speed.tokens;
  dict["tokens_per_second"] = speed.tokens_per_second;
  return dict;
}

nb::dict ToDict(const SamplingParams& sampling) {
  nb::dict dict;
  dict["temperature"] = sampling.temperature;
  dict["top_p"] = sampling.top_p;
  dict["top_k"] = sampling.top_k;
  dict["min_p"] = sampling.min_p;
  dict["presence_penalty"] = sampling.presence_penalty;
  dict["frequency_penalty"] = sampling.frequency_penalty;
  dict["repetition_penalty"] = sampling.repetition_penalty;
  return dict;
}

}  // namespace

nb::dict ToDict(const EngineMetrics& metrics) {
  nb::dict dict;
  dict["steps"] = metrics.steps;
  dict["prompt_tokens"] = metrics.prompt_tokens;
  dict["prefilled_tokens"] = metrics.prefilled_tokens;
  dict["generated_tokens"] = metrics.generated_tokens;
  dict["cached_tokens"] = metrics.cached_tokens;
  dict["drafted_tokens"] = metrics.drafted_tokens;
  dict["accepted_draft_tokens"] = metrics.accepted_draft_tokens;
  dict["draft_trees_cut"] = metrics.draft_trees_cut;
  dict["sample_steps"] = metrics.sample_steps;
  dict["undrafted_steps"] = metrics.undrafted_steps;
  dict["draft_kv_bytes_read"] = metrics.draft_kv_bytes_read;
  dict["draft_seconds"] = metrics.draft_seconds;
  dict["bubbles"] = metrics.bubbles;
  dict["graph_steps"] = metrics.graph_steps;
  dict["device_idle_seconds"] = metrics.device_idle_seconds;
  dict["preemptions"] = metrics.preemptions;
  dict["waiting"] = metrics.waiting;
  dict["running"] = metrics.running;
  dict["requests_begun"] = metrics.requests_begun;
  dict["queue_seconds"] = metrics.queue_seconds;
  dict["pages_total"] = metrics.pages_total;
  dict["pages_used"] = metrics.pages_used;
  dict["peak_pages_used"] = metrics.peak_pages_used;
  dict["merged_pages"] = metrics.merged_pages;
  dict["kv_bytes_read"] = metrics.kv_bytes_read;
  dict["kv_bytes_read_unshared"] = metrics.kv_bytes_read_unshared;
  dict["kv_bytes_distinct"] = metrics.kv_bytes_distinct;
  dict["decode_kv_bytes_distinct"] = metrics.decode_kv_bytes_distinct;
  dict["decode_steps"] = metrics.decode_steps;
  dict["decode_graph_steps"] = metrics.decode_graph_steps;
  dict["decode_kv_bytes_read"] = metrics.decode_kv_bytes_read;
  dict["decode_kv_bytes_read_unshared"] = metrics.decode_kv_bytes_read_unshared;
  dict["kv_bytes_stored"] = metrics.kv_bytes_stored;
  dict["kv_bytes_stored_unshared"] = metrics.kv_bytes_stored_unshared;
  dict["kv_page_rounding_bytes"] = metrics.kv_page_rounding_bytes;
  dict["prefill_seconds"] = metrics.prefill_seconds;
  dict["decode_seconds"] = metrics.decode_seconds;
  dict["hybrid_steps"] = metrics.hybrid_steps;
  dict["hybrid_seconds"] = metrics.hybrid_seconds;
  dict["hybrid_predicted_seconds"] = metrics.hybrid_predicted_seconds;
  dict["hybrid_steps_over_target"] = metrics.hybrid_steps_over_target;
  dict["rows"] = metrics.rows;
  dict["grouped_rows"] = metrics.grouped_rows;
  dict["plan_seconds"] = metrics.plan_seconds;
  dict["forward_seconds"] = metrics.forward_seconds;
  dict["sample_seconds"] = metrics.sample_seconds;
  dict["host_seconds"] = metrics.host_seconds;
  dict["detokenize_seconds"] = metrics.detokenize_seconds;
  dict["tree_nodes"] = metrics.tree_nodes;
  dict["chunk"] = metrics.chunk;
  dict["last_step"] = ToDict(metrics.last_step);
  nb::list prefixes;
  for (const CachedPrefix& prefix : metrics.prefixes) prefixes.append(ToDict(prefix));
  dict["prefixes"] = prefixes;
  dict["plan"] = ToDict(metrics.plan.get());
  dict["fullest_plan"] = ToDict(metrics.fullest_plan.get());
  nb::list chunk_probe;
  for (const ChunkSpeed& speed : metrics.chunk_probe) chunk_probe.append(ToDict(speed));
  dict["chunk_probe"] = chunk_probe;
  return dict;
}

nb::dict ToDict(const ModelInfo& model) {
  nb::dict dict;
  dict["architecture"] = model.architecture;
  dict["fingerprint"] = model.fingerprint;
  dict["num_layers"] = model.num_layers;
  dict["hidden_size"] = model.hidden_size;
  dict["num_qo_heads"] = model.num_qo_heads;
  dict["num_kv_heads"] = model.num_kv_heads;
  dict["head_dim"] = model.head_dim;
  dict["vocab_size"] = model.vocab_size;
  dict["context_length"] = model.context_length;
  dict["bos_token_id"] = model.bos_token_id;
  dict["eos_token_ids"] = model.eos_token_ids;
  dict["kv_bytes_per_token"] = model.kv_bytes_per_token;
  dict["page_size"] = model.page_size;
  dict["kv_split"] = Name(model.kv_split);
  dict["kv_split_reason"] = model.kv_split_reason;
  dict["notes"] = model.notes;
  dict["kv_dtype"] = Name(model.kv_dtype);
  dict["sampling"] = ToDict(model.sampling);
  return dict;
}

}  // namespace coppice::python
