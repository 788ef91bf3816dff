#include "openai/response_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "coppice/engine/ranking.h"
#include "core/check.h"
#include "core/json.h"
#include "openai/infill_answer.h"
#include "openai/logprobs.h"
#include "openai/responses_body.h"
#include "openai/sglang_answer.h"
#include "openai/tokens_answer.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

AnswerToken TokenOf(const EchoedPrompt& prompt, size_t i) {
  return {.id = prompt.token_ids[i],
          .logprob = prompt.logprobs[i],
          .top = i > 0 && i < prompt.top_logprobs.size() ? &prompt.top_logprobs[i] : nullptr};
}

// A chat's message; `*num_calls`: of tools, in it.
ordered_json MessageOf(const OpenAiRequest& request, std::string_view answer_id, const Sample& sample, int32_t index,
                       int32_t* num_calls) {
  if (!request.tools) return {{"role", "assistant"}, {"content", sample.text}};
  ParsedOutput output;
  ToolCallParser parser(request.tools.get());
  parser.Push(sample.text, &output);
  parser.Finish(&output);
  *num_calls = parser.num_calls();
  if (*num_calls == 0) return {{"role", "assistant"}, {"content", output.content}};
  ordered_json calls = ordered_json::array();
  for (const ParsedOutput::Call& call : output.calls)
    calls.push_back({{"id", ToolCallId(request.tools->format.style, answer_id, index, call.index)},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return {{"role", "assistant"},
          {"content", output.content.empty() ? ordered_json() : ordered_json(output.content)},
          {"tool_calls", std::move(calls)}};
}

// The choices that gave an answer, by their places; `count` has those too that were not chosen. null: it could not be found.
ordered_json Votes(const std::vector<Sample>& samples, const std::string& pattern, const std::vector<const Sample*>& choices) {
  const Result<std::vector<VotedAnswer>> votes = Vote(samples, pattern);
  if (!votes.ok()) return nullptr;
  ordered_json list = ordered_json::array();
  for (const VotedAnswer& vote : *votes) {
    ordered_json places = ordered_json::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      if (std::ranges::find(vote.voters, choices[i]->index) != vote.voters.end()) places.push_back(i);
    }
    list.push_back({{"answer", vote.answer},
                    {"count", vote.voters.size()},
                    {"choices", std::move(places)},
                    {"mean_logprob", vote.mean_logprob ? ordered_json(*vote.mean_logprob) : ordered_json()}});
  }
  return list;
}

TokenUsage UsageOf(const std::vector<Answer>& answers) {
  TokenUsage usage;
  for (const Answer& answer : answers) usage.Add(answer.usage);
  return usage;
}

// Those that have ended, also such as were cancelled, whose answer is what they had by then.
std::vector<const Sample*> Ended(const std::vector<Sample>& samples) {
  std::vector<const Sample*> ended;
  for (const Sample& sample : samples) {
    if (sample.finish_reason) ended.push_back(&sample);
  }
  return ended;
}

size_t BytesOfTop(int32_t top_logprobs) {
  return sizeof(std::vector<TokenLogprob>) + static_cast<size_t>(top_logprobs) * sizeof(TokenLogprob);
}

size_t HeldBytes(const std::vector<Answer>& answers) {
  size_t bytes = 0;
  for (const Answer& answer : answers) bytes += openai::HeldBytes(answer);
  return bytes;
}

class ResponseText final : public PartedText {
 public:
  ResponseText(std::vector<Answer> answers, ResponseFacts facts, const Tokenizer* tokenizer)
      : answers_(std::move(answers)), facts_(std::move(facts)), tokenizer_(tokenizer), held_bytes_(HeldBytes(answers_)) {
    COPPICE_CHECK(!answers_.empty());
  }

  size_t held_bytes() const override { return held_bytes_ + repeated_.size(); }

 private:
  // Texts of a prompt that all its choices have. The first choice makes them while it is written.
  struct Repeated {
    std::string text;                                          // a JSON string
    std::array<std::string, kLogprobColumns.size()> logprobs;  // entries by column
    std::string token_ids;                                     // entries
    std::string prompt_ids, prompt_logprobs;                   // likewise, of vLLM's additions
    int64_t characters = 0;

    size_t size() const {
      size_t bytes = text.size() + token_ids.size() + prompt_ids.size() + prompt_logprobs.size();
      for (const std::string& column : logprobs) bytes += column.size();
      return bytes;
    }
  };

  bool AddParts(TextParts* parts) override;
  void BeginAnswer(TextParts* parts);
  void AddChoice(const Sample& sample, TextParts* parts);
  void AddLogprobs(const Sample& sample, TextParts* parts);
  // prompt_token_ids and prompt_logprobs of an answer's prompt, where they are asked for.
  void AddPrompt(TextParts* parts);
  // The entries of a list: what `append_prompt` makes of the prompt's tokens, or what `*repeated` has of them, and the sample's.
  void AddEntries(const Sample& sample, std::string* repeated, TextParts::Append append_prompt, TextParts::Append append_sample,
                  TextParts* parts) const;

  const Answer& answer() const { return answers_[answer_]; }
  bool chat() const { return answers_.front().request.endpoint == Endpoint::kChatCompletions; }

  const std::vector<Answer> answers_;
  const ResponseFacts facts_;
  const Tokenizer* const tokenizer_;
  const size_t held_bytes_;
  // Of what comes next:
  size_t answer_ = 0;
  std::vector<const Sample*> chosen_;
  size_t place_ = 0;   // in chosen_
  int32_t index_ = 0;  // of the choice
  Repeated repeated_;
  int64_t offset_ = 0;  // characters
  ordered_json votes_;
  bool done_ = false;
};

bool ResponseText::AddParts(TextParts* parts) {
  if (done_) return false;
  if (answer_ == answers_.size()) {
    const bool voted = answers_.front().request.vote.has_value();
    parts->Add("]");
    if (chat()) {
      answer_ = place_ = 0;  // it has one prompt
      AddPrompt(parts);
    }
    parts->Add(fmt::format(R"(,"usage":{}{}}})", DumpJson(openai::UsageOf(UsageOf(answers_))),
                           voted ? R"(,"votes":)" + DumpJson(std::move(votes_)) : ""));
    done_ = true;
    return true;
  }
  if (place_ == 0) BeginAnswer(parts);
  if (place_ < chosen_.size()) {
    AddChoice(*chosen_[place_], parts);
    ++index_;
    ++place_;
  }
  if (place_ == chosen_.size()) {
    ++answer_;
    place_ = 0;
  }
  return true;
}

void ResponseText::BeginAnswer(TextParts* parts) {
  if (answer_ == 0) {
    parts->Add(fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"choices":[)",
                           DumpJson((chat() ? "chatcmpl-" : "cmpl-") + facts_.id), chat() ? "chat.completion" : "text_completion",
                           facts_.created, DumpJson(facts_.model)));
  }
  const auto& [request, output, usage] = answer();
  const bool fewer = request.choices < std::ssize(output.samples);
  if (request.rank || fewer || request.deduplicate) {
    chosen_ = Select(output.samples,
                     {.rank = request.rank || fewer, .deduplicate = request.deduplicate, .best = fewer ? request.choices : 0});
  } else {
    chosen_ = Ended(output.samples);
  }
  repeated_ = {};
  if (!output.prompt.text.empty()) repeated_.text = DumpJson(output.prompt.text);
  if (request.vote) {
    COPPICE_CHECK(answers_.size() == 1);
    votes_ = Votes(output.samples, *request.vote, chosen_);
  }
}

void ResponseText::AddChoice(const Sample& sample, TextParts* parts) {
  const OpenAiRequest& request = answer().request;
  int32_t num_calls = 0;
  parts->Add(fmt::format(R"({}{{"index":{},)", index_ > 0 ? "," : "", index_));
  if (chat()) {
    parts->Add(R"("message":)" + DumpJson(MessageOf(request, facts_.id, sample, index_, &num_calls)));
  } else if (const std::string_view prompt = repeated_.text; prompt.empty()) {
    parts->Add(R"("text":)" + DumpJson(sample.text));
  } else {
    parts->Add(R"("text":)");
    parts->AddView(prompt.substr(0, prompt.size() - 1));
    parts->Add(DumpJson(sample.text).substr(1));
  }
  parts->Add(R"(,"logprobs":)");
  AddLogprobs(sample, parts);
  parts->Add(
      fmt::format(R"(,"finish_reason":{})", sample.finish_reason ? DumpJson(ReasonOf(*sample.finish_reason, num_calls)) : "null"));
  if (sample.beam_score) parts->Add(R"(,"beam_score":)" + DumpJson(*sample.beam_score));
  if (request.return_token_ids || !tokenizer_) {
    parts->Add(R"(,"token_ids":[)");
    AddEntries(
        sample, &repeated_.token_ids,
        [&ids = answer().output.prompt.token_ids](size_t i, std::string* out) { *out += std::to_string(ids[i]); },
        [&ids = sample.token_ids](size_t i, std::string* out) { *out += std::to_string(ids[i]); }, parts);
    parts->Add("]");
  }
  parts->Add(SampleIdField(request, sample.index));
  if (!chat()) AddPrompt(parts);
  parts->Add("}");
}

void ResponseText::AddPrompt(TextParts* parts) {
  const OpenAiRequest& request = answer().request;
  const auto add = [&](const char* name, std::string* repeated, TextParts::Append append) {
    parts->Add(fmt::format(R"(,"{}":[)", name));
    if (place_ > 0) {
      parts->AddView(*repeated);
    } else {
      parts->AddEach(request.prompt_ids.size(), WithCommas(std::move(append)), chosen_.size() > 1 ? repeated : nullptr);
    }
    parts->Add("]");
  };
  if (request.return_token_ids && !request.prompt_ids.empty()) {  // a fork or an extension has no prompt
    add("prompt_token_ids", &repeated_.prompt_ids,
        [&ids = request.prompt_ids](size_t i, std::string* out) { *out += std::to_string(ids[i]); });
  }
  if (request.prompt_logprobs) {
    add("prompt_logprobs", &repeated_.prompt_logprobs,
        [this, &ids = request.prompt_ids, &prompt = answer().output.prompt](size_t i, std::string* out) {
          AppendPromptLogprob(TokenOf(prompt, ids, i), tokenizer_, out);
        });
  }
}

void ResponseText::AddLogprobs(const Sample& sample, TextParts* parts) {
  const OpenAiRequest& request = answer().request;
  if (!request.logprobs) return parts->Add("null");
  if (chat()) {
    parts->Add(R"({"content":[)");
    parts->AddEach(sample.token_ids.size(), [this, &sample, as_ids = request.tokens_as_ids](size_t i, std::string* out) {
      if (i > 0) *out += ',';
      AppendChatLogprob(TokenOf(sample, i), tokenizer_, as_ids, out);
    });
    return parts->Add("]}");
  }
  offset_ = repeated_.characters;
  const CompletionLogprobs logprobs(tokenizer_, request.request.top_logprobs > 0, request.tokens_as_ids);
  for (const LogprobColumn column : kLogprobColumns) {
    parts->Add(logprobs.Begin(column));
    if (logprobs.has(column)) {
      AddEntries(
          sample, &repeated_.logprobs[static_cast<size_t>(column)],
          [=, this, &prompt = answer().output.prompt](size_t i, std::string* out) {
            logprobs.Append(column, TokenOf(prompt, i), &offset_, out);
            repeated_.characters = offset_;
          },
          [=, this, &sample](size_t i, std::string* out) { logprobs.Append(column, TokenOf(sample, i), &offset_, out); }, parts);
    }
    parts->AddView(logprobs.End(column));
  }
}

void ResponseText::AddEntries(const Sample& sample, std::string* repeated, TextParts::Append append_prompt,
                              TextParts::Append append_sample, TextParts* parts) const {
  const size_t num_prompt = answer().output.prompt.token_ids.size();
  if (place_ > 0) {
    parts->AddView(*repeated);
  } else {
    parts->AddEach(num_prompt, WithCommas(std::move(append_prompt)), chosen_.size() > 1 ? repeated : nullptr);
  }
  parts->AddEach(sample.token_ids.size(), WithCommas(std::move(append_sample), num_prompt));
}

}  // namespace

AnswerToken TokenOf(const Sample& sample, size_t i) {
  return {.id = sample.token_ids[i],
          .logprob = sample.logprobs[i],
          .top = i < sample.top_logprobs.size() ? &sample.top_logprobs[i] : nullptr};
}

PromptToken TokenOf(const EchoedPrompt& prompt, std::span<const int32_t> ids, size_t i) {
  return {.id = ids[i],
          .rank = i < prompt.ranks.size() ? prompt.ranks[i] : 0,
          .logprob = i < prompt.logprobs.size() ? prompt.logprobs[i] : std::nullopt,
          .top = i < prompt.top_logprobs.size() ? &prompt.top_logprobs[i] : nullptr};
}

size_t HeldBytes(const Answer& answer) {
  const Request& request = answer.request.request;
  const EchoedPrompt& prompt = answer.output.prompt;
  size_t bytes = prompt.text.size() +
                 (prompt.token_ids.size() + prompt.ranks.size() + answer.request.prompt_ids.size()) * sizeof(int32_t) +
                 prompt.logprobs.size() * sizeof(std::optional<float>) +
                 prompt.top_logprobs.size() * BytesOfTop(request.prompt_top_logprobs.value_or(request.top_logprobs));
  for (const Sample& sample : answer.output.samples) bytes += HeldBytes(sample, request.top_logprobs);
  return bytes;
}

size_t HeldBytes(const Sample& sample, int32_t top_logprobs) {
  return sizeof(Sample) + sample.text.size() + sample.token_ids.size() * (sizeof(int32_t) + sizeof(float)) +
         sample.ranks.size() * sizeof(int32_t) + sample.top_logprobs.size() * BytesOfTop(top_logprobs);
}

std::string SampleIdField(const OpenAiRequest& request, int32_t sample) {
  return request.sample_ids.empty() ? "" : fmt::format(R"(,"sample_id":"{}")", request.sample_ids[static_cast<size_t>(sample)]);
}

std::unique_ptr<TextSource> ResponseBody(std::vector<Answer> answers, ResponseFacts facts, const Tokenizer* tokenizer) {
  if (answers.front().request.token_route) return TokensBody(std::move(answers.front()), std::move(facts), tokenizer);
  if (answers.front().request.sglang) return SglangBody(std::move(answers), std::move(facts), tokenizer);
  if (answers.front().request.infill) return InfillBody(answers.front(), facts, tokenizer);
  if (answers.front().request.endpoint == Endpoint::kResponses) return ResponsesBody(std::move(answers.front()), facts, tokenizer);
  return std::make_unique<ResponseText>(std::move(answers), std::move(facts), tokenizer);
}

}  // namespace coppice::openai
