#include "server/serving.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <thread>

namespace coppice::server {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(20);

// Steps the engine for as long as it lives. A failed step has ended its requests and is logged. Without a device every step fails
// at once, so that later requests hear it too.
class EngineThread {
 public:
  explicit EngineThread(Engine* engine)
      : thread_([this, engine](std::stop_token stop) {
          while (!stop.stop_requested()) {
            const Status status = engine->Run(stop);
            if (status.ok()) continue;
            const bool lost = status.code() == StatusCode::kUnavailable;
            if (!lost || !lost_.exchange(true)) spdlog::error("a step failed: {}", status.message());
          }
        }) {}

  bool lost() const { return lost_; }

 private:
  std::atomic<bool> lost_{false};
  std::jthread thread_;
};

// Drains the server when there is a reason, and stops it when that takes too long.
class Watch {
 public:
  Watch(const EngineThread& stepping, Service* service, HttpServer* http, const ServingOptions& options)
      : thread_([&stepping, service, http, &options](const std::stop_token& stop) {
          while (!stop.stop_requested() && !stepping.lost() && !options.interrupted()) std::this_thread::sleep_for(kPoll);
          if (stop.stop_requested()) return;
          const bool lost = stepping.lost();
          const std::chrono::duration<double> time = lost ? options.lost_time : options.drain_time;
          spdlog::info("{}: {} generations are under way", lost ? "the device is lost" : "shutting down", service->active());
          service->Drain(lost ? "the device of the server is lost; it has to start again" : "the server is shutting down");
          http->Drain();
          const auto deadline = Clock::now() + time;
          while (!stop.stop_requested() && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
          if (stop.stop_requested()) return;
          spdlog::warn("{} generations did not end in {} s; they are cut off", service->active(), time.count());
          http->Stop();
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace

Status Serve(Engine* engine, Service* service, HttpServer* http, const ServingOptions& options) {
  const EngineThread stepping(engine);
  {
    const Watch watch(stepping, service, http, options);
    http->Run();
  }
  service->StopTrainer();  // while what it waits for is stepped
  return stepping.lost() ? Unavailable("the device is lost; start the server again") : OkStatus();
}

}  // namespace coppice::server
