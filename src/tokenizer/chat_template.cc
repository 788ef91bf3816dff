#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

class JinjaChatTemplate final : public ChatTemplate {
 public:
  explicit JinjaChatTemplate(jinja::Body body) : body_(std::move(body)) {}

  Result<std::string> Render(const std::vector<ChatMessage>& messages, const Variables& variables) const override {
    jinja::List list;
    for (const ChatMessage& message : messages) list.push_back(jinja::Dict{{"role", message.role}, {"content", message.content}});
    try {
      // The names that Hugging Face transformers defines; tools and documents are none without them.
      return jinja::Interpreter({{"messages", std::move(list)},
                                 {"add_generation_prompt", variables.add_generation_prompt},
                                 {"bos_token", variables.bos_token},
                                 {"eos_token", variables.eos_token},
                                 {"tools", jinja::None{}},
                                 {"documents", jinja::None{}}})
          .Run(body_);
    } catch (const jinja::Error& error) {
      return error.status;
    }
  }

 private:
  jinja::Body body_;
};

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(const std::string& source) {
  try {
    return std::unique_ptr<ChatTemplate>(new JinjaChatTemplate(jinja::ParseTemplate(source)));
  } catch (const jinja::Error& error) {
    return error.status;
  }
}

}  // namespace coppice
