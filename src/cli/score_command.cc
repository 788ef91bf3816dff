#include "cli/score_command.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/interrupt.h"
#include "cli/model_notes.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/standard_output.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/json.h"
#include "core/text_source.h"
#include "hub/model_store.h"
#include "openai/line_reader.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/score.h"
#include "openai/unknown_fields.h"

namespace coppice::cli {
namespace {

using nlohmann::ordered_json;
using openai::LineReader;
using openai::ScoreCall;

struct ScoreOptions {
  EngineOptions engine;
  std::string input;
  size_t queue = 16;
  openai::UnknownFields unknown_fields = openai::UnknownFields::kIgnore;
};

// Lines under way, in the order of the file: so their answers are printed.
class ScoreRunner {
 public:
  ScoreRunner(Engine* engine, const openai::OpenAiRequestParser* parser, std::string model, size_t queue)
      : engine_(*engine), parser_(*parser), model_(std::move(model)), queue_(queue) {}

  Status Run(LineReader* reader);
  int64_t failed() const { return failed_; }
  const openai::IgnoredFields& ignored() const { return ignored_; }

 private:
  struct Line {
    int64_t number = 0;
    openai::ScoreRequest request;
    std::mutex mutex;  // guards what follows
    std::optional<std::string> answer;
    bool failed = false;
  };

  // Whether there was a line.
  Result<bool> Begin(LineReader* reader);
  void Start(const std::shared_ptr<Line>& line, const std::string& text);
  void Answer(const std::shared_ptr<Line>& line, ScoreCall::Outcome outcome) const;
  static void Fail(Line* line, const Status& status, std::string_view param);
  Status PrintAnswered();

  Engine& engine_;
  const openai::OpenAiRequestParser& parser_;
  const std::string model_;
  const size_t queue_;
  std::deque<std::shared_ptr<Line>> lines_;
  openai::IgnoredFields ignored_;
  int64_t failed_ = 0;
};

Status ScoreRunner::Run(LineReader* reader) {
  bool more = true;
  while (!Interrupted() && (more || !lines_.empty())) {
    while (more && lines_.size() < queue_) {
      COPPICE_ASSIGN_OR_RETURN(more, Begin(reader));
    }
    COPPICE_RETURN_IF_ERROR(engine_.Step().status());
    COPPICE_RETURN_IF_ERROR(PrintAnswered());
  }
  return OkStatus();
}

Result<bool> ScoreRunner::Begin(LineReader* reader) {
  LineReader::Line read;
  COPPICE_ASSIGN_OR_RETURN(const bool more, reader->Next(&read));
  if (!more) return false;
  if (read.text.find_first_not_of(" \t\r\n") == read.text.npos) return true;
  auto line = std::make_shared<Line>();
  line->number = read.number;
  lines_.push_back(line);
  if (read.too_long) {
    Fail(line.get(),
         InvalidArgument(fmt::format("the line has {} bytes, expected at most {}", read.size, LineReader::kMaxLineBytes)), "");
  } else {
    Start(line, read.text);
  }
  return true;
}

void ScoreRunner::Start(const std::shared_ptr<Line>& line, const std::string& text) {
  const Result<nlohmann::json> body = ParseJson(text);
  if (!body.ok()) return Fail(line.get(), InvalidArgument("the line " + body.status().message()), "");
  openai::BodyError error;
  std::optional<openai::ScoreRequest> request = openai::ParseScore(*body, parser_, &error);
  if (!request) return Fail(line.get(), error.status, error.param);
  ignored_.Add(request->ignored_fields);
  line->request = *std::move(request);
  (void)ScoreCall::Start(&engine_, line->request, [this, line](ScoreCall::Outcome outcome) { Answer(line, std::move(outcome)); });
}

void ScoreRunner::Answer(const std::shared_ptr<Line>& line, ScoreCall::Outcome outcome) const {
  if (!outcome.status.ok()) return Fail(line.get(), outcome.status, "");
  using Clock = std::chrono::system_clock;
  const auto created = std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count();
  const std::unique_ptr<TextSource> body = ScoreBody({line, &line->request}, std::move(outcome),
                                                     {.id = fmt::format("{}", line->number), .created = created, .model = model_});
  const std::lock_guard lock(line->mutex);
  line->answer = TextOf(body.get());
}

void ScoreRunner::Fail(Line* line, const Status& status, std::string_view param) {
  ordered_json error = openai::ErrorBody(status, param);
  error["line"] = line->number;
  const std::lock_guard lock(line->mutex);
  line->answer = DumpJson(std::move(error));
  line->failed = true;
}

Status ScoreRunner::PrintAnswered() {
  std::string text;
  while (!lines_.empty()) {
    Line& line = *lines_.front();
    {
      const std::lock_guard lock(line.mutex);
      if (!line.answer) break;
      failed_ += line.failed;
      text += *line.answer + "\n";
    }
    lines_.pop_front();
  }
  return text.empty() ? OkStatus() : Print(text);
}

Result<ExitCode> Score(ScoreOptions options) {
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  COPPICE_ASSIGN_OR_RETURN(options.engine.model_path, hub::FindModel(options.engine.model_path));
  COPPICE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(options.input, "the input"));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options.engine));
  TellNotes(*engine);
  const int32_t max_context = options.engine.max_context > 0 ? options.engine.max_context : engine->model_info().context_length;
  const openai::OpenAiRequestParser parser(engine->tokenizer(), max_context, engine->tokenizer_status(), /*vocab_size=*/0,
                                           {.unknown_fields = options.unknown_fields});
  CatchFirstInterrupt();
  ScoreRunner runner(engine.get(), &parser, std::filesystem::path(options.engine.model_path).filename().string(), options.queue);
  COPPICE_RETURN_IF_ERROR(runner.Run(&reader));
  runner.ignored().Log(options.input);
  if (Interrupted()) return ExitCode::kInterrupted;
  return runner.failed() > 0 ? ExitCode::kFailure : ExitCode::kOk;
}

}  // namespace

Command AddScoreCommand(CLI::App& app) {
  const auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = app.add_subcommand("score", "Log-likelihoods of continuations of prompts, a prompt and a line of JSON each");
  command->add_option("input", options->input, "JSON lines: prompt, continuations")->required()->check(NotEmpty());
  command->add_option("--queue", options->queue, "Lines under way at the same moment")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  AddParsed<openai::UnknownFields>(*command, "--unknown-fields", options->unknown_fields, openai::ParseUnknownFields,
                                   "Fields of lines that are not known: ignore (told on stderr), or refuse")
      ->default_str("ignore");
  AddEngineOptions(*command, options->engine);
  return {command, [options] { return Score(*options); }};
}

}  // namespace coppice::cli
