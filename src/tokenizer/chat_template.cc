#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

// Bounds on a rendering's cost, in units of Meter (about a nanosecond): a hostile template ends within 50 ms; a long conversation
// adds the usual work of templates, some copies of every byte and some hundred steps a message.
constexpr size_t kWork = 24'000'000, kWorkPerByte = 64, kWorkPerMessage = 100'000;
constexpr size_t kMaxSource = 256 << 10;  // bytes: the longest templates in use have a tenth of it

using jinja::TracedText;
using nlohmann::ordered_json;

// Sources of what a rendering is given: three of each message, and two of the variables.
enum class Part : uint8_t { kContent, kCalls, kOther };
constexpr int32_t kParts = 3;
constexpr TracedText::Source kVariables = std::numeric_limits<TracedText::Source>::max(), kTools = kVariables - 1;
TracedText::Source SourceOf(size_t message, Part part) {
  return static_cast<TracedText::Source>(message) * kParts + static_cast<TracedText::Source>(part);
}

jinja::Value ValueOf(const ordered_json& json, TracedText::Source source) {
  switch (json.type()) {
    case ordered_json::value_t::null: return jinja::None{};
    case ordered_json::value_t::boolean: return json.get<bool>();
    case ordered_json::value_t::string: return TracedText(json.get<std::string>(), source);
    case ordered_json::value_t::number_float: return json.get<double>();
    case ordered_json::value_t::number_integer: return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) break;
      return json.get<int64_t>();
    case ordered_json::value_t::array: {
      jinja::List list;
      for (const ordered_json& item : json) list.push_back(ValueOf(item, source));
      return list;
    }
    case ordered_json::value_t::object: {
      jinja::Dict dict;
      for (const auto& [key, value] : json.items()) dict.emplace_back(TracedText(key, source), ValueOf(value, source));
      return dict;
    }
    default: break;
  }
  throw jinja::Error{
      InvalidArgument("a chat template's variables have the number " + json.dump() + "; expected 64 bits with a sign")};
}

// The fields of a JSON object. Bounded depth: a parser without recursion would let values of any depth through to ValueOf.
ordered_json ParseFields(const std::string& text, const char* what) {
  if (text.empty()) return ordered_json::object();
  bool too_deep = false;
  const auto check_depth = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    too_deep |= depth > jinja::Value::kMaxNesting;
    return !too_deep;
  };
  ordered_json object = ordered_json::parse(text, check_depth, /*allow_exceptions=*/false);
  if (too_deep || !object.is_object())
    throw jinja::Error{InvalidArgument(std::string(what) + " are no JSON object of at most " +
                                       std::to_string(jinja::Value::kMaxNesting) + " levels")};
  return object;
}

void Set(const char* name, jinja::Value value, jinja::Dict* dict) {
  jinja::Meter unbounded(SIZE_MAX);
  jinja::SetField(dict, name, std::move(value), unbounded);
}

// Null: there is none.
const jinja::Value* FieldOf(const jinja::Dict& dict, std::string_view name) {
  jinja::Meter unbounded(SIZE_MAX);
  return jinja::FindField(dict, name, unbounded);
}
const jinja::Value* FieldOf(const jinja::Value& value, std::string_view name) {
  return value.IsDict() ? FieldOf(value.AsDict(), name) : nullptr;
}

// Puts the fields into `dict`, in place of those that it has. Clients may send many: what is new is not looked up.
void Merge(const ordered_json& fields, const std::function<TracedText::Source(const std::string& key)>& source_of,
           jinja::Dict* dict) {
  const auto own = static_cast<std::ptrdiff_t>(dict->size());
  for (const auto& [key, json] : fields.items()) {
    const TracedText::Source source = source_of(key);
    jinja::Value value = ValueOf(json, source);
    const auto end = dict->begin() + own;
    const auto found = std::find_if(dict->begin(), end, [&key](const auto& field) { return field.first.bytes() == key; });
    if (found == end) {
      dict->emplace_back(TracedText(key, source), std::move(value));
    } else {
      found->second = std::move(value);
    }
  }
}

bool IsGiven(const jinja::Value* value) { return value != nullptr && !value->Is<jinja::None>(); }

// `value`, a dict, with `change` made to its field `name`, where it has one.
template <class Change>  // Value(const Value&)
jinja::Value WithField(const jinja::Value& value, const char* name, Change change) {
  const jinja::Value* field = FieldOf(value, name);
  if (field == nullptr) return value;
  jinja::Dict changed = value.AsDict();
  Set(name, change(*field), &changed);
  return changed;
}

template <class Change>
jinja::Value Each(const jinja::Value& list, Change change) {
  if (!list.IsIndexed()) return list;
  jinja::List changed;
  for (const jinja::Value& item : list.AsList()) changed.push_back(change(item));
  return changed;
}

jinja::Value WithArgumentTexts(const jinja::Value& calls) {
  const auto as_text = [](const jinja::Value& arguments) -> jinja::Value {
    jinja::Meter unbounded(SIZE_MAX);
    return arguments.IsString() ? arguments : arguments.ToJson({}, unbounded);
  };
  return Each(calls, [&](const jinja::Value& call) {
    return WithField(call, "function", [&](const jinja::Value& f) { return WithField(f, "arguments", as_text); });
  });
}

// Gives `dict` a field that it lacks.
void SetDefault(const char* name, jinja::Value value, jinja::Dict* dict) {
  if (!IsGiven(FieldOf(*dict, name))) Set(name, std::move(value), dict);
}

jinja::Value CompleteSchema(const jinja::Value& schema) {
  jinja::Dict complete = schema.IsDict() ? schema.AsDict() : jinja::Dict();
  SetDefault("type", "object", &complete);
  SetDefault("properties", jinja::Dict(), &complete);
  SetDefault("required", jinja::List(), &complete);
  return WithField(complete, "properties", [](const jinja::Value& properties) -> jinja::Value {
    if (!properties.IsDict()) return properties;
    jinja::Dict described = properties.AsDict();
    for (auto& [name, property] : described) {
      if (!property.IsDict()) continue;
      jinja::Dict fields = property.AsDict();
      SetDefault("type", "any", &fields);
      SetDefault("description", "", &fields);
      property = std::move(fields);
    }
    return described;
  });
}

jinja::Value CompleteTools(const jinja::Value& tools) {
  return Each(tools, [](const jinja::Value& tool) {
    return WithField(tool, "function", [](const jinja::Value& function) -> jinja::Value {
      if (!function.IsDict()) return function;
      jinja::Dict complete = function.AsDict();
      SetDefault("description", "", &complete);
      const jinja::Value* const parameters = FieldOf(function, "parameters");
      Set("parameters", CompleteSchema(parameters == nullptr ? jinja::Value() : *parameters), &complete);
      return complete;
    });
  });
}

void ApplyForm(const ChatForm& form, jinja::Dict* message) {
  const jinja::Value* const found = FieldOf(*message, "tool_calls");
  const jinja::Value calls = found == nullptr ? jinja::Value() : *found;
  const jinja::Value* const given = FieldOf(*message, "content");
  jinja::Value content = IsGiven(given) ? *given : jinja::Value("");
  const bool is_empty = content.IsString() && content.AsText().empty();
  if (is_empty && form.no_empty_content && calls.Truthy()) {
    content = jinja::None{};
  } else if (content.IsString() && form.content_parts) {
    content = jinja::List{jinja::Dict{{"type", "text"}, {"text", content}}};
  }
  Set("content", std::move(content), message);
  if (form.argument_texts && calls.Truthy()) Set("tool_calls", WithArgumentTexts(calls), message);
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  explicit JinjaChatTemplate(jinja::Template parsed) : template_(std::move(parsed)) {}

  using ChatTemplate::Render;
  Result<RenderedChat> Render(const std::vector<ChatMessage>& messages, const Variables& variables) const override {
    size_t work = kWork + kWorkPerByte * variables.fields.size();
    if (messages.size() >= kTools / kParts) return ResourceExhausted("a chat has too many messages");
    try {
      jinja::List list;
      for (size_t i = 0; i < messages.size(); ++i) {
        const ChatMessage& message = messages[i];
        work += kWorkPerMessage + kWorkPerByte * (message.role.size() + message.content.size() + message.fields.size());
        list.push_back(MessageOf(message, i, variables.form));
      }
      // The names that Hugging Face transformers defines; tools and documents are none by default.
      jinja::Dict names = {{"messages", std::move(list)},
                           {"add_generation_prompt", variables.add_generation_prompt},
                           {"bos_token", TracedText(variables.bos_token)},
                           {"eos_token", TracedText(variables.eos_token)},
                           {"tools", jinja::None{}},
                           {"documents", jinja::None{}}};
      const auto source_of = [](const std::string& key) { return key == "tools" ? kTools : kVariables; };
      Merge(ParseFields(variables.fields, "a chat template's variables"), source_of, &names);
      if (variables.form && variables.form->complete_tools) {
        Set("tools", CompleteTools(*FieldOf(names, "tools")), &names);
      }
      return Shown(jinja::Interpreter(std::move(names), work).Run(template_.body), messages.size());
    } catch (const jinja::Error& error) {
      return error.status;
    }
  }

  bool Mentions(std::string_view name) const override { return template_.words.contains(name); }
  std::vector<std::string> Roles() const override { return {template_.roles.begin(), template_.roles.end()}; }
  bool AsksForNone() const override { return template_.asks_for_none; }

 private:
  jinja::Value MessageOf(const ChatMessage& message, size_t index, const std::optional<ChatForm>& form) const {
    const bool is_known = IsStandardRole(message.role) || template_.roles.contains(message.role);
    jinja::Dict dict = {{"role", is_known ? TracedText(message.role) : TracedText(message.role, SourceOf(index, Part::kOther))},
                        {"content", TracedText(message.content, SourceOf(index, Part::kContent))}};
    const auto source_of = [index](const std::string& key) {
      return SourceOf(index, key == "content" ? Part::kContent : key == "tool_calls" ? Part::kCalls : Part::kOther);
    };
    Merge(ParseFields(message.fields, "a message's fields"), source_of, &dict);
    if (form) ApplyForm(*form, &dict);
    return dict;
  }

  static RenderedChat Shown(const TracedText& text, size_t num_messages) {
    RenderedChat chat{.prompt = {.text = text.bytes()}, .messages = std::vector<RenderedChat::Message>(num_messages)};
    std::vector<ByteRange>& values = chat.prompt.values;
    for (const TracedText::Origin& origin : text.origins()) {
      if (!values.empty() && values.back().end == origin.begin) {
        values.back().end = origin.end;
      } else {
        values.push_back({origin.begin, origin.end});
      }
      chat.has_tools |= origin.source == kTools;
      if (origin.source >= kTools) continue;
      RenderedChat::Message& message = chat.messages[static_cast<size_t>(origin.source / kParts)];
      const auto part = static_cast<Part>(origin.source % kParts);
      message.has_calls |= part == Part::kCalls;
      if (part != Part::kContent) continue;
      message.has_content = true;
      message.content_end = origin.end;
    }
    return chat;
  }

  jinja::Template template_;
};

}  // namespace

bool IsStandardRole(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  return std::ranges::find(kRoles, role) != std::end(kRoles);
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
