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
  std::vector<RowRun> runs = {};  // the rows of a single matrix in the order of the outputs, a part each; empty: as stored
  bool is_qkv = false;            // packed for what rotates heads
};

// Calls visit(product, weight) for all products of a model, in the order in which a step reads them. `weights` have their layers.
template <class Weights, class Visit>
Status ForEachProduct(const ModelConfig& config, Weights* weights, Visit visit) {
  const Blocks& blocks = config.blocks;
  COPPICE_RETURN_IF_ERROR(visit(Product{.roles = {kEmbedding}}, &weights->embedding));
  if (blocks.learned_positions) COPPICE_RETURN_IF_ERROR(visit(Product{.roles = {kPositions}}, &weights->positions));
  if (!config.tie_embeddings) COPPICE_RETURN_IF_ERROR(visit(Product{.roles = {kLmHead}}, &weights->lm_head));
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
    COPPICE_RETURN_IF_ERROR(Convert(name, 1, n, DType::kF32, std::as_writable_bytes(std::span(values))));
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

  // All parts of a product, in the format that the options and `ops` say. Valid until the next call, for which Release makes room.
  Result<std::vector<ops::LinearPart>> Read(const Product& product, const ops::Ops& ops) {
    COPPICE_RETURN_IF_ERROR(OpenMatrices(product));
    if (ChoosesBlocks(product, ops)) {
      for (Matrix& matrix : matrices_) ReadBlocks(&matrix);
    } else {
      COPPICE_RETURN_IF_ERROR(ReadDense());
      if (ChoosesCodes(product, ops)) ReadCodes();
    }
    return PartsOf(product);
  }
  // Those of the matrices that the source has, dense, with their places in the product; a part may be a bias alone.
  Result<std::vector<std::pair<size_t, ops::LinearPart>>> ReadReplacements(const Product& product) {
    COPPICE_RETURN_IF_ERROR(OpenMatrices(product));
    COPPICE_RETURN_IF_ERROR(ReadDense());
    std::vector<std::pair<size_t, ops::LinearPart>> replacements;
    const std::vector<ops::LinearPart> parts = PartsOf(product);
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
    std::vector<float> bias;               // empty: likewise, or the model
    ops::WeightFormat format = ops::DenseFormat{};
    const std::byte* data = nullptr;
    int64_t row_bytes = 0;
    std::vector<std::byte> blocks;  // where they are not read in place
    std::vector<int8_t> codes;
    std::vector<F16> scales, minima;

    int64_t rows() const { return entry->shape[0]; }
    int64_t cols() const { return entry->shape[1]; }
  };

  Status OpenMatrices(const Product& product) {
    matrices_.clear();
    for (const WeightRole role : product.roles) {
      Matrix& matrix = matrices_.emplace_back();
      matrix.entry = &map_.at({product.layer, role});
      matrix.tensor = WeightOf(*matrix.entry);
      if (!HasBias(*matrix.entry)) continue;
      COPPICE_ASSIGN_OR_RETURN(matrix.bias, Bias(*matrix.entry));
    }
    return OkStatus();
  }

  // Rows of a matrix that are a part.
  static std::vector<RowRun> RunsOf(const Product& product, const Matrix& matrix) {
    return product.runs.empty() ? std::vector<RowRun>{{0, matrix.rows()}} : product.runs;
  }

  std::vector<ops::LinearPart> PartsOf(const Product& product) const {
    std::vector<ops::LinearPart> parts;
    for (const Matrix& matrix : matrices_) {
      for (const RowRun& run : RunsOf(product, matrix)) {
        ops::LinearPart& part = parts.emplace_back();
        part.rows = run.count;
        part.format = matrix.format;
        if (matrix.data != nullptr) part.weight = matrix.data + run.begin * matrix.row_bytes;
        if (!matrix.bias.empty()) part.bias = matrix.bias.data() + run.begin;
        if (matrix.codes.empty()) continue;
        const int64_t block = run.begin * (matrix.cols() / ops::kCodeBlock);
        part.codes = {.codes = matrix.codes.data() + run.begin * matrix.cols(),
                      .scales = matrix.scales.data() + block,
                      .minima = matrix.minima.data() + block};
      }
    }
    return parts;
  }

  // What `ops` make of the product if each matrix has the format of `format_of`; nothing where one has none.
  template <class FormatOf>
  std::optional<ops::FormatChoice> Ask(const Product& product, const ops::Ops& ops, FormatOf format_of) const {
    std::vector<ops::PartShape> shapes;
    for (const Matrix& matrix : matrices_) {
      const std::optional<ops::WeightFormat> format = format_of(*matrix.tensor);
      if (!format) return std::nullopt;
      for (const RowRun& run : RunsOf(product, matrix)) shapes.push_back({run.count, *format});
    }
    return ops.Accepts(shapes, options_.dtype, matrices_.front().cols(), product.order);
  }

  bool ChoosesBlocks(const Product& product, const ops::Ops& ops) {
    if (options_.keep_stored == KeepStored::kNone) return false;
    // The output projection's products are the logits themselves: an error there is not averaged by anything behind it.
    const bool coarse_input = config_.blocks.coarse_inputs && product.layer != kNoLayer && options_.dtype == DType::kBF16;
    const auto blocks_of = [&](const StoredTensor& tensor) -> std::optional<ops::WeightFormat> {
      const std::optional<ops::BlockFormat> format = FormatOf(tensor.type);
      if (!format || tensor.shape[1] % Traits(tensor.type).block_elements != 0) return std::nullopt;
      return ops::BlocksFormat{*format, coarse_input};
    };
    const std::optional<ops::FormatChoice> choice = Ask(product, ops, blocks_of);
    if (!choice || !choice->taken || (options_.keep_stored == KeepStored::kWhereFaster && !choice->preferred)) return false;
    for (Matrix& matrix : matrices_) matrix.format = *blocks_of(*matrix.tensor);
    return true;
  }

  bool ChoosesCodes(const Product& product, const ops::Ops& ops) const {
    if (options_.keep_stored != KeepStored::kWhereFaster) return false;
    const auto codes_of = [](const StoredTensor& tensor) -> std::optional<ops::WeightFormat> {
      if (CodeBits(tensor.type) == 0) return std::nullopt;
      return ops::CodedFormat{CodeBits(tensor.type)};
    };
    const std::optional<ops::FormatChoice> choice = Ask(product, ops, codes_of);
    return choice && choice->preferred;
  }

  static void ReadBlocks(Matrix* matrix) {
    matrix->row_bytes = StoredBytes(matrix->tensor->type, matrix->cols());
    matrix->data = matrix->tensor->data.data();
    if (matrix->tensor->interleaved_heads == 0) return;
    matrix->blocks.resize(matrix->tensor->data.size());
    LoadBlocks(*matrix->tensor, matrix->blocks.data());
    matrix->data = matrix->blocks.data();
  }

  // Whether the matrix lies in the source as Ops::Pack takes it.
  bool IsReadInPlace(const Matrix& matrix) const {
    return matrix.tensor->type == StoredTypeOf(options_.dtype) && matrix.tensor->interleaved_heads == 0 &&
           reinterpret_cast<uintptr_t>(matrix.tensor->data.data()) % SizeOf(options_.dtype) == 0;
  }

  // As WeightSource::Load, from wherever the tensor lies.
  Status Convert(const std::string& name, int64_t rows, int64_t cols, DType dtype, std::span<std::byte> out) const {
    const auto found = source_.tensors().find(name);
    if (found == source_.tensors().end() || found->second.device == DeviceKind::kCpu)
      return source_.Load(name, rows, cols, dtype, out);
    StoredTensor tensor = found->second;
    COPPICE_ASSIGN_OR_RETURN(Buffer copy, Buffer::Allocate(tensor.data.size()));
    COPPICE_RETURN_IF_ERROR(device_->Copy(copy.data(), tensor.data.data(), tensor.data.size(), nullptr));
    COPPICE_RETURN_IF_ERROR(device_->Synchronize(Stream{nullptr}));
    tensor.data = copy.Span<const std::byte>();
    return LoadWeight(name, tensor, rows, cols, dtype, out);
  }

  // In the compute dtype, in the source or in the staging buffer.
  Status ReadDense() {
    int64_t staged = 0;
    for (Matrix& matrix : matrices_) {
      matrix.row_bytes = matrix.cols() * static_cast<int64_t>(SizeOf(options_.dtype));
      if (matrix.tensor != nullptr && !IsReadInPlace(matrix)) staged += matrix.rows() * matrix.row_bytes;
    }
    if (static_cast<int64_t>(staging_.size()) < staged) {
      COPPICE_ASSIGN_OR_RETURN(staging_, Buffer::Allocate(staged));
    }
    std::byte* next = staging_.data();
    for (Matrix& matrix : matrices_) {
      if (matrix.tensor == nullptr) continue;
      if (IsReadInPlace(matrix)) {
        matrix.data = matrix.tensor->data.data();
        continue;
      }
      const int64_t bytes = matrix.rows() * matrix.row_bytes;
      COPPICE_RETURN_IF_ERROR(
          Convert(matrix.entry->name + ".weight", matrix.rows(), matrix.cols(), options_.dtype, std::span(next, bytes)));
      matrix.data = std::exchange(next, next + bytes);
    }
    return OkStatus();
  }

  // Of all matrices, or of none: a file may have numbers that codes cannot say.
  void ReadCodes() {
    const auto read = [](Matrix& matrix) {
      const int64_t elements = matrix.rows() * matrix.cols();
      matrix.codes.resize(elements);
      matrix.scales.resize(elements / ops::kCodeBlock);
      matrix.minima.resize(elements / ops::kCodeBlock);
      return LoadCodes(*matrix.tensor, matrix.codes.data(), matrix.scales.data(), matrix.minima.data());
    };
    if (!std::ranges::all_of(matrices_, read)) return;
    for (Matrix& matrix : matrices_) matrix.format = ops::CodedFormat{CodeBits(matrix.tensor->type)};
  }

  const WeightSource& source_;
  const ModelConfig& config_;
  const WeightStore::Options options_;
  Device* const device_;
  const WeightMap map_;
  std::vector<Matrix> matrices_;  // of the product at hand
  Buffer staging_;
};

// Whether an update can replace it.
Status CheckDense(const ModelConfig& config, const Product& product, const ops::Weight& weight) {
  if (weight.is_dense()) return OkStatus();
  const std::string& name = WeightsOf(config).at({product.layer, product.roles.front()}).name;
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
  const ops::QkvHeads heads = {.num_qo_heads = config.num_qo_heads,
                               .num_kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim,
                               .rotary_dim = config.rotated(),
                               .pairs = config.blocks.rope_pairs};
  const auto pack = [&](const Product& product, std::unique_ptr<ops::Weight>* weight) -> Status {
    COPPICE_ASSIGN_OR_RETURN(const std::vector<ops::LinearPart> parts, reader.Read(product, ops));
    const int64_t in_features = reader.Find(product.layer, product.roles.front())->shape[1];
    COPPICE_ASSIGN_OR_RETURN(*weight, product.is_qkv ? ops.PackQkv(options.dtype, in_features, parts, heads)
                                                     : ops.Pack(options.dtype, in_features, parts, product.order));
    reader.Release();
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(ForEachProduct(config, &store.weights_, pack));
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
  return ForEachProduct(config_, &weights_, check);
}

std::set<std::string, std::less<>> WeightStore::AllNames() const {
  std::set<std::string, std::less<>> names;
  for (const auto& [name, shape] : ExpectedWeights(config_)) names.insert(name);
  return names;
}

Status WeightStore::Drop() {
  COPPICE_RETURN_IF_ERROR(
      ForEachProduct(config_, &weights_, [this](const Product& product, const std::unique_ptr<ops::Weight>* weight) {
        return CheckDense(config_, product, **weight);
      }));
  missing_ = AllNames();
  return OkStatus();
}

Status WeightStore::Update(const WeightSource& source) {
  PartReader reader(source, config_, options_, device_);
  std::set<std::string, std::less<>> missing = std::exchange(missing_, AllNames());
  const auto repack = [&](const Product& product, std::unique_ptr<ops::Weight>* weight) -> Status {
    COPPICE_ASSIGN_OR_RETURN(const auto replacements, reader.ReadReplacements(product));
    for (const auto& [index, part] : replacements) COPPICE_RETURN_IF_ERROR(ops_->Repack(part, index, weight->get()));
    reader.Release();
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(ForEachProduct(config_, &weights_, repack));
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
  return OkStatus();
}

}  // namespace coppice
