#include "cli/request_trace.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "openai/batch_input.h"
#include "openai/line_reader.h"
#include "openai/request.h"
#include "simulate/prompt_tree.h"

namespace coppice::cli {
namespace {

using openai::LineReader;
using simulate::Trace;

Status AtLine(const TraceSource& source, int64_t line, const Status& status) {
  return Status(status.code(),
                fmt::format("{}:{}: {}", source.path == "-" ? "standard input" : source.path, line, status.message()));
}

// Requests of a batch, line by line.
class BatchReader {
 public:
  explicit BatchReader(const Checkpoint& model) {
    Result<std::unique_ptr<Tokenizer>> tokenizer = model.MakeTokenizer();
    const Status status = tokenizer.status();
    if (tokenizer.ok()) tokenizer_ = *std::move(tokenizer);
    parser_ = std::make_unique<openai::OpenAiRequestParser>(tokenizer_.get(), model.config().max_position, status,
                                                            model.config().vocab_size, openai::RequestRules{});
  }

  Status Add(const std::string& text, int64_t line) {
    openai::BatchErrors::Error error;
    std::optional<openai::BatchLine> parsed = openai::ParseBatchLine(text, line, *parser_, &error);
    if (!parsed) return error.status;
    Result<std::vector<int32_t>> tokens = parser_->Encode(parsed->request);
    if (!tokens.ok()) return tokens.status();
    if (tokens->empty()) return InvalidArgument("the prompt has no token, expected at least one");
    Asked asked{.tokens = *tokens};
    parser_->SetPrompt(*std::move(tokens), &parsed->request);
    asked.samples = parsed->request.request.n;
    asked.output_tokens = parsed->request.request.max_tokens;
    asked_.push_back(std::move(asked));
    return OkStatus();
  }

  Trace Take() {
    std::ranges::stable_sort(asked_, std::ranges::lexicographical_compare, &Asked::tokens);
    Trace trace;
    const std::vector<int32_t> prompts = simulate::AddSortedPrompts(
        asked_.size(), [&](size_t i) { return std::span<const int32_t>(asked_[i].tokens); }, &trace);
    for (size_t i = 0; i < asked_.size(); ++i)
      trace.AddRequest({.prompt = prompts[i], .output_tokens = asked_[i].output_tokens, .samples = asked_[i].samples});
    return trace;
  }

 private:
  struct Asked {
    std::vector<int32_t> tokens;
    int32_t samples = 1, output_tokens = 0;
  };
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<openai::OpenAiRequestParser> parser_;
  std::vector<Asked> asked_;
};

// Whether a line is one of a batch; what is no JSON is none.
bool IsOfBatch(const std::string& text) {
  const Result<nlohmann::json> line = ParseJson(text);
  return line.ok() && line->is_object() && line->contains("custom_id");
}

}  // namespace

void AddBlockTokens(CLI::App& command, TraceSource* source) {
  command.add_option("--block-tokens", source->block_tokens, "Tokens of a block of a trace's hash_ids")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

Result<Trace> ReadTrace(const TraceSource& source, const Checkpoint& model) {
  COPPICE_ASSIGN_OR_RETURN(LineReader reader,
                           source.path == "-" ? LineReader::OpenStandardInput() : LineReader::Open(source.path, "the trace"));
  Trace trace;
  std::optional<BatchReader> batch;
  LineReader::Line line;
  bool is_first = true;
  while (true) {
    COPPICE_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) break;
    if (line.text.find_first_not_of(" \t\r") == line.text.npos) continue;
    if (line.too_long)
      return AtLine(
          source, line.number,
          InvalidArgument(fmt::format("the line has {} bytes, expected {} at most", line.size, LineReader::kMaxLineBytes)));
    if (std::exchange(is_first, false) && IsOfBatch(line.text)) batch.emplace(model);
    if (batch) {
      if (const Status status = batch->Add(line.text, line.number); !status.ok()) return AtLine(source, line.number, status);
      continue;
    }
    const Result<simulate::TraceLine> parsed = simulate::ParseTraceLine(line.text, source.block_tokens);
    if (!parsed.ok()) return AtLine(source, line.number, parsed.status());
    trace.Add(*parsed);
  }
  if (batch) trace = batch->Take();
  if (trace.requests().empty()) return InvalidArgument(fmt::format("{} has no requests", source.path));
  trace.Sort();
  return trace;
}

}  // namespace coppice::cli
