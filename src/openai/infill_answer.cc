#include "openai/infill_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"

namespace coppice::openai {
namespace {

using nlohmann::ordered_json;

// The reason that ended the sample: a token that ends texts, a stop string, or the limit. `last_token` -1: it has none.
std::string_view StopTypeOf(std::optional<FinishReason> reason, int32_t last_token, const Tokenizer* tokenizer) {
  if (reason == FinishReason::kLength) return "limit";
  if (reason != FinishReason::kStop) return "none";
  const auto ends = [last_token](const std::vector<int32_t>& ids) { return std::ranges::find(ids, last_token) != ids.end(); };
  const bool by_token = tokenizer && (ends(tokenizer->info().eos_ids) || ends(tokenizer->info().fim.ends));
  return by_token ? "eos" : "word";
}

// Fields that an object has while the answer goes on, and at its end.
ordered_json Piece(std::string_view content, bool stop, int64_t predicted, int64_t evaluated) {
  return {{"index", 0},
          {"content", content},
          {"tokens", ordered_json::array()},
          {"stop", stop},
          {"id_slot", -1},
          {"tokens_predicted", predicted},
          {"tokens_evaluated", evaluated}};
}

struct Ending {
  std::string_view stop_type;
  int64_t cached = 0;
  bool has_new_line = false;
};

void AddEnding(const Ending& ending, const std::string& model, ordered_json* object) {
  (*object)["model"] = model;
  (*object)["has_new_line"] = ending.has_new_line;
  (*object)["truncated"] = false;
  (*object)["stop_type"] = ending.stop_type;
  (*object)["tokens_cached"] = ending.cached;
}

class WholeText final : public PartedText {
 public:
  explicit WholeText(std::string text) : text_(std::move(text)) {}
  size_t held_bytes() const override { return text_.size(); }

 private:
  bool AddParts(TextParts* parts) override {
    if (text_.empty()) return false;
    parts->Add(std::exchange(text_, {}));
    return true;
  }

  std::string text_;
};

}  // namespace

std::unique_ptr<TextSource> InfillBody(const Answer& answer, const ResponseFacts& facts, const Tokenizer* tokenizer) {
  const Sample none;
  const Sample& sample = answer.output.samples.empty() ? none : answer.output.samples.front();
  ordered_json body = Piece(sample.text, /*stop=*/true, std::ssize(sample.token_ids), answer.usage.prompt);
  if (answer.request.infill->return_tokens) body["tokens"] = sample.token_ids;
  const int32_t last = sample.token_ids.empty() ? -1 : sample.token_ids.back();
  AddEnding({.stop_type = StopTypeOf(sample.finish_reason, last, tokenizer),
             .cached = answer.usage.cached,
             .has_new_line = sample.text.find('\n') != sample.text.npos},
            facts.model, &body);
  return std::make_unique<WholeText>(DumpJson(std::move(body)));
}

void InfillStream::Append(const StreamEvent& event, std::string* out) {
  generated_ += std::ssize(event.token_ids);
  has_new_line_ |= event.text.find('\n') != event.text.npos;
  if (!event.token_ids.empty()) last_token_ = event.token_ids.back();
  if (event.finish_reason) reason_ = event.finish_reason;
  const bool has_tokens = request_->infill->return_tokens && !event.token_ids.empty();
  if (event.text.empty() && !has_tokens) return;
  ordered_json piece = Piece(event.text, /*stop=*/false, generated_, prompt_tokens_);
  if (has_tokens) piece["tokens"] = event.token_ids;
  *out += DataEvent(std::move(piece));
}

std::unique_ptr<TextSource> InfillStream::End(const TokenUsage& usage, const BodyError& failure, std::string* out) {
  ordered_json last;
  if (failure.status.ok()) {
    last = Piece("", /*stop=*/true, usage.completion, usage.prompt);
    AddEnding({.stop_type = StopTypeOf(reason_, last_token_, tokenizer_), .cached = usage.cached, .has_new_line = has_new_line_},
              model_, &last);
  } else {
    last = ErrorBody(failure.status, failure.param);
  }
  *out += DataEvent(std::move(last));
  return nullptr;
}

}  // namespace coppice::openai
