// The options of a server. Layer: server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/fork_server.h"
#include "openai/request.h"
#include "server/access.h"
#include "server/answer_limits.h"
#include "server/batch_store.h"
#include "server/cross_origin.h"
#include "server/file_store.h"
#include "server/prefix_store.h"
#include "server/request_log.h"
#include "server/sample_store.h"
#include "server/trainer/trainer_control.h"

namespace coppice::server {

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

}  // namespace coppice::server
