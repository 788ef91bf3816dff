// How many tokens an API key may ask for: of one request, and of a minute. A token bucket (Turner 1986, "New directions in
// communications") for each key. Layer: server.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace coppice::server {

inline constexpr int64_t kMostTokens = 1'000'000'000'000;  // as a limit; sums of a few stay far from where integers end

// Tokens of prompts and of output; 0: no limit.
struct TokenLimit {
  int64_t per_request = 0, per_minute = 0;
};

// Thread-safe. A request takes all the tokens that it may use when it begins, and gives back at its end what it did not use: a key
// never uses more than its bucket holds and a minute brings.
class TokenLimits {
 public:
  using Clock = std::chrono::steady_clock;

  // `of_keys`: by name, of those that have their own; `others`: of all others.
  TokenLimits(TokenLimit others, std::map<std::string, TokenLimit> of_keys);

  const TokenLimit& Of(const std::string& key) const;
  // The most tokens that a request of the key may ever take; 0: any number.
  int64_t MostOfRequest(const std::string& key) const;

  struct Taken {
    bool ok = true;
    int64_t left = 0;          // in the bucket, where it is not ok
    int64_t wait_seconds = 0;  // until there are enough, if no request takes any in between
  };
  // `tokens`: at most MostOfRequest. `reserve`: what is to be left in the bucket then; one that is full gives all the same.
  Taken Take(const std::string& key, int64_t tokens, int64_t reserve = 0, Clock::time_point now = Clock::now());
  void GiveBack(const std::string& key, int64_t tokens);

 private:
  struct Bucket {
    double level = 0;  // tokens
    Clock::time_point time;
  };

  const TokenLimit others_;
  const std::map<std::string, TokenLimit> of_keys_;
  std::mutex mutex_;
  std::map<std::string, Bucket> buckets_;  // of keys with a limit that asked
};

}  // namespace coppice::server
