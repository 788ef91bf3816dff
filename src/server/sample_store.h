// Samples that clients keep, under names that say nothing: their keys, their ends, and the form of answers about them. Each is the
// API key's that made it. Layer: server.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coppice/engine/engine.h"
#include "openai/kept_request.h"
#include "openai/request.h"

namespace coppice::server {

struct SampleStoreOptions {
  int32_t max_per_key = 256;   // of one API key
  double max_seconds = 3'600;  // how long one may be kept
};

// Thread-safe. `engine` outlives it. Held by shared_ptr: what it gave may outlive it, and does nothing then.
class SampleStore : public std::enable_shared_from_this<SampleStore> {
 public:
  struct Sample {
    std::shared_ptr<openai::KeptRequest> request;
    int32_t index = 0;
    // The request that began it, without its prompt: answers to forks and extensions depend on it.
    std::shared_ptr<const openai::OpenAiRequest> form;
    double seconds = 0;              // that it stays once nothing is generated for it
    std::optional<int64_t> expires;  // seconds since 1970; none: it is generated

    SampleId id() const { return request->sample(index); }
  };

  // The samples of one answer, from before they are submitted to its end. Thread-compatible.
  class Generated {
   public:
    Generated(std::weak_ptr<SampleStore> store, double seconds) : store_(std::move(store)), seconds_(seconds) {}
    Generated(const Generated&) = delete;
    Generated& operator=(const Generated&) = delete;
    ~Generated() { End(/*keep=*/false); }  // it came to no answer

    const std::vector<std::string>& names() const { return names_; }
    // From now on the names from `first` on can be asked for. `salt`: which these must name beside.
    void Begin(size_t first, const std::shared_ptr<openai::KeptRequest>& request, std::span<const SampleId> samples,
               const std::string& salt, const std::shared_ptr<const openai::OpenAiRequest>& form);
    // Nothing is generated for them any more: their time runs, or they are let go. Once.
    void End(bool keep);

   private:
    friend class SampleStore;
    const std::weak_ptr<SampleStore> store_;
    const double seconds_;
    std::vector<std::string> names_;
    bool ended_ = false;
  };

  SampleStore(Engine* engine, SampleStoreOptions options);
  ~SampleStore();

  // INVALID_ARGUMENT where one is to be kept for no time, or for longer than one may be.
  Status CheckSeconds(double seconds) const;
  // Names for `count` samples of a key. INVALID_ARGUMENT: it asks for more time or samples than one may have; RESOURCE_EXHAUSTED:
  // it has too many already.
  Result<std::shared_ptr<Generated>> Reserve(const std::string& key, int64_t count, double seconds);
  // One that there is, or was just now, for another answer.
  std::shared_ptr<Generated> Resume(const std::string& name, double seconds);
  // nullopt where the key has none of that name, or it was made with another salt.
  std::optional<Sample> Find(const std::string& key, const std::string& salt, const std::string& name);
  // Lets one go: at once, or, if it is not to be `ended`, when what is generated for it is sent.
  void Delete(const std::string& name, bool ended);

 private:
  using Clock = std::chrono::system_clock;
  static constexpr Clock::time_point kNever{std::chrono::hours{24 * 365 * 200}};
  struct Entry {
    std::string key, salt;
    std::shared_ptr<openai::KeptRequest> request;  // null: it is not submitted yet
    int32_t index = 0;
    std::shared_ptr<const openai::OpenAiRequest> form;
    double seconds = 0;
    int32_t answers = 1;                       // that it is generated for; those of more than one have parts of it
    std::optional<Clock::time_point> expires;  // none: there is one
    bool deleted = false;                      // once it has ended
  };

  void Work(const std::stop_token& stop);
  // With the lock held: takes an entry out, which is to be pruned.
  Entry Take(std::map<std::string, Entry>::iterator entry);
  // Without it.
  void Prune(const std::vector<Entry>& entries);

  Engine& engine_;
  const SampleStoreOptions options_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable_any wake_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, int64_t> counts_;  // by key
  Clock::time_point next_ = kNever;        // when the first of them expires
  std::jthread worker_;                    // last, so that it ends first
};

}  // namespace coppice::server
