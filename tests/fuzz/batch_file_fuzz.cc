// Input: what an earlier run left, answers and errors, and the file of a batch's requests, with a NUL byte between each two. Every
// line of the file is a request that is to be computed, one that was answered, or an error.
#include <spdlog/spdlog.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "openai/batch_input.h"
#include "openai/batch_output.h"
#include "tests/fuzz/fixture_tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice;
using namespace coppice::openai;
using fuzz::Require;

namespace {

constexpr int32_t kMaxContext = 4096;
constexpr int64_t kMaxRequests = 64;
constexpr size_t kMaxLine = 2048;

// A folder of this process, removed at its end.
class Folder {
 public:
  Folder() {
    std::string path = (std::filesystem::temp_directory_path() / "coppice-fuzz-XXXXXX").string();
    Require(mkdtemp(path.data()) != nullptr, "cannot make a folder");
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  // A file of it with this text; absent where the text is.
  std::string Write(const char* name, const std::string& text) const {
    const std::string path = path_ / name;
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    if (text.empty()) return path;
    std::ofstream file(path, std::ios::binary);
    Require(static_cast<bool>(file.write(text.data(), std::ssize(text)).flush()), "cannot write a file");
    return path;
  }

 private:
  std::filesystem::path path_;
};

int64_t LinesOf(const std::string& text) {
  int64_t lines = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += text.find_first_not_of(" \t\r", begin) < end;
    begin = end + 1;
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  spdlog::set_level(spdlog::level::off);
  static const std::unique_ptr<Tokenizer> tokenizer = fuzz::FixtureTokenizer();
  static const OpenAiRequestParser parser(tokenizer.get(), kMaxContext);
  const auto [output_text, errors_text, input_text] = fuzz::SplitInput<3>(data, size);
  const std::string path = folder.Write("input", input_text.empty() ? "\n" : input_text);
  Result<BatchOutput> output = BatchOutput::Open(folder.Write("output", output_text));
  if (!output.ok()) {
    fuzz::RequireOneLine(output.status());
    return 0;
  }
  Result<BatchErrors> errors = BatchErrors::Resume(folder.Write("errors", errors_text));
  if (!errors.ok()) {
    fuzz::RequireOneLine(errors.status());
    return 0;
  }
  const Result<BatchInput> input =
      BatchInput::Read(path, parser, *output, &*errors, {.max_requests = kMaxRequests, .max_line_bytes = kMaxLine});
  if (!input.ok()) {
    fuzz::RequireOneLine(input.status());
    return 0;
  }
  const int64_t known = std::ssize(input->jobs()) + input->num_finished_before();
  if (errors_text.empty()) {
    Require(known + errors->count() == LinesOf(input_text), "a line that is neither a request nor an error");
  } else {
    Require(known <= LinesOf(input_text), "more requests than lines");
  }
  for (size_t i = 0; i < input->jobs().size(); ++i) {
    const BatchJob& job = input->jobs()[i];
    Require(job.offset >= 0 && job.size > 0 && job.offset + job.size <= std::ssize(input_text), "a request outside the file");
    BatchErrors::Error refused;
    const Result<std::optional<BatchLine>> line = input->Load(job, parser, &refused);
    Require(line.ok() && *line && (*line)->id == job.id, "a line that is another one when it is read again");
    Require(std::ranges::equal((*line)->request.request.prompt_ids, input->Tokens(job)), "another prompt than was tokenized");
    if (i > 0)
      Require(!std::ranges::lexicographical_compare(input->Tokens(job), input->Tokens(input->jobs()[i - 1])),
              "requests out of order");
  }
  // A server that starts again reads what this one reported.
  const int64_t reported = errors->count();
  const Result<BatchErrors> again = BatchErrors::Resume(errors->path());
  Require(again.ok() && again->count() == reported, "errors that cannot be read again");
  return 0;
}
