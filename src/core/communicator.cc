#include "core/communicator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/await_change.h"
#include "core/check.h"
#include "core/math.h"

namespace coppice {
namespace {

// The weight of each state in their merge: out = sum of weight * out.
void WeighStates(std::span<const float> lse, std::span<float> weights) {
  const float most = *std::max_element(lse.begin(), lse.end());
  float sum = 0;
  for (size_t i = 0; i < lse.size(); ++i) {
    weights[i] = most == -INFINITY ? 0.0f : std::exp(lse[i] - most);
    sum += weights[i];
  }
  for (float& weight : weights) weight = sum > 0 ? weight / sum : 0.0f;
}

class SingleRank final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status AllReduce(DeviceTensor, Stream) override { return OkStatus(); }
  Status Gather(ConstDeviceTensor part, DeviceTensor all, Stream) override {
    COPPICE_CHECK(part.data == all.data);  // the part is all there is, where it is
    return OkStatus();
  }
  Status AllGather(ConstDeviceTensor part, DeviceTensor all, Stream stream) override { return Gather(part, all, stream); }
  Status MergeStates(const PartialStates& states, DeviceTensor merged, Stream) override {
    COPPICE_CHECK(states.out.data == merged.data);  // the part is all there is, where it is
    return OkStatus();
  }
  Status Broadcast(void*, int64_t, Stream) override { return OkStatus(); }
  Status Barrier() override { return OkStatus(); }
};

class ThreadGroup final : public CommunicatorGroup {
 public:
  explicit ThreadGroup(std::span<Executor* const> executors)
      : CommunicatorGroup(static_cast<int>(executors.size())),
        executors_(executors.begin(), executors.end()),
        shown_(executors.size()) {}
  std::unique_ptr<Communicator> MakeRank(int rank) override;

 private:
  friend class ThreadCommunicator;
  // Tensors that a rank shows the others while they are between two barriers.
  struct alignas(kCacheLine) Shown {
    const void* data = nullptr;
    int64_t stride = 0;
    ConstDeviceTensor lse;  // beside what is merged
  };

  const std::vector<Executor*> executors_;
  std::vector<Shown> shown_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(ThreadGroup* group, int rank) : group_(*group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  Status Barrier() override { return group_.Barrier(); }

  // Each rank adds up one run of elements and writes the sums to all ranks, so that no element is read while it is written.
  Status AllReduce(DeviceTensor x, Stream) override {
    COPPICE_DCHECK(x.dtype == DType::kF32 && x.stride == x.cols);
    COPPICE_RETURN_IF_ERROR(Show(x.data, x.stride));
    const int64_t elements = x.rows * x.cols, run = RoundUp(CeilDiv(elements, size()), kCacheLine / 4);
    const int64_t begin = std::min(rank_ * run, elements), end = std::min(begin + run, elements);
    executor().ParallelFor(CeilDiv(end - begin, kTaskElements), [&](int64_t task, int) {
      const int64_t first = begin + task * kTaskElements;
      AddUp(first, std::min(first + kTaskElements, end));
    });
    return group_.Barrier();
  }

  Status AllGather(ConstDeviceTensor part, DeviceTensor all, Stream stream) override { return Gather(part, all, stream); }
  Status Gather(ConstDeviceTensor part, DeviceTensor all, Stream) override {
    COPPICE_RETURN_IF_ERROR(Show(part.data, part.stride));
    if (all.data != nullptr) {
      const int64_t element = static_cast<int64_t>(SizeOf(all.dtype));
      executor().ParallelFor(all.rows, [&](int64_t row, int) {
        for (int from = 0; from < size(); ++from) {
          const int64_t column = from * part.cols, cols = std::min(part.cols, all.cols - column);
          if (cols <= 0) break;
          const ThreadGroup::Shown& shown = group_.shown_[from];
          std::memcpy(static_cast<std::byte*>(all.data) + (row * all.stride + column) * element,
                      static_cast<const std::byte*>(shown.data) + row * shown.stride * element, cols * element);
        }
      });
    }
    return group_.Barrier();
  }

  Status MergeStates(const PartialStates& states, DeviceTensor merged, Stream) override {
    COPPICE_DCHECK(states.ranks.count <= kMostMerged && states.out.dtype == merged.dtype && states.lse.dtype == DType::kF32);
    group_.shown_[rank_] = {.data = states.out.data, .stride = states.out.stride, .lse = states.lse};
    COPPICE_RETURN_IF_ERROR(group_.Barrier());
    executor().ParallelFor(merged.rows, [&](int64_t row, int) {
      switch (merged.dtype) {
        case DType::kF32: return MergeRow<float>(states, row, merged);
        case DType::kBF16: return MergeRow<BF16>(states, row, merged);
        case DType::kF16: return MergeRow<F16>(states, row, merged);
      }
    });
    return group_.Barrier();
  }

  Status Broadcast(void* data, int64_t bytes, Stream) override {
    COPPICE_RETURN_IF_ERROR(Show(data, bytes));
    if (rank_ != 0) std::memcpy(data, group_.shown_[0].data, bytes);
    return group_.Barrier();
  }

 private:
  static constexpr int kMostMerged = 64;
  static constexpr int64_t kTaskElements = 1 << 14;  // 64 KB: shorter tasks cost more to hand out than they save

  Executor& executor() { return *group_.executors_[rank_]; }

  Status Show(const void* data, int64_t stride) {
    group_.shown_[rank_] = {.data = data, .stride = stride};
    return group_.Barrier();
  }

  // Of one row, this rank's heads; Element: float, BF16 or F16.
  template <class Element>
  void MergeRow(const PartialStates& states, int64_t row, const DeviceTensor& merged) {
    const auto value = [](Element x) {
      if constexpr (std::is_same_v<Element, float>)
        return x;
      else
        return x.ToFloat();
    };
    const auto [first, count] = states.ranks;
    const int64_t heads = states.lse.cols / count, head_dim = merged.cols / heads, own = rank_ - first;
    std::array<float, kMostMerged> lse, weights;
    for (int64_t head = 0; head < heads; ++head) {
      for (int i = 0; i < count; ++i) {
        const ConstDeviceTensor& from = group_.shown_[first + i].lse;
        lse[i] = static_cast<const float*>(from.data)[row * from.stride + own * heads + head];
      }
      WeighStates(std::span(lse).first(count), std::span(weights).first(count));
      Element* const to = static_cast<Element*>(merged.data) + row * merged.stride + head * head_dim;
      for (int64_t d = 0; d < head_dim; ++d) {
        float sum = 0;
        for (int i = 0; i < count; ++i) {
          if (weights[i] == 0) continue;  // `out` may hold anything
          const ThreadGroup::Shown& from = group_.shown_[first + i];
          sum += weights[i] *
                 value(static_cast<const Element*>(from.data)[row * from.stride + own * merged.cols + head * head_dim + d]);
        }
        if constexpr (std::is_same_v<Element, float>)
          to[d] = sum;
        else
          to[d] = Element::FromFloat(sum);
      }
    }
  }

  void AddUp(int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 1024;
    float sum[kBlock];
    const auto at = [&](int rank, int64_t i) { return static_cast<float*>(const_cast<void*>(group_.shown_[rank].data)) + i; };
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t count = std::min(kBlock, end - first);
      std::copy_n(at(0, first), count, sum);
      for (int rank = 1; rank < size(); ++rank) {
        const float* const addend = at(rank, first);
        for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
      }
      for (int rank = 0; rank < size(); ++rank) std::copy_n(sum, count, at(rank, first));
    }
  }

  ThreadGroup& group_;
  const int rank_;
};

std::unique_ptr<Communicator> ThreadGroup::MakeRank(int rank) {
  COPPICE_CHECK(rank >= 0 && rank < size());
  return std::make_unique<ThreadCommunicator>(this, rank);
}

}  // namespace

std::unique_ptr<Communicator> MakeSingleRank() { return std::make_unique<SingleRank>(); }

std::unique_ptr<CommunicatorGroup> MakeThreadGroup(std::span<Executor* const> executors) {
  return std::make_unique<ThreadGroup>(executors);
}

void CommunicatorGroup::Abort(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return;
    status_ = status;
    aborted_.store(true, std::memory_order_release);
  }
  barriers_.fetch_add(1, std::memory_order_release);
  barriers_.notify_all();
}

void CommunicatorGroup::Reset() {
  OnReset();
  const std::lock_guard lock(mutex_);
  status_ = OkStatus();
  arrived_.store(0, std::memory_order_relaxed);
  aborted_.store(false, std::memory_order_release);
}

Status CommunicatorGroup::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

Status CommunicatorGroup::Barrier() {
  // Read before the arrival, which may let the others go on; an Abort that came before this read is seen below.
  const uint32_t seen = barriers_.load(std::memory_order_acquire);
  if (aborted_.load(std::memory_order_acquire)) return status();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived_.store(0, std::memory_order_relaxed);
    barriers_.fetch_add(1, std::memory_order_release);
    barriers_.notify_all();
  } else {
    AwaitChange(barriers_, seen);
  }
  return aborted_.load(std::memory_order_acquire) ? status() : OkStatus();
}

}  // namespace coppice
