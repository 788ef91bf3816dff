// Input: a line of a batch file. Parsed and encoded with the tokenizer of the fixtures and SmolLM2's chat template.
#include "openai/batch_input.h"
#include "tests/fuzz/fixture_tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice;
using namespace coppice::openai;
using fuzz::Require;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int32_t kMaxContext = 4096;
  static const std::unique_ptr<Tokenizer> tokenizer = fuzz::FixtureTokenizer();
  static const OpenAiRequestParser parser(tokenizer.get(), kMaxContext);
  BatchErrors::Error error;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::optional<BatchLine> line = ParseBatchLine(text, 1, parser, &error);
  if (!line) {
    Require(!error.status.ok(), "a line refused without an error");
    return 0;
  }
  Require(!line->custom_id.empty() && line->id.size() == 32, "a request without an id");
  Result<std::vector<int32_t>> ids = parser.Encode(line->request);
  if (!ids.ok()) return 0;
  for (const int32_t id : *ids) Require(id >= 0, "a negative token id");
  parser.SetPrompt(*std::move(ids), &line->request);
  Require(ParseBatchLine(text, 1, parser, &error)->id == line->id, "equal lines with two ids");
  return 0;
}
