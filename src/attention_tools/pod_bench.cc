#include "attention_tools/pod_bench.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "attention/kind_order.h"
#include "attention/plan.h"
#include "core/check.h"

namespace coppice::attention {
namespace {

constexpr std::array kGpuWays = {PodWay::kSerial,      PodWay::kTwoLaunches, PodWay::kTwoStreams,
                                 PodWay::kPrefillTile, PodWay::kPartition,   PodWay::kOverlappedTiles,
                                 PodWay::kOverlapped,  PodWay::kChunkAlone,  PodWay::kDecodeAlone};
constexpr std::array kCpuWays = {PodWay::kTwoLaunches, PodWay::kOverlapped, PodWay::kChunkAlone, PodWay::kDecodeAlone};
constexpr std::array kDecodeWays = {PodWay::kSerial, PodWay::kPrefillTile, PodWay::kDecodeAlone};
constexpr double kCounts = 0.2;  // POD section 5.1: of the serial time
constexpr double kNever = 1e12;

// The device's model with rates that leave the lowering one choice.
MachineModel MachineFor(PodWay way, const AttentionSpec& spec, const BackendTraits& traits, MachineModel machine) {
  switch (way) {
    case PodWay::kSerial: return MachineFor(KindOrder::kSerial, spec, traits, std::move(machine));
    case PodWay::kOverlappedTiles: return MachineFor(KindOrder::kOverlapped, spec, traits, std::move(machine));
    case PodWay::kPrefillTile: machine.sm.all_dense = true; [[fallthrough]];
    case PodWay::kPartition: machine.sm.overlapped_step_ns = kNever; return machine;
    default: return machine;
  }
}

Result<std::span<const PodWay>> WaysOf(bool gpu, const PodBatch& batch) {
  if (batch.chunk > 0) return gpu ? std::span<const PodWay>(kGpuWays) : std::span<const PodWay>(kCpuWays);
  if (!gpu) return Unimplemented(batch.set + " has requests alone, which a CPU computes in one way; run it with a GPU");
  return std::span<const PodWay>(kDecodeWays);
}

// A forest's plan, uploaded.
struct Launch {
  OwnedForest forest;
  std::unique_ptr<Planner> planner;
  std::unique_ptr<PlanExecutor> executor;
};

}  // namespace

std::string_view Name(PodWay way) {
  switch (way) {
    case PodWay::kSerial: return "serial";
    case PodWay::kTwoLaunches: return "two launches";
    case PodWay::kTwoStreams: return "two streams";
    case PodWay::kPrefillTile: return "prefill tile";
    case PodWay::kPartition: return "SM partition";
    case PodWay::kOverlappedTiles: return "overlapped tiles";
    case PodWay::kOverlapped: return "overlapped";
    case PodWay::kChunkAlone: return "chunk alone";
    case PodWay::kDecodeAlone: return "decode alone";
  }
  return "?";
}

bool PodResult::Has(PodWay way) const {
  return std::ranges::any_of(rows, [&](const PodRow& row) { return row.way == way; });
}
const PodRow& PodResult::Of(PodWay way) const {
  const auto row = std::ranges::find(rows, way, &PodRow::way);
  COPPICE_CHECK(row != rows.end());
  return *row;
}
double PodResult::OracleSeconds() const {
  const double decode = Seconds(PodWay::kDecodeAlone);
  return Has(PodWay::kChunkAlone) ? std::max(Seconds(PodWay::kChunkAlone), decode) : decode;
}
bool PodResult::BothCount() const {
  return Has(PodWay::kChunkAlone) &&
         std::min(Seconds(PodWay::kChunkAlone), Seconds(PodWay::kDecodeAlone)) >= kCounts * rows.front().timed.Median();
}

Status PodBench::Reserve(std::span<const PodBatch> batches) {
  int64_t kv_bytes = 0, row_bytes = 0;
  for (const PodBatch& batch : batches) {
    const AttentionSpec spec = batch.Spec();
    const KvPoolShape pool{.num_pages = PodPages(batch, options_.page_size),
                           .page_size = options_.page_size,
                           .num_kv_heads = spec.num_kv_heads,
                           .head_dim = spec.head_dim};
    kv_bytes = std::max(kv_bytes, static_cast<int64_t>(pool.bytes()));
    const int64_t rows = int64_t{batch.chunk} + batch.requests;
    row_bytes = std::max(row_bytes, rows * spec.num_qo_heads * spec.head_dim * static_cast<int64_t>(SizeOf(spec.q_dtype)));
  }
  if (kv_bytes > kv_bytes_) {
    kv_.reset();
    COPPICE_ASSIGN_OR_RETURN(kv_, RandomBenchMemory(device_, static_cast<size_t>(kv_bytes), DType::kBF16, /*seed=*/0));
    kv_bytes_ = kv_bytes;
  }
  if (row_bytes > row_bytes_) {
    COPPICE_ASSIGN_OR_RETURN(q_, RandomBenchMemory(device_, static_cast<size_t>(row_bytes), DType::kBF16, /*seed=*/99));
    COPPICE_ASSIGN_OR_RETURN(out_, device_.Allocate(static_cast<size_t>(row_bytes)));
    row_bytes_ = row_bytes;
  }
  return OkStatus();
}

Result<PodResult> PodBench::Run(const PodBatch& batch) {
  COPPICE_RETURN_IF_ERROR(Reserve(std::span(&batch, 1)));
  const AttentionSpec spec = batch.Spec();
  Backend& backend = device_.backend();
  const bool gpu = backend.device() == DeviceKind::kCuda;
  const KvPoolShape pool{.num_pages = PodPages(batch, options_.page_size),
                         .page_size = options_.page_size,
                         .num_kv_heads = spec.num_kv_heads,
                         .head_dim = spec.head_dim};
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<BoundKv> kv, backend.BindKv(spec, pool.View(kv_->data())));

  const auto prepare = [&](PodPart part, PodWay way) -> Result<std::unique_ptr<Launch>> {
    auto launch = std::make_unique<Launch>();
    launch->forest = PodForest(batch, part, options_.page_size);
    COPPICE_ASSIGN_OR_RETURN(const PlanCapacity capacity, ResolveCapacity(spec, launch->forest.Capacity()));
    COPPICE_ASSIGN_OR_RETURN(const BackendTraits traits, backend.Traits(spec, capacity));
    const MachineModel machine = MachineFor(way, spec, traits, backend.machine());
    COPPICE_ASSIGN_OR_RETURN(const PlanSizes sizes, backend.Sizes(spec, capacity));
    COPPICE_ASSIGN_OR_RETURN(launch->planner, Planner::Create(spec, capacity, {}, traits, machine));
    COPPICE_ASSIGN_OR_RETURN(launch->executor, backend.MakeExecutor(spec, capacity, sizes, machine));
    COPPICE_RETURN_IF_ERROR(launch->planner->Update(launch->forest.Forest()));
    COPPICE_RETURN_IF_ERROR(launch->executor->Upload(launch->planner->View(), launch->forest.Forest(), nullptr));
    return Result<std::unique_ptr<Launch>>(std::move(launch));
  };
  // The plans of each way: one, or the chunk's and the requests'.
  std::vector<std::vector<std::unique_ptr<Launch>>> launches;
  COPPICE_ASSIGN_OR_RETURN(const std::span<const PodWay> ways, WaysOf(gpu, batch));
  for (const PodWay way : ways) {
    std::vector<PodPart> parts = {PodPart::kBoth};
    if (way == PodWay::kTwoLaunches || way == PodWay::kTwoStreams) parts = {PodPart::kChunk, PodPart::kDecode};
    if (way == PodWay::kChunkAlone) parts = {PodPart::kChunk};
    if (way == PodWay::kDecodeAlone) parts = {PodPart::kDecode};
    auto& of_way = launches.emplace_back();
    for (const PodPart part : parts) {
      COPPICE_ASSIGN_OR_RETURN(of_way.emplace_back(), prepare(part, way));
    }
  }

  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim, row_bytes = row * static_cast<int64_t>(SizeOf(spec.q_dtype));
  const auto run = [&](const Launch& launch, bool decode_rows, Stream stream) {
    const int64_t skipped = decode_rows ? batch.chunk * row_bytes : 0;
    const RunArgs args = {.q = static_cast<const std::byte*>(q_->data()) + skipped,
                          .q_row_stride = row,
                          .out = static_cast<std::byte*>(out_->data()) + skipped,
                          .out_row_stride = row,
                          .lse = nullptr};
    return launch.executor->Run(*kv, args, stream);
  };
  const auto take_turn = [&](size_t i) -> Result<double> {
    const auto& of_way = launches[i];
    const auto first = [&](Stream stream) { return run(*of_way[0], ways[i] == PodWay::kDecodeAlone, stream); };
    if (of_way.size() == 1) return device_.Time(first);
    const auto second = [&](Stream stream) { return run(*of_way[1], true, stream); };
    if (ways[i] == PodWay::kTwoStreams) return device_.TimeOnTwoStreams(first, second);
    return device_.Time([&](Stream stream) -> Status {
      COPPICE_RETURN_IF_ERROR(first(stream));
      return second(stream);
    });
  };
  for (size_t i = 0; i < ways.size(); ++i) COPPICE_RETURN_IF_ERROR(take_turn(i).status());  // warm
  COPPICE_ASSIGN_OR_RETURN(std::vector<InterleavedTimes> timed, TimeInTurns(ways.size(), options_.rounds, take_turn));

  PodResult result{.batch = batch};
  for (size_t i = 0; i < ways.size(); ++i) result.rows.push_back({ways[i], std::move(timed[i])});
  const auto bound = [&](double bytes, double flops) {
    return std::max(bytes / options_.read_bytes_per_s, flops / options_.product_flops_per_s);
  };
  result.sum_bound_s = bound(batch.ChunkBytes(), batch.ChunkFlops()) + bound(batch.DecodeBytes(), batch.DecodeFlops());
  result.max_bound_s = bound(batch.ChunkBytes() + batch.DecodeBytes(), batch.ChunkFlops() + batch.DecodeFlops());
  return result;
}

}  // namespace coppice::attention
