// Generations that are under way, by the ids that their answers have and those that clients gave, so that other requests can end
// them; and scores, which end with all others.
// Layer: server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/core/status.h"
#include "openai/request_driver.h"

namespace coppice::server {

// Thread-safe.
class ActiveCalls {
  struct Table;

 public:
  // A generation's place in the table, for as long as this lives.
  class Entry {
   public:
    Entry() = default;
    Entry(std::shared_ptr<Table> table, uint64_t number) : table_(std::move(table)), number_(number) {}
    Entry(Entry&&) = default;
    Entry& operator=(Entry&& other) noexcept {
      std::swap(table_, other.table_);
      std::swap(number_, other.number_);
      return *this;
    }
    ~Entry();

   private:
    std::shared_ptr<Table> table_;  // null: nowhere
    uint64_t number_ = 0;
  };

  struct Generation {
    std::string id;                       // of the answer
    std::vector<std::string> client_ids;  // by prompt; empty where its client gave none
    std::string key;                      // name of the API key whose it is; empty without keys
    bool is_score = false;                // it has no answer with what has come: only FailAll ends it
    std::weak_ptr<openai::RequestDriver> call;
  };

  ActiveCalls();
  // May outlive the table's owner.
  Entry Add(Generation generation);
  // Ends samples of the generation with this id, which may have what answers put before it ("cmpl-"), or of the prompts that have
  // it from their client: the answer has what has come. `key`: of the generations of this API key alone; null: of all keys.
  // Returns how many generations and prompts there were.
  int32_t Abort(std::string_view id, const std::string* key) const;
  int32_t AbortAll(const std::string* key) const;
  // Ends all generations with this error.
  int32_t FailAll(const Status& why) const;

 private:
  struct Table {
    std::mutex mutex;  // guards what follows
    uint64_t next = 0;
    std::map<uint64_t, Generation> active;
  };
  // A generation to end, or one of its prompts.
  struct Found {
    std::shared_ptr<openai::RequestDriver> call;
    std::optional<size_t> prompt;
  };
  // Those of a key with the id; null: of any.
  std::vector<Found> Find(const std::string_view* id, const std::string* key, bool with_scores) const;

  const std::shared_ptr<Table> table_;
};

}  // namespace coppice::server
