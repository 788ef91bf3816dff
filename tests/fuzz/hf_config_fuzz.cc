// Input: config.json, a NUL byte, generation_config.json. A config that is read is one that CheckConfig accepts.
#include "model/hf_config.h"

#include "tests/fuzz/fuzz_target.h"

using namespace coppice;
using fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [config_json, generation_json] = fuzz::SplitInput<2>(data, size);
  const Result<ModelConfig> config =
      ParseHuggingFaceConfig({"config.json", config_json}, {"generation_config.json", generation_json});
  if (!config.ok()) {
    fuzz::RequireOneLine(config.status());
    return 0;
  }
  Require(CheckConfig(*config, "config.json").ok(), "an accepted config fails CheckConfig");
  Require(config->num_layers > 0 && config->hidden_size > 0 && config->vocab_size > 0 && config->max_position > 0,
          "a size below 1");
  Require(config->window >= 0, "a negative window");
  Require(config->bos_token_id < config->vocab_size, "a token id beyond the vocabulary");
  for (const int32_t id : config->eos_token_ids) Require(id >= 0 && id < config->vocab_size, "a token id beyond the vocabulary");
  return 0;
}
