#include "model/weight_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "core/buffer.h"
#include "core/quoted.h"
#include "model/dequantize.h"
#include "model/weight_map.h"

namespace coppice {
namespace {

using enum WeightRole;

std::optional<ops::BlockFormat> FormatOf(StoredType type) {
  for (size_t i = 0; i < ops::kNumBlockFormats; ++i) {
    if (ops::kBlockFormats[i].name == Name(type)) return static_cast<ops::BlockFormat>(i);
  }
  return std::nullopt;
}

// How a product's weight is made of stored matrices.
struct Product {
  int32_t layer = kNoLayer;
  std::vector<WeightRole> roles;  // of the matrices
  ops::PartOrder order = ops::PartOrder::kConcatenated;
  std::vector<RowRun> runs = {};    // where the rows of a single matrix lie, in the order of the outputs; empty: as stored
  bool is_qkv = false;              // packed for what rotates heads
  std::optional<DType> dtype = {};  // of the weight, which is dense then; none: that of the options
};

// The dtype of an output projection that is held apart from other weights' dtype.
std::optional<DType> HeadDType(const WeightStore::Options& options) {
  return options.head_dtype == options.dtype ? std::nullopt : std::optional(options.head_dtype);
}

// Calls visit(product, weight) for all products of a model, in the order in which a step reads them. `weights` have their layers.
template <class Weights, class Visit>
Status ForEachProduct(const ModelConfig& config, const WeightStore::Options& options, Weights* weights, Visit visit) {
  const Blocks& blocks = config.blocks;
  COPPICE_RETURN_IF_ERROR(visit(Product{.roles = {kEmbedding}}, &weights->embedding));
  if (blocks.learned_positions) COPPICE_RETURN_IF_ERROR(visit(Product{.roles = {kPositions}}, &weights->positions));
  const std::optional<DType> head_dtype = HeadDType(options);
  if (!config.tie_embeddings || head_dtype)
    COPPICE_RETURN_IF_ERROR(
        visit(Product{.roles = {config.tie_embeddings ? kEmbedding : kLmHead}, .dtype = head_dtype}, &weights->lm_head));
  const Product qkv = {.roles = blocks.qkv == QkvLayout::kSeparate ? std::vector{kQ, kK, kV} : std::vector{kQkv},
                       .runs = FusedRows(config),
                       .is_qkv = true};
  for (int32_t i = 0; i < config.num_layers; ++i) {
    auto& layer = weights->layers[i];
    Product qkv_of_layer = qkv;
    qkv_of_layer.layer = i;
    COPPICE_RETURN_IF_ERROR(visit(qkv_of_layer, &layer.qkv));
    COPPICE_RETURN_IF_ERROR(visit(Product{.layer = i, .roles = {kAttentionOutput}}, &layer.output));
    if (blocks.gated_mlp) {
      COPPICE_RETURN_IF_ERROR(visit(Product{.layer = i, .roles = {kGate, kUp}, .order = ops::PartOrder::kGateUp}, &layer.up));
    } else {
      COPPICE_RETURN_IF_ERROR(visit(Product{.layer = i, .roles = {kUp}}, &layer.up));
    }
    COPPICE_RETURN_IF_ERROR(visit(Product{.layer = i, .roles = {kDown}}, &layer.down));
  }
  return OkStatus();
}

// Calls visit(layer, role, norm) for all norms that a model may have; the map of weights says which ones it has.
template <class Visit>
Status ForEachNorm(const ModelConfig& config, ModelWeights* weights, Visit visit) {
  COPPICE_RETURN_IF_ERROR(visit(kNoLayer, kFinalNorm, &weights->final_norm));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    LayerWeights& layer = weights->layers[i];
    COPPICE_RETURN_IF_ERROR(visit(i, kAttentionNorm, &layer.attention_norm));
    COPPICE_RETURN_IF_ERROR(visit(i, kMlpNorm, &layer.mlp_norm));
    COPPICE_RETURN_IF_ERROR(visit(i, kPostAttentionNorm, &layer.post_attention_norm));
    COPPICE_RETURN_IF_ERROR(visit(i, kPostMlpNorm, &layer.post_mlp_norm));
    if (!config.blocks.qk_norm) continue;
    if (!layer.q_norm) layer.q_norm.emplace();
    if (!layer.k_norm) layer.k_norm.emplace();
    COPPICE_RETURN_IF_ERROR(visit(i, kQNorm, &*layer.q_norm));
    COPPICE_RETURN_IF_ERROR(visit(i, kKNorm, &*layer.k_norm));
  }
  return OkStatus();
}

// Makes parts of products from a source, with what they need of host memory. The source's tensors passed CheckSomeWeights.
class PartReader {
 public:
  // `device`: of tensors that do not lie in host memory.
  PartReader(const WeightSource& source, const ModelConfig& config, const WeightStore::Options& options, Device* device)
      : source_(source), config_(config), options_(options), device_(device), map_(WeightsOf(config)) {}

  const WeightEntry* Find(int32_t layer, WeightRole role) const {
    const auto found = map_.find({layer, role});
    return found == map_.end() ? nullptr : &found->second;
  }
  // Null: the source does not have it.
  const StoredTensor* WeightOf(const WeightEntry& entry) const {
    const auto found = source_.tensors().find(entry.name + ".weight");
    return found == source_.tensors().end() ? nullptr : &found->second;
  }
  bool HasBias(const WeightEntry& entry) const { return entry.bias && source_.tensors().contains(entry.name + ".bias"); }

  Result<std::vector<float>> Vector(const std::string& name, int64_t n) const {
    std::vector<float> values(n);
    const auto out = std::as_writable_bytes(std::span(values));
    const auto found = source_.tensors().find(name);
    if (found == source_.tensors().end() || found->second.device == DeviceKind::kCpu) {
      COPPICE_RETURN_IF_ERROR(source_.Load(name, 1, n, DType::kF32, out));
      return values;
    }
    Buffer copy;
    COPPICE_ASSIGN_OR_RETURN(const StoredTensor on_host, OnHost(found->second, &copy));
    COPPICE_RETURN_IF_ERROR(LoadWeight(name, on_host, 1, n, DType::kF32, out));
    return values;
  }
  Result<std::vector<float>> NormWeight(const WeightEntry& entry) const {
    COPPICE_ASSIGN_OR_RETURN(std::vector<float> values, Vector(entry.name + ".weight", entry.shape[0]));
    if (config_.blocks.unit_offset_norms) {
      for (float& value : values) value += 1.0f;
    }
    return values;
  }
  Result<std::vector<float>> Bias(const WeightEntry& entry) const { return Vector(entry.name + ".bias", entry.shape[0]); }

  DType DTypeOf(const Product& product) const { return product.dtype.value_or(options_.dtype); }

  // All parts of a product, in the format that the options and `ops` say. Valid until the next call, for which Release makes room.
  Result<std::vector<ops::LinearPart>> Read(const Product& product, const ops::Ops& ops) {
    COPPICE_RETURN_IF_ERROR(OpenMatrices(product));
    if (ChoosesBlocks(product, ops)) {
      ReadBlocks();
    } else {
      COPPICE_RETURN_IF_ERROR(ReadDense());
      if (ChoosesCodes(product, ops)) ReadCodes();
    }
    return PartsOf();
  }
  // Those of the matrices that the source has, dense, with their places in the product; a part may be a bias alone.
  Result<std::vector<std::pair<size_t, ops::LinearPart>>> ReadReplacements(const Product& product) {
    COPPICE_RETURN_IF_ERROR(OpenMatrices(product));
    COPPICE_RETURN_IF_ERROR(ReadDense());
    std::vector<std::pair<size_t, ops::LinearPart>> replacements;
    const std::vector<ops::LinearPart> parts = PartsOf();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].weight != nullptr || parts[i].bias != nullptr) replacements.emplace_back(i, parts[i]);
    }
    return replacements;
  }
  void Release() {
    for (const Matrix& matrix : matrices_) {
      if (matrix.tensor != nullptr) source_.Release(*matrix.tensor);
    }
    matrices_.clear();
  }

 private:
  struct Matrix {
    const WeightEntry* entry = nullptr;
    const StoredTensor* tensor = nullptr;  // null: the source does not have it
    StoredTensor on_host;                  // where it is not read in place
    Buffer copy;                           // that it lies in, if it came from a device
    std::vector<float> bias;               // empty: likewise, or the model
    ShardRun cols;
    ops::WeightFormat format = ops::DenseFormat{};
    int64_t row_bytes = 0;  // of a part
    int64_t part_rows = 0;  // of all parts
    bool is_padded = false;
    // Elements that are not read in place, of all parts one after the other.
    std::vector<std::byte> blocks;
    std::vector<int8_t> codes;
    std::vector<F16> scales, minima;
  };
  // Rows of a matrix that are a part of the product, with zeros behind them where the shard has more.
  struct Slice {
    size_t matrix = 0;
    RowRun rows;
    int64_t padding = 0;
    const std::byte* data = nullptr;
    int64_t first_part_row = 0;  // among those of the matrix
    std::vector<float> bias;     // where it is padded

    int64_t part_rows() const { return rows.count + padding; }
  };

  Status OpenMatrices(const Product& product) {
    matrices_.clear();
    slices_.clear();
    dtype_ = DTypeOf(product);
    for (const WeightRole role : product.roles) {
      Matrix& matrix = matrices_.emplace_back();
      matrix.entry = &map_.at({product.layer, role});
      matrix.tensor = WeightOf(*matrix.entry);
      matrix.cols = options_.shard.Columns(role, config_);
      if (HasBias(*matrix.entry) && options_.shard.HoldsBias(role)) {
        COPPICE_ASSIGN_OR_RETURN(matrix.bias, Bias(*matrix.entry));
      }
      if (product.runs.empty()) {
        AddSlices({{0, matrix.entry->shape[0]}}, options_.shard.Rows(role, config_));
      } else if (options_.shard.ranks == 1) {
        for (const RowRun& run : product.runs) slices_.push_back({.matrix = matrices_.size() - 1, .rows = run});
      } else {
        for (const ShardRun& part : options_.shard.FusedQkv(config_)) AddSlices(product.runs, part);
      }
    }
    for (Slice& slice : slices_) {
      Matrix& matrix = matrices_[slice.matrix];
      slice.first_part_row = std::exchange(matrix.part_rows, matrix.part_rows + slice.part_rows());
      matrix.is_padded |= slice.padding > 0 || matrix.cols.padding() > 0;
      PadBias(&slice);
    }
    return OkStatus();
  }

  // The slices of the last matrix that are `part` of what `runs` are one after the other.
  void AddSlices(const std::vector<RowRun>& runs, const ShardRun& part) {
    const size_t first = slices_.size();
    for (const RowRun& run : SelectRows(runs, part.held())) slices_.push_back({.matrix = matrices_.size() - 1, .rows = run});
    if (part.padding() == 0) return;
    if (slices_.size() == first) slices_.push_back({.matrix = matrices_.size() - 1});
    slices_.back().padding = part.padding();
  }

  void PadBias(Slice* slice) const {
    const std::vector<float>& bias = matrices_[slice->matrix].bias;
    if (bias.empty() || slice->padding == 0) return;
    slice->bias.assign(bias.begin() + slice->rows.begin, bias.begin() + slice->rows.begin + slice->rows.count);
    slice->bias.resize(slice->part_rows());
  }

  static MatrixSlice HeldOf(const Slice& slice, const Matrix& matrix) { return {slice.rows, matrix.cols.held()}; }
  static bool HasWholeBlocks(const Matrix& matrix, int64_t block) {
    return matrix.entry->shape[1] % block == 0 && matrix.cols.padded % block == 0;
  }
  // Whether parts are rows of the source's memory, if that has their format.
  static bool AreRowsOfSource(const Matrix& matrix) {
    return matrix.tensor->interleaved_heads == 0 && !matrix.is_padded && matrix.cols.count == matrix.entry->shape[1];
  }

  std::vector<ops::LinearPart> PartsOf() const {
    std::vector<ops::LinearPart> parts;
    for (const Slice& slice : slices_) {
      const Matrix& matrix = matrices_[slice.matrix];
      ops::LinearPart& part = parts.emplace_back();
      part.rows = slice.part_rows();
      part.format = matrix.format;
      part.weight = slice.data;
      if (!slice.bias.empty()) {
        part.bias = slice.bias.data();
      } else if (!matrix.bias.empty()) {
        part.bias = matrix.bias.data() + slice.rows.begin;
      }
      if (matrix.codes.empty()) continue;
      const int64_t element = slice.first_part_row * matrix.cols.padded;
      part.codes = {.codes = matrix.codes.data() + element,
                    .scales = matrix.scales.data() + element / ops::kCodeBlock,
                    .minima = matrix.minima.data() + element / ops::kCodeBlock};
    }
    return parts;
  }

  // The choice of `ops` for the product if each matrix has the format of `format_of`; nullopt where one has none.
  template <class FormatOf>
  std::optional<ops::FormatChoice> Ask(const Product& product, const ops::Ops& ops, FormatOf format_of) const {
    std::vector<ops::PartShape> shapes;
    for (const Slice& slice : slices_) {
      const std::optional<ops::WeightFormat> format = format_of(matrices_[slice.matrix]);
      if (!format) return std::nullopt;
      shapes.push_back({slice.part_rows(), *format});
    }
    return ops.Accepts(shapes, dtype_, matrices_.front().cols.padded, product.order);
  }

  bool ChoosesBlocks(const Product& product, const ops::Ops& ops) {
    if (options_.keep_stored == KeepStored::kNone || product.dtype) return false;
    // The output projection's products are the logits themselves: an error there is not averaged by anything behind it.
    const bool coarse_input = config_.blocks.coarse_inputs && product.layer != kNoLayer && dtype_ == DType::kBF16;
    const auto blocks_of = [&](const Matrix& matrix) -> std::optional<ops::WeightFormat> {
      const std::optional<ops::BlockFormat> format = FormatOf(matrix.tensor->type);
      if (!format || !HasWholeBlocks(matrix, Traits(matrix.tensor->type).block_elements)) return std::nullopt;
      return ops::BlocksFormat{*format, coarse_input};
    };
    const std::optional<ops::FormatChoice> choice = Ask(product, ops, blocks_of);
    if (!choice || !choice->taken || (options_.keep_stored == KeepStored::kWhereFaster && !choice->preferred)) return false;
    for (Matrix& matrix : matrices_) matrix.format = *blocks_of(matrix);
    return true;
  }

  bool ChoosesCodes(const Product& product, const ops::Ops& ops) const {
    if (options_.keep_stored != KeepStored::kWhereFaster || product.dtype) return false;
    const auto codes_of = [](const Matrix& matrix) -> std::optional<ops::WeightFormat> {
      const int32_t bits = CodeBits(matrix.tensor->type);
      if (bits == 0 || !HasWholeBlocks(matrix, ops::kCodeBlock)) return std::nullopt;
      return ops::CodedFormat{bits};
    };
    const std::optional<ops::FormatChoice> choice = Ask(product, ops, codes_of);
    return choice && choice->preferred;
  }

  void ReadBlocks() {
    for (Matrix& matrix : matrices_) {
      matrix.row_bytes = StoredBytes(matrix.tensor->type, matrix.cols.padded);
      if (!AreRowsOfSource(matrix)) matrix.blocks.resize(matrix.part_rows * matrix.row_bytes);  // blocks of zero bytes are zeros
    }
    for (Slice& slice : slices_) {
      Matrix& matrix = matrices_[slice.matrix];
      if (AreRowsOfSource(matrix)) {
        slice.data = matrix.tensor->data.data() + slice.rows.begin * matrix.row_bytes;
      } else {
        std::byte* const to = matrix.blocks.data() + slice.first_part_row * matrix.row_bytes;
        LoadBlocks(*matrix.tensor, HeldOf(slice, matrix), matrix.row_bytes, to);
        slice.data = to;
      }
    }
  }

  // Whether parts lie in the source as Ops::Pack takes them.
  bool IsReadInPlace(const Matrix& matrix) const {
    return matrix.tensor->type == StoredTypeOf(dtype_) && AreRowsOfSource(matrix) &&
           reinterpret_cast<uintptr_t>(matrix.tensor->data.data()) % SizeOf(dtype_) == 0;
  }

  // The tensor with its data in host memory, in `copy` where it lies elsewhere.
  Result<StoredTensor> OnHost(const StoredTensor& tensor, Buffer* copy) const {
    if (tensor.device == DeviceKind::kCpu) return tensor;
    COPPICE_ASSIGN_OR_RETURN(*copy, Buffer::Allocate(tensor.data.size()));
    COPPICE_RETURN_IF_ERROR(device_->Copy(copy->data(), tensor.data.data(), tensor.data.size(), nullptr));
    COPPICE_RETURN_IF_ERROR(device_->Synchronize(Stream{nullptr}));
    StoredTensor on_host = tensor;
    on_host.data = copy->Span<const std::byte>();
    return on_host;
  }

  // In the product's dtype, in the source or in the staging buffer.
  Status ReadDense() {
    int64_t staged = 0;
    for (Matrix& matrix : matrices_) {
      matrix.row_bytes = matrix.cols.padded * static_cast<int64_t>(SizeOf(dtype_));
      if (matrix.tensor == nullptr || IsReadInPlace(matrix)) continue;
      staged += matrix.part_rows * matrix.row_bytes;
      COPPICE_ASSIGN_OR_RETURN(matrix.on_host, OnHost(*matrix.tensor, &matrix.copy));
    }
    if (static_cast<int64_t>(staging_.size()) < staged) {
      COPPICE_ASSIGN_OR_RETURN(staging_, Buffer::Allocate(staged));
    }
    std::byte* next = staging_.data();
    for (Slice& slice : slices_) {
      const Matrix& matrix = matrices_[slice.matrix];
      if (matrix.tensor == nullptr) continue;
      if (IsReadInPlace(matrix)) {
        slice.data = matrix.tensor->data.data() + slice.rows.begin * matrix.row_bytes;
        continue;
      }
      std::byte* const to = std::exchange(next, next + slice.part_rows() * matrix.row_bytes);
      if (matrix.is_padded) std::fill(to, next, std::byte{0});
      LoadSlice(matrix.on_host, HeldOf(slice, matrix), dtype_, matrix.cols.padded, to);
      slice.data = to;
    }
    return OkStatus();
  }

  // Of all matrices, or of none: a file may have numbers that codes cannot say.
  void ReadCodes() {
    for (Matrix& matrix : matrices_) {
      const int64_t elements = matrix.part_rows * matrix.cols.padded;
      matrix.codes.resize(elements);
      matrix.scales.resize(elements / ops::kCodeBlock);
      matrix.minima.resize(elements / ops::kCodeBlock);
    }
    const auto read = [&](const Slice& slice) {
      Matrix& matrix = matrices_[slice.matrix];
      const int64_t element = slice.first_part_row * matrix.cols.padded, block = element / ops::kCodeBlock;
      return LoadCodes(*matrix.tensor, HeldOf(slice, matrix), matrix.cols.padded, matrix.codes.data() + element,
                       matrix.scales.data() + block, matrix.minima.data() + block);
    };
    if (!std::ranges::all_of(slices_, read)) return;
    for (Matrix& matrix : matrices_) matrix.format = ops::CodedFormat{CodeBits(matrix.tensor->type)};
  }

  const WeightSource& source_;
  const ModelConfig& config_;
  const WeightStore::Options options_;
  Device* const device_;
  const WeightMap map_;
  DType dtype_ = DType::kBF16;    // of the product at hand
  std::vector<Matrix> matrices_;  // of it
  std::vector<Slice> slices_;     // its parts, in their order
  Buffer staging_;
};

// Whether an update can replace it.
Status CheckDense(const ModelConfig& config, const Product& product, const ops::Weight& weight) {
  if (weight.is_dense()) return OkStatus();
  const std::string name = WeightsOf(config).at({product.layer, product.roles.front()}).name;
  return FailedPrecondition(
      fmt::format("{} is kept as its file stores it, quantised, and cannot be replaced: load the model with weights of bf16 or f32",
                  Quoted(name + ".weight")));
}

}  // namespace

Result<WeightStore> WeightStore::Load(const WeightSource& source, const ModelConfig& config, const Options& options, Device& device,
                                      ops::Ops& ops) {
  WeightStore store(config, options, &device, &ops);
  store.weights_.layers.resize(config.num_layers);
  PartReader reader(source, config, options, &device);
  const ModelConfig local = options.shard.Local(config);
  const ops::QkvHeads heads = {.num_qo_heads = local.num_qo_heads,
                               .num_kv_heads = local.num_kv_heads,
                               .head_dim = config.head_dim,
                               .rotary_dim = config.rotated(),
                               .pairs = config.blocks.rope_pairs};
  const auto pack = [&](const Product& product, std::unique_ptr<ops::Weight>* weight) -> Status {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<ops::LinearPart> parts, reader.Read(product, ops));
    const int64_t in_features = options.shard.Columns(product.roles.front(), config).padded;
    const DType dtype = reader.DTypeOf(product);
    COPPICE_ASSIGN_OR_RETURN(*weight, product.is_qkv ? ops.PackQkv(dtype, in_features, parts, heads)
                                                     : ops.Pack(dtype, in_features, parts, product.order));
    reader.Release();
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(ForEachProduct(config, options, &store.weights_, pack));
  const auto make_norm = [&](int32_t layer, WeightRole role, NormWeights* norm) -> Status {
    const WeightEntry* entry = reader.Find(layer, role);
    if (entry == nullptr) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(const std::vector<float> weight, reader.NormWeight(*entry));
    COPPICE_ASSIGN_OR_RETURN(norm->weight, DeviceVector::Create(device, weight));
    if (!entry->bias) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(const std::vector<float> bias, reader.Bias(*entry));
    COPPICE_ASSIGN_OR_RETURN(norm->bias, DeviceVector::Create(device, bias));
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(ForEachNorm(config, &store.weights_, make_norm));
  return store;
}

Status WeightStore::CheckUpdate(const WeightSource& source) const {
  COPPICE_RETURN_IF_ERROR(CheckSomeWeights(config_, source.tensors()));
  for (const auto& [name, tensor] : source.tensors()) {
    if (tensor.device != DeviceKind::kCpu && tensor.device != device_->kind())
      return InvalidArgument(fmt::format("tensor {} lies in a GPU's memory, the model runs on the {}: copy it to host memory",
                                         Quoted(name), device_->name()));
  }
  const PartReader reader(source, config_, options_, device_);
  const auto check = [&](const Product& product, const std::unique_ptr<ops::Weight>* weight) -> Status {
    const bool is_replaced = std::ranges::any_of(product.roles, [&](WeightRole role) {
      const WeightEntry& entry = *reader.Find(product.layer, role);
      return reader.WeightOf(entry) != nullptr || reader.HasBias(entry);
    });
    return is_replaced ? CheckDense(config_, product, **weight) : OkStatus();
  };
  return ForEachProduct(config_, options_, &weights_, check);
}

std::set<std::string, std::less<>> WeightStore::AllNames() const {
  std::set<std::string, std::less<>> names;
  for (const auto& [name, shape] : ExpectedWeights(config_)) names.insert(name);
  return names;
}

HeldWeights WeightStore::Held() const {
  HeldWeights held;
  const WeightMap map = WeightsOf(config_);
  const auto head = map.find({kNoLayer, kLmHead});
  const std::string head_name = head == map.end() ? "" : head->second.name + ".weight";
  for (auto& [name, shape] : ExpectedWeights(config_)) {
    const DType dtype = shape.size() == 1 ? DType::kF32 : name == head_name ? options_.head_dtype : options_.dtype;
    held.emplace(name, HeldWeight{.shape = shape, .dtype = dtype, .missing = missing_.contains(name)});
  }
  return held;
}

Status WeightStore::CheckDrop() const {
  return ForEachProduct(config_, options_, &weights_, [this](const Product& product, const std::unique_ptr<ops::Weight>* weight) {
    return CheckDense(config_, product, **weight);
  });
}

Status WeightStore::Update(const WeightSource& source) {
  PartReader reader(source, config_, options_, device_);
  std::set<std::string, std::less<>> missing = std::exchange(missing_, AllNames());
  const bool keeps_rest = std::exchange(keeps_rest_, false);
  const auto repack = [&](const Product& product, std::unique_ptr<ops::Weight>* weight) -> Status {
    COPPICE_ASSIGN_OR_RETURN(const auto replacements, reader.ReadReplacements(product));
    for (const auto& [index, part] : replacements) COPPICE_RETURN_IF_ERROR(ops_->Repack(part, index, weight->get()));
    reader.Release();
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(ForEachProduct(config_, options_, &weights_, repack));
  const auto assign = [&](int32_t layer, WeightRole role, NormWeights* norm) -> Status {
    const WeightEntry* entry = reader.Find(layer, role);
    if (entry == nullptr) return OkStatus();
    if (reader.WeightOf(*entry) != nullptr) {
      COPPICE_ASSIGN_OR_RETURN(const std::vector<float> weight, reader.NormWeight(*entry));
      COPPICE_RETURN_IF_ERROR(norm->weight.Assign(*device_, weight));
    }
    if (reader.HasBias(*entry)) {
      COPPICE_ASSIGN_OR_RETURN(const std::vector<float> bias, reader.Bias(*entry));
      COPPICE_RETURN_IF_ERROR(norm->bias.Assign(*device_, bias));
    }
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(ForEachNorm(config_, &weights_, assign));
  COPPICE_RETURN_IF_ERROR(device_->Synchronize(Stream{nullptr}));
  for (const auto& [name, tensor] : source.tensors()) missing.erase(name);
  missing_ = std::move(missing);
  keeps_rest_ = keeps_rest;
  return OkStatus();
}

}  // namespace coppice
