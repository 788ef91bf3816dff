// Events out of a stream, however its bytes are cut; what a completion's objects say; URLs.
#include "cli/bench/sse_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/bench/completion_chunk.h"
#include "cli/bench/http_client.h"

namespace coppice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Events(const std::vector<std::string_view>& pieces) {
  std::vector<std::string> events;
  SseParser parser([&](std::string_view data) {
    events.emplace_back(data);
    return OkStatus();
  });
  for (const std::string_view piece : pieces) EXPECT_TRUE(parser.Feed(piece).ok());
  return events;
}

TEST(SseParser, LinesCommentsAndFields) {
  EXPECT_THAT(Events({"data: one\n\ndata:two\r\n\r\ndata:  three\r\r"}), ElementsAre("one", "two", " three"));
  EXPECT_THAT(Events({"\xEF\xBB\xBF"
                      "data: a\ndata\ndata: b\n\n"}),
              ElementsAre("a\n\nb"));
  EXPECT_THAT(Events({": comment\n\nevent: x\nid: 7\ndata: d\nretry: 1\n\n\n"}), ElementsAre("d"));
  EXPECT_THAT(Events({"database: x\n\n", "data: never ended\n"}), IsEmpty());
}

TEST(SseParser, CutsChangeNothing) {
  const std::string text = "data: {\"a\": 1}\r\n\r\n: wait\n\ndata: x\ndata: y\n\ndata: z\r\rdata: [DONE]\n\n";
  const std::vector<std::string> whole = Events({text});
  EXPECT_THAT(whole, ElementsAre("{\"a\": 1}", "x\ny", "z", "[DONE]"));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string_view view = text;
    EXPECT_EQ(Events({view.substr(0, cut), "", view.substr(cut)}), whole) << cut;
  }
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(std::string_view(text).substr(i, 1));
  EXPECT_EQ(Events(bytes), whole);
}

TEST(SseParser, EndsWithTheCallersErrorAndWithoutAnEndlessLine) {
  SseParser refuses([](std::string_view) { return InvalidArgument("no"); });
  EXPECT_EQ(refuses.Feed("data: x\n\n").message(), "no");
  SseParser parser([](std::string_view) { return OkStatus(); });
  const std::string piece(size_t{1} << 20, 'x');
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = parser.Feed(piece);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
}

TEST(CompletionChunk, TextTokensAndUsage) {
  const auto text = ParseCompletionChunk(R"({"choices":[{"index":2,"text":"a","finish_reason":null}],"usage":null})");
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->choices[0].index, 2);
  EXPECT_EQ(text->choices[0].tokens, 1);
  EXPECT_FALSE(text->choices[0].finished);
  const auto chat =
      ParseCompletionChunk(R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"length"}]})");
  EXPECT_EQ(chat->choices[0].tokens, 0);
  EXPECT_TRUE(chat->choices[0].finished);
  const auto ids = ParseCompletionChunk(R"({"choices":[{"index":0,"text":"","token_ids":[4,5,6]}]})");
  EXPECT_EQ(ids->choices[0].tokens, 3);
  const auto usage =
      ParseCompletionChunk(R"({"choices":[],"usage":{"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}})");
  EXPECT_EQ(usage->usage->completion_tokens, 7);
  EXPECT_EQ(usage->usage->cached_tokens, 3);
}

TEST(CompletionChunk, ErrorsAndGarbage) {
  EXPECT_EQ(ParseCompletionChunk(R"({"error":{"message":"the step failed"}})")->error, "the step failed");
  for (const char* const bad :
       {"", "[]", "{", "{}", "7", R"({"choices":7})", R"({"choices":[{"index":-1}]})", R"({"choices":[{"index":1e99}]})",
        R"({"choices":[],"usage":{"completion_tokens":-1}})", R"({"choices":[7]})"}) {
    EXPECT_EQ(ParseCompletionChunk(bad).status().code(), StatusCode::kDataLoss) << bad;
  }
  EXPECT_EQ(ErrorMessageOf(R"({"error":"busy"})"), "busy");
  EXPECT_EQ(ErrorMessageOf(R"({"detail":"Not Found"})"), "Not Found");
  EXPECT_EQ(ErrorMessageOf("<html>"), "<html>");
}

TEST(ServerUrl, PartsAndRefusals) {
  const auto url = ParseServerUrl("http://127.0.0.1:8000/v1/");
  ASSERT_TRUE(url.ok()) << url.status().message();
  EXPECT_EQ(url->authority() + url->path, "127.0.0.1:8000");
  EXPECT_EQ(ParseServerUrl("http://host")->authority(), "host:80");
  EXPECT_EQ(ParseServerUrl("http://host/models/a/v1")->path, "/models/a");
  EXPECT_EQ(ParseServerUrl("http://[::1]:81")->authority(), "[::1]:81");
  EXPECT_EQ(ParseServerUrl("http://[::1]")->host, "::1");
  for (const char* const bad : {"", "host:80", "http://", "http://:80", "http://a:0", "http://a:65536", "http://a:8x",
                                "http://a:", "http://[::1", "http://[::1]x", "http://a?b", "http://u@a", "ftp://a"}) {
    EXPECT_EQ(ParseServerUrl(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(ParseServerUrl("https://a").status().message(), HasSubstr("HTTPS"));
}

}  // namespace
}  // namespace coppice::cli
