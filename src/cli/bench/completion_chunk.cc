#include "cli/bench/completion_chunk.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/quoted.h"

namespace coppice::cli {
namespace {

using nlohmann::json;

constexpr size_t kShownBytes = 200;

const json* Find(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> IntegerOf(const json& object, const char* key) {
  const json* const value = Find(object, key);
  return value && value->is_number_integer() ? std::optional(value->get<int64_t>()) : std::nullopt;
}

std::string ErrorOf(const json& body) {
  const json* const error = Find(body, "error");
  for (const json* const value : {error ? Find(*error, "message") : nullptr, error, Find(body, "message"), Find(body, "detail")}) {
    if (value) return Printable(value->is_string() ? value->get_ref<const std::string&>() : value->dump(), kShownBytes);
  }
  return "";
}

bool HasText(const json& choice) {
  const json* text = Find(choice, "text");
  if (const json* const delta = Find(choice, "delta")) text = Find(*delta, "content");
  return text && text->is_string() && !text->get_ref<const std::string&>().empty();
}

std::optional<CompletionChunk::Choice> ChoiceOf(const json& value) {
  const std::optional<int64_t> index = IntegerOf(value, "index");
  if (!index || *index < 0 || *index > INT32_MAX) return std::nullopt;
  CompletionChunk::Choice choice{.index = static_cast<int32_t>(*index), .finished = Find(value, "finish_reason") != nullptr};
  const json* const ids = Find(value, "token_ids");
  choice.tokens = ids && ids->is_array() ? static_cast<int64_t>(ids->size()) : HasText(value);
  return choice;
}

}  // namespace

Result<CompletionChunk> ParseCompletionChunk(std::string_view data) {
  const json object = json::parse(data, nullptr, /*allow_exceptions=*/false);
  const Status bad =
      DataLoss(fmt::format("the stream has {}, expected an object of a completion", Quoted(Printable(data, kShownBytes))));
  if (!object.is_object()) return bad;
  CompletionChunk chunk{.error = ErrorOf(object)};
  if (!chunk.error.empty()) return chunk;
  const json* const choices = Find(object, "choices");
  if (!choices || !choices->is_array()) return bad;
  for (const json& value : *choices) {
    const std::optional<CompletionChunk::Choice> choice = ChoiceOf(value);
    if (!choice) return bad;
    chunk.choices.push_back(*choice);
  }
  if (const json* const usage = Find(object, "usage")) {
    const std::optional<int64_t> tokens = IntegerOf(*usage, "completion_tokens");
    if (!tokens || *tokens < 0) return bad;
    chunk.usage = {.completion_tokens = *tokens};
    if (const json* const details = Find(*usage, "prompt_tokens_details"))
      chunk.usage->cached_tokens = IntegerOf(*details, "cached_tokens");
  }
  return chunk;
}

std::string ErrorMessageOf(std::string_view body) {
  const json object = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const std::string message = ErrorOf(object);
  return message.empty() ? Printable(body, kShownBytes) : message;
}

}  // namespace coppice::cli
