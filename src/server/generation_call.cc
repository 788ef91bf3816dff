#include "server/generation_call.h"

#include <utility>

#include "openai/answer_size.h"
#include "server/errors.h"

namespace coppice::server {
namespace {

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

GenerationCall::GenerationCall(Parts parts)
    : engine_(*parts.engine),
      facts_(std::move(parts.facts)),
      responder_(std::move(parts.responder)),
      prompts_(parts.prompts.size()),
      on_end_(std::move(parts.on_end)) {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const openai::OpenAiRequest& request = parts.prompts[i];
    prompts_[i].samples = request.request.n;
    prompts_[i].answer.prompt_tokens = std::ssize(request.request.prompt_ids);
    prompts_[i].repeated_tokens = RepeatedTokens(request, prompts_[i].answer.prompt_tokens);
    prompts_[i].answer.request = std::move(parts.prompts[i]);
  }
  if (!prompts_.front().answer.request.stream) return;
  int32_t first_choice = 0;
  for (const Prompt& prompt : prompts_) {
    streams_.push_back(StreamOf(&prompt.answer.request, facts_, first_choice, engine_.tokenizer()));
    first_choice += prompt.answer.request.choices;
  }
}

void GenerationCall::Start(Parts parts) {
  const std::shared_ptr<GenerationCall> call(new GenerationCall(std::move(parts)));
  call->Submit();
  call->responder_->WhenGone([weak = call->weak_from_this()] {
    if (const std::shared_ptr<GenerationCall> call = weak.lock()) call->Cancel();
  });
}

void GenerationCall::Submit() {
  // Held over all of it: events of the first prompt wait until the last one is submitted, and the stream's head is written first.
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < prompts_.size(); ++i) {
    Request& kept = prompts_[i].answer.request.request;
    Request request = std::exchange(kept, Request());
    kept.echo = request.echo;  // what the answer's form depends on stays
    kept.top_logprobs = request.top_logprobs;
    prompts_[i].answer.request.text.reset();  // the engine has its tokens
    prompts_[i].answer.request.fim.reset();
    prompts_[i].answer.request.prompt_ids = {};
    request.on_event = [self = shared_from_this(), i](const StreamEvent& event) { self->OnEvent(i, event); };
    const Result<RequestId> id = engine_.Submit(std::move(request));
    if (id.ok()) {
      submitted_.push_back(*id);
      continue;
    }
    failure_ = id.status();
    for (const RequestId other : submitted_) (void)engine_.Cancel(other);  // one that has ended needs no cancelling
    if (submitted_.empty()) Finish();                                      // else with the last of them: what was computed counts
    return;
  }
  if (streams_.empty()) return;
  responder_->BeginStream();
  std::string begin;
  for (const std::unique_ptr<openai::AnswerStream>& stream : streams_) stream->Begin(&begin);
  if (!begin.empty()) responder_->Write(std::move(begin));
}

void GenerationCall::OnEvent(size_t index, const StreamEvent& event) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  Prompt& prompt = prompts_[index];
  prompt.cached = event.cached_tokens;
  prompt.begun |= event.begun;
  if (event.request_done) prompt.shared_reads = event.shared_reads;
  prompt.generated += static_cast<int64_t>(event.token_ids.size()) * (event.index >= 0);
  if (event.index >= 0 && !event.token_ids.empty()) {
    last_token_ = Clock::now();
    if (first_token_ == Clock::time_point()) first_token_ = last_token_;
  }
  if (event.finish_reason == FinishReason::kError && failure_.ok()) failure_ = event.status;
  if (!gone_) Take(index, event);  // else what is generated until the engine ends it is counted, and nothing more
  done_ += event.request_done;
  if (done_ == submitted_.size()) {
    Finish();
  } else if (!failure_.ok() && event.finish_reason == FinishReason::kError) {
    for (const RequestId id : submitted_) (void)engine_.Cancel(id);  // the answer is an error whatever the others say
  }
}

void GenerationCall::Take(size_t index, const StreamEvent& event) {
  if (streams_.empty()) return prompts_[index].answer.output.Add(event);
  if (!failure_.ok()) return;
  if (event.index < 0) {
    if (std::unique_ptr<TextSource> echo = streams_[index]->Echo(event)) responder_->Write(std::move(echo));
    return;
  }
  std::string frames;
  streams_[index]->Append(event, &frames);
  if (!frames.empty()) responder_->Write(std::move(frames));
}

void GenerationCall::Cancel() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  gone_ = true;
  for (const RequestId id : submitted_) (void)engine_.Cancel(id);
}

openai::TokenUsage GenerationCall::Usage() const {
  openai::TokenUsage usage;
  for (const Prompt& prompt : prompts_) {
    usage.prompt += prompt.answer.prompt_tokens;
    usage.cached += prompt.cached;
    usage.shared_reads.Add(prompt.shared_reads);
    usage.completion += prompt.generated;
  }
  return usage;
}

// What ends is counted and the key's place is free (End) before the last byte goes out: a client that has its answer
// finds it in /metrics, and its next request finds the place.
void GenerationCall::Finish() {
  if (gone_) return End(kClientLeft);
  if (!streams_.empty() && submitted_.size() == prompts_.size()) {
    openai::BodyError failure;
    if (!failure_.ok()) failure = prompts_.front().answer.request.ErrorUnderWay(failure_);
    std::string end;
    std::unique_ptr<TextSource> large_end = streams_.front()->End(Usage(), failure, &end);
    End(failure_.ok() ? 200 : openai::HttpStatus(failure_));
    if (!end.empty()) responder_->Write(std::move(end));
    if (large_end) responder_->Write(std::move(large_end));
    return responder_->EndStream();
  }
  if (!failure_.ok()) {
    const HttpResponse error = FailureResponse();
    End(error.status);
    return responder_->Send(error);
  }
  End(200);
  SendWhole();
}

HttpResponse GenerationCall::FailureResponse() const {
  if (submitted_.size() < prompts_.size()) {
    if (failure_.code() == StatusCode::kResourceExhausted) return ErrorResponse(429, failure_.message());  // the queue is full
    return ErrorResponse(prompts_.front().answer.request.InItsWords({.status = failure_}).status);
  }
  const openai::BodyError error = prompts_.front().answer.request.ErrorUnderWay(failure_);
  return ErrorResponse(error.status, error.param);
}

// What becomes text on this thread, that of the engine's events, holds up everybody's: large answers do so elsewhere, and votes,
// whose regex is the client's.
void GenerationCall::SendWhole() {
  double bytes = 0;
  bool voted = false;
  std::vector<openai::Answer> answers;
  for (Prompt& prompt : prompts_) {
    const openai::OpenAiRequest& request = prompt.answer.request;
    const openai::EchoedPrompt& echo = prompt.answer.output.prompt;
    bytes += AnswerBytes(request, {.choices = request.choices,
                                   .prompt_tokens = std::ssize(echo.token_ids),
                                   .prompt_bytes = std::ssize(echo.text),
                                   .output_tokens = prompt.generated});
    voted |= request.vote.has_value();
    answers.push_back(std::move(prompt.answer));
  }
  std::unique_ptr<TextSource> body = ResponseBody(std::move(answers), facts_, engine_.tokenizer());
  responder_->Send(voted ? HttpResponse{.source = std::move(body)} : BodyResponse(std::move(body), bytes));
}

void GenerationCall::End(int status) {
  ended_ = true;
  Outcome outcome = {.status = status};
  int64_t samples = 0;
  for (const Prompt& prompt : prompts_) {
    samples += prompt.samples;
    if (prompt.begun) outcome.computed_tokens += prompt.answer.prompt_tokens + prompt.repeated_tokens + prompt.generated;
  }
  outcome.usage = Usage();
  if (first_token_ != Clock::time_point()) {
    outcome.first_token_seconds = Seconds(first_token_ - begin_);
    if (outcome.usage.completion > samples)  // between tokens of one sample; all of them run side by side
      outcome.token_seconds = Seconds(last_token_ - first_token_) * static_cast<double>(samples) /
                              static_cast<double>(outcome.usage.completion - samples);
  }
  if (on_end_) std::exchange(on_end_, nullptr)(outcome);
}

}  // namespace coppice::server
