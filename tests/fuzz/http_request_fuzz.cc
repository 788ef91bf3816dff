// Input: the bytes of a connection, any number of requests. Requests read from them must not depend on how the bytes come: at
// once, one by one, or in pieces whose sizes the input gives.
#include <algorithm>
#include <string>
#include <vector>

#include "server/host_name.h"
#include "server/http_request_parser.h"
#include "server/multipart_form.h"
#include "server/peer.h"
#include "server/query.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice;
using namespace coppice::server;
using fuzz::Require;

namespace {

using State = HttpRequestParser::State;

// As the server has them, smaller.
constexpr size_t kMaxHeader = 1024;
constexpr uint64_t kMaxBody = 512, kMaxUpload = 2048;

// Reads the headers of an accepted head.
void ReadHead(const HttpRequest& head) {
  Require(!head.method.empty(), "a request without a method");
  Require(head.path.find('?') == head.path.npos, "a query in the path");
  constexpr std::string_view kNames[] = {"purpose", "limit", "after", "order"};
  openai::BodyError error;
  if (const auto list = ParseListQuery(head.query, kNames, 20, 100, &error)) {
    Require(list->limit >= 1 && list->limit <= 100, "a limit outside its range");
  } else {
    Require(!error.param.empty(), "a query refused without a name");
    fuzz::RequireOneLine(error.status);
  }
  Require(IsAuthority(head.host), "a host that is none");
  const std::string names[] = {"proxy.example"};
  (void)IsLocalHost(head.host, names);
  (void)IsOfAnotherSite(head.origin, head.host, names);
  const auto proxies = TrustedProxies::Parse(std::vector<std::string>{"127.0.0.0/8", "::/1"});
  Require(ParseAddress(proxies->ClientOf("127.0.0.1", head.forwarded_for)).has_value(), "a client without an address");
  (void)IsForm(head.content_type);
  if (const auto boundary = BoundaryOf(head.content_type); !boundary.ok()) fuzz::RequireOneLine(boundary.status());
}

// Uploads are taken out of the parser in pieces, as they go to a file.
bool IsUpload(const HttpRequest& head) { return head.method == "POST" && head.path == "/v1/files"; }

// The requests of the connection, each as a text; the last one says why nothing follows.
std::vector<std::string> Read(std::string_view bytes, const std::vector<size_t>& pieces) {
  std::vector<std::string> read;
  std::string pending;
  size_t come = 0, piece = 0;
  const auto more = [&] {  // false: the client sends no more
    if (come == bytes.size()) return false;
    const size_t size = std::min(bytes.size() - come, pieces.empty() ? bytes.size() : pieces[piece++ % pieces.size()]);
    pending += bytes.substr(come, size);
    come += size;
    return true;
  };
  while (true) {
    HttpRequestParser parser(kMaxHeader);
    HttpRequest head;
    std::string body;
    bool upload = false;
    while (parser.state() != State::kDone && parser.state() != State::kRefused) {
      if (parser.state() == State::kHasHead) {
        head = parser.Head();
        ReadHead(head);
        upload = IsUpload(head);
        parser.AcceptBody(upload ? kMaxUpload : kMaxBody);
        continue;
      }
      const size_t taken = parser.Put(pending);
      Require(taken <= pending.size(), "more taken than there is");
      pending.erase(0, taken);
      if (upload) {
        body += parser.body();
        parser.body().clear();
      }
      if (parser.state() != State::kHead && parser.state() != State::kBody) continue;
      Require(pending.size() <= kMaxHeader, "the parser leaves more than a head");
      if (!more()) {
        read.emplace_back("more is needed");
        return read;
      }
    }
    if (parser.state() == State::kRefused) {
      const int status = parser.refusal().status;
      Require(status == 400 || status == 413 || status == 431, "a refusal with status " + std::to_string(status));
      fuzz::RequireOneLine(InvalidArgument(parser.refusal().message));
      read.push_back("refused " + std::to_string(status));
      return read;
    }
    if (!upload) body = parser.body();
    Require(body.size() <= (upload ? kMaxUpload : kMaxBody), "a body above its limit");
    read.push_back(head.method + ' ' + head.host + ' ' + head.path + ' ' + head.query + ' ' + head.content_type + ' ' + body);
    if (!parser.keep_alive()) return read;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<size_t> pieces;
  for (size_t i = 0; i < std::min<size_t>(size, 16); ++i) pieces.push_back(1 + data[size - 1 - i]);
  const std::vector<std::string> whole = Read(bytes, {});
  for (const std::vector<size_t>& sizes : {std::vector<size_t>{1}, pieces}) {
    if (sizes.empty()) continue;
    const std::vector<std::string> cut = Read(bytes, sizes);
    // When a fault is seen, and which one of several, may depend on it: an unfinished head is looked at as far as it came at once.
    // So may a head or a line between chunks that is about as long as it may be.
    const bool too_long = cut.back() == "refused 431" || whole.back() == "refused 431";
    if (too_long || cut.back().starts_with("refused") || whole.back().starts_with("refused")) {
      Require(too_long || cut.size() == whole.size(), "requests depend on how they come: " + whole.back() + ", " + cut.back());
      const auto common = static_cast<std::ptrdiff_t>(std::min(cut.size(), whole.size())) - 1;
      Require(std::equal(cut.begin(), cut.begin() + common, whole.begin()), "requests depend on how they come");
    } else {
      Require(cut == whole, "requests depend on how they come: " + whole.back() + ", " + cut.back());
    }
  }
  return 0;
}
