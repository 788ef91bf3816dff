#include "openai/response_stream.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "core/json.h"
#include "openai/logprobs.h"
#include "openai/response_body.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kObjectEnd = "}\n\n";

std::string HeadOf(bool chat, const ResponseFacts& facts) {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{})", DumpJson((chat ? "chatcmpl-" : "cmpl-") + facts.id),
                     chat ? "chat.completion.chunk" : "text_completion", facts.created, DumpJson(facts.model));
}

AnswerToken TokenOf(const StreamEvent& event, size_t i) {
  if (event.index < 0) {
    return {.id = event.token_ids[i],
            .logprob = event.prompt_logprobs[i],
            .top = i > 0 && i < event.prompt_top_logprobs.size() ? &event.prompt_top_logprobs[i] : nullptr};
  }
  return {.id = event.token_ids[i],
          .logprob = event.logprobs[i],
          .top = i < event.top_logprobs.size() ? &event.top_logprobs[i] : nullptr};
}

// The echoed prompt that begins each choice of a completion's stream. The first choice makes its text while it is written.
class EchoText final : public PartedText {
 public:
  struct Form {
    CompletionLogprobs logprobs;
    bool has_logprobs = false, has_ids = false, has_prompt_ids = false;
    std::vector<std::string> begins;  // of the objects, by choice
    std::string end;
  };
  EchoText(StreamEvent event, Form form) : event_(std::move(event)), form_(std::move(form)) {
    held_bytes_ = event_.text.size() + event_.token_ids.size() * sizeof(int32_t) +
                  event_.prompt_logprobs.size() * sizeof(std::optional<float>);
    for (const std::vector<TokenLogprob>& top : event_.prompt_top_logprobs)
      held_bytes_ += sizeof(top) + std::span(top).size_bytes();
  }

  size_t held_bytes() const override { return held_bytes_ + prompt_.size(); }

 private:
  bool AddParts(TextParts* parts) override {
    if (next_ == form_.begins.size()) return false;
    parts->AddView(form_.begins[next_]);
    if (next_++ == 0) {
      AddPrompt(parts);
    } else {
      parts->AddView(prompt_);
    }
    parts->AddView(form_.end);
    return true;
  }

  void AddPrompt(TextParts* parts) {
    std::string* const copy = form_.begins.size() > 1 ? &prompt_ : nullptr;
    const auto add = [&](std::string text) {
      parts->AddEach(
          1, [text = std::move(text)](size_t, std::string* out) { *out += text; }, copy);
    };
    const auto add_entries = [&](TextParts::Append append) {
      parts->AddEach(
          event_.token_ids.size(),
          [append = std::move(append)](size_t i, std::string* out) {
            if (i > 0) *out += ',';
            append(i, out);
          },
          copy);
    };
    add(R"("text":)" + DumpJson(event_.text) + R"(,"logprobs":)" + (form_.has_logprobs ? "" : "null"));
    for (const LogprobColumn column : kLogprobColumns) {
      if (!form_.has_logprobs) break;
      add(form_.logprobs.Begin(column));
      if (form_.logprobs.has(column)) {
        add_entries(
            [this, column](size_t i, std::string* out) { form_.logprobs.Append(column, TokenOf(event_, i), &offset_, out); });
      }
      add(std::string(form_.logprobs.End(column)));
    }
    const auto add_ids = [&](const char* name) {
      add(fmt::format(R"(,"{}":[)", name));
      add_entries([this](size_t i, std::string* out) { *out += std::to_string(event_.token_ids[i]); });
      add("]");
    };
    if (form_.has_ids) add_ids("token_ids");
    if (form_.has_prompt_ids) add_ids("prompt_token_ids");
  }

  const StreamEvent event_;
  const Form form_;
  size_t held_bytes_ = 0;
  std::string prompt_;
  size_t next_ = 0;  // choice
  int64_t offset_ = 0;
};

// The first object of each choice, with the prompt's token ids, which become text once.
class PromptIdsText final : public PartedText {
 public:
  struct Object {
    std::string before, behind;  // the ids
  };
  PromptIdsText(std::vector<int32_t> ids, std::vector<Object> objects) : ids_(std::move(ids)), objects_(std::move(objects)) {
    held_bytes_ = std::span(ids_).size_bytes();
    for (const auto& [before, behind] : objects_) held_bytes_ += before.size() + behind.size();
  }

  size_t held_bytes() const override { return held_bytes_ + text_.size(); }

 private:
  bool AddParts(TextParts* parts) override {
    if (next_ == objects_.size()) return false;
    const auto& [before, behind] = objects_[next_];
    parts->AddView(before);
    if (next_++ == 0) {
      parts->AddEach(ids_.size(), WithCommas([this](size_t i, std::string* out) { *out += std::to_string(ids_[i]); }),
                     objects_.size() > 1 ? &text_ : nullptr);
    } else {
      parts->AddView(text_);
    }
    parts->AddView(behind);
    return true;
  }

  const std::vector<int32_t> ids_;
  const std::vector<Object> objects_;  // by choice
  size_t held_bytes_ = 0;
  std::string text_;
  size_t next_ = 0;  // choice
};

}  // namespace

ResponseStream::ResponseStream(const OpenAiRequest* request, const ResponseFacts& facts, int32_t first_choice,
                               const Tokenizer* tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      first_choice_(first_choice),
      chat_(request->endpoint == Endpoint::kChatCompletions),
      id_(facts.id),
      head_(HeadOf(chat_, facts)),
      choices_(static_cast<size_t>(request->choices)) {
  if (!request->tools) return;
  for (Choice& choice : choices_) choice.tools.emplace(request->tools.get());
}

std::unique_ptr<TextSource> ResponseStream::Begin(std::string* /*out*/) {
  // A fork or an extension has no prompt.
  if (!request_->return_token_ids || request_->prompt_ids.empty() || request_->request.echo) return nullptr;
  std::vector<PromptIdsText::Object> objects(choices_.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    auto& [before, behind] = objects[i];
    const auto sample = static_cast<int32_t>(i);
    if (chat_) {  // beside the choice, as in the answer that comes whole
      choices_[i].begun = true;
      AppendChoice(sample, RoleDelta(sample), "", &before);
      before.resize(before.size() - kObjectEnd.size());
      before += R"(,"prompt_token_ids":[)";
      behind = fmt::format("]{}", kObjectEnd);
    } else {
      BeginChoice(sample, &before);
      before += R"("text":"","logprobs":null,"token_ids":[],"prompt_token_ids":[)";
      behind = "]" + SampleIdField(*request_, sample);
      EndChoice("", &behind);
    }
  }
  return std::make_unique<PromptIdsText>(request_->prompt_ids, std::move(objects));
}

std::string ResponseStream::RoleDelta(int32_t sample) const {
  return R"("delta":{"role":"assistant","content":""},"logprobs":null)" + SampleIdField(*request_, sample);
}

void ResponseStream::Append(const StreamEvent& event, std::string* out) {
  Choice& choice = choices_[static_cast<size_t>(event.index)];
  if (chat_ && !std::exchange(choice.begun, true)) AppendChoice(event.index, RoleDelta(event.index), "", out);

  const std::string delta = chat_ ? DeltaOf(event, &choice) : "";
  const bool has_tokens = !event.token_ids.empty() && (request_->logprobs || has_ids());
  const bool has_text = chat_ ? !delta.empty() : !event.text.empty();
  if (has_text || has_tokens || event.finish_reason) {
    std::string inner = chat_ ? R"("delta":{)" + delta + "}" : R"("text":)" + DumpJson(event.text);
    inner += R"(,"logprobs":)" + (has_tokens && request_->logprobs ? LogprobsOf(event, &choice) : "null");
    if (event.beam_score) inner += R"(,"beam_score":)" + DumpJson(*event.beam_score);
    if (has_ids()) inner += R"(,"token_ids":)" + DumpJson(event.token_ids);
    inner += SampleIdField(*request_, event.index);
    const int32_t num_calls = choice.tools ? choice.tools->num_calls() : 0;
    AppendChoice(event.index, inner, event.finish_reason ? ReasonOf(*event.finish_reason, num_calls) : "", out);
  }
}

std::string ResponseStream::DeltaOf(const StreamEvent& event, Choice* choice) const {
  if (!choice->tools) return event.text.empty() ? "" : R"("content":)" + DumpJson(event.text);
  ParsedOutput output;
  choice->tools->Push(event.text, &output);
  if (event.finish_reason) choice->tools->Finish(&output);
  std::string delta = output.content.empty() ? "" : R"("content":)" + DumpJson(output.content);
  if (output.calls.empty()) return delta;
  ordered_json calls = ordered_json::array();
  for (const ParsedOutput::Call& call : output.calls) {
    ordered_json& added = calls.emplace_back(ordered_json{{"index", call.index}});
    if (call.begins) {
      added["id"] = ToolCallId(request_->tools->format.style, id_, first_choice_ + event.index, call.index);
      added["type"] = "function";
      added["function"]["name"] = call.name;
    }
    added["function"]["arguments"] = call.arguments;
  }
  return delta + (delta.empty() ? "" : ",") + R"("tool_calls":)" + DumpJson(std::move(calls));
}

std::unique_ptr<TextSource> ResponseStream::Echo(const StreamEvent& event) {
  if (!request_->request.echo) return nullptr;
  int64_t characters = 0;
  if (request_->logprobs) {
    for (const int32_t id : event.token_ids) characters += TokenCharacters(tokenizer_, id);
  }
  EchoText::Form form = {.logprobs = logprobs(),
                         .has_logprobs = request_->logprobs,
                         .has_ids = has_ids(),
                         .has_prompt_ids = request_->return_token_ids};
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].offset = characters;
    BeginChoice(static_cast<int32_t>(i), &form.begins.emplace_back());
  }
  EndChoice("", &form.end);
  return std::make_unique<EchoText>(event, std::move(form));
}

std::string ResponseStream::LogprobsOf(const StreamEvent& event, Choice* choice) const {
  std::string out;
  const auto add_entries = [&](const auto& append) {
    for (size_t i = 0; i < event.token_ids.size(); ++i) {
      if (i > 0) out += ',';
      append(TokenOf(event, i));
    }
  };
  if (chat_) {
    out += R"({"content":[)";
    add_entries([&](const AnswerToken& token) { AppendChatLogprob(token, tokenizer_, request_->tokens_as_ids, &out); });
    out += "]}";
    return out;
  }
  const CompletionLogprobs logprobs = this->logprobs();
  for (const LogprobColumn column : kLogprobColumns) {
    out += logprobs.Begin(column);
    if (logprobs.has(column)) {
      add_entries([&](const AnswerToken& token) { logprobs.Append(column, token, &choice->offset, &out); });
    }
    out += logprobs.End(column);
  }
  return out;
}

void ResponseStream::AppendChoice(int32_t sample, const std::string& inner, std::string_view reason, std::string* out) const {
  BeginChoice(sample, out);
  *out += inner;
  EndChoice(reason, out);
}

void ResponseStream::BeginChoice(int32_t sample, std::string* out) const {
  fmt::format_to(std::back_inserter(*out), R"(data: {},"choices":[{{"index":{},)", head_, first_choice_ + sample);
}

void ResponseStream::EndChoice(std::string_view reason, std::string* out) const {
  fmt::format_to(std::back_inserter(*out), R"(,"finish_reason":{}}}]{}{})", reason.empty() ? "null" : fmt::format("\"{}\"", reason),
                 request_->include_usage ? R"(,"usage":null)" : "", kObjectEnd);
}

std::unique_ptr<TextSource> ResponseStream::End(const TokenUsage& usage, const BodyError& failure, std::string* out) {
  if (!failure.status.ok()) {
    *out += DataEvent(ErrorBody(failure.status, failure.param));
    return nullptr;
  }
  if (request_->include_usage)
    fmt::format_to(std::back_inserter(*out),
                   R"(data: {},"choices":[],"usage":{}}})"
                   "\n\n",
                   head_, DumpJson(UsageOf(usage)));
  *out += "data: [DONE]\n\n";
  return nullptr;
}

}  // namespace coppice::openai
