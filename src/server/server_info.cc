#include "server/server_info.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace coppice::server {

using nlohmann::ordered_json;

std::string_view TorchName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kBF16: return "bfloat16";
    case DType::kF16: return "float16";
  }
  return "";
}

namespace {

// Of the matrices; of a model without weights, that of its KV.
std::string_view DTypeName(const std::vector<WeightInfo>& weights, const ModelInfo& model) {
  for (const WeightInfo& weight : weights) {
    if (weight.shape.size() > 1) return TorchName(weight.dtype);
  }
  return TorchName(model.kv_dtype);
}

std::vector<WeightInfo> WeightsOf(Engine* engine) {
  Result<std::vector<WeightInfo>> weights = engine->Weights();
  return weights.ok() ? *std::move(weights) : std::vector<WeightInfo>();
}

std::string LabelOf(Engine* engine, const TrainerFacts* trainer) {
  return trainer != nullptr ? trainer->label : std::to_string(engine->weight_version().number);
}

}  // namespace

ordered_json ServerInfo(const ServerFacts& facts, Engine* engine, const TrainerFacts* trainer) {
  const std::vector<WeightInfo> weights = WeightsOf(engine);
  const std::string& path = trainer != nullptr ? trainer->model_path : facts.model;
  const std::string_view dtype = DTypeName(weights, engine->model_info());
  ordered_json info = {
      {"vllm_config",
       {{"model_config",
         {{"model", path},
          {"served_model_name", facts.model},
          {"dtype", dtype},
          {"max_model_len", facts.max_context},
          {"logprobs_mode", facts.logprobs_mode}}},
        {"parallel_config",
         {{"tensor_parallel_size", facts.world_size}, {"data_parallel_size", 1}, {"world_size", facts.world_size}}},
        {"weight_transfer_config", trainer != nullptr ? ordered_json{{"backend", "shared_memory"}} : ordered_json()}}},
      {"server", "coppice"},
      {"version", facts.version},
      {"status", "ready"},
      {"model_path", path},
      {"served_model_name", facts.model},
      {"tp_size", facts.world_size},
      {"pp_size", 1},
      {"dp_size", 1},
      {"dtype", dtype},
      {"context_length", facts.max_context},
      {"weight_version", LabelOf(engine, trainer)}};
  if (trainer == nullptr) return info;
  ordered_json missing = ordered_json::array();
  for (const WeightInfo& weight : weights) {
    if (weight.missing) missing.push_back(weight.name);
  }
  info["engine_state"] = Name(engine->Load().state);
  info["weights"] = {{"version", engine->weight_version().number},
                     {"label", trainer->label},
                     {"update", trainer->update_state},
                     {"missing", std::move(missing)}};
  return info;
}

ordered_json ModelInfoAnswer(const ServerFacts& facts, Engine* engine, const TrainerFacts* trainer) {
  const std::string& path = trainer != nullptr ? trainer->model_path : facts.model;
  return {{"model_path", path},
          {"tokenizer_path", path},
          {"served_model_name", facts.model},
          {"is_generation", true},
          {"model_type", engine->model_info().architecture},
          {"preferred_sampling_params", nullptr},
          {"max_model_len", facts.max_context},
          {"weight_version", LabelOf(engine, trainer)}};
}

}  // namespace coppice::server
