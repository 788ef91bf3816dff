#include "server/server_metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <iterator>

namespace coppice::server {
namespace {

// A label's value with what the format escapes.
std::string Label(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

void AppendHead(std::string_view name, std::string_view help, std::string_view type, std::string* text) {
  fmt::format_to(std::back_inserter(*text), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <class Value>
void AppendValue(std::string_view name, std::string_view help, std::string_view type, Value value, std::string* text) {
  AppendHead(name, help, type, text);
  fmt::format_to(std::back_inserter(*text), "{} {}\n", name, value);
}

void AppendActive(int64_t requests, std::string* text) {
  AppendValue("coppice_http_requests_active", "Generations that are not answered yet", "gauge", requests, text);
}

// The series of API keys; `tokens_by_key`: pairs of a key's name and its tokens.
void AppendTokens(const auto& tokens_by_key, std::string* text) {
  using Tokens = ServerMetrics::Tokens;
  const auto series = [&](std::string_view name, std::string_view help, int64_t Tokens::*count) {
    AppendHead(name, help, "counter", text);
    for (const auto& [key, tokens] : tokens_by_key)
      fmt::format_to(std::back_inserter(*text), "{}{{key=\"{}\"}} {}\n", name, Label(key), tokens.*count);
  };
  series("coppice_key_prompt_tokens_total", "Prompt tokens of answered requests, by API key", &Tokens::prompt);
  series("coppice_key_cached_tokens_total", "Of those, found in the cache", &Tokens::cached);
  series("coppice_key_generated_tokens_total", "Tokens generated, by API key", &Tokens::generated);
  series("coppice_kv_bytes_not_read_total",
         "KV bytes that answered requests did not read since others read them with them, by API key", &Tokens::bytes_not_read);
}

// What Prometheus' client libraries say of a process, under their names.
void AppendProcess(std::string* text) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  AppendValue("process_cpu_seconds_total", "User and system time of the process", "counter",
              seconds(usage.ru_utime) + seconds(usage.ru_stime), text);
}

void AppendEngine(const EngineMetrics& engine, std::string* text) {
  const auto counter = [&](std::string_view name, std::string_view help, auto value) {
    AppendValue(name, help, "counter", value, text);
  };
  const auto gauge = [&](std::string_view name, std::string_view help, auto value) {
    AppendValue(name, help, "gauge", value, text);
  };
  gauge("coppice_requests_waiting", "Requests that wait for room in the engine", engine.waiting);
  gauge("coppice_samples_running", "Samples that decode", engine.running);
  gauge("coppice_kv_pages", "Pages of the KV cache", engine.pages_total);
  gauge("coppice_kv_pages_used", "Pages of the KV cache that hold tokens", engine.pages_used);
  counter("coppice_steps_total", "Steps of the engine", engine.steps);
  counter("coppice_graph_steps_total", "Steps that ran as one captured graph", engine.graph_steps);
  counter("coppice_eager_steps_total", "Steps that did not", engine.steps - engine.graph_steps);
  counter("coppice_bubbles_total", "Steps that could not be launched before the one under way had ended", engine.bubbles);
  counter("coppice_device_idle_seconds_total", "Time in which a GPU computed nothing between two steps",
          engine.device_idle_seconds);
  counter("coppice_prefill_tokens_total", "Prompt tokens computed", engine.prefilled_tokens);
  counter("coppice_cached_tokens_total", "Prompt tokens whose KV was found in the cache", engine.cached_tokens);
  counter("coppice_generated_tokens_total", "Tokens generated", engine.generated_tokens);
  counter("coppice_preemptions_total", "Samples that gave their pages up and were computed again", engine.preemptions);
  counter("coppice_kv_read_bytes_total", "KV bytes that attention read", engine.kv_bytes_read);
  counter("coppice_kv_read_unshared_bytes_total", "KV bytes that it would have read without sharing reads",
          engine.kv_bytes_read_unshared);
  counter("coppice_drafted_tokens_total", "Tokens guessed ahead", engine.drafted_tokens);
  counter("coppice_undrafted_steps_total", "Decode steps without drafts, since steps with them gave tokens in more time",
          engine.undrafted_steps);
  counter("coppice_accepted_draft_tokens_total", "Guessed tokens that were right", engine.accepted_draft_tokens);
  counter("coppice_forward_seconds_total", "Time in the model", engine.forward_seconds);
  counter("coppice_plan_seconds_total", "Time in planning attention", engine.plan_seconds);
  counter("coppice_sample_seconds_total", "Time in choosing tokens", engine.sample_seconds);
  counter("coppice_host_seconds_total", "Time in all else of steps", engine.host_seconds);
}

}  // namespace

void LatencyHistogram::Add(double seconds) {
  ++counts_[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
  sum_ += seconds;
}

void LatencyHistogram::AppendTo(std::string_view name, std::string_view help, std::string* text) const {
  AppendHead(name, help, "histogram", text);
  const auto out = std::back_inserter(*text);
  int64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += counts_[i];
    fmt::format_to(out, "{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], below);
  }
  below += counts_.back();
  fmt::format_to(out, "{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, below, name, sum_, name, below);
}

void ServerMetrics::CountRequest(std::string_view route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), status}];
  request_seconds_.Add(seconds);
}

void ServerMetrics::CountFirstToken(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_seconds_.Add(seconds);
}

void ServerMetrics::CountTimePerToken(double seconds) {
  const std::lock_guard lock(mutex_);
  token_seconds_.Add(seconds);
}

void ServerMetrics::CountTokens(const std::string& key, int64_t prompt, int64_t cached, int64_t generated) {
  const std::lock_guard lock(mutex_);
  Tokens& tokens = tokens_[key];
  tokens.prompt += prompt;
  tokens.cached += cached;
  tokens.generated += generated;
}

void ServerMetrics::CountBytesNotRead(const std::string& key, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  tokens_[key].bytes_not_read += bytes;
}

std::string ServerMetrics::Text(const EngineMetrics& engine, int64_t active_requests) const {
  std::string text;
  const auto out = std::back_inserter(text);
  const std::lock_guard lock(mutex_);
  AppendHead("coppice_http_requests_total", "Requests answered, by route and status", "counter", &text);
  for (const auto& [key, count] : requests_)
    fmt::format_to(out, "coppice_http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  AppendActive(active_requests, &text);
  request_seconds_.AppendTo("coppice_http_request_seconds", "From a request to the end of its answer", &text);
  first_token_seconds_.AppendTo("coppice_time_to_first_token_seconds", "From a request to its first token", &text);
  token_seconds_.AppendTo("coppice_time_per_output_token_seconds", "Mean time between a sample's tokens", &text);
  AppendTokens(tokens_, &text);
  AppendProcess(&text);
  AppendEngine(engine, &text);
  return text;
}

ServerMetrics::Tokens ServerMetrics::TokensOf(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(key);
  return found == tokens_.end() ? Tokens() : found->second;
}

std::string ServerMetrics::TextOf(const std::string& key, int64_t active_requests) const {
  std::string text;
  AppendActive(active_requests, &text);
  AppendTokens(std::map<std::string, Tokens>{{key, TokensOf(key)}}, &text);
  return text;
}

}  // namespace coppice::server
