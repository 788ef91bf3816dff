// Input: a path and, behind a NUL byte, the body of a request to it: each route that takes JSON.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/json.h"
#include "openai/named_prefix.h"
#include "openai/ordered_parts.h"
#include "openai/request.h"
#include "openai/score_request.h"
#include "server/batch.h"
#include "server/record.h"
#include "tests/fuzz/fixture_tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

using namespace coppice;
using namespace coppice::openai;
using fuzz::Require;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int32_t kMaxContext = 4096;
constexpr int32_t kVocabSize = 1 << 17;  // of a model that has more tokens than its tokenizer

const Tokenizer& FixedTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = fuzz::FixtureTokenizer();
  return *tokenizer;
}

void RequireRefused(const BodyError& error) {
  fuzz::RequireOneLine(error.status);
  const bool nameless = error.status.message().starts_with("a field without a name");
  Require(error.param.empty() == nameless, "a refusal that names no field: " + error.status.message());
}

void RequireIds(const std::vector<int32_t>& ids) {
  Require(std::ranges::all_of(ids, [](int32_t id) { return id >= 0; }), "a negative token id");
}

// The bodies of prefixes "text", "salted" and "chat", whose tools some requests get.
std::shared_ptr<const NamedPrefix> FindPrefix(const std::string& name) {
  constexpr const char* kChat = R"({"messages": [{"role": "system", "content": "Brief."}],
      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]})";
  const char* const body = name == "text"     ? R"({"prompt": "Once upon"})"
                           : name == "salted" ? R"({"prompt": [1, 2, 3], "cache_salt": "s", "cache_private_begin": 1})"
                           : name == "chat"   ? kChat
                                              : nullptr;
  if (!body) return nullptr;
  BodyError error;
  return std::make_shared<const NamedPrefix>(ParseNamedPrefix(json::parse(body), &error).value());
}

void Generate(Endpoint endpoint, const OpenAiRequestParser& parser, const json& body, std::string_view text) {
  BodyError error;
  const auto ordered = ReadOrderedParts(endpoint, body, text, &error);
  if (!ordered) return RequireRefused(error);
  auto prompts = parser.ParseList(endpoint, body, &error, FindPrefix, ordered->tools_or_null(), ordered->schema);
  if (!prompts) {
    Require(endpoint != Endpoint::kResponses || !error.param.starts_with("messages"),
            "a place in another route's body: " + error.param);
    return RequireRefused(error);
  }
  Require(!prompts->empty() && prompts->size() <= 2048, "a request without prompts, or with too many");
  for (OpenAiRequest& prompt : *prompts) {
    Require(prompt.endpoint == endpoint, "another endpoint");
    Require((endpoint == Endpoint::kResponses) == (prompt.responses != nullptr), "an answer that repeats another request");
    if (prompt.responses) Require(json::accept("{" + prompt.responses->echo + "}"), "an answer that is no JSON");
    Result<std::vector<int32_t>> ids = parser.Encode(prompt);
    if (!ids.ok()) return fuzz::RequireOneLine(ids.status());
    RequireIds(*ids);
    parser.SetPrompt(*std::move(ids), &prompt);
  }
}

void Score(const OpenAiRequestParser& parser, const json& body) {
  BodyError error;
  const auto request = ParseScore(body, parser, &error, FindPrefix);
  if (!request) return RequireRefused(error);
  Require(!request->sequences.empty(), "a score of nothing");
  for (const ScoredSequence& sequence : request->sequences) {
    RequireIds(sequence.tokens);
    Require(sequence.begin > 0 && sequence.begin < std::ssize(sequence.tokens), "a continuation that scores nothing");
  }
}

void PutPrefix(const OpenAiRequestParser& parser, const json& body, std::string_view text) {
  BodyError error;
  const auto ordered = ReadOrderedParts(Endpoint::kChatCompletions, body, text, &error);
  if (!ordered) return RequireRefused(error);
  const auto prefix = ParseNamedPrefix(body, &error, ordered->tools_or_null());
  if (!prefix) return RequireRefused(error);
  const std::string kept = DumpJson(ToBody(*prefix));  // as the folder of prefixes has it
  const json again = json::parse(kept);
  const ordered_json kept_tools = ToolsInOrder(kept).value();
  const auto read = ParseNamedPrefix(again, &error, kept_tools.is_null() ? nullptr : &kept_tools);
  Require(read && DumpJson(ToBody(*read)) == kept, "a prefix that changes when it is kept");
  const auto ids = parser.EncodePrefix(*prefix, &error);
  if (!ids) return RequireRefused(error);
  RequireIds(*ids);
}

void CreateBatch(const json& body) {
  BodyError error;
  std::optional<server::Batch> batch = server::ParseBatch(body, &error);
  if (!batch) return RequireRefused(error);
  batch->id = "batch_" + server::RandomName();
  batch->output_file_id = batch->error_file_id = "file-" + server::RandomName();
  const std::string kept = DumpJson(ToRecord(*batch));
  const Result<server::Batch> read = server::ParseRecord(batch->id, json::parse(kept));
  Require(read.ok() && DumpJson(ToRecord(*read)) == kept, "a batch that changes when it is kept");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const OpenAiRequestParser parser(&FixedTokenizer(), kMaxContext);
  const auto [path, text] = fuzz::SplitInput<2>(data, size);
  const Result<json> body = ParseJson(text);
  if (!body.ok()) {
    fuzz::RequireOneLine(body.status());
    return 0;
  }
  BodyError error;
  if (path == "/v1/completions") {
    Generate(Endpoint::kCompletions, parser, *body, text);
  } else if (path == "/v1/chat/completions") {
    Generate(Endpoint::kChatCompletions, parser, *body, text);
  } else if (path == "/v1/responses") {
    Generate(Endpoint::kResponses, parser, *body, text);
  } else if (path == "/v1/score") {
    Score(parser, *body);
  } else if (path == "/v1/prefixes") {
    PutPrefix(parser, *body, text);
  } else if (path == "/v1/batches") {
    CreateBatch(*body);
  } else if (path == "/tokenize") {
    if (const auto request = ParseTokenize(*body, parser.bounds(), &error)) {
      const auto ids = FixedTokenizer().Encode(request->text, {.add_special = request->add_special_tokens, .parse_special = true});
      if (ids.ok()) RequireIds(*ids);
    } else {
      RequireRefused(error);
    }
  } else if (path == "/detokenize") {
    if (const auto ids = ParseDetokenize(*body, kVocabSize, parser.bounds(), &error)) {
      (void)FixedTokenizer().Decode(*ids, /*keep_special=*/true);
    } else {
      RequireRefused(error);
    }
  }
  return 0;
}
