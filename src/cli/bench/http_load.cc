#include "cli/bench/http_load.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/bench/completion_chunk.h"
#include "cli/bench/sse_parser.h"
#include "core/check.h"

namespace coppice::cli {
namespace {

namespace asio = boost::asio;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

// User and system time of this process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// process_cpu_seconds_total of a server's /metrics, which Prometheus' client libraries write too; nothing where there is none.
std::optional<double> ServerCpuSeconds(const HttpClient& client) {
  constexpr std::string_view kName = "\nprocess_cpu_seconds_total ";
  const Result<HttpAnswer> answer = client.SendAndWait({.target = "/metrics"});
  if (!answer.ok() || answer->status != 200) return std::nullopt;
  const std::string text = "\n" + answer->body;
  const size_t found = text.find(kName);
  double seconds = 0;
  if (found == text.npos ||
      std::from_chars(text.data() + found + kName.size(), text.data() + text.size(), seconds).ec != std::errc())
    return std::nullopt;
  return seconds;
}

// The prompt of a run: every token moves by the same distance, so that requests share as much as in every other run.
std::vector<int32_t> PromptOf(const WorkloadRequest& request, int32_t run, int32_t vocab_size) {
  constexpr int64_t kStep = 9973;
  std::vector<int32_t> ids(request.prompt_ids.begin(), request.prompt_ids.end());
  for (int32_t& id : ids) id = static_cast<int32_t>((id + run * kStep) % vocab_size);
  return ids;
}

std::string BodyOf(const HttpTarget& target, const WorkloadRequest& request, int32_t run, size_t number) {
  json body = {{"model", target.model},
               {"prompt", PromptOf(request, run, target.vocab_size)},
               {"max_tokens", request.output_tokens},
               {"temperature", 1},
               {"seed", number},
               {"ignore_eos", true},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (request.samples > 1) body["n"] = request.samples;
  return body.dump();
}

// The stream of one answer.
class AnswerReader {
 public:
  AnswerReader(LoadRecorder* recorder, size_t request, int32_t samples)
      : recorder_(*recorder),
        request_(request),
        finished_(static_cast<size_t>(samples)),
        parser_([this](std::string_view data) { return OnEvent(data); }) {}
  AnswerReader(const AnswerReader&) = delete;

  // `now`: when these bytes came.
  Status Feed(std::string_view bytes, double now) {
    now_ = now;
    return parser_.Feed(bytes);
  }
  // The answer has ended. DATA_LOSS if it is not complete.
  Status End() {
    const auto missing = std::ranges::count(finished_, false);
    if (missing > 0) return DataLoss(fmt::format("the stream ended before {} of {} samples had", missing, finished_.size()));
    if (usage_ && usage_->completion_tokens > tokens_) recorder_.AddUntimed(request_, usage_->completion_tokens - tokens_);
    return OkStatus();
  }
  const std::optional<CompletionChunk::Usage>& usage() const { return usage_; }

 private:
  Status OnEvent(std::string_view data) {
    if (data == "[DONE]" || done_) {
      done_ = true;
      return OkStatus();
    }
    COPPICE_ASSIGN_OR_RETURN(const CompletionChunk chunk, ParseCompletionChunk(data));
    if (!chunk.error.empty()) return Internal("the server ended the stream: " + chunk.error);
    for (const CompletionChunk::Choice& choice : chunk.choices) {
      if (choice.index >= std::ssize(finished_))
        return DataLoss(fmt::format("the stream has a choice {} of {}", choice.index, finished_.size()));
      if (choice.tokens > 0) recorder_.AddTokens(request_, choice.index, choice.tokens, now_);
      tokens_ += choice.tokens;
      if (choice.finished) finished_[static_cast<size_t>(choice.index)] = true;
    }
    if (chunk.usage) usage_ = chunk.usage;
    return OkStatus();
  }

  LoadRecorder& recorder_;
  const size_t request_;
  std::vector<bool> finished_;  // by sample
  std::optional<CompletionChunk::Usage> usage_;
  int64_t tokens_ = 0;  // that came with a time
  double now_ = 0;
  bool done_ = false;
  SseParser parser_;
};

// One run over a workload; its coroutines share the io_context's one thread.
class HttpLoad {
 public:
  HttpLoad(const HttpTarget& target, std::span<const WorkloadRequest> requests, const LoadSchedule& schedule,
           const HttpClient& client)
      : target_(target), requests_(requests), schedule_(schedule), client_(client), recorder_(requests, schedule.arrivals) {}

  Result<LoadResult> Run() {
    const double cpu = CpuSeconds();
    begin_ = Clock::now();
    if (schedule_.concurrency > 0) {
      const size_t workers = std::min(requests_.size(), static_cast<size_t>(schedule_.concurrency));
      for (size_t i = 0; i < workers; ++i) asio::co_spawn(io_, Work(), asio::detached);
    } else {
      asio::co_spawn(io_, Dispatch(), asio::detached);
    }
    io_.run();
    COPPICE_RETURN_IF_ERROR(failure_);
    LoadResult result = recorder_.Take();
    figures_.client_cpu_seconds = CpuSeconds() - cpu;
    result.server = figures_;
    return result;
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  asio::awaitable<void> Until(double time) const {
    asio::steady_timer timer(co_await asio::this_coro::executor,
                             begin_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time)));
    co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
  }

  // Starts each request when it is due.
  asio::awaitable<void> Dispatch() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      std::string body = BodyOf(target_, requests_[i], schedule_.run, i);
      co_await Until(schedule_.arrivals[i]);
      asio::co_spawn(io_, Answer(i, std::move(body)), asio::detached);
    }
  }

  // One of the requests that may be under way at the same moment, again and again.
  asio::awaitable<void> Work() {
    while (next_ < requests_.size()) {
      const size_t i = next_++;
      std::string body = BodyOf(target_, requests_[i], schedule_.run, i);
      co_await Until(schedule_.arrivals[i]);
      recorder_.Arrive(i, now());
      co_await Answer(i, std::move(body));
    }
  }

  asio::awaitable<void> Answer(size_t request, std::string body) {
    AnswerReader reader(&recorder_, request, requests_[request].samples);
    HttpClient::Ask ask = {.method = "POST", .target = "/v1/completions", .body = std::move(body)};
    ask.on_data = [&](std::string_view data) { return reader.Feed(data, now()); };
    const Result<HttpAnswer> answer =
        co_await client_.Send(std::move(ask));  // a name: GCC 12 destroys aggregates of an await twice
    if (const Status ended = Finish(request, answer, &reader); !ended.ok()) Fail(request, ended);
  }

  Status Finish(size_t request, const Result<HttpAnswer>& answer, AnswerReader* reader) {
    if (!answer.ok()) return answer.status();
    if (answer->status == 429 || answer->status == 503) {
      ++figures_.refused;
      recorder_.Refuse(request);
      return OkStatus();
    }
    if (answer->status != 200)
      return InvalidArgument(fmt::format("the server answered {}: {}", answer->status, ErrorMessageOf(answer->body)));
    if (!answer->body.empty())
      return DataLoss(fmt::format("the server answered without a stream of events: {}", ErrorMessageOf(answer->body)));
    COPPICE_RETURN_IF_ERROR(reader->End());
    recorder_.End(request, now());
    if (const auto& usage = reader->usage(); usage && usage->cached_tokens) {
      figures_.reports_cached = true;
      figures_.cached_tokens += *usage->cached_tokens;
    }
    const int64_t wanted = int64_t{requests_[request].samples} * requests_[request].output_tokens;
    figures_.short_requests += recorder_.tokens(request) < wanted;
    return OkStatus();
  }

  void Fail(size_t request, const Status& status) {
    if (failure_.ok())
      failure_ = Status(status.code(), fmt::format("request {} of {}: {}", request + 1, requests_.size(), status.message()));
    io_.stop();
  }

  const HttpTarget& target_;
  const std::span<const WorkloadRequest> requests_;
  const LoadSchedule& schedule_;
  const HttpClient& client_;
  LoadRecorder recorder_;
  ServerFigures figures_;
  Clock::time_point begin_;
  size_t next_ = 0;
  Status failure_;
  asio::io_context io_{1};  // the last: what waits in it refers to the others
};

}  // namespace

Result<std::string> FirstModel(const ServerUrl& url, const std::string& api_key) {
  HttpClient client(url, api_key);
  COPPICE_RETURN_IF_ERROR(client.Resolve());
  COPPICE_ASSIGN_OR_RETURN(const HttpAnswer answer, client.SendAndWait({.target = "/v1/models"}));
  if (answer.status != 200)
    return InvalidArgument(fmt::format("http://{}{}/v1/models answered {}: {}{}", url.authority(), url.path, answer.status,
                                       ErrorMessageOf(answer.body), answer.status == 401 ? "; give --api-key" : ""));
  const json body = json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  const json::json_pointer first("/data/0/id");
  if (!body.is_object() || !body.contains(first) || !body[first].is_string())
    return DataLoss(fmt::format("http://{}{}/v1/models lists no model; give --model-name", url.authority(), url.path));
  return body[first].get<std::string>();
}

Result<LoadResult> RunHttpLoad(const HttpTarget& target, std::span<const WorkloadRequest> requests, const LoadSchedule& schedule) {
  HttpClient client(target.url, target.api_key);
  COPPICE_RETURN_IF_ERROR(client.Resolve());
  const std::optional<double> before = ServerCpuSeconds(client);
  COPPICE_ASSIGN_OR_RETURN(LoadResult result, HttpLoad(target, requests, schedule, client).Run());
  const std::optional<double> after = ServerCpuSeconds(client);
  if (before && after) result.server->server_cpu_seconds = *after - *before;
  return result;
}

}  // namespace coppice::cli
