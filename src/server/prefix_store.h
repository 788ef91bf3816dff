// Prefixes under names: computed by the engine on request, pinned until they are deleted or their time is over, and kept in a
// folder so that a server that starts again has them, however the one before ended. Each belongs to the API key that made it.
// Layer: server. RelayAttention section 3 and appendix D: system prompts filled once, several applications in one process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coppice/engine/engine.h"
#include "openai/named_prefix.h"

namespace coppice::server {

struct PrefixStoreOptions {
  std::string folder;       // where they are kept; empty: nowhere
  int32_t max_per_key = 0;  // prefixes of one API key
  int64_t max_tokens = 0;   // of all of them: pinned pages are no room for anybody else
};

// Thread-safe. `engine` outlives it.
class PrefixStore {
 public:
  struct Info {
    std::string name;
    std::shared_ptr<const openai::NamedPrefix> prefix;
    int64_t created = 0;             // seconds since 1970
    std::optional<int64_t> expires;  // likewise
    bool saved = false;              // a server that starts again finds it
  };

  PrefixStore(Engine* engine, PrefixStoreOptions options);
  ~PrefixStore();

  // Makes the folder and takes what is in it; says in the log what it cannot use. Before the engine is stepped. An error if the
  // folder cannot be used at all.
  Status Restore();

  // Computes a complete prefix and pins it; one of that name is replaced. `on_end` is called once, on any thread: with what there
  // is now and the tokens that were cached, or why there is none. RESOURCE_EXHAUSTED: too many, too long, or the queue is full.
  using OnEnd = std::function<void(Result<Info>, int32_t cached)>;
  void Put(const std::string& key, const std::string& name, openai::NamedPrefix prefix, OnEnd on_end);
  std::optional<Info> Get(const std::string& key, const std::string& name) const;
  std::vector<Info> List(const std::string& key) const;  // by name
  // Lets the prefix go; those who use it go on. False: there is none.
  bool Delete(const std::string& key, const std::string& name);

 private:
  using Clock = std::chrono::system_clock;         // expiry outlives the process
  using Id = std::pair<std::string, std::string>;  // key, name
  struct Entry {
    std::shared_ptr<const openai::NamedPrefix> prefix;
    std::string pin;  // its name in the engine
    Clock::time_point created;
    std::optional<Clock::time_point> expires;
    std::string file;  // in the folder, without the ending; empty: not saved
  };
  struct Computed {
    Id id;
    Entry entry;
    Status status;
    int32_t cached = 0;
    OnEnd on_end;
  };

  void Work(const std::stop_token& stop);
  void Finish(Computed computed);
  Status Save(const Id& id, Entry* entry) const;
  Status Load(const std::string& file);
  void RemoveFiles(const std::string& file) const;
  std::string PathOf(const std::string& file, const char* suffix) const;
  Info InfoOf(const std::string& name, const Entry& entry) const;
  // With the lock held:
  void LetGo(std::map<Id, Entry>::iterator entry);
  void DropExpired();
  Status CheckRoom(const Id& id, int64_t tokens) const;

  Engine& engine_;
  const PrefixStoreOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any wake_;
  std::map<Id, Entry> entries_;
  std::map<Id, int64_t> computing_;  // tokens of those on their way, which take room too
  std::deque<Computed> computed_;    // to be saved and told: not on the engine's thread
  int64_t next_pin_ = 0;
  std::jthread worker_;  // last, so that it ends first
};

}  // namespace coppice::server
