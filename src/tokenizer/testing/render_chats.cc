// render_chats TEMPLATE: renders chats through a chat template, for comparison with jinja2 (tests/tokenizer). Not installed.
// Layer: tokenizer.
//
// Standard input has a JSON object a line: "messages", "variables", "add_generation_prompt", and "as": "given" for the template on
// what is given, "chat" for ChatRenderer. Standard output gets a line for each: {"text", "values": [[begin, end], ...]}, in bytes,
// or
// {"error"}.
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "tokenizer/chat_renderer.h"
#include "tokenizer/tokenizer.h"

namespace coppice {
namespace {

using nlohmann::ordered_json;

// A tokenizer with the tokens that a renderer asks for, and no others.
class Marks final : public Tokenizer {
 public:
  Marks() : Tokenizer({.bos_id = 0, .eos_ids = {1}}) {}
  Result<std::vector<int32_t>> Encode(std::string_view, const EncodeOptions&) const override { return std::vector<int32_t>(); }
  std::string_view TokenBytes(int32_t id, bool) const override { return id == 0 ? "<s>" : "</s>"; }
};

Result<RenderedChat> Render(const std::string& source, const ordered_json& request) {
  std::vector<ChatMessage> messages;
  for (const ordered_json& message : request["messages"]) {
    const ordered_json content = message.value("content", ordered_json());
    ordered_json fields = message;
    fields.erase("role");
    if (content.is_string()) fields.erase("content");
    messages.push_back({.role = message["role"],
                        .content = content.is_string() ? content.get<std::string>() : std::string(),
                        .fields = fields.dump()});
  }
  const std::string variables = request["variables"].dump();
  const bool prompts = request["add_generation_prompt"];
  const Marks tokenizer;
  if (request["as"] == "chat") {
    COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ChatRenderer> renderer, ChatRenderer::Parse(source));
    return renderer->Render(messages, tokenizer, {.variables = variables, .add_generation_prompt = prompts});
  }
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ChatTemplate> parsed, ChatTemplate::Parse(source));
  return parsed->Render(messages, {.bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = prompts, .fields = variables});
}

int Main(int count, char** arguments) {
  if (count != 2) return std::cerr << "usage: render_chats TEMPLATE < REQUESTS\n", 2;
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  for (std::string line; std::getline(std::cin, line);) {
    const Result<RenderedChat> chat = Render(source, ordered_json::parse(line));
    ordered_json answer;
    if (chat.ok()) {
      answer = {{"text", chat->prompt.text}, {"values", ordered_json::array()}};
      for (const ByteRange& range : chat->prompt.values) answer["values"].push_back({range.begin, range.end});
    } else {
      answer = {{"error", chat.status().ToString()}};
    }
    std::cout << answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace coppice

int main(int count, char** arguments) { return coppice::Main(count, arguments); }
