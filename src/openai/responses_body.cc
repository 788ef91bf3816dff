#include "openai/responses_body.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "openai/logprobs.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

ordered_json ResponsesUsage(const TokenUsage& usage) {
  return {{"input_tokens", usage.prompt},
          {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", usage.prompt - usage.cached}}},
          {"output_tokens", usage.completion},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", usage.prompt + usage.completion},
          {"shared_prefix", SharedPrefixOf(usage.shared_reads)}};
}

ordered_json ErrorOf(const BodyError& failure) {
  const int http_status = HttpStatus(failure.status);
  ordered_json error = {{"code", http_status == 400   ? "invalid_prompt"
                                 : http_status == 429 ? "rate_limit_exceeded"
                                                      : "server_error"},
                        {"message", failure.status.message()}};
  if (!failure.param.empty()) error["param"] = failure.param;
  return error;
}

std::string_view StatusOf(const OutputItem& item) { return item.complete ? "completed" : "incomplete"; }

class ResponsesObject final : public PartedText {
 public:
  ResponsesObject(ResponsesWriter writer, std::vector<OutputItem> items, Sample sample, const TokenUsage& usage, size_t held_bytes)
      : writer_(std::move(writer)), items_(std::move(items)), sample_(std::move(sample)), usage_(usage), held_bytes_(held_bytes) {}

  size_t held_bytes() const override { return held_bytes_; }

 private:
  bool AddParts(TextParts* parts) override {
    if (next_ > items_.size()) return false;
    if (next_ == 0) parts->Add(writer_.Begin(ResponsesWriter::StateOf(sample_.finish_reason, {})));
    if (next_ < items_.size()) {
      if (next_ > 0) parts->AddView(",");
      writer_.AddItem(items_[next_], next_, sample_, parts);
    } else {
      parts->Add(writer_.End(&usage_));
    }
    ++next_;
    return true;
  }

  const ResponsesWriter writer_;
  const std::vector<OutputItem> items_;
  const Sample sample_;
  const TokenUsage usage_;
  const size_t held_bytes_;
  size_t next_ = 0;  // item
};

}  // namespace

ResponsesWriter::ResponsesWriter(const OpenAiRequest& request, const ResponseFacts& facts, const Tokenizer* tokenizer)
    : facts_(facts), form_(request.responses), tools_(request.tools), tokenizer_(tokenizer), logprobs_(request.logprobs) {
  COPPICE_CHECK(form_ != nullptr);
}

ResponsesWriter::State ResponsesWriter::StateOf(std::optional<FinishReason> reason, const BodyError& failure) {
  if (!failure.status.ok()) return {.status = "failed", .failure = failure};
  if (reason == FinishReason::kLength) return {.status = "incomplete"};
  if (reason == FinishReason::kCancelled) return {.status = "cancelled"};
  return {.status = "completed"};
}

std::string ResponsesWriter::Begin(const State& state) const {
  const std::string error = state.failure.status.ok() ? "null" : DumpJson(ErrorOf(state.failure));
  const std::string_view details = state.status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null";
  return fmt::format(R"({{"id":{},"object":"response","created_at":{},"status":"{}","background":false,"error":{},)"
                     R"("incomplete_details":{},"model":{},"output":[)",
                     DumpJson("resp_" + facts_.id), facts_.created, state.status, error, details, DumpJson(facts_.model));
}

std::string ResponsesWriter::End(const TokenUsage* usage) const {
  return fmt::format(R"(],{},"usage":{}}})", form_->echo, usage ? DumpJson(ResponsesUsage(*usage)) : "null");
}

std::string ResponsesWriter::ItemId(const OutputItem& item, size_t index) const {
  return fmt::format("{}_{}_{}", item.type == OutputItem::Type::kMessage ? "msg" : "fc", facts_.id, index);
}

std::string ResponsesWriter::CallItem(const OutputItem& call, size_t index, std::string_view status,
                                      std::string_view arguments) const {
  return DumpJson({{"id", ItemId(call, index)},
                   {"type", "function_call"},
                   {"status", status},
                   {"call_id", ToolCallId(tools_->format.style, facts_.id, /*choice=*/0, call.call)},
                   {"name", call.name},
                   {"arguments", arguments}});
}

std::string ResponsesWriter::NewItem(const OutputItem& item, size_t index) const {
  if (item.type == OutputItem::Type::kFunctionCall) return CallItem(item, index, "in_progress", "");
  return fmt::format(R"({{"id":{},"type":"message","status":"in_progress","role":"assistant","content":[]}})",
                     DumpJson(ItemId(item, index)));
}

std::string ResponsesWriter::NewPart() { return R"({"type":"output_text","text":"","annotations":[],"logprobs":[]})"; }

void ResponsesWriter::AddItem(const OutputItem& item, size_t index, const Sample& sample, TextParts* parts) const {
  if (item.type == OutputItem::Type::kFunctionCall) return parts->Add(CallItem(item, index, StatusOf(item), item.text));
  parts->Add(fmt::format(R"({{"id":{},"type":"message","status":"{}","role":"assistant","content":[)",
                         DumpJson(ItemId(item, index)), StatusOf(item)));
  AddPart(item, sample, parts);
  parts->AddView("]}");
}

void ResponsesWriter::AddPart(const OutputItem& message, const Sample& sample, TextParts* parts) const {
  parts->Add(R"({"type":"output_text","text":)" + DumpJson(message.text) + R"(,"annotations":[],"logprobs":)");
  AddLogprobs(sample, 0, parts);
  parts->AddView("}");
}

void ResponsesWriter::AddLogprobs(const Sample& sample, size_t begin, TextParts* parts) const {
  parts->AddView("[");
  const size_t count = logprobs_ ? sample.token_ids.size() - begin : 0;
  parts->AddEach(count, [&sample, begin, tokenizer = tokenizer_](size_t i, std::string* out) {
    if (i > 0) *out += ',';
    AppendChatLogprob(TokenOf(sample, begin + i), tokenizer, /*as_ids=*/false, out);
  });
  parts->AddView("]");
}

std::unique_ptr<TextSource> ResponsesBody(Answer answer, const ResponseFacts& facts, const Tokenizer* tokenizer) {
  Sample sample;
  if (!answer.output.samples.empty()) sample = std::move(answer.output.samples.front());
  OutputItems items(answer.request.tools.get());
  (void)items.Push(sample.text);
  (void)items.Finish(/*by_itself=*/sample.finish_reason == FinishReason::kStop);
  const size_t held_bytes =
      2 * sample.text.size() + HeldBytes(sample, answer.request.request.top_logprobs) + answer.request.responses->echo.size();
  return std::make_unique<ResponsesObject>(ResponsesWriter(answer.request, facts, tokenizer), items.TakeItems(), std::move(sample),
                                           answer.usage, held_bytes);
}

}  // namespace coppice::openai
