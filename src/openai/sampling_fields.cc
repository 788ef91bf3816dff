#include "openai/sampling_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <system_error>

#include "core/quoted.h"

namespace coppice::openai {
namespace {

void TakeLogitBias(FieldReader& fields, SamplingParams* sampling) {
  const nlohmann::json* value = fields.Find("logit_bias");
  if (!value) return;
  constexpr std::string_view kExpected = "an object of token id to number, such as {\"50\": -100}";
  if (!value->is_object()) return fields.Expect("logit_bias", *value, kExpected);
  sampling->logit_bias.clear();
  for (const auto& [token, bias] : value->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), id);
    if (error != std::errc() || end != token.data() + token.size() || !bias.is_number())
      return fields.Expect("logit_bias", *value, kExpected);
    sampling->logit_bias.emplace_back(id, bias.get<float>());
  }
}

}  // namespace

void TakeSampling(FieldReader& fields, SamplingParams* sampling) {
  fields.Take("temperature", &sampling->temperature);
  fields.Take("top_p", &sampling->top_p);
  fields.Take("presence_penalty", &sampling->presence_penalty);
  fields.Take("frequency_penalty", &sampling->frequency_penalty);
  TakeLogitBias(fields, sampling);
  // Extensions, by the names that other servers gave them.
  fields.Take("top_k", &sampling->top_k);
  if (sampling->top_k == -1) sampling->top_k = 0;
  fields.Take("min_p", &sampling->min_p);
  fields.Take("repetition_penalty", &sampling->repetition_penalty);
  std::optional<std::string> mode;
  fields.Take("logprobs_mode", &mode);
  if (!mode) return;
  const Result<LogprobsMode> parsed = ParseLogprobsMode(*mode);
  if (!parsed.ok())
    return fields.Fail("logprobs_mode", InvalidArgument(fmt::format("logprobs_mode: {}", parsed.status().message())));
  sampling->logprobs_mode = *parsed;
}

Result<LogprobsMode> ParseLogprobsMode(std::string_view name) {
  if (name == "raw" || name == "raw_logprobs") return LogprobsMode::kRaw;
  if (name == "processed" || name == "processed_logprobs") return LogprobsMode::kProcessed;
  return InvalidArgument(fmt::format("{} is neither raw_logprobs (raw) nor processed_logprobs (processed)", Quoted(name)));
}

void TakeSeed(FieldReader& fields, uint64_t* seed) {
  const nlohmann::json* value = fields.Find("seed");
  if (value && value->is_number() && value->get<double>() < 0) {
    int64_t negative = 0;
    fields.Take("seed", &negative);
    *seed = static_cast<uint64_t>(negative);
  } else {
    fields.Take("seed", seed);
  }
}

}  // namespace coppice::openai
