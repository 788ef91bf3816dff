// A trace of chats: conversations of several turns behind system prompts of which few are asked for often, single questions beside
// them, Poisson arrivals. Layer: simulate.
#pragma once

#include <cstdint>

#include "simulate/trace.h"

namespace coppice::simulate {

// Lengths are log-normal. Outputs and users' turns have the medians of ShareGPT's single turns (cli/bench/workload.cc), system
// prompts those of applications: a few hundred to a few thousand tokens.
struct ChatMixOptions {
  int64_t requests = 10000;
  double rate = 10;                    // requests a second, in the mean
  int32_t system_prompts = 200;        // the k-th is asked for 1/k as often as the first (Zipf)
  double turns = 6;                    // of a conversation, in the mean; geometric
  double single_share = 0.3;           // of conversations that have one turn
  double think_seconds = 45;           // between an answer and the next turn, in the mean; exponential
  double answer_token_seconds = 0.02;  // for a token of an answer before the user goes on
  int32_t max_context = 8192;          // a conversation ends before it would have more tokens
  uint64_t seed = 0;
};

// Answers are pieces of the prompts of later turns (TraceRequest::output). REQUIRES: positive numbers, max_context >= 256.
Trace MakeChatMix(const ChatMixOptions& options);

}  // namespace coppice::simulate
