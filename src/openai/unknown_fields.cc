#include "openai/unknown_fields.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/json.h"
#include "core/quoted.h"

namespace coppice::openai {
namespace {

using nlohmann::json;

// A field that some server or client knows and that changes what is generated or answered. `neutral` is JSON: a value that asks for
// what is done anyway, beside null, "", [] and {}; empty: false. `instead` names what does it here.
struct Effective {
  std::string_view name, neutral, instead;
};
constexpr std::string_view kNone = {};

constexpr Effective kEffective[] = {
    // OpenAI's, on the other route or not supported
    {"audio", kNone, kNone},
    {"best_of", "1", "n, or /v1/completions"},
    {"echo", kNone, "/v1/completions"},
    {"function_call", R"("none")", "tool_choice"},
    {"functions", kNone, "tools"},
    {"max_completion_tokens", "-1", "max_tokens"},
    {"messages", kNone, "prompt, or /v1/chat/completions"},
    {"prompt", kNone, "messages, or /v1/completions"},
    {"suffix", kNone, "/v1/completions"},
    {"tool_choice", R"("none")", "/v1/chat/completions"},
    {"tools", kNone, "/v1/chat/completions"},
    {"top_logprobs", "0", "logprobs"},
    {"web_search_options", kNone, kNone},
    // Sampling: vLLM, SGLang, llama.cpp, Ollama, text-generation-inference, Mistral
    {"allowed_token_ids", kNone, kNone},
    {"bad_words", kNone, "logit_bias"},
    {"beam_width", "1", kNone},
    {"decoder_input_details", kNone, "logprobs with echo"},
    {"do_sample", "true", "temperature 0"},
    {"dry_multiplier", "0", kNone},
    {"dynatemp_range", "0", kNone},
    {"early_stopping", kNone, kNone},
    {"epsilon_cutoff", "0", kNone},
    {"eta_cutoff", "0", kNone},
    {"guidance_scale", "1", kNone},
    {"length_penalty", "1", kNone},
    {"logits_processors", kNone, kNone},
    {"max_new_tokens", "-1", "max_tokens"},
    {"min_new_tokens", "0", "min_tokens"},
    {"mirostat", "0", kNone},
    {"mirostat_mode", "0", kNone},
    {"n_predict", "-1", "max_tokens"},
    {"n_probs", "0", "logprobs"},
    {"negative_prompt", kNone, kNone},
    {"no_repeat_ngram_size", "0", kNone},
    {"num_beams", "1", kNone},
    {"num_predict", "-1", "max_tokens"},
    {"penalty_alpha", "0", kNone},
    {"random_seed", kNone, "seed"},
    {"repeat_penalty", "1", "repetition_penalty"},
    {"samplers", kNone, kNone},
    {"smoothing_factor", "0", kNone},
    {"tfs", "1", kNone},
    {"tfs_z", "1", kNone},
    {"thinking_budget", "-1", kNone},
    {"thinking_token_budget", "-1", kNone},
    {"top_a", "0", kNone},
    {"top_n_sigma", "-1", kNone},
    {"top_n_tokens", "0", "top_logprobs"},
    {"typical", "1", kNone},
    {"typical_p", "1", kNone},
    {"use_beam_search", kNone, kNone},
    {"watermark", kNone, kNone},
    {"xtc_probability", "0", kNone},
    // Constraints
    {"ebnf", kNone, "grammar"},
    {"format", kNone, "response_format"},
    {"guided_choice", kNone, "regex"},
    {"guided_grammar", kNone, "grammar"},
    {"guided_json", kNone, "response_format"},
    {"guided_regex", kNone, "regex"},
    {"json_schema", kNone, "response_format"},
    {"structural_tag", kNone, "response_format"},
    {"structured_outputs", kNone, "response_format, regex or grammar"},
    // Prompts
    {"add_special_tokens", "true", kNone},
    {"chat_template", kNone, kNone},
    {"documents", kNone, kNone},  // of a template that reads none
    {"image_data", kNone, kNone},
    {"images", kNone, kNone},
    {"input", kNone, "messages or prompt"},
    {"input_extra", kNone, "/infill"},
    {"input_ids", kNone, "prompt"},
    {"input_prefix", kNone, "/infill"},
    {"input_suffix", kNone, "/infill"},
    {"inputs", kNone, "messages or prompt"},
    {"instructions", kNone, "messages"},
    {"mm_processor_kwargs", kNone, kNone},
    {"options", kNone, "fields of the body itself"},
    {"parameters", kNone, "fields of the body itself"},
    {"plugins", kNone, kNone},
    {"prompt_embeds", kNone, kNone},
    {"prompt_mode", kNone, kNone},
    {"prompt_truncate_len", kNone, kNone},
    {"raw", kNone, "/v1/completions"},
    {"safe_prompt", kNone, kNone},
    {"system", kNone, "messages"},
    {"template", kNone, kNone},
    {"think", "true", "chat_template_kwargs"},
    {"thinking", kNone, "chat_template_kwargs"},
    {"truncate", kNone, kNone},
    {"truncate_prompt_tokens", kNone, kNone},
    // Models and answers
    {"adapter", kNone, kNone},
    {"adapter_id", kNone, kNone},
    {"include_stop_str_in_output", kNone, kNone},
    {"kv_transfer_params", kNone, kNone},
    {"lora", kNone, kNone},
    {"lora_path", kNone, kNone},
    {"no_stop_trim", kNone, kNone},
    {"prompt_logprobs", kNone, "logprobs with echo"},
    {"return_hidden_states", kNone, kNone},
    {"skip_special_tokens", "true", kNone},
    {"spaces_between_special_tokens", "true", kNone},
    {"stop_regex", kNone, kNone},
};

// Equal by value: 1 and 1.0 are one number.
bool IsNeutral(const json& value, std::string_view neutral) {
  const json asks_nothing = neutral.empty() ? json(false) : json::parse(neutral);
  return value.is_null() || value == "" || (value.is_structured() && value.empty()) || value == asks_nothing;
}

}  // namespace

Result<UnknownFields> ParseUnknownFields(std::string_view name) {
  if (name == "ignore") return UnknownFields::kIgnore;
  if (name == "refuse") return UnknownFields::kRefuse;
  return InvalidArgument(fmt::format("{} is neither ignore nor refuse", Quoted(name)));
}

std::optional<Status> CheckEffect(const std::string& name, const json& value) {
  const auto found = std::ranges::find(kEffective, name, &Effective::name);
  if (found == std::end(kEffective)) return std::nullopt;
  if (IsNeutral(value, found->neutral)) return OkStatus();
  constexpr size_t kLongest = 60;
  const std::string wanted = found->instead.empty() ? "leave it out" : fmt::format("use {}", found->instead);
  return InvalidArgument(fmt::format("{} is {}, which would change the answer and is not supported; {}", name,
                                     PrintableJson(value, kLongest), wanted));
}

void IgnoredFields::Add(const std::vector<std::string>& fields) {
  constexpr size_t kMostNames = 1000;
  requests_ += !fields.empty();
  for (const std::string& field : fields) {
    std::string name;
    bool is_index = false;
    for (const char c : field) {
      if (c == ']') is_index = false;
      if (!is_index) name += c;
      if (c == '[') is_index = true;
    }
    if (names_.size() < kMostNames) names_.insert(std::move(name));
  }
}

void IgnoredFields::Log(const std::string& where) const {
  if (names_.empty()) return;
  spdlog::warn("{}: {} requests have fields that are not known here and were ignored: {}; --unknown-fields refuse refuses them",
               where, requests_, Listed({names_.begin(), names_.end()}));
}

std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 16, kLongestName = 64;
  std::string list;
  for (const std::string& name : names) {
    if (&name - names.data() == kMostNames) return list + fmt::format(" and {} more", names.size() - kMostNames);
    list += (list.empty() ? "" : ", ") + Printable(name, kLongestName);
  }
  return list;
}

}  // namespace coppice::openai
