// The server's description of itself, in the forms of vLLM and SGLang: routers and trainers ask for it. Layer: server.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "coppice/engine/engine.h"

namespace coppice::server {

struct ServerFacts {
  std::string model, version;                  // names of the model, and the version of the program
  int32_t max_context = 0;                     // tokens of prompt and output
  int32_t world_size = 1;                      // ranks that the model is divided among
  std::string logprobs_mode = "raw_logprobs";  // of outputs, before temperature and the rest; in vLLM's words
};

// A trainer's part besides; without one, nothing of it is there.
struct TrainerFacts {
  std::string label;         // of the weights
  std::string update_state;  // Name(UpdateState)
  std::string model_path;
};

// Of /server_info: what vLLM and SGLang say, in one object. `trainer` may be null.
nlohmann::ordered_json ServerInfo(const ServerFacts& facts, Engine* engine, const TrainerFacts* trainer);
// Of /model_info, SGLang's.
nlohmann::ordered_json ModelInfoAnswer(const ServerFacts& facts, Engine* engine, const TrainerFacts* trainer);

// "bfloat16": PyTorch's name.
std::string_view TorchName(DType dtype);

}  // namespace coppice::server
