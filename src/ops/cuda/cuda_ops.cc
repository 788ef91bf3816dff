// Ops on a CUDA device: shapes are turned into launches; which kernel multiplies is chosen here.
// Layer: ops/cuda.
#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_status.h"
#include "ops/create_cuda_ops.h"
#include "ops/cuda/algorithm_file.h"
#include "ops/cuda/cuda_weight.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/gated_product.h"
#include "ops/cuda/library_product.h"
#include "ops/cuda/norm.h"
#include "ops/cuda/rope.h"
#include "ops/cuda/rows.h"
#include "ops/cuda/tuner.h"

namespace coppice::ops {
namespace cuda {
namespace {

using coppice::cuda::DeviceGuard;

// Gate and up of this many rows lie in memory between the library's product and the activation; longer inputs go piece by piece.
constexpr int64_t kGateRows = 2048;

cudaStream_t Of(Stream stream) { return static_cast<cudaStream_t>(stream); }

// The largest power of two up to 16 that divides all addresses of all rows, in bytes.
uint32_t AlignmentOf(const ConstDeviceTensor& a, const ConstDeviceTensor& b) {
  uint64_t bits = 16;
  for (const ConstDeviceTensor* tensor : {&a, &b}) {
    bits |= reinterpret_cast<uintptr_t>(tensor->data) | static_cast<uint64_t>(tensor->stride) * SizeOf(tensor->dtype);
  }
  return uint32_t{1} << std::countr_zero(bits);
}

class CudaOps final : public Ops {
 public:
  CudaOps(Device* device, const Options& options)
      : device_(device),
        deterministic_(options.deterministic),
        overlaps_(device->compute_capability() >= 90),
        algorithms_(AlgorithmFile::Of(options.cache_folder, device->name(), LibraryProduct::Version())) {}

  Status Initialise() {
    COPPICE_ASSIGN_OR_RETURN(library_, LibraryProduct::Create(device_, deterministic_, &algorithms_));
    COPPICE_ASSIGN_OR_RETURN(few_rows_, FewRowsProduct::Create(device_));
    COPPICE_ASSIGN_OR_RETURN(gated_, GatedProduct::Create(device_));
    return OkStatus();
  }

  FormatChoice Accepts(std::span<const PartShape> parts, DType, int64_t, PartOrder) const override {
    return {.taken = std::ranges::none_of(parts,
                                          [](const PartShape& part) { return std::holds_alternative<BlocksFormat>(part.format); })};
  }

  std::string description() const override {
    const std::string library = "cuBLASLt " + std::to_string(LibraryProduct::Version());
    return deterministic_ ? library + ", one algorithm a weight"
                          : library + " + streamed weights up to " + std::to_string(few_rows_.max_rows()) + " rows";
  }

  Result<std::unique_ptr<Weight>> Pack(DType dtype, int64_t in_features, std::span<const LinearPart> parts,
                                       PartOrder order) override {
    return PackRows(dtype, in_features, parts, order, /*heads=*/nullptr);
  }
  Result<std::unique_ptr<Weight>> PackQkv(DType dtype, int64_t in_features, std::span<const LinearPart> parts,
                                          const QkvHeads& heads) override {
    return PackRows(dtype, in_features, parts, PartOrder::kConcatenated, deterministic_ ? nullptr : &heads);
  }

  Status Repack(const LinearPart& with, size_t part, Weight* weight) override {
    return static_cast<CudaWeight*>(weight)->Repack(with, part);
  }

  Status Tune(int64_t max_rows, const StepOfRows& step, Stream stream) override {
    if (deterministic_) return OkStatus();
    const DeviceGuard guard(device_->ordinal());
    TunableProducts multiplied;
    multiplied_ = &multiplied;
    const auto noted_step = [&](int64_t rows) {
      multiplied.clear();
      return step(rows);
    };
    const Status tuned =
        TuneProducts({.device = device_, .library = library_.get(), .algorithms = &algorithms_, .multiplied = &multiplied},
                     max_rows, noted_step, stream);
    multiplied_ = nullptr;
    return tuned;
  }

  Status Linear(ConstDeviceTensor x, const Weight& weight, DeviceTensor y, const Epilogue& epilogue, Stream stream) override {
    const auto& packed = static_cast<const CudaWeight&>(weight);
    COPPICE_DCHECK(x.dtype == packed.dtype() && x.cols == packed.in_features() && y.rows == x.rows);
    COPPICE_DCHECK(epilogue.kind != Epilogue::Kind::kAdd || y.dtype == DType::kF32);
    COPPICE_DCHECK((epilogue.kind == Epilogue::Kind::kGated) == packed.is_gated());
    if (x.rows == 0) return OkStatus();
    const DeviceGuard guard(device_->ordinal());
    if (!deterministic_ && few_rows_.Takes(x, WeightView::Of(packed)))
      return few_rows_.Run(x, WeightView::Of(packed), y, epilogue, /*norm=*/nullptr, std::exchange(after_own_, true), Of(stream));
    after_own_ = false;
    if (epilogue.kind == Epilogue::Kind::kGated) return LinearGated(x, packed, y, epilogue.activation, Of(stream));
    const bool adds = epilogue.kind == Epilogue::Kind::kAdd, activates = epilogue.kind == Epilogue::Kind::kActivate;
    COPPICE_RETURN_IF_ERROR(RunLibrary(x, packed, y, adds, Of(stream)));
    if (packed.bias() == nullptr && !activates) return OkStatus();
    return LaunchFinish({.bias = packed.bias(), .activation = activates ? &epilogue.activation : nullptr}, y, overlaps_,
                        Of(stream));
  }

  Status Embed(DeviceSpan<const int32_t> token_ids, const Weight& table, const EmbedArgs& args, DeviceTensor y,
               Stream stream) override {
    after_own_ = false;
    const DeviceGuard guard(device_->ordinal());
    return LaunchEmbed(token_ids, static_cast<const CudaWeight&>(table), args, y, overlaps_, Of(stream));
  }

  Status Fill(DeviceTensor x, float value, Stream stream) override {
    COPPICE_DCHECK(x.dtype == DType::kF32 && x.stride == x.cols);
    const DeviceGuard guard(device_->ordinal());
    return LaunchFill(static_cast<float*>(x.data), x.rows * x.cols, value, overlaps_, Of(stream));
  }

  Status Gather(ConstDeviceTensor x, DeviceSpan<const int32_t> rows, DeviceTensor y, Stream stream) override {
    COPPICE_DCHECK(x.dtype == y.dtype && x.cols == y.cols && rows.size == y.rows);
    const DeviceGuard guard(device_->ordinal());
    return LaunchGather(x, rows, y, overlaps_, Of(stream));
  }

  Status Norm(ConstDeviceTensor x, const NormArgs& args, DeviceTensor y, DeviceSpan<const int32_t> rows, Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    if (y.rows > FewRowsProduct::kMostRowsBesideNorm) after_own_ = false;
    NormParams params = ParamsOf(x, args, y);
    params.rows = rows.data;
    return LaunchNorm(params, y.dtype, y.rows, overlaps_, Of(stream));
  }

  Status NormLinear(ConstDeviceTensor x, const NormArgs& norm, DeviceTensor normed, const Weight& weight, DeviceTensor y,
                    const Epilogue& epilogue, Stream stream) override {
    const WeightView packed = WeightView::Of(static_cast<const CudaWeight&>(weight));
    if (deterministic_ || x.rows == 0 || !few_rows_.TakesNormed(x, norm, packed))
      return Ops::NormLinear(x, norm, normed, weight, y, epilogue, stream);
    const DeviceGuard guard(device_->ordinal());
    return few_rows_.Run(x, packed, y, epilogue, &norm, std::exchange(after_own_, true), Of(stream));
  }

  Status AddNorm(ConstDeviceTensor a, const NormArgs& args, DeviceTensor x, Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    NormParams params = ParamsOf(a, args, x);
    params.adds = true;
    return LaunchNorm(params, x.dtype, x.rows, overlaps_, Of(stream));
  }

  Status RopeAngles(DeviceSpan<const int32_t> positions, DeviceSpan<const float> inverse_frequencies, float scale, DeviceTensor cos,
                    DeviceTensor sin, Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    return LaunchRopeAngles(positions, inverse_frequencies, scale, cos, sin, overlaps_, Of(stream));
  }

  Status RopeAppend(const RopeAppendArgs& args, Stream stream) override {
    after_own_ = false;  // attention follows
    const DeviceGuard guard(device_->ordinal());
    return LaunchRopeAppend(args, /*in_groups=*/false, overlaps_, Of(stream));
  }

  Status QkvRope(ConstDeviceTensor x, const Weight& weight, const RopeAppendArgs& args, Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    const auto& packed = static_cast<const CudaWeight&>(weight);
    const WeightView few = WeightView::Of(packed);
    if (!deterministic_ && x.rows > 0 && few_rows_.Takes(x, few) && FewRowsProduct::TakesRope(few, args))
      return few_rows_.RunQkvRope(x, few, args, /*norm=*/nullptr, std::exchange(after_own_, false), Of(stream));
    COPPICE_RETURN_IF_ERROR(Linear(x, weight, args.qkv, {}, stream));
    after_own_ = false;
    return LaunchRopeAppend(args, packed.groups_pairs(), overlaps_, Of(stream));
  }

  Status NormQkvRope(ConstDeviceTensor x, const NormArgs& norm, DeviceTensor normed, const Weight& weight,
                     const RopeAppendArgs& args, Stream stream) override {
    const DeviceGuard guard(device_->ordinal());
    const auto& packed = static_cast<const CudaWeight&>(weight);
    const WeightView few = WeightView::Of(packed);
    const bool norms = !deterministic_ && x.rows > 0 && few_rows_.TakesNormed(x, norm, few);
    if (norms && FewRowsProduct::TakesRope(few, args))
      return few_rows_.RunQkvRope(x, few, args, &norm, std::exchange(after_own_, false), Of(stream));
    if (!norms) return Ops::NormQkvRope(x, norm, normed, weight, args, stream);
    COPPICE_RETURN_IF_ERROR(NormLinear(x, norm, normed, weight, args.qkv, {}, stream));
    after_own_ = false;
    return LaunchRopeAppend(args, packed.groups_pairs(), overlaps_, Of(stream));
  }

 private:
  Result<std::unique_ptr<Weight>> PackRows(DType dtype, int64_t in_features, std::span<const LinearPart> parts, PartOrder order,
                                           const QkvHeads* heads) {
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<CudaWeight> weight,
                             CudaWeight::Create(device_, dtype, in_features, parts, order, heads));
    const size_t gate_bytes = weight->is_gated() ? static_cast<size_t>(kGateRows * weight->rows()) * SizeOf(dtype) : 0;
    if (gate_bytes > gate_memory_.size()) {
      COPPICE_ASSIGN_OR_RETURN(gate_memory_, device_->Allocate(gate_bytes));
    }
    return std::unique_ptr<Weight>(std::move(weight));
  }

  static ProductShape ShapeOf(const ConstDeviceTensor& x, const CudaWeight& weight, const DeviceTensor& y, bool accumulates) {
    return {.dtype = weight.dtype(),
            .out_dtype = y.dtype,
            .accumulates = accumulates,
            .rows = x.rows,
            .n = weight.rows(),
            .k = weight.in_features(),
            .x_stride = x.stride,
            .w_stride = weight.stride(),
            .y_stride = y.stride,
            .alignment = AlignmentOf(x, y)};
  }

  Status RunLibrary(const ConstDeviceTensor& x, const CudaWeight& weight, const DeviceTensor& y, bool accumulates,
                    cudaStream_t stream) {
    const ProductShape shape = ShapeOf(x, weight, y, accumulates);
    if (multiplied_ != nullptr) multiplied_->emplace(shape, false);
    return library_->Run(shape, {.x = x.data, .w = weight.data(), .y = y.data}, stream);
  }

  // As Tune measured it, else as docs/matrix_products.md has it. The library's product would come back in the weights' dtype.
  bool UsesOurGated(const ConstDeviceTensor& x, const CudaWeight& weight, const DeviceTensor& y, Activation activation) {
    const WeightView view = WeightView::Of(weight);
    if (deterministic_ || !gated_.Takes(x, view, y, activation)) return false;
    const DeviceTensor gate_up = GateUp(x.rows, weight);
    const ProductShape shape = ShapeOf(x, weight, gate_up, /*accumulates=*/false);
    if (multiplied_ != nullptr) multiplied_->emplace(shape, true);
    const MeasuredAlgorithm* const measured = algorithms_.Find(AlgorithmKeyOf(shape), x.rows);
    if (measured == nullptr || measured->kind == MeasuredAlgorithm::Kind::kDefault) return gated_.IsFaster(x.rows, view);
    return measured->kind == MeasuredAlgorithm::Kind::kOurs;
  }

  DeviceTensor GateUp(int64_t rows, const CudaWeight& weight) const {
    return {gate_memory_.data(), weight.dtype(), rows, weight.rows(), weight.rows()};
  }

  Status LinearGated(const ConstDeviceTensor& x, const CudaWeight& weight, const DeviceTensor& y, Activation activation,
                     cudaStream_t stream) {
    if (UsesOurGated(x, weight, y, activation)) return gated_.Run(x, WeightView::Of(weight), y, activation, stream);
    for (int64_t begin = 0; begin < x.rows; begin += kGateRows) {
      const int64_t rows = std::min(kGateRows, x.rows - begin);
      const DeviceTensor gate_up = GateUp(rows, weight);
      COPPICE_RETURN_IF_ERROR(RunLibrary(x.Rows(begin, rows), weight, gate_up, /*accumulates=*/false, stream));
      COPPICE_RETURN_IF_ERROR(LaunchGate(gate_up, weight.bias(), activation, y.Rows(begin, rows), overlaps_, stream));
    }
    return OkStatus();
  }

  Device* device_;
  const bool deterministic_, overlaps_;
  AlgorithmFile algorithms_;
  std::unique_ptr<LibraryProduct> library_;
  FewRowsProduct few_rows_;
  GatedProduct gated_;
  DeviceMemory gate_memory_;               // [kGateRows, columns of the widest gate and up]
  TunableProducts* multiplied_ = nullptr;  // while Tune measures: what its step multiplies
  bool after_own_ = false;                 // the last large kernel was FewRowsProduct's, and the next one may begin beside it
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Ops>> CreateCudaOps(Device* device, const Ops::Options& options) {
  auto ops = std::make_unique<cuda::CudaOps>(device, options);
  COPPICE_RETURN_IF_ERROR(ops->Initialise());
  return std::unique_ptr<Ops>(std::move(ops));
}

}  // namespace coppice::ops
