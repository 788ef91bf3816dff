// Requests from bytes: whole, cut anywhere, one behind the other, and those that are refused. tests/fuzz/http_request_fuzz.cc looks
// for more.
#include "server/http_request_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace coppice::server {
namespace {

using State = HttpRequestParser::State;
using ::testing::HasSubstr;

constexpr size_t kMaxHeader = 256;

// Puts `bytes` in pieces of that size until the request ends; what is left of them stays in `*bytes`.
std::unique_ptr<HttpRequestParser> Parsed(std::string* bytes, size_t piece = std::string::npos, uint64_t max_body = 64) {
  auto made = std::make_unique<HttpRequestParser>(kMaxHeader);
  HttpRequestParser& parser = *made;
  std::string pending;
  while (parser.state() != State::kDone && parser.state() != State::kRefused) {
    if (parser.state() == State::kHasHead) {
      parser.AcceptBody(max_body);
      continue;
    }
    pending.erase(0, parser.Put(pending));
    if (parser.state() != State::kHead && parser.state() != State::kBody) continue;
    if (bytes->empty()) break;
    pending += bytes->substr(0, piece);
    bytes->erase(0, piece);
  }
  bytes->insert(0, pending);
  return made;
}

HttpRequestParser::Refusal RefusalOf(std::string bytes, uint64_t max_body = 64) {
  const auto parser = Parsed(&bytes, std::string::npos, max_body);
  EXPECT_EQ(parser->state(), State::kRefused) << bytes;
  return parser->refusal();
}

TEST(HttpRequestParser, RequestsHoweverTheirBytesCome) {
  const std::string first =
      "POST http://proxy/v1/completions?a=b?c HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Type: text/plain\r\n"
      "Origin: o\r\ntraceparent: t\r\nContent-Length: 5\r\n\r\nhello";
  const std::string second = "PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  const std::string third = "GET / HTTP/1.0\r\n\r\n";
  for (size_t piece = 1; piece <= first.size(); ++piece) {
    std::string bytes = first + second + third;
    const auto parser = Parsed(&bytes, piece);
    ASSERT_EQ(parser->state(), State::kDone) << piece;
    const HttpRequest head = parser->Head();
    EXPECT_EQ(head.method, "POST");
    EXPECT_EQ(head.host, "proxy");
    EXPECT_EQ(head.path, "/v1/completions");
    EXPECT_EQ(head.query, "a=b?c");
    EXPECT_EQ(head.authorization, "Bearer k");
    EXPECT_EQ(head.content_type, "text/plain");
    EXPECT_EQ(head.origin, "o");
    EXPECT_EQ(head.traceparent, "t");
    EXPECT_EQ(parser->body_bytes(), 5);
    EXPECT_EQ(parser->body(), "hello");
    EXPECT_TRUE(parser->keep_alive());
    const auto chunked = Parsed(&bytes, piece);
    ASSERT_EQ(chunked->state(), State::kDone) << piece;
    EXPECT_EQ(chunked->body(), "abcde");
    EXPECT_FALSE(chunked->body_bytes());
    const auto last = Parsed(&bytes, piece);
    ASSERT_EQ(last->state(), State::kDone) << piece;
    EXPECT_EQ(last->version(), 10u);
    EXPECT_FALSE(last->keep_alive());
    EXPECT_TRUE(bytes.empty());
  }
}

TEST(HttpRequestParser, BodiesMayBeTakenOutInPieces) {
  HttpRequestParser parser(kMaxHeader);
  const std::string_view head = "POST / HTTP/1.1\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n";
  ASSERT_EQ(parser.Put(head), head.size());
  EXPECT_TRUE(parser.waits_for_continue());
  parser.AcceptBody(6);
  EXPECT_EQ(parser.Put("abc"), 3u);
  EXPECT_EQ(std::exchange(parser.body(), {}), "abc");
  EXPECT_EQ(parser.Put("defGET"), 3u);
  EXPECT_EQ(parser.body(), "def");
  EXPECT_EQ(parser.state(), State::kDone);
}

TEST(HttpRequestParser, WhatIsRefused) {
  for (const char* bytes :
       {"\x16\x03\x01\x02", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\nA B: c\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\na",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n"})
    EXPECT_EQ(RefusalOf(bytes).status, 400) << bytes;
  EXPECT_EQ(RefusalOf("POST / HTTP/1.1\r\nContent-Length: 65\r\n\r\n").status, 413);
  EXPECT_THAT(RefusalOf("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n28\r\n" + std::string(40, 'a') + "\r\n28\r\n" +
                        std::string(40, 'a') + "\r\n")
                  .message,
              HasSubstr("larger than 64 bytes"));
  EXPECT_EQ(RefusalOf("GET / HTTP/1.1\r\nX: " + std::string(300, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(RefusalOf("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(300, 'a')).status, 431);
}

TEST(HttpRequestParser, BodiesThatNoMemoryHoldsAreRefused) {
  HttpRequestParser parser(kMaxHeader);
  parser.Put("POST / HTTP/1.1\r\ncontent-length: 18446744073709551614\r\n\r\n");
  parser.AcceptBody(~uint64_t{0});
  ASSERT_EQ(parser.state(), State::kBody);
  parser.ReserveBody();
  EXPECT_EQ(parser.state(), State::kRefused);
  EXPECT_EQ(parser.refusal().status, 503);
  EXPECT_THAT(parser.refusal().message, HasSubstr("out of memory"));
}

}  // namespace
}  // namespace coppice::server
