// Ops on the CPU: work is cut into row blocks and panel groups and handed out by the device's executor.
#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/cache_line.h"
#include "core/check.h"
#include "core/math.h"
#include "ops/cpu/onednn_tiles.h"
#include "ops/cpu/packed_weight.h"

namespace coppice::ops {
namespace {

constexpr int64_t kBlockRows = OneDnnTiles::kMaxRows;
// Element-wise work is cut into tasks of about this many elements: some microseconds, ten times the cost of handing one out.
constexpr int64_t kElementsPerTask = 16384;

// The first element of a row.
template <class Byte>
auto Row(const BasicDeviceTensor<Byte>& tensor, int64_t row) {
  using Bytes = std::conditional_t<std::is_const_v<Byte>, const std::byte, std::byte>;
  return static_cast<Bytes*>(tensor.data) + row * tensor.stride * static_cast<int64_t>(SizeOf(tensor.dtype));
}

template <class Format>
bool AreAll(std::span<const PartShape> parts) {
  return std::ranges::all_of(parts, [](const PartShape& part) { return std::holds_alternative<Format>(part.format); });
}

class CpuOps final : public Ops {
 public:
  CpuOps(Device* device, const Options& options, const Kernels& kernels, ProductLibrary library, const ProductForms& products)
      : executor_(*device->executor()),
        deterministic_(options.deterministic),
        kernels_(kernels),
        products_(products),
        library_(library),
        memory_(device) {
    if (library_ != ProductLibrary::kPanels) onednn_ = std::make_unique<OneDnnTiles>(executor_.num_workers());
    description_ = kernels_.isa;
    workers_.resize(executor_.num_workers());
  }

  FormatChoice Accepts(std::span<const PartShape> parts, DType dtype, int64_t in_features, PartOrder order) const override {
    if (dtype == DType::kF16 || parts.empty()) return {};
    // Products with bf16 pairs do as many multiplications an instruction as those with blocks, and take nothing apart.
    if (AreAll<BlocksFormat>(parts)) {
      return {.taken = QuantizedPanels::CanPack(in_features, parts, order),
              .preferred = dtype == DType::kBF16 && library_ == ProductLibrary::kAuto && !products_.bf16_many->multiplies_bf16};
    }
    return {.taken = true, .preferred = AreAll<CodedFormat>(parts) && KeepsCodes(dtype)};
  }

  std::string description() const override { return description_; }

  Result<std::unique_ptr<Weight>> Pack(DType dtype, int64_t in_features, std::span<const LinearPart> parts,
                                       PartOrder order) override {
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeight> weight,
                             PackedWeight::Create(executor_, memory_, dtype, in_features, parts, order, KeepsCodes(dtype)));
    // Without matrix units the panel kernels are the faster ones for any number of rows.
    if (onednn_ != nullptr && weight->quantized() == nullptr) {
      const auto units = library_ == ProductLibrary::kOneDnn ? OneDnnTiles::Units::kAny : OneDnnTiles::Units::kMatrix;
      weight->plan = onednn_->Prepare(dtype, in_features, weight->panel_group(), units);
      if (weight->plan != nullptr) description_ = std::string(kernels_.isa) + " + oneDNN brgemm";
    }
    return std::unique_ptr<Weight>(std::move(weight));
  }

  Status Repack(const LinearPart& with, size_t part, Weight* weight) override {
    return static_cast<PackedWeight*>(weight)->Repack(executor_, with, part);
  }

  Status Tune(int64_t, const StepOfRows&, Stream) override { return OkStatus(); }

  Status Linear(ConstDeviceTensor x, const Weight& weight, DeviceTensor y, const Epilogue& epilogue, Stream) override {
    using Kind = Epilogue::Kind;
    const auto& packed = static_cast<const PackedWeight&>(weight);
    COPPICE_DCHECK(epilogue.kind != Kind::kAdd || y.dtype == DType::kF32);
    COPPICE_DCHECK((epilogue.kind == Kind::kGated) == (packed.panel_group() == 2));
    const auto out = [&](int64_t row, int64_t column) { return Row(y, row) + column * static_cast<int64_t>(SizeOf(y.dtype)); };
    switch (epilogue.kind) {
      case Kind::kStore:
        Product(x, packed, y, [&](const float* tile, int64_t row, int64_t column, int64_t cols) {
          kernels_.convert(tile, cols, y.dtype, out(row, column));
        });
        break;
      case Kind::kAdd:
        Product(x, packed, y, [&](const float* tile, int64_t row, int64_t column, int64_t cols) {
          kernels_.add(tile, cols, reinterpret_cast<float*>(out(row, column)));
        });
        break;
      case Kind::kActivate:
        Product(x, packed, y, [&](const float* tile, int64_t row, int64_t column, int64_t cols) {
          kernels_.activate(epilogue.activation, tile, cols, y.dtype, out(row, column));
        });
        break;
      case Kind::kGated:
        Product(x, packed, y, [&](const float* tile, int64_t row, int64_t column, int64_t cols) {
          kernels_.gated(epilogue.activation, tile, tile + kPanelCols, cols, y.dtype, out(row, column));
        });
        break;
    }
    return OkStatus();
  }

  Status Embed(DeviceSpan<const int32_t> token_ids, const Weight& table, const EmbedArgs& args, DeviceTensor y, Stream) override {
    const auto& packed = static_cast<const PackedWeight&>(table);
    const MatrixView<float> out = HostView<float>(y);
    ForRows(token_ids.size, 8 * y.cols, [&](int64_t row) {  // 8: each element is a cache line of its own
      float* const to = &out(row, 0);
      const int64_t from = int64_t{token_ids.data[row]} - args.first_id;
      if (from < 0 || from >= packed.out_features()) {
        if (!args.add) std::fill_n(to, y.cols, 0.0f);
      } else if (args.add) {
        packed.ForEachElement(from, [&](int64_t k, float value) { to[k] += args.scale * value; });
      } else {
        packed.ForEachElement(from, [&](int64_t k, float value) { to[k] = args.scale * value; });
      }
    });
    return OkStatus();
  }

  Status Fill(DeviceTensor x, float value, Stream) override {
    COPPICE_DCHECK(x.dtype == DType::kF32 && x.stride == x.cols);
    std::fill_n(static_cast<float*>(x.data), x.rows * x.cols, value);
    return OkStatus();
  }

  Status Gather(ConstDeviceTensor x, DeviceSpan<const int32_t> rows, DeviceTensor y, Stream) override {
    const size_t bytes = static_cast<size_t>(x.cols) * SizeOf(x.dtype);
    ForRows(rows.size, x.cols, [&](int64_t row) { std::memcpy(Row(y, row), Row(x, rows.data[row]), bytes); });
    return OkStatus();
  }

  Status Norm(ConstDeviceTensor x, const NormArgs& args, DeviceTensor y, DeviceSpan<const int32_t> rows, Stream) override {
    const MatrixView<const float> from = HostView<float>(x);
    ForRows(y.rows, x.cols,
            [&](int64_t row) { Normalise(args, &from(rows.empty() ? row : rows.data[row], 0), x.cols, y.dtype, Row(y, row)); });
    return OkStatus();
  }

  Status AddNorm(ConstDeviceTensor a, const NormArgs& args, DeviceTensor x, Stream) override {
    const MatrixView<const float> from = HostView<float>(a);
    const MatrixView<float> to = HostView<float>(x);
    const auto kernel = args.kind == NormKind::kRms ? kernels_.add_rms_norm : kernels_.add_layer_norm;
    ForRows(x.rows, x.cols,
            [&](int64_t row) { kernel(&from(row, 0), args.weight.data, args.bias.data, x.cols, args.eps, &to(row, 0)); });
    return OkStatus();
  }

  Status RopeAngles(DeviceSpan<const int32_t> positions, DeviceSpan<const float> inverse_frequencies, float scale, DeviceTensor cos,
                    DeviceTensor sin, Stream) override {
    const MatrixView<float> cosines = HostView<float>(cos), sines = HostView<float>(sin);
    const int64_t n = inverse_frequencies.size;
    ForRows(positions.size, 16 * n, [&](int64_t row) {  // 16: a sine costs that many multiplications
      for (int64_t i = 0; i < n; ++i) {
        const float angle = static_cast<float>(positions.data[row]) * inverse_frequencies.data[i];
        cosines(row, i) = scale * std::cos(angle);
        sines(row, i) = scale * std::sin(angle);
      }
    });
    return OkStatus();
  }

  Status RopeAppend(const RopeAppendArgs& args, Stream) override {
    const MatrixView<const float> qkv = HostView<float>(args.qkv);
    const int64_t head_dim = args.head_dim, q_size = static_cast<int64_t>(SizeOf(args.q.dtype));
    const attention::KvLayerView& kv = args.kv;
    const int64_t kv_size = static_cast<int64_t>(SizeOf(kv.dtype));
    ForRows(qkv.rows, qkv.cols, [&](int64_t row) {
      const float* head = &qkv(row, 0);
      std::byte* q = Row(args.q, row);
      for (int32_t h = 0; h < args.num_qo_heads; ++h, head += head_dim, q += head_dim * q_size) {
        RotateHead(args, row, args.q_norm, head, args.q.dtype, q);
      }
      const int64_t slot = args.slot_mapping.data[row];
      if (slot < 0) return;
      COPPICE_DCHECK(slot < int64_t{kv.num_pages} * kv.page_size);
      int64_t to = (slot / kv.page_size * kv.page_stride + slot % kv.page_size * kv.slot_stride) * kv_size;
      const float* value = head + args.num_kv_heads * head_dim;
      for (int32_t h = 0; h < args.num_kv_heads; ++h, head += head_dim, value += head_dim, to += kv.head_stride * kv_size) {
        RotateHead(args, row, args.k_norm, head, kv.dtype, static_cast<std::byte*>(kv.k) + to);
        kernels_.convert(value, head_dim, kv.dtype, static_cast<std::byte*>(kv.v) + to);
      }
    });
    return OkStatus();
  }

 private:
  // Whether products of few rows read codes. The deterministic mode has one kernel for every number of rows.
  bool KeepsCodes(DType dtype) const {
    return dtype == DType::kBF16 && !deterministic_ && library_ == ProductLibrary::kAuto && products_.coded->code_input != nullptr;
  }

  // One worker's output of a tile product. Its own pages, so that workers never share a cache line.
  struct alignas(64) Worker {
    alignas(64) float tile[kBlockRows * kMaxGroup * kPanelCols];
  };

  // Calls write(tile row, row, first column, columns) for every row of y and every panel group, to be written there; a tile row has
  // the group's panels side by side, biases added.
  template <class Write>
  void Product(const ConstDeviceTensor& x, const PackedWeight& packed, const DeviceTensor& y, Write write) {
    COPPICE_DCHECK(x.dtype == packed.dtype() && x.cols == packed.in_features());
    const int64_t row_blocks = CeilDiv(x.rows, kBlockRows);
    const int64_t tile_cols = packed.panel_group() * kPanelCols;
    const bool coded = x.rows <= packed.coded_rows();
    if (coded) CodeInput(x);
    const InputPrecision precision = PrecisionOf(packed, x.rows);
    if (packed.quantized() != nullptr) QuantizeInput(x, precision);
    // Row blocks vary fastest: a panel group stays in the cache while all rows pass by it.
    executor_.ParallelFor(row_blocks * packed.num_groups(), [&](int64_t task, int worker) {
      const int64_t group = task / row_blocks, first_row = task % row_blocks * kBlockRows;
      const int64_t rows = std::min(kBlockRows, x.rows - first_row);
      const int64_t column = group * kPanelCols, cols = std::min(kPanelCols, packed.out_features() - column);
      float* tile = workers_[worker].tile;
      if (packed.quantized() != nullptr) {
        PrefetchOutput(y, first_row, rows, column, cols);
        MultiplyQuantized(*products_.Blocks(x.rows).quantized, first_row, rows, packed, precision, group, tile);
      } else if (coded) {
        MultiplyCoded(rows, packed, group, tile);
      } else {
        PrefetchOutput(y, first_row, rows, column, cols);
        MultiplyTile(x, first_row, rows, packed, group, NextPanels(packed, group, task % row_blocks, row_blocks), worker, tile);
      }
      const float* bias = packed.GroupBias(group);
      for (int64_t r = 0; r < rows; ++r, tile += tile_cols) {
        if (bias != nullptr) kernels_.add(bias, tile_cols, tile);
        write(tile, first_row + r, column, cols);
      }
    });
  }

  // A tile's output is a short run of lines in each of many rows, which no hardware prefetcher foresees; asked for before the
  // product, they are there after it.
  static void PrefetchOutput(const DeviceTensor& y, int64_t first_row, int64_t rows, int64_t column, int64_t cols) {
    const auto size = static_cast<int64_t>(SizeOf(y.dtype));
    for (int64_t r = first_row; r < first_row + rows; ++r) {
      const std::byte* run = Row(y, r) + column * size;
      for (int64_t i = 0; i < cols * size; i += kCacheLine) __builtin_prefetch(run + i, /*write=*/1, kSecondLevel);
    }
  }

  // The panels that this worker will need next come from memory or another core's cache: each of the tasks that it does with the
  // present ones asks for its share. Behind the last panels lies, as a rule, the weight of the product that follows.
  Ahead NextPanels(const PackedWeight& weight, int64_t group, int64_t row_block, int64_t row_blocks) const {
    const int64_t workers = executor_.num_workers();
    const int64_t next = group + std::max<int64_t>(1, workers / row_blocks);
    const int64_t shares = std::max<int64_t>(1, row_blocks / workers), share = row_block / workers;
    if (share >= shares) return {};
    const int64_t bytes = weight.group_bytes() / shares;
    return {.from = weight.Group(next) + share * bytes, .bytes = bytes};
  }

  // All at once, for kernels that do it not by themselves.
  static void Prefetch(const Ahead& ahead) {
    for (int64_t i = 0; i < ahead.bytes; i += kCacheLine) __builtin_prefetch(ahead.from + i, /*write=*/0, kSecondLevel);
  }

  bool UsesOneDnn(const PackedWeight& weight, int64_t rows, int64_t x_stride) const {
    if (weight.plan == nullptr || x_stride != weight.in_features()) return false;
    // The panel kernels give the same bits for any number of rows.
    if (deterministic_) return OneDnnTiles::UsesMatrixUnits(*weight.plan);
    return library_ == ProductLibrary::kOneDnn || rows > PackedWeight::kFewMatrixRows;
  }

  void MultiplyTile(const ConstDeviceTensor& x, int64_t first_row, int64_t rows, const PackedWeight& weight, int64_t group,
                    const Ahead& ahead, int worker, float* tile) {
    const std::byte* panels = weight.Group(group);
    const int64_t tile_stride = weight.panel_group() * kPanelCols;
    if (UsesOneDnn(weight, rows, x.stride)) {
      Prefetch(ahead);
      // Deterministic: always the same kernel, so that no bit depends on which one a row count would choose.
      const int64_t step = deterministic_ ? OneDnnTiles::kRowStep : kBlockRows;
      for (int64_t r = 0; r < rows; r += step) {
        onednn_->Run(*weight.plan, worker, Row(x, first_row + r), RoundUp(std::min(step, rows - r), kRowPadding), panels,
                     tile + r * tile_stride);
      }
      return;
    }
    for (int64_t p = 0; p < weight.panel_group(); ++p) {
      const int64_t offset = p * weight.panel_elements();
      const int64_t bytes = ahead.bytes / weight.panel_group();
      const Ahead part = {.from = ahead.from + p * bytes, .bytes = bytes};
      if (weight.dtype() == DType::kBF16) {
        products_.Bf16(x.rows).panel_bf16(reinterpret_cast<const BF16*>(Row(x, first_row)), x.stride, rows,
                                          reinterpret_cast<const BF16*>(panels) + offset, x.cols, tile + p * kPanelCols,
                                          tile_stride, part);
      } else {
        products_.F32(x.rows).panel_f32(reinterpret_cast<const float*>(Row(x, first_row)), x.stride, rows,
                                        reinterpret_cast<const float*>(panels) + offset, x.cols, tile + p * kPanelCols, tile_stride,
                                        part);
      }
    }
  }

  // x as integers, for all tasks of a product.
  void CodeInput(const ConstDeviceTensor& x) {
    const int64_t blocks = x.cols / kCodeBlock;
    if (static_cast<int64_t>(input_codes_.size()) < x.rows * x.cols) {
      input_codes_.resize(x.rows * x.cols);
      input_scales_.resize(x.rows * blocks);
      input_sums_.resize(x.rows * blocks);
    }
    coded_input_ = {.codes = input_codes_.data(), .scales = input_scales_.data(), .sums = input_sums_.data()};
    for (int64_t r = 0; r < x.rows; ++r) {
      products_.coded->code_input(reinterpret_cast<const BF16*>(Row(x, r)), x.cols, coded_input_.codes + r * x.cols,
                                  coded_input_.scales + r * blocks, coded_input_.sums + r * blocks);
    }
  }

  void MultiplyCoded(int64_t rows, const PackedWeight& weight, int64_t group, float* tile) {
    const int64_t tile_stride = weight.panel_group() * kPanelCols;
    const auto multiply = weight.code_bits() == 4 ? products_.coded->panel_coded4 : products_.coded->panel_coded8;
    const int64_t ahead = weight.CodedPanel(executor_.num_workers() * weight.panel_group()) - weight.CodedPanel(0);
    for (int64_t p = 0; p < weight.panel_group(); ++p) {
      multiply(coded_input_, rows, weight.CodedPanel(group * weight.panel_group() + p), ahead, weight.in_features(),
               tile + p * kPanelCols, tile_stride);
    }
  }

  // Integers of 8 bits, where the weight's products may take them and are faster for it: not for few rows, whose time is the
  // weights' way from memory.
  InputPrecision PrecisionOf(const PackedWeight& weight, int64_t rows) const {
    constexpr int64_t kLeastRows = 4;
    if (!weight.coarse_input() || deterministic_ || rows < kLeastRows) return InputPrecision::kWide;
    const QuantizedKernels& kernels = *products_.Blocks(rows).quantized;
    const auto has_narrow = [&](const QuantizedPanels::Strip& strip) {
      return kernels.narrow[static_cast<size_t>(strip.format)] != nullptr;
    };
    return std::ranges::all_of(weight.quantized()->strips(), has_narrow) ? InputPrecision::kNarrow : InputPrecision::kWide;
  }

  // x as integers, for all tasks of a product.
  void QuantizeInput(const ConstDeviceTensor& x, InputPrecision precision) {
    const int64_t k = x.cols, blocks = k / kQuantBlock;
    if (std::ssize(quantized_codes_) < x.rows * k) {
      quantized_codes_.resize(x.rows * k);
      quantized_values_.resize(3 * x.rows * blocks);
      quantized_sums_.resize(3 * x.rows * blocks);
    }
    quantized_input_ = {.wide = quantized_codes_.data(),
                        .narrow = reinterpret_cast<int8_t*>(quantized_codes_.data()),
                        .scales = quantized_values_.data(),
                        .middles = quantized_values_.data() + 2 * x.rows * blocks,
                        .sums = quantized_values_.data() + x.rows * blocks,
                        .negated = quantized_sums_.data(),
                        .negated_halves = quantized_sums_.data() + x.rows * blocks};
    const QuantizedKernels& kernels = *products_.Blocks(x.rows).quantized;
    const auto quantize = precision == InputPrecision::kNarrow ? kernels.quantize_narrow : kernels.quantize_wide;
    ForRows(x.rows, 2 * k, [&](int64_t row) { quantize(Row(x, row), x.dtype, k, quantized_input_.FromRow(row, k)); });
  }

  void MultiplyQuantized(const QuantizedKernels& products, int64_t first_row, int64_t rows, const PackedWeight& weight,
                         InputPrecision precision, int64_t group, float* tile) const {
    constexpr int64_t kStripsPerPanel = kPanelCols / kQuantStripCols;
    const QuantizedPanels& panels = *weight.quantized();
    const int64_t strips = weight.panel_group() * kStripsPerPanel, k = weight.in_features();
    const QuantizedInput input = quantized_input_.FromRow(first_row, k);
    const auto& kernels = precision == InputPrecision::kNarrow ? products.narrow : products.wide;
    for (int64_t s = 0; s < strips; ++s) {
      const int64_t strip = group * strips + s;
      const auto multiply = kernels[static_cast<size_t>(panels.format(strip))];
      multiply(input, rows, panels.data(strip), executor_.num_workers() * strips * panels.bytes(strip), k,
               tile + s * kQuantStripCols, strips * kQuantStripCols);
    }
  }

  void Normalise(const NormArgs& args, const float* x, int64_t n, DType dtype, void* y) const {
    const auto kernel = args.kind == NormKind::kRms ? kernels_.rms_norm : kernels_.layer_norm;
    kernel(x, args.weight.data, args.bias.data, n, args.eps, dtype, y);
  }

  // One head of a row: its norm, the rotation of its first elements, the others as they are.
  void RotateHead(const RopeAppendArgs& args, int64_t row, const std::optional<NormArgs>& norm, const float* head, DType dtype,
                  std::byte* to) const {
    float normalised[kMaxHeadDim];
    if (norm) {
      Normalise(*norm, head, args.head_dim, DType::kF32, normalised);
      head = normalised;
    }
    const int64_t half = args.cos.cols, rotated = 2 * half;
    const auto* cos = reinterpret_cast<const float*>(Row(args.cos, row));
    const auto* sin = reinterpret_cast<const float*>(Row(args.sin, row));
    if (half > 0) (args.pairs == RopePairs::kHalves ? kernels_.rotate : kernels_.rotate_pairs)(head, cos, sin, half, dtype, to);
    if (rotated < args.head_dim) {
      kernels_.convert(head + rotated, args.head_dim - rotated, dtype, to + rotated * static_cast<int64_t>(SizeOf(dtype)));
    }
  }

  // body(row) for each row, in tasks worth handing out; `cost` of one row in elements.
  template <class Body>
  void ForRows(int64_t rows, int64_t cost, Body body) {
    const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, cost));
    executor_.ParallelFor(CeilDiv(rows, rows_per_task), [&](int64_t task, int) {
      for (int64_t row = task * rows_per_task; row < std::min(rows, (task + 1) * rows_per_task); ++row) body(row);
    });
  }

  Executor& executor_;
  const bool deterministic_;
  const Kernels& kernels_;  // all but products
  const ProductForms products_;
  const ProductLibrary library_;
  PackedWeight::Memory memory_;
  std::unique_ptr<OneDnnTiles> onednn_;  // null: panel kernels only
  std::string description_;
  std::vector<Worker> workers_;
  std::vector<int16_t> input_codes_;  // the memory of coded_input_
  std::vector<float> input_scales_, input_sums_;
  CodedInput coded_input_ = {};
  std::vector<int16_t> quantized_codes_;  // the memory of quantized_input_
  std::vector<float> quantized_values_;
  std::vector<int32_t> quantized_sums_;
  QuantizedInput quantized_input_ = {};
};

}  // namespace

std::unique_ptr<Ops> MakeCpuOps(Device* device, const Ops::Options& options, const Kernels& kernels, ProductLibrary library,
                                const ProductForms& products) {
  return std::make_unique<CpuOps>(device, options, kernels, library, products);
}

std::unique_ptr<Ops> MakeCpuOps(Device* device, const Ops::Options& options, const Kernels& kernels, ProductLibrary library) {
  return MakeCpuOps(device, options, kernels, library, ProductForms::Of(kernels));
}

Result<std::unique_ptr<Ops>> CreateCpuOps(Device* device, const Ops::Options& options) {
  if (device->executor() == nullptr)
    return InvalidArgument("the CPU device has no executor; create it with one, such as a ThreadPool");
  const Kernels& kernels = SelectKernels();
  return MakeCpuOps(device, options, kernels, ProductLibrary::kAuto,
                    options.deterministic ? ProductForms::Of(kernels) : HostProductForms());
}

}  // namespace coppice::ops
