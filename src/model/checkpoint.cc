#include "model/checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/error_text.h"
#include "model/gguf.h"
#include "model/gguf_model.h"
#include "model/hf_folder.h"
#include "model/mapped_file.h"
#include "model/model_contents.h"

namespace coppice {
namespace {

// Any format, once read: views into mapped files.
class MappedCheckpoint final : public Checkpoint {
 public:
  MappedCheckpoint(std::vector<MappedFile> files, ModelContents contents)
      : files_(std::move(files)), tensors_(std::move(contents.tensors)) {
    config_ = std::move(contents.config);
    tokenizer_ = std::move(contents.tokenizer);
  }

  std::vector<TensorInfo> Tensors() const override {
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors_) {
      infos.push_back({name, Name(tensor.type), tensor.shape, static_cast<int64_t>(tensor.data.size())});
    }
    return infos;
  }

  bool Has(std::string_view name) const override { return tensors_.contains(name); }

  Status Load(std::string_view name, int64_t rows, int64_t cols, DType dtype, std::span<std::byte> out) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return NotFound(fmt::format("{}: no tensor {}", files_.front().path(), Quoted(name)));
    return LoadWeight(name, found->second, rows, cols, dtype, out);
  }

 private:
  std::vector<MappedFile> files_;
  TensorMap tensors_;
};

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    COPPICE_ASSIGN_OR_RETURN(HuggingFaceFolder folder, OpenHuggingFaceFolder(path));
    return std::unique_ptr<Checkpoint>(std::make_unique<MappedCheckpoint>(std::move(folder.files), std::move(folder.contents)));
  }
  if (path.ends_with(".safetensors")) {
    return InvalidArgument(fmt::format("{}: a safetensors file alone has no config; give the folder that holds it", path));
  }
  std::vector<MappedFile> files;
  COPPICE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  COPPICE_ASSIGN_OR_RETURN(const GgufDirectory gguf, GgufDirectory::Parse(file.bytes(), path));
  COPPICE_ASSIGN_OR_RETURN(ModelContents contents, ReadGgufModel(gguf));
  files.push_back(std::move(file));
  return std::unique_ptr<Checkpoint>(std::make_unique<MappedCheckpoint>(std::move(files), std::move(contents)));
}

}  // namespace coppice
