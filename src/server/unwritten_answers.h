// The memory of answers that clients have not taken, over all connections: a bound on it, so that slow readers cost no more
// memory than that. Where it is exceeded, the owner that holds most loses the largest of its answers. Layer: server.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

namespace coppice::server {

// Thread-safe.
class UnwrittenAnswers {
 public:
  // 0: no limit.
  explicit UnwrittenAnswers(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // The memory of one answer.
  class Share {
   public:
    // `give_up` drops what the answer holds. It is called on any thread that calls MakeRoom, and calls Hold alone.
    Share(std::shared_ptr<UnwrittenAnswers> all, std::function<void()> give_up);
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share();

    // An API key, or a client's address; as long as none is known, all such answers have one owner.
    void SetOwner(std::string owner);
    void Hold(int64_t bytes);

   private:
    friend class UnwrittenAnswers;
    const std::shared_ptr<UnwrittenAnswers> all_;
    const std::function<void()> give_up_;
    std::atomic<int64_t> bytes_{0};
    std::string owner_;  // guarded by all_->mutex_
  };

  // Ends answers until the rest holds no more than is allowed. Costs next to nothing where it does.
  void MakeRoom();
  int64_t bytes() const { return bytes_; }

 private:
  // The answer to end; null: none holds anything. With the lock held.
  Share* LargestOfGreediest() const;

  const int64_t max_bytes_;
  std::atomic<int64_t> bytes_{0};
  std::mutex mutex_;
  std::unordered_set<Share*> shares_;
};

}  // namespace coppice::server
