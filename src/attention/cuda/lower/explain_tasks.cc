// For people. Layer: attention/cuda.
#include "attention/cuda/lower/explain_tasks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "attention/plan_units.h"
#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

template <class... Args>
void Append(std::string& out, const char* format, Args... args) {
  std::array<char, 256> line;
  const int length = std::snprintf(line.data(), line.size(), format, args...);
  out.append(line.data(), std::min(static_cast<size_t>(std::max(length, 0)), line.size() - 1));
}

}  // namespace

std::string ExplainTasks(const PlanTranslator& translator) {
  std::string out;
  const PlanHeader& header = translator.header();
  const int32_t sms = translator.num_sms();
  Append(out, "runs on %d SMs: %d dense tasks on %d of them, %d stream tasks%s\n", sms, header.num_dense_tasks,
         header.num_dense_tasks > 0 ? std::min(header.dense_ctas, sms) : 0, header.num_stream_tasks,
         header.team != 0 ? ", each read by all stream warps of an SM" : "");
  // Dense ones first, many rows first, long ones first.
  std::map<std::tuple<bool, int32_t, int32_t, int32_t, int64_t, bool>, int32_t> ranges;
  const QueuedItems& queued = translator.queued();
  for (const QueuedItem& item : queued.items()) {
    const ItemPieces& pieces = queued.pieces(item.item);
    ++ranges[{!item.dense, -item.rows, -item.tokens, pieces.count, CeilDiv(item.rows, pieces.block_rows), pieces.masked}];
  }
  for (const auto& [range, count] : ranges) {
    const auto& [stream, rows, tokens, pieces, blocks, masked] = range;
    Append(out, "  %d %s of %d tokens for %d rows%s: %d along KV x %lld of rows, %s\n", count, count == 1 ? "range" : "ranges",
           -tokens, -rows, masked ? ", masked" : "", pieces, static_cast<long long>(blocks), stream ? "stream" : "dense");
  }
  Append(out, "  %d kv heads, %d members, %d contributions\n", translator.spec().num_kv_heads, header.num_members,
         header.num_contributions);
  return out;
}

std::string ExplainTasks(const Planner& planner) {
  COPPICE_CHECK(planner.machine().sm.num_sms > 0);
  PlanTranslator translator(planner.spec(), planner.capacity(), planner.sizes(), planner.machine().sm, planner.traits().workers,
                            planner.traits().kv_tile);
  std::vector<std::max_align_t> image(translator.layout().bytes / sizeof(std::max_align_t) + 1);
  translator.TranslatePlan(planner.View(), planner.forest(), reinterpret_cast<std::byte*>(image.data()));
  return ExplainTasks(translator);
}

}  // namespace coppice::attention::cuda
