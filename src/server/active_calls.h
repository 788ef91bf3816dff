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
 public:
  // A generation's place in the table, for as long as this lives. The table outlives it.
  class Entry {
   public:
    Entry() = default;
    Entry(ActiveCalls* calls, uint64_t number) : calls_(calls), number_(number) {}
    Entry(Entry&& other) noexcept : calls_(std::exchange(other.calls_, nullptr)), number_(other.number_) {}
    Entry& operator=(Entry&& other) noexcept {
      std::swap(calls_, other.calls_);
      std::swap(number_, other.number_);
      return *this;
    }
    ~Entry() {
      if (calls_ != nullptr) calls_->Remove(number_);
    }

   private:
    ActiveCalls* calls_ = nullptr;
    uint64_t number_ = 0;
  };

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
  void Remove(uint64_t number);
  // Calls visit(call) for those that have the id, or for all.
  template <class Visit>
  int32_t ForEach(const std::string_view* id, Visit visit) const;

  mutable std::mutex mutex_;  // guards what follows
  uint64_t next_ = 0;
  std::map<uint64_t, Active> active_;
};

}  // namespace coppice::server
