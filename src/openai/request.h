// The body of an OpenAI request for a completion, a chat completion or a response, turned into a Request of the engine. Knows no
// files and no sockets. A field that would change the answer and is not supported is refused by name, never ignored
// (unknown_fields.h). Layer: openai.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"
#include "grammar/grammar_source.h"
#include "openai/body_error.h"
#include "openai/chat_fields.h"
#include "openai/named_prefix.h"
#include "openai/prompt_bounds.h"
#include "openai/responses_request.h"
#include "openai/tool_call_parser.h"
#include "openai/tool_fields.h"
#include "openai/unknown_fields.h"
#include "tokenizer/chat_renderer.h"
#include "tokenizer/fim.h"
#include "tokenizer/tokenizer.h"

namespace coppice::openai {

class FieldReader;

enum class Endpoint : uint8_t { kCompletions, kChatCompletions, kResponses };
constexpr std::string_view Url(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kCompletions: return "/v1/completions";
    case Endpoint::kChatCompletions: return "/v1/chat/completions";
    case Endpoint::kResponses: return "/v1/responses";
  }
  return "?";
}
// Its prompt is a conversation, which the model's chat template renders.
constexpr bool IsChat(Endpoint endpoint) { return endpoint != Endpoint::kCompletions; }
// INVALID_ARGUMENT names the urls there are.
Result<Endpoint> ParseUrl(std::string_view url);

// The form of an output, and the field of the request that names it.
struct OutputForm {
  std::string field;
  GrammarSource source;

  // Why `source` cannot be compiled, as what is wrong with the request.
  BodyError ErrorOf(const Status& status) const;
};

// Fields that the answer to POST /infill depends on beside the samples.
struct InfillForm {
  bool return_tokens = false;
};

struct SglangForm;
struct TokensForm;

struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  // Complete but for prompt_ids, max_tokens and cache_tenant.begin, which SetPrompt fills in, the client, and the constraint; n:
  // samples to generate.
  Request request;
  // To be compiled into request.constraint, which takes time, by the caller; null: the output is free.
  std::shared_ptr<const OutputForm> output;
  std::optional<std::string> text;  // the prompt; a chat is rendered through the model's template
  std::vector<ByteRange> values;    // of a chat's text: ChatPrompt
  std::vector<int32_t> prompt_ids;  // the prompt where there is no text
  // What stands behind the text, or else beside it: the answer fills the gap. null: it goes on from the text.
  std::shared_ptr<const FimContext> fim;
  std::optional<int32_t> max_tokens;
  bool no_limit = false;                      // max_tokens is -1: up to the end of the context
  std::shared_ptr<const NamedPrefix> prefix;  // what the prompt begins with; null: it is whole. Part of a chat's text already
  bool public_prefix = false;                 // with a salt: the prefix stays shared without it, what follows is private
  int32_t choices = 1;                        // samples to answer with, the best ones where more are generated (best_of)
  bool logprobs = false;       // of the tokens chosen, and with echo of the prompt; request.top_logprobs: of how many others too
  bool stream = false;         // the answer as server-sent events; never with best_of or what compares samples
  bool include_usage = false;  // of a stream: its last chunk says what the request used
  // Extensions, as the options of `coppice run`.
  bool rank = false;                       // choices by mean log-probability, highest first; so they are with best_of
  bool deduplicate = false;                // "dedup": of choices with equal text the most probable one
  std::optional<std::string> vote;         // a regex that finds the answer of a sample: a majority vote comes with the choices
  bool vote_stop = false;                  // samples end once no answer can overtake; with vote
  bool return_token_ids = false;           // token_ids in each choice, and the prompt's
  bool tokens_as_ids = false;              // log-probabilities name a token token_id:N
  bool prompt_logprobs = false;            // of the prompt's tokens, apart from echo; request.prompt_top_logprobs: of others
  std::shared_ptr<const ToolCalls> tools;  // how calls stand in the output, to be reported as tool_calls; null: all of it is text
  std::string client_id;                   // the client's name of the request, where its route takes one; empty: none
  // The answer has llama.cpp's form (infill_answer.h), that of vLLM's route for token ids (tokens_answer.h), or SGLang's
  // (sglang_answer.h); all null: OpenAI's.
  std::shared_ptr<const InfillForm> infill;
  std::shared_ptr<const TokensForm> token_route;
  std::shared_ptr<const SglangForm> sglang;
  std::vector<std::string> sample_ids;  // by sample, to be reported in choices: names of samples that are kept; empty: they are not
  std::vector<std::string> ignored_fields;  // unknown ones that the request has, by where they lie; of a list in its first prompt

  std::shared_ptr<const ResponsesForm> responses;  // of Endpoint::kResponses: what its answer repeats

  // The request, for the engine; what the answer's form depends on stays.
  Request TakeRequest();
  // Whether the answer has tokens of the prompt, beside echo, so that `prompt_ids` stay.
  bool reports_prompt_ids() const { return return_token_ids || prompt_logprobs; }
  // Why the prompt cannot be encoded, with the field that holds it.
  BodyError PromptError(const Status& status) const;
  // `error`, which came up once the request was parsed, by the names that the endpoint's bodies have for their fields.
  BodyError InItsWords(BodyError error) const;
  // Names the output's field, if there is one, as the body does.
  void RenameOutputField(const std::function<std::string(const std::string&)>& rename);
  // Why the request ended with `status` once it was under way, and the field at fault, if one is.
  BodyError ErrorUnderWay(const Status& status) const;
};

// The fields stream and stream_options.
void TakeStream(FieldReader& fields, OpenAiRequest* parsed);

// Fields that servers agree on for turning text into tokens and back: `prompt` and `add_special_tokens`, and `tokens`.
struct TokenizeRequest {
  std::string text;
  bool add_special_tokens = true;
};
// A text that a context can take. On an error, `error->param` names the field.
std::optional<TokenizeRequest> ParseTokenize(const nlohmann::json& body, const PromptBounds& bounds, BodyError* error);
// Ids of a vocabulary of that size, as many as a context has at most.
std::optional<std::vector<int32_t>> ParseDetokenize(const nlohmann::json& body, int32_t vocab_size, const PromptBounds& bounds,
                                                    BodyError* error);

// The field `tools` of a body's text, its members in their order, for Parse; `path`: where the body lies in the text. null: there
// is none. INVALID_ARGUMENT where an object in it has too many members.
Result<nlohmann::ordered_json> ToolsInOrder(std::string_view text, std::span<const std::string_view> path = {});
// The schema of `response_format`, or where the endpoint has another name for it of that field, likewise, and its text: members of
// an answer come in its order. Empty: there is none.
Result<std::string> ResponseSchemaInOrder(std::string_view text, std::span<const std::string_view> path = {},
                                          Endpoint endpoint = Endpoint::kChatCompletions);

// Defaults of bodies.
struct RequestRules {
  UnknownFields unknown_fields = UnknownFields::kRefuse;
  SamplingParams sampling = {};  // of a request that names none: OpenAI's defaults, or the model's (ModelInfo::sampling)
};

// One per model. Thread-safe once created.
class OpenAiRequestParser {
 public:
  // `tokenizer` may be null: prompts are token ids then, and `no_tokenizer` says why (ModelInfo::tokenizer_status). It outlives the
  // parser. `vocab_size` is the model's; 0: it is not known, and texts of any length are tokenised.
  OpenAiRequestParser(const Tokenizer* tokenizer, int32_t max_context, Status no_tokenizer = NotFound("the model has no tokenizer"),
                      int32_t vocab_size = 0, RequestRules rules = {});

  // Prefixes that `prefix` may name where a call of Parse has no `find_prefix`. Before the parser is used by several threads.
  void SetPrefixes(FindNamedPrefix prefixes) { prefixes_ = std::move(prefixes); }
  UnknownFields unknown_fields() const { return rules_.unknown_fields; }

  // Names, types and combinations of the fields of `body`; their ranges are the engine's to check. The output's grammar is
  // measured and not compiled. Fields of `body`: those of docs/batch.md. On an error, `error->param` names the field. `find_prefix`
  // knows what `prefix` may name; empty: what SetPrefixes said, else nothing. `tools`: that field of the body with its members in
  // the order of the text (ToolsInOrder), which the model sees; null: they come in the order of `body`. `schema`: likewise, that
  // of ResponseSchemaInOrder.
  std::optional<OpenAiRequest> Parse(Endpoint endpoint, const nlohmann::json& body, BodyError* error,
                                     const FindNamedPrefix& find_prefix = {}, const nlohmann::ordered_json* tools = nullptr,
                                     const std::string& schema = {}) const;
  // As Parse, where the prompt of a completion may be a list of prompts: a request for each, in their order; kMaxPrompts at most.
  std::optional<std::vector<OpenAiRequest>> ParseList(Endpoint endpoint, const nlohmann::json& body, BodyError* error,
                                                      const FindNamedPrefix& find_prefix = {},
                                                      const nlohmann::ordered_json* tools = nullptr,
                                                      const std::string& schema = {}) const;
  // Token ids of the parsed prompt. INVALID_ARGUMENT where its text, with all that `fim` has, is more than a context can take.
  Result<std::vector<int32_t>> Encode(const OpenAiRequest& parsed) const;
  const PromptBounds& bounds() const { return bounds_; }
  // Makes a completion, parsed without a suffix, one that fills the gap. INVALID_ARGUMENT where the model has no tokens for it.
  Status SetFim(FimContext context, OpenAiRequest* parsed) const;
  // Completes `parsed.request`. A chat without a token limit may go on to the end of the context, a completion for 16 tokens.
  void SetPrompt(std::vector<int32_t> prompt_ids, OpenAiRequest* parsed) const;
  // Token ids that every request with this prefix begins with, but for the last ones where text goes on in the same token. On an
  // error, `error->param` names the prefix's field.
  std::optional<std::vector<int32_t>> EncodePrefix(const NamedPrefix& prefix, BodyError* error) const;

 private:
  // ParseList of Endpoint::kResponses.
  std::optional<std::vector<OpenAiRequest>> ParseResponses(const nlohmann::json& body, BodyError* error,
                                                           const FindNamedPrefix& find_prefix, const nlohmann::ordered_json* tools,
                                                           const std::string& schema) const;
  Status MissingTokenizer() const;
  Result<std::vector<int32_t>> EncodeAfter(const NamedPrefix& prefix, const OpenAiRequest& parsed) const;
  // The renderer of chats, with tools or without. INVALID_ARGUMENT or UNIMPLEMENTED says why there is none.
  Result<const ChatRenderer*> RendererOf(const ToolFields& tools) const;
  // The chat's prompt, with the tools that the request shows the model; on an error, `*error` has it with its field.
  std::optional<ChatPrompt> RenderMessages(const std::vector<ChatMessage>& messages, const ToolFields& tools,
                                           const ChatFields& chat, BodyError* error) const;
  // Notes what bounds the output, and how calls of `tools` are recognised in it.
  void SetOutput(FieldReader& fields, const ToolFields& tools, const std::string& schema, OpenAiRequest* parsed,
                 std::string* begun) const;

  const Tokenizer* tokenizer_;
  Status no_tokenizer_;
  int32_t max_context_;
  PromptBounds bounds_;
  FindNamedPrefix prefixes_;
  RequestRules rules_;
  Result<std::unique_ptr<ChatRenderer>> chats_, tool_chats_;  // the second one: of chats with tools, where they have their own
  std::optional<ToolCallFormat> tool_call_format_;            // nothing: calls in the output would not be found
};

}  // namespace coppice::openai
