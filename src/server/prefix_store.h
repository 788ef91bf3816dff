// Prefixes under names: computed by the engine on request, pinned until they are deleted or their time is over, and kept in a
// folder so that a server that starts again has them, however the one before ended. Each belongs to the API key that made it;
// others may name those that are public.
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
#include "server/access.h"

namespace coppice::server {

struct PrefixStoreOptions {
  std::string folder;              // where they are kept; empty: nowhere
  int32_t max_per_key = 0;         // prefixes of one API key
  int64_t max_tokens = 0;          // of all of them: pinned pages are no room for other requests
  int64_t max_tokens_per_key = 0;  // of one API key's; 0: max_tokens
  double max_ttl_seconds = 0;      // how long one is kept, where it does not say less; 0: for good
};

// Thread-safe. `engine` and `access` outlive it.
class PrefixStore {
 public:
  struct Info {
    std::string name;
    std::shared_ptr<const openai::NamedPrefix> prefix;
    int64_t created = 0;             // seconds since 1970
    std::optional<int64_t> expires;  // likewise
    bool saved = false;              // a server that starts again finds it
  };

  PrefixStore(Engine* engine, const Access* access, PrefixStoreOptions options);
  ~PrefixStore();

  // Makes the folder and takes what is in it; says in the log what it cannot use. Before the engine is stepped. An error if the
  // folder cannot be used at all.
  Status Restore();

  // INVALID_ARGUMENT where a prefix is to be kept for longer than one may be.
  Status CheckTtl(const openai::NamedPrefix& prefix) const;
  // Computes a complete prefix and pins it; one of that name is replaced. `on_end` is called once, on any thread: with what there
  // is now and the tokens that were cached, or why there is none. RESOURCE_EXHAUSTED: too many, too long, or the queue is full;
  // FAILED_PRECONDITION: it is to be public, and another key has a public one of that name.
  struct Outcome {
    Result<Info> made;
    int32_t cached = 0;
    bool begun = false;  // a step took it in
  };
  using OnEnd = std::function<void(const Outcome&)>;
  void Put(const std::string& key, const std::string& name, openai::NamedPrefix prefix, OnEnd on_end);
  // The key's own, else a public one.
  std::optional<Info> Get(const std::string& key, const std::string& name) const;
  // Get for the parsers of the key's requests. The store outlives it.
  openai::FindNamedPrefix FinderOf(const std::string& key) const;
  std::vector<Info> List(const std::string& key) const;  // what Get gives, by name
  // Lets the key's own prefix go; requests that use it go on. False: there is none.
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
  struct Computing {
    int64_t tokens = 0;
    bool is_public = false;
  };
  struct Computed {
    Id id;
    Entry entry;
    Status status;
    int32_t cached = 0;
    bool begun = false;
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
  Status CheckRoom(const Id& id, const openai::NamedPrefix& prefix) const;
  Status CheckPublicName(const Id& id) const;
  void Add(const Id& id, Entry entry);
  // The entry that Get gives; null: there is none.
  const Entry* Find(const std::string& key, const std::string& name) const;

  // When one that was made then ends; nothing: it does not.
  std::optional<Clock::time_point> EndOf(Clock::time_point created, std::optional<double> ttl_seconds) const;

  Engine& engine_;
  const Access& access_;
  const PrefixStoreOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any wake_;
  std::map<Id, Entry> entries_;
  std::map<std::string, std::string> public_owners_;  // keys of entries that are public, by name
  std::map<Id, Computing> computing_;                 // those on their way, which take room too
  std::deque<Computed> computed_;                     // to be saved and reported: not on the engine's thread
  int64_t next_pin_ = 0;
  std::jthread worker_;  // last, so that it ends first
};

}  // namespace coppice::server
