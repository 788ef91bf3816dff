#include "openai/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "coppice/engine/ranking.h"
#include "core/check.h"
#include "core/json.h"
#include "core/quoted.h"
#include "openai/beam_fields.h"
#include "openai/field_reader.h"
#include "openai/prompt_fields.h"
#include "openai/sampling_fields.h"
#include "openai/sglang_request.h"
#include "openai/structured_outputs.h"
#include "openai/tokens_request.h"
#include "openai/tool_grammar.h"

namespace coppice::openai {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int32_t kCompletionMaxTokens = 16;  // what OpenAI gives a completion that names no limit

void TakeStop(FieldReader& fields, std::vector<std::string>* stop) {
  const json* value = fields.Find("stop");
  if (!value) return;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& text : list) {
    if (!text.is_string()) return fields.Expect("stop", *value, "a string or a list of strings");
    if (text != "") stop->push_back(text.get<std::string>());  // none is meant: it would end each answer at once
  }
}

// OpenAI's response_format; `in_order`: its schema in the order of the text, if that is known. Nothing for text.
std::optional<GrammarSource> TakeResponseFormat(FieldReader& fields, const std::string& in_order) {
  constexpr const char* kName = "response_format";
  constexpr std::string_view kExpected =
      "an object whose type is text, json_object or json_schema, this one with json_schema.schema";
  const json* value = fields.Find(kName);
  if (!value) return std::nullopt;
  const json type = value->is_object() ? value->value("type", json()) : json();
  const json* schema = nullptr;
  std::string name, description;
  bool strict = true;
  if (type == "json_schema" && value->value("json_schema", json()).is_object()) {
    FieldReader parts = fields.Inner((*value)["json_schema"], "response_format.json_schema");
    schema = parts.Find("schema");
    parts.Take("name", &name);
    parts.Take("description", &description);
    parts.Take("strict", &strict);  // the answer follows the schema either way
    if (const BodyError error = parts.Finish(); !error.status.ok()) {
      fields.FailWithin("response_format.json_schema", error);
      return std::nullopt;
    }
  }
  const size_t known = type == "json_schema" ? 2 : 1;
  if (!type.is_string() || value->size() != known || (type != "text" && type != "json_object" && !schema)) {
    fields.Expect(kName, *value, kExpected);
    return std::nullopt;
  }
  if (type == "text") return std::nullopt;
  if (type == "json_object") return GrammarSource{GrammarKind::kJsonObject, {}};
  return GrammarSource{GrammarKind::kJsonSchema, in_order.empty() ? DumpJson(ordered_json(*schema)) : in_order};
}

// At most one of response_format, structured_outputs and the extensions regex and grammar.
std::optional<OutputForm> TakeOutputForm(FieldReader& fields, const std::string& schema) {
  std::optional<OutputForm> taken;
  const auto add = [&](const char* field, std::optional<GrammarSource> source) {
    if (!source) return;
    if (taken)
      fields.Fail(field,
                  InvalidArgument(fmt::format("{} and {} both say what the output looks like; keep one", taken->field, field)));
    taken = OutputForm{field, *std::move(source)};
  };
  add("response_format", TakeResponseFormat(fields, schema));
  add("structured_outputs", TakeStructuredOutputs(fields, schema));
  for (const auto& [field, kind] : {std::pair("regex", GrammarKind::kRegex), std::pair("grammar", GrammarKind::kEbnf)}) {
    std::optional<std::string> text;
    fields.Take(field, &text);
    if (text) add(field, GrammarSource{kind, *std::move(text)});
  }
  return taken;
}

// `has_text`: OK, or why samples have no text but token ids alone.
void TakeVote(FieldReader& fields, std::optional<std::string>* vote, const Status& has_text) {
  fields.Take("vote", vote);
  if (!*vote) return;
  if (!has_text.ok())
    fields.Fail("vote", InvalidArgument("vote looks for answers in texts, and answers have none: " + has_text.message()));
  const auto compiled = ExtractAnswer("", **vote);
  if (!compiled.ok()) fields.Fail("vote", InvalidArgument("vote: " + compiled.status().message()));
}

// Comparisons of samples have no result before the last sample has ended.
void RefuseComparing(FieldReader& fields, const OpenAiRequest& parsed) {
  constexpr std::string_view kExpected = "it absent: samples are compared when all have ended, and this answer streams";
  if (!parsed.stream) return;
  if (parsed.rank) fields.Expect("rank", parsed.rank, kExpected);
  if (parsed.deduplicate) fields.Expect("dedup", parsed.deduplicate, kExpected);
  if (parsed.vote) fields.Expect("vote", *parsed.vote, kExpected);
}

// How many alternatives of each token are reported. A number makes `logprobs` true.
void TakeTopLogprobs(FieldReader& fields, const char* name, OpenAiRequest* parsed) {
  std::optional<int32_t> count;
  fields.Take(name, &count);
  if (!count) return;
  if (*count < 0 || *count > kMaxTopLogprobs)
    return fields.Expect(name, *count, fmt::format("an integer in 0..{}", kMaxTopLogprobs));
  if (*count > 0 && parsed->request.beams.width > 0)
    return fields.Expect(name, *count, "0 beside beam search, which has log-probabilities of the chosen tokens alone");
  parsed->request.top_logprobs = *count;
}

// vLLM's prompt_logprobs: of the prompt's tokens, each with so many alternatives.
void TakePromptLogprobs(FieldReader& fields, OpenAiRequest* parsed) {
  constexpr const char* kName = "prompt_logprobs";
  std::optional<int32_t> count;
  fields.Take(kName, &count);
  if (!count) return;
  if (*count < 0 || *count > kMaxTopLogprobs)
    return fields.Expect(kName, *count, fmt::format("an integer in 0..{}", kMaxTopLogprobs));
  if (parsed->stream) return fields.Expect(kName, *count, "it absent where the answer streams");
  if (parsed->request.beams.width > 0) return fields.Expect(kName, *count, "it absent beside beam search");
  parsed->prompt_logprobs = parsed->request.prompt_logprobs = parsed->request.ranks = true;
  parsed->request.prompt_top_logprobs = *count;
}

void TakeTimeout(FieldReader& fields, double* seconds) {
  constexpr double kLongest = 1e9;  // as the engine has it, whose name of the field is another
  fields.Take("timeout", seconds);
  if (*seconds == -1) *seconds = 0;
  if (!(*seconds >= 0 && *seconds <= kLongest)) fields.Expect("timeout", *seconds, "seconds: 0 (none) or a number up to 1e9");
}

void TakeCommon(FieldReader& fields, OpenAiRequest* parsed, const Status& has_text) {
  Request& request = parsed->request;
  std::string ignored;
  fields.Take("model", &ignored);  // one model is loaded; the answer says which
  fields.Take("user", &ignored);
  // Fields that servers keep, bill or compute ahead by; answers do not depend on them.
  for (const char* const name : {"metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort",
                                 "safety_identifier", "service_tier", "store", "verbosity"}) {
    fields.Find(name);
  }
  const json* modalities = fields.Find("modalities");
  if (modalities && *modalities != json::array() && *modalities != json::array({"text"}))
    fields.Expect("modalities", *modalities, R"(["text"])");
  fields.Take("n", &parsed->choices);
  request.n = parsed->choices;
  TakeSampling(fields, &request.sampling);
  TakeSeed(fields, &request.sampling.seed);
  TakeBeams(fields, &request);
  TakeStop(fields, &request.stop);
  TakeStream(fields, parsed);
  // Extensions, by the names that other servers gave them.
  fields.Take("min_tokens", &request.min_tokens);
  fields.Take("ignore_eos", &request.ignore_eos);
  fields.Take("cache_salt", &request.cache_salt);
  fields.Take("cache_private_begin", &request.cache_private_begin);
  TakeTimeout(fields, &request.timeout_seconds);
  fields.Take("priority", &request.priority);
  fields.Take("group_id", &request.group.name);
  fields.Take("min_answered", &request.group.min_answered);
  fields.Take("return_tokens_as_token_ids", &parsed->tokens_as_ids);
  TakePromptLogprobs(fields, parsed);
  fields.Take("return_token_ids", &parsed->return_token_ids);
  fields.Take("rank", &parsed->rank);
  fields.Take("dedup", &parsed->deduplicate);
  TakeVote(fields, &parsed->vote, has_text);
  RefuseComparing(fields, *parsed);
  if (const json* ids = fields.Find("stop_token_ids")) {
    std::optional<std::vector<int32_t>> tokens = ids->is_array() ? TokenIds(*ids) : std::nullopt;
    if (!tokens) return fields.Expect("stop_token_ids", *ids, "a list of token ids");
    request.stop_token_ids = *std::move(tokens);
  }
}

// Requests with a prefix share it as far as its own salt lets them: a salt of their own begins behind it.
void TakePrefix(FieldReader& fields, const FindNamedPrefix& find, OpenAiRequest* parsed) {
  std::optional<std::string> name;
  fields.Take("prefix", &name);
  if (!name) return;
  parsed->prefix = find ? find(*name) : nullptr;
  if (!parsed->prefix)
    return fields.Fail("prefix", InvalidArgument(fmt::format("there is no prefix {}; make it first", Shown(*name))));
  const NamedPrefix& prefix = *parsed->prefix;
  const bool chat = IsChat(parsed->endpoint);
  if (prefix.chat() != chat) fields.Expect("prefix", *name, fmt::format("one that was made of {}", chat ? "messages" : "prompt"));
  Request& request = parsed->request;
  const bool range_given = fields.Find("cache_private_begin") != nullptr;
  if (prefix.cache_salt.empty()) {
    parsed->public_prefix = !request.cache_salt.empty() && !range_given;
    return;
  }
  if (range_given || !request.cache_salt.empty())
    fields.Fail("cache_salt", InvalidArgument("the prefix has a cache_salt, which is the request's too: leave cache_salt and "
                                              "cache_private_begin out"));
  request.cache_salt = prefix.cache_salt;
  request.cache_private_begin = prefix.cache_private_begin;
}

void TakeMaxTokens(FieldReader& fields, const char* name, OpenAiRequest* parsed) {
  fields.Take(name, &parsed->max_tokens);
  if (parsed->max_tokens != -1) return;
  parsed->max_tokens.reset();
  parsed->no_limit = true;
}

void TakeCompletion(FieldReader& fields, OpenAiRequest* parsed) {
  TakeMaxTokens(fields, "max_tokens", parsed);
  const json* logprobs = fields.Find("logprobs");  // null or false: none; 0: of the tokens chosen alone
  parsed->logprobs = logprobs && *logprobs != false;
  if (parsed->logprobs) TakeTopLogprobs(fields, "logprobs", parsed);
  fields.Take("echo", &parsed->request.echo);
  if (parsed->request.echo && parsed->logprobs) {
    if (parsed->prompt_logprobs)
      fields.Fail("prompt_logprobs", InvalidArgument("echo with logprobs says the same as prompt_logprobs; keep one of the two"));
    parsed->request.prompt_logprobs = true;
  }
  if (parsed->request.beams.width > 0) return;  // best_of is a width
  fields.Take("best_of", &parsed->request.n);
  if (parsed->request.n < parsed->choices)
    fields.Expect("best_of", parsed->request.n, fmt::format("at least n, {}", parsed->choices));
  if (parsed->stream && parsed->request.n > parsed->choices)
    fields.Expect("best_of", parsed->request.n, "n: which samples are the best is not known while they stream");
}

// Tokens that separate or pad files end an answer.
void StopAtFimEnds(const Tokenizer& tokenizer, OpenAiRequest* parsed) {
  if (parsed->request.ignore_eos) return;
  std::vector<int32_t>& stops = parsed->request.stop_token_ids;
  const std::vector<int32_t>& ends = tokenizer.info().fim.ends;
  stops.insert(stops.end(), ends.begin(), ends.end());
}

// The gap that a completion with a suffix fills.
void TakeFim(FieldReader& fields, const std::vector<Prompt>& prompts, const Tokenizer* tokenizer, OpenAiRequest* parsed) {
  parsed->fim = TakeSuffix(fields, prompts, tokenizer);
  if (!parsed->fim || !tokenizer) return;
  if (parsed->request.echo)
    fields.Expect("echo", true, "false with suffix: the text before the gap and the answer are not all of the text");
  if (parsed->prefix)
    fields.Fail("prefix", InvalidArgument("a prompt with suffix begins with a token of its own, so that it shares nothing with a "
                                          "prefix; leave prefix out and begin prompt with its text"));
  StopAtFimEnds(*tokenizer, parsed);
}

// Of what each prompt of a list has a copy of.
size_t RepeatedBytes(const Request& request) {
  size_t bytes = request.cache_salt.size() + request.group.name.size() + std::span(request.stop_token_ids).size_bytes() +
                 std::span(request.sampling.logit_bias).size_bytes() + std::span(request.stop).size_bytes();
  for (const std::string& stop : request.stop) bytes += stop.size();
  return bytes;
}

// The source of what renders chats with tools.
const std::string& ToolTemplateOf(const Tokenizer::Info& info) {
  return info.tool_chat_template.empty() ? info.chat_template : info.tool_chat_template;
}

}  // namespace

void TakeStream(FieldReader& fields, OpenAiRequest* parsed) {
  fields.Take("stream", &parsed->stream);
  const json* options = fields.Find("stream_options");
  if (!options) return;
  if (!options->is_object()) return fields.Expect("stream_options", *options, R"(an object such as {"include_usage": true})");
  FieldReader parts = fields.Inner(*options, "stream_options");
  bool include_usage = false, obfuscated = false;
  parts.Take("include_usage", &include_usage);
  parts.Take("include_obfuscation", &obfuscated);  // padding, of which there is none
  const json* continuous = parts.Find("continuous_usage_stats");
  if (continuous && *continuous != false) parts.Unknown("continuous_usage_stats", *continuous);
  parsed->include_usage = include_usage && parsed->stream;  // an answer that comes whole has its usage anyway
  if (const BodyError error = parts.Finish(); !error.status.ok()) fields.FailWithin("stream_options", error);
}

Result<ordered_json> ToolsInOrder(std::string_view text, std::span<const std::string_view> path) {
  std::vector<std::string_view> whole(path.begin(), path.end());
  whole.push_back("tools");
  return ParseOrderedJson(text, whole);
}

Result<std::string> ResponseSchemaInOrder(std::string_view text, std::span<const std::string_view> path, Endpoint endpoint) {
  std::vector<std::string_view> whole(path.begin(), path.end());
  const auto read = [&](std::initializer_list<std::string_view> names) -> Result<std::string> {
    std::vector<std::string_view> place(whole);
    place.insert(place.end(), names);
    COPPICE_ASSIGN_OR_RETURN(ordered_json schema, ParseOrderedJson(text, place));
    return schema.is_null() ? std::string() : DumpJson(std::move(schema));
  };
  if (endpoint == Endpoint::kResponses) return read({"text", "format", "schema"});
  COPPICE_ASSIGN_OR_RETURN(std::string schema, read({"response_format", "json_schema", "schema"}));
  return schema.empty() ? read({"structured_outputs", "json"}) : schema;
}

Result<Endpoint> ParseUrl(std::string_view url) {
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChatCompletions, Endpoint::kResponses}) {
    if (url == Url(endpoint)) return endpoint;
  }
  return InvalidArgument(fmt::format("url is {}, expected {}, {} or {}", Quoted(url), Url(Endpoint::kCompletions),
                                     Url(Endpoint::kChatCompletions), Url(Endpoint::kResponses)));
}

std::optional<TokenizeRequest> ParseTokenize(const json& body, const PromptBounds& bounds, BodyError* error) {
  if (!body.is_object()) return RefuseBody(body, error);
  TokenizeRequest request;
  FieldReader fields(body);
  if (!fields.Find("prompt")) fields.Expect("prompt", json(), "a string");
  fields.Take("prompt", &request.text);
  if (const Status few = bounds.CheckText("prompt", request.text.size()); !few.ok()) fields.Fail("prompt", few);
  fields.Take("add_special_tokens", &request.add_special_tokens);
  std::string model;
  fields.Take("model", &model);
  *error = fields.Finish();
  if (!error->status.ok()) return std::nullopt;
  return request;
}

std::optional<std::vector<int32_t>> ParseDetokenize(const json& body, int32_t vocab_size, const PromptBounds& bounds,
                                                    BodyError* error) {
  if (!body.is_object()) return RefuseBody(body, error);
  FieldReader fields(body);
  const json* tokens = fields.Find("tokens");
  if (const Status few = bounds.CheckTokens("tokens", tokens ? tokens->size() : 0); !few.ok()) {
    *error = {few, "tokens"};
    return std::nullopt;
  }
  std::optional<std::vector<int32_t>> ids = tokens && tokens->is_array() ? TokenIds(*tokens) : std::nullopt;
  const bool known = ids && std::ranges::all_of(*ids, [&](int32_t id) { return id < vocab_size; });
  if (!known) fields.Expect("tokens", tokens ? *tokens : json(), fmt::format("a list of token ids in 0..{}", vocab_size - 1));
  std::string model;
  fields.Take("model", &model);
  *error = fields.Finish();
  if (!error->status.ok()) return std::nullopt;
  return ids;
}

BodyError OutputForm::ErrorOf(const Status& status) const {
  return {Status(status.code(), fmt::format("{}: {}", field, status.message())), field};
}

Request OpenAiRequest::TakeRequest() {
  Request taken = std::exchange(request, Request());
  request.echo = taken.echo;
  request.top_logprobs = taken.top_logprobs;
  request.prompt_top_logprobs = taken.prompt_top_logprobs;
  request.prompt_logprobs_begin = taken.prompt_logprobs_begin;
  request.max_tokens = taken.max_tokens;
  request.stop = taken.stop;
  request.stop_token_ids = taken.stop_token_ids;
  text.reset();  // the engine has its tokens
  fim.reset();
  prompt_ids = reports_prompt_ids() ? taken.prompt_ids : std::vector<int32_t>();
  return taken;
}

BodyError OpenAiRequest::PromptError(const Status& status) const {
  const char* const field = infill ? "input_prefix" : IsChat(endpoint) ? "messages" : "prompt";
  return InItsWords({status, field});
}

BodyError OpenAiRequest::InItsWords(BodyError error) const {
  if (responses) return InWordsOfResponses(error);
  if (token_route) return InWordsOfTokens(std::move(error));
  if (sglang) return InWordsOfSglang(std::move(error));
  return error;
}

void OpenAiRequest::RenameOutputField(const std::function<std::string(const std::string&)>& rename) {
  if (output) output = std::make_shared<const OutputForm>(OutputForm{rename(output->field), output->source});
}

BodyError OpenAiRequest::ErrorUnderWay(const Status& status) const {
  if (output && status.code() == StatusCode::kInvalidArgument) return output->ErrorOf(status);
  return InItsWords({.status = status});
}

OpenAiRequestParser::OpenAiRequestParser(const Tokenizer* tokenizer, int32_t max_context, Status no_tokenizer, int32_t vocab_size,
                                         RequestRules rules)
    : tokenizer_(tokenizer),
      no_tokenizer_(tokenizer ? OkStatus() : std::move(no_tokenizer)),
      max_context_(max_context),
      bounds_(tokenizer, vocab_size, max_context),
      rules_(std::move(rules)),
      chats_(tokenizer && !tokenizer->info().chat_template.empty()
                 ? ChatRenderer::Parse(tokenizer->info().chat_template)
                 : InvalidArgument(fmt::format("the model has no chat template; use {}", Url(Endpoint::kCompletions)))),
      tool_chats_(tokenizer && !tokenizer->info().tool_chat_template.empty()
                      ? ChatRenderer::Parse(tokenizer->info().tool_chat_template)
                      : std::unique_ptr<ChatRenderer>()),
      tool_call_format_(tokenizer ? ToolCallFormatOf(ToolTemplateOf(tokenizer->info()), *tokenizer) : std::nullopt) {}

std::optional<OpenAiRequest> OpenAiRequestParser::Parse(Endpoint endpoint, const json& body, BodyError* error,
                                                        const FindNamedPrefix& find_prefix, const ordered_json* tools,
                                                        const std::string& schema) const {
  std::optional<std::vector<OpenAiRequest>> list = ParseList(endpoint, body, error, find_prefix, tools, schema);
  if (!list) return std::nullopt;
  if (list->size() > 1) {
    *error = {InvalidArgument(fmt::format("prompt is a list of {} prompts; give each a request of its own", list->size())),
              "prompt"};
    return std::nullopt;
  }
  return std::move(list->front());
}

std::optional<std::vector<OpenAiRequest>> OpenAiRequestParser::ParseList(Endpoint endpoint, const json& body, BodyError* error,
                                                                         const FindNamedPrefix& find_prefix,
                                                                         const ordered_json* ordered_tools,
                                                                         const std::string& schema) const {
  if (!body.is_object()) return RefuseBody(body, error);
  if (endpoint == Endpoint::kResponses) return ParseResponses(body, error, find_prefix, ordered_tools, schema);
  OpenAiRequest parsed{.endpoint = endpoint};
  std::vector<Prompt> prompts;
  ToolFields tools;
  parsed.request.sampling = rules_.sampling;
  UnknownFieldsOf unknown{.rule = rules_.unknown_fields};
  FieldReader fields(body, &unknown);
  TakeCommon(fields, &parsed, no_tokenizer_);
  TakePrefix(fields, find_prefix ? find_prefix : prefixes_, &parsed);
  if (endpoint == Endpoint::kCompletions) {
    prompts = TakePrompts(fields);
    TakeCompletion(fields, &parsed);
    TakeFim(fields, prompts, tokenizer_, &parsed);
  } else {
    tools = TakeTools(fields, ordered_tools, parsed.prefix ? parsed.prefix->tools : ToolFields());
    const Result<const ChatRenderer*> renderer = RendererOf(tools);
    const auto reads = [&](std::string_view name) { return renderer.ok() && (*renderer)->Mentions(name); };
    std::vector<ChatMessage> messages = TakeMessages(fields, reads);
    if (parsed.prefix) messages.insert(messages.begin(), parsed.prefix->messages.begin(), parsed.prefix->messages.end());
    const ChatFields chat_fields = TakeChatFields(fields, renderer.ok() ? *renderer : nullptr);
    if (fields.ok()) {
      BodyError wrong;
      if (std::optional<ChatPrompt> chat = RenderMessages(messages, tools, chat_fields, &wrong)) {
        prompts.push_back({.text = std::move(chat->text)});
        parsed.values = std::move(chat->values);
      } else {
        fields.Fail(wrong.param, wrong.status);
      }
    }
    TakeMaxTokens(fields, "max_tokens", &parsed);
    TakeMaxTokens(fields, "max_completion_tokens", &parsed);  // its newer name
    fields.Take("logprobs", &parsed.logprobs);
    TakeTopLogprobs(fields, "top_logprobs", &parsed);
    if (parsed.request.top_logprobs > 0 && !parsed.logprobs)
      fields.Expect("top_logprobs", parsed.request.top_logprobs, "0 or absent where logprobs is not true");
  }
  std::string begun;
  SetOutput(fields, tools, schema, &parsed, &begun);
  if (!prompts.empty() && prompts.front().text) *prompts.front().text += begun;  // of a chat, which has one
  if (parsed.vote && prompts.size() > 1)
    fields.Expect("vote", *parsed.vote, fmt::format("one prompt to vote on, not {}; send a request for each", prompts.size()));
  const Status fits = CheckRepeated("stop, stop_token_ids, logit_bias, cache_salt and group_id have", RepeatedBytes(parsed.request),
                                    "for", prompts.size());
  if (!fits.ok()) fields.Fail("prompt", fits);
  *error = fields.Finish();
  if (!error->status.ok()) return std::nullopt;
  std::vector<OpenAiRequest> list(prompts.size(), parsed);
  if (!list.empty()) list.front().ignored_fields = std::move(unknown.ignored);
  for (size_t i = 0; i < prompts.size(); ++i) {
    list[i].text = std::move(prompts[i].text);
    list[i].prompt_ids = std::move(prompts[i].ids);
  }
  return list;
}

std::optional<std::vector<OpenAiRequest>> OpenAiRequestParser::ParseResponses(const json& body, BodyError* error,
                                                                              const FindNamedPrefix& find_prefix,
                                                                              const ordered_json* tools,
                                                                              const std::string& schema) const {
  UnknownFieldsOf unknown{.rule = rules_.unknown_fields};
  const std::optional<ChatOfResponses> chat = ToChat(body, tools, &unknown, error);
  if (!chat) return std::nullopt;
  std::optional<std::vector<OpenAiRequest>> list =
      ParseList(Endpoint::kChatCompletions, *chat->body, error, find_prefix, chat->tools ? &**chat->tools : nullptr, schema);
  if (!list) {
    *error = chat->Renamed(*error);
    return std::nullopt;
  }
  OpenAiRequest& parsed = list->front();
  if (parsed.logprobs && parsed.tools) {
    *error = {
        InvalidArgument("include asks for the log-probabilities of the message's tokens, and with tools it is not known which "
                        "tokens are the message's; leave one of the two out, or use /v1/chat/completions"),
        "include"};
    return std::nullopt;
  }
  parsed.endpoint = Endpoint::kResponses;
  parsed.responses = std::make_shared<const ResponsesForm>(FormOf(body, tools, schema, parsed.request.sampling));
  parsed.RenameOutputField([&](const std::string& field) { return chat->Renamed(field); });
  for (const std::string& name : parsed.ignored_fields) unknown.ignored.push_back(chat->Renamed(name));
  parsed.ignored_fields = std::move(unknown.ignored);
  return list;
}

void OpenAiRequestParser::SetOutput(FieldReader& fields, const ToolFields& tools, const std::string& schema, OpenAiRequest* parsed,
                                    std::string* begun) const {
  std::optional<OutputForm> output = TakeOutputForm(fields, schema);
  if (!fields.ok()) return;
  if (tools.used()) {
    BodyError error;
    std::optional<GrammarSource> source = ToolGrammar(tools, *tool_call_format_, output ? &output->source : nullptr, begun, &error);
    if (!error.status.ok()) {
      const bool is_content = output && error.param == "response_format";
      return fields.Fail(is_content ? output->field : error.param, error.status);
    }
    if (source) output = {tools.choice == ToolFields::Choice::kAuto ? "tools" : "tool_choice", *std::move(source)};
    ToolCalls calls = {.format = *tool_call_format_, .parallel = tools.parallel, .begun = *begun};
    for (const ToolFunction& function : tools.functions) calls.names.insert(function.name);
    parsed->request.visible_tokens = tool_call_format_->control_tokens;
    parsed->tools = std::make_shared<const ToolCalls>(std::move(calls));
  }
  if (!output) return;
  const Status usable = tokenizer_ ? CheckGrammarSource(output->source)
                                   : InvalidArgument("the output has no text to constrain: the model has no tokenizer");
  if (const BodyError error = output->ErrorOf(usable); !error.status.ok()) return fields.Fail(error.param, error.status);
  parsed->output = std::make_shared<const OutputForm>(*std::move(output));
}

Status OpenAiRequestParser::SetFim(FimContext context, OpenAiRequest* parsed) const {
  if (!tokenizer_) return InvalidArgument(no_tokenizer_.message());
  COPPICE_RETURN_IF_ERROR(CheckFim(*tokenizer_));
  parsed->fim = std::make_shared<const FimContext>(std::move(context));
  StopAtFimEnds(*tokenizer_, parsed);
  return OkStatus();
}

Status OpenAiRequestParser::MissingTokenizer() const {
  return InvalidArgument(fmt::format("{}; give the prompt as a list of token ids", no_tokenizer_.message()));
}

Result<const ChatRenderer*> OpenAiRequestParser::RendererOf(const ToolFields& tools) const {
  if (!tokenizer_) {
    return InvalidArgument(
        fmt::format("{}; give the prompt to {} as a list of token ids", no_tokenizer_.message(), Url(Endpoint::kCompletions)));
  }
  if (tools.used()) {
    if (!tool_chats_.ok()) return tool_chats_.status();
    if (*tool_chats_) return tool_chats_->get();
  }
  if (!chats_.ok()) return chats_.status();
  return chats_->get();
}

std::optional<ChatPrompt> OpenAiRequestParser::RenderMessages(const std::vector<ChatMessage>& messages, const ToolFields& tools,
                                                              const ChatFields& chat, BodyError* error) const {
  const auto fail = [error](Status status, const char* param) {
    *error = {std::move(status), param};
    return std::nullopt;
  };
  if (Status few = bounds_.CheckMessages(messages); !few.ok()) return fail(std::move(few), "messages");
  const Result<const ChatRenderer*> renderer = RendererOf(tools);
  if (!renderer.ok()) return fail(renderer.status(), "messages");
  ordered_json variables = chat.variables;
  if (tools.used()) {
    ordered_json& list = variables["tools"] = tools.list;
    for (ordered_json& tool : list) tool["function"].erase("strict");  // said to the server, not to the model
  }
  Result<RenderedChat> rendered =
      (*renderer)->Render(messages, *tokenizer_,
                          {.variables = variables.empty() ? std::string() : DumpJson(std::move(variables)),
                           .add_generation_prompt = chat.add_generation_prompt,
                           .continue_final_message = chat.continue_final_message});
  if (!rendered.ok()) return fail(rendered.status(), "messages");
  if (tools.used() && !rendered->has_tools) {
    return fail(
        InvalidArgument("the model's chat template does not show it the tools; take a model that was trained to call tools"),
        "tools");
  }
  if (tools.used() && !tool_call_format_) {
    return fail(InvalidArgument("the model's chat template writes calls in a form that is not known here, expected that of Hermes "
                                "and Qwen, of Llama 3 or of Mistral"),
                "tools");
  }
  return std::move(rendered->prompt);
}

Result<std::vector<int32_t>> OpenAiRequestParser::Encode(const OpenAiRequest& parsed) const {
  if (parsed.prefix && !parsed.prefix->chat()) return EncodeAfter(*parsed.prefix, parsed);
  if (!parsed.text) return parsed.prompt_ids;
  if (!tokenizer_) return MissingTokenizer();
  if (parsed.fim) {
    COPPICE_RETURN_IF_ERROR(bounds_.CheckText("the prompt with its suffix", parsed.text->size() + parsed.fim->bytes()));
    return EncodeFim(*tokenizer_, *parsed.text, *parsed.fim);
  }
  COPPICE_RETURN_IF_ERROR(bounds_.CheckText("the prompt", parsed.text->size()));
  // A chat template writes the beginning-of-text token itself.
  return tokenizer_->Encode(
      *parsed.text, {.add_special = parsed.endpoint == Endpoint::kCompletions, .parse_special = true, .values = parsed.values});
}

// Text after text is one text: its tokens are those of a prompt that is sent whole.
Result<std::vector<int32_t>> OpenAiRequestParser::EncodeAfter(const NamedPrefix& prefix, const OpenAiRequest& parsed) const {
  if ((prefix.text || parsed.text) && !tokenizer_) return MissingTokenizer();
  const size_t bytes = (prefix.text ? prefix.text->size() : 0) + (parsed.text ? parsed.text->size() : 0);
  COPPICE_RETURN_IF_ERROR(bounds_.CheckText("the prompt with its prefix", bytes));
  if (prefix.text && parsed.text)
    return tokenizer_->Encode(*prefix.text + *parsed.text, {.add_special = true, .parse_special = true});
  std::vector<int32_t> ids = prefix.token_ids;
  std::vector<int32_t> rest = parsed.prompt_ids;
  if (parsed.text) {
    COPPICE_ASSIGN_OR_RETURN(rest, tokenizer_->Encode(*parsed.text, {.add_special = false, .parse_special = true}));
  }
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::optional<std::vector<int32_t>> OpenAiRequestParser::EncodePrefix(const NamedPrefix& prefix, BodyError* error) const {
  const auto encoded = [&](const OpenAiRequest& parsed, const char* field) -> std::optional<std::vector<int32_t>> {
    Result<std::vector<int32_t>> ids = Encode(parsed);
    if (ids.ok()) return *std::move(ids);
    *error = {ids.status(), field};
    return std::nullopt;
  };
  if (!prefix.chat()) return encoded({.text = prefix.text, .prompt_ids = prefix.prompt_ids}, "prompt");
  // The text that templates put behind the last message depends on the next one: an answer, or a message of any text. Some do not
  // render the prefix alone, such as those that put tools into a message of the user.
  std::vector<ChatMessage> longer = prefix.messages;
  longer.push_back({.role = longer.back().role == "user" ? "assistant" : "user"});
  std::optional<std::vector<int32_t>> common;
  const auto keep_common = [&](const std::vector<ChatMessage>& messages) {
    std::optional<ChatPrompt> chat = RenderMessages(messages, prefix.tools, {}, error);
    if (!chat) return false;
    std::optional<std::vector<int32_t>> ids = encoded(
        {.endpoint = Endpoint::kChatCompletions, .text = std::move(chat->text), .values = std::move(chat->values)}, "messages");
    if (!ids) return false;
    if (common) ids->erase(std::ranges::mismatch(*ids, *common).in1, ids->end());
    common = std::move(ids);
    return true;
  };
  (void)keep_common(prefix.messages);
  for (const char* const content : {"a", "b"}) {
    longer.back().content = content;
    if (!keep_common(longer)) return std::nullopt;
  }
  return common;
}

void OpenAiRequestParser::SetPrompt(std::vector<int32_t> prompt_ids, OpenAiRequest* parsed) const {
  const int32_t rest = std::max(1, max_context_ - static_cast<int32_t>(prompt_ids.size()));
  const bool is_short = parsed->endpoint == Endpoint::kCompletions && !parsed->no_limit;
  const int32_t by_default = is_short ? kCompletionMaxTokens : rest;
  parsed->request.max_tokens = parsed->max_tokens.value_or(by_default);
  if (parsed->prefix) {  // text behind it may have changed its last tokens
    const std::vector<int32_t>& prefix = parsed->prefix->token_ids;
    const auto common = static_cast<int32_t>(std::ranges::mismatch(prefix, prompt_ids).in1 - prefix.begin());
    if (parsed->public_prefix) parsed->request.cache_private_begin = common;
    if (parsed->prefix->is_public) parsed->request.cache_tenant.begin = common;
  }
  parsed->request.prompt_ids = std::move(prompt_ids);
}

}  // namespace coppice::openai
