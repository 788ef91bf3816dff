#include "cli/json_log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace coppice::cli {
namespace {

TEST(JsonLog, EachLineIsAnObject) {
  const std::shared_ptr<spdlog::logger> before = spdlog::default_logger();
  std::ostringstream log;
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  LogAsJson();
  const auto logged = [&](const std::string& text) {
    log.str("");
    spdlog::warn("{}", text);
    return nlohmann::json::parse(log.str(), nullptr, /*allow_exceptions=*/false);
  };
  for (const char* text : {"plain", "two\nlines \"quoted\" \\ \t\x01", "", "null", "[1]", "{} is left as it is: {",
                           "{\"a\":1} and more", "{not json}", "no UTF-8: \xff", "\"text\""}) {
    const nlohmann::json line = logged(text);
    ASSERT_TRUE(line.is_object()) << text << ": " << log.str();
    EXPECT_TRUE(line["message"].is_string()) << log.str();
    EXPECT_FALSE(line.contains("event"));
    EXPECT_EQ(line["level"], "warning");
  }
  EXPECT_EQ(logged("two\nlines \"quoted\"")["message"], "two\nlines \"quoted\"");
  EXPECT_EQ(logged(R"({"a":{"b":[1]}})")["event"], nlohmann::json::parse(R"({"a":{"b":[1]}})"));
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace coppice::cli
