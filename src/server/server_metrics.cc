#include "server/server_metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

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

// The first fields of a file of /proc/self, which are numbers; empty where it cannot be read.
std::vector<double> NumbersOf(const char* path, size_t skipped_to = 0) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  // Of stat, the name of the program is in parentheses and may have anything in it.
  if (const size_t name_end = line.rfind(')'); name_end != std::string::npos) line.erase(0, name_end + 3);
  std::istringstream fields(line);
  std::vector<double> numbers;
  for (double number = 0; fields >> number;) numbers.push_back(number);
  if (numbers.size() <= skipped_to) return {};
  return numbers;
}

// Seconds since 1970 at which this process began; 0: unknown.
double StartTime() {
  constexpr size_t kStartTime = 18;  // proc(5), stat: field 22, of those behind the state, which is the third
  const std::vector<double> stat = NumbersOf("/proc/self/stat", kStartTime);
  const std::vector<double> uptime = NumbersOf("/proc/uptime");
  if (stat.empty() || uptime.empty()) return 0;
  const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - uptime.front() + stat[kStartTime] / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Metrics of a process, under the names that Prometheus' client libraries give them.
void AppendProcess(std::string* text) {
  static const double start_time = StartTime();
  AppendValue("process_start_time_seconds", "When the process began, in seconds since 1970", "gauge", start_time, text);
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  if (const std::vector<double> pages = NumbersOf("/proc/self/statm", 1); !pages.empty()) {
    AppendValue("process_virtual_memory_bytes", "Address space of the process", "gauge", pages[0] * page_bytes, text);
    AppendValue("process_resident_memory_bytes", "Memory of the process, files that it maps included", "gauge",
                pages[1] * page_bytes, text);
  }
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
  AppendHead("coppice_queue_seconds", "From a request to the step that took it in", "summary", text);
  fmt::format_to(std::back_inserter(*text), "coppice_queue_seconds_sum {}\ncoppice_queue_seconds_count {}\n", engine.queue_seconds,
                 engine.requests_begun);
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

void LatencyHistogram::AppendTo(std::string_view name, std::string_view labels, std::string* text) const {
  const auto out = std::back_inserter(*text);
  const std::string before_le = labels.empty() ? "" : fmt::format("{},", labels);
  const std::string alone = labels.empty() ? "" : fmt::format("{{{}}}", labels);
  int64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += counts_[i];
    fmt::format_to(out, "{}_bucket{{{}le=\"{}\"}} {}\n", name, before_le, kBounds[i], below);
  }
  below += counts_.back();
  fmt::format_to(out, "{}_bucket{{{}le=\"+Inf\"}} {}\n{}_sum{} {}\n{}_count{} {}\n", name, before_le, below, name, alone, sum_,
                 name, alone, below);
}

void ServerMetrics::CountRequest(std::string_view route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{std::string(route), status}];
  request_seconds_[std::string(route)].Add(seconds);
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
  AppendHead("coppice_build_info", "1, of the program and the model under these labels", "gauge", &text);
  fmt::format_to(out, "coppice_build_info{{version=\"{}\",model=\"{}\"}} 1\n", Label(build_.version), Label(build_.model));
  AppendHead("coppice_http_requests_total", "Requests answered, by route and status", "counter", &text);
  for (const auto& [key, count] : requests_)
    fmt::format_to(out, "coppice_http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  AppendActive(active_requests, &text);
  AppendHead("coppice_http_request_seconds", "From a request to the end of its answer, by route", "histogram", &text);
  for (const auto& [route, seconds] : request_seconds_)
    seconds.AppendTo("coppice_http_request_seconds", fmt::format("route=\"{}\"", route), &text);
  const auto histogram = [&](std::string_view name, std::string_view help, const LatencyHistogram& values) {
    AppendHead(name, help, "histogram", &text);
    values.AppendTo(name, {}, &text);
  };
  histogram("coppice_time_to_first_token_seconds", "From a request to its first token", first_token_seconds_);
  histogram("coppice_time_per_output_token_seconds", "Mean time between a sample's tokens", token_seconds_);
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
