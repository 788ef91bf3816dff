// The server's counts of its requests, and the text of /metrics: Prometheus' exposition format 0.0.4 of these and of the
// engine's counters. Layer: server.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "coppice/engine/engine.h"

namespace coppice::server {

// Counts of values up to each bound, which is in seconds.
class LatencyHistogram {
 public:
  static constexpr std::array<double, 16> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                     0.5,   1,      2.5,   5,    10,    25,   60,  120};
  void Add(double seconds);
  // Appends the series of `name`, whose head is there; `labels`: none, or what stands in braces beside "le".
  void AppendTo(std::string_view name, std::string_view labels, std::string* text) const;

 private:
  std::array<int64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

// The labels of coppice_build_info.
struct BuildLabels {
  std::string version, model;
};

// Thread-safe.
class ServerMetrics {
 public:
  explicit ServerMetrics(BuildLabels build = {}) : build_(std::move(build)) {}

  // A request was answered. `route` is one of the server's, never a path as a client sent it.
  void CountRequest(std::string_view route, int status, double seconds);
  // Of a generation that began: until its first token. `per_token`: between its first and its last one.
  void CountFirstToken(double seconds);
  void CountTimePerToken(double seconds);
  // Tokens of an API key's requests; `key` is empty without keys.
  void CountTokens(const std::string& key, int64_t prompt, int64_t cached, int64_t generated);
  // KV bytes that sharing spared them (SharedReads).
  void CountBytesNotRead(const std::string& key, int64_t bytes);

  // Of a key's answered requests.
  struct Tokens {
    int64_t prompt = 0, cached = 0, generated = 0, bytes_not_read = 0;
  };
  Tokens TokensOf(const std::string& key) const;

  // Everything there is.
  std::string Text(const EngineMetrics& engine, int64_t active_requests) const;
  // Metrics of the key alone, which others' requests do not change.
  std::string TextOf(const std::string& key, int64_t active_requests) const;

 private:
  const BuildLabels build_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  // by route and status
  std::map<std::string, Tokens> tokens_;                     // by key
  std::map<std::string, LatencyHistogram> request_seconds_;  // by route
  LatencyHistogram first_token_seconds_, token_seconds_;
};

}  // namespace coppice::server
