#include "model/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "core/check.h"
#include "core/gguf_part.h"
#include "model/error_text.h"

namespace coppice {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMaxKeyBytes = 65535;      // limit of the format
constexpr uint64_t kMaxTensorNameBytes = 64;  // limit of the format
constexpr uint32_t kMaxDimensions = 4;        // limit of the format
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMaxAlignment = 1 << 20;  // ours: a sane bound far above any page size
constexpr int kMaxArrayDepth = 4;            // ours: real files do not nest arrays

struct TypeTraits {
  std::string_view name;
  uint32_t bytes;  // 0: variable
};
constexpr std::array<TypeTraits, 13> kTypes = {{{"u8", 1},
                                                {"i8", 1},
                                                {"u16", 2},
                                                {"i16", 2},
                                                {"u32", 4},
                                                {"i32", 4},
                                                {"f32", 4},
                                                {"bool", 1},
                                                {"string", 0},
                                                {"array", 0},
                                                {"u64", 8},
                                                {"i64", 8},
                                                {"f64", 8}}};
const TypeTraits& TraitsOf(GgufType type) { return kTypes[static_cast<size_t>(type)]; }

// Fewest bytes that an array element of this type takes: bounds a count before anything is read or allocated.
uint64_t MinElementBytes(GgufType type) {
  switch (type) {
    case GgufType::kString: return 8;  // length
    case GgufType::kArray: return 12;  // element type and count
    default: return TraitsOf(type).bytes;
  }
}

// Tensor element types by the ids of the format; those without a StoredType are known by name only.
struct TensorType {
  uint32_t id;
  std::string_view name;
};
constexpr std::array<TensorType, 33> kTensorTypes = {
    {{0, "F32"},      {1, "F16"},     {2, "Q4_0"},     {3, "Q4_1"},   {6, "Q5_0"},    {7, "Q5_1"},   {8, "Q8_0"},
     {9, "Q8_1"},     {10, "Q2_K"},   {11, "Q3_K"},    {12, "Q4_K"},  {13, "Q5_K"},   {14, "Q6_K"},  {15, "Q8_K"},
     {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},
     {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},   {27, "I64"},    {28, "F64"},   {29, "IQ1_M"},
     {30, "BF16"},    {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"}, {40, "NVFP4"}}};

template <class T>
T LoadAs(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

int64_t LoadInt(GgufType type, const std::byte* p) {  // REQUIRES: an integer type; a u64 fits if the caller checked
  switch (type) {
    case GgufType::kU8: return LoadAs<uint8_t>(p);
    case GgufType::kI8: return LoadAs<int8_t>(p);
    case GgufType::kU16: return LoadAs<uint16_t>(p);
    case GgufType::kI16: return LoadAs<int16_t>(p);
    case GgufType::kU32: return LoadAs<uint32_t>(p);
    case GgufType::kI32: return LoadAs<int32_t>(p);
    case GgufType::kU64: return static_cast<int64_t>(std::min<uint64_t>(LoadAs<uint64_t>(p), INT64_MAX));  // saturates
    default: return LoadAs<int64_t>(p);
  }
}

bool IsInteger(GgufType type) { return type <= GgufType::kI32 || type == GgufType::kU64 || type == GgufType::kI64; }

}  // namespace

// Reads front to back; every read is checked against the end of the file.
class GgufDirectory::Parser {
 public:
  Parser(std::span<const std::byte> bytes, GgufDirectory& out) : bytes_(bytes), out_(out) {}

  Status Run() {
    COPPICE_RETURN_IF_ERROR(Header());
    for (uint64_t i = 0; i < value_count_; ++i) COPPICE_RETURN_IF_ERROR(KeyValue(i));
    COPPICE_RETURN_IF_ERROR(Alignment());
    for (uint64_t i = 0; i < tensor_count_; ++i) COPPICE_RETURN_IF_ERROR(TensorInfo(i));
    return PlaceTensors();
  }

 private:
  struct PendingTensor {
    std::string name;
    StoredTensor tensor;
    uint64_t offset, size;
  };

  uint64_t remaining() const { return bytes_.size() - position_; }

  Result<std::span<const std::byte>> Take(uint64_t count, std::string_view what) {
    if (count > remaining()) {
      return DataLoss(
          fmt::format("{}: truncated or corrupt: {} at byte {} takes {} bytes, but only {} are left of {}; fetch the file again",
                      out_.path_, what, position_, count, remaining(), bytes_.size()));
    }
    const std::span<const std::byte> taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  template <class T>
  Status Read(T* value, std::string_view what) {
    COPPICE_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, Take(sizeof(T), what));
    *value = LoadAs<T>(bytes.data());
    return OkStatus();
  }

  Result<std::string_view> ReadString(uint64_t max_bytes, std::string_view what) {
    uint64_t size = 0;
    COPPICE_RETURN_IF_ERROR(Read(&size, what));
    if (size > max_bytes) {
      return DataLoss(fmt::format("{}: corrupt: {} before byte {} has {} bytes, at most {} are allowed", out_.path_, what,
                                  position_, size, max_bytes));
    }
    COPPICE_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, Take(size, what));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), size);
  }

  Status CheckCount(uint64_t count, uint64_t min_bytes_each, std::string_view what) {
    if (count <= remaining() / min_bytes_each) return OkStatus();
    return DataLoss(fmt::format("{}: truncated or corrupt: {} {} of at least {} bytes each, but only {} bytes are left", out_.path_,
                                count, what, min_bytes_each, remaining()));
  }

  Status Header() {
    if (bytes_.size() < kMagic.size() || std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
      const std::string_view found(reinterpret_cast<const char*>(bytes_.data()), std::min(bytes_.size(), kMagic.size()));
      return DataLoss(fmt::format("{}: not a GGUF file: it begins with {}, not \"GGUF\"", out_.path_, Quoted(found)));
    }
    position_ = kMagic.size();
    COPPICE_RETURN_IF_ERROR(Read(&out_.version_, "the version"));
    if (out_.version_ != 0 && (out_.version_ & 0xffffu) == 0) {
      return Unimplemented(fmt::format("{}: big-endian GGUF (version bytes 0x{:08x}) is not supported; convert it to little endian",
                                       out_.path_, out_.version_));
    }
    if (out_.version_ != 2 && out_.version_ != 3) {
      return Unimplemented(
          fmt::format("{}: GGUF version {} is not supported, expected 2 or 3; convert the model again", out_.path_, out_.version_));
    }
    COPPICE_RETURN_IF_ERROR(Read(&tensor_count_, "the tensor count"));
    COPPICE_RETURN_IF_ERROR(Read(&value_count_, "the metadata count"));
    COPPICE_RETURN_IF_ERROR(CheckCount(value_count_, 8 + 4 + 1, "metadata entries"));  // key length, type, a byte
    return CheckCount(tensor_count_, 8 + 4 + 8 + 4 + 8, "tensors");  // name length, dimension count, one, type, offset
  }

  Status ReadType(GgufType* type, std::string_view what) {
    uint32_t id = 0;
    COPPICE_RETURN_IF_ERROR(Read(&id, what));
    if (id >= kTypes.size()) {
      return DataLoss(fmt::format("{}: corrupt: {} has value type {}, known are 0..{}", out_.path_, what, id, kTypes.size() - 1));
    }
    *type = static_cast<GgufType>(id);
    return OkStatus();
  }

  // Moves past `count` values of `type`.
  Status Skip(GgufType type, uint64_t count, std::string_view what, int depth) {
    COPPICE_RETURN_IF_ERROR(CheckCount(count, MinElementBytes(type), what));
    if (TraitsOf(type).bytes != 0) return Take(count * TraitsOf(type).bytes, what).status();
    for (uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::kString) {
        COPPICE_RETURN_IF_ERROR(ReadString(UINT64_MAX, what).status());
      } else {
        COPPICE_RETURN_IF_ERROR(SkipArray(what, depth + 1).status());
      }
    }
    return OkStatus();
  }

  // Reads an array's header and moves past its elements.
  Result<Value> SkipArray(std::string_view what, int depth) {
    if (depth > kMaxArrayDepth) {
      return DataLoss(fmt::format("{}: corrupt: {} nests arrays deeper than {}", out_.path_, what, kMaxArrayDepth));
    }
    Value value{.is_array = true};
    COPPICE_RETURN_IF_ERROR(ReadType(&value.type, what));
    COPPICE_RETURN_IF_ERROR(Read(&value.count, what));
    const uint64_t begin = position_;
    COPPICE_RETURN_IF_ERROR(Skip(value.type, value.count, what, depth));
    value.bytes = bytes_.subspan(begin, position_ - begin);
    return value;
  }

  Status KeyValue(uint64_t index) {
    COPPICE_ASSIGN_OR_RETURN(const std::string_view key, ReadString(kMaxKeyBytes, fmt::format("metadata key {}", index)));
    const std::string what = fmt::format("metadata key {}", Quoted(key));
    Value value;
    COPPICE_RETURN_IF_ERROR(ReadType(&value.type, what));
    if (value.type == GgufType::kArray) {
      COPPICE_ASSIGN_OR_RETURN(value, SkipArray(what, 1));
    } else if (value.type == GgufType::kString) {
      COPPICE_ASSIGN_OR_RETURN(const std::string_view text, ReadString(UINT64_MAX, what));
      value.bytes = std::as_bytes(std::span(text));
    } else {
      COPPICE_ASSIGN_OR_RETURN(value.bytes, Take(TraitsOf(value.type).bytes, what));
    }
    if (!out_.values_.emplace(key, value).second) {
      return InvalidArgument(fmt::format("{}: {} appears twice", out_.path_, what));
    }
    return OkStatus();
  }

  Status Alignment() {
    constexpr std::string_view kKey = "general.alignment";
    if (!out_.Has(kKey)) return OkStatus();
    COPPICE_ASSIGN_OR_RETURN(const int64_t alignment, out_.Int(kKey, 8, kMaxAlignment));
    if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
      return InvalidArgument(fmt::format("{}: {} is {}, expected a power of two", out_.path_, kKey, alignment));
    }
    alignment_ = static_cast<uint64_t>(alignment);
    return OkStatus();
  }

  Status TensorInfo(uint64_t index) {
    COPPICE_ASSIGN_OR_RETURN(const std::string_view name,
                             ReadString(kMaxTensorNameBytes, fmt::format("the name of tensor {}", index)));
    const std::string what = fmt::format("tensor {}", Quoted(name));
    uint32_t dimensions = 0, type_id = 0;
    COPPICE_RETURN_IF_ERROR(Read(&dimensions, what));
    if (dimensions < 1 || dimensions > kMaxDimensions) {
      return DataLoss(
          fmt::format("{}: corrupt: {} has {} dimensions, expected 1..{}", out_.path_, what, dimensions, kMaxDimensions));
    }
    PendingTensor pending{.name = std::string(name), .tensor = {.file = out_.path_}};
    std::vector<int64_t>& shape = pending.tensor.shape;
    for (uint32_t i = 0; i < dimensions; ++i) {
      uint64_t size = 0;
      COPPICE_RETURN_IF_ERROR(Read(&size, what));
      if (size == 0 || size > INT64_MAX) {
        return DataLoss(
            fmt::format("{}: corrupt: {} has size {} in dimension {}, expected 1..{}", out_.path_, what, size, i, INT64_MAX));
      }
      shape.push_back(static_cast<int64_t>(size));
    }
    std::ranges::reverse(shape);  // the format lists the contiguous dimension first
    COPPICE_RETURN_IF_ERROR(Read(&type_id, what));
    COPPICE_ASSIGN_OR_RETURN(pending.tensor.type, ElementType(type_id, what));
    COPPICE_RETURN_IF_ERROR(Read(&pending.offset, what));
    COPPICE_ASSIGN_OR_RETURN(pending.size, TensorBytes(pending.tensor, what));
    if (pending.offset % alignment_ != 0) {
      return DataLoss(fmt::format("{}: corrupt: {} is at offset {}, not a multiple of the alignment {}", out_.path_, what,
                                  pending.offset, alignment_));
    }
    pending_.push_back(std::move(pending));
    return OkStatus();
  }

  Result<StoredType> ElementType(uint32_t id, std::string_view what) const {
    const auto known = std::ranges::find(kTensorTypes, id, &TensorType::id);
    const std::string_view name = known == kTensorTypes.end() ? "unknown" : known->name;
    const std::optional<StoredType> type = StoredTypeFromName(name);
    if (type && Traits(*type).is_weight) return *type;
    return Unimplemented(
        fmt::format("{}: {} has type {} (id {}); supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, "
                    "Q6_K; fetch another quantisation",
                    out_.path_, what, name, id));
  }

  Result<uint64_t> TensorBytes(const StoredTensor& tensor, std::string_view what) const {
    const StoredTypeTraits& traits = Traits(tensor.type);
    if (tensor.shape.back() % traits.block_elements != 0) {
      return DataLoss(fmt::format("{}: corrupt: {} has rows of {} elements, but blocks of {} hold {}", out_.path_, what,
                                  tensor.shape.back(), traits.name, traits.block_elements));
    }
    uint64_t bytes = static_cast<uint64_t>(traits.block_bytes);
    bool overflow = __builtin_mul_overflow(bytes, static_cast<uint64_t>(tensor.shape.back() / traits.block_elements), &bytes);
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(tensor.shape[i]), &bytes);
    }
    if (overflow)
      return DataLoss(fmt::format("{}: corrupt: {} has shape {}, whose size overflows", out_.path_, what, ShapeText(tensor.shape)));
    return bytes;
  }

  // The data section begins at the next multiple of the alignment; tensors lie in it without overlap.
  Status PlaceTensors() {
    const uint64_t padding = (alignment_ - position_ % alignment_) % alignment_;
    if (!pending_.empty()) COPPICE_RETURN_IF_ERROR(Take(padding, "the padding before the tensor data").status());
    const std::span<const std::byte> data = bytes_.subspan(position_);
    std::ranges::stable_sort(pending_, {}, &PendingTensor::offset);
    uint64_t previous_end = 0;
    std::string previous = "the start";
    for (PendingTensor& pending : pending_) {
      const std::string what = fmt::format("tensor {}", Quoted(pending.name));
      if (pending.offset < previous_end) {
        return DataLoss(fmt::format("{}: corrupt: {} begins at offset {}, but {} ends at {}", out_.path_, what, pending.offset,
                                    previous, previous_end));
      }
      if (pending.offset > data.size() || pending.size > data.size() - pending.offset) {
        return DataLoss(
            fmt::format("{}: truncated: {} takes {} bytes at offset {}, but the tensor data has {}; fetch the file again",
                        out_.path_, what, pending.size, pending.offset, data.size()));
      }
      pending.tensor.data = data.subspan(pending.offset, pending.size);
      previous_end = pending.offset + pending.size;
      previous = what;
      if (!out_.tensors_.emplace(pending.name, std::move(pending.tensor)).second) {
        return InvalidArgument(fmt::format("{}: {} appears twice", out_.path_, what));
      }
    }
    return OkStatus();
  }

  const std::span<const std::byte> bytes_;
  GgufDirectory& out_;
  uint64_t position_ = 0;
  uint64_t tensor_count_ = 0, value_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<PendingTensor> pending_;
};

Result<GgufDirectory> GgufDirectory::Parse(std::span<const std::byte> bytes, const std::string& path) {
  GgufDirectory directory;
  directory.path_ = path;
  COPPICE_RETURN_IF_ERROR(Parser(bytes, directory).Run());
  return directory;
}

Status GgufDirectory::AddTensors(const GgufDirectory& other) {
  for (const auto& [name, tensor] : other.tensors_) {
    const auto [entry, inserted] = tensors_.emplace(name, tensor);
    if (!inserted)
      return InvalidArgument(fmt::format("{}: tensor {} is in {}, too", other.path_, Quoted(name), entry->second.file));
  }
  return OkStatus();
}

Result<const GgufDirectory::Value*> GgufDirectory::Find(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return NotFound(fmt::format("{}: metadata key {} is missing", path_, Quoted(key)));
  return &found->second;
}

Status GgufDirectory::WrongType(std::string_view key, const Value& value, std::string_view expected) const {
  return InvalidArgument(fmt::format("{}: metadata key {} has type {}{}, expected {}", path_, Quoted(key),
                                     value.is_array ? "array of " : "", TraitsOf(value.type).name, expected));
}

Result<std::string_view> GgufDirectory::String(std::string_view key) const {
  COPPICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->is_array || value->type != GgufType::kString) return WrongType(key, *value, "string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

Result<int64_t> GgufDirectory::Int(std::string_view key, int64_t min, int64_t max) const {
  COPPICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->is_array || !IsInteger(value->type)) return WrongType(key, *value, "an integer");
  const int64_t number = LoadInt(value->type, value->bytes.data());
  if (number < min || number > max) {
    return InvalidArgument(fmt::format("{}: metadata key {} is {}, expected {}..{}", path_, Quoted(key), number, min, max));
  }
  return number;
}

Result<float> GgufDirectory::Float(std::string_view key) const {
  COPPICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->is_array || (value->type != GgufType::kF32 && value->type != GgufType::kF64)) return WrongType(key, *value, "a float");
  const double number = value->type == GgufType::kF32 ? LoadAs<float>(value->bytes.data()) : LoadAs<double>(value->bytes.data());
  // The conversion of a double beyond float's range would be undefined.
  if (!(std::abs(number) <= std::numeric_limits<float>::max())) {
    return InvalidArgument(fmt::format("{}: metadata key {} is {}, expected a finite float", path_, Quoted(key), number));
  }
  return static_cast<float>(number);
}

Result<bool> GgufDirectory::Bool(std::string_view key) const {
  COPPICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->is_array || value->type != GgufType::kBool) return WrongType(key, *value, "bool");
  return value->bytes[0] != std::byte{0};
}

Result<std::vector<std::string_view>> GgufDirectory::Strings(std::string_view key) const {
  COPPICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (!value->is_array || value->type != GgufType::kString) return WrongType(key, *value, "array of string");
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  const std::byte* p = value->bytes.data();  // the parser has walked these lengths
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint64_t size = LoadAs<uint64_t>(p);
    strings.emplace_back(reinterpret_cast<const char*>(p + 8), size);
    p += 8 + size;
  }
  return strings;
}

Result<std::vector<int64_t>> GgufDirectory::Ints(std::string_view key) const {
  COPPICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (!value->is_array || !IsInteger(value->type)) return WrongType(key, *value, "array of integer");
  std::vector<int64_t> numbers;
  numbers.reserve(value->count);
  const std::byte* p = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i, p += TraitsOf(value->type).bytes) numbers.push_back(LoadInt(value->type, p));
  return numbers;
}

Result<std::vector<float>> GgufDirectory::Floats(std::string_view key) const {
  COPPICE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (!value->is_array || value->type != GgufType::kF32) return WrongType(key, *value, "array of f32");
  std::vector<float> numbers(value->count);
  const std::byte* p = value->bytes.data();
  for (float& number : numbers) number = LoadAs<float>(std::exchange(p, p + sizeof(float)));
  return numbers;
}

namespace {

constexpr std::string_view kSplitNo = "split.no", kSplitCount = "split.count", kSplitTensors = "split.tensors.count";
constexpr int64_t kMaxParts = UINT16_MAX;  // type of the keys

struct Split {
  int64_t index = 0, count = 1;
  bool operator==(const Split&) const = default;
};

// Files that were merged or never split have a count of 0 or 1, or no key.
Result<Split> ReadSplit(const GgufDirectory& gguf) {
  Split split;
  if (!gguf.Has(kSplitCount)) return split;
  COPPICE_ASSIGN_OR_RETURN(const int64_t count, gguf.Int(kSplitCount, 0, kMaxParts));
  if (count < 2) return split;
  split.count = count;
  COPPICE_ASSIGN_OR_RETURN(split.index, gguf.Int(kSplitNo, 0, count - 1));
  return split;
}

// The first part as its path names it.
Result<GgufPart> FirstPart(const std::string& path, const Split& split) {
  GgufPart part = ParseGgufPart(path).value_or(GgufPart());
  const bool is_named = part.number == split.index + 1 && part.count == split.count;
  if (!is_named)
    part = {.stem = "NAME", .number = static_cast<int32_t>(split.index + 1), .count = static_cast<int32_t>(split.count)};
  if (split.index != 0) {
    return InvalidArgument(fmt::format("{}: this is part {} of {} of a split model; give the first part, {}", path, part.number,
                                       part.count, part.NameOf(1)));
  }
  if (is_named) return part;
  part.stem.clear();
  return InvalidArgument(
      fmt::format("{}: this is part 1 of {} of a split model, whose name must end with {}; rename it, so that the "
                  "other parts are found beside it",
                  path, part.count, part.NameOf(1)));
}

Status AddPart(const std::string& path, const Split& expected, GgufFiles* model) {
  const std::string& first_path = model->directory.path();
  Result<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) {
    return {file.status().code(), fmt::format("{}; it is part {} of {} of the model that begins with {}", file.status().message(),
                                              expected.index + 1, expected.count, first_path)};
  }
  COPPICE_ASSIGN_OR_RETURN(const GgufDirectory part, GgufDirectory::Parse(file->bytes(), path));
  COPPICE_ASSIGN_OR_RETURN(const Split found, ReadSplit(part));
  if (found != expected) {
    return InvalidArgument(fmt::format("{}: {} is {} and {} is {}, expected {} and {}, as {} says; fetch the parts of one model",
                                       path, kSplitNo, found.index, kSplitCount, found.count, expected.index, expected.count,
                                       first_path));
  }
  COPPICE_RETURN_IF_ERROR(model->directory.AddTensors(part));
  model->files.push_back(std::move(*file));
  return OkStatus();
}

}  // namespace

Result<GgufFiles> OpenGguf(const std::string& path) {
  GgufFiles model;
  COPPICE_ASSIGN_OR_RETURN(MappedFile first, MappedFile::Open(path));
  COPPICE_ASSIGN_OR_RETURN(model.directory, GgufDirectory::Parse(first.bytes(), path));
  model.files.push_back(std::move(first));
  COPPICE_ASSIGN_OR_RETURN(Split split, ReadSplit(model.directory));
  if (split.count == 1) return model;
  COPPICE_ASSIGN_OR_RETURN(const GgufPart first_part, FirstPart(path, split));
  for (split.index = 1; split.index < split.count; ++split.index) {
    COPPICE_RETURN_IF_ERROR(AddPart(first_part.NameOf(static_cast<int32_t>(split.index + 1)), split, &model));
  }
  if (model.directory.Has(kSplitTensors)) {
    COPPICE_ASSIGN_OR_RETURN(const int64_t expected, model.directory.Int(kSplitTensors, 0, INT32_MAX));
    if (const int64_t found = std::ssize(model.directory.tensors()); found != expected) {
      return InvalidArgument(fmt::format("{}: {} is {}, but the {} parts have {} tensors; fetch the parts of one model", path,
                                         kSplitTensors, expected, split.count, found));
    }
  }
  return model;
}

}  // namespace coppice
