// The paths of kept samples, and the fields of other bodies that keep and end them. What the routes answer: Service, in
// sample_routes.cc. Layer: server.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "openai/body_error.h"
#include "openai/request.h"

namespace coppice::server {

inline constexpr std::string_view kSamplePath = "/v1/samples/{sample_id}", kForkPath = "/v1/samples/{sample_id}/fork",
                                  kExtendPath = "/v1/samples/{sample_id}/extend", kPrunePath = "/v1/samples/{sample_id}/prune";

// What bodies of completions and chats say of their samples' lives, which no file of requests does.
struct SampleLives {
  std::optional<double> keep;  // seconds
  bool vote_stop = false;
};
// Takes `keep` and `vote_stop` out of the body. On an error, `error->param` names the field.
SampleLives TakeLives(openai::Endpoint endpoint, nlohmann::json* body, openai::BodyError* error);

}  // namespace coppice::server
