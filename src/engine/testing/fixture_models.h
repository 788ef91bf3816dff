// Random models of tests/data/models with what transformers computed, and requests to an engine that runs one. Layer: engine, tests
// only.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coppice/engine/engine.h"
#include "model/safetensors.h"

namespace coppice {

inline std::string ModelPath(const std::string& name) { return std::string(COPPICE_TEST_DATA) + "/models/" + name; }

struct Expected {
  std::vector<int32_t> prompt, greedy;
  std::vector<float> logits, greedy_logprobs;  // logits: [prompt, vocab]

  float Logprob(size_t position, int32_t token) const {
    const size_t vocab = logits.size() / prompt.size();
    const float* const row = logits.data() + position * vocab;
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
    return static_cast<float>(row[token] - std::log(sum));
  }
};

inline Expected LoadExpected(const std::string& name) {
  const auto file = SafetensorsFile::Open(ModelPath(name) + "/expected.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  return {*file->Read<int32_t>("prompt"), *file->Read<int32_t>("greedy"), *file->Read<float>("logits"),
          *file->Read<float>("greedy_logprobs")};
}

struct Output {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::optional<float> beam_score;
  bool operator==(const Output&) const = default;
};

// Of one request.
struct Outcome {
  std::vector<Output> samples;
  std::vector<std::optional<float>> prompt_logprobs;
  SharedReads shared_reads;
};

// Submits; the result is complete when the engine has come to its end.
inline void Submit(Engine& engine, Request request, Outcome* result) {
  result->samples.resize(request.n);
  request.on_event = [result](const StreamEvent& event) {
    if (event.index < 0) {
      result->prompt_logprobs = event.prompt_logprobs;
      return;
    }
    EXPECT_TRUE(event.status.ok()) << event.status.ToString();
    if (event.request_done) result->shared_reads = event.shared_reads;
    Output& output = result->samples[event.index];
    output.tokens.insert(output.tokens.end(), event.token_ids.begin(), event.token_ids.end());
    output.logprobs.insert(output.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    output.beam_score = event.beam_score;
  };
  const Result<RequestId> id = engine.Submit(std::move(request));
  ASSERT_TRUE(id.ok()) << id.status().ToString();
}

inline void RunToEnd(Engine& engine) {
  for (;;) {
    const Result<bool> worked = engine.Step();
    ASSERT_TRUE(worked.ok()) << worked.status().ToString();
    if (!*worked) return;
  }
}

inline Outcome Generate(Engine& engine, Request request) {
  Outcome result;
  Submit(engine, std::move(request), &result);
  RunToEnd(engine);
  return result;
}

inline Request Greedy(std::vector<int32_t> prompt, int32_t max_tokens, int32_t n = 1) {
  Request request{.prompt_ids = std::move(prompt), .n = n, .max_tokens = max_tokens, .ignore_eos = true};
  request.sampling.temperature = 0;
  return request;
}

}  // namespace coppice
