#include "openai/sglang_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/json.h"
#include "openai/logprobs.h"
#include "openai/sglang_request.h"
#include "openai/tokens_answer.h"
#include "tokenizer/tokenizer.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

ordered_json FinishReasonOf(const OpenAiRequest& request, const Sample& sample) {
  if (!sample.finish_reason) return nullptr;
  switch (*sample.finish_reason) {
    case FinishReason::kLength: return {{"type", "length"}, {"length", request.request.max_tokens}};
    case FinishReason::kStop: {
      ordered_json matched = StopReasonOf(request.request, sample);
      if (matched.is_null() && !sample.token_ids.empty()) matched = sample.token_ids.back();  // the model's own end
      return {{"type", "stop"}, {"matched", std::move(matched)}};
    }
    case FinishReason::kCancelled: return {{"type", "abort"}, {"message", "the request was aborted"}};
    case FinishReason::kError: return {{"type", "abort"}, {"message", "the request failed"}};
  }
  return nullptr;
}

std::string TextOf(const OpenAiRequest& request, const Sample& sample, const Tokenizer* tokenizer) {
  const SglangForm& form = *request.sglang;
  if (!tokenizer || (!form.keeps_special && !form.keeps_stop)) return sample.text;
  std::span<const int32_t> ids = sample.token_ids;
  const bool stopped = sample.finish_reason == FinishReason::kStop;
  if (stopped && !form.keeps_stop && !sample.stop && !ids.empty()) ids = ids.first(ids.size() - 1);  // the token that ended it
  IncrementalDecoder decoder(*tokenizer, form.keeps_special);  // the output goes on from the prompt, as in sample.text
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  text += decoder.Finish();
  if (stopped && !form.keeps_stop && sample.stop) {
    // Special tokens make the text before the stop longer, not shorter. Earlier stops are those of the first min_tokens.
    const size_t at = text.find(request.request.stop[static_cast<size_t>(*sample.stop)], sample.text.size());
    if (at != text.npos) text.resize(at);
  }
  return text;
}

// Writes a sample's object. The arguments outlive the parts, which hold copies of the writer.
class ObjectWriter {
 public:
  ObjectWriter(const OpenAiRequest& request, const EchoedPrompt& prompt, const ResponseFacts& facts, const Tokenizer* tokenizer)
      : request_(request), prompt_(prompt), facts_(facts), tokenizer_(tokenizer) {}

  // `place`: among the answer's samples.
  void Add(const Sample& sample, int32_t place, const TokenUsage& usage, TextParts* parts) const {
    const bool is_list = request_.sglang->is_list;
    parts->Add(fmt::format(R"({{{}"text":{},"output_ids":{},"meta_info":{{"id":{},"finish_reason":{},"prompt_tokens":{},)"
                           R"("completion_tokens":{},"cached_tokens":{},"weight_version":{},"weight_versions":{})",
                           is_list ? fmt::format(R"("index":{},)", place) : "", DumpJson(TextOf(request_, sample, tokenizer_)),
                           DumpJson(sample.token_ids), DumpJson(request_.client_id.empty() ? facts_.id : request_.client_id),
                           DumpJson(FinishReasonOf(request_, sample)), usage.prompt, sample.token_ids.size(), usage.cached,
                           DumpJson(VersionName(facts_, sample.versions.empty() ? sample.version : sample.versions.back().version)),
                           DumpJson(VersionsOf(sample, facts_))));
    if (request_.logprobs) AddLogprobs(sample, parts);
    parts->Add("}}");
  }

 private:
  void AddLogprobs(const Sample& sample, TextParts* parts) const {
    const SglangForm& form = *request_.sglang;
    if (form.with_input_logprobs) {
      const std::span<const int32_t> ids = request_.prompt_ids;
      const size_t begin = std::min(ids.size(), static_cast<size_t>(request_.request.prompt_logprobs_begin));
      AddList(
          "input_token_logprobs", ids.size() - begin,
          [self = *this, ids, begin](size_t i, std::string* out) {
            const PromptToken token = TokenOf(self.prompt_, ids, begin + i);
            self.Append(token.id, token.logprob, out);
          },
          parts);
      if (form.with_top) {
        AddList(
            "input_top_logprobs", ids.size() - begin,
            [self = *this, ids, begin](size_t i, std::string* out) {
              self.AppendTop(TokenOf(self.prompt_, ids, begin + i).top, out);
            },
            parts);
      }
    }
    AddList(
        "output_token_logprobs", sample.token_ids.size(),
        [self = *this, &sample](size_t i, std::string* out) { self.Append(sample.token_ids[i], sample.logprobs[i], out); }, parts);
    if (!form.with_top) return;
    AddList(
        "output_top_logprobs", sample.token_ids.size(),
        [self = *this, &sample](size_t i, std::string* out) { self.AppendTop(TokenOf(sample, i).top, out); }, parts);
  }

  static void AddList(const char* name, size_t count, TextParts::Append append, TextParts* parts) {
    parts->Add(fmt::format(R"(,"{}":[)", name));
    parts->AddEach(count, WithCommas(std::move(append)));
    parts->Add("]");
  }

  // [logprob, id, text]
  void Append(int32_t id, std::optional<float> logprob, std::string* out) const {
    *out += fmt::format("[{},{},{}]", logprob ? DumpJson(*logprob) : "null", id,
                        request_.sglang->texts_in_logprobs ? DumpJson(TokenText(tokenizer_, id)) : "null");
  }
  void AppendTop(const std::vector<TokenLogprob>* top, std::string* out) const {
    if (!top || top->empty()) {
      *out += "null";
      return;
    }
    *out += '[';
    for (const auto& [id, logprob] : *top) {
      if (!out->ends_with('[')) *out += ',';
      Append(id, logprob, out);
    }
    *out += ']';
  }

  const OpenAiRequest& request_;
  const EchoedPrompt& prompt_;
  const ResponseFacts& facts_;
  const Tokenizer* const tokenizer_;
};

class SglangText final : public PartedText {
 public:
  SglangText(std::vector<Answer> answers, ResponseFacts facts, const Tokenizer* tokenizer)
      : answers_(std::move(answers)), facts_(std::move(facts)), tokenizer_(tokenizer) {
    for (const Answer& answer : answers_) held_bytes_ += HeldBytes(answer);
  }

  size_t held_bytes() const override { return held_bytes_; }

 private:
  bool AddParts(TextParts* parts) override {
    if (done_) return false;
    const bool is_list = answers_.front().request.sglang->is_list;
    if (place_ == 0) parts->Add(is_list ? "[" : "");
    while (answer_ < answers_.size() && sample_ == answers_[answer_].output.samples.size()) {
      ++answer_;
      sample_ = 0;
    }
    if (answer_ == answers_.size()) {
      parts->Add(is_list ? "]" : "");
      done_ = true;
      return true;
    }
    const Answer& answer = answers_[answer_];
    if (place_ > 0) parts->Add(",");
    ObjectWriter(answer.request, answer.output.prompt, facts_, tokenizer_)
        .Add(answer.output.samples[sample_++], place_++, answer.usage, parts);
    return true;
  }

  const std::vector<Answer> answers_;
  const ResponseFacts facts_;
  const Tokenizer* const tokenizer_;
  size_t held_bytes_ = 0;
  size_t answer_ = 0, sample_ = 0;
  int32_t place_ = 0;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<TextSource> SglangBody(std::vector<Answer> answers, ResponseFacts facts, const Tokenizer* tokenizer) {
  return std::make_unique<SglangText>(std::move(answers), std::move(facts), tokenizer);
}

SglangStream::SglangStream(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first, const Tokenizer* tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      facts_(facts),
      first_(first),
      usage_({.prompt = std::ssize(request->request.prompt_ids)}) {
  for (int32_t i = 0; i < request->request.n; ++i) samples_.push_back({.index = i});
}

std::unique_ptr<TextSource> SglangStream::Echo(const StreamEvent& event) {
  RequestOutput output;
  output.Add(event);
  prompt_ = std::move(output.prompt);
  return nullptr;
}

void SglangStream::Append(const StreamEvent& event, std::string* out) {
  Sample& sample = samples_[static_cast<size_t>(event.index)];
  sample.Append(event);
  usage_.cached = std::max<int64_t>(usage_.cached, event.cached_tokens);
  if (event.token_ids.empty() && !event.finish_reason) return;
  TextParts parts;
  ObjectWriter(*request_, prompt_, facts_, tokenizer_).Add(sample, first_ + event.index, usage_, &parts);
  *out += "data: ";
  while (!parts.empty()) parts.Take(SIZE_MAX, out);
  *out += "\n\n";
}

std::unique_ptr<TextSource> SglangStream::End(const TokenUsage& /*usage*/, const BodyError& failure, std::string* out) {
  *out += failure.status.ok() ? "data: [DONE]\n\n" : DataEvent(ErrorBody(failure.status, failure.param));
  return nullptr;
}

}  // namespace coppice::openai
