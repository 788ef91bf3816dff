#include "model/hf_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <unordered_set>
#include <utility>

#include "core/check.h"
#include "model/error_text.h"
#include "model/hf_config.h"
#include "model/hf_weight_names.h"
#include "model/json_file.h"
#include "model/safetensors.h"
#include "model/sampling_defaults.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/sentencepiece_model.h"

namespace coppice {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// An empty text if there is no such file.
Result<TextFile> ReadOptionalText(std::string path) {
  if (!Exists(path)) return TextFile{std::move(path), ""};
  COPPICE_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  return TextFile{std::move(path), std::move(text)};
}

// The index: {"weight_map": {tensor: file in the same folder}}.
Result<std::map<std::string, std::string>> ReadWeightMap(const std::string& index_path) {
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path));
  COPPICE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, index_path));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object())
    return InvalidArgument(fmt::format("{}: \"weight_map\" must be an object", index_path));
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // Shards lie beside the index; a path could point anywhere.
    if (name.empty() || name.find_first_of(std::string_view("/\\\0", 3)) != name.npos || name.front() == '.') {
      return InvalidArgument(fmt::format("{}: tensor {} is in {}, expected the name of a file in the same folder", index_path,
                                         Quoted(tensor), Quoted(name)));
    }
    shard_of[tensor] = name;
  }
  return shard_of;
}

Status OpenSingle(const std::string& path, HuggingFaceFolder* folder) {
  COPPICE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  folder->contents.tensors = file.tensors();
  folder->files.push_back(std::move(file).TakeFile());
  return OkStatus();
}

Status OpenShards(const std::string& folder_path, const std::string& index_path, HuggingFaceFolder* folder) {
  COPPICE_ASSIGN_OR_RETURN(const auto shard_of, ReadWeightMap(index_path));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  TensorMap& tensors = folder->contents.tensors;
  for (const std::string& shard : shards) {
    COPPICE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(folder_path + "/" + shard));
    for (const auto& [name, tensor] : file.tensors()) {
      const auto entry = shard_of.find(name);
      if (entry == shard_of.end() || entry->second != shard) {
        return InvalidArgument(fmt::format("{}: tensor {} is in shard {}, but the index puts it in {}", index_path, Quoted(name),
                                           Quoted(shard), entry == shard_of.end() ? "none" : Quoted(entry->second)));
      }
      tensors.emplace(name, tensor);
    }
    folder->files.push_back(std::move(file).TakeFile());
  }
  for (const auto& [name, shard] : shard_of) {
    if (!tensors.contains(name)) {
      return InvalidArgument(fmt::format("{}: tensor {} is missing from shard {}", index_path, Quoted(name), Quoted(shard)));
    }
  }
  return OkStatus();
}

Result<TokenizerConfigFiles> ReadTokenizerConfig(const std::string& path) {
  COPPICE_ASSIGN_OR_RETURN(TextFile tokenizer_config, ReadOptionalText(path + "/tokenizer_config.json"));
  COPPICE_ASSIGN_OR_RETURN(TextFile added_tokens, ReadOptionalText(path + "/added_tokens.json"));
  COPPICE_ASSIGN_OR_RETURN(TextFile special_tokens, ReadOptionalText(path + "/special_tokens_map.json"));
  return TokenizerConfigFiles{.tokenizer_config = std::move(tokenizer_config.text),
                              .added_tokens = std::move(added_tokens.text),
                              .special_tokens_map = std::move(special_tokens.text)};
}

Result<TokenizerData> ParseSentencePiece(const std::string& model, const TokenizerConfigFiles& files) {
  COPPICE_ASSIGN_OR_RETURN(TokenizerData data, ParseSentencePieceModel(model));
  COPPICE_RETURN_IF_ERROR(AddHuggingFaceConfig(files, &data));
  return data;
}

// {"chat_template": "..."}: what processors of transformers had before chat_template.jinja.
Result<std::string> ReadTemplateJson(const TextFile& file) {
  COPPICE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(file.text, file.path));
  const auto found = json.find("chat_template");
  if (found == json.end() || !found->is_string())
    return InvalidArgument(fmt::format("{}: \"chat_template\" must be a string", file.path));
  return found->get<std::string>();
}

// Newer folders keep templates in files of their own, which replace those of tokenizer_config.json, as transformers has it:
// chat_template.jinja, else chat_template.json.
Status ReadChatTemplates(const std::string& path, TokenizerData* data) {
  COPPICE_ASSIGN_OR_RETURN(TextFile chat, ReadOptionalText(path + "/chat_template.jinja"));
  if (chat.text.empty()) {
    COPPICE_ASSIGN_OR_RETURN(const TextFile legacy, ReadOptionalText(path + "/chat_template.json"));
    if (!legacy.text.empty()) {
      COPPICE_ASSIGN_OR_RETURN(chat.text, ReadTemplateJson(legacy));
    }
  }
  COPPICE_ASSIGN_OR_RETURN(TextFile tool_use, ReadOptionalText(path + "/additional_chat_templates/tool_use.jinja"));
  if (!chat.text.empty()) {
    data->chat_template = std::move(chat.text);
    data->tool_chat_template.clear();
  }
  if (!tool_use.text.empty()) data->tool_chat_template = std::move(tool_use.text);
  return OkStatus();
}

// The tokenizer. Ids that config.json and generation_config.json state count too.
Result<TokenizerData> ReadTokenizer(const std::string& path, ModelConfig& config) {
  const bool is_json = Exists(path + "/tokenizer.json");
  const std::string tokenizer_path = path + (is_json ? "/tokenizer.json" : "/tokenizer.model");
  if (!Exists(tokenizer_path)) return NotFound("the model has no tokenizer (no tokenizer.json, no tokenizer.model)");
  COPPICE_ASSIGN_OR_RETURN(const std::string file, ReadTextFile(tokenizer_path));
  COPPICE_ASSIGN_OR_RETURN(const TokenizerConfigFiles files, ReadTokenizerConfig(path));
  Result<TokenizerData> parsed = is_json ? ParseHuggingFaceTokenizer(file, files) : ParseSentencePiece(file, files);
  if (!parsed.ok()) return Status(parsed.status().code(), fmt::format("{}: {}", tokenizer_path, parsed.status().message()));
  TokenizerData& data = *parsed;
  const bool has_eos = !data.eos_ids.empty();
  const Status fits = DropAddedTokensBeyond(config.vocab_size, &data);
  if (!fits.ok()) return Status(fits.code(), fmt::format("{}: {}", tokenizer_path, fits.message()));
  if (has_eos && data.eos_ids.empty() && config.eos_token_ids.empty()) {
    return InvalidArgument(
        fmt::format("{}: the id of the eos token lies beyond \"vocab_size\" {} of config.json; expected one below it, "
                    "or an \"eos_token_id\" in config.json or generation_config.json",
                    tokenizer_path, config.vocab_size));
  }
  if (data.bos_id < 0) data.bos_id = config.bos_token_id;
  std::unordered_set<int32_t> known(data.eos_ids.begin(), data.eos_ids.end());
  for (const int32_t id : config.eos_token_ids) {
    if (known.insert(id).second) data.eos_ids.push_back(id);
  }
  COPPICE_RETURN_IF_ERROR(ReadChatTemplates(path, &data));
  config.bos_token_id = data.bos_id;
  config.eos_token_ids = data.eos_ids;
  return parsed;
}

// Why there are no weights.
Status NoWeights(const std::string& path) {
  if (Exists(path + "/pytorch_model.bin") || Exists(path + "/pytorch_model.bin.index.json")) {
    return Unimplemented(fmt::format(
        "{0}: the weights are in pytorch_model.bin, which is not read; write model.safetensors with Python: from transformers "
        "import AutoModelForCausalLM as M; M.from_pretrained('{0}').save_pretrained('{0}')",
        path));
  }
  return NotFound(fmt::format("{}: no weights: neither model.safetensors nor model.safetensors.index.json", path));
}

}  // namespace

Result<HuggingFaceFolder> OpenHuggingFaceFolder(const std::string& path) {
  HuggingFaceFolder folder;
  ModelContents& contents = folder.contents;
  const std::string config_path = path + "/config.json";
  if (!Exists(config_path)) {
    return NotFound(fmt::format("{}: no config.json; give a .gguf file, or a folder with config.json and *.safetensors", path));
  }
  COPPICE_ASSIGN_OR_RETURN(const TextFile config, ReadOptionalText(config_path));
  COPPICE_ASSIGN_OR_RETURN(const TextFile generation_config, ReadOptionalText(path + "/generation_config.json"));
  COPPICE_ASSIGN_OR_RETURN(contents.config, ParseHuggingFaceConfig(config, generation_config));
  contents.sampling = ReadSamplingDefaults(generation_config, &contents.notes);

  const std::string single = path + "/model.safetensors", index = single + ".index.json";
  if (Exists(single)) {
    COPPICE_RETURN_IF_ERROR(OpenSingle(single, &folder));
  } else if (Exists(index)) {
    COPPICE_RETURN_IF_ERROR(OpenShards(path, index, &folder));
  } else {
    return NoWeights(path);
  }
  COPPICE_RETURN_IF_ERROR(NameWeights(path, &contents.config, &contents.tensors, &contents.notes));
  COPPICE_RETURN_IF_ERROR(CheckWeights(contents.config, contents.tensors, path));
  Result<TokenizerData> tokenizer = ReadTokenizer(path, contents.config);
  contents.tokenizer_status = tokenizer.status();
  if (tokenizer.ok()) contents.tokenizer = *std::move(tokenizer);
  return folder;
}

}  // namespace coppice
