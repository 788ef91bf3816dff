#include "cli/json_log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/json.h"

namespace coppice::cli {
namespace {

// The member that holds what was logged.
class LoggedMember final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const bool is_object = text.starts_with('{') && nlohmann::json::accept(text);
    const std::string member =
        is_object ? "\"event\":" + std::string(text) : "\"message\":" + DumpJson(nlohmann::ordered_json(std::string(text)));
    line.append(member.data(), member.data() + member.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LoggedMember>(); }
};

}  // namespace

void LogAsJson() {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<LoggedMember>('*').set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%*})");
  spdlog::set_formatter(std::move(formatter));
}

}  // namespace coppice::cli
