#include "cli/chat_command.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/chat_session.h"
#include "cli/command_tree.h"
#include "cli/forest_recorder.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/live_output.h"
#include "cli/load_engine.h"
#include "cli/parsed_option.h"
#include "cli/read_file.h"
#include "cli/run_options.h"
#include "cli/run_output.h"
#include "cli/standard_output.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/file.h"
#include "core/quoted.h"
#include "hub/model_store.h"
#include "openai/generation.h"

namespace coppice::cli {
namespace {

using openai::Generation;
using openai::Sample;

struct ChatOptions {
  RunOptions run;  // its engine, the sampling of its request, its system message
  std::string load;
};

constexpr std::string_view kHelp =
    "/n 8           eight samples of each answer; they read the conversation together\n"
    "/vote REGEX    the answer that most samples give goes on; /vote: the most probable one\n"
    "/pick 3        sample 3 of the last answer goes on\n"
    "/system TEXT   the system message; /system: none\n"
    "/clear         a new conversation, with the same system message\n"
    "/save FILE     writes the conversation; /load FILE goes on with one\n"
    "/tree          what of conversations is stored, and how often it was found again\n"
    "/quit          ends, as Ctrl-D does; Ctrl-C ends the answer under way\n"
    "A line that ends in \\ goes on in the next one; \"\"\" begins and ends several lines.\n";

// A conversation and the engine that answers.
class Chat {
 public:
  Chat(Engine* engine, ChatOptions options) : engine_(*engine), options_(std::move(options)) {
    if (options_.run.system) session_.SetSystem(*options_.run.system);
  }

  // Until the input ends. Where it is no terminal, the first error ends it.
  Result<ExitCode> Run();
  Status Load(const std::string& path);

 private:
  // The user's next message or command, of one or several lines; none at the end of the input.
  std::optional<std::string> ReadMessage();
  // False: the chat is over.
  Result<bool> Take(const std::string& text);
  Status Answer(const std::string& user);
  Result<Generation> Generate(Request request);
  // The index of the finished sample that goes on.
  Result<size_t> Choose(const Generation& generation) const;
  Status SetSamples(const std::string& argument);
  Status SetVote(const std::string& argument);
  Status Pick(const std::string& argument);
  Status Save(const std::string& path);
  std::string Tree() const;

  void ShowNote(const std::string& text) const {
    if (!options_.run.quiet) fmt::print(stderr, "{}", text);
  }

  Engine& engine_;
  ChatOptions options_;
  LineEditor lines_;
  ChatSession session_;
  uint64_t turns_ = 0;
};

Result<int32_t> ParseNumber(const std::string& text, std::string_view command, int32_t least) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least) return number;
  return InvalidArgument(fmt::format("{} has {}, expected a number of at least {}", command, Quoted(text), least));
}

Result<ExitCode> Chat::Run() {
  if (lines_.is_terminal()) ShowNote("/help lists what there is beside messages\n");
  while (const std::optional<std::string> text = ReadMessage()) {
    Result<bool> goes_on = Take(*text);
    if (!goes_on.ok() && !lines_.is_terminal()) return goes_on.status();
    if (!goes_on.ok()) fmt::print(stderr, "{}\n", goes_on.status().message());
    if (goes_on.ok() && !*goes_on) break;
  }
  if (lines_.is_terminal()) ShowNote("\n");
  return ExitCode::kOk;
}

std::optional<std::string> Chat::ReadMessage() {
  constexpr std::string_view kBlock = "\"\"\"";
  std::optional<std::string> line = lines_.Read("> ");
  if (!line) return std::nullopt;
  if (line->starts_with(kBlock)) {
    std::string text = line->substr(kBlock.size());
    while (!text.ends_with(kBlock)) {
      line = lines_.Read(". ");
      if (!line) return text;
      text += (text.empty() ? "" : "\n") + *line;
    }
    text.resize(text.size() - kBlock.size());
    if (text.ends_with('\n')) text.pop_back();
    return text;
  }
  std::string text = *line;
  while (text.ends_with('\\')) {
    text.back() = '\n';
    line = lines_.Read(". ");
    if (!line) break;
    text += *line;
  }
  return text;
}

Result<bool> Chat::Take(const std::string& text) {
  const std::optional<ChatCommand> command = ParseChatCommand(text);
  if (!command) {
    if (text.find_first_not_of(" \t\n") != std::string::npos) COPPICE_RETURN_IF_ERROR(Answer(text));
    return true;
  }
  const std::string& argument = command->argument;
  if (command->name == "/quit" || command->name == "/exit" || command->name == "/bye") return false;
  const std::map<std::string, std::function<Status()>> commands = {
      {"/help", [] { return Print(kHelp); }},
      {"/n", [&] { return SetSamples(argument); }},
      {"/vote", [&] { return SetVote(argument); }},
      {"/pick", [&] { return Pick(argument); }},
      {"/system", [&] { return session_.SetSystem(argument), OkStatus(); }},
      {"/clear", [&] { return session_.Clear(), OkStatus(); }},
      {"/save", [&] { return Save(argument); }},
      {"/load", [&] { return Load(argument); }},
      {"/tree", [&] { return Print(Tree()); }},
  };
  const auto found = commands.find(command->name);
  if (found == commands.end()) {
    std::vector<std::string> names;
    for (const auto& [name, run] : commands) names.push_back(name);
    return InvalidArgument(
        fmt::format("{} is no command of the chat{}; see /help", Quoted(command->name), DidYouMean(command->name, names)));
  }
  COPPICE_RETURN_IF_ERROR(found->second());
  return true;
}

Status Chat::Answer(const std::string& user) {
  COPPICE_ASSIGN_OR_RETURN(const ChatPrompt prompt, engine_.tokenizer()->RenderChat(session_.With(user)));
  Request request = options_.run.request;
  COPPICE_ASSIGN_OR_RETURN(request.prompt_ids, engine_.tokenizer()->Encode(prompt));
  request.sampling.seed += turns_++;  // a question that is asked again gets another answer
  CatchFirstInterrupt();
  const Result<Generation> generated = Generate(std::move(request));
  ForgetInterrupt();
  COPPICE_RETURN_IF_ERROR(generated.status());
  const Generation& generation = *generated;
  if (generation.samples.empty()) return OkStatus();  // interrupted before there was one
  COPPICE_ASSIGN_OR_RETURN(const size_t chosen, Choose(generation));
  std::vector<std::string> texts;
  for (const Sample& sample : generation.samples) texts.push_back(sample.text);
  if (texts.size() > 1) ShowNote(fmt::format("sample {} goes on; /pick takes another one\n", chosen));
  session_.Answered(user, std::move(texts), chosen);
  return OkStatus();
}

// Prints one sample as it comes, several as they end.
Result<Generation> Chat::Generate(Request request) {
  const bool streams = request.n == 1;
  LiveOutput live({.streams = streams, .prints_samples = !streams, .shows_progress = !options_.run.quiet});
  Result<Generation> generation = openai::Generate(engine_, std::move(request), live.Hooks());
  COPPICE_RETURN_IF_ERROR(live.End());
  return generation;
}

Result<size_t> Chat::Choose(const Generation& generation) const {
  const std::vector<const Sample*> best = openai::Select(generation.samples, {.rank = true});
  const size_t most_probable = best.empty() ? 0 : best.front()->index;
  if (generation.samples.size() == 1 || !options_.run.vote) return most_probable;
  COPPICE_ASSIGN_OR_RETURN(const std::vector<VotedAnswer> votes, openai::Vote(generation.samples, *options_.run.vote));
  COPPICE_RETURN_IF_ERROR(Print(FormatVotes(votes, static_cast<int32_t>(best.size()))));
  if (votes.empty()) return most_probable;
  for (const Sample* sample : best) {
    if (std::ranges::find(votes.front().voters, sample->index) != votes.front().voters.end()) return sample->index;
  }
  return most_probable;
}

Status Chat::SetSamples(const std::string& argument) {
  COPPICE_ASSIGN_OR_RETURN(options_.run.request.n, ParseNumber(argument, "/n", 1));
  return OkStatus();
}

Status Chat::SetVote(const std::string& argument) {
  if (argument.empty()) {
    options_.run.vote.reset();
    return OkStatus();
  }
  COPPICE_RETURN_IF_ERROR(ExtractAnswer("", argument).status());
  options_.run.vote = argument;
  return OkStatus();
}

Status Chat::Pick(const std::string& argument) {
  COPPICE_ASSIGN_OR_RETURN(const int32_t index, ParseNumber(argument, "/pick", 0));
  return session_.Pick(index);
}

Status Chat::Save(const std::string& path) {
  if (path.empty()) return InvalidArgument("/save needs the name of a file");
  COPPICE_ASSIGN_OR_RETURN(const std::string target, ResolveOutput(path));
  COPPICE_RETURN_IF_ERROR(CheckReplaceable(target, path, "{", "a conversation"));
  return ReplaceFile(target, session_.ToJson());
}

Status Chat::Load(const std::string& path) {
  if (path.empty()) return InvalidArgument("/load needs the name of a file");
  COPPICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, "/load"));
  const Status loaded = session_.FromJson(text);
  return loaded.ok() ? loaded : InvalidArgument(fmt::format("{}: {}", path, loaded.message()));
}

std::string Chat::Tree() const {
  const std::vector<CachedPrefix> nodes = engine_.Metrics().prefixes;
  if (nodes.empty()) return "nothing is stored yet\n";
  std::map<int32_t, int> depths;  // by node; parents come first
  std::string text;
  for (const CachedPrefix& node : nodes) {
    const int depth = depths[node.id] = node.parent == 0 ? 0 : depths[node.parent] + 1;
    text += fmt::format("{}tokens {} to {}: {} tokens stored once, found again {} times\n",
                        std::string(2 * std::min(depth, 8), ' '), node.begin, node.end, node.end - node.begin, node.hits);
  }
  return text;
}

Result<ExitCode> RunChat(ChatOptions options) {
  RunOptions& run = options.run;
  run.chat = true;
  COPPICE_RETURN_IF_ERROR(Validate(run));
  COPPICE_ASSIGN_OR_RETURN(run.engine.model_path, hub::FindModel(run.engine.model_path));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           LoadEngine(run.engine, run.quiet ? LoadingIs::kSilent : LoadingIs::kShown));
  ReportNotes(*engine);
  if (!engine->tokenizer())
    return FailedPrecondition(engine->model_info().tokenizer_status.message() + "; a chat needs a tokenizer");
  if (engine->tokenizer()->info().chat_template.empty())
    return InvalidArgument("the model has no chat template: it was not trained to chat; use coppice run");
  TakeSamplingDefaults(engine->model_info(), &run);
  const std::string load = options.load;
  Chat chat(engine.get(), std::move(options));
  if (!load.empty()) COPPICE_RETURN_IF_ERROR(chat.Load(load));
  return chat.Run();
}

}  // namespace

Command AddChatCommand(CLI::App& app) {
  const auto options = std::make_shared<ChatOptions>();
  RunOptions& run = options->run;
  run.request.max_tokens = 1024;
  CLI::App* command = app.add_subcommand("chat", "Talk with a model; answers stream, and /n 8 draws eight of each");
  command->option_defaults()->group(kPromptGroup);
  command->add_option("--system", run.system, "System message");
  command->add_option("--load", options->load, "Go on with the conversation of a file that /save wrote")
      ->type_name("FILE")
      ->check(NotEmpty());
  AddSamplingOptions(*command, run);
  command->option_defaults()->group(kOutputGroup);
  command->add_option("--vote", run.vote,
                      "With several samples: the answer that most of them give goes on; a regex as in coppice run");
  command->add_flag("-q,--quiet", run.quiet, "Answers alone, no progress");
  command->add_flag("-v,--verbose", run.verbose, "Log to stderr what the program does");
  command->option_defaults()->group("Options");
  AddEngineOptions(*command, run.engine);
  AddRecordOption(*command, run.engine);
  command->footer("In the chat, /help lists its commands.");
  return {command, [options] {
            if (options->run.verbose) spdlog::set_level(spdlog::level::info);
            return RunChat(*options);
          }};
}

}  // namespace coppice::cli
