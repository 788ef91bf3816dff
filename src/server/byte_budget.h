// How many bytes the bodies of requests may take at the same moment, divided between their senders by dynamic thresholds
// (Choudhury and Hahne 1998, "Dynamic queue length thresholds for multi-service packet switches"): a share holds at most a
// third of what is left free. So one that is alone has a quarter, and however many hold what they may, another one finds room.
// Knows no requests. Layer: server.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace coppice::server {

enum class BytesTaken : uint8_t {
  kTaken,
  kShareIsFull,  // its share holds as much as it may
  kAllIsFull,    // nearly all is held by others
};

// Thread-safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // The bytes of one request; given back when it is destroyed. The budget outlives it. Not thread-safe.
  class Held {
   public:
    Held(ByteBudget* budget, std::string share) : budget_(budget), share_(std::move(share)) {}
    ~Held() { budget_->GiveBack(share_, bytes_); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    // Holds `bytes` altogether from now on, where there is room for those more.
    BytesTaken GrowTo(int64_t bytes);
    int64_t bytes() const { return bytes_; }

   private:
    ByteBudget* const budget_;
    const std::string share_;
    int64_t bytes_ = 0;
  };

 private:
  BytesTaken Take(const std::string& share, int64_t bytes);
  void GiveBack(const std::string& share, int64_t bytes);

  const int64_t limit_;
  std::mutex mutex_;
  int64_t held_ = 0;
  std::map<std::string, int64_t> shares_;  // those that hold anything
};

}  // namespace coppice::server
