// The fields of a trainer's request, wherever they are: in the query, in a JSON body, or in neither. Layer: server.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/pause.h"
#include "server/http.h"

namespace coppice::server {

// null is as good as absent. Errors are INVALID_ARGUMENT and name the field, its value and what is expected.
class TrainerFields {
 public:
  // INVALID_ARGUMENT or DATA_LOSS for a body that is no JSON object. The query's fields count where both have one.
  static Result<TrainerFields> Read(const HttpRequest& request);
  explicit TrainerFields(nlohmann::json fields) : fields_(std::move(fields)) {}

  const nlohmann::json* Find(const char* name) const;
  // Numbers as their text.
  Result<std::string> Text(const char* name, std::string otherwise = {}) const;
  Result<bool> Flag(const char* name, bool otherwise) const;
  Result<int64_t> Whole(const char* name, int64_t otherwise) const;
  // A list, or one value of it.
  Result<std::vector<std::string>> Texts(const char* name) const;
  // "tags": weights and kv_cache; scheduling (of vLLM) and cuda_graph (of SGLang) are known, too.
  Result<std::vector<std::string>> Tags() const;
  // "mode": abort, wait or keep; SGLang's in_place and retract are keep.
  Result<PauseMode> Mode(PauseMode otherwise) const;
  const nlohmann::json& all() const { return fields_; }

 private:
  Status Wrong(const char* name, std::string_view expected) const;

  nlohmann::json fields_;
};

}  // namespace coppice::server
