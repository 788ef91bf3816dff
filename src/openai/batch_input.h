// The input of `coppice batch`: lines of JSON, each one request, brought into an order in which requests that share a prefix follow
// each other. Memory is bounded by a few hundred bytes a line: tokens lie in a temporary file, and a line is read again when its
// turn comes. Layer: openai.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/status.h"
#include "openai/batch_output.h"
#include "openai/line_reader.h"
#include "openai/request.h"

namespace coppice::openai {

// A line that is a request in itself.
struct BatchLine {
  std::string custom_id;
  // 32 hex digits, a hash of the line, and of the prefix that it names where that is the parser's: equal requests have equal ids,
  // in this run and in the next.
  std::string id;
  OpenAiRequest request;
};

// A caller's demands on an input beyond its form.
struct BatchRules {
  std::optional<Endpoint> endpoint;                   // of every line; another one is that line's error
  int64_t max_requests = 0;                           // more lines are INVALID_ARGUMENT, for the whole input; 0: no limit
  int64_t give_up_after = 0;                          // so are the first lines where so many are errors; 0: never
  size_t max_line_bytes = LineReader::kMaxLineBytes;  // a longer one is an error
  FindNamedPrefix find_prefix;                        // what `prefix` may name; empty: what the parser knows
  std::function<bool()> should_stop;                  // asked before each line; true ends the reading with CANCELLED
};

// `line` is the line's number in messages. Top-level fields: custom_id, method (POST), url, body; others are refused.
// On an error, `*line_error` says all that is known.
std::optional<BatchLine> ParseBatchLine(std::string_view text, int64_t line, const OpenAiRequestParser& parser,
                                        BatchErrors::Error* line_error, const BatchRules& rules = {});

// Where the tokens of all prompts lie while they are sorted: a file without a name, mapped for reading.
class TokenSpool {
 public:
  // `folder` has room for 4 bytes a token.
  static Result<TokenSpool> Create(const std::string& folder);
  TokenSpool(TokenSpool&& other) noexcept;
  TokenSpool& operator=(TokenSpool&&) = delete;
  ~TokenSpool();

  // The place of the first of `ids`, counted in tokens.
  Result<int64_t> Append(std::span<const int32_t> ids);
  // After the last Append.
  Status Map();
  std::span<const int32_t> Tokens(int64_t begin, int32_t count) const { return {mapped_ + begin, static_cast<size_t>(count)}; }

 private:
  TokenSpool() = default;
  Status Flush();

  FileDescriptor file_;
  std::vector<int32_t> pending_;
  int64_t size_ = 0;  // tokens
  const int32_t* mapped_ = nullptr;
};

// A request that is to be computed.
struct BatchJob {
  std::string id;                // the BatchLine's
  int64_t line = 0, offset = 0;  // in the input
  uint64_t fingerprint = 0;      // of the line's text
  int64_t tokens_begin = 0;      // in the spool
  int32_t size = 0;              // bytes of the line
  int32_t num_tokens = 0;
  int64_t output_tokens = 0;  // of all its samples at most
};

class BatchInput {
 public:
  // Reads all of `path`, reports what is wrong to `errors` and leaves out what `output` or `errors` holds already. INVALID_ARGUMENT
  // if `output` holds the custom_id with an answer to another request, or one after another prefix.
  static Result<BatchInput> Read(const std::string& path, const OpenAiRequestParser& parser, const BatchOutput& output,
                                 BatchErrors* errors, BatchRules rules = {});

  // In the order of their prompts' tokens; equal prompts in the order of the file.
  const std::vector<BatchJob>& jobs() const { return jobs_; }
  int64_t num_finished_before() const { return finished_before_; }
  // Some requests share KV with those of their own cache_salt only.
  bool has_salts() const { return has_salts_; }
  std::span<const int32_t> Tokens(const BatchJob& job) const { return spool_.Tokens(job.tokens_begin, job.num_tokens); }
  // The job's request, complete; nothing where it is none any more, since what it names is gone: `*refused` says why. DATA_LOSS if
  // the file changed meanwhile.
  Result<std::optional<BatchLine>> Load(const BatchJob& job, const OpenAiRequestParser& parser, BatchErrors::Error* refused) const;

 private:
  BatchInput(FileDescriptor file, std::string path, TokenSpool spool, BatchRules rules)
      : file_(std::move(file)), path_(std::move(path)), spool_(std::move(spool)), rules_(std::move(rules)) {}

  FileDescriptor file_;
  std::string path_;
  TokenSpool spool_;
  BatchRules rules_;
  std::vector<BatchJob> jobs_;
  int64_t finished_before_ = 0;
  bool has_salts_ = false;
};

}  // namespace coppice::openai
