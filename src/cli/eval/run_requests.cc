#include "cli/eval/run_requests.h"

#include <atomic>
#include <utility>

#include "cli/interrupt.h"
#include "core/check.h"

namespace coppice::cli {

Result<std::vector<openai::RequestOutput>> RunRequests(Engine& engine, std::vector<Request> requests,
                                                       const std::function<void(int64_t done)>& on_step) {
  std::vector<openai::RequestOutput> outputs(requests.size());
  std::atomic<int64_t> done = 0;  // events come on a thread of the engine's own, those of one request in order
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_event = [&output = outputs[i], &done](const StreamEvent& event) {
      output.Add(event);
      if (event.request_done) ++done;
    };
    COPPICE_RETURN_IF_ERROR(engine.Submit(std::move(requests[i])).status());
  }
  for (;;) {
    if (Interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    COPPICE_ASSIGN_OR_RETURN(const bool worked, engine.Step());
    if (on_step) on_step(done);
    if (!worked) break;  // all events have been sent
  }
  for (const openai::RequestOutput& output : outputs) COPPICE_RETURN_IF_ERROR(output.failure);
  return outputs;
}

}  // namespace coppice::cli
