#include "server/token_routes.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/json.h"
#include "server/errors.h"

namespace coppice::server {
namespace {

using nlohmann::ordered_json;

}  // namespace

std::vector<Route> TokenRoutes::Routes() {
  return {{"POST", "/tokenize", HandledBy(this, &TokenRoutes::Tokenize), BodyKind::kJson},
          {"GET", "/tokenizer_info", HandledBy(this, &TokenRoutes::TokenizerInfo)},
          {"POST", "/detokenize", HandledBy(this, &TokenRoutes::Detokenize), BodyKind::kJson}};
}

void TokenRoutes::Tokenize(const std::shared_ptr<Call>& call) {
  const std::optional<JsonBody> body = context_.TakeBody(call, openai::Endpoint::kChatCompletions);
  if (!body) return;
  const Tokenizer* tokenizer = context_.engine().tokenizer();
  if (!tokenizer)
    return context_.Answer(call, ErrorResponse(FailedPrecondition(context_.engine().model_info().tokenizer_status.message())));
  const bool is_chat = body->json->is_object() && body->json->contains("messages");
  openai::BodyError error;
  Result<std::vector<int32_t>> ids = std::vector<int32_t>();
  if (is_chat) {
    const std::optional<openai::OpenAiRequest> chat =
        context_.parser().Parse(openai::Endpoint::kChatCompletions, *body->json, &error, prefixes_.FinderOf(call->key),
                                body->ordered.tools_or_null(), body->ordered.schema);
    if (!chat) return context_.Answer(call, error);
    ReportIgnored(call, chat->ignored_fields);
    ids = context_.parser().Encode(*chat);
  } else {
    const std::optional<openai::TokenizeRequest> request = openai::ParseTokenize(*body->json, context_.parser().bounds(), &error);
    if (!request) return context_.Answer(call, error);
    ids = tokenizer->Encode(request->text, {.add_special = request->add_special_tokens, .parse_special = true});
  }
  if (!ids.ok()) return context_.Answer(call, ErrorResponse(ids.status(), is_chat ? "messages" : "prompt"));
  context_.Answer(
      call, {.body = DumpJson({{"count", ids->size()}, {"max_model_len", context_.options().max_context}, {"tokens", *ids}})});
}

void TokenRoutes::TokenizerInfo(const std::shared_ptr<Call>& call) {
  const Tokenizer* tokenizer = context_.engine().tokenizer();
  if (!tokenizer)
    return context_.Answer(call, ErrorResponse(FailedPrecondition(context_.engine().model_info().tokenizer_status.message())));
  const Tokenizer::Info& info = tokenizer->info();
  const auto text = [&](int32_t id) {
    return id < 0 ? ordered_json() : ordered_json(tokenizer->TokenBytes(id, /*keep_special=*/true));
  };
  const ordered_json chat_template = info.chat_template.empty() ? ordered_json() : ordered_json(info.chat_template);
  context_.Answer(call, {.body = DumpJson({{"bos_token", text(info.bos_id)},
                                           {"eos_token", text(info.eos_ids.empty() ? -1 : info.eos_ids.front())},
                                           {"add_bos_token", info.add_bos},
                                           {"add_eos_token", info.add_eos},
                                           {"chat_template", chat_template},
                                           {"model_max_length", context_.options().max_context}})});
}

void TokenRoutes::Detokenize(const std::shared_ptr<Call>& call) {
  const std::optional<JsonBody> body = context_.TakeBody(call);
  if (!body) return;
  const Tokenizer* tokenizer = context_.engine().tokenizer();
  if (!tokenizer)
    return context_.Answer(call, ErrorResponse(FailedPrecondition(context_.engine().model_info().tokenizer_status.message())));
  openai::BodyError error;
  const std::optional<std::vector<int32_t>> ids =
      openai::ParseDetokenize(*body->json, context_.engine().model_info().vocab_size, context_.parser().bounds(), &error);
  if (!ids) return context_.Answer(call, error);
  context_.Answer(call, {.body = DumpJson({{"prompt", tokenizer->Decode(*ids, /*keep_special=*/true)}})});
}

}  // namespace coppice::server
