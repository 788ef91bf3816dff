#include <map>

#include "tests/support/work_growth.h"
#include "tokenizer/testing/test_fixtures.h"

namespace coppice {
namespace {

Result<std::string> Render(const std::string& source, const std::vector<ChatMessage>& messages = {{"user", "Hello"}},
                           bool prompt = true) {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  Result<RenderedChat> chat =
      (*parsed)->Render(messages, {.bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = prompt});
  if (!chat.ok()) return chat.status();
  return std::move(chat->prompt.text);
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

TEST(ChatTemplate, PublishedTemplatesRenderAsJinja2) {
  const auto data = nlohmann::ordered_json::parse(ReadFixture("template_renderings.json"));
  std::map<std::string, int> texts;
  for (const auto& item : data["cases"]) {
    const bool is_own = item.contains("source");
    const std::string name = is_own ? item["source"] : item["template"], conversation = item["conversation"],
                      variables = item["variables"];
    SCOPED_TRACE(name + ", " + conversation + ", " + variables);
    std::vector<ChatMessage> messages;
    for (const auto& message : data["conversations"][conversation])
      messages.push_back({.role = message["role"], .content = "", .fields = message.dump()});
    const auto parsed = ChatTemplate::Parse(is_own ? name : ReadFixture("templates/" + name));
    if (is_own && !parsed.ok()) {
      EXPECT_TRUE(item.contains("error")) << parsed.status().ToString();
      continue;
    }
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    const auto rendered = (*parsed)->Render(messages, {.bos_token = "<s>",
                                                       .eos_token = "</s>",
                                                       .add_generation_prompt = item["add_generation_prompt"],
                                                       .fields = data["variables"][variables].dump()});
    if (item.contains("error")) {
      EXPECT_FALSE(rendered.ok()) << "jinja2 says: " << item["error"] << "\nrendered: " << rendered->prompt.text;
    } else {
      ASSERT_TRUE(rendered.ok()) << rendered.status().ToString();
      EXPECT_EQ(rendered->prompt.text, item["text"].get<std::string>());
      if (!is_own) ++texts[name];
    }
  }
  EXPECT_GE(texts.size(), 20u);  // each renders something
}

TEST(ChatTemplate, FieldsAndVariablesMustBeJsonObjects) {
  const auto parsed = ChatTemplate::Parse("{{ messages[0].name }}{{ n }}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)->Render({{"user", "", R"({"name": "x"})"}}, {.fields = R"({"n": 3})"})->prompt.text, "x3");
  std::string deep = "0";
  for (int i = 0; i < 200; ++i) deep = "{\"a\":" + deep + "}";
  for (const std::string& wrong : {std::string("[]"), std::string("{"), std::string("nope"), deep, std::string(R"({"a": 1e999})"),
                                   std::string(R"({"a": 18446744073709551615})")}) {
    EXPECT_EQ((*parsed)->Render({{"user", "", wrong}}, {}).status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ((*parsed)->Render({{"user", ""}}, {.fields = wrong}).status().code(), StatusCode::kInvalidArgument) << wrong;
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
      {"a\n{% autoescape true %}{% endautoescape %}", "line 2, column 4: block 'autoescape'"},
      {"{{ 'x' | wordwrap }}", "line 1, column 10: filter 'wordwrap'"},
      {"{{ 1 is escaped }}", "line 1, column 9: test 'escaped'"},
      {"{{ cycler('a') }}", "line 1, column 4: function 'cycler'"},
      {"{{ 'a'.encode() }}", "line 1, column 8: method 'encode'"},
      {"{% call range(3) %}{% endcall %}", "line 1, column 9: a call block"},
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

const std::string kDoubled = "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}";

std::string ManyVariables() {
  std::string source;
  for (int i = 0; i < 5000; ++i) source += "{% set variable_" + std::to_string(i) + " = 1 %}";
  return source;
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
      // Shared values: what is written, compared or searched grows as 2^n.
      kDoubled + "{{ ns.l }}",
      kDoubled + "{{ ns.l | tojson }}",
      kDoubled + "{{ ns.l | tojson(indent=16) }}",
      kDoubled + "{{ ns.l | string | length }}",
      kDoubled + "{{ [ns.l] | join }}",
      kDoubled + "{{ ns.l ~ '' }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ a == ns.l }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ a != ns.l }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ a in [ns.l] }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ a is equalto ns.l }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ [a] | select('in', [ns.l]) | list }}",
      "{% set ns = namespace(l={'a': 1}) %}{% for i in range(60) %}{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l | "
      "tojson }}",
      // Work without output.
      "{% set a = range(99999) | list %}{% for i in range(99999) %}{% if i in a %}{% endif %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in range(99999) %}{% if a == a + [] %}{% endif %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a[::-1] %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | map('string') | list %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | select('odd') | list %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | join(',') %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | last %}{% endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(20) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(99999) %}"
      "{% if 'b' in ns.s %}{% endif %}{% endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(18) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(99) %}"
      "{% if (ns.s ~ 'b') in (ns.s ~ ns.s) %}{% endif %}{% endfor %}",  // naive search is quadratic
      "{% set ns = namespace(s='a ') %}{% for i in range(18) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{% for i in range(99) %}"
      "{% set b = ns.s.split() %}{% endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(20) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ [ns.s, ns.s, ns.s, ns.s] "
      "| map('upper') "
      "| map('replace', 'A', 'bbbbbbbbbb') | map('trim', 'b') | join | length }}",
      "{% set ns = namespace(s='ab') %}{% for i in range(30) %}{% set ns.s = ns.s.replace('b', 'bb') %}{% endfor %}{{ ns.s }}",
      "{% for i in range(99999) %}{% set ns = namespace(a=1, b=2, c=3) %}{% endfor %}",
      // Macros: recursion without end, in breadth, and through arguments.
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
      "{% macro f(a) %}{{ a ~ a }}{% endmacro %}{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = f(ns.s) %}{% "
      "endfor %}",
      "{% macro f() %}{% for i in range(99999) %}{% continue %}{% endfor %}{% endmacro %}{% for i in range(99999) %}{{ f() }}{% "
      "endfor %}",
      "{% set x = range(99999) | list %}{% macro f(a=x | list) %}{% endmacro %}{% for i in x %}{{ f() }}{% endfor %}",
      "{{ [[1, 2]] | tojson(separators=['" + Repeat("a", 4000) +
          "', ':']) }}{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set "
          "ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson(separators=['" +
          Repeat("a", 4000) + "', ':']) }}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      // Sorting, and lists of keys.
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | sort %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | sort(reverse=true, attribute='a,b,c') %}{% endfor %}",
      "{% set a = ['" + Repeat("a", 50'000) + "b', '" + Repeat("a", 50'000) +
          "c'] * 1000 %}{% for i in a %}{% set b = a | sort | "
          "length %}{% endfor %}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ [a, ns.l, a] | sort }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ [a, ns.l] | max }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ a < ns.l }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ [a].index(ns.l) }}",
      kDoubled + "{% set a = ns.l %}" + kDoubled + "{{ [a].count(ns.l) }}",
      "{% set ns = namespace(l=(1, 1)) %}{% for i in range(60) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ [ns.l, 1] | unique | "
      "list }}",
      kDoubled + "{{ '%s' | format(ns.l) }}",
      kDoubled + "{{ '%r' % ns.l }}",
      kDoubled + "{{ '{}'.format(ns.l) }}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | unique | list %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | groupby('x') %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | batch(1) | list %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | sum %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | min %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a | reverse | first %}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{{ a.index(-1) }}{% endfor %}",
      "{% set a = range(99999) | list %}{% for i in a %}{% set b = a.count(-1) %}{% endfor %}",
      "{{ [1] | batch(9000000000000000000, 0) | list }}",
      "{{ [1] | slice(9000000000000000000) | list }}",
      // Numbers and texts that an operand makes long.
      "{{ 9 ** 99 }}",
      "{{ 9 ** 9223372036854775807 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ 'ab' * 9223372036854775807 }}",
      "{{ [1] * 9223372036854775807 }}",
      "{{ ([1] * 4000000000000000000) | length }}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '%99999999999999999999d' % 1 }}",
      "{{ '%.999999999f' % 1 }}",
      "{{ '%*d' % (1000000000, 1) }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ '{:.999999999f}'.format(1) }}",
      "{{ '{:{}}'.format(1, 1000000000) }}",
      "{{ '" + Repeat("{", deep) + "'.format(1) }}{{ 1 + }}",
      "{{ '{" + Repeat("{", deep) + Repeat("}", deep) + "}'.format(1) }}{{ nope.x }}",
      "{{ '{0" + Repeat("[0]", deep / 2) + "}'.format([1]) }}{{ nope.x }}",
      "{{ 'a' | center(9223372036854775807) }}",
      "{{ 'a'.ljust(9223372036854775807) }}",
      "{{ 'a'.zfill(9223372036854775807) }}",
      "{{ 'a' | indent(9223372036854775807, true) }}",
      "{{ (Repeat * 9) | indent }}{{ ('a\n' * 100000) | indent('" + Repeat("a", 10'000) + "') }}",
      "{{ ('a' * 100000) | replace('', '" + Repeat("b", 10'000) + "') }}",
      "{{ '" + Repeat("a", 10'000) + "'.join('a' * 100000) }}",
      "{% set a = 'a' * 100000 %}{% for i in range(99999) %}{% set b = a.rfind('b') %}{% endfor %}",
      "{% set a = 'a' * 1000000 %}{% set b = a ~ 'b' %}{% for i in range(99999) %}{% set c = (a ~ a).count(b) %}{% endfor %}",
      "{% set a = 'a ' * 100000 %}{% for i in range(99999) %}{% set b = a.rsplit(none, 99999) %}{% endfor %}",
      "{% set a = 'a\n' * 100000 %}{% for i in range(99999) %}{% set b = a.splitlines() %}{% endfor %}",
      "{% set a = 'a ' * 100000 %}{% for i in range(99999) %}{% set b = a | wordcount %}{% endfor %}",
      "{% set a = 'a' * 1000000 %}{% for i in range(99999) %}{% set b = a[0] %}{% endfor %}",
      "{{ {'a': 'é' * 1000000} | tojson(ensure_ascii=true) * 9 }}",
      // Filters within filters, and calls within calls.
      "{{ 'a' | map(*(['map'] * 99999)) | list }}",
      "{{ 'a' | map(*(['map'] * 1500)) | list }}",
      "{% macro f() %}{% call f() %}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}{% endcall %}",
      "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}{% macro g(n) %}{% if n > 0 %}{% call f() %}{{ g(n - 1) }}{% "
      "endcall %}"
      "{% endif %}{% endmacro %}{{ g(60) }}",
      "{% macro f() %}{{ varargs | length }}{% endmacro %}{% for i in range(99999) %}{{ f(*range(99999)) }}{% endfor %}",
      "{% for i in range(99999) %}{% macro f() %}{% endmacro %}{% endfor %}{% for i in range(99999) %}{{ 1 }}{% endfor %}",
      Repeat("{% filter upper %}", deep) + Repeat("{% endfilter %}", deep),
      Repeat("{% with a = 1 %}", deep) + Repeat("{% endwith %}", deep),
      "{% for " + Repeat("(", deep) + "a" + Repeat(")", deep) + " in [] %}{% endfor %}",
      "{% raw %}" + Repeat("{% endraw", deep),
      "{% for i in 'a' %}" + Repeat("{% for j in range(99999) %}", 40) + Repeat("{% endfor %}", 41),
      ManyVariables() + "{% for i in range(99999) %}{{ none_such }}{% endfor %}",
      "{{ {" + Repeat("'aaaaaaaaaa': 1, ", 240) + "} }}" + Repeat("{{ {'a': range(99999) | list} }}", 100),
  };
  for (const std::string& source : hostile) {
    const double begin = testing::ThreadCpuSeconds();
    const auto rendered = Render(source);
    const double seconds = testing::ThreadCpuSeconds() - begin;
    EXPECT_FALSE(rendered.ok()) << source.substr(0, 300);
    EXPECT_LT(seconds, 0.1 * testing::kBuildSlowdown) << source.substr(0, 300);
    EXPECT_LT(rendered.status().message().size(), 300u) << rendered.status().ToString().substr(0, 1000);
  }
}

TEST(ChatTemplate, RawBlocksWithoutEndAreReadOnce) {
  // 256 KB that might begin an end at each of its bytes.
  const double begin = testing::ThreadCpuSeconds();
  EXPECT_FALSE(ChatTemplate::Parse("{% raw %}" + Repeat("{%", 120'000)).ok());
  EXPECT_LT(testing::ThreadCpuSeconds() - begin, 0.1 * testing::kBuildSlowdown);
}

TEST(ChatTemplate, SortingIsStableAndTakesNotANumber) {
  EXPECT_EQ(*Render("{% set nan = 'nan' | float %}{{ [3, nan, 1, nan, 2] | sort | length }}"), "5");
  EXPECT_EQ(*Render("{% for p in (range(1000) | list) | sort(reverse=true) | batch(500) %}{{ p[0] }} {% endfor %}"), "999 499 ");
}

// Jinja's text has an address here, or the variable of a loop is missing; these are what is sensible.
TEST(ChatTemplate, FunctionsKeepTheVariablesOfTheirDefinition) {
  EXPECT_EQ(*Render("{% set ns = namespace(f=none) %}{% for i in [7] %}{% macro f() %}{{ i }}{% endmacro %}{% set ns.f = f %}"
                    "{% endfor %}{% set g = ns.f %}{{ g() }}"),
            "7");
  EXPECT_EQ(*Render("{% macro f() %}{% set ns.c = caller %}{% endmacro %}{% set ns = namespace(c=none) %}{% for i in [3] %}"
                    "{% call f() %}{{ i }}{% endcall %}{% endfor %}{% set c = ns.c %}{{ c() }}"),
            "3");
  EXPECT_EQ(*Render("{{ [1] | map('string') }}{{ 'x'.upper }}"), "<generator><function>");
}

TEST(ChatTemplate, LongConversationsAreNotHostile) {
  // The usual work of templates on each message, with 20 MB in one message and with 20,000 messages.
  const std::string source =
      "{% for m in messages %}{% set c = m.content | trim %}{% if '</think>' in c %}{% set c = "
      "c.split('</think>')[-1].lstrip('\n') %}"
      "{% endif %}{{ '<|' + m.role + '|>' + c + '<|end|>' }}{% endfor %}";
  const auto one = Render(source, {{"user", Repeat("word ", 4'000'000) + "</think>" + Repeat("more ", 100'000)}});
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  EXPECT_EQ(one->size(), 500'000u - 1 + std::string("<|user|><|end|>").size());
  const auto many = Render(source, std::vector<ChatMessage>(20'000, {"user", "hello"}));
  ASSERT_TRUE(many.ok()) << many.status().ToString();
  EXPECT_EQ(many->size(), 20'000 * std::string("<|user|>hello<|end|>").size());
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
