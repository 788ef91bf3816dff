#include "python/stepped_engine.h"

#include <nlohmann/json.hpp>
#include <stop_token>
#include <utility>

#include "core/check.h"
#include "core/json.h"
#include "hub/model_store.h"

namespace coppice::python {
namespace {

using openai::BodyError;
using openai::Endpoint;
using openai::OpenAiRequest;
using openai::OpenAiRequestParser;

}  // namespace

Result<std::shared_ptr<SteppedEngine>> SteppedEngine::Create(const EngineOptions& options) {
  EngineOptions found = options;
  COPPICE_ASSIGN_OR_RETURN(found.model_path, hub::FindModel(options.model_path));
  found.event_thread = true;
  auto announcements = std::make_unique<StepAnnouncements>();
  found.on_events_sent = [to_make = announcements.get()] { to_make->MakeAll(); };
  auto state = std::make_unique<State>();
  COPPICE_ASSIGN_OR_RETURN(state->engine, Engine::Create(found));
  const ModelInfo& model = state->engine->model_info();
  const int32_t context = found.max_context > 0 ? found.max_context : model.context_length;
  state->parser =
      std::make_unique<OpenAiRequestParser>(state->engine->tokenizer(), context, model.tokenizer_status, model.vocab_size);
  state->thread = std::jthread([engine = state->engine.get()](std::stop_token stop) {
    // A step's error comes with the events of its requests.
    while (!stop.stop_requested()) (void)engine->Run(stop);
  });
  return std::shared_ptr<SteppedEngine>(new SteppedEngine(std::move(announcements), std::move(state)));
}

SteppedEngine::~SteppedEngine() {
  if (!process_.here()) {
    (void)state_.release();  // its thread is not in this process, and cannot be waited for
  } else {
    Close();
  }
}

Status SteppedEngine::CheckUsable() const {
  COPPICE_RETURN_IF_ERROR(process_.Check());
  if (closed_) return FailedPrecondition("the LLM is closed");
  return OkStatus();
}

void SteppedEngine::Close() {
  if (!process_.here()) return;
  const std::unique_lock lock(open_);
  if (closed_.exchange(true)) return;
  state_->thread.request_stop();
  state_->thread.join();
  state_->engine.reset();
}

Result<std::shared_ptr<const TokenConstraint>> SteppedEngine::Compile(const GrammarSource& source) {
  const std::lock_guard lock(state_->compiling);
  if (!state_->compiler) {
    const Engine& engine = *state_->engine;
    if (!engine.tokenizer())
      return FailedPrecondition(engine.model_info().tokenizer_status.message() + "; samples have no text to constrain");
    COPPICE_ASSIGN_OR_RETURN(state_->compiler, GrammarCompiler::Create(*engine.tokenizer(), engine.model_info().vocab_size));
  }
  return state_->compiler->Compile(source);
}

Result<Request> SteppedEngine::MakeRequest(const std::string& body) {
  return With([&](Engine&) -> Result<Request> {
    COPPICE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(body));
    const Endpoint endpoint = json.contains("messages") ? Endpoint::kChatCompletions : Endpoint::kCompletions;
    COPPICE_ASSIGN_OR_RETURN(const nlohmann::ordered_json tools, openai::ToolsInOrder(body));
    COPPICE_ASSIGN_OR_RETURN(const std::string schema, openai::ResponseSchemaInOrder(body));
    BodyError error;
    std::optional<OpenAiRequest> parsed = parser().Parse(endpoint, json, &error, {}, tools.is_null() ? nullptr : &tools, schema);
    if (!parsed) return error.status;
    COPPICE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, parser().Encode(*parsed));
    parser().SetPrompt(std::move(ids), &*parsed);
    if (parsed->output) {
      auto compiled = Compile(parsed->output->source);
      if (!compiled.ok()) return parsed->output->ErrorOf(compiled.status()).status;
      parsed->request.constraint = std::move(compiled).value();
    }
    return std::move(parsed->request);
  });
}

}  // namespace coppice::python
