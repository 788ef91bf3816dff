#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

// What a rendering may cost, in units of Meter (about a nanosecond): a hostile template ends within 50 ms, and a long conversation
// buys what templates do with it, some copies of every byte and some hundred steps a message.
constexpr size_t kWork = 24'000'000, kWorkPerByte = 64, kWorkPerMessage = 100'000;
constexpr size_t kMaxSource = 256 << 10;  // bytes: the longest templates in use have a tenth of it

class JinjaChatTemplate final : public ChatTemplate {
 public:
  explicit JinjaChatTemplate(jinja::Body body) : body_(std::move(body)) {}

  using ChatTemplate::Render;
  Result<std::string> Render(const std::vector<ChatMessage>& messages, const Variables& variables) const override {
    jinja::List list;
    size_t work = kWork;
    for (const ChatMessage& message : messages) {
      work += kWorkPerMessage + kWorkPerByte * (message.role.size() + message.content.size());
      list.push_back(jinja::Dict{{"role", message.role}, {"content", message.content}});
    }
    try {
      // The names that Hugging Face transformers defines; tools and documents are none without them.
      return jinja::Interpreter({{"messages", std::move(list)},
                                 {"add_generation_prompt", variables.add_generation_prompt},
                                 {"bos_token", variables.bos_token},
                                 {"eos_token", variables.eos_token},
                                 {"tools", jinja::None{}},
                                 {"documents", jinja::None{}}},
                                work)
          .Run(body_);
    } catch (const jinja::Error& error) {
      return error.status;
    }
  }

 private:
  jinja::Body body_;
};

}  // namespace

Result<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer) const {
  const Tokenizer::Info& info = tokenizer.info();
  const auto text_of = [&](int32_t id) {
    return id < 0 ? std::string() : std::string(tokenizer.TokenBytes(id, /*keep_special=*/true));
  };
  return Render(messages,
                {.bos_token = text_of(info.bos_id), .eos_token = text_of(info.eos_ids.empty() ? -1 : info.eos_ids.front())});
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
