#include "cli/serve_command.h"

#include <fmt/format.h>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/bench_support.h"
#include "cli/command_tree.h"
#include "cli/config_file.h"
#include "cli/forest_recorder.h"
#include "cli/interrupt.h"
#include "cli/json_log.h"
#include "cli/load_engine.h"
#include "cli/parsed_option.h"
#include "cli/run_options.h"
#include "cli/sampling_source.h"
#include "cli/standard_output.h"
#include "coppice/engine/engine.h"
#include "core/check.h"
#include "core/file.h"
#include "engine/engine_parts.h"
#include "engine/open_device.h"
#include "grammar/fork_server.h"
#include "grammar/grammar_compiler.h"
#include "hub/model_store.h"
#include "openai/sampling_fields.h"
#include "server/http_server.h"
#include "server/service.h"
#include "server/serving.h"
#include "server/start_lines.h"

namespace coppice::cli {
namespace {

struct ServeOptions {
  EngineOptions engine;
  server::HttpServerOptions http;
  server::SampleStoreOptions samples;
  std::string config, api_keys, prefix_folder, file_folder;
  std::vector<std::string> model_names, host_names, trusted_proxies, allowed_origins;
  int32_t max_prefixes = 64, max_files = 500, batch_active = 0;
  int64_t max_file_bytes = int64_t{200} << 20, max_bytes_per_key = int64_t{20} << 30, max_batch_requests = 50'000;
  int64_t max_prefix_tokens = 0;
  server::AccessOptions access;
  server::AnswerLimits answers;
  double max_prefix_ttl = 0, drain_seconds = 60;
  openai::UnknownFields unknown_fields = openai::UnknownFields::kIgnore;
  SamplingSource sampling_defaults = SamplingSource::kModel;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  bool sampling_named = false;  // --sampling-defaults was given
  bool allow_public = false, log_json = false, log_text = false, null = false, trainer = false;
  double trainer_timeout = 60;
  std::chrono::nanoseconds null_step{};
};

// Options that --trainer implies: replaceable weights, and the distribution that a trainer thinks its samples come from.
Status PrepareForTrainer(ServeOptions* options) {
  EngineOptions& engine = options->engine;
  if (engine.weights == WeightForm::kStored)
    return InvalidArgument(
        "--weights stored keeps weights quantised, and --trainer replaces them; leave --weights away, or bf16 or f32");
  if (engine.weights == WeightForm::kFastest && engine.dtype != DType::kF16 && !engine.experiment.random_weights)
    engine.weights = engine.dtype == DType::kF32 ? WeightForm::kF32 : WeightForm::kBF16;
  if (!options->sampling_named) options->sampling_defaults = SamplingSource::kOpenAi;
  return OkStatus();
}

bool IsLoopback(const std::string& host) { return host == "::1" || host == "localhost" || host.starts_with("127."); }

Result<ExitCode> Serve(ServeOptions options) {
  // Files of a server hold prompts, answers and salts: all of them are its user's alone.
  umask(077);
  // One arena serves all threads: with an arena for each, those that large requests filled would keep their memory.
  mallopt(M_ARENA_MAX, 1);
  if (options.log_json) LogAsJson();
  // While the program is small and has one thread. A build that compiles no grammars has none.
  Result<std::unique_ptr<ForkServer>> grammar_process = StartGrammarProcess();
  if (const Status& status = grammar_process.status(); !status.ok() && status.code() != StatusCode::kUnimplemented) {
    return Status(status.code(), fmt::format("{}: what clients say of the form of outputs is compiled in a process apart; let this "
                                             "user have more processes (ulimit -u)",
                                             status.message()));
  }
  if (options.trainer) COPPICE_RETURN_IF_ERROR(PrepareForTrainer(&options));
  COPPICE_RETURN_IF_ERROR(Validate(options.engine));
  if (options.http.host == "localhost") options.http.host = "127.0.0.1";
  if (!IsLoopback(options.http.host) && options.api_keys.empty() && !options.allow_public) {
    return InvalidArgument(
        fmt::format("--host {} lets other machines in and there are no API keys; give --api-keys FILE, or --allow-public "
                    "if every client that reaches it may use it",
                    options.http.host));
  }
  server::ServiceOptions service_options = {.version = COPPICE_VERSION, .access = options.access};
  if (grammar_process.ok()) service_options.grammar_process = *std::move(grammar_process);
  if (!options.api_keys.empty()) {
    COPPICE_ASSIGN_OR_RETURN(service_options.access.keys, server::ApiKeys::Read(options.api_keys));
    if (const Result<OthersAccess> others = AccessOfOthers(options.api_keys); others.ok() && others->write)
      spdlog::warn("{} may be written to by others: they could add keys. chmod 600 {}", options.api_keys, options.api_keys);
  }
  const std::optional<server::ApiKeys>& keys = service_options.access.keys;
  if (options.trainer && (keys ? !keys->HasRole(server::Role::kTrainer) : !IsLoopback(options.http.host))) {
    return InvalidArgument(
        fmt::format("--trainer lets {} replace the model's weights; give {} a key with role=trainer behind its hash",
                    keys ? "keys of role trainer alone" : "every client that reaches the server",
                    keys ? options.api_keys : "--api-keys FILE with"));
  }
  COPPICE_ASSIGN_OR_RETURN(options.http.trusted_proxies, server::TrustedProxies::Parse(options.trusted_proxies));
  const auto room_for = [](int64_t largest, int64_t* total) {  // a quarter is one client's: two of the largest
    *total = std::max(*total, 8 * std::min(largest, int64_t{1} << 50));
  };
  room_for(static_cast<int64_t>(std::min(options.http.max_body_bytes, size_t{1} << 50)), &options.http.max_total_body_bytes);
  room_for(server::MaxUploadBytes(options.max_file_bytes), &options.http.max_total_upload_bytes);
  const std::string asked_for = options.engine.model_path;
  COPPICE_ASSIGN_OR_RETURN(options.engine.model_path, hub::FindModel(asked_for));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           options.null ? CreateNullEngine(options.engine, options.null_step) : LoadEngine(options.engine));
  ReportNotes(*engine);
  // A stored model's name is the one under which it was asked for.
  const bool is_path = asked_for.empty() || asked_for == options.engine.model_path;
  std::vector<std::string>& names = options.model_names;
  if (names.empty()) names.push_back(is_path ? BenchModelName(options.engine) : asked_for);
  service_options.model = names.front();
  service_options.aliases.assign(names.begin() + 1, names.end());
  const int32_t max_context = options.engine.max_context > 0 ? options.engine.max_context : engine->model_info().context_length;
  service_options.max_context = max_context;

  // A client that needs a key is no page of another site.
  service_options.only_local_hosts = IsLoopback(options.http.host) && options.api_keys.empty();
  service_options.host_names = options.host_names;
  COPPICE_ASSIGN_OR_RETURN(service_options.cross_origin, server::CrossOrigin::Parse(options.allowed_origins));
  service_options.answers = options.answers;
  service_options.rules = {.unknown_fields = options.unknown_fields,
                           .sampling = SamplingOf(options.sampling_defaults, engine->model_info())};
  service_options.rules.sampling.logprobs_mode = options.logprobs_mode;
  service_options.log_form = options.log_json ? server::LogForm::kJson : server::LogForm::kText;
  service_options.log_text = options.log_text;
  service_options.world_size = static_cast<int32_t>(1 + std::ranges::count(options.engine.device, ','));
  if (options.trainer) {
    const auto patience = std::chrono::milliseconds(std::llround(1000 * options.trainer_timeout));
    service_options.trainer = {.model_path = options.engine.model_path,
                               .patience = patience,
                               .open_device = [engine = options.engine] { return OpenDevice(engine, /*executor=*/nullptr); }};
  }
  service_options.max_waiting = options.engine.max_waiting;
  service_options.prefixes = {.folder = options.prefix_folder,
                              .max_per_key = options.engine.sharing == SharingMode::kNone ? 0 : options.max_prefixes,
                              .max_tokens = int64_t{engine->Metrics().pages_total} * engine->model_info().page_size / 2,
                              .max_tokens_per_key = options.max_prefix_tokens,
                              .max_ttl_seconds = options.max_prefix_ttl};
  service_options.samples = options.samples;
  // One key leaves half of them to others.
  server::PrefixStoreOptions& prefixes = service_options.prefixes;
  if (prefixes.max_tokens_per_key == 0 && service_options.access.keys) prefixes.max_tokens_per_key = prefixes.max_tokens / 2;

  service_options.files = {.folder = options.file_folder,
                           .max_bytes = options.max_file_bytes,
                           .max_per_key = options.max_files,
                           .max_bytes_per_key = options.max_bytes_per_key};
  // Half of the samples that may run at a time are left to clients that wait, and so is the queue before the engine.
  service_options.batches = {
      .max_requests = options.max_batch_requests,
      .max_line_bytes = options.http.max_body_bytes,
      .max_active = options.batch_active > 0 ? options.batch_active : std::max(1, options.engine.max_running / 2)};

  server::Service service(engine.get(), std::move(service_options));
  COPPICE_RETURN_IF_ERROR(service.RestorePrefixes());
  COPPICE_RETURN_IF_ERROR(service.RestoreBatches());
  COPPICE_ASSIGN_OR_RETURN(
      const std::unique_ptr<server::HttpServer> http,
      server::HttpServer::Create(options.http, [&](server::HttpRequest head) { return service.Plan(std::move(head)); }));
  CatchFirst({SIGINT, SIGTERM});
  const std::string host = options.http.host.find(':') == std::string::npos ? options.http.host : "[" + options.http.host + "]";
  const std::string address = fmt::format("http://{}:{}", host, http->port());
  for (const std::string& line : server::StartLines(engine->model_info(), {.name = names.front(),
                                                                          .address = address,
                                                                          .max_context = max_context,
                                                                          .page_size = engine->model_info().page_size,
                                                                          .pages = engine->Metrics().pages_total,
                                                                          .sharing = options.engine.sharing,
                                                                          .needs_key = !options.api_keys.empty()})) {
    spdlog::info("{}", line);
  }
  COPPICE_RETURN_IF_ERROR(Print(fmt::format("listening on {}\n", address)));
  COPPICE_RETURN_IF_ERROR(
      server::Serve(engine.get(), &service, http.get(),
                    {.interrupted = Interrupted, .drain_time = std::chrono::duration<double>(options.drain_seconds)}));
  return ExitCode::kOk;
}

// Each option also comes from the environment: --max-running from COPPICE_MAX_RUNNING.
void NameEnvironment(CLI::App* command) {
  for (CLI::Option* const option : command->get_options()) {
    if (option == command->get_help_ptr() || option == command->get_help_all_ptr() || option->get_lnames().empty()) continue;
    std::string name = "COPPICE_" + option->get_lnames().front();
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    option->envname(name);
  }
}

}  // namespace

Command AddServeCommand(CLI::App& app) {
  const auto options = std::make_shared<ServeOptions>();
  server::HttpServerOptions& http = options->http;
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP with OpenAI's API");
  command
      ->add_option("--config", options->config,
                   "File of lines \"option = value\" (TOML) for what neither the command line nor the environment gives")
      ->check(NotEmpty());
  command->option_defaults()->group(kNetworkGroup);
  command->add_option("--host", http.host, "Address to listen on")->capture_default_str();
  command->add_option("--port", http.port, "Port; 0: one that is free, which is printed")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option(
          "--api-keys", options->api_keys,
          "File of lines \"name sha256\": keys that may use the server; the hash of a key is printf %s KEY | sha256sum. Behind it "
          "perhaps role=admin or role=trainer, tokens_per_request=N tokens_per_minute=N")
      ->check(NotEmpty());
  command->add_flag(
      "--share-between-keys", options->access.share_between_keys,
      "API keys find each other's prompts in the cache, but for those with a cache_salt: faster where they begin alike, and "
      "each key can find out what others asked");
  command
      ->add_option(
          "--host-name", options->host_names,
          "Names of this server in a proxy's requests, separated by commas; on a loopback address without keys, others get 403")
      ->delimiter(',');
  command
      ->add_option(
          "--allow-origin", options->allowed_origins,
          "Origins, separated by commas, whose pages may use the server from a browser (CORS), such as https://example.org; "
          "*: all")
      ->delimiter(',');
  command
      ->add_option("--trusted-proxies", options->trusted_proxies,
                   "Addresses or networks of reverse proxies, separated by commas, whose X-Forwarded-For is believed")
      ->delimiter(',');
  command->add_flag("--trainer", options->trainer,
                    "Routes by which a trainer updates weights, pauses and sleeps (docs/trainers.md); holds weights dense, and "
                    "implies --sampling-defaults openai. With API keys, for those with role=trainer");
  command
      ->add_option(
          "--trainer-timeout", options->trainer_timeout,
          "Seconds that an open update of weights waits for its next part; then requests get 503 until all weights have come")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  command->add_flag("--allow-public", options->allow_public, "Listen on a public address although there are no API keys");
  command
      ->add_option(
          "--model-name", options->model_names,
          "The name that answers give, and behind commas others under which clients find the model (default: the name under "
          "which it was pulled, or its file)")
      ->delimiter(',')
      ->check(NotEmpty())
      ->group(kModelGroup);
  command->option_defaults()->group(kLimitsGroup);
  options->engine.max_waiting = 512;
  command
      ->add_option("--max-waiting", options->engine.max_waiting,
                   "Samples of requests that wait; more get 429. An API key has half of them while others ask. 0: no limit")
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option("--max-per-key", options->access.max_active_per_key,
                   "Samples of one API key's requests at the same moment; more get 429. 0: no limit")
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option("--tokens-per-request", options->access.token_limit.per_request,
                   "Tokens of prompt and output that one request may use; more get 400. 0: no limit")
      ->check(CLI::Range(int64_t{0}, server::kMostTokens))
      ->capture_default_str();
  command
      ->add_option("--tokens-per-minute", options->access.token_limit.per_minute,
                   "Tokens of prompts and output that one API key may use in a minute; more get 429. 0: no limit")
      ->check(CLI::Range(int64_t{0}, server::kMostTokens))
      ->capture_default_str();
  command
      ->add_option("--max-choices", options->answers.max_choices,
                   "\"n\", \"best_of\" and \"beam_width\" at most; more get 400. 0: no limit")
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option("--max-answer", options->answers.max_bytes,
                   "Bytes of an answer at most, e.g. 128MiB, as estimated before it is computed; more get 400. 0: no limit")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option(
          "--max-unwritten", http.max_unwritten_bytes,
          "Bytes that answers hold for clients that have not read them, e.g. 256MiB; beyond, the largest of the key that holds "
          "most ends. 0: no limit")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(AtLeastZero())
      ->capture_default_str();
  command->add_option("--max-priority", options->access.max_priority, "Highest \"priority\" that a request may have")
      ->capture_default_str();
  command->option_defaults()->group(kKeptGroup);
  command
      ->add_option("--prefixes", options->prefix_folder,
                   "Folder that keeps the prefixes of /v1/prefixes for the next start; default: they end with the server")
      ->check(NotEmpty());
  command->add_option("--max-prefixes", options->max_prefixes, "Prefixes of one API key")
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option("--max-prefix-tokens", options->max_prefix_tokens,
                   "Tokens of the prefixes of one API key; 0: half of what all may have, without keys all of it")
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option("--max-prefix-ttl", options->max_prefix_ttl,
                   "Longest \"ttl_seconds\" of a prefix, and that of one which names none; 0: prefixes stay until they are deleted")
      ->check(CLI::Range(0.0, 10.0 * 365 * 86'400))
      ->capture_default_str();
  command->add_option("--max-kept", options->samples.max_per_key, "Samples of one API key that \"keep\" keeps; 0: none")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->add_option("--max-keep", options->samples.max_seconds, "Longest \"keep\" of a sample, in seconds from its end")
      ->check(CLI::Range(0.0, 10.0 * 365 * 86'400))
      ->capture_default_str();
  command
      ->add_option(
          "--files", options->file_folder,
          "Folder for /v1/files and /v1/batches, one server's own; unfinished batches go on with the next start; default: none")
      ->check(NotEmpty());
  command->add_option("--max-file", options->max_file_bytes, "Bytes of an uploaded file at most, e.g. 200MiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--max-files", options->max_files, "Files of one API key, those of its batches included")
      ->check(AtLeastZero())
      ->capture_default_str();
  command
      ->add_option("--max-bytes-per-key", options->max_bytes_per_key,
                   "Bytes of one API key's files, those of its batches included, e.g. 20GiB; 0: no limit")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  command->add_option("--max-batch-requests", options->max_batch_requests, "Requests of one batch")
      ->check(AboveZero())
      ->capture_default_str();
  command
      ->add_option("--batch-active", options->batch_active,
                   "Requests of a batch in the engine at the same moment; 0: half of --max-running")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->option_defaults()->group(kLimitsGroup);
  command->add_option("--request-timeout", options->access.request_timeout, "Seconds until a request ends with 408; 0: none")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->add_option("--max-body", http.max_body_bytes, "Bytes of a request at most, e.g. 10MiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->capture_default_str();
  command->add_option("--max-connections", http.max_connections, "Connections at the same moment")
      ->check(AboveZero())
      ->capture_default_str();
  command->add_option("--drain-seconds", options->drain_seconds, "After SIGTERM, how long requests under way may take")
      ->check(AtLeastZero())
      ->capture_default_str();
  command->option_defaults()->group("Options");
  AddSamplingDefaults(*command, options->sampling_defaults);
  AddParsed<LogprobsMode>(*command, "--logprobs-mode", options->logprobs_mode, openai::ParseLogprobsMode,
                          "Log-probabilities of outputs where a request does not say (\"logprobs_mode\"): raw_logprobs, of the "
                          "model's distribution, or processed_logprobs, after penalties, temperature and filters")
      ->default_str("raw_logprobs");
  AddParsed<openai::UnknownFields>(*command, "--unknown-fields", options->unknown_fields, openai::ParseUnknownFields,
                                   "Fields of requests that are not known and would change no answer: ignore (named in the header "
                                   "x-coppice-ignored-fields and in the log), or refuse")
      ->default_str("ignore");
  command->add_flag("--log-json", options->log_json, "Log lines as JSON");
  command->add_flag("--log-text", options->log_text,
                    "Put the bodies of requests into the log: prompts, and whatever else they hold");
  CLI::Option* const null =
      command->add_flag("--null", options->null, "Answer at once with tokens that mean nothing, for measuring all but the model")
          ->group(kMeasuringGroup);
  command
      ->add_option_function<double>(
          "--null-step", [options](double ms) { options->null_step = std::chrono::nanoseconds(std::llround(1e6 * ms)); },
          "With --null: milliseconds that a step takes at least, as a model's would")
      ->group(kMeasuringGroup)
      ->needs(null)
      ->check(CLI::Range(0.0, 60000.0));
  AddEngineOptions(*command, options->engine);
  AddRecordOption(*command, options->engine);
  AddRandomWeights(
      *command, options->engine,
      "--model; random: bf16 of the shape that --model, a config.json, has, for measuring speed without its weights. Such a "
      "model has no tokenizer: prompts are token ids");
  command->footer("Each option also comes from the environment: --max-running from COPPICE_MAX_RUNNING.");
  NameEnvironment(command);
  return {command, [options, command]() -> Result<ExitCode> {
            if (!options->config.empty()) COPPICE_RETURN_IF_ERROR(ApplyConfigFile(*command, options->config));
            options->sampling_named = command->count("--sampling-defaults") > 0;
            spdlog::set_level(spdlog::level::info);
            return Serve(*options);
          }};
}

}  // namespace coppice::cli
