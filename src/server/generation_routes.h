// The routes that generate: OpenAI's completions, chats and responses, llama.cpp's /infill, and rollouts as vLLM and SGLang have
// them. Layer: server.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coppice/core/status.h"
#include "grammar/compile_queue.h"
#include "grammar/grammar_compiler.h"
#include "openai/body_error.h"
#include "openai/request.h"
#include "server/active_calls.h"
#include "server/call.h"
#include "server/fair_threads.h"
#include "server/generation_call.h"
#include "server/prefix_store.h"
#include "server/route_context.h"
#include "server/router.h"
#include "server/sample_store.h"
#include "server/weight_labels.h"

namespace coppice::server {

// Thread-safe.
class GenerationRoutes {
 public:
  struct Parts {  // all outlive the routes
    PrefixStore* prefixes = nullptr;
    SampleStore* samples = nullptr;
    ActiveCalls* calls = nullptr;
    const WeightLabels* labels = nullptr;
  };
  // `context` outlives it.
  GenerationRoutes(RouteContext* context, Parts parts);

  std::vector<Route> Routes();
  // Of the forms of outputs; null where the model has no tokenizer.
  CompileQueue* compile_queue() const { return compile_queue_.get(); }
  // Forms are compiled no more; calls that wait for one are answered with `why`.
  void Drain(const Status& why);
  // A generation's, but for its answer: its engine, its client and its end, which is counted and logged.
  GenerationCall::Parts PartsOf(const std::shared_ptr<Call>& call);

 private:
  void Completions(const std::shared_ptr<Call>& call);
  void ChatCompletions(const std::shared_ptr<Call>& call);
  void Responses(const std::shared_ptr<Call>& call);
  void Infill(const std::shared_ptr<Call>& call);
  void GenerateTokens(const std::shared_ptr<Call>& call);
  void SglangGenerate(const std::shared_ptr<Call>& call);

  void Generate(openai::Endpoint endpoint, const std::shared_ptr<Call>& call);
  // Encodes, admits and starts what was parsed. `seeded`: the request says by what random numbers it draws.
  void Take(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts, bool seeded);
  void TakeOne(const std::shared_ptr<Call>& call, openai::OpenAiRequest prompt, bool seeded);
  // An admitted generation: compiles the form of its output first, where it has one.
  void Compile(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts);
  void AnswerUncompiled(const std::shared_ptr<Call>& call, const openai::BodyError& error);
  void Start(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts);
  // Names for the samples of prompts that are to be kept for so long; false, with the answer given: there are none.
  bool Keep(const std::shared_ptr<Call>& call, double seconds, std::span<openai::OpenAiRequest> prompts);
  // Makes `call.samples` those of `prompts` as they are submitted.
  static decltype(GenerationCall::Parts::on_kept) KeepPrompts(const Call& call, std::span<const openai::OpenAiRequest> prompts);

  RouteContext& context_;
  const Parts parts_;
  const Result<std::unique_ptr<GrammarCompiler>> grammars_;
  FairThreads vote_readers_{1};                        // for regular expressions of clients
  const std::unique_ptr<CompileQueue> compile_queue_;  // last: its thread, which starts generations, ends first
};

}  // namespace coppice::server
