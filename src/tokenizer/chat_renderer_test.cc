#include "tokenizer/chat_renderer.h"

#include <gmock/gmock.h>

#include "tokenizer/testing/test_fixtures.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Tokenizer& AnyTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = CreateTokenizer(FixtureData()).value();
  return *tokenizer;
}

std::unique_ptr<ChatRenderer> Renderer(const std::string& source) {
  auto parsed = ChatRenderer::Parse(source);
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  return *std::move(parsed);
}
std::unique_ptr<ChatRenderer> Published(const std::string& name) { return Renderer(ReadFixture("templates/" + name + ".jinja")); }

std::string Text(const ChatRenderer& renderer, const std::vector<ChatMessage>& messages,
                 const ChatRenderer::Options& options = {}) {
  const auto chat = renderer.Render(messages, AnyTokenizer(), options);
  return chat.ok() ? chat->prompt.text : chat.status().ToString();
}

constexpr char kCall[] =
    R"("tool_calls": [{"id": "call12345", "type": "function", "function": {"name": "look_up", "arguments": {"city": "Rome"}}}])";
std::string Fields(const std::string& content) { return "{" + content + (content.empty() ? "" : ", ") + kCall + "}"; }
const ChatMessage kResult = {"tool", "cloudy", R"({"tool_call_id": "call12345"})"};

TEST(ChatRenderer, EmptyContentOfACallIsOneWhateverItIsCalled) {
  for (const std::string name :
       {"qwen3", "qwen2.5-instruct", "phi-3.5-instruct", "mistral-nemo-instruct", "mistral-7b-instruct-v0.2", "smollm2-instruct",
        "gemma-3-it", "gemma-2-it", "llama-3.2-instruct", "deepseek-r1-distill-qwen", "zephyr"}) {
    SCOPED_TRACE(name);
    const auto renderer = Published(name);
    const auto text = [&](const std::string& content) {
      std::vector<ChatMessage> messages = {{"user", "Weather?"}, {"assistant", "", Fields(content)}, {"user", "Well?"}};
      if (name == "mistral-nemo-instruct") messages.pop_back();  // a result would have to come first
      return Text(*renderer, messages);
    };
    const std::string absent = text("");
    EXPECT_THAT(absent, HasSubstr("Weather?"));
    EXPECT_THAT(absent, Not(HasSubstr("None")));
    EXPECT_EQ(text(R"("content": null)"), absent);
    EXPECT_EQ(text(R"("content": "")"), absent);
  }
}

TEST(ChatRenderer, TheFormIsTheOneThatTheTemplateWasWrittenFor) {
  const std::vector<ChatMessage> called = {{"user", "Weather?"}, {"assistant", "", Fields("")}, kResult};
  // Content is none where the template asks for it: this one writes an empty turn otherwise.
  EXPECT_THAT(Text(*Published("deepseek-r1-distill-qwen"), called), Not(HasSubstr("<｜Assistant｜><｜end▁of▁sentence｜>")));
  // Calls beside content that is none, text else.
  const auto either = Renderer(
      "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %};"
      "{% endfor %}");
  EXPECT_EQ(Text(*either, called), "Weather?;look_up;cloudy;");
  // Arguments that are written as a text.
  const auto concatenates = Renderer(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}"
      "{% endfor %};{% endfor %}");
  EXPECT_EQ(Text(*concatenates, called), "Weather?;look_up {\"city\": \"Rome\"};cloudy;");
  // Content in parts.
  const auto parts = Renderer(
      "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }};{% endif %}{% endfor %}{% endfor %}");
  EXPECT_EQ(Text(*parts, {{"user", "a"}, {"assistant", "b"}}), "a;b;");
}

TEST(ChatRenderer, OptionalFieldsOfToolsAreThereWhereTheTemplateReadsThem) {
  const std::string tools = R"({"tools": [{"type": "function", "function": {"name": "f"}},
      {"type": "function", "function": {"name": "g", "parameters": {"properties": {"x": {}}}}}]})";
  const auto reads = Renderer(
      "{% for t in tools %}{{ t.function.name + ':' + t.function.description + ':' }}"
      "{% for name, p in t.function.parameters.properties.items() %}{{ name + p.description }}{% endfor %};{% endfor %}"
      "{{ messages[0].content }}");
  EXPECT_EQ(Text(*reads, {{"user", "hi"}}, {.variables = tools}), "f::;g::x;hi");
  // A tool that the template writes whole stays as it was sent.
  const auto writes = Renderer("{{ tools[0] | tojson }}{{ messages[0].content }}");
  EXPECT_EQ(Text(*writes, {{"user", "hi"}}, {.variables = tools}), R"({"type": "function", "function": {"name": "f"}}hi)");
}

TEST(ChatRenderer, RolesReachTheModelOrAreErrors) {
  const std::vector<ChatMessage> developer = {{"developer", "Be brief."}, {"user", "hi"}};
  const std::vector<ChatMessage> system = {{"system", "Be brief."}, {"user", "hi"}};
  for (const char* name :
       {"qwen3", "phi-3.5-instruct", "smollm2-instruct", "mistral-nemo-instruct", "llama-3.2-instruct", "gemma-3-it"}) {
    EXPECT_EQ(Text(*Published(name), developer), Text(*Published(name), system)) << name;
    EXPECT_THAT(Text(*Published(name), developer), HasSubstr("Be brief.")) << name;
  }
  EXPECT_THAT(Text(*Published("gemma-2-it"), developer), HasSubstr("System role not supported"));
  const auto knows = Renderer(
      "{% for m in messages %}{% if m.role in ['developer', 'critic'] %}<{{ m.role }}>{% endif %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(Text(*knows, developer), "<developer>Be brief.hi");
  EXPECT_EQ(Text(*knows, {{"critic", "Bah."}}), "<critic>Bah.");

  EXPECT_EQ(Text(*Published("smollm2-instruct"), {{"user", "hi"}, {"wizard", "Abracadabra"}}),
            "INVALID_ARGUMENT: messages[1].role is \"wizard\", expected one of system, developer, user, assistant, tool");
  EXPECT_THAT(Text(*knows, {{"wizard", "Abracadabra"}}), HasSubstr("tool, critic"));
  EXPECT_THAT(Text(*Published("phi-3.5-instruct"), {{"user", "hi"}, {"assistant", "", Fields("")}, kResult}),
              HasSubstr("leaves out messages[2], whose role is \"tool\""));
  EXPECT_EQ(Text(*Published("phi-3.5-instruct"), {{"user", " \n"}, {"assistant", "<think>x</think>"}, {"user", ""}}).substr(0, 8),
            "<|user|>");
}

TEST(ChatRenderer, ASystemMessageThatIsSaidInOtherTurnsIsNoError) {
  const auto mistral = Published("mistral-nemo-instruct");
  const std::vector<ChatMessage> called = {{"system", "Be brief."}, {"user", "Weather?"}, {"assistant", "", Fields("")}, kResult};
  EXPECT_THAT(Text(*mistral, called), HasSubstr("cloudy"));
  const auto first_only =
      Renderer("{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_THAT(Text(*first_only, {{"system", "a"}, {"user", "b"}, {"system", "c"}}), HasSubstr("leaves out messages[2]"));
}

TEST(ChatRenderer, APromptMayEndWithinTheLastMessage) {
  const auto smollm = Published("smollm2-instruct");
  const std::vector<ChatMessage> begun = {{"system", "s"}, {"user", "Name one."}, {"assistant", "One is "}};
  const std::string whole = Text(*smollm, begun, {.add_generation_prompt = false});
  const std::string expected = whole.substr(0, whole.rfind("One is ") + 7);
  EXPECT_EQ(Text(*smollm, begun, {.continue_final_message = true}), expected);
  EXPECT_EQ(Text(*smollm, begun, {.add_generation_prompt = false}), expected + "<|im_end|>\n");
  const auto chat = smollm->Render(begun, AnyTokenizer(), {.continue_final_message = true});
  EXPECT_EQ(chat->prompt.values.back().end, expected.size());
  EXPECT_THAT(Text(*Published("gemma-3-it"), {{"user", "a"}, {"assistant", "b "}}, {.continue_final_message = true}),
              ::testing::EndsWith("<start_of_turn>model\nb"));  // as the template trims it
  EXPECT_THAT(Text(*smollm, {{"user", ""}}, {.continue_final_message = true}), HasSubstr("no content of the last message"));
}

TEST(ChatRenderer, LimitsAreMetOnce) {
  const auto endless = Renderer(
      "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}{% for m in messages %}{{ m.content }}{% "
      "endfor %}");
  EXPECT_THAT(Text(*endless, {{"user", "hi"}}), HasSubstr("RESOURCE_EXHAUSTED"));
}

}  // namespace
}  // namespace coppice
