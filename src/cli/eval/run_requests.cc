#include "cli/eval/run_requests.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cli/interrupt.h"
#include "core/check.h"
#include "openai/request_driver.h"

namespace coppice::cli {

namespace {

class Requests final : public openai::RequestDriver {
 public:
  using RequestDriver::RequestDriver;

  void Start(std::vector<Request> requests) {
    outputs_.resize(requests.size());
    Begin([&] {
      for (Request& request : requests) {
        if (!Submit(std::move(request))) return;
      }
    });
  }
  int64_t num_done() const {
    const auto lock = Lock();
    return std::ranges::count_if(counts(), &openai::RequestCounts::done);
  }
  Result<std::vector<openai::RequestOutput>> Take() {
    const auto lock = Lock();
    COPPICE_RETURN_IF_ERROR(failure());
    return std::move(outputs_);
  }

 private:
  void OnEvent(size_t request, const StreamEvent& event) override { outputs_[request].Add(event); }
  void OnEnd() override {}

  std::vector<openai::RequestOutput> outputs_;
};

}  // namespace

Result<std::vector<openai::RequestOutput>> RunRequests(Engine& engine, std::vector<Request> requests,
                                                       const std::function<void(int64_t done)>& on_step) {
  const auto run = std::make_shared<Requests>(&engine);
  run->Start(std::move(requests));
  for (;;) {
    if (Interrupted()) return Status(StatusCode::kCancelled, "interrupted");
    COPPICE_ASSIGN_OR_RETURN(const bool worked, engine.Step());
    if (on_step) on_step(run->num_done());
    if (!worked) return run->Take();  // all events have been sent
  }
}

}  // namespace coppice::cli
