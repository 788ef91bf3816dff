// Generations that are under way, by the ids that their answers have, so that others than their clients can end them.
// Layer: server.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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

  ActiveCalls();
  // May outlive the table's owner.
  Entry Add(std::string id, std::weak_ptr<openai::RequestDriver> call);
  // Ends samples of the generation with this id, which may have what answers put before it ("cmpl-"): its answer has what has come.
  // Returns how many generations there were.
  int32_t Abort(std::string_view id) const;
  int32_t AbortAll() const;
  // Ends all generations with this error.
  int32_t FailAll(const Status& why) const;

 private:
  struct Active {
    std::string id;
    std::weak_ptr<openai::RequestDriver> call;
  };
  struct Table {
    std::mutex mutex;  // guards what follows
    uint64_t next = 0;
    std::map<uint64_t, Active> active;
  };
  // Calls visit(call) for those that have the id, or for all.
  template <class Visit>
  int32_t ForEach(const std::string_view* id, Visit visit) const;

  const std::shared_ptr<Table> table_;
};

}  // namespace coppice::server
