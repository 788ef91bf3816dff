#include "openai/batch_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#define XXH_INLINE_ALL  // header only
#include <xxhash.h>

#include "core/check.h"
#include "core/dismantle_json.h"
#include "core/quoted.h"
#include "model/json_file.h"
#include "openai/line_id.h"
#include "openai/line_reader.h"
#include "openai/ordered_parts.h"

namespace coppice::openai {
namespace {

using nlohmann::json;

constexpr std::string_view kBodyPath[] = {"body"};
constexpr size_t kSpoolBuffer = 1 << 16;  // tokens

std::string_view BytesOf(std::span<const int32_t> ids) {
  const auto bytes = std::as_bytes(ids);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t Fingerprint(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

// The string of a required field of the line, or an error.
Result<std::string> StringField(const json& line, const char* name, const std::string& expected) {
  const auto found = line.find(name);
  if (found == line.end()) return InvalidArgument(fmt::format("{} is missing, expected {}", name, expected));
  if (!found->is_string() || found->get_ref<const std::string&>().empty())
    return InvalidArgument(fmt::format("{} is no string or empty, expected {}", name, expected));
  return found->get<std::string>();
}

// The output holds an answer under the line's custom_id, but not to this line.
Status AnotherRequest(const std::string& path, const std::optional<BatchLine>& parsed, const BatchErrors::Error& error) {
  std::string than =
      fmt::format("{} than line {} of {}", parsed && parsed->request.prefix ? "another request or prefix" : "another request",
                  error.line, path);
  if (!parsed) than += fmt::format(", which is refused now ({})", error.status.message());
  return InvalidArgument(
      fmt::format("the output holds an answer for custom_id {}, but to {}; give another output", Quoted(error.custom_id), than));
}

}  // namespace

std::optional<BatchLine> ParseBatchLine(std::string_view text, int64_t line, const OpenAiRequestParser& parser,
                                        BatchErrors::Error* line_error, const BatchRules& rules) {
  *line_error = {.line = line};
  const auto fail = [&](Status status, std::string param) {
    line_error->status = std::move(status);
    line_error->param = std::move(param);
    return std::nullopt;
  };
  Result<json> parsed = ParseJsonObject(text, "");
  if (!parsed.ok()) return fail(InvalidArgument(parsed.status().message()), "");
  const DismantledJson<json> object(*std::move(parsed));
  Result<std::string> custom_id = StringField(*object, "custom_id", "a string that no other line has");
  if (!custom_id.ok()) return fail(custom_id.status(), "custom_id");
  line_error->custom_id = *custom_id;
  const Result<std::string> method = StringField(*object, "method", "POST");
  if (!method.ok()) return fail(method.status(), "method");
  if (*method != "POST") return fail(InvalidArgument(fmt::format("method is {}, expected POST", Quoted(*method))), "method");
  const Result<std::string> url = StringField(*object, "url", std::string(Url(Endpoint::kCompletions)));
  if (!url.ok()) return fail(url.status(), "url");
  const Result<Endpoint> endpoint = ParseUrl(*url);
  if (!endpoint.ok()) return fail(endpoint.status(), "url");
  if (rules.endpoint && *endpoint != *rules.endpoint)
    return fail(InvalidArgument(fmt::format("url is {}, expected the batch's endpoint {}", *url, Url(*rules.endpoint))), "url");
  std::vector<std::string> ignored;
  for (const auto& [name, value] : object->items()) {
    if (name == "custom_id" || name == "method" || name == "url" || name == "body") continue;
    if (parser.unknown_fields() == UnknownFields::kIgnore) {
      ignored.push_back(name);
    } else {
      return fail(InvalidArgument(fmt::format("{} is no field of a line, expected custom_id, method, url and body", Quoted(name))),
                  name);
    }
  }
  const auto body = object->find("body");
  if (body == object->end()) return fail(InvalidArgument("body is missing, expected an object"), "body");

  std::string id = LineId(text);
  BodyError body_error;
  const std::optional<OrderedParts> ordered = ReadOrderedParts(*endpoint, *body, text, &body_error, kBodyPath);
  std::optional<OpenAiRequest> request;
  if (ordered) request = parser.Parse(*endpoint, *body, &body_error, rules.find_prefix, ordered->tools_or_null(), ordered->schema);
  if (!request) {
    line_error->id = std::move(id);
    return fail(std::move(body_error.status), std::move(body_error.param));
  }
  if (request->stream) {
    line_error->id = std::move(id);
    return fail(InvalidArgument("stream is true, expected false: a batch answers when all is complete"), "stream");
  }
  request->ignored_fields.insert(request->ignored_fields.end(), ignored.begin(), ignored.end());
  // A server's prefixes may be replaced while a batch runs, which goes on; those of a file are the job's own.
  if (request->prefix && !rules.find_prefix) id = HashOf(id + HashOf(BytesOf(request->prefix->token_ids)));
  // Samples of equal prompts differ, and a run that is repeated or resumed draws the same.
  const auto seed = body->find("seed");
  if (seed == body->end() || seed->is_null()) request->request.sampling.seed = Fingerprint(*custom_id);
  return BatchLine{*std::move(custom_id), std::move(id), *std::move(request)};
}

// ------------------------------------------------------------------------------------------------------------------- spool

Result<TokenSpool> TokenSpool::Create(const std::string& folder) {
  TokenSpool spool;
  std::string path = (std::filesystem::path(folder) / ".coppice-tokens-XXXXXX").string();
  spool.file_ = FileDescriptor(mkstemp(path.data()));
  if (spool.file_.get() < 0) return NotFound(fmt::format("cannot make a temporary file in {}: {}", folder, std::strerror(errno)));
  unlink(path.c_str());  // it lives as long as it is open
  return spool;
}

TokenSpool::TokenSpool(TokenSpool&& other) noexcept
    : file_(std::move(other.file_)),
      pending_(std::move(other.pending_)),
      size_(other.size_),
      mapped_(std::exchange(other.mapped_, nullptr)) {}

TokenSpool::~TokenSpool() {
  if (mapped_) munmap(const_cast<int32_t*>(mapped_), static_cast<size_t>(size_) * sizeof(int32_t));
}

Result<int64_t> TokenSpool::Append(std::span<const int32_t> ids) {
  const int64_t begin = size_;
  pending_.insert(pending_.end(), ids.begin(), ids.end());
  size_ += static_cast<int64_t>(ids.size());
  if (pending_.size() >= kSpoolBuffer) COPPICE_RETURN_IF_ERROR(Flush());
  return begin;
}

Status TokenSpool::Flush() {
  COPPICE_RETURN_IF_ERROR(WriteAll(file_.get(), BytesOf(pending_), "the temporary file for the tokens of the prompts"));
  pending_.clear();
  return OkStatus();
}

Status TokenSpool::Map() {
  COPPICE_RETURN_IF_ERROR(Flush());
  if (size_ == 0) return OkStatus();
  void* const mapped = mmap(nullptr, static_cast<size_t>(size_) * sizeof(int32_t), PROT_READ, MAP_SHARED, file_.get(), 0);
  if (mapped == MAP_FAILED) return ResourceExhausted(fmt::format("cannot map {} tokens: {}", size_, std::strerror(errno)));
  mapped_ = static_cast<const int32_t*>(mapped);
  return OkStatus();
}

// ------------------------------------------------------------------------------------------------------------------- input

Result<BatchInput> BatchInput::Read(const std::string& path, const OpenAiRequestParser& parser, const BatchOutput& output,
                                    BatchErrors* errors, BatchRules rules) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe is refused, not waited for
  struct stat facts = {};
  if (file.get() < 0 || fstat(file.get(), &facts) != 0)
    return NotFound(fmt::format("cannot read the input {}: {}", path, std::strerror(errno)));
  if (!S_ISREG(facts.st_mode))
    return InvalidArgument(fmt::format("{} is no regular file; its lines are read twice, so a pipe will not do", path));
  // Beside the output there is room for it.
  const std::filesystem::path beside = std::filesystem::path(errors->path()).parent_path();
  COPPICE_ASSIGN_OR_RETURN(TokenSpool spool, TokenSpool::Create(beside.empty() ? "." : beside.string()));
  COPPICE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path, "the input", rules.max_line_bytes));
  BatchInput input(std::move(file), path, std::move(spool), std::move(rules));

  std::unordered_map<std::string, int64_t> lines;  // custom_id -> the line that has it
  LineReader::Line line;
  int64_t requests = 0, failed = 0;
  IgnoredFields ignored;
  const auto report = [&](const BatchErrors::Error& error) -> Status {
    COPPICE_RETURN_IF_ERROR(errors->Report(error));
    const bool all_failed = ++failed == requests;
    if (!all_failed || input.rules_.give_up_after == 0 || failed < input.rules_.give_up_after) return OkStatus();
    return InvalidArgument(fmt::format("the first {} lines are all errors, the last one since {}", failed, error.status.message()));
  };
  while (true) {
    if (input.rules_.should_stop && input.rules_.should_stop()) return Status(StatusCode::kCancelled, "the batch was stopped");
    COPPICE_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) break;
    if (Trimmed(line.text).empty()) continue;
    ++requests;
    if (const int64_t most = input.rules_.max_requests; most > 0 && requests > most)
      return InvalidArgument(fmt::format("the input has more than {} requests; make several batches of it", most));
    if (line.too_long) {
      COPPICE_RETURN_IF_ERROR(
          report({.line = line.number,
                  .status = InvalidArgument(fmt::format("line {} has {} bytes, expected at most {}", line.number, line.size,
                                                        input.rules_.max_line_bytes))}));
      continue;
    }
    BatchErrors::Error error;
    std::optional<BatchLine> parsed = ParseBatchLine(line.text, line.number, parser, &error, input.rules_);
    if (!error.custom_id.empty()) {
      const auto [first, is_new] = lines.emplace(error.custom_id, line.number);
      if (!is_new) {
        parsed.reset();
        error = {.line = line.number,
                 .custom_id = error.custom_id,
                 .status = InvalidArgument(fmt::format("custom_id {} is that of line {} already; give each line its own",
                                                       Quoted(error.custom_id), first->second)),
                 .param = "custom_id"};
      } else if (const auto finished = output.finished().find(error.custom_id); finished != output.finished().end()) {
        if (finished->second != "batch_req_" + (parsed ? parsed->id : error.id)) return AnotherRequest(path, parsed, error);
        ++input.finished_before_;
        continue;
      }
    }
    if (!parsed) {
      COPPICE_RETURN_IF_ERROR(report(error));
      continue;
    }
    if (errors->Has(line.number)) continue;
    ignored.Add(parsed->request.ignored_fields);
    Result<std::vector<int32_t>> tokens = parser.Encode(parsed->request);
    if (!tokens.ok()) {
      const BodyError error_body = parsed->request.PromptError(tokens.status());
      COPPICE_RETURN_IF_ERROR(report({.line = line.number,
                                      .id = parsed->id,
                                      .custom_id = parsed->custom_id,
                                      .status = error_body.status,
                                      .param = error_body.param}));
      continue;
    }
    COPPICE_ASSIGN_OR_RETURN(const int64_t begin, input.spool_.Append(*tokens));
    const auto num_tokens = static_cast<int32_t>(tokens->size());
    parser.SetPrompt(*std::move(tokens), &parsed->request);  // without a limit of its own the output's depends on the prompt
    input.has_salts_ |= !parsed->request.request.cache_salt.empty();
    input.jobs_.push_back({.id = parsed->id,
                           .line = line.number,
                           .offset = line.offset,
                           .fingerprint = Fingerprint(Trimmed(line.text)),
                           .tokens_begin = begin,
                           .size = static_cast<int32_t>(line.size),
                           .num_tokens = num_tokens,
                           .output_tokens = int64_t{parsed->request.request.n} * parsed->request.request.max_tokens});
  }
  ignored.Log(path);
  COPPICE_RETURN_IF_ERROR(input.spool_.Map());
  std::ranges::stable_sort(input.jobs_, [&](const BatchJob& a, const BatchJob& b) {
    return std::ranges::lexicographical_compare(input.Tokens(a), input.Tokens(b));
  });
  return input;
}

Result<std::optional<BatchLine>> BatchInput::Load(const BatchJob& job, const OpenAiRequestParser& parser,
                                                  BatchErrors::Error* refused) const {
  std::string text(static_cast<size_t>(job.size), '\0');
  const ssize_t count = pread(file_.get(), text.data(), text.size(), job.offset);
  if (count != job.size || Fingerprint(Trimmed(text)) != job.fingerprint) {
    return DataLoss(
        fmt::format("{} changed while it was worked on: line {} is another one now; run the command again", path_, job.line));
  }
  std::optional<BatchLine> parsed = ParseBatchLine(text, job.line, parser, refused, rules_);
  if (!parsed) return parsed;
  const std::span<const int32_t> tokens = Tokens(job);
  parser.SetPrompt({tokens.begin(), tokens.end()}, &parsed->request);
  return parsed;
}

}  // namespace coppice::openai
