#include "cli/score_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <deque>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "cli/different_files.h"
#include "cli/forest_recorder.h"
#include "cli/interrupt.h"
#include "cli/load_engine.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/standard_output.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/json.h"
#include "core/text_source.h"
#include "hub/model_store.h"
#include "openai/batch_output.h"
#include "openai/line_id.h"
#include "openai/line_reader.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/score.h"
#include "openai/unknown_fields.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;
using openai::BatchErrors;
using openai::BatchOutput;
using openai::LineReader;
using openai::ScoreCall;

struct ScoreOptions {
  const CLI::App* command = nullptr;  // whose command line they are of
  EngineOptions engine;
  std::string input, output = "-", errors;  // errors: only with an output that is a file
  size_t queue = 16;
  openai::UnknownFields unknown_fields = openai::UnknownFields::kIgnore;

  bool keeps() const { return output != "-"; }
};

struct LineIdentity {
  int64_t number = 0;
  std::string id;
};

// The answer to a line, or its error.
struct Answer {
  std::unique_ptr<TextSource> body;
  Status status;             // an error: there is no body
  std::string param;         // the field that is wrong; may be empty
  bool was_request = false;  // which the engine refused or failed
};

// Where answers go, in the order of the input.
class ScoreOutput {
 public:
  virtual ~ScoreOutput() = default;
  // Whether an earlier run answered the line. INVALID_ARGUMENT if it answered another line of this number.
  virtual Result<bool> HasAnswer(const LineIdentity& line) const = 0;
  virtual Status Write(const LineIdentity& line, Answer answer) = 0;
  // At the end of a run that no error ended. `answered`: lines, by this run.
  virtual Status Finish(int64_t answered) = 0;
};

// To standard output, lines that cannot be answered as objects in their places.
class PrintedScores final : public ScoreOutput {
 public:
  Result<bool> HasAnswer(const LineIdentity&) const override { return false; }
  Status Write(const LineIdentity& line, Answer answer) override {
    if (answer.status.ok()) return Print(TextOf(answer.body.get()) + "\n");
    ordered_json error = openai::ErrorBody(answer.status, answer.param);
    error["line"] = line.number;
    return Print(DumpJson(std::move(error)) + "\n");
  }
  Status Finish(int64_t) override { return OkStatus(); }
};

// To a file, with which a later run goes on, and a file of errors.
class KeptScores final : public ScoreOutput {
 public:
  KeptScores(BatchOutput output, BatchErrors errors) : output_(std::move(output)), errors_(std::move(errors)) {}

  Result<bool> HasAnswer(const LineIdentity& line) const override {
    const auto found = output_.finished().find(std::to_string(line.number));
    if (found == output_.finished().end()) return false;
    if (found->second == "score-" + line.id) return true;
    return InvalidArgument(
        fmt::format("the output holds an answer for line {}, but to another request; give another output", line.number));
  }
  Status Write(const LineIdentity& line, Answer answer) override {
    if (answer.status.ok()) return output_.Append(answer.body.get());
    return errors_.Report({.line = line.number,
                           .id = answer.was_request ? line.id : "",
                           .custom_id = "",
                           .status = std::move(answer.status),
                           .param = std::move(answer.param),
                           .code = ""});
  }
  Status Finish(int64_t answered) override {
    COPPICE_RETURN_IF_ERROR(output_.Sync());
    std::string text = fmt::format("{} answered", answered);
    if (!output_.finished().empty()) text += fmt::format(", {} by an earlier run", output_.finished().size());
    if (errors_.count() > 0) text += fmt::format(", {} errors in {}", errors_.count(), errors_.path());
    if (Interrupted()) text += "; interrupted: the same command goes on";
    return Print(text + "\n");
  }

 private:
  BatchOutput output_;
  BatchErrors errors_;
};

Result<std::unique_ptr<ScoreOutput>> OpenOutput(const ScoreOptions& options) {
  if (!options.keeps()) return std::unique_ptr<ScoreOutput>(std::make_unique<PrintedScores>());
  COPPICE_ASSIGN_OR_RETURN(BatchOutput output, BatchOutput::Open(options.output, openai::kScoreOutput));
  COPPICE_RETURN_IF_ERROR(output.CheckModel(ModelName(options.engine.model_path)));
  COPPICE_ASSIGN_OR_RETURN(BatchErrors errors, BatchErrors::Open(options.errors));
  return std::unique_ptr<ScoreOutput>(std::make_unique<KeptScores>(std::move(output), std::move(errors)));
}

Answer AnswerOf(const LineIdentity& line, const std::string& model, std::shared_ptr<const openai::ScoreRequest> request,
                ScoreCall::Outcome outcome) {
  if (!outcome.status.ok()) return {.status = std::move(outcome.status), .was_request = true};
  using Clock = std::chrono::system_clock;
  const auto created = std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
  return {.body = ScoreBody(std::move(request), std::move(outcome),
                            {.id = line.id, .created = created, .model = model, .line = line.number})};
}

// Lines under way, in the order of the file: so their answers are written.
class ScoreRunner {
 public:
  ScoreRunner(Engine* engine, const openai::OpenAiRequestParser* parser, std::string model, size_t queue, ScoreOutput* output)
      : engine_(*engine), parser_(*parser), model_(std::move(model)), queue_(queue), output_(*output) {}

  Status Run(LineReader* reader);
  int64_t answered() const { return answered_; }
  int64_t failed() const { return failed_; }
  const openai::IgnoredFields& ignored() const { return ignored_; }

 private:
  struct Line {
    LineIdentity identity;
    std::optional<Answer> answer;  // guarded by mutex
    std::mutex mutex;
  };

  // Whether there was a line.
  Result<bool> Begin(LineReader* reader);
  void Start(const std::shared_ptr<Line>& line, const std::string& text);
  Status WriteAnswered();

  Engine& engine_;
  const openai::OpenAiRequestParser& parser_;
  const std::string model_;
  const size_t queue_;
  ScoreOutput& output_;
  std::deque<std::shared_ptr<Line>> lines_;
  openai::IgnoredFields ignored_;
  int64_t answered_ = 0, failed_ = 0;
};

Status ScoreRunner::Run(LineReader* reader) {
  bool more = true;
  while (!Interrupted() && (more || !lines_.empty())) {
    // Lines that a pipe does not have yet hold up none that it had.
    while (more && lines_.size() < queue_ && reader->HasInput(lines_.empty() ? kInterruptPeriod : kInterruptPeriod.zero())) {
      COPPICE_ASSIGN_OR_RETURN(more, Begin(reader));
    }
    if (lines_.empty()) continue;
    COPPICE_RETURN_IF_ERROR(engine_.Step().status());
    COPPICE_RETURN_IF_ERROR(WriteAnswered());
  }
  return OkStatus();
}

Result<bool> ScoreRunner::Begin(LineReader* reader) {
  LineReader::Line read;
  COPPICE_ASSIGN_OR_RETURN(const bool more, reader->Next(&read));
  if (!more) return false;
  if (openai::Trimmed(read.text).empty()) return true;
  auto line = std::make_shared<Line>();
  line->identity = {.number = read.number, .id = openai::LineId(read.text)};
  COPPICE_ASSIGN_OR_RETURN(const bool has_answer, output_.HasAnswer(line->identity));
  if (has_answer) return true;
  lines_.push_back(line);
  if (read.too_long) {
    line->answer = Answer{
        .status = InvalidArgument(fmt::format("the line has {} bytes, expected at most {}", read.size, LineReader::kMaxLineBytes))};
  } else {
    Start(line, read.text);
  }
  return true;
}

void ScoreRunner::Start(const std::shared_ptr<Line>& line, const std::string& text) {
  const Result<nlohmann::json> body = ParseJson(text);
  if (!body.ok()) {
    line->answer = Answer{.status = InvalidArgument(body.status().message())};
    return;
  }
  openai::BodyError error;
  std::optional<openai::ScoreRequest> request = openai::ParseScore(*body, parser_, &error);
  if (!request) {
    line->answer = Answer{.status = std::move(error.status), .param = std::move(error.param)};
    return;
  }
  ignored_.Add(request->ignored_fields);
  const auto held = std::make_shared<const openai::ScoreRequest>(*std::move(request));
  // On the engine's thread, which may end after this runner.
  (void)ScoreCall::Start(&engine_, *held, [line, held, model = model_](ScoreCall::Outcome outcome) {
    Answer answer = AnswerOf(line->identity, model, held, std::move(outcome));
    const std::lock_guard lock(line->mutex);
    line->answer = std::move(answer);
  });
}

Status ScoreRunner::WriteAnswered() {
  while (!lines_.empty()) {
    Line& line = *lines_.front();
    std::unique_lock lock(line.mutex);
    if (!line.answer) break;
    Answer answer = *std::move(line.answer);
    lock.unlock();
    ++(answer.status.ok() ? answered_ : failed_);
    COPPICE_RETURN_IF_ERROR(output_.Write(line.identity, std::move(answer)));
    lines_.pop_front();
  }
  return OkStatus();
}

Status CheckFiles(ScoreOptions& options) {
  if (!options.keeps()) {
    return options.errors.empty()
               ? OkStatus()
               : InvalidArgument("--errors needs an output that is a file; standard output has the errors in their places");
  }
  std::error_code absent;  // reported where it is opened
  if (options.input == "-" ||
      (std::filesystem::exists(options.input, absent) && !std::filesystem::is_regular_file(options.input, absent)))
    return InvalidArgument(
        fmt::format("the input is {}, expected a file: with an output the same command goes on after a kill and reads it "
                    "again; leave the output out to answer on standard output",
                    options.input == "-" ? "standard input" : options.input));
  if (options.errors.empty()) options.errors = options.output + ".errors";
  return CheckDifferentFiles(*options.command,
                             {{"the input", options.input}, {"the output", options.output}, {"--errors", options.errors}});
}

Result<ExitCode> Score(ScoreOptions options) {
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  COPPICE_RETURN_IF_ERROR(CheckFiles(options));
  COPPICE_ASSIGN_OR_RETURN(LineReader reader,
                           options.input == "-" ? LineReader::OpenStandardInput() : LineReader::Open(options.input, "the input"));
  COPPICE_ASSIGN_OR_RETURN(options.engine.model_path, hub::FindModel(options.engine.model_path));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<ScoreOutput> output, OpenOutput(options));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(options.engine));
  ReportNotes(*engine);
  const int32_t max_context = options.engine.max_context > 0 ? options.engine.max_context : engine->model_info().context_length;
  const openai::OpenAiRequestParser parser(engine->tokenizer(), max_context, engine->model_info().tokenizer_status,
                                           /*vocab_size=*/0, {.unknown_fields = options.unknown_fields});
  CatchFirstInterrupt();
  ScoreRunner runner(engine.get(), &parser, ModelName(options.engine.model_path), options.queue, output.get());
  COPPICE_RETURN_IF_ERROR(runner.Run(&reader));
  runner.ignored().Log(options.input);
  COPPICE_RETURN_IF_ERROR(output->Finish(runner.answered()));
  if (Interrupted()) return ExitCode::kInterrupted;
  return runner.failed() > 0 ? ExitCode::kFailure : ExitCode::kOk;
}

}  // namespace

Command AddScoreCommand(CLI::App& app) {
  const auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = app.add_subcommand("score", "Log-likelihoods of continuations of prompts, a prompt and a line of JSON each");
  options->command = command;
  command->add_option("input", options->input, "JSON lines: prompt, continuations; -: standard input")
      ->required()
      ->check(NotEmpty());
  command
      ->add_option("output", options->output,
                   "JSON lines of answers, in the input's order; if it exists, the rest is done (default: -, standard output)")
      ->check(NotEmpty());
  command->add_option("--errors", options->errors, "JSON lines of what could not be answered (default: OUTPUT.errors)")
      ->check(NotEmpty());
  command->add_option("--queue", options->queue, "Lines under way at the same moment")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  AddParsed<openai::UnknownFields>(*command, "--unknown-fields", options->unknown_fields, openai::ParseUnknownFields,
                                   "Fields of lines that are not known: ignore (reported on stderr), or refuse")
      ->default_str("ignore");
  AddEngineOptions(*command, options->engine);
  AddRecordOption(*command, options->engine);
  return {command, [options] { return Score(*options); }};
}

}  // namespace coppice::cli
