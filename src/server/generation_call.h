// One request for generated text: puts its prompts to the engine and turns what the engine says into the answer, whole or as a
// stream. Layer: server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "coppice/engine/engine.h"
#include "openai/answer_stream.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/response_body.h"
#include "server/http.h"

namespace coppice::server {

class GenerationCall : public std::enable_shared_from_this<GenerationCall> {
 public:
  struct Outcome {
    int status = 200;  // of HTTP; 499 where the client left before the end
    openai::TokenUsage usage;
    int64_t computed_tokens = 0;  // of prompts that a step took in, as often as the answer has them, and of their output
    double first_token_seconds = -1, token_seconds = -1;  // -1: there was none
  };
  struct Parts {
    Engine* engine = nullptr;                    // outlives the call
    std::vector<openai::OpenAiRequest> prompts;  // complete, one or more, of one endpoint
    openai::ResponseFacts facts;
    std::shared_ptr<Responder> responder;
    std::function<void(const Outcome&)> on_end;  // once, on any thread, after the answer's last part
  };

  // Submits the prompts. Everything after that happens on the engine's thread for events; a client that leaves cancels the rest.
  static void Start(Parts parts);

 private:
  struct Prompt {
    openai::Answer answer;        // as far as it has come
    int64_t repeated_tokens = 0;  // of the prompt, in further choices of the answer
    int64_t generated = 0;
    int32_t cached = 0, samples = 0;
    bool begun = false;
    SharedReads shared_reads;
  };
  using Clock = std::chrono::steady_clock;

  explicit GenerationCall(Parts parts);
  void Submit();
  void OnEvent(size_t prompt, const StreamEvent& event);
  void Cancel();
  // With the lock held:
  void Take(size_t prompt, const StreamEvent& event);  // what an event says goes into the answer
  openai::TokenUsage Usage() const;
  void Finish();  // the answer's end, good or bad
  void SendWhole();
  HttpResponse FailureResponse() const;
  void End(int status);

  Engine& engine_;
  const openai::ResponseFacts facts_;
  const std::shared_ptr<Responder> responder_;
  const Clock::time_point begin_ = Clock::now();

  std::mutex mutex_;
  std::vector<Prompt> prompts_;
  std::vector<std::unique_ptr<openai::AnswerStream>> streams_;  // by prompt; empty where the answer comes whole
  std::vector<RequestId> submitted_;
  size_t done_ = 0;  // prompts
  bool gone_ = false, ended_ = false;
  Status failure_;
  Clock::time_point first_token_, last_token_;
  std::function<void(const Outcome&)> on_end_;
};

}  // namespace coppice::server
