#include <nlohmann/json.hpp>
#include <utility>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

// What a rendering may cost, in units of Meter (about a nanosecond): a hostile template ends within 50 ms, and a long conversation
// buys what templates do with it, some copies of every byte and some hundred steps a message.
constexpr size_t kWork = 24'000'000, kWorkPerByte = 64, kWorkPerMessage = 100'000;
constexpr size_t kMaxSource = 256 << 10;  // bytes: the longest templates in use have a tenth of it

using nlohmann::ordered_json;

jinja::Value ValueOf(const ordered_json& json) {
  switch (json.type()) {
    case ordered_json::value_t::null: return jinja::None{};
    case ordered_json::value_t::boolean: return json.get<bool>();
    case ordered_json::value_t::string: return json.get<std::string>();
    case ordered_json::value_t::number_float: return json.get<double>();
    case ordered_json::value_t::number_integer: return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) break;
      return json.get<int64_t>();
    case ordered_json::value_t::array: {
      jinja::List list;
      for (const ordered_json& item : json) list.push_back(ValueOf(item));
      return list;
    }
    case ordered_json::value_t::object: {
      jinja::Dict dict;
      for (const auto& [key, value] : json.items()) dict.emplace_back(key, ValueOf(value));
      return dict;
    }
    default: break;
  }
  throw jinja::Error{
      InvalidArgument("a chat template's variables have the number " + json.dump() + "; expected 64 bits with a sign")};
}

// Puts the fields of a JSON object into `dict`, in place of those that it has. Bounded depth: a parser without recursion would let
// values of any depth through to ValueOf.
void MergeFields(const std::string& text, const char* what, jinja::Dict* dict) {
  if (text.empty()) return;
  bool too_deep = false;
  const auto check_depth = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    too_deep |= depth > jinja::Value::kMaxNesting;
    return !too_deep;
  };
  const ordered_json object = ordered_json::parse(text, check_depth, /*allow_exceptions=*/false);
  if (too_deep || !object.is_object())
    throw jinja::Error{InvalidArgument(std::string(what) + " are no JSON object of at most " +
                                       std::to_string(jinja::Value::kMaxNesting) + " levels")};
  jinja::Meter unbounded(SIZE_MAX);
  for (const auto& [key, value] : object.items()) jinja::SetField(dict, key, ValueOf(value), unbounded);
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  explicit JinjaChatTemplate(jinja::Body body) : body_(std::move(body)) {}

  using ChatTemplate::Render;
  Result<std::string> Render(const std::vector<ChatMessage>& messages, const Variables& variables) const override {
    size_t work = kWork + kWorkPerByte * variables.fields.size();
    try {
      jinja::List list;
      for (const ChatMessage& message : messages) {
        work += kWorkPerMessage + kWorkPerByte * (message.role.size() + message.content.size() + message.fields.size());
        jinja::Dict dict = {{"role", message.role}, {"content", message.content}};
        MergeFields(message.fields, "a message's fields", &dict);
        list.push_back(std::move(dict));
      }
      // The names that Hugging Face transformers defines; tools and documents are none without them.
      jinja::Dict names = {{"messages", std::move(list)},      {"add_generation_prompt", variables.add_generation_prompt},
                           {"bos_token", variables.bos_token}, {"eos_token", variables.eos_token},
                           {"tools", jinja::None{}},           {"documents", jinja::None{}}};
      MergeFields(variables.fields, "a chat template's variables", &names);
      return jinja::Interpreter(std::move(names), work).Run(body_);
    } catch (const jinja::Error& error) {
      return error.status;
    }
  }

 private:
  jinja::Body body_;
};

}  // namespace

Result<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer,
                                         std::string fields) const {
  const Tokenizer::Info& info = tokenizer.info();
  const auto text_of = [&](int32_t id) {
    return id < 0 ? std::string() : std::string(tokenizer.TokenBytes(id, /*keep_special=*/true));
  };
  return Render(messages, {.bos_token = text_of(info.bos_id),
                           .eos_token = text_of(info.eos_ids.empty() ? -1 : info.eos_ids.front()),
                           .fields = std::move(fields)});
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(const std::string& source) {
  if (source.size() > kMaxSource) {
    return InvalidArgument("the chat template has " + std::to_string(source.size()) + " bytes; expected at most " +
                           std::to_string(kMaxSource));
  }
  try {
    return std::unique_ptr<ChatTemplate>(new JinjaChatTemplate(jinja::ParseTemplate(source)));
  } catch (const jinja::Error& error) {
    return error.status;
  }
}

}  // namespace coppice
