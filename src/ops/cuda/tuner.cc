#include "ops/cuda/tuner.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "core/check.h"

namespace coppice::ops::cuda {
namespace {

using Kind = MeasuredAlgorithm::Kind;

// The numbers of rows that are measured; others run as the next larger one does. Kernels' tiles are powers of two and their halves.
// Up to 16 rows have a kernel of ours.
std::vector<int64_t> RowsToMeasure(int64_t max_rows) {
  constexpr int64_t kFewest = 32, kMost = 2048;
  std::vector<int64_t> rows;
  for (int64_t power = kFewest;; power *= 2) {
    for (const int64_t count : {power, power + power / 2}) {
      rows.push_back(std::min(count, max_rows));
      if (count >= std::min(max_rows, kMost)) return rows;
    }
  }
}

// Steps of one number of rows. The time of a product alone is not its time in a step, whose other kernels end and begin beside
// it, and clocks follow heat and power. So a step with one product's algorithm changed and the step without take turns.
class StepTuner {
 public:
  StepTuner(const TuneParts& parts, int64_t rows, const Ops::StepOfRows& step, Stream stream)
      : parts_(parts), rows_(rows), step_(step), stream_(stream) {}

  // Whether anything was measured.
  Result<bool> Run() {
    COPPICE_RETURN_IF_ERROR(step_(rows_));
    const TunableProducts products = *parts_.multiplied;
    const auto is_known = [&](const auto& product) {
      return parts_.algorithms->FindExact(AlgorithmKeyOf(product.first), product.first.rows) != nullptr;
    };
    if (std::ranges::all_of(products, is_known)) return false;
    COPPICE_ASSIGN_OR_RETURN(begun_, parts_.device->CreateTimedEvent());
    COPPICE_ASSIGN_OR_RETURN(ended_, parts_.device->CreateTimedEvent());
    for (const auto& [shape, ours_takes] : products) Use(shape, {});
    COPPICE_ASSIGN_OR_RETURN(fastest_, Captured());
    for (const auto& [shape, ours_takes] : products) COPPICE_RETURN_IF_ERROR(TuneProduct(shape, ours_takes));
    return true;
  }

 private:
  void Use(const ProductShape& shape, const MeasuredAlgorithm& algorithm) {
    parts_.algorithms->Set(AlgorithmKeyOf(shape), shape.rows, algorithm);
    parts_.library->Forget();
  }

  Status TuneProduct(const ProductShape& shape, bool ours_takes) {
    COPPICE_ASSIGN_OR_RETURN(std::vector<MeasuredAlgorithm> candidates, parts_.library->Candidates(shape));
    if (ours_takes) {
      candidates.push_back({.kind = Kind::kOurs});
    } else {
      candidates.erase(candidates.begin());  // what the heuristic names
    }
    MeasuredAlgorithm best;
    for (const MeasuredAlgorithm& candidate : candidates) {
      Use(shape, candidate);
      Result<std::unique_ptr<Graph>> graph = Captured();
      if (graph.status().code() == StatusCode::kInternal) continue;  // the library has an algorithm that it cannot run
      COPPICE_RETURN_IF_ERROR(graph.status());
      COPPICE_ASSIGN_OR_RETURN(const bool is_faster, IsFaster(**graph));
      if (!is_faster) continue;
      best = candidate;
      fastest_ = *std::move(graph);
    }
    Use(shape, best);
    return OkStatus();
  }

  // The step as the file has it now.
  Result<std::unique_ptr<Graph>> Captured() {
    COPPICE_RETURN_IF_ERROR(step_(rows_));  // so that its kernels are loaded
    return CaptureGraph(*parts_.device, stream_, [&] { return step_(rows_); });
  }

  // In six pairs of seven by half a percent: what is taken lasts, and times of one step differ by more from moment to moment.
  Result<bool> IsFaster(const Graph& graph) {
    constexpr size_t kPairs = 7, kMayDiffer = 1, kFirst = 2;
    constexpr double kClearlySlower = 1.02, kFaster = 0.995;
    COPPICE_RETURN_IF_ERROR(Seconds(graph).status());
    std::array<double, kPairs> ratios;
    for (size_t i = 0; i < kPairs; ++i) {
      COPPICE_ASSIGN_OR_RETURN(const double before, Seconds(*fastest_));
      COPPICE_ASSIGN_OR_RETURN(const double after, Seconds(graph));
      ratios[i] = after / before;
      if (i + 1 == kFirst && std::min(ratios[0], ratios[1]) > kClearlySlower) return false;
    }
    std::ranges::sort(ratios);
    return ratios[kPairs - 1 - kMayDiffer] < kFaster;
  }

  Result<double> Seconds(const Graph& graph) {
    COPPICE_RETURN_IF_ERROR(parts_.device->Record(*begun_, stream_));
    COPPICE_RETURN_IF_ERROR(parts_.device->Launch(graph, stream_));
    COPPICE_RETURN_IF_ERROR(parts_.device->Record(*ended_, stream_));
    COPPICE_RETURN_IF_ERROR(parts_.device->Synchronize(*ended_));
    return parts_.device->SecondsBetween(*begun_, *ended_);
  }

  const TuneParts& parts_;
  const int64_t rows_;
  const Ops::StepOfRows& step_;
  const Stream stream_;
  std::unique_ptr<Event> begun_, ended_;
  std::unique_ptr<Graph> fastest_;
};

}  // namespace

Status TuneProducts(const TuneParts& parts, int64_t max_rows, const Ops::StepOfRows& step, Stream stream) {
  COPPICE_RETURN_IF_ERROR(parts.algorithms->Save());  // whether it can be is known before anything is measured
  for (const int64_t rows : RowsToMeasure(max_rows)) {
    COPPICE_ASSIGN_OR_RETURN(const bool measured, StepTuner(parts, rows, step, stream).Run());
    if (measured) COPPICE_RETURN_IF_ERROR(parts.algorithms->Save());
  }
  return OkStatus();
}

}  // namespace coppice::ops::cuda
