// An engine that holds still between steps: to wait, to give its memory to others, or to get other weights.
// Layer: public API.
#pragma once

#include <cstdint>

namespace coppice {

// The fate of running samples. Requests that have not begun wait.
enum class PauseMode : uint8_t {
  kWait,   // they finish first, and no other request begins
  kAbort,  // they end at once, with FinishReason::kCancelled
  kKeep,   // they go on later: with the KV that they have, which no other request reads after an update of weights
};
constexpr const char* Name(PauseMode mode) {
  switch (mode) {
    case PauseMode::kWait: return "wait";
    case PauseMode::kAbort: return "abort";
    case PauseMode::kKeep: return "keep";
  }
  return "";
}

struct PauseOptions {
  PauseMode mode = PauseMode::kWait;
  bool refuse_new = false;  // Submit says UNAVAILABLE until Resume; else requests wait
};

enum class SleepLevel : uint8_t {
  kKeepWeights = 1,  // the memory of KV is given back, and on a GPU that of weights, which lie in host memory meanwhile
  kDropWeights = 2,  // both are given back
};

struct SleepOptions {
  SleepLevel level = SleepLevel::kKeepWeights;
  PauseOptions pause = {};  // samples that are kept lose their KV and are computed again
};

struct WakeOptions {
  bool reload = true;  // weights that are not there are read from the model's file; else updates bring them before Resume
  bool resume = true;  // once it is awake and its weights were read; else the engine stays paused
};

enum class EngineState : uint8_t { kRunning, kPaused, kAsleep };
constexpr const char* Name(EngineState state) {
  switch (state) {
    case EngineState::kRunning: return "running";
    case EngineState::kPaused: return "paused";
    case EngineState::kAsleep: return "asleep";
  }
  return "";
}

}  // namespace coppice
