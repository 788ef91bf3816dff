#include "attention/cuda/kv_ops.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "attention/argument_checks.h"
#include "attention/cuda/device_memory.h"
#include "core/check.h"

namespace coppice::attention::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxStates = 16;  // folded by one launch

// A span that a kernel can read: the caller's own if the device can, else a copy that lives until the stream has passed it.
template <class T>
class DeviceSpan {
 public:
  // FAILED_PRECONDITION: the stream is being captured, and a replayed graph would read the host's memory as it is then.
  static Result<DeviceSpan> Make(std::span<const T> from, cudaStream_t stream) {
    DeviceSpan span;
    span.stream_ = stream;
    cudaPointerAttributes attributes{};
    if (from.empty()) return Result<DeviceSpan>(std::move(span));
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaPointerGetAttributes(&attributes, from.data()), "cudaPointerGetAttributes"));
    if (attributes.devicePointer != nullptr) {
      span.data_ = static_cast<const T*>(attributes.devicePointer);
      return Result<DeviceSpan>(std::move(span));
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
    if (capture != cudaStreamCaptureStatusNone) {
      return FailedPrecondition(
          "the stream is being captured, and a list of the call lies in host memory, which a replayed graph does not read; pass "
          "one in "
          "device memory, or make the call outside the capture");
    }
    span.on_host_ = true;
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaMallocAsync(&span.owned_, from.size_bytes(), stream), "cudaMallocAsync"));
    span.data_ = static_cast<const T*>(span.owned_);
    COPPICE_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(span.owned_, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream),
                                       "cudaMemcpyAsync"));
    return Result<DeviceSpan>(std::move(span));
  }
  DeviceSpan(DeviceSpan&& other) noexcept
      : data_(other.data_), owned_(std::exchange(other.owned_, nullptr)), stream_(other.stream_), on_host_(other.on_host_) {}
  DeviceSpan& operator=(DeviceSpan&&) = delete;
  ~DeviceSpan() {
    if (owned_ != nullptr) cudaFreeAsync(owned_, stream_);
  }
  const T* data() const { return data_; }
  bool on_host() const { return on_host_; }

 private:
  DeviceSpan() = default;
  const T* data_ = nullptr;
  void* owned_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool on_host_ = false;
};

struct PoolParams {
  uint16_t *k, *v;
  int64_t page_stride, head_stride, slot_stride;
  int32_t page_size, heads, head_dim, pieces;  // pieces of 16 bytes a head row
};

PoolParams MakePool(const AttentionSpec& spec, const KvLayerView& kv) {
  return {static_cast<uint16_t*>(kv.k),
          static_cast<uint16_t*>(kv.v),
          kv.page_stride,
          kv.head_stride,
          kv.slot_stride,
          kv.page_size,
          spec.num_kv_heads,
          spec.head_dim,
          spec.head_dim / 8};
}

__device__ void Copy16(uint16_t* to, const uint16_t* from) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}

__global__ void AppendKernel(PoolParams pool, const uint16_t* k, const uint16_t* v, int64_t row_stride, const int64_t* slots,
                             int64_t count) {
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t per_token = int64_t{pool.heads} * pool.pieces;
  if (index >= count * per_token) return;
  const int64_t token = index / per_token;
  const int head = static_cast<int>(index % per_token / pool.pieces), piece = static_cast<int>(index % pool.pieces);
  const int64_t slot = slots[token];
  if (slot < 0) return;
  const int64_t to =
      slot / pool.page_size * pool.page_stride + head * pool.head_stride + slot % pool.page_size * pool.slot_stride + piece * 8;
  const int64_t from = token * row_stride + int64_t{head} * pool.head_dim + piece * 8;
  Copy16(pool.k + to, k + from);
  Copy16(pool.v + to, v + from);
}

__global__ void CopyPagesKernel(PoolParams pool, const PageCopy* copies) {
  const PageCopy copy = copies[blockIdx.x];
  const int rows = pool.heads * pool.page_size;
  for (int i = threadIdx.x; i < rows * pool.pieces; i += blockDim.x) {
    const int row = i / pool.pieces, piece = i % pool.pieces;
    const int64_t at = row / pool.page_size * pool.head_stride + row % pool.page_size * pool.slot_stride + piece * 8;
    Copy16(pool.k + copy.to * pool.page_stride + at, pool.k + copy.from * pool.page_stride + at);
    Copy16(pool.v + copy.to * pool.page_stride + at, pool.v + copy.from * pool.page_stride + at);
  }
}

// One CTA a kv head. Each thread has pieces of its own and makes all moves of them in order, so none waits for another.
__global__ void MoveSlotsKernel(PoolParams pool, const SlotMove* moves, int64_t count) {
  const auto place = [&](int64_t slot) {
    return slot / pool.page_size * pool.page_stride + blockIdx.x * pool.head_stride + slot % pool.page_size * pool.slot_stride;
  };
  for (int piece = threadIdx.x; piece < pool.pieces; piece += blockDim.x) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = place(moves[i].from) + piece * 8, to = place(moves[i].to) + piece * 8;
      Copy16(pool.k + to, pool.k + from);
      Copy16(pool.v + to, pool.v + from);
    }
  }
}

struct MergeParams {
  StateView into, from[kMaxStates];
  int count;
};

// One warp a (row, head): Cascade Inference, eq. for the merge of attention states.
template <class T>
__global__ void MergeKernel(MergeParams p, int64_t num, int num_heads, int head_dim, const uint8_t* mask) {
  const int64_t index = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (index >= num || (mask != nullptr && mask[index / num_heads] == 0)) return;
  float m = p.into.lse[index];
  for (int i = 0; i < p.count; ++i) m = fmaxf(m, p.from[i].lse[index]);
  const auto weight = [&](const StateView& state) { return m == -INFINITY ? 0.0f : expf(state.lse[index] - m); };
  float sum = weight(p.into);
  for (int i = 0; i < p.count; ++i) sum += weight(p.from[i]);
  for (int e = lane; e < head_dim; e += 32) {
    const auto value = [&](const StateView& state) {
      return static_cast<float>(static_cast<const T*>(state.out)[index * head_dim + e]);
    };
    const float own = weight(p.into);
    float acc = own > 0.0f ? own * value(p.into) : 0.0f;
    for (int i = 0; i < p.count; ++i) {
      const float w = weight(p.from[i]);
      if (w > 0.0f) acc += w * value(p.from[i]);
    }
    static_cast<T*>(p.into.out)[index * head_dim + e] = static_cast<T>(sum > 0.0f ? acc / sum : 0.0f);
  }
  __syncwarp();  // all lanes have read the old lse
  if (lane == 0) p.into.lse[index] = sum > 0.0f ? m + logf(sum) : -INFINITY;
}

// CTAs for `threads` threads, or for that many CTAs with `per_cta` 1: a grid has at most 2^31 - 1 of them along x (CUDA C++
// Programming Guide, "Compute Capabilities").
Result<unsigned> Grid(const char* what, int64_t threads, int64_t per_cta) {
  const int64_t ctas = threads / per_cta + (threads % per_cta != 0 ? 1 : 0);
  if (ctas <= INT32_MAX) return static_cast<unsigned>(ctas);
  return InvalidArgument(std::string(what) + ": the call takes " + std::to_string(ctas) + " CTAs, expected at most " +
                         std::to_string(INT32_MAX) + "; split it");
}

Status Launched(const char* what) { return CudaStatus(cudaGetLastError(), what); }

bool IsAligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

Status CheckPool(const AttentionSpec& spec, const KvLayerView& kv) {
  COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, kv));
  if (SizeOf(kv.dtype) != 2)
    return Unimplemented("KV layer: dtype " + std::string(Name(kv.dtype)) + "; CUDA keeps KV in bf16 or f16");
  if (kv.page_stride % 8 != 0 || kv.head_stride % 8 != 0 || kv.slot_stride % 8 != 0 || !IsAligned(kv.k) || !IsAligned(kv.v)) {
    return Unimplemented(
        "KV layer: a stride is no multiple of 8 elements, or k or v not aligned to 16 bytes, of which the CUDA "
        "backend copies at a time");
  }
  return OkStatus();
}

}  // namespace

Status AppendKv(const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args, cudaStream_t stream) {
  COPPICE_RETURN_IF_ERROR(CheckPool(spec, kv));
  const int64_t count = std::ssize(args.slot_mapping);
  if (count == 0) return OkStatus();
  COPPICE_RETURN_IF_ERROR(CheckAppend(spec, args));
  if (args.row_stride % 8 != 0 || !IsAligned(args.k) || !IsAligned(args.v)) {
    return InvalidArgument("AppendKv: row_stride = " + std::to_string(args.row_stride) +
                           " elements; the CUDA backend expects a multiple of 8, and k and v aligned to 16 bytes");
  }
  const int64_t threads = count * spec.num_kv_heads * (spec.head_dim / 8);
  COPPICE_ASSIGN_OR_RETURN(const unsigned grid, Grid("AppendKv", threads, kThreads));
  COPPICE_ASSIGN_OR_RETURN(const DeviceSpan<int64_t> slots, DeviceSpan<int64_t>::Make(args.slot_mapping, stream));
  if (slots.on_host()) COPPICE_RETURN_IF_ERROR(CheckSlots(kv, args.slot_mapping));
  AppendKernel<<<grid, kThreads, 0, stream>>>(MakePool(spec, kv), static_cast<const uint16_t*>(args.k),
                                              static_cast<const uint16_t*>(args.v), args.row_stride, slots.data(), count);
  return Launched("AppendKv");
}

Status CopyPages(const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies, cudaStream_t stream) {
  COPPICE_RETURN_IF_ERROR(CheckPool(spec, kv));
  if (copies.empty()) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(const unsigned grid, Grid("CopyPages", std::ssize(copies), 1));
  COPPICE_ASSIGN_OR_RETURN(const DeviceSpan<PageCopy> list, DeviceSpan<PageCopy>::Make(copies, stream));
  if (list.on_host()) COPPICE_RETURN_IF_ERROR(CheckPageCopies(kv, copies));
  CopyPagesKernel<<<grid, kThreads, 0, stream>>>(MakePool(spec, kv), list.data());
  return Launched("CopyPages");
}

Status MoveSlots(const AttentionSpec& spec, const KvLayerView& kv, std::span<const SlotMove> moves, cudaStream_t stream) {
  COPPICE_RETURN_IF_ERROR(CheckPool(spec, kv));
  if (moves.empty()) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(const DeviceSpan<SlotMove> list, DeviceSpan<SlotMove>::Make(moves, stream));
  if (list.on_host()) COPPICE_RETURN_IF_ERROR(CheckSlotMoves(kv, moves));
  constexpr int kPieces = 32;  // head_dim 256 in pieces of 16 bytes
  MoveSlotsKernel<<<spec.num_kv_heads, kPieces, 0, stream>>>(MakePool(spec, kv), list.data(), std::ssize(moves));
  return Launched("MoveSlots");
}

Status MergeStates(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                   DType dtype, std::span<const uint8_t> mask, cudaStream_t stream) {
  COPPICE_RETURN_IF_ERROR(CheckMerge(into, from, num_rows, num_heads, head_dim, mask));
  if (num_rows == 0 || from.empty()) return OkStatus();
  const int64_t num = num_rows * num_heads;
  COPPICE_ASSIGN_OR_RETURN(const unsigned grid, Grid("MergeStates", num, kThreads / 32));
  COPPICE_ASSIGN_OR_RETURN(const DeviceSpan<uint8_t> rows, DeviceSpan<uint8_t>::Make(mask, stream));
  for (size_t begin = 0; begin < from.size(); begin += kMaxStates) {
    MergeParams params{.into = into, .count = static_cast<int>(std::min<size_t>(kMaxStates, from.size() - begin))};
    std::copy_n(from.begin() + begin, params.count, params.from);
    switch (dtype) {
      case DType::kF32: MergeKernel<float><<<grid, kThreads, 0, stream>>>(params, num, num_heads, head_dim, rows.data()); break;
      case DType::kBF16:
        MergeKernel<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(params, num, num_heads, head_dim, rows.data());
        break;
      case DType::kF16: MergeKernel<__half><<<grid, kThreads, 0, stream>>>(params, num, num_heads, head_dim, rows.data()); break;
    }
    COPPICE_RETURN_IF_ERROR(Launched("MergeStates"));
  }
  return OkStatus();
}

}  // namespace coppice::attention::cuda
