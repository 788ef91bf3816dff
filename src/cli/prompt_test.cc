#include "cli/prompt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "tokenizer/tokenizer.h"

namespace coppice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One id per byte, <s> = 256 in front where asked for.
class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(std::string chat_template) : Tokenizer({.bos_id = 256, .chat_template = std::move(chat_template)}) {}
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<int32_t> ids;
    if (options.add_special) ids.push_back(256);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string_view TokenBytes(int32_t id, bool keep_special) const override { return id == 256 && keep_special ? "<s>" : ""; }
};

RunOptions Text(std::string text) {
  RunOptions options;
  options.prompt = std::move(text);
  return options;
}
RunOptions File(std::string path) {
  RunOptions options;
  options.prompt_file = std::move(path);
  return options;
}
RunOptions Ids(std::vector<int32_t> ids) {
  RunOptions options;
  options.prompt_ids = std::move(ids);
  return options;
}

TEST(ReadPromptText, TextFileAndIds) {
  EXPECT_EQ(**ReadPromptText(Text("hello")), "hello");
  EXPECT_EQ(*ReadPromptText(Ids({1, 2})), std::nullopt);

  const std::string path = ::testing::TempDir() + "prompt.txt";
  std::ofstream(path, std::ios::binary) << "line\r\nend\n";
  EXPECT_EQ(**ReadPromptText(File(path)), "line\r\nend");
}

// One line break at the end, of Unix or of Windows, and only that of a file.
TEST(ReadPromptText, FinalNewlines) {
  const std::string path = ::testing::TempDir() + "prompt.txt";
  const std::pair<const char*, const char*> cases[] = {{"a", "a"},       {"a\n", "a"},           {"a\r\n", "a"},
                                                       {"a\n\n", "a\n"}, {"a\r\n\r\n", "a\r\n"}, {"\na", "\na"},
                                                       {"a \n", "a "},   {"a\r", "a\r"}};
  for (const auto& [text, prompt] : cases) {
    std::ofstream(path, std::ios::binary) << text;
    RunOptions options = File(path);
    EXPECT_EQ(**ReadPromptText(options), prompt);
    options.keep_newline = true;
    EXPECT_EQ(**ReadPromptText(options), text);
    EXPECT_EQ(**ReadPromptText(Text(text)), text);
  }
  std::ofstream(path, std::ios::binary) << "\n";
  EXPECT_THAT(ReadPromptText(File(path)).status().message(), HasSubstr("the prompt is empty"));
}

TEST(ReadPromptText, ErrorsSayWhatToDo) {
  EXPECT_THAT(ReadPromptText(Text("")).status().message(), HasSubstr("the prompt is empty"));
  EXPECT_THAT(ReadPromptText(Ids({})).status().message(), HasSubstr("--prompt-ids is empty"));
  EXPECT_THAT(ReadPromptText(File("/nonexistent/p")).status().message(), HasSubstr("cannot read /nonexistent/p: No such file"));
  EXPECT_THAT(ReadPromptText(File(::testing::TempDir())).status().message(), HasSubstr("cannot read"));
}

TEST(EncodePrompt, PlainTextGetsTheModelsSpecialTokens) {
  EXPECT_THAT(*EncodePrompt(RunOptions(), "ab", std::make_unique<ByteTokenizer>("").get()), ElementsAre(256, 'a', 'b'));
}

TEST(EncodePrompt, ChatRendersTheTemplateWhichWritesTheSpecialTokens) {
  const ByteTokenizer tokenizer(
      "{{ bos_token }}{% for message in messages %}{{ message['role'] }}:{{ message['content'] }};{% endfor %}");
  RunOptions options;
  options.chat = true;
  options.system = "S";
  const Result<std::vector<int32_t>> ids = EncodePrompt(options, "U", &tokenizer);
  ASSERT_TRUE(ids.ok()) << ids.status().ToString();
  EXPECT_EQ(std::string(ids->begin(), ids->end()), "<s>system:S;user:U;");
}

TEST(EncodePrompt, ModelsWithoutTokenizerOrTemplate) {
  EXPECT_THAT(*EncodePrompt(Ids({3, 4}), std::nullopt, nullptr), ElementsAre(3, 4));
  EXPECT_THAT(EncodePrompt(RunOptions(), "text", nullptr).status().message(), HasSubstr("--prompt-ids"));
  RunOptions chat;
  chat.chat = true;
  EXPECT_THAT(EncodePrompt(chat, "text", std::make_unique<ByteTokenizer>("").get()).status().message(),
              HasSubstr("no chat template"));
}

}  // namespace
}  // namespace coppice::cli
