// Grammars that wait to be compiled, for clients that do not trust each other: in turns by key, on threads of their own, each
// source of a key once. A compiled grammar is kept for the key's next use of it; no key finds, and so could time, a grammar of
// another key. Layer: grammar.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/token_constraint.h"
#include "engine/fair_queue.h"
#include "grammar/grammar_compiler.h"
#include "grammar/grammar_source.h"

namespace coppice {

struct CompileQueueOptions {
  int32_t threads = 4;        // grammars that are compiled at the same moment, each of another key
  int32_t max_waiting = 512;  // that are asked for and not answered; of one key half as many
  // Bytes of compiled grammars: kept for their next use, and in use by one key.
  int64_t kept_bytes = int64_t{96} << 20, max_bytes_per_key = int64_t{160} << 20;
};

// Thread-safe.
class CompileQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Constraint = std::shared_ptr<const TokenConstraint>;
  using Done = std::function<void(Result<Constraint>)>;
  using Ticket = uint64_t;  // of a source that is asked for

  // `compiler` outlives the queue. Where it has no process, what is being compiled goes on after its ticket has ended.
  explicit CompileQueue(GrammarCompiler* compiler, CompileQueueOptions options = {});
  CompileQueue(const CompileQueue&) = delete;
  // Stops; REQUIRES: no other call.
  ~CompileQueue();

  // `done` is called once: in this call, where the answer is known; else on another thread. Errors are those of
  // GrammarCompiler::Compile; RESOURCE_EXHAUSTED also where too much waits, or grammars in use by `key` take too much memory;
  // DEADLINE_EXCEEDED after `deadline`; CANCELLED by Cancel; that of Stop. `key` names the client.
  Ticket Compile(const std::string& key, GrammarSource source, std::optional<Clock::time_point> deadline, Done done);
  // Ends a ticket that has no answer yet: `done` hears of it in this call. A source that no other ticket asks for is let go, at
  // once.
  void Cancel(Ticket ticket);
  // Ends all tickets, now and from now on, with `why`.
  void Stop(Status why);

 private:
  struct Asker {
    Ticket ticket = 0;
    int64_t turn = 0;
    std::optional<Clock::time_point> deadline;
    Done done;
  };
  // A source that a key asks for.
  struct Job {
    std::string key;
    GrammarSource source;
    std::list<Asker> askers;
    bool running = false;
    std::stop_source stop;
  };
  struct Kept {
    std::string id, key;
    Constraint constraint;
    std::weak_ptr<const TokenConstraint> lease;  // what requests have of it, while one has
    int64_t bytes = 0;                           // the id's among them
  };
  struct Use {
    std::weak_ptr<const TokenConstraint> lease;
    int64_t bytes = 0;
  };
  struct Client {
    int32_t waiting = 0;     // askers
    int64_t kept_bytes = 0;  // of kept_
    std::vector<Use> uses;
    std::shared_ptr<LiveParserStates> held = std::make_shared<LiveParserStates>(0);  // by the samples of its requests
  };
  using Jobs = std::map<std::string, std::shared_ptr<Job>>;  // by IdOf
  using Answers = std::vector<std::pair<Done, Result<Constraint>>>;

  static std::string IdOf(const std::string& key, const GrammarSource& source) {
    return key + '\0' + static_cast<char>(source.kind) + source.text;
  }
  void Work();
  void WatchDeadlines();
  // The rest with the lock held.
  // The job whose turn it is, of a key that has none running.
  Jobs::iterator Next();
  void Finish(Jobs::iterator job, const Result<Constraint>& compiled, Answers* answers);
  // Takes those out for which `ends` is true, and lets go of jobs without any left.
  void End(const std::function<bool(const Asker&)>& ends, const Status& why, Answers* answers);
  // Why a key's requests get no more memory, `more_bytes`; OK: they do.
  Status CheckMemory(Client* client, int64_t more_bytes) const;
  // The constraint kept by this id, for a request of its key; null: none is kept.
  Constraint FindKept(const std::string& id);
  void Keep(Kept kept);
  // For requests of a client: says whether one has it still, and counts what their samples hold.
  Constraint Lease(Client* client, const Constraint& constraint);

  GrammarCompiler& compiler_;
  const CompileQueueOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;    // a job waits, or the end
  std::condition_variable deadlines_;  // a deadline came that may be the next one, or the end
  Status stopped_;                     // why there are no more answers
  Jobs jobs_;
  FairQueue turns_;
  Ticket next_ticket_ = 1;
  int32_t waiting_ = 0;   // askers
  std::list<Kept> kept_;  // used last first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> kept_by_id_;
  int64_t kept_bytes_ = 0;
  std::map<std::string, Client> clients_;  // by key
  std::vector<std::thread> threads_;
};

}  // namespace coppice
