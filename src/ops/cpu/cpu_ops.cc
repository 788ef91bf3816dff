// Ops on the CPU: work is cut into row blocks and panel groups and handed out by the caller's executor.
#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/cache_line.h"
#include "core/check.h"
#include "ops/cpu/onednn_tiles.h"

namespace coppice::ops {
namespace {

constexpr int64_t kBlockRows = OneDnnTiles::kMaxRows;
constexpr int64_t kMaxGroup = 2;  // panels per task: gate and up together, otherwise one
// Element-wise work is cut into tasks of about this many elements: some microseconds, ten times the cost of handing one out.
constexpr int64_t kElementsPerTask = 16384;

constexpr int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Zeroed memory for one kind of weights, in the order in which a model packs them: nearly all of it in huge pages, which most of a
// small model's weights would be too small to have of their own.
class WeightMemory {
 public:
  Result<std::shared_ptr<std::byte>> Allocate(int64_t bytes) {
    bytes = RoundUp(bytes, kCacheLine);
    if (chunk_ == nullptr || used_ + bytes > static_cast<int64_t>(chunk_->size())) {
      COPPICE_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(std::max(bytes, kChunkBytes)));
      chunk_ = std::make_shared<Buffer>(std::move(buffer));
      used_ = 0;
    }
    std::shared_ptr<std::byte> part(chunk_, chunk_->data() + used_);
    used_ += bytes;
    return part;
  }

 private:
  static constexpr int64_t kChunkBytes = int64_t{64} << 20;  // what is never touched costs nothing
  std::shared_ptr<Buffer> chunk_;
  int64_t used_ = 0;
};

class PackedWeight final : public LinearWeight {
 public:
  struct Memory {
    WeightMemory panels, codes;
  };
  // keep_codes: those of the parts, if all have them.
  static Result<std::unique_ptr<PackedWeight>> Create(Executor& executor, Memory& memory, DType dtype, int64_t in_features,
                                                      std::span<const LinearPart> parts, PartOrder order, bool keep_codes);

  int64_t panel_group() const { return panel_group_; }
  int64_t num_groups() const { return num_panels_ / panel_group_; }
  int64_t group_bytes() const { return panel_group_ * panel_bytes_; }
  const std::byte* Group(int64_t group) const { return panels_.get() + group * group_bytes(); }
  const float* GroupBias(int64_t group) const { return bias_.empty() ? nullptr : &bias_[group * panel_group_ * kPanelCols]; }
  int64_t panel_elements() const { return panel_elements_; }

  int32_t code_bits() const { return code_bits_; }  // 0: not coded
  const std::byte* CodedPanel(int64_t panel) const { return coded_panels_.get() + panel * coded_panel_bytes(); }

  void UnpackRow(int64_t row, float* out) const;

  // Up to this many rows of a block the panel kernels stream weights faster than oneDNN (docs/ops.md has the measurement).
  int64_t few_rows() const { return dtype_ == DType::kBF16 ? 4 : 12; }
  // Up to this many rows coded weights, which are a third of the bytes, beat both.
  int64_t coded_rows() const { return code_bits_ == 0 ? 0 : matrix_units() ? 8 : 16; }

  const OneDnnTiles::Plan* plan = nullptr;  // null: panel kernels only

 private:
  bool matrix_units() const { return plan != nullptr && OneDnnTiles::UsesMatrixUnits(*plan); }
  template <class T>
  void PackRow(const T* row, int64_t column);
  Status AllocateCodes(WeightMemory& memory, std::span<const LinearPart> parts);
  void PackCodes(const CodedWeight& coded, int64_t row, int64_t column);
  int64_t coded_panel_bytes() const { return kPanelCols / kStripCols * in_features_ / kCodeBlock * CodedBlockBytes(code_bits_); }

  std::shared_ptr<std::byte> panels_, coded_panels_;
  int32_t code_bits_ = 0;
  std::vector<float> bias_;  // empty, or one per packed column
  int64_t num_panels_ = 0, panel_group_ = 1, panel_elements_ = 0, panel_bytes_ = 0;
};

// Elements of one column that lie next to each other.
int64_t Depth(DType dtype) { return dtype == DType::kBF16 ? 2 : 1; }

template <class T>
void PackedWeight::PackRow(const T* row, int64_t column) {
  const int64_t depth = Depth(dtype_);
  T* panel = reinterpret_cast<T*>(panels_.get()) + column / kPanelCols * panel_elements_ + column % kPanelCols * depth;
  for (int64_t k = 0; k < in_features_; ++k) panel[k / depth * depth * kPanelCols + k % depth] = row[k];
}

// The wider of the parts' codes serves all; one part without any, and there are none.
Status PackedWeight::AllocateCodes(WeightMemory& memory, std::span<const LinearPart> parts) {
  int32_t bits = 4;
  for (const LinearPart& part : parts) {
    if (!part.coded) return OkStatus();
    if (part.coded->bits != 4 && part.coded->bits != 8)
      return InvalidArgument("a weight has codes of " + std::to_string(part.coded->bits) + " bits; expected 4 or 8");
    bits = std::max(bits, part.coded->bits);
  }
  if (in_features_ % kCodeBlock != 0)
    return InvalidArgument("a coded weight has " + std::to_string(in_features_) + " input features; expected a multiple of " +
                           std::to_string(kCodeBlock));
  code_bits_ = bits;
  COPPICE_ASSIGN_OR_RETURN(coded_panels_, memory.Allocate(num_panels_ * coded_panel_bytes()));
  return OkStatus();
}

// Layout: kernels.h. Columns without a row stay zero.
void PackedWeight::PackCodes(const CodedWeight& coded, int64_t row, int64_t column) {
  const int64_t blocks = in_features_ / kCodeBlock, block_bytes = CodedBlockBytes(code_bits_);
  const int64_t in_strip = column % kStripCols, strip = column % kPanelCols / kStripCols;
  std::byte* block = coded_panels_.get() + column / kPanelCols * coded_panel_bytes() + strip * blocks * block_bytes;
  const int8_t* codes = coded.codes + row * in_features_;
  const int64_t per_word = 32 / code_bits_;
  for (int64_t b = 0; b < blocks; ++b, block += block_bytes, codes += kCodeBlock) {
    for (int64_t j = 0; j < kCodeBlock / per_word; ++j) {
      uint32_t word = 0;
      for (int64_t i = 0; i < per_word; ++i) {
        const uint32_t code = static_cast<uint8_t>(codes[j * per_word + i]);
        // An even input's code in the low half, its successor's 16 bits above.
        word |= code << (i / 2 * code_bits_ + i % 2 * 16);
      }
      std::memcpy(block + (j * kStripCols + in_strip) * sizeof(word), &word, sizeof(word));
    }
    std::byte* scales = block + kStripCols * kCodeBlock * code_bits_ / 8;
    std::memcpy(scales + in_strip * sizeof(F16), &coded.scales[row * blocks + b], sizeof(F16));
    std::memcpy(scales + (kStripCols + in_strip) * sizeof(F16), &coded.minima[row * blocks + b], sizeof(F16));
  }
}

Result<std::unique_ptr<PackedWeight>> PackedWeight::Create(Executor& executor, Memory& memory, DType dtype, int64_t in_features,
                                                           std::span<const LinearPart> parts, PartOrder order, bool keep_codes) {
  if (dtype == DType::kF16)
    return Unimplemented("matrix products have no kernels for f16 weights on the CPU; convert them to bf16 or f32");
  if (in_features <= 0 || in_features % Depth(dtype) != 0)
    return InvalidArgument("a weight has " + std::to_string(in_features) + " input features; expected a positive multiple of " +
                           std::to_string(Depth(dtype)) + " for " + std::string(Name(dtype)));
  const bool paired = order == PartOrder::kGateUp;
  if (parts.empty() || (paired && (parts.size() != 2 || parts[0].rows != parts[1].rows)))
    return InvalidArgument(paired ? "gate and up must be two weights with equally many rows"
                                  : "a product needs at least one weight");

  auto weight = std::make_unique<PackedWeight>();
  weight->dtype_ = dtype;
  weight->in_features_ = in_features;
  int64_t total_rows = 0;
  bool has_bias = false;
  for (const LinearPart& part : parts) {
    if (part.rows <= 0) return InvalidArgument("a weight has " + std::to_string(part.rows) + " rows; expected at least 1");
    total_rows += part.rows;
    has_bias = has_bias || part.bias != nullptr;
  }
  weight->out_features_ = paired ? parts[0].rows : total_rows;
  weight->panel_group_ = paired ? kMaxGroup : 1;
  weight->num_panels_ = RoundUp(weight->out_features_, kPanelCols) / kPanelCols * weight->panel_group_;
  weight->panel_elements_ = RoundUp(in_features, 16 * Depth(dtype)) * kPanelCols;  // whole blocks of oneDNN's layout
  weight->panel_bytes_ = weight->panel_elements_ * static_cast<int64_t>(SizeOf(dtype));
  COPPICE_ASSIGN_OR_RETURN(weight->panels_, memory.panels.Allocate(weight->num_panels_ * weight->panel_bytes_));
  if (has_bias) weight->bias_.assign(weight->num_panels_ * kPanelCols, 0.0f);
  if (keep_codes) COPPICE_RETURN_IF_ERROR(weight->AllocateCodes(memory.codes, parts));

  int64_t first = 0;  // of the part's outputs
  for (size_t p = 0; p < parts.size(); ++p) {
    const LinearPart& part = parts[p];
    const auto column = [&, first](int64_t row) {
      if (!paired) return first + row;
      return (row / kPanelCols * kMaxGroup + static_cast<int64_t>(p)) * kPanelCols + row % kPanelCols;
    };
    executor.ParallelFor(RoundUp(part.rows, kPanelCols) / kPanelCols, [&](int64_t block, int) {
      for (int64_t row = block * kPanelCols; row < std::min((block + 1) * kPanelCols, part.rows); ++row) {
        if (dtype == DType::kBF16) {
          weight->PackRow(static_cast<const BF16*>(part.weight) + row * in_features, column(row));
        } else {
          weight->PackRow(static_cast<const float*>(part.weight) + row * in_features, column(row));
        }
        if (weight->code_bits_ != 0) weight->PackCodes(*part.coded, row, column(row));
      }
    });
    if (part.bias != nullptr) {
      for (int64_t row = 0; row < part.rows; ++row) weight->bias_[column(row)] = part.bias[row];
    }
    first += part.rows;
  }
  return weight;
}

void PackedWeight::UnpackRow(int64_t row, float* out) const {
  const int64_t panel = row / kPanelCols * panel_elements_, column = row % kPanelCols;
  if (dtype_ == DType::kF32) {
    const float* from = reinterpret_cast<const float*>(panels_.get()) + panel + column;
    for (int64_t k = 0; k < in_features_; ++k) out[k] = from[k * kPanelCols];
  } else {
    const BF16* from = reinterpret_cast<const BF16*>(panels_.get()) + panel + column * 2;
    for (int64_t k = 0; k < in_features_; k += 2, from += kPanelCols * 2) {
      out[k] = from[0].ToFloat();
      out[k + 1] = from[1].ToFloat();
    }
  }
}

class CpuOps final : public Ops {
 public:
  CpuOps(Executor* executor, const Options& options, const Kernels& kernels, ProductLibrary library)
      : executor_(*executor), deterministic_(options.deterministic), kernels_(kernels), library_(library) {
    if (library_ != ProductLibrary::kPanels) onednn_ = std::make_unique<OneDnnTiles>(executor_.num_workers());
    description_ = kernels_.isa;
    workers_.resize(executor_.num_workers());
  }

  // The deterministic mode has one kernel for every number of rows.
  bool WantsCodes(DType dtype) const override {
    return dtype == DType::kBF16 && !deterministic_ && library_ == ProductLibrary::kAuto && kernels_.code_input != nullptr;
  }

  std::string_view description() const override { return description_; }

  Result<std::unique_ptr<LinearWeight>> Pack(DType dtype, int64_t in_features, std::span<const LinearPart> parts,
                                             PartOrder order) override {
    COPPICE_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeight> weight,
                             PackedWeight::Create(executor_, memory_, dtype, in_features, parts, order, WantsCodes(dtype)));
    if (onednn_ != nullptr) {
      const OneDnnTiles::Plan* plan = onednn_->Prepare(dtype, in_features, weight->panel_group());
      // Without matrix units the panel kernels are as fast for any number of bf16 rows, and faster for few.
      const bool pays = plan != nullptr && (dtype == DType::kF32 || OneDnnTiles::UsesMatrixUnits(*plan));
      if (pays || library_ == ProductLibrary::kOneDnn) weight->plan = plan;
      if (weight->plan != nullptr) description_ = std::string(kernels_.isa) + " + oneDNN brgemm";
    }
    return std::unique_ptr<LinearWeight>(std::move(weight));
  }

  void Linear(const AnyMatrix& x, const LinearWeight& weight, MatrixView<float> y) override {
    Product(x, weight, Untyped(y), [&](const float* tile, int64_t row, int64_t column, int64_t cols) {
      kernels_.convert(tile, cols, DType::kF32, &y(row, column));
    });
  }

  void LinearAdd(const AnyMatrix& x, const LinearWeight& weight, MatrixView<float> y) override {
    Product(x, weight, Untyped(y),
            [&](const float* tile, int64_t row, int64_t column, int64_t cols) { kernels_.add(tile, cols, &y(row, column)); });
  }

  void LinearSiluMul(const AnyMatrix& x, const LinearWeight& weight, const AnyMatrix& y) override {
    Product(x, weight, y, [&](const float* tile, int64_t row, int64_t column, int64_t cols) {
      kernels_.silu_mul(tile, tile + kPanelCols, cols, y.dtype, y.Row(row) + column * SizeOf(y.dtype));
    });
  }

  void Embed(std::span<const int32_t> token_ids, const LinearWeight& table, MatrixView<float> y) override {
    const auto& packed = static_cast<const PackedWeight&>(table);
    ForRows(static_cast<int64_t>(token_ids.size()), 8 * y.cols, [&](int64_t row) {  // 8: each element is a cache line of its own
      packed.UnpackRow(token_ids[row], &y(row, 0));
    });
  }

  void RmsNorm(MatrixView<const float> x, const RmsNormArgs& args, const AnyMatrix& y, std::span<const int32_t> rows) override {
    ForRows(y.rows, x.cols, [&](int64_t row) {
      kernels_.rms_norm(&x(rows.empty() ? row : rows[row], 0), args.weight.data(), x.cols, args.eps, y.dtype, y.Row(row));
    });
  }

  void RopeAngles(std::span<const int32_t> positions, std::span<const float> inverse_frequencies, MatrixView<float> cos,
                  MatrixView<float> sin) override {
    const auto n = static_cast<int64_t>(inverse_frequencies.size());
    ForRows(static_cast<int64_t>(positions.size()), 16 * n, [&](int64_t row) {  // 16: a sine costs that many multiplications
      for (int64_t i = 0; i < n; ++i) {
        const float angle = static_cast<float>(positions[row]) * inverse_frequencies[i];
        cos(row, i) = std::cos(angle);
        sin(row, i) = std::sin(angle);
      }
    });
  }

  void SplitHeads(const SplitHeadsArgs& args) override {
    ForRows(args.qkv.rows, args.qkv.cols, [&](int64_t row) {
      const float* head = &args.qkv(row, 0);
      head = RotateHeads(args, row, args.num_qo_heads, args.q_norm, head, args.q);
      head = RotateHeads(args, row, args.num_kv_heads, args.k_norm, head, args.k);
      kernels_.convert(head, int64_t{args.num_kv_heads} * args.head_dim, args.v.dtype, args.v.Row(row));
    });
  }

 private:
  // One worker's output of a tile product. Its own pages, so that workers never share a cache line.
  struct alignas(64) Worker {
    alignas(64) float tile[kBlockRows * kMaxGroup * kPanelCols];
  };

  static AnyMatrix Untyped(MatrixView<float> y) { return {y.data, DType::kF32, y.rows, y.cols, y.stride}; }

  // Calls write(tile row, row, first column, columns) for every row of y and every panel group, to be written there; a tile row has
  // the group's panels side by side, biases added.
  template <class Write>
  void Product(const AnyMatrix& x, const LinearWeight& weight, const AnyMatrix& y, Write write) {
    const auto& packed = static_cast<const PackedWeight&>(weight);
    COPPICE_DCHECK(x.dtype == packed.dtype() && x.cols == packed.in_features());
    const int64_t row_blocks = RoundUp(x.rows, kBlockRows) / kBlockRows;
    const int64_t tile_cols = packed.panel_group() * kPanelCols;
    const bool coded = x.rows <= packed.coded_rows();
    if (coded) CodeInput(x);
    // Row blocks vary fastest: a panel group stays in the cache while all rows pass by it.
    executor_.ParallelFor(row_blocks * packed.num_groups(), [&](int64_t task, int worker) {
      const int64_t group = task / row_blocks, first_row = task % row_blocks * kBlockRows;
      const int64_t rows = std::min(kBlockRows, x.rows - first_row);
      const int64_t column = group * kPanelCols, cols = std::min(kPanelCols, packed.out_features() - column);
      float* tile = workers_[worker].tile;
      if (coded) {
        MultiplyCoded(rows, packed, group, tile);
      } else {
        PrefetchOutput(y, first_row, rows, column, cols);
        PrefetchWeight(packed, group, task % row_blocks, row_blocks);
        MultiplyTile(x, first_row, rows, packed, group, worker, tile);
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
  static void PrefetchOutput(const AnyMatrix& y, int64_t first_row, int64_t rows, int64_t column, int64_t cols) {
    const auto size = static_cast<int64_t>(SizeOf(y.dtype));
    for (int64_t r = first_row; r < first_row + rows; ++r) {
      const std::byte* run = y.Row(r) + column * size;
      for (int64_t i = 0; i < cols * size; i += kCacheLine) __builtin_prefetch(run + i, /*write=*/1, kSecondLevel);
    }
  }

  // The panels that this worker will need next come from memory or another core's cache: each of the tasks that it does with the
  // present ones asks for its share. Behind the last panels lies, as a rule, the weight of the product that follows.
  void PrefetchWeight(const PackedWeight& weight, int64_t group, int64_t row_block, int64_t row_blocks) const {
    const int64_t workers = executor_.num_workers();
    const int64_t next = group + std::max<int64_t>(1, workers / row_blocks);
    const int64_t shares = std::max<int64_t>(1, row_blocks / workers), share = row_block / workers;
    if (share >= shares) return;
    const int64_t bytes = weight.group_bytes() / shares;
    const std::byte* from = weight.Group(next) + share * bytes;
    for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(from + i, /*write=*/0, kSecondLevel);
  }

  bool UsesOneDnn(const PackedWeight& weight, int64_t rows, int64_t x_stride) const {
    if (weight.plan == nullptr || x_stride != weight.in_features()) return false;
    // The panel kernels give the same bits for any number of rows; without matrix units they are also as fast.
    if (deterministic_) return OneDnnTiles::UsesMatrixUnits(*weight.plan);
    return library_ == ProductLibrary::kOneDnn || rows > weight.few_rows();
  }

  void MultiplyTile(const AnyMatrix& x, int64_t first_row, int64_t rows, const PackedWeight& weight, int64_t group, int worker,
                    float* tile) {
    const std::byte* panels = weight.Group(group);
    const int64_t tile_stride = weight.panel_group() * kPanelCols;
    if (UsesOneDnn(weight, rows, x.stride)) {
      // Deterministic: always the same kernel, so that no bit depends on which one a row count would choose.
      const int64_t step = deterministic_ ? OneDnnTiles::kRowStep : kBlockRows;
      for (int64_t r = 0; r < rows; r += step) {
        onednn_->Run(*weight.plan, worker, x.Row(first_row + r), PadRows(std::min(step, rows - r)), panels, tile + r * tile_stride);
      }
      return;
    }
    for (int64_t p = 0; p < weight.panel_group(); ++p) {
      const int64_t offset = p * weight.panel_elements();
      if (weight.dtype() == DType::kBF16) {
        kernels_.panel_bf16(reinterpret_cast<const BF16*>(x.Row(first_row)), x.stride, rows,
                            reinterpret_cast<const BF16*>(panels) + offset, x.cols, tile + p * kPanelCols, tile_stride);
      } else {
        kernels_.panel_f32(reinterpret_cast<const float*>(x.Row(first_row)), x.stride, rows,
                           reinterpret_cast<const float*>(panels) + offset, x.cols, tile + p * kPanelCols, tile_stride);
      }
    }
  }

  // x as integers, for all tasks of a product.
  void CodeInput(const AnyMatrix& x) {
    const int64_t blocks = x.cols / kCodeBlock;
    if (static_cast<int64_t>(input_codes_.size()) < x.rows * x.cols) {
      input_codes_.resize(x.rows * x.cols);
      input_scales_.resize(x.rows * blocks);
      input_sums_.resize(x.rows * blocks);
    }
    coded_input_ = {.codes = input_codes_.data(), .scales = input_scales_.data(), .sums = input_sums_.data()};
    for (int64_t r = 0; r < x.rows; ++r) {
      kernels_.code_input(reinterpret_cast<const BF16*>(x.Row(r)), x.cols, coded_input_.codes + r * x.cols,
                          coded_input_.scales + r * blocks, coded_input_.sums + r * blocks);
    }
  }

  void MultiplyCoded(int64_t rows, const PackedWeight& weight, int64_t group, float* tile) {
    const int64_t tile_stride = weight.panel_group() * kPanelCols;
    const auto multiply = weight.code_bits() == 4 ? kernels_.panel_coded4 : kernels_.panel_coded8;
    const int64_t ahead = weight.CodedPanel(executor_.num_workers() * weight.panel_group()) - weight.CodedPanel(0);
    for (int64_t p = 0; p < weight.panel_group(); ++p) {
      multiply(coded_input_, rows, weight.CodedPanel(group * weight.panel_group() + p), ahead, weight.in_features(),
               tile + p * kPanelCols, tile_stride);
    }
  }

  // Returns the input behind the last head.
  const float* RotateHeads(const SplitHeadsArgs& args, int64_t row, int32_t heads, const RmsNormArgs& norm, const float* head,
                           const AnyMatrix& out) {
    float normalised[kMaxHeadDim];
    std::byte* to = out.Row(row);
    for (int32_t h = 0; h < heads; ++h, head += args.head_dim, to += args.head_dim * SizeOf(out.dtype)) {
      const float* from = head;
      if (!norm.weight.empty()) {
        kernels_.rms_norm(head, norm.weight.data(), args.head_dim, norm.eps, DType::kF32, normalised);
        from = normalised;
      }
      kernels_.rotate(from, &args.cos(row, 0), &args.sin(row, 0), args.head_dim / 2, out.dtype, to);
    }
    return head;
  }

  // body(row) for each row, in tasks worth handing out; `cost` of one row in elements.
  template <class Body>
  void ForRows(int64_t rows, int64_t cost, Body body) {
    const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / cost);
    executor_.ParallelFor(RoundUp(rows, rows_per_task) / rows_per_task, [&](int64_t task, int) {
      for (int64_t row = task * rows_per_task; row < std::min(rows, (task + 1) * rows_per_task); ++row) body(row);
    });
  }

  Executor& executor_;
  const bool deterministic_;
  const Kernels& kernels_;
  const ProductLibrary library_;
  PackedWeight::Memory memory_;
  std::unique_ptr<OneDnnTiles> onednn_;  // null: panel kernels only
  std::string description_;
  std::vector<Worker> workers_;
  std::vector<int16_t> input_codes_;  // the memory of coded_input_
  std::vector<float> input_scales_, input_sums_;
  CodedInput coded_input_ = {};
};

}  // namespace

std::unique_ptr<Ops> MakeCpuOps(Executor* executor, const Ops::Options& options, const Kernels& kernels, ProductLibrary library) {
  return std::make_unique<CpuOps>(executor, options, kernels, library);
}

Result<std::unique_ptr<Ops>> Ops::CreateCpu(Executor* executor, const Options& options) {
  if (executor == nullptr) return InvalidArgument("the CPU ops have no executor; pass one, such as a ThreadPool");
  return MakeCpuOps(executor, options, SelectKernels(), ProductLibrary::kAuto);
}

}  // namespace coppice::ops
