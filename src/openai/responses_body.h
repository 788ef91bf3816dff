// The body of an answer of OpenAI's /v1/responses, and the parts that it has in common with a stream of its events. Layer: openai.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "coppice/tokenizer/tokenizer.h"
#include "core/text_source.h"
#include "openai/body_error.h"
#include "openai/generation.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/response_body.h"
#include "openai/responses_items.h"
#include "openai/responses_request.h"

namespace coppice::openai {

// Writes the JSON of one answer. Arguments given as references outlive the parts that are made of them.
class ResponsesWriter {
 public:
  // REQUIRES: the request is of Endpoint::kResponses. `tokenizer` outlives this.
  ResponsesWriter(const OpenAiRequest& request, const ResponseFacts& facts, const Tokenizer* tokenizer);

  // How an answer ends, or in_progress.
  struct State {
    std::string_view status = "in_progress";
    BodyError failure = {};  // of status failed
  };
  static State StateOf(std::optional<FinishReason> reason, const BodyError& failure);

  // The object: what it begins with, up to its items, and what follows them; `usage` null: it is not known yet.
  std::string Begin(const State& state) const;
  std::string End(const TokenUsage* usage) const;

  std::string ItemId(const OutputItem& item, size_t index) const;
  // An item that has just begun, and the part of a message then.
  std::string NewItem(const OutputItem& item, size_t index) const;
  static std::string NewPart();
  // As it is at its end. `sample`: the message's, for its log-probabilities.
  void AddItem(const OutputItem& item, size_t index, const Sample& sample, TextParts* parts) const;
  void AddPart(const OutputItem& message, const Sample& sample, TextParts* parts) const;
  // A list of the log-probabilities of the tokens from `begin` on; [] where they were not asked for.
  void AddLogprobs(const Sample& sample, size_t begin, TextParts* parts) const;
  bool has_logprobs() const { return logprobs_; }

 private:
  std::string CallItem(const OutputItem& call, size_t index, std::string_view status, std::string_view arguments) const;

  ResponseFacts facts_;
  std::shared_ptr<const ResponsesForm> form_;
  std::shared_ptr<const ToolCalls> tools_;  // null: none are called
  const Tokenizer* tokenizer_;
  bool logprobs_ = false;
};

// Of a request of Endpoint::kResponses, which has one sample.
std::unique_ptr<TextSource> ResponsesBody(Answer answer, const ResponseFacts& facts, const Tokenizer* tokenizer);

}  // namespace coppice::openai
