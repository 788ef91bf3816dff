// A request that is being answered, with what its routes know of it and its log line needs. Layer: server.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "openai/response.h"
#include "server/access.h"
#include "server/http.h"
#include "server/router.h"
#include "server/sample_store.h"

namespace coppice::server {

struct Call {
  HttpRequest request;
  std::shared_ptr<Responder> responder;
  std::string_view route = kNoRoute;  // a path of the routes, or none
  std::string variable;               // what stands for the {variable} of the route's path; empty: it has none
  std::string key;                    // name of the API key; empty without keys
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  openai::TokenUsage usage;
  // The call's admission; null: none yet. After `responder`: a client whose request got no answer finds the place free.
  std::shared_ptr<Admission> admission;
  std::shared_ptr<SampleStore::Generated> samples;  // that it generates and keeps; null: none
  std::string reason;                               // of an error: the client's message
  std::string logged_body;                          // where the log is to have it
  std::string ignored_fields;                       // of the request, by their names
};

}  // namespace coppice::server
