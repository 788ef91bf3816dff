#include "cli/tree_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/forest_recorder.h"
#include "cli/interrupt.h"
#include "cli/load_engine.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/sampling_source.h"
#include "cli/standard_output.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/json.h"
#include "engine/text_stream.h"
#include "grammar/grammar_compiler.h"
#include "hub/model_store.h"
#include "openai/field_reader.h"
#include "openai/line_id.h"
#include "openai/line_reader.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/sample_fields.h"

namespace coppice::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using openai::BodyError;
using openai::FieldReader;
using openai::LineReader;

struct TreeOptions {
  EngineOptions engine;
  std::string input = "-";
  SamplingSource sampling_defaults = SamplingSource::kModel;
};

std::string NameOf(SampleId sample) { return fmt::format("{}.{}", static_cast<uint64_t>(sample.request), sample.index); }

std::optional<SampleId> ParseName(std::string_view name) {
  uint64_t request = 0;
  int32_t index = -1;
  const char* const end = name.data() + name.size();
  const auto [dot, error] = std::from_chars(name.data(), end, request);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  const auto [stop, index_error] = std::from_chars(dot + 1, end, index);
  if (index_error != std::errc() || stop != end || index < 0) return std::nullopt;
  return SampleId{RequestId{request}, index};
}

ordered_json Names(const std::vector<SampleId>& samples) {
  ordered_json names = ordered_json::array();
  for (const SampleId sample : samples) names.push_back(NameOf(sample));
  return names;
}

// A sample's events since the last answer that had it.
struct News {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  std::string text;
  std::optional<FinishReason> reason;
  Status status;
};

// Does what lines say, in their order. Steps run only where a line asks for them, so that a script does the same each time.
class TreeSession {
 public:
  TreeSession(Engine* engine, const openai::OpenAiRequestParser* parser) : engine_(*engine), parser_(*parser) {}

  // The answer to a line; `error` says what is wrong with it.
  std::optional<ordered_json> Do(const json& line, BodyError* error);

 private:
  using Answer = std::optional<ordered_json>;

  Answer Start(const json& line, BodyError* error);
  Answer Fork(FieldReader& fields, BodyError* error);
  Answer Extend(FieldReader& fields, BodyError* error);
  Answer Prune(FieldReader& fields, BodyError* error);
  Answer Release(FieldReader& fields, BodyError* error);
  Answer Show(FieldReader& fields, BodyError* error);
  Answer Step(FieldReader& fields, BodyError* error);
  Answer Wait(FieldReader& fields, BodyError* error);

  static SampleId TakeSample(FieldReader& fields);
  // False, with `*error`, where the line's fields are not all right.
  static bool Ends(FieldReader& fields, BodyError* error) {
    *error = fields.Finish();
    return error->status.ok();
  }
  static Answer Refuse(Status status, BodyError* error) {
    error->status = std::move(status);
    return std::nullopt;
  }
  Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source);
  // Steps until `count` have run, or nothing is left to do. Returns how many have.
  Result<int64_t> Run(int64_t count);
  ordered_json TakeNews();

  Engine& engine_;
  const openai::OpenAiRequestParser& parser_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::map<SampleId, SamplingParams> sampling_;
  std::map<SampleId, News> news_;
};

TreeSession::Answer TreeSession::Do(const json& line, BodyError* error) {
  if (!line.is_object()) return openai::RefuseBody(line, error);
  using Verb = Answer (TreeSession::*)(FieldReader&, BodyError*);
  static const std::map<std::string, Verb, std::less<>> kVerbs = {
      {"fork", &TreeSession::Fork},       {"extend", &TreeSession::Extend}, {"prune", &TreeSession::Prune},
      {"release", &TreeSession::Release}, {"show", &TreeSession::Show},     {"step", &TreeSession::Step},
      {"wait", &TreeSession::Wait},
  };
  FieldReader fields(line);
  std::string name;
  fields.Take("verb", &name);
  if (name == "start") return Start(line, error);
  const auto verb = kVerbs.find(name);
  if (verb == kVerbs.end()) {
    const json absent;
    const json* const given = fields.Find("verb");
    fields.Expect("verb", given ? *given : absent, "start, fork, extend, prune, release, show, step or wait");
    *error = fields.TakeError();
    return std::nullopt;
  }
  return (this->*verb->second)(fields, error);
}

SampleId TreeSession::TakeSample(FieldReader& fields) {
  const json* const name = fields.Find("sample");
  const json absent;
  const std::optional<SampleId> sample = name && name->is_string() ? ParseName(name->get_ref<const std::string&>()) : std::nullopt;
  if (!sample) fields.Expect("sample", name ? *name : absent, R"(the name of a sample, such as "1.0")");
  return sample.value_or(SampleId());
}

TreeSession::Answer TreeSession::Start(const json& line, BodyError* error) {
  json body = line;
  body.erase("verb");
  std::optional<openai::OpenAiRequest> parsed = parser_.Parse(openai::Endpoint::kCompletions, body, error);
  if (!parsed) return std::nullopt;
  if (parsed->stream || parsed->rank || parsed->deduplicate || parsed->vote || parsed->request.n != parsed->choices) {
    return Refuse(InvalidArgument("stream, rank, dedup, vote and best_of are of answers that come whole: leave them out, step "
                                  "and wait report a tree's samples"),
                  error);
  }
  Result<std::vector<int32_t>> ids = parser_.Encode(*parsed);
  if (!ids.ok()) {
    *error = parsed->PromptError(ids.status());
    return std::nullopt;
  }
  parser_.SetPrompt(*std::move(ids), &*parsed);
  Request& request = parsed->request;
  if (parsed->output) {
    Result<std::shared_ptr<const TokenConstraint>> constraint = Compile(parsed->output->source);
    if (!constraint.ok()) {
      *error = parsed->output->ErrorOf(constraint.status());
      return std::nullopt;
    }
    request.constraint = *std::move(constraint);
  }
  request.keep = true;
  request.on_event = [this](const StreamEvent& event) {
    if (event.index < 0) return;
    News& news = news_[{event.request, event.index}];
    news.token_ids.insert(news.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    news.logprobs.insert(news.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    news.text += event.text;
    news.reason = event.finish_reason;
    news.status = event.status;
  };
  const int32_t n = request.n;
  const SamplingParams sampling = request.sampling;
  const Result<RequestId> id = engine_.Submit(std::move(request));
  if (!id.ok()) return Refuse(id.status(), error);
  std::vector<SampleId> samples;
  for (int32_t i = 0; i < n; ++i) {
    samples.push_back({*id, i});
    sampling_[samples.back()] = sampling;
  }
  return ordered_json{{"request", static_cast<uint64_t>(*id)}, {"samples", Names(samples)}};
}

TreeSession::Answer TreeSession::Fork(FieldReader& fields, BodyError* error) {
  const SampleId sample = TakeSample(fields);
  const ForkOptions options = openai::TakeFork(fields, sampling_[sample]);
  if (!Ends(fields, error)) return std::nullopt;
  const Result<std::vector<SampleId>> children = engine_.Fork(sample, options);
  if (!children.ok()) return Refuse(children.status(), error);
  const SamplingParams sampling = options.params.value_or(sampling_[sample]);
  for (const SampleId child : *children) sampling_[child] = sampling;
  return ordered_json{{"samples", Names(*children)}};
}

TreeSession::Answer TreeSession::Extend(FieldReader& fields, BodyError* error) {
  const SampleId sample = TakeSample(fields);
  const std::vector<int32_t> tokens = openai::TakeExtension(fields, engine_.tokenizer(), parser_.bounds());
  if (!Ends(fields, error)) return std::nullopt;
  if (const Status status = engine_.Extend(sample, tokens).status(); !status.ok()) return Refuse(status, error);
  return ordered_json{{"tokens", tokens.size()}};
}

TreeSession::Answer TreeSession::Prune(FieldReader& fields, BodyError* error) {
  const SampleId sample = TakeSample(fields);
  if (!Ends(fields, error)) return std::nullopt;
  if (const Status status = engine_.Prune(sample); !status.ok()) return Refuse(status, error);
  return ordered_json::object();
}

TreeSession::Answer TreeSession::Release(FieldReader& fields, BodyError* error) {
  uint64_t request = 0;
  fields.Take("request", &request);
  if (!Ends(fields, error)) return std::nullopt;
  if (const Status status = engine_.Release(RequestId{request}); !status.ok()) return Refuse(status, error);
  std::erase_if(sampling_, [&](const auto& entry) { return entry.first.request == RequestId{request}; });
  return ordered_json::object();
}

TreeSession::Answer TreeSession::Show(FieldReader& fields, BodyError* error) {
  const SampleId sample = TakeSample(fields);
  if (!Ends(fields, error)) return std::nullopt;
  const Result<SampleInfo> info = engine_.Describe(sample);
  if (!info.ok()) return Refuse(info.status(), error);
  ordered_json answer{{"prompt_tokens", info->prompt_tokens}, {"token_ids", info->token_ids}, {"finished", info->finished}};
  if (engine_.tokenizer()) answer["text"] = PromptText(*engine_.tokenizer(), info->token_ids);
  return answer;
}

TreeSession::Answer TreeSession::Step(FieldReader& fields, BodyError* error) {
  int64_t count = 1;
  fields.Take("count", &count);
  if (count < 1) fields.Expect("count", count, "at least 1");
  if (!Ends(fields, error)) return std::nullopt;
  const Result<int64_t> steps = Run(count);
  if (!steps.ok()) return Refuse(steps.status(), error);
  return ordered_json{{"steps", *steps}, {"samples", TakeNews()}};
}

TreeSession::Answer TreeSession::Wait(FieldReader& fields, BodyError* error) {
  if (!Ends(fields, error)) return std::nullopt;
  const Result<int64_t> steps = Run(INT64_MAX);
  if (!steps.ok()) return Refuse(steps.status(), error);
  return ordered_json{{"steps", *steps}, {"samples", TakeNews()}};
}

Result<std::shared_ptr<const TokenConstraint>> TreeSession::Compile(const GrammarSource& source) {
  if (!compiler_) {
    COPPICE_ASSIGN_OR_RETURN(compiler_, GrammarCompiler::Create(*engine_.tokenizer(), engine_.model_info().vocab_size));
  }
  return compiler_->Compile(source);
}

Result<int64_t> TreeSession::Run(int64_t count) {
  int64_t steps = 0;
  for (; steps < count && !Interrupted(); ++steps) {
    COPPICE_ASSIGN_OR_RETURN(const bool worked, engine_.Step());
    if (!worked) break;
  }
  return steps;
}

ordered_json TreeSession::TakeNews() {
  ordered_json samples = ordered_json::array();
  for (auto& [sample, news] : news_) {
    ordered_json one{{"sample", NameOf(sample)}};
    if (engine_.tokenizer()) one["text"] = std::move(news.text);
    one["token_ids"] = std::move(news.token_ids);
    one["logprobs"] = std::move(news.logprobs);
    one["finish_reason"] = news.reason ? ordered_json(Name(*news.reason)) : ordered_json();
    if (!news.status.ok()) one["error"] = openai::ErrorBody(news.status, /*param=*/"")["error"];
    samples.push_back(std::move(one));
  }
  news_.clear();
  return samples;
}

// One line of the script: its answer, printed. Whether it could be done.
Result<bool> Answer(TreeSession* session, const LineReader::Line& line) {
  BodyError error;
  std::optional<ordered_json> answer;
  if (line.too_long) {
    error.status = InvalidArgument(fmt::format("the line has {} bytes, expected at most {}", line.size, LineReader::kMaxLineBytes));
  } else if (const Result<json> parsed = ParseJson(line.text); parsed.ok()) {
    answer = session->Do(*parsed, &error);
  } else {
    error.status = InvalidArgument(parsed.status().message());
  }
  ordered_json printed = answer ? *std::move(answer) : openai::ErrorBody(error.status, error.param);
  printed["line"] = line.number;
  COPPICE_RETURN_IF_ERROR(Print(DumpJson(std::move(printed)) + "\n"));
  return error.status.ok();
}

Result<ExitCode> Grow(TreeOptions options) {
  options.engine.event_thread = false;  // a step's own answer reports its events
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  COPPICE_ASSIGN_OR_RETURN(LineReader reader,
                           options.input == "-" ? LineReader::OpenStandardInput() : LineReader::Open(options.input, "the script"));
  COPPICE_ASSIGN_OR_RETURN(options.engine.model_path, hub::FindModel(options.engine.model_path));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(options.engine));
  ReportNotes(*engine);
  const ModelInfo& model = engine->model_info();
  const int32_t max_context = options.engine.max_context > 0 ? options.engine.max_context : model.context_length;
  const openai::OpenAiRequestParser parser(engine->tokenizer(), max_context, engine->model_info().tokenizer_status,
                                           model.vocab_size, {.sampling = SamplingOf(options.sampling_defaults, model)});
  CatchFirstInterrupt();
  TreeSession session(engine.get(), &parser);
  bool all_done = true;
  LineReader::Line line;
  while (!Interrupted()) {
    if (!reader.HasInput(kInterruptPeriod)) continue;
    COPPICE_ASSIGN_OR_RETURN(const bool more, reader.Next(&line));
    if (!more) break;
    if (openai::Trimmed(line.text).empty()) continue;
    COPPICE_ASSIGN_OR_RETURN(const bool done, Answer(&session, line));
    all_done &= done;
  }
  if (Interrupted()) return ExitCode::kInterrupted;
  return all_done ? ExitCode::kOk : ExitCode::kFailure;
}

}  // namespace

Command AddTreeCommand(CLI::App& app) {
  const auto options = std::make_shared<TreeOptions>();
  CLI::App* command = app.add_subcommand("tree", "Fork, extend and prune samples as a script says, a verb and a line of JSON each");
  command
      ->add_option("input", options->input,
                   "JSON lines: start, fork, extend, prune, release, show, step, wait (default: -, standard input)")
      ->check(NotEmpty());
  AddSamplingDefaults(*command, options->sampling_defaults);
  AddEngineOptions(*command, options->engine);
  AddRecordOption(*command, options->engine);
  return {command, [options] { return Grow(*options); }};
}

}  // namespace coppice::cli
