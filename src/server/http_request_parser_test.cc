// Requests from bytes: whole, cut anywhere, one behind the other, and those that are refused. tests/fuzz/http_request_fuzz.cc looks
// for more.
#include "server/http_request_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
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
  const std::string second = "PUT /a HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
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

TEST(HttpRequestParser, NoChunksHoweverTheirBytesCome) {
  for (const std::string_view end : {"0\r\n\r\n", "0;x=y\r\n\r\n", "000\r\nTrailer: t\r\n\r\n"}) {
    for (size_t piece = 1; piece <= end.size(); ++piece) {
      std::string bytes = "PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(end) + "next";
      const auto parser = Parsed(&bytes, piece);
      ASSERT_EQ(parser->state(), State::kDone) << end << " in pieces of " << piece;
      EXPECT_EQ(parser->body(), "");
      EXPECT_EQ(bytes.substr(0, 4), std::string("next").substr(0, bytes.size()));
    }
  }
}

TEST(HttpRequestParser, BodiesMayBeTakenOutInPieces) {
  HttpRequestParser parser(kMaxHeader);
  const std::string_view head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n";
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
  for (const char* bytes : {"\x16\x03\x01\x02", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.0\r\nA B: c\r\n\r\n"})
    EXPECT_EQ(RefusalOf(bytes).status, 400) << bytes;
  EXPECT_EQ(RefusalOf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 65\r\n\r\n").status, 413);
  EXPECT_THAT(RefusalOf("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n28\r\n" + std::string(40, 'a') +
                        "\r\n28\r\n" + std::string(40, 'a') + "\r\n")
                  .message,
              HasSubstr("larger than 64 bytes"));
  EXPECT_EQ(RefusalOf("GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(300, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(RefusalOf("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(300, 'a')).status, 431);
}

// Lengths of which another reader of the same bytes could make another body.
TEST(HttpRequestParser, LengthsThatAreDoubtfulAreRefused) {
  const auto post = [](const std::string& headers, const char* body = "a") {
    return "POST / HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n\r\n" + body;
  };
  for (const std::string& bytes :
       {post("Content-Length: 3\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
        post("Transfer-Encoding: chunked\r\nContent-Length: 3", "0\r\n\r\n"), post("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"),
        post("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"), post("Transfer-Encoding: chunked", "z\r\n"),
        std::string("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), post("Content-Length: 1x"),
        post("Content-Length: +1"), post("Content-Length:"), post("Content-Length: 1, 1"),
        post("Content-Length: 1\r\nContent-Length: 1"), post("Content-Length: 1\r\ncontent-length: 2")})
    EXPECT_EQ(RefusalOf(bytes).status, 400) << bytes;
  for (const std::string& bytes : {post("X: a\r\n b\r\nContent-Length: 1"), post("Content-Length: 1\r\nX:\r\n\tb"),
                                   post("Transfer-Encoding:\r\n chunked", "0\r\n\r\n"), post("Content-Length: 1\r\n 0")}) {
    for (const size_t piece : {size_t{1}, size_t{7}, std::string::npos}) {
      std::string sent = bytes;
      EXPECT_EQ(Parsed(&sent, piece)->state(), State::kRefused) << bytes;
    }
  }
  // In a body they are a body.
  std::string folded = post("Content-Length: 5", "\r\n \r\n");
  EXPECT_EQ(Parsed(&folded)->body(), "\r\n \r\n");
}

TEST(HttpRequestParser, HostsThatAreDoubtfulAreRefused) {
  for (const char* bytes :
       {"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:80@evil.com\r\n\r\n", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET http://user@localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET http:///x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://a:b/ HTTP/1.1\r\nHost: localhost\r\n\r\n"})
    EXPECT_THAT(RefusalOf(bytes).message, HasSubstr("ost")) << bytes;
  for (const auto& [target, host, path, query] :
       {std::array{"/a?b", "x:80", "/a", "b"}, std::array{"http://y", "y", "/", ""}, std::array{"HTTP://y:1/c", "y:1", "/c", ""},
        std::array{"http://y?b", "y", "/", "b"}}) {
    std::string bytes = "GET " + std::string(target) + " HTTP/1.1\r\nHost: x:80\r\n\r\n";
    const auto parser = Parsed(&bytes);
    ASSERT_EQ(parser->state(), State::kDone) << target;
    EXPECT_EQ(parser->Head().host, host);
    EXPECT_EQ(parser->Head().path, path);
    EXPECT_EQ(parser->Head().query, query);
  }
}

TEST(HttpRequestParser, ABodyTakesTheMemoryOfWhatHasCome) {
  HttpRequestParser parser(kMaxHeader);
  parser.Put("POST / HTTP/1.1\r\nHost: x\r\ncontent-length: 18446744073709551614\r\n\r\n");
  parser.AcceptBody(~uint64_t{0});
  ASSERT_EQ(parser.state(), State::kBody);
  EXPECT_EQ(parser.Put(std::string(1000, 'a')), 1000u);
  EXPECT_EQ(parser.state(), State::kBody);
  EXPECT_LT(parser.body().capacity(), 10'000u);
}

TEST(HttpRequestParser, ForwardedForIsWhatAllProxiesSay) {
  HttpRequestParser parser(kMaxHeader);
  parser.Put("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nA: b\r\nx-forwarded-for: 192.0.2.3\r\n\r\n");
  ASSERT_EQ(parser.state(), State::kHasHead);
  EXPECT_EQ(parser.Head().forwarded_for, "192.0.2.1, 192.0.2.2,192.0.2.3");
}

}  // namespace
}  // namespace coppice::server
