#include "cli/inspect_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/model_memory.h"
#include "cli/parsed_option.h"
#include "cli/run_stats.h"
#include "cli/standard_output.h"
#include "cli/terminal.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "hub/model_store.h"
#include "model/checkpoint.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;

struct InspectModelOptions {
  std::string path;
  bool json = false, tensors = false;
};

std::string_view NameOf(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone: return "none";
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kLlama3: return "llama3";
    case RopeScaling::kYarn: return "yarn";
    case RopeScaling::kDynamic: return "dynamic";
  }
  return "?";
}

std::string_view ScalingOf(const RopeConfig& rope) {
  if (!rope.long_divisors.empty()) return "longrope";
  return rope.frequency_divisors.empty() ? NameOf(rope.scaling) : "by frequency factors";
}

// "32 elements of a head, theta 10000, scaling yarn".
std::string FormatRope(const RopeConfig& rope, const ModelConfig& config) {
  const std::string part = config.rotated() == config.head_dim ? "" : fmt::format("{} elements of a head, ", config.rotated());
  return fmt::format("{}theta {}, scaling {}", part, rope.theta, ScalingOf(rope));
}

std::string FormatWindow(int32_t window) { return window > 0 ? fmt::format("{} tokens", window) : "none"; }

std::string FormatModel(const Checkpoint& checkpoint, const InspectModelOptions& options) {
  const ModelConfig& config = checkpoint.config();
  std::string text = fmt::format("{}: {}\n", options.path, config.architecture);
  text +=
      fmt::format("layers {}, hidden size {}, intermediate size {}, {} query heads, {} KV heads, head_dim {}\n", config.num_layers,
                  config.hidden_size, config.intermediate_size, config.num_qo_heads, config.num_kv_heads, config.head_dim);
  text += fmt::format("vocabulary {}, context {} tokens{}, window {}, {}, output projection {}\n", config.vocab_size,
                      config.max_position,
                      config.longest_context() > config.max_position ? fmt::format(" (up to {})", config.longest_context()) : "",
                      FormatWindow(config.window),
                      config.blocks.rotary ? "rope " + FormatRope(config.rope, config) : std::string("learned positions"),
                      config.tie_embeddings ? "tied to the embedding" : "of its own");
  if (const auto local = std::ranges::count(config.local_layers, true); local > 0) {
    text += fmt::format("{} local layers: window {}, rope {}\n", local, FormatWindow(config.local_window),
                        FormatRope(config.local_rope, config));
  }
  text += FormatMemory(MemoryOf(checkpoint), config.max_position);
  if (const std::optional<TokenizerData>& tokenizer = checkpoint.tokenizer()) {
    text +=
        fmt::format("tokenizer: {} ({}), {} tokens, {} merges, end of text {}, chat template: {}\n", tokenizer->model,
                    tokenizer->pre_tokenizer.empty() ? "its own patterns" : tokenizer->pre_tokenizer, tokenizer->tokens.size(),
                    tokenizer->merges.size(), fmt::join(tokenizer->eos_ids, " "), tokenizer->chat_template.empty() ? "no" : "yes");
  } else {
    const Status& status = checkpoint.tokenizer_status();
    const std::string reason = status.code() == StatusCode::kNotFound ? "none" : "cannot be read (" + status.message() + ")";
    text += fmt::format("tokenizer: {}; give prompts as --prompt-ids\n", reason);
  }

  std::map<std::string_view, std::pair<int, int64_t>> by_type;  // tensors, bytes
  const std::vector<Checkpoint::TensorInfo> tensors = checkpoint.Tensors();
  for (const Checkpoint::TensorInfo& tensor : tensors) {
    auto& [count, bytes] = by_type[tensor.type];
    ++count;
    bytes += tensor.bytes;
  }
  text += fmt::format("{} tensors:", tensors.size());
  for (const auto& [type, sum] : by_type)
    text += fmt::format(" {} {} ({})", sum.first, type, FormatBytes(static_cast<double>(sum.second)));
  text += "\n";
  if (!options.tensors) return text;
  for (const Checkpoint::TensorInfo& tensor : tensors) {
    text += fmt::format("{:<52} {:<5} [{}] {}\n", tensor.name, tensor.type, fmt::join(tensor.shape, ", "),
                        FormatBytes(static_cast<double>(tensor.bytes)));
  }
  return text;
}

ordered_json ToJson(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const ModelMemory memory = MemoryOf(checkpoint);
  const Result<int64_t> free = FreeMemory();
  const auto fits = [&](DType dtype) { return memory.kv_tokens(*free, memory.weight_bytes(dtype), dtype); };
  ordered_json json = {
      {"architecture", config.architecture},
      {"num_layers", config.num_layers},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_qo_heads", config.num_qo_heads},
      {"num_kv_heads", config.num_kv_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position", config.max_position},
      {"window", config.window},
      {"local_layers", std::ranges::count(config.local_layers, true)},
      {"local_window", config.local_window},
      {"rotary_dim", config.rotated()},
      {"rope_theta", config.rope.theta},
      {"rope_scaling", ScalingOf(config.rope)},
      {"tie_embeddings", config.tie_embeddings},
      {"eos_token_ids", config.eos_token_ids},
      {"parameters", memory.parameters},
      {"stored_bytes", memory.stored_bytes},
      {"kv_elements_per_token", memory.kv_elements_per_token},
      {"kv_bytes_per_token", {{"bf16", memory.kv_bytes_per_token(DType::kBF16)}, {"f32", memory.kv_bytes_per_token(DType::kF32)}}},
      {"free_memory_bytes", free.ok() ? ordered_json(*free) : ordered_json()},
      {"kv_tokens_that_fit", free.ok() ? ordered_json{{"bf16", fits(DType::kBF16)}, {"f32", fits(DType::kF32)}} : ordered_json()},
      {"tokenizer", nullptr},
      {"tensors", ordered_json::array()},
  };
  if (const std::optional<TokenizerData>& tokenizer = checkpoint.tokenizer()) {
    json["tokenizer"] = {{"model", tokenizer->model},          {"pre_tokenizer", tokenizer->pre_tokenizer},
                         {"tokens", tokenizer->tokens.size()}, {"merges", tokenizer->merges.size()},
                         {"eos_ids", tokenizer->eos_ids},      {"chat_template", tokenizer->chat_template}};
  }
  for (const Checkpoint::TensorInfo& tensor : checkpoint.Tensors()) {
    json["tensors"].push_back({{"name", tensor.name}, {"type", tensor.type}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
  }
  return json;
}

Result<ExitCode> InspectModel(InspectModelOptions options) {
  COPPICE_ASSIGN_OR_RETURN(options.path, hub::FindModel(options.path));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(options.path));
  if (options.json) {
    COPPICE_RETURN_IF_ERROR(Print(ToJson(*checkpoint).dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"));
  } else {
    COPPICE_RETURN_IF_ERROR(Print(ForTerminal(FormatModel(*checkpoint, options))));
  }
  return ExitCode::kOk;
}

}  // namespace

Command AddInspectModelCommand(CLI::App& inspect) {
  const auto options = std::make_shared<InspectModelOptions>();
  CLI::App* command = inspect.add_subcommand("model", "Config, tokenizer and tensors of a GGUF file or Hugging Face folder");
  command
      ->add_option("path", options->path, "GGUF file, Hugging Face folder, or the name of a pulled model (default: smollm2-135m)")
      ->check(NotEmpty());
  command->add_flag("--tensors", options->tensors, "List every tensor");
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  return {command, [options] { return InspectModel(*options); }};
}

}  // namespace coppice::cli
