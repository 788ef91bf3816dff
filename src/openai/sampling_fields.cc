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

bool TakeSampling(FieldReader& fields, SamplingParams* sampling) {
  bool any = false;
  const auto take = [&](const char* name, auto* target) {
    any |= fields.Find(name) != nullptr;
    fields.Take(name, target);
  };
  take("temperature", &sampling->temperature);
  take("top_p", &sampling->top_p);
  take("presence_penalty", &sampling->presence_penalty);
  take("frequency_penalty", &sampling->frequency_penalty);
  any |= fields.Find("logit_bias") != nullptr;
  TakeLogitBias(fields, sampling);
  // Extensions, by the names that other servers gave them.
  take("top_k", &sampling->top_k);
  if (sampling->top_k == -1) sampling->top_k = 0;
  take("min_p", &sampling->min_p);
  take("repetition_penalty", &sampling->repetition_penalty);
  std::optional<std::string> mode;
  take("logprobs_mode", &mode);
  if (!mode) return any;
  const Result<LogprobsMode> parsed = ParseLogprobsMode(*mode);
  if (parsed.ok()) {
    sampling->logprobs_mode = *parsed;
  } else {
    fields.Fail("logprobs_mode", InvalidArgument(fmt::format("logprobs_mode: {}", parsed.status().message())));
  }
  return any;
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
