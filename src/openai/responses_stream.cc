#include "openai/responses_stream.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

#include "core/json.h"

namespace coppice::openai {
namespace {

constexpr std::string_view kEventEnd = "}\n\n";

// The beginning of an event; `*sequence`: how many came before it.
std::string EventBegin(std::string_view type, int64_t* sequence) {
  return fmt::format("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1}", type, (*sequence)++);
}

// Of an event that is about an item, or about the one part of a message.
std::string ItemPlace(const ResponsesWriter& writer, const OutputItem& item, size_t index) {
  return fmt::format(R"(,"item_id":{},"output_index":{})", DumpJson(writer.ItemId(item, index)), index);
}
constexpr std::string_view kPart = R"(,"content_index":0)";

// The events that end an item. The arguments outlive the parts.
void AddItemEnd(const ResponsesWriter& writer, const OutputItem& item, size_t index, const Sample& sample, int64_t* sequence,
                TextParts* parts) {
  const std::string place = ItemPlace(writer, item, index);
  if (item.type == OutputItem::Type::kMessage) {
    parts->Add(EventBegin("response.output_text.done", sequence) + place);
    parts->AddView(kPart);
    parts->Add(R"(,"text":)" + DumpJson(item.text) + R"(,"logprobs":)");
    writer.AddLogprobs(sample, 0, parts);
    parts->AddView(kEventEnd);
    parts->Add(EventBegin("response.content_part.done", sequence) + place);
    parts->AddView(kPart);
    parts->AddView(R"(,"part":)");
    writer.AddPart(item, sample, parts);
    parts->AddView(kEventEnd);
  } else {
    parts->Add(EventBegin("response.function_call_arguments.done", sequence) + place + R"(,"arguments":)" + DumpJson(item.text));
    parts->AddView(kEventEnd);
  }
  parts->Add(EventBegin("response.output_item.done", sequence) + fmt::format(R"(,"output_index":{},"item":)", index));
  writer.AddItem(item, index, sample, parts);
  parts->AddView(kEventEnd);
}

// The end of the last item, where it was not sent, and the whole answer.
class StreamEnd final : public PartedText {
 public:
  StreamEnd(ResponsesWriter writer, OutputItems items, Sample sample, const ResponsesWriter::State& state, const TokenUsage& usage,
            int64_t sequence, size_t held_bytes)
      : writer_(std::move(writer)),
        last_is_open_(items.last_is_open()),
        items_(items.TakeItems()),
        sample_(std::move(sample)),
        state_(state),
        usage_(usage),
        sequence_(sequence),
        held_bytes_(held_bytes) {}

  size_t held_bytes() const override { return held_bytes_; }

 private:
  bool AddParts(TextParts* parts) override {
    if (next_ > items_.size()) return false;
    if (next_ == 0) {
      // An answer that failed says nothing more of its items.
      if (last_is_open_ && state_.failure.status.ok())
        AddItemEnd(writer_, items_.back(), items_.size() - 1, sample_, &sequence_, parts);
      parts->Add(EventBegin(fmt::format("response.{}", state_.status), &sequence_) + R"(,"response":)" + writer_.Begin(state_));
    }
    if (next_ < items_.size()) {
      if (next_ > 0) parts->AddView(",");
      writer_.AddItem(items_[next_], next_, sample_, parts);
    } else {
      parts->Add(writer_.End(&usage_));
      parts->AddView(kEventEnd);
    }
    ++next_;
    return true;
  }

  const ResponsesWriter writer_;
  const bool last_is_open_;
  const std::vector<OutputItem> items_;
  const Sample sample_;
  const ResponsesWriter::State state_;
  const TokenUsage usage_;
  int64_t sequence_;
  const size_t held_bytes_;
  size_t next_ = 0;  // item of the whole answer
};

}  // namespace

ResponsesStream::ResponsesStream(const OpenAiRequest* request, const ResponseFacts& facts, const Tokenizer* tokenizer)
    : request_(request), writer_(*request, facts, tokenizer), items_(request->tools.get()) {}

std::unique_ptr<TextSource> ResponsesStream::Begin(std::string* out) {
  for (const std::string_view type : {"response.created", "response.in_progress"}) {
    *out += EventBegin(type, &sequence_) + R"(,"response":)" + writer_.Begin({}) + writer_.End(nullptr);
    *out += kEventEnd;
  }
  return nullptr;
}

void ResponsesStream::Append(const StreamEvent& event, std::string* out) {
  std::vector<OutputItems::Change> changes = items_.Push(event.text);
  const size_t first_token = sample_.token_ids.size();
  if (writer_.has_logprobs() && !event.token_ids.empty()) {
    sample_.Append({.token_ids = event.token_ids, .logprobs = event.logprobs, .top_logprobs = event.top_logprobs});
    // Tokens that bring no character yet are reported all the same: there are no tools, so they are the message's.
    if (changes.empty()) changes = items_.BeginMessage();
    if (changes.empty()) changes.push_back({.item = items_.items().size() - 1});
  }
  for (const OutputItems::Change& change : changes) Report(change, first_token, out);
  if (!event.finish_reason) return;
  reason_ = event.finish_reason;
  for (const OutputItems::Change& change : items_.Finish(/*by_itself=*/reason_ == FinishReason::kStop))
    Report(change, sample_.token_ids.size(), out);
}

void ResponsesStream::Report(const OutputItems::Change& change, size_t first_token, std::string* out) {
  const OutputItem& item = items_.items()[change.item];
  const bool is_message = item.type == OutputItem::Type::kMessage;
  const std::string place = ItemPlace(writer_, item, change.item);
  if (change.begins) {
    *out += EventBegin("response.output_item.added", &sequence_) +
            fmt::format(R"(,"output_index":{},"item":{})", change.item, writer_.NewItem(item, change.item));
    *out += kEventEnd;
    if (is_message) {
      *out += EventBegin("response.content_part.added", &sequence_) + place;
      *out += kPart;
      *out += R"(,"part":)" + ResponsesWriter::NewPart();
      *out += kEventEnd;
    }
  }
  TextParts parts;
  if (!change.added.empty() || first_token < sample_.token_ids.size()) {
    parts.Add(EventBegin(is_message ? "response.output_text.delta" : "response.function_call_arguments.delta", &sequence_) + place);
    if (is_message) parts.AddView(kPart);
    parts.Add(R"(,"delta":)" + DumpJson(change.added));
    if (is_message) {
      parts.AddView(R"(,"logprobs":)");
      writer_.AddLogprobs(sample_, first_token, &parts);
    }
    parts.AddView(kEventEnd);
  }
  if (change.ends) AddItemEnd(writer_, item, change.item, sample_, &sequence_, &parts);
  parts.Take(std::numeric_limits<size_t>::max(), out);
}

std::unique_ptr<TextSource> ResponsesStream::End(const TokenUsage& usage, const BodyError& failure, std::string* out) {
  size_t text = request_->responses->echo.size();
  for (const OutputItem& item : items_.items()) text += 4 * item.text.size();
  const size_t held_bytes = text + HeldBytes(sample_, request_->request.top_logprobs);
  const size_t num_tokens = sample_.token_ids.size();
  auto end = std::make_unique<StreamEnd>(writer_, std::move(items_), std::move(sample_), ResponsesWriter::StateOf(reason_, failure),
                                         usage, sequence_, held_bytes);
  constexpr size_t kSmall = 32 << 10, kSmallTokens = 16;  // as of an answer that comes whole
  if (text > kSmall || num_tokens > kSmallTokens) return end;
  *out += coppice::TextOf(end.get());
  return nullptr;
}

}  // namespace coppice::openai
