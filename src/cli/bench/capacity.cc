#include "cli/bench/capacity.h"

#include <cmath>

#include "core/check.h"

namespace coppice::cli {

Result<Capacity> FindCapacity(double start, double precision, const std::function<Result<RateVerdict>(double rate)>& evaluate) {
  constexpr int kMostDoublings = 20, kMostHalvings = 10;  // a run at a low rate takes long
  COPPICE_CHECK(start > 0 && precision > 0);
  Capacity capacity;
  const auto verdict_of = [&](double rate) {
    capacity.rates.push_back(rate);
    return evaluate(rate);
  };
  double rate = start;
  for (int i = 0; i <= (capacity.beyond > 0 ? kMostHalvings : kMostDoublings); ++i) {
    COPPICE_ASSIGN_OR_RETURN(const RateVerdict verdict, verdict_of(rate));
    if (verdict == RateVerdict::kBeyond) {
      capacity.beyond = rate;
      if (capacity.rate > 0) break;
      rate /= 2;
    } else {
      capacity.rate = rate;
      if (capacity.beyond > 0 || verdict == RateVerdict::kSaturated) break;
      rate *= 2;
    }
  }
  while (capacity.rate > 0 && capacity.beyond > (1 + precision) * capacity.rate) {
    const double middle = std::sqrt(capacity.rate * capacity.beyond);
    COPPICE_ASSIGN_OR_RETURN(const RateVerdict verdict, verdict_of(middle));
    (verdict == RateVerdict::kBeyond ? capacity.beyond : capacity.rate) = middle;
  }
  return capacity;
}

}  // namespace coppice::cli
