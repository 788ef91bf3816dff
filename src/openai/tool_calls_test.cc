// Calls of tools in outputs, as models write them: what is found, what stays text, and that no cut of the output into pieces
// matters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "openai/tool_call_parser.h"
#include "tests/support/work_growth.h"

namespace coppice::openai {
namespace {

using ::testing::MatchesRegex;

ToolCalls Tools(ToolCallStyle style) {
  ToolCalls tools;
  tools.names = {"weather", "time"};
  tools.format.style = style;
  if (style == ToolCallStyle::kHermes) tools.format.begin = "<tool_call>", tools.format.end = "</tool_call>";
  if (style == ToolCallStyle::kMistral) tools.format.begin = "[TOOL_CALLS]";
  if (style == ToolCallStyle::kLlama) tools.format.begin = "<|python_tag|>", tools.format.arguments_key = "parameters";
  return tools;
}

// An output as a client puts it together: the content, then a line "name(arguments)" a call.
class Client {
 public:
  void Take(const ParsedOutput& output) {
    content_ += output.content;
    for (const ParsedOutput::Call& call : output.calls) {
      if (call.begins) {
        EXPECT_EQ(call.index, static_cast<int32_t>(calls_.size()));
        calls_.push_back(call.name + "(");
      } else {
        EXPECT_TRUE(call.name.empty());
      }
      calls_.at(static_cast<size_t>(call.index)) += call.arguments;
    }
  }
  std::string ToString() const {
    std::string text = content_;
    for (const std::string& call : calls_) text += "\n" + call + ")";
    return text;
  }

 private:
  std::string content_;
  std::vector<std::string> calls_;
};

// The output whole, and in pieces of random lengths, which must make no difference.
std::string Parsed(const ToolCalls& tools, const std::string& text) {
  const auto parse = [&](auto&& next_length) {
    Client client;
    ToolCallParser parser(&tools);
    for (size_t begin = 0; begin < text.size();) {
      const size_t length = next_length();
      ParsedOutput output;
      parser.Push(std::string_view(text).substr(begin, length), &output);
      client.Take(output);
      begin += length;
    }
    ParsedOutput output;
    parser.Finish(&output);
    client.Take(output);
    return client.ToString();
  };
  const std::string whole = parse([&] { return text.size(); });
  std::mt19937 random(1);
  for (const size_t longest : {1, 3, 8}) {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(parse([&] { return 1 + random() % longest; }), whole) << text;
  }
  return whole;
}

struct Case {
  const char* output;
  const char* parsed;
};

TEST(ToolCallParser, Hermes) {
  const ToolCalls tools = Tools(ToolCallStyle::kHermes);
  const Case cases[] = {
      {"", ""},
      {"It is  sunny.\n\n", "It is  sunny.\n\n"},
      {"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
       "\nweather({\"city\": \"Rome\"})"},
      {"I look.\n<tool_call>{\"name\":\"weather\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": "
       "{\"zone\": [1, {\"a\": 2}]}}\n</tool_call>\n",
       "I look.\nweather({})\ntime({\"zone\": [1, {\"a\": 2}]})"},
      // Strings with braces, quotes and marks.
      {R"(<tool_call>{"name": "weather", "arguments": {"q": "a \"}]} \\", "m": "</tool_call>"}}</tool_call>)",
       "\nweather({\"q\": \"a \\\"}]} \\\\\", \"m\": \"</tool_call>\"})"},
      // The other order, another name of the arguments, members that were not asked for, names written with escapes.
      {R"(<tool_call>{"arguments": {"a": 1}, "name": "weather"}</tool_call>)", "\nweather({\"a\": 1})"},
      {R"(<tool_call>{"id": 7, "type": "function", "name": "we\u0061ther", "parameters": {"a": 1}, "x": [{}]}</tool_call>)",
       "\nweather({\"a\": 1})"},
      // Arguments that are a string, nothing, or no object; an unknown name is the caller's to see.
      {R"(<tool_call>{"name": "weather", "arguments": "{\"a\": \"b\"}"}</tool_call>)", "\nweather({\"a\": \"b\"})"},
      {R"(<tool_call>{"name": "weather", "arguments": null}</tool_call>)", "\nweather({})"},
      {R"(<tool_call>{"name": "weather"}</tool_call>)", "\nweather({})"},
      {R"(<tool_call>{"name": "weather", "arguments": [1,2] }</tool_call>)", "\nweather([1,2])"},
      {R"(<tool_call>{"name": "weather", "arguments": 12}</tool_call>)", "\nweather(12)"},
      {R"(<tool_call>{"name": "rain", "arguments": {}}</tool_call>)", "\nrain({})"},
      // Arguments that are no JSON are reported as they were written.
      {R"(<tool_call>{"name": "weather", "arguments": {city: Rome,}}</tool_call>)", "\nweather({city: Rome,})"},
      // No end mark, text behind a call, a mark alone.
      {"<tool_call>{\"name\": \"weather\", \"arguments\": {}}\n<tool_call>{\"name\": \"time\"}", "\nweather({})\ntime({})"},
      {"<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call> Wait.", " Wait.\nweather({})"},
      {"<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool Wait.", "</tool Wait.\nweather({})"},
      // No calls: half marks, a mark before something else, objects without a name.
      {"a <tool_cal", "a <tool_cal"},
      {"a < b <to <<tool_call c", "a < b <to <<tool_call c"},
      {"The mark <tool_call> begins a call", "The mark <tool_call> begins a call"},
      {"<tool_call>\n{\"arguments\": {\"a\": 1}}\n</tool_call>", "<tool_call>\n{\"arguments\": {\"a\": 1}}\n</tool_call>"},
      {R"(<tool_call>{"name": 5}</tool_call>)", R"(<tool_call>{"name": 5}</tool_call>)"},
      {R"(<tool_call>{"name": ""}</tool_call>)", R"(<tool_call>{"name": ""}</tool_call>)"},
      {R"(<tool_call>{name: "a"}</tool_call>)", R"(<tool_call>{name: "a"}</tool_call>)"},
      {R"(<tool_call>}{"name": "a"})", R"(<tool_call>}{"name": "a"})"},
      {"<tool_call><tool_call>{\"name\": \"time\"}", "<tool_call>\ntime({})"},
      // Cut off: before the call is known, within its arguments, behind it.
      {"Now <tool_call>\n{\"name\": \"wea", "Now <tool_call>\n{\"name\": \"wea"},
      {R"(<tool_call>{"name": "weather", "arguments": {"city": "Ro)", "\nweather({\"city\": \"Ro)"},
      {"<tool_call>{\"name\": \"time\"}\n</tool_", "\ntime({})"},
      {"<tool_call>{\"name\": \"time\"}</tool_call>\n<tool_call>\n", "\ntime({})"},
      {"<tool_call>{\"name\": \"time\"}</tool_call>\n<tool_call>\n{\"name\": \"wea", "\ntime({})"},
  };
  for (const auto& [output, parsed] : cases) EXPECT_EQ(Parsed(tools, output), parsed) << output;
}

TEST(ToolCallParser, Mistral) {
  const ToolCalls tools = Tools(ToolCallStyle::kMistral);
  const Case cases[] = {
      {R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}])", "\nweather({\"city\": \"Rome\"})"},
      {R"([TOOL_CALLS][{"name": "weather", "arguments": {}, "id": "a1b2c3d4e"}, {"name": "time", "arguments": {"z": "]"}}])",
       "\nweather({})\ntime({\"z\": \"]\"})"},
      {R"(So: [TOOL_CALLS]{"name": "time", "arguments": {}})", "So:\ntime({})"},
      {R"([TOOL_CALLS] none)", "[TOOL_CALLS] none"},
      {R"([TOOL_CALLS] [])", "[TOOL_CALLS] []"},
      {R"(a[0] = b[TOOL])", "a[0] = b[TOOL]"},
      {R"([TOOL_CALLS] [{"name": "time", "arguments": {}}, )", "\ntime({})"},
  };
  for (const auto& [output, parsed] : cases) EXPECT_EQ(Parsed(tools, output), parsed) << output;
}

TEST(ToolCallParser, Llama) {
  const ToolCalls tools = Tools(ToolCallStyle::kLlama);
  const Case cases[] = {
      {R"({"name": "weather", "parameters": {"city": "Rome"}})", "\nweather({\"city\": \"Rome\"})"},
      {"\n <|python_tag|> {\"type\": \"function\", \"name\": \"time\", \"parameters\": {}}", "\ntime({})"},
      {R"({"name": "time", "parameters": {}}; {"name": "weather", "parameters": {"a": 1}})", "\ntime({})\nweather({\"a\": 1})"},
      // JSON that an answer may be: nothing says that it is a call.
      {R"({"name": "Ann", "parameters": {"age": 5}})", R"({"name": "Ann", "parameters": {"age": 5}})"},
      {R"({"answer": {"name": "time"}})", R"({"answer": {"name": "time"}})"},
      {R"(I call {"name": "time", "parameters": {}})", R"(I call {"name": "time", "parameters": {}})"},
      {"<|python_tag|>search.call(query=\"a\")", "<|python_tag|>search.call(query=\"a\")"},
      {"<|py", "<|py"},
      {"  ", "  "},
      {R"({"name": "time", "parameters": {}} and so on)", "and so on\ntime({})"},
  };
  for (const auto& [output, parsed] : cases) EXPECT_EQ(Parsed(tools, output), parsed) << output;
}

TEST(ToolCallParser, OneCallWhereOneIsWanted) {
  ToolCalls tools = Tools(ToolCallStyle::kHermes);
  tools.parallel = false;
  EXPECT_EQ(Parsed(tools,
                   "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": 1}}</tool_call>\n<tool_call>{\"name\": "
                   "\"weather\", \"arguments\": {\"b\": 2}}</tool_call>"),
            "\ntime({\"a\": 1})");
}

TEST(ToolCallParser, TheFirstMarkMayBeInThePrompt) {
  ToolCalls tools = Tools(ToolCallStyle::kMistral);
  tools.begun = "[TOOL_CALLS]";
  EXPECT_EQ(Parsed(tools, R"([{"name": "time", "arguments": {}}])"), "\ntime({})");
}

TEST(ToolCallParser, WhatIsDecidedGoesOnAtOnce) {
  const ToolCalls tools = Tools(ToolCallStyle::kHermes);
  ToolCallParser parser(&tools);
  const auto push = [&](std::string_view text) {
    ParsedOutput output;
    parser.Push(text, &output);
    return output;
  };
  EXPECT_EQ(push("Hello").content, "Hello");
  EXPECT_EQ(push(" <b> <tool").content, " <b>");  // the rest may begin a call
  EXPECT_TRUE(push("_call>{\"name\": \"time\"").empty());
  const ParsedOutput opened = push(", \"arguments\": {\"a\"");
  ASSERT_EQ(opened.calls.size(), 1u);
  EXPECT_TRUE(opened.calls[0].begins);
  EXPECT_EQ(opened.calls[0].arguments, "{\"a\"");
  EXPECT_EQ(push(": 1").calls.at(0).arguments, ": 1");
}

TEST(ToolCallParser, WorkIsProportionalToTheOutput) {
  const auto parse = [](const std::string& text) {
    const ToolCalls tools = Tools(ToolCallStyle::kHermes);
    ToolCallParser parser(&tools);
    ParsedOutput output;
    for (const char c : text) parser.Push({&c, 1}, &output);
    parser.Finish(&output);
  };
  for (const std::string& begin : {std::string("\n"), std::string("<tool_call>"), std::string("<tool_call>{\"a\":")}) {
    const auto text = [&](int size) {
      std::string repeated = begin.size() > 12 ? begin + "\"" : "";
      while (static_cast<int>(repeated.size()) < size) repeated += begin.size() > 12 ? "x" : begin;
      return repeated;
    };
    EXPECT_LT(coppice::testing::WorkGrowth(20'000, text, parse), coppice::testing::kMaxProportionalGrowth) << begin;
  }
}

TEST(ToolCallId, IsWhatTemplatesTake) {
  std::set<std::string> ids;
  for (int32_t choice = 0; choice < 20; ++choice) {
    for (int32_t call = 0; call < 20; ++call) ids.insert(ToolCallId(ToolCallStyle::kMistral, "7", choice, call));
  }
  EXPECT_EQ(ids.size(), 400u);
  for (const std::string& id : ids) EXPECT_THAT(id, MatchesRegex("[0-9A-Za-z]{9}"));
  EXPECT_THAT(ToolCallId(ToolCallStyle::kHermes, "7", 0, 0), MatchesRegex("call_[0-9A-Za-z]{20}"));
  EXPECT_EQ(ToolCallId(ToolCallStyle::kLlama, "7", 1, 2), ToolCallId(ToolCallStyle::kLlama, "7", 1, 2));
}

}  // namespace
}  // namespace coppice::openai
