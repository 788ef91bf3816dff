// Puts the requests of a workload to a server with OpenAI's API, ours or another one, and measures what its users would see.
// Layer: cli.
#pragma once

#include <span>
#include <string>

#include "cli/bench/http_client.h"
#include "cli/bench/load_recorder.h"
#include "cli/bench/load_result.h"
#include "cli/bench/workload.h"
#include "coppice/core/status.h"

namespace coppice::cli {

struct HttpTarget {
  ServerUrl url;
  std::string api_key;  // empty: none
  std::string model;    // the name in requests
  int32_t vocab_size = 0;
};

// The first model that the server lists.
Result<std::string> FirstModel(const ServerUrl& url, const std::string& api_key);

// Sends each request as a streamed completion of token ids, on a connection of its own, and reads it to the end. Requests that the
// server has no room for (429, 503) are counted; any other failure ends the run, and the error says what the server said. Ends of
// text are to be ignored ("ignore_eos"); requests that end early all the same are counted.
Result<LoadResult> RunHttpLoad(const HttpTarget& target, std::span<const WorkloadRequest> requests, const LoadSchedule& schedule);

}  // namespace coppice::cli
