// One request for generated text: puts its prompts to the engine and turns what the engine says into the answer, whole or as a
// stream. Layer: server.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coppice/engine/engine.h"
#include "engine/policies/vote_stop.h"
#include "openai/answer_stream.h"
#include "openai/kept_request.h"
#include "openai/request.h"
#include "openai/request_driver.h"
#include "openai/response.h"
#include "openai/response_body.h"
#include "server/active_calls.h"
#include "server/http.h"

namespace coppice::server {

class GenerationCall final : public openai::RequestDriver {
 public:
  struct Outcome {
    int status = 200;    // of HTTP; 499 where the client left before the end
    std::string reason;  // of an error: the client's message
    openai::TokenUsage usage;
    int64_t computed_tokens = 0;  // of prompts that a step took in, as often as the answer has them, and of their output
    double first_token_seconds = -1, token_seconds = -1;  // -1: there was none
  };
  struct Parts {
    Engine* engine = nullptr;                         // outlives the call
    std::vector<openai::OpenAiRequest> prompts;       // complete, one or more, of one endpoint
    std::function<void(std::function<void()>)> post;  // does work that may take long, elsewhere; of requests with vote_stop
    openai::ResponseFacts facts;
    std::shared_ptr<Responder> responder;
    ActiveCalls* active = nullptr;  // where others find the call by its ids; may be null
    std::string key;                // name of the API key whose call it is
    // Prompts whose samples have names (OpenAiRequest::sample_ids) are kept: called by prompt once it is submitted, under the
    // call's lock.
    std::function<void(size_t prompt, const std::shared_ptr<openai::KeptRequest>&)> on_kept;
    // Not null: the answer reports these samples of a kept request, which begin with so many tokens, and `prompts` has the form of
    // the answer alone.
    std::shared_ptr<openai::KeptRequest> kept;
    std::shared_ptr<openai::KeptRequest::Group> group;
    int64_t begun_tokens = 0;
    std::function<void(const Outcome&)> on_end;  // once, on any thread, after the answer's last part
  };

  // Submits the prompts, if they are to be. Everything after that happens on the engine's thread for events; a client that leaves
  // cancels the rest.
  static void Start(Parts parts);

 private:
  struct Prompt {
    openai::Answer answer;        // as far as it has come
    int64_t repeated_tokens = 0;  // of the prompt, in further choices of the answer
    int32_t samples = 0;
  };
  using Clock = std::chrono::steady_clock;

  explicit GenerationCall(Parts parts);
  void SubmitPrompts();
  void BeginStreams();
  void OnEvent(size_t prompt, const StreamEvent& event) override;
  void OnEnd() override;  // the answer's end, good or bad
  // Looks for the answer of a sample that has ended, elsewhere, and ends the others where it settles the vote.
  void ReadAnswer(const openai::Sample& sample);
  void CountAnswer(const Result<std::optional<std::string>>& answer);
  // With the lock held:
  void Take(size_t prompt, const StreamEvent& event);  // what an event says goes into the answer
  openai::TokenUsage Usage() const;
  void SendWhole();
  HttpResponse FailureResponse() const;
  void End(int status, std::string reason = {});  // reports what it was, once

  const openai::ResponseFacts facts_;
  const std::shared_ptr<Responder> responder_;
  const Tokenizer* const tokenizer_;
  const Clock::time_point begin_ = Clock::now();
  std::vector<Prompt> prompts_;
  std::vector<std::unique_ptr<openai::AnswerStream>> streams_;  // by prompt; empty where the answer comes whole
  Clock::time_point first_token_, last_token_;
  const decltype(Parts::on_kept) on_kept_;
  const decltype(Parts::post) post_;
  std::optional<VoteStop> vote_;  // of a request with vote_stop, which has one prompt
  std::function<void(const Outcome&)> on_end_;
  ActiveCalls::Entry active_;
};

}  // namespace coppice::server
