// Bytes of a rendered chat that come from messages: their origins, through everything that templates do with texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tokenizer/jinja/traced_text.h"
#include "tokenizer/testing/test_fixtures.h"

namespace coppice {
namespace {

using jinja::TracedText;
using ::testing::HasSubstr;

// The bytes that come from values in brackets.
std::string Marked(const ChatPrompt& chat) {
  std::string marked = chat.text;
  for (size_t i = chat.values.size(); i-- > 0;) {
    marked.insert(chat.values[i].end, "]");
    marked.insert(chat.values[i].begin, "[");
  }
  return marked;
}

std::string Trace(const std::string& source, const std::string& content = "Ab c", const std::string& fields = "") {
  const auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status().ToString();
  const auto chat = (*parsed)->Render({{"user", content, fields}}, {.bos_token = "<s>"});
  return chat.ok() ? Marked(chat->prompt) : chat.status().ToString();
}

// `expression` with c for the content.
std::string TraceExpression(const std::string& expression, const std::string& content = "Ab c") {
  return Trace("{% set c = messages[0].content %}{{ " + expression + " }}", content);
}

TEST(TracedText, PartsKeepTheOriginsOfTheirBytes) {
  TracedText text = "ab";
  text.Append(TracedText(std::string("cd"), 1));
  text.AppendOwn("ef");
  text.Append(TracedText(std::string("gh"), 1));
  text.Append(TracedText(std::string("ij"), 2));
  const auto origins = [](const TracedText& t) {
    std::string shown;
    for (const auto& [begin, end, source] : t.origins())
      shown += t.bytes().substr(begin, end - begin) + std::to_string(source) + " ";
    return shown;
  };
  EXPECT_EQ(origins(text), "cd1 gh1 ij2 ");
  for (size_t begin = 0; begin <= text.size(); ++begin) {
    for (size_t length = 0; begin + length <= text.size(); ++length) {
      const TracedText part = text.Part(std::string_view(text.bytes()).substr(begin, length));
      EXPECT_EQ(part.bytes(), text.bytes().substr(begin, length));
      std::string expected(length, '.'), found(length, '.');
      for (const auto& origin : text.origins()) {
        for (size_t i = origin.begin; i < origin.end; ++i) {
          if (i >= begin && i < begin + length) expected[i - begin] = static_cast<char>('0' + origin.source);
        }
      }
      for (const auto& origin : part.origins()) {
        for (size_t i = origin.begin; i < origin.end; ++i) found[i] = static_cast<char>('0' + origin.source);
      }
      EXPECT_EQ(found, expected);
    }
  }
  EXPECT_EQ(origins(TracedText::Repeated(text.Part(std::string_view(text.bytes()).substr(1, 2)), 2)), "c1 c1 ");
  text.Append(text);
  EXPECT_EQ(origins(text), "cd1 gh1 ij2 cd1 gh1 ij2 ");
}

TEST(TracedText, ThroughExpressions) {
  const std::pair<const char*, const char*> cases[] = {
      {"'x' + c + 'y'", "x[Ab c]y"},
      {"'x' ~ c ~ 1", "x[Ab c]1"},
      {"c[1:3]", "[b ]"},
      {"('x' ~ c)[:2]", "x[A]"},
      {"(c ~ 'x')[::-1]", "x[c bA]"},
      {"c[0] ~ c[-1]", "[Ac]"},
      {"(c ~ '-') * 2", "[Ab c]-[Ab c]-"},
      {"'%s-%5s-%r' % (c, c[0], c[0])", "[Ab c]-    [A]-'[A]'"},
      {"'{}/{:>3}/{0}'.format(c, c) if false else '{}/{:>3}'.format(c, c[0])", "[Ab c]/  [A]"},
      {"c.format() ~ c % ()", "[Ab cAb c]"},
      {"'<%s>' | format(c)", "<[Ab c]>"},
      {"[c, 'x'] | join(', ')", "[Ab c], x"},
      {"c | join('-')", "[A]-[b]-[ ]-[c]"},
      {"'-'.join([c, 'x'])", "[Ab c]-x"},
      {"c | upper ~ c | lower ~ c | title ~ c | capitalize", "[AB Cab cAb CAb c]"},
      {"('x' ~ c) | capitalize ~ ('x' ~ c) | title ~ ('x' ~ c).swapcase()", "X[ab c]X[ab C]X[aB C]"},
      {"c | replace('b', 'x')", "[A]x[ c]"},
      {"'a-b' | replace('-', c)", "a[Ab c]b"},
      {"c | replace('', '.', 2)", ".[A].[b c]"},
      {"('  ' ~ c ~ '  ') | trim", "[Ab c]"},
      {"c.strip('A') ~ c.removeprefix('A') ~ c.removesuffix('c')", "[b cb cAb ]"},
      {"c.split(' ') | join('/')", "[Ab]/[c]"},
      {"c.rsplit(none, 1)[0] ~ c.splitlines()[0] ~ c.partition('b')[2]", "[AbAb c c]"},
      {"c.partition(' ')[1] ~ '|' ~ c.rpartition('b')[0]", " |[A]"},
      {"c | tojson", "\"[Ab c]\""},
      {"{'k': c, c: 1} | tojson", R"({"k": "[Ab c]", "[Ab c]": 1})"},
      {"[c]", "['[Ab c]']"},
      {"{c: c}", "{'[Ab c]': '[Ab c]'}"},
      {"(c ~ '\"\n') | tojson", "\"[Ab c]\\\"\\n\""},
      {"c | indent(2, true)", "  [Ab c]"},
      {"c | truncate(3, true, '', 0) ~ c | center(8)", "[Ab ]  [Ab c]  "},
      {"c.ljust(6, '*') ~ c.rjust(6, '*') ~ c[0].zfill(3)", "[Ab c]****[Ab c]00[A]"},
      {"('<' ~ c) | escape", "&lt;[Ab c]"},
      {"c | default('x') ~ (none or c) ~ (c if c else '')", "[Ab cAb cAb c]"},
      {"c | list | first ~ c | list | last ~ c | reverse", "[Acc bA]"},
      {"[c] | map('upper') | first ~ ({'a': c} | items | first)[1]", "[AB CAb c]"},
      {"({c: 1}.keys() | list)[0] ~ ({c: 1} | dictsort | first)[0]", "[Ab cAb c]"},
      {"[{'r': c}] | map(attribute='r') | first ~ [{'r': c}] | groupby('r') | map(attribute='grouper') | first", "[Ab cAb c]"},
      {"dict([(c, 1)]) | first ~ dict(a=c)['a']", "[Ab cAb c]"},
      {"c | string ~ c | safe ~ c.upper().lower()", "[Ab cAb cab c]"},
      {"c | length ~ c.find('c')", "43"},
      {"messages[0].role ~ bos_token", "user<s>"},
  };
  for (const auto& [expression, expected] : cases) EXPECT_EQ(TraceExpression(expression), expected) << expression;
}

TEST(TracedText, ThroughStatements) {
  EXPECT_EQ(Trace("{% set t %}<{{ messages[0].content }}>{% endset %}{{ t }}"), "<[Ab c]>");
  EXPECT_EQ(Trace("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[0].content) | upper }}"), "<[AB C]>");
  EXPECT_EQ(Trace("{% filter upper %}x{{ messages[0].content }}{% endfilter %}"), "X[AB C]");
  EXPECT_EQ(Trace("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}{{ messages[0].content }}{% endcall %}"), "<[Ab c]>");
  EXPECT_EQ(
      Trace(
          "{% set ns = namespace(t='') %}{% for c in messages[0].content %}{% set ns.t = ns.t + c + '.' %}{% endfor %}{{ ns.t }}"),
      "[A].[b].[ ].[c].");
  EXPECT_EQ(Trace("{% for m in messages %}{{ m }}{% endfor %}", "a", R"({"k": [{"n": "v"}]})"),
            "{'role': 'user', 'content': '[a]', '[k]': [{'[n]': '[v]'}]}");
}

TEST(TracedText, RolesThatTheTemplateKnowsAreItsOwnWords) {
  const auto trace = [](const std::string& source, const std::string& role) {
    return Marked((*ChatTemplate::Parse(source))->Render({{role, ""}}, {})->prompt);
  };
  EXPECT_EQ(trace("<|{{ messages[0].role }}|>", "assistant"), "<|assistant|>");
  EXPECT_EQ(trace("<|{{ messages[0].role }}|>", "critic"), "<|[critic]|>");
  EXPECT_EQ(trace("{% if messages[0]['role'] in ['critic'] %}<|{{ messages[0].role }}|>{% endif %}", "critic"), "<|critic|>");
}

TEST(TracedText, SaysWhatIsShown) {
  const auto parsed = ChatTemplate::Parse("{{ messages[1].content | trim }}:{{ messages[0].tool_calls | tojson }}");
  const auto chat =
      (*parsed)->Render({{"assistant", "x", R"({"tool_calls": [{"name": "f"}]})"}, {"user", " a "}, {"user", "b"}}, {});
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(chat->prompt.text, "a:[{\"name\": \"f\"}]");
  EXPECT_FALSE(chat->messages[0].has_content);
  EXPECT_TRUE(chat->messages[0].has_calls);
  EXPECT_TRUE(chat->messages[1].has_content);
  EXPECT_EQ(chat->messages[1].content_end, 1u);
  EXPECT_FALSE(chat->messages[2].has_content);
  EXPECT_FALSE(chat->has_tools);
}

}  // namespace
}  // namespace coppice
