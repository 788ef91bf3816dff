// Which beginnings of a batch's prompts are worth keeping, and the folder where they are kept.
#include "openai/job_prefixes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

namespace coppice::openai {
namespace {

using Prompt = std::vector<int32_t>;
namespace fs = std::filesystem;

Prompt Repeated(int32_t token, size_t count) { return Prompt(count, token); }

Prompt operator+(Prompt first, const Prompt& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// {begin, end, tokens} of each.
std::vector<std::vector<int64_t>> Found(std::vector<Prompt> prompts) {
  std::ranges::sort(prompts);
  std::vector<std::vector<int64_t>> found;
  for (const SharedPrefix& p : FindSharedPrefixes(prompts.size(), [&](size_t i) { return std::span<const int32_t>(prompts[i]); }))
    found.push_back({static_cast<int64_t>(p.begin), static_cast<int64_t>(p.end), p.tokens});
  return found;
}

TEST(FindSharedPrefixes, ASystemPromptOfAll) {
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < 5; ++i) prompts.push_back(Repeated(1, 200) + Repeated(10 + i, 50));
  EXPECT_THAT(Found(prompts), testing::ElementsAre(std::vector<int64_t>{0, 5, 200}));
}

TEST(FindSharedPrefixes, DocumentsBelowASystemPromptSaveMore) {
  std::vector<Prompt> prompts;
  for (int32_t document = 0; document < 2; ++document) {
    for (int32_t question = 0; question < 4; ++question)
      prompts.push_back(Repeated(1, 130) + Repeated(10 + document, 1000) + Repeated(100 + question, 5));
  }
  EXPECT_THAT(Found(prompts), testing::ElementsAre(std::vector<int64_t>{0, 4, 1130}, std::vector<int64_t>{4, 8, 1130}));
}

TEST(FindSharedPrefixes, EqualPromptsAndPromptsWithinPrompts) {
  EXPECT_THAT(Found({Repeated(1, 300), Repeated(1, 300), Repeated(1, 300)}), testing::ElementsAre(std::vector<int64_t>{0, 3, 300}));
  EXPECT_THAT(Found({Repeated(1, 300), Repeated(1, 400), Repeated(1, 500)}), testing::ElementsAre(std::vector<int64_t>{0, 3, 300}));
}

TEST(FindSharedPrefixes, WhatIsNotWorthAFile) {
  EXPECT_THAT(Found({}), testing::IsEmpty());
  EXPECT_THAT(Found({Repeated(1, 5000)}), testing::IsEmpty());
  EXPECT_THAT(Found({Repeated(1, 300), Repeated(1, 300)}), testing::IsEmpty());                    // saves 300 tokens once
  EXPECT_THAT(Found(std::vector<Prompt>(1000, Repeated(1, 50))), testing::IsEmpty());              // short
  EXPECT_THAT(Found({Repeated(1, 900), Repeated(2, 900), Repeated(3, 900)}), testing::IsEmpty());  // nothing in common
}

TEST(FindSharedPrefixes, AChainOfPromptsNeedsNoDeepStack) {
  std::vector<Prompt> prompts;
  for (size_t i = 1; i < 3000; ++i) prompts.push_back(Repeated(1, i));
  EXPECT_THAT(Found(prompts), testing::SizeIs(testing::Le(1u)));
}

TEST(ResumeFolderTest, RemovesItsOwnFilesAlone) {
  const fs::path folder = fs::path(testing::TempDir()) / "resume-folder-test";
  fs::remove_all(folder);
  fs::create_directory(folder);
  const std::string output = folder / "out.jsonl", name(32, 'a');
  std::ofstream(output) << "";
  {
    ResumeFolder first(output);
    EXPECT_FALSE(first.was_there());
    std::ofstream(first.PathOf(name)) << "kv";
    std::ofstream(first.PathOf(name) + ".tmp12-0") << "half";
  }
  std::ofstream(output + ".resume/notes.txt") << "mine";
  ResumeFolder second(output);
  EXPECT_TRUE(second.was_there());
  EXPECT_TRUE(fs::exists(second.PathOf(name)));
  second.Remove();
  EXPECT_EQ(std::distance(fs::directory_iterator(output + ".resume"), {}), 1);
  fs::remove(output + ".resume/notes.txt");
  ResumeFolder(output).Remove();
  EXPECT_FALSE(fs::exists(output + ".resume"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace coppice::openai
