#include "tokenizer/test_fixtures.h"

namespace coppice {
namespace {

Result<std::string> Render(const std::string& source, const std::vector<ChatMessage>& messages = {{"user", "Hello"}},
                           bool prompt = true) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(messages, {.bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = prompt});
}

TEST(ChatTemplate, RendersAsJinja2) {
  const auto cases = nlohmann::json::parse(ReadFixture("chat_templates.json"));
  ASSERT_GT(cases.size(), 50u);
  for (const auto& item : cases) {
    std::vector<ChatMessage> messages;
    for (const auto& message : item["messages"]) messages.push_back({message["role"], message["content"]});
    const std::string source = item["template"];
    const auto rendered = Render(source, messages, item["add_generation_prompt"]);
    if (item.contains("error")) {
      ASSERT_FALSE(rendered.ok()) << source << "\njinja2 says: " << item["error"] << "\nrendered: " << *rendered;
      EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument) << rendered.status().ToString();
      EXPECT_NE(rendered.status().message().find("chat template"), std::string::npos);
    } else {
      ASSERT_TRUE(rendered.ok()) << source << "\n" << rendered.status().ToString();
      EXPECT_EQ(*rendered, item["text"].get<std::string>()) << source;
    }
  }
}

TEST(ChatTemplate, RaisedMessagesReachTheCaller) {
  const auto rendered = Render("{{ raise_exception('Conversation roles must alternate') }}");
  ASSERT_FALSE(rendered.ok());
  EXPECT_EQ(rendered.status().ToString(),
            "INVALID_ARGUMENT: the chat template refuses these messages: Conversation roles must alternate");
}

TEST(ChatTemplate, WhatIsNotInTheSubsetIsNamedWithItsPosition) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% macro f() %}{% endmacro %}", "line 2, column 4: block 'macro'"},
      {"{{ 'x' | wordwrap }}", "line 1, column 10: filter 'wordwrap'"},
      {"{{ 1 is divisibleby 3 }}", "line 1, column 9: test 'divisibleby'"},
      {"{{ cycler('a') }}", "line 1, column 4: function 'cycler'"},
      {"{{ 'a'.zfill(3) }}", "line 1, column 8: method 'zfill'"},
      {"{{ 2 ** 3 }}", "line 1, column 6: operator '**'"},
      {"{% for x in [] recursive %}{% endfor %}", "line 1, column 16: 'recursive'"},
      {"{{ [1][0](2) }}", "line 1, column 10: calling a value"},
      {"{{ 99999999999999999999 }}", "line 1, column 4: the number"},
  };
  for (const auto& [source, part] : cases) {
    const auto parsed = ChatTemplate::Parse(source);
    ASSERT_FALSE(parsed.ok()) << source;
    EXPECT_EQ(parsed.status().code(), StatusCode::kUnimplemented) << parsed.status().ToString();
    EXPECT_NE(parsed.status().message().find(part), std::string::npos) << parsed.status().ToString();
  }
}

std::string Repeat(const std::string& unit, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += unit;
  return text;
}

TEST(ChatTemplate, HostileTemplatesMeetLimits) {
  const int deep = 100'000;
  const std::string hostile[] = {
      "{{ " + Repeat("(", deep) + "1" + Repeat(")", deep) + " }}",
      "{{ " + Repeat("[", 500) + Repeat("]", 500) + " }}",
      "{{ " + Repeat("not ", deep) + "1 }}",
      "{{ 1" + Repeat("+1", deep) + " }}",
      "{{ x" + Repeat(".a", deep) + " }}",
      "{{ x" + Repeat("|trim", deep) + " }}",
      Repeat("{% if 1 %}", deep) + Repeat("{% endif %}", deep),
      "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(t='aaaaaaaa') %}{% for i in range(100) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
      "{% set ns = namespace(t=[1]) %}{% for i in range(100) %}{% set ns.t = ns.t + ns.t %}{% endfor %}",
      "{% set ns = namespace(t=[]) %}{% for i in range(1000) %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.t }}",
      "{{ range(1000000000) | list | length }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ 9223372036854775807 * 2 }}",
  };
  for (const std::string& source : hostile) {
    const auto rendered = Render(source);
    EXPECT_FALSE(rendered.ok()) << source.substr(0, 100);
  }
}

TEST(ChatTemplate, LongValidTemplatesPass) {
  EXPECT_EQ(*Render(Repeat("{% if messages %}x{% endif %}", 5000)), Repeat("x", 5000));
  EXPECT_EQ(*Render("{{ 0" + Repeat("+1", 300) + " }}"), "300");
  EXPECT_EQ(*Render("{% set a = namespace(b=1) %}{% set a.c = a %}{{ a.c.b }}{{ a }}"), "1<Namespace>");  // a cycle, and no leak
}

TEST(ChatTemplate, InvalidUtf8InMessagesPassesThrough) {
  EXPECT_EQ(*Render("{{ messages[0].content | trim }}|{{ messages[0].content | length }}|{{ messages[0].content | upper }}",
                    {{"user", " a\xFF\xE2\x82 "}}),
            "a\xFF\xE2\x82|5| A\xFF\xE2\x82 ");
}

}  // namespace
}  // namespace coppice
