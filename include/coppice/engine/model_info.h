// A model's properties, for its users. Layer: public API of coppice::engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "coppice/runner/sampling.h"

namespace coppice {

// Layers whose attention is alike.
struct AttentionLayers {
  int32_t num_layers = 0;
  int32_t window = 0;  // a token sees so many, itself among them; 0: all before it
};

struct ModelInfo {
  std::string architecture;  // the name of its family: "llama", "gemma3"
  std::string
      fingerprint;  // of config and weights as they were loaded; engines of equal ones exchange prefixes (SavePrefix, LoadPrefix)
  int32_t num_layers = 0, hidden_size = 0;
  int32_t num_qo_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::vector<AttentionLayers> attention;  // num_layers in all
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // tokens; EngineOptions::max_context is at most that
  int32_t bos_token_id = -1;   // -1: none
  std::vector<int32_t> eos_token_ids;
  DType kv_dtype = DType::kBF16;
  int64_t kv_bytes_per_token = 0;  // over all layers
  int32_t page_size = 0;           // tokens of a page of the KV cache, on all ranks together
  KvSplit kv_split = KvSplit::kHeads;
  std::string kv_split_reason;  // why; empty where ranks do not exceed KV heads
  // Why there is no tokenizer: NOT_FOUND, or what is wrong with the model's or not supported. OK if there is one.
  Status tokenizer_status = NotFound("the model has no tokenizer");
  SamplingParams sampling;         // as the model's files want tokens chosen (generation_config.json); no request has it by itself
  std::vector<std::string> notes;  // assumptions where files or measurements are silent, fields set aside: a line each
};

}  // namespace coppice
