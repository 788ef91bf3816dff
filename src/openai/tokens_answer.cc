#include "openai/tokens_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/json.h"
#include "openai/logprobs.h"
#include "openai/tokens_request.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

ordered_json Entry(int32_t id, float logprob, int32_t rank) {
  // Both names of a token: older clients read the first.
  return {{"token", IdName(id)}, {"token_id", id}, {"logprob", logprob}, {"rank", rank}};
}

// An entry of logprobs.content: the token, and again with the most probable others.
void AppendLogprob(const Sample& sample, size_t i, std::string* out) {
  const AnswerToken token = TokenOf(sample, i);
  const int32_t rank = i < sample.ranks.size() ? sample.ranks[i] : 0;
  ordered_json entry = Entry(token.id, *token.logprob, rank);
  ordered_json& top = entry["top_logprobs"] = ordered_json::array({Entry(token.id, *token.logprob, rank)});
  const size_t others = token.top ? token.top->size() : 0;
  for (size_t other = 0; other < others; ++other) {
    const auto& [id, logprob] = (*token.top)[other];
    if (id != token.id) top.push_back(Entry(id, logprob, static_cast<int32_t>(other) + 1));
  }
  *out += DumpJson(std::move(entry));
}

std::string HeadOf(const OpenAiRequest& request, const ResponseFacts& facts) {
  return fmt::format(R"({{"request_id":{},"model":{},"created":{},"output_mode":"{}")",
                     DumpJson(request.client_id.empty() ? facts.id : request.client_id), DumpJson(facts.model), facts.created,
                     request.token_route->with_text ? "text" : "tokens");
}

// The last fields of a choice; finish_reason is null while it goes on.
std::string EndOf(const OpenAiRequest& request, const Sample& sample, const ResponseFacts& facts) {
  if (!sample.finish_reason) return R"(,"finish_reason":null)";
  return fmt::format(R"(,"finish_reason":"{}","stop_reason":{},"weight_versions":{})", ReasonOf(*sample.finish_reason, 0),
                     DumpJson(StopReasonOf(request.request, sample)), DumpJson(VersionsOf(sample, facts)));
}

class TokensText final : public PartedText {
 public:
  TokensText(Answer answer, ResponseFacts facts, const Tokenizer* tokenizer)
      : answer_(std::move(answer)), facts_(std::move(facts)), tokenizer_(tokenizer), held_bytes_(HeldBytes(answer_)) {}

  size_t held_bytes() const override { return held_bytes_; }

 private:
  bool AddParts(TextParts* parts) override {
    const std::vector<Sample>& samples = answer_.output.samples;
    if (next_ > samples.size()) return false;
    if (next_ == 0) parts->Add(HeadOf(answer_.request, facts_) + R"(,"choices":[)");
    if (next_ < samples.size()) {
      AddChoice(samples[next_], parts);
    } else {
      AddEnd(parts);
    }
    ++next_;
    return true;
  }

  void AddChoice(const Sample& sample, TextParts* parts) {
    const OpenAiRequest& request = answer_.request;
    parts->Add(fmt::format(R"({}{{"index":{}{},"token_ids":[)", sample.index > 0 ? "," : "", sample.index,
                           EndOf(request, sample, facts_)));
    parts->AddEach(sample.token_ids.size(),
                   WithCommas([&sample](size_t i, std::string* out) { *out += std::to_string(sample.token_ids[i]); }));
    parts->Add("]");
    if (request.token_route->with_text) parts->Add(R"(,"text":)" + DumpJson(sample.text));
    if (!request.logprobs) return parts->Add(R"(,"logprobs":null})");
    parts->Add(R"(,"logprobs":{"content":[)");
    parts->AddEach(sample.token_ids.size(), WithCommas([&sample](size_t i, std::string* out) { AppendLogprob(sample, i, out); }));
    parts->Add("]}}");
  }

  void AddEnd(TextParts* parts) {
    const std::vector<int32_t>& ids = answer_.request.prompt_ids;
    if (answer_.request.prompt_logprobs) {
      parts->Add(R"(],"prompt_logprobs":[)");
      parts->AddEach(ids.size(), WithCommas([this, &ids](size_t i, std::string* out) {
                       AppendPromptLogprob(TokenOf(answer_.output.prompt, ids, i), tokenizer_, out);
                     }));
      parts->Add("]");
    } else {
      parts->Add(R"(],"prompt_logprobs":null)");
    }
    if (answer_.request.return_token_ids) {
      parts->Add(R"(,"prompt_token_ids":[)");
      parts->AddEach(ids.size(), WithCommas([&ids](size_t i, std::string* out) { *out += std::to_string(ids[i]); }));
      parts->Add("]");
    }
    parts->Add(R"(,"usage":)" + DumpJson(UsageOf(answer_.usage)) + "}");
  }

  const Answer answer_;
  const ResponseFacts facts_;
  const Tokenizer* const tokenizer_;
  const size_t held_bytes_;
  size_t next_ = 0;  // choice, then the end
};

}  // namespace

ordered_json StopReasonOf(const Request& request, const Sample& sample) {
  if (sample.finish_reason != FinishReason::kStop) return nullptr;
  if (sample.stop) return request.stop[static_cast<size_t>(*sample.stop)];
  if (sample.token_ids.empty()) return nullptr;
  const int32_t last = sample.token_ids.back();
  const bool is_named = std::ranges::find(request.stop_token_ids, last) != request.stop_token_ids.end();
  return is_named ? ordered_json(last) : ordered_json();
}

ordered_json VersionsOf(const Sample& sample, const ResponseFacts& facts) {
  ordered_json versions = ordered_json::array();
  for (const auto& [version, begin, end] : sample.versions)
    versions.push_back({{"version", VersionName(facts, version)}, {"start", begin}, {"end", end}});
  return versions;
}

std::unique_ptr<TextSource> TokensBody(Answer answer, ResponseFacts facts, const Tokenizer* tokenizer) {
  return std::make_unique<TokensText>(std::move(answer), std::move(facts), tokenizer);
}

TokensStream::TokensStream(const OpenAiRequest* request, const ResponseFacts& facts)
    : request_(request),
      facts_(facts),
      head_(HeadOf(*request, facts)),
      reports_prompt_(request->return_token_ids),
      written_(static_cast<size_t>(request->request.n)) {
  for (int32_t i = 0; i < request->request.n; ++i) samples_.push_back({.index = i});
}

void TokensStream::Append(const StreamEvent& event, std::string* out) {
  Sample& sample = samples_[static_cast<size_t>(event.index)];
  sample.Append(event);
  if (!event.finish_reason && (request_->token_route->final_only || event.token_ids.empty())) return;
  size_t& written = written_[static_cast<size_t>(event.index)];
  fmt::format_to(std::back_inserter(*out), R"(data: {},"choices":[{{"index":{}{},"token_ids":[)", head_, sample.index,
                 EndOf(*request_, sample, facts_));
  const auto add_each = [&](const auto& append) {
    for (size_t i = written; i < sample.token_ids.size(); ++i) {
      if (i > written) *out += ',';
      append(i);
    }
  };
  add_each([&](size_t i) { *out += std::to_string(sample.token_ids[i]); });
  *out += "]";
  if (request_->token_route->with_text) *out += R"(,"text":)" + DumpJson(std::exchange(sample.text, {}));
  if (request_->logprobs) {
    *out += R"(,"logprobs":{"content":[)";
    add_each([&](size_t i) { AppendLogprob(sample, i, out); });
    *out += "]}}]";
  } else {
    *out += R"(,"logprobs":null}])";
  }
  if (std::exchange(reports_prompt_, false)) *out += R"(,"prompt_token_ids":)" + DumpJson(request_->prompt_ids);
  *out += "}\n\n";
  for (; written < sample.token_ids.size(); ++written) {
    if (written < sample.top_logprobs.size()) sample.top_logprobs[written] = {};
  }
}

std::unique_ptr<TextSource> TokensStream::End(const TokenUsage& usage, const BodyError& failure, std::string* out) {
  if (!failure.status.ok()) {
    *out += DataEvent(ErrorBody(failure.status, failure.param));
    return nullptr;
  }
  if (request_->include_usage)
    *out += fmt::format(R"(data: {},"choices":[],"usage":{}}})", head_, DumpJson(UsageOf(usage))) + "\n\n";
  *out += "data: [DONE]\n\n";
  return nullptr;
}

}  // namespace coppice::openai
