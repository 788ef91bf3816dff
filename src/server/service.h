// The routes of the server over one engine: OpenAI's completions, chats and models, tokens, health and metrics. Knows no sockets.
// Layer: server.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/engine/engine.h"
#include "grammar/compile_queue.h"
#include "grammar/fork_server.h"
#include "grammar/grammar_compiler.h"
#include "openai/request.h"
#include "openai/score.h"
#include "server/access.h"
#include "server/answer_limits.h"
#include "server/batch_routes.h"
#include "server/batch_store.h"
#include "server/call.h"
#include "server/cross_origin.h"
#include "server/fair_threads.h"
#include "server/file_store.h"
#include "server/generation_call.h"
#include "server/http.h"
#include "server/prefix_store.h"
#include "server/request_log.h"
#include "server/router.h"
#include "server/sample_store.h"
#include "server/server_info.h"
#include "server/server_metrics.h"
#include "server/trainer/trainer_routes.h"

namespace coppice::server {

struct JsonBody;

struct BatchLimits {
  int64_t max_requests = 50'000;              // of a batch
  size_t max_line_bytes = size_t{10} << 20;   // of its input
  int32_t max_active = 64, max_waiting = 16;  // BatchRunOptions
  BatchStoreOptions store;
};

struct ServiceOptions {
  std::string model;                 // the name that answers give
  std::vector<std::string> aliases;  // other names under which clients find it
  std::string version;               // of the program
  int32_t max_context = 0;           // tokens of prompt and output
  int32_t world_size = 1;            // ranks that the model is divided among
  int32_t max_waiting = 0;  // EngineOptions::max_waiting: a list of prompts or continuations that has more samples is refused
  AccessOptions access;
  PrefixStoreOptions prefixes;
  SampleStoreOptions samples;
  FileStoreOptions files;
  BatchLimits batches;
  AnswerLimits answers;
  bool only_local_hosts = false;  // requests for other hosts than this machine and `host_names` are refused with 403
  std::vector<std::string> host_names;
  openai::RequestRules rules = {.unknown_fields = openai::UnknownFields::kIgnore};
  CrossOrigin cross_origin;  // pages of other sites that may ask
  LogForm log_form = LogForm::kText;
  bool log_text = false;  // bodies of requests are in the log, which else holds no prompt
  // Of StartGrammarProcess, for grammars of clients. Without it they are compiled here, and one that is begun goes on to its end.
  std::shared_ptr<ForkServer> grammar_process;
  std::optional<TrainerControl::Options> trainer;  // none: there are no routes of trainers
};

// Thread-safe. `engine` outlives it; somebody else steps it.
class Service {
 public:
  Service(Engine* engine, ServiceOptions options);
  ~Service() { StopTrainer(); }

  // What an earlier server kept. Before the engine is stepped.
  Status RestorePrefixes() { return prefixes_.Restore(); }
  // After the prefixes, which unfinished batches may name.
  Status RestoreBatches() { return batches_.Restore(); }
  // What becomes of a request with this head (HttpServer::Planner): all that can be refused is refused before its body is read. Its
  // `handle` parses and tokenises on the calling thread.
  RequestPlan Plan(HttpRequest head);
  // Answers a request that is there whole into `responder`, now or later.
  void Handle(HttpRequest request, std::shared_ptr<Responder> responder);
  // From now on generations are refused with 503 and /ready says so, with `why`, which lives as long as the program; those under
  // way go on, batches with the next start. A generation is under way when the form of its output is compiled.
  void Drain(const char* why = "the server is shutting down") {
    draining_ = why;
    batches_.Stop();
    if (compile_queue_) compile_queue_->Stop(Unavailable(why));
    if (trainer_) trainer_->control().Drain(Unavailable(why));
  }
  // Ends what trainers have asked for and has not begun, and waits for what has. Called before the engine is stepped no more.
  void StopTrainer() {
    if (trainer_) trainer_->control().Join();
  }
  int64_t active() const { return access_.active(); }

 private:
  std::unique_ptr<TrainerRoutes> MakeTrainer();
  std::vector<Route> Routes();
  // Nothing: the call's key is none of a trainer.
  std::optional<TrainerFacts> FactsForTrainer(const Call& call) const;

  // Parses the body and frees its text: the call may last for long. Nothing, with the answer given, where it cannot be read.
  // `endpoint`: whose OrderedParts it may have, in the body's object `member`; empty: in the body itself.
  std::optional<JsonBody> TakeBody(const std::shared_ptr<Call>& call, std::optional<openai::Endpoint> endpoint = {},
                                   std::string_view member = {});

  void Health(const std::shared_ptr<Call>& call);
  void Ready(const std::shared_ptr<Call>& call);
  void Version(const std::shared_ptr<Call>& call);
  void Metrics(const std::shared_ptr<Call>& call);
  void Page(const std::shared_ptr<Call>& call);
  void Tree(const std::shared_ptr<Call>& call);
  void LastPlan(const std::shared_ptr<Call>& call);
  void Models(const std::shared_ptr<Call>& call);
  void Model(const std::shared_ptr<Call>& call);
  void OpenApi(const std::shared_ptr<Call>& call);
  void ServerInfo(const std::shared_ptr<Call>& call);
  void ModelInfo(const std::shared_ptr<Call>& call);
  void Completions(const std::shared_ptr<Call>& call);
  void ChatCompletions(const std::shared_ptr<Call>& call);
  void Responses(const std::shared_ptr<Call>& call);
  void Infill(const std::shared_ptr<Call>& call);
  void GenerateTokens(const std::shared_ptr<Call>& call);
  void SglangGenerate(const std::shared_ptr<Call>& call);
  void Score(const std::shared_ptr<Call>& call);
  void PutPrefix(const std::shared_ptr<Call>& call);
  void GetPrefix(const std::shared_ptr<Call>& call);
  void DeletePrefix(const std::shared_ptr<Call>& call);
  void ListPrefixes(const std::shared_ptr<Call>& call);
  // sample_routes.cc:
  void GetSample(const std::shared_ptr<Call>& call);
  void DeleteSample(const std::shared_ptr<Call>& call);
  void ForkSample(const std::shared_ptr<Call>& call);
  void ExtendSample(const std::shared_ptr<Call>& call);
  void PruneSample(const std::shared_ptr<Call>& call);
  void FilesAndBatches(const std::shared_ptr<Call>& call);
  void Tokenize(const std::shared_ptr<Call>& call);
  void TokenizerInfo(const std::shared_ptr<Call>& call);
  void Detokenize(const std::shared_ptr<Call>& call);

  nlohmann::ordered_json ModelObject(const std::string& name) const;
  // Access::Admit for `call->admission`; false, with the answer given, where it refuses.
  bool Admit(const std::shared_ptr<Call>& call, const RequestCost& cost);
  // Tells the client and the log of fields that were ignored.
  static void TellIgnored(const std::shared_ptr<Call>& call, const std::vector<std::string>& fields);
  void Generate(openai::Endpoint endpoint, const std::shared_ptr<Call>& call);
  // Encodes, admits and starts what was parsed. `seeded`: the request says by what random numbers it draws.
  void Take(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts, bool seeded);
  // An admitted generation: compiles the form of its output first, where it has one.
  void Compile(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts);
  void AnswerUncompiled(const std::shared_ptr<Call>& call, const openai::BodyError& error);
  void Start(const std::shared_ptr<Call>& call, std::vector<openai::OpenAiRequest> prompts);
  // A generation's, but for what it tells: its engine, its client and its end, which is counted and logged.
  GenerationCall::Parts PartsOf(const std::shared_ptr<Call>& call);
  // sample_routes.cc. Names for the samples of prompts that are to be kept for so long; false, with the answer given: there are
  // none.
  bool Keep(const std::shared_ptr<Call>& call, double seconds, std::span<openai::OpenAiRequest> prompts);
  // Makes `call.samples` those of `prompts` as they are submitted.
  static decltype(GenerationCall::Parts::on_kept) KeepPrompts(const Call& call, std::span<const openai::OpenAiRequest> prompts);
  // The sample that the call's path names. nullopt, with the answer given: there is none for this key and salt.
  std::optional<SampleStore::Sample> FindSample(const std::shared_ptr<Call>& call, const std::string& salt);
  // Likewise, with the salt in the query.
  std::optional<SampleStore::Sample> FindSample(const std::shared_ptr<Call>& call);
  void AnswerVerbError(const std::shared_ptr<Call>& call, const Status& status);
  struct SampleVerb;
  std::optional<SampleVerb> TakeVerb(const std::shared_ptr<Call>& call, openai::FieldReader& fields);
  // Whether the answer may be that large, and the key has tokens and places for it; else the answer was given. `keep_tokens`: of a
  // fork. Adds to `verb->tokens` those of the sample.
  bool AdmitVerb(const std::shared_ptr<Call>& call, std::optional<int32_t> keep_tokens, SampleVerb* verb);
  void StartVerb(const std::shared_ptr<Call>& call, SampleVerb verb, const std::shared_ptr<openai::KeptRequest::Group>& group);
  void AnswerScore(const std::shared_ptr<Call>& call, std::shared_ptr<const openai::ScoreRequest> request,
                   openai::ScoreCall::Outcome outcome);
  openai::FindNamedPrefix PrefixesOf(const std::string& key);
  BatchContext ContextOfBatches();
  // Finds the route, and `call->key`, by the head alone; else answers 401, 403, 404, 405 or 415.
  const Route* FindRoute(const std::shared_ptr<Call>& call);
  // Does a part of the call; where that throws, the call is answered with why.
  template <class Work>
  void Try(const std::shared_ptr<Call>& call, const Work& work);
  RequestPlan PlanOf(const Route& route, const std::shared_ptr<Call>& call);
  // Whether the call was answered with 503, since the server ends.
  bool RefuseWhenDraining(const std::shared_ptr<Call>& call);
  void Answer(const std::shared_ptr<Call>& call, HttpResponse response);
  void Log(const Call& call, int status) const;

  Engine& engine_;
  const ServiceOptions options_;
  const ServerFacts facts_;
  ActiveCalls active_calls_;
  const std::unique_ptr<TrainerRoutes> trainer_;  // null: off
  const Router router_;
  const openai::OpenAiRequestParser parser_;
  const int64_t created_;  // seconds since 1970
  mutable ServerMetrics metrics_;
  Access access_;
  PrefixStore prefixes_;
  const std::shared_ptr<SampleStore> samples_;
  std::atomic<const char*> draining_{nullptr};
  const Result<std::unique_ptr<GrammarCompiler>> grammars_;
  const std::unique_ptr<CompileQueue> compile_queue_;  // null: outputs have no form
  FileStore files_;
  BatchStore batches_;  // after all that its threads use
  BatchRoutes batch_routes_;
  FairThreads vote_readers_{1};  // for regular expressions of clients; the last member: it ends first
};

}  // namespace coppice::server
