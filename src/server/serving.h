// The life of a server between its start and its end: steps the engine, serves connections, and ends without losing an answer where
// it is asked to, or where the device is lost. Layer: server.
#pragma once

#include <chrono>
#include <functional>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "server/http_server.h"
#include "server/service.h"

namespace coppice::server {

struct ServingOptions {
  std::function<bool()> interrupted;  // asked 50 times a second; true: end
  // How long requests under way may take from then on; what is left is cut off.
  std::chrono::duration<double> drain_time = std::chrono::seconds(60);
  // Where the device is lost, how long the errors of all requests may take to reach their clients.
  std::chrono::duration<double> lost_time = std::chrono::seconds(5);
};

// Serves on the calling thread; no other thread steps the engine. OK: it was asked to end. UNAVAILABLE: the device is lost, every
// request was answered with 503, and the process has to start again.
Status Serve(Engine* engine, Service* service, HttpServer* http, const ServingOptions& options);

}  // namespace coppice::server
