#include "hub/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "core/check.h"

namespace coppice::hub {
namespace {

constexpr int kAttempts = 5;
constexpr auto kFirstPause = std::chrono::milliseconds(200);
constexpr long kConnectSeconds = 30, kSilentSeconds = 60, kMostRedirects = 10;
constexpr size_t kMostText = size_t{64} << 20;

// One transfer, as libcurl's callbacks see it.
struct Transfer {
  CURL* curl;
  const HttpRequest* request;
  const std::function<Status(const HttpBody&)>* begin;
  const std::function<Status(std::span<const std::byte>)>* write;
  const std::function<bool()>* should_stop;
  bool begun = false;
  Status status;  // of the callbacks, or of the answer

  Status Begin();
};

// "bytes 100-199/200" -> 100; -1 where it is no such header.
int64_t RangeBegin(std::string_view content_range) {
  constexpr std::string_view kUnit = "bytes ";
  if (!content_range.starts_with(kUnit)) return -1;
  const std::string number(content_range.substr(kUnit.size(), 20));
  char* end = nullptr;
  const long long begin = std::strtoll(number.c_str(), &end, 10);
  return end != number.c_str() && *end == '-' ? begin : -1;
}

Status StatusOf(long code, const std::string& url) {
  const std::string message = fmt::format("{} answers {}", WithoutUser(url), code);
  if (code == 404) return NotFound(message + ": there is no such file");
  if (code == 416) return OutOfRange(message);
  if (code == 408 || code == 429 || code >= 500) return Unavailable(message);
  if (code == 401 || code == 403) return FailedPrecondition(message + ": it wants a token that may read it, in HF_TOKEN");
  return FailedPrecondition(message + ", expected 200");
}

// The answer's status line and headers are there.
Status Transfer::Begin() {
  begun = true;
  long code = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
  if (code == 200) return (*begin)({.from = 0});
  if (code != 206) return StatusOf(code, request->url);
  curl_header* header = nullptr;
  const bool found = curl_easy_header(curl, "Content-Range", 0, CURLH_HEADER, -1, &header) == CURLHE_OK;
  const int64_t from = found ? RangeBegin(header->value) : -1;
  if (from != request->from) {
    return FailedPrecondition(fmt::format("{} was asked for bytes from {} on and answers \"Content-Range: {}\"",
                                          WithoutUser(request->url), request->from, found ? header->value : ""));
  }
  return (*begin)({.from = from});
}

size_t WriteBody(char* data, size_t, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  if (!transfer.begun) transfer.status = transfer.Begin();
  if (transfer.status.ok()) transfer.status = (*transfer.write)(std::as_bytes(std::span(data, count)));
  return transfer.status.ok() ? count : CURL_WRITEFUNC_ERROR;
}

int AskWhetherToStop(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto& transfer = *static_cast<const Transfer*>(user);
  return *transfer.should_stop && (*transfer.should_stop)() ? 1 : 0;
}

Status StatusOf(CURLcode code, const std::string& url, const char* detail) {
  const std::string message = fmt::format("{}: {}", WithoutUser(url), *detail != '\0' ? detail : curl_easy_strerror(code));
  switch (code) {
    case CURLE_ABORTED_BY_CALLBACK: return Status(StatusCode::kCancelled, "interrupted while fetching " + WithoutUser(url));
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE: return FailedPrecondition(message);
    default: return Unavailable(message);
  }
}

}  // namespace

std::string WithoutUser(const std::string& url) {
  const size_t host = url.find("://");
  if (host == url.npos) return url;
  const size_t end = url.find_first_of("/?#", host + 3), at = url.rfind('@', end);
  return at == url.npos || at < host ? url : url.substr(0, host + 3) + url.substr(at + 1);
}

void HttpClient::Free::operator()(void* curl) const { curl_easy_cleanup(curl); }

Result<HttpClient> HttpClient::Create(std::function<bool()> should_stop) {
  // Once, by the first caller: it is not thread-safe in old versions.
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  CURL* const curl = initialised == CURLE_OK ? curl_easy_init() : nullptr;
  if (curl == nullptr) return Internal("libcurl could not be initialised");
  HttpClient client(curl);
  client.should_stop_ = std::move(should_stop);
  return client;
}

Status HttpClient::Get(const HttpRequest& request, const std::function<Status(const HttpBody&)>& begin,
                       const std::function<Status(std::span<const std::byte>)>& write) {
  CURL* const curl = curl_.get();
  Transfer transfer = {.curl = curl, .request = &request, .begin = &begin, .write = &write, .should_stop = &should_stop_};
  char detail[CURL_ERROR_SIZE] = "";
  const bool is_secure = request.url.starts_with("https:");
  curl_easy_reset(curl);  // keeps connections
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, is_secure ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMostRedirects);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "coppice");
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, WriteBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, AskWhetherToStop);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  if (request.from > 0) curl_easy_setopt(curl, CURLOPT_RANGE, fmt::format("{}-", request.from).c_str());
  if (!request.bearer.empty()) {  // libcurl keeps it from other hosts
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, request.bearer.c_str());
  }
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr, curl_slist_free_all);
  if (!request.accept.empty()) {
    headers.reset(curl_slist_append(nullptr, ("Accept: " + request.accept).c_str()));
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  }
  const CURLcode code = curl_easy_perform(curl);
  if (!transfer.status.ok()) return transfer.status;
  if (code != CURLE_OK) return StatusOf(code, request.url, detail);
  return transfer.begun ? OkStatus() : transfer.Begin();  // an answer without a body
}

Status HttpClient::Retry(const std::function<Status()>& attempt, const std::function<bool()>& progressed) const {
  auto pause = kFirstPause;
  for (int number = 1;; ++number) {
    const Status status = attempt();
    if (status.code() != StatusCode::kUnavailable) return status;
    if (progressed && progressed()) number = 0, pause = kFirstPause;
    if (number >= kAttempts) return status;
    for (auto waited = std::chrono::milliseconds(0); waited < pause && !should_stop(); waited += kFirstPause / 4) {
      std::this_thread::sleep_for(kFirstPause / 4);
    }
    if (should_stop()) return Status(StatusCode::kCancelled, "interrupted while waiting to try again: " + status.message());
    pause *= 2;
  }
}

Result<std::string> HttpClient::GetText(const HttpRequest& request) {
  std::string text;
  const auto begin = [&](const HttpBody&) {
    text.clear();
    return OkStatus();
  };
  const auto write = [&](std::span<const std::byte> bytes) {
    if (text.size() + bytes.size() > kMostText)
      return ResourceExhausted(fmt::format("{} sends more than {} bytes", WithoutUser(request.url), kMostText));
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(Retry([&] { return Get(request, begin, write); }));
  return text;
}

}  // namespace coppice::hub
