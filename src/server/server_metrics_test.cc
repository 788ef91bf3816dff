// The text of /metrics.
#include "server/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>

namespace coppice::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ServerMetrics, CountsByRouteStatusAndKey) {
  ServerMetrics metrics;
  metrics.CountRequest("/v1/completions", 200, 0.2);
  metrics.CountRequest("/v1/completions", 200, 0.2);
  metrics.CountRequest("/v1/completions", 429, 0.001);
  metrics.CountTokens("a\"b\\c\nd", 5, 3, 2);
  metrics.CountTokens("a\"b\\c\nd", 5, 3, 2);
  metrics.CountBytesNotRead("b", 640);
  metrics.CountBytesNotRead("b", 1);
  const std::string text = metrics.Text({.steps = 9, .waiting = 4}, 7);
  EXPECT_THAT(text, HasSubstr("coppice_http_requests_total{route=\"/v1/completions\",status=\"200\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("coppice_http_requests_total{route=\"/v1/completions\",status=\"429\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("coppice_http_requests_active 7\n"));
  EXPECT_THAT(text, HasSubstr("coppice_key_prompt_tokens_total{key=\"a\\\"b\\\\c\\nd\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("coppice_key_generated_tokens_total{key=\"a\\\"b\\\\c\\nd\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("coppice_kv_bytes_not_read_total{key=\"b\"} 641\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE coppice_steps_total counter\ncoppice_steps_total 9\n"));
  EXPECT_THAT(text, HasSubstr("coppice_requests_waiting 4\n"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST(ServerMetrics, WhatRunsAndForHowLong) {
  ServerMetrics metrics({.version = "1.2", .model = "a\"b"});
  metrics.CountRequest("/v1/tree", 200, 0.001);
  metrics.CountRequest("/v1/completions", 200, 2);
  const std::string text = metrics.Text({.requests_begun = 3, .queue_seconds = 1.5}, 0);
  EXPECT_THAT(text, HasSubstr("coppice_build_info{version=\"1.2\",model=\"a\\\"b\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("coppice_http_request_seconds_bucket{route=\"/v1/completions\",le=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("coppice_http_request_seconds_count{route=\"/v1/tree\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("coppice_queue_seconds_sum 1.5\ncoppice_queue_seconds_count 3\n"));
  const auto value_of = [&](const std::string& name) {
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? 0.0 : std::stod(text.substr(at + name.size() + 2));
  };
  EXPECT_NEAR(value_of("process_start_time_seconds"), static_cast<double>(std::time(nullptr)), 600);
  EXPECT_GT(value_of("process_resident_memory_bytes"), 1 << 20);
}

TEST(ServerMetrics, AKeySeesItsOwn) {
  ServerMetrics metrics;
  metrics.CountTokens("alice", 5, 3, 2);
  const std::string before = metrics.TextOf("alice", 1);
  metrics.CountTokens("bob", 50, 30, 20);
  metrics.CountBytesNotRead("bob", 640);
  metrics.CountRequest("/v1/completions", 200, 0.2);
  metrics.CountFirstToken(0.1);
  EXPECT_EQ(metrics.TextOf("alice", 1), before);
  EXPECT_THAT(before, HasSubstr("coppice_key_cached_tokens_total{key=\"alice\"} 3\n"));
  EXPECT_THAT(before, HasSubstr("coppice_http_requests_active 1\n"));
  EXPECT_THAT(metrics.TextOf("carol", 0), HasSubstr("coppice_key_prompt_tokens_total{key=\"carol\"} 0\n"));
}

TEST(LatencyHistogram, BucketsAreCumulative) {
  LatencyHistogram histogram;
  for (const double seconds : {0.0005, 0.001, 0.3, 1000.0}) histogram.Add(seconds);
  std::string text;
  histogram.AppendTo("x_seconds", {}, &text);
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{le=\"0.001\"} 2\n"));  // a bound belongs to its bucket
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{le=\"0.25\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{le=\"0.5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{le=\"120\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_count 4\n"));
  text.clear();
  histogram.AppendTo("x_seconds", "route=\"/a\"", &text);
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{route=\"/a\",le=\"0.25\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("x_seconds_count{route=\"/a\"} 4\n"));
}

}  // namespace
}  // namespace coppice::server
