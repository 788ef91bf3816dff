// Text for people, JSON for programs. Layer: attention/cuda.
#include "attention/cuda/lower/explain_tasks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <tuple>

#include "attention/cuda/lower/predicted_step.h"
#include "attention/plan_units.h"
#include "core/dismantle_json.h"

namespace coppice::attention::cuda {
namespace {

template <class... Args>
void Append(std::string& out, const char* format, Args... args) {
  std::array<char, 256> line;
  const int length = std::snprintf(line.data(), line.size(), format, args...);
  out.append(line.data(), std::min(static_cast<size_t>(std::max(length, 0)), line.size() - 1));
}

}  // namespace

void CountCuts(const LoweredView& lowered, PlanStats* stats) {
  const auto& [translator, plan, cost] = lowered;
  int64_t rows = 0;  // of states
  for (size_t set = 0; set < plan.merge_sets.size(); ++set) {
    const int32_t states = translator.SetStates(static_cast<int32_t>(set));
    if (states > 1) rows += int64_t{translator.queued().RowsOf(plan.merge_sets[set])} * states;
  }
  stats->num_items = static_cast<int32_t>(translator.num_items());
  stats->num_contributions = static_cast<int32_t>(translator.num_contributions());
  stats->state_bytes = 2 * cost.state_bytes_per_row() * rows;
  stats->predicted_ns = PredictStepNs(lowered);
}

std::string ExplainTasks(const LoweredView& lowered) {
  const PlanTranslator& translator = lowered.translator;
  std::string out;
  const PlanHeader& header = translator.header();
  const int32_t sms = translator.num_sms();
  const char* const how = header.cooperative != 0  ? ", cooperative: all stream warps of an SM read each"
                          : header.overlapped != 0 ? ", overlapped with the dense ones too"
                                                   : "";
  Append(out, "runs on %d SMs: %d dense tasks on %d of them, %d stream tasks%s\n", sms, header.num_dense_tasks,
         header.num_dense_tasks > 0 ? std::min(header.dense_ctas, sms) : 0, header.num_stream_tasks, how);
  // Dense ones first, many rows first, long ones first.
  std::map<std::tuple<bool, int32_t, int32_t, int32_t, int64_t, bool>, int32_t> ranges;
  const QueuedItems& queued = translator.queued();
  for (const QueuedItem& item : queued.items()) {
    const ItemPieces& pieces = queued.pieces(item.item);
    const int64_t blocks = item.dense ? item.blocks : CeilDiv(item.rows, pieces.block_rows);
    ++ranges[{!item.dense, -item.rows, -item.tokens, pieces.count, blocks, item.prompt >= 0}];
  }
  for (const auto& [range, count] : ranges) {
    const auto& [stream, rows, tokens, pieces, blocks, masked] = range;
    Append(out, "  %d %s of %d tokens for %d rows%s: %d along KV x %lld of rows, %s\n", count, count == 1 ? "range" : "ranges",
           -tokens, -rows, masked ? ", masked" : "", pieces, static_cast<long long>(blocks), stream ? "stream" : "dense");
  }
  Append(out, "  %d kv heads, %lld members, %lld contributions\n", translator.spec().num_kv_heads,
         static_cast<long long>(translator.num_members()), static_cast<long long>(translator.num_contributions()));
  Append(out, "  predicted as cut: %.2f us\n", PredictStepNs(lowered) / 1e3);
  return out;
}

std::string DumpTasks(const LoweredView& lowered) {
  using Json = nlohmann::ordered_json;
  const PlanTranslator& translator = lowered.translator;
  const PlanHeader& header = translator.header();
  DismantledJson<Json> dismantled(OrderedObject(10));
  Json& tasks = *dismantled;
  tasks["sms"] = translator.num_sms();
  tasks["dense_sms"] = header.num_dense_tasks > 0 ? std::min(header.dense_ctas, translator.num_sms()) : 0;
  tasks["dense_tasks"] = header.num_dense_tasks;
  tasks["stream_tasks"] = header.num_stream_tasks;
  tasks["cooperative"] = header.cooperative != 0;
  tasks["overlapped_tiles"] = header.overlapped != 0;
  tasks["members"] = translator.num_members();
  tasks["contributions"] = translator.num_contributions();
  tasks["predicted_ns"] = PredictStepNs(lowered);
  Json& ranges = tasks["ranges"];
  ranges = Json::array();
  for (const QueuedItem& item : translator.queued().items()) {
    const ItemPieces& pieces = translator.queued().pieces(item.item);
    const std::span<const int32_t> ends = translator.PieceEnds(item.item);
    Json& range = ranges.emplace_back(Json());
    range = OrderedObject(9);
    range["item"] = item.item;
    range["kind"] = item.dense ? "dense" : "stream";
    range["kv_begin"] = item.kv_begin;
    range["tokens"] = item.tokens;
    range["rows"] = item.rows;
    range["task_rows"] = pieces.block_rows;
    PutList(ends, &range["piece_ends"]);
    range["masked"] = item.prompt >= 0;
    range["read_once"] = pieces.read_once;
  }
  return tasks.dump();
}

}  // namespace coppice::attention::cuda
