#include "server/generation_call.h"

#include <algorithm>
#include <utility>

#include "coppice/engine/ranking.h"
#include "core/exhaustion.h"
#include "openai/answer_size.h"
#include "server/errors.h"

namespace coppice::server {
namespace {

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

GenerationCall::GenerationCall(Parts parts)
    : RequestDriver(parts.engine),
      facts_(std::move(parts.facts)),
      responder_(std::move(parts.responder)),
      tokenizer_(parts.engine->tokenizer()),
      prompts_(parts.prompts.size()),
      on_kept_(std::move(parts.on_kept)),
      post_(std::move(parts.post)),
      on_end_(std::move(parts.on_end)) {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const openai::OpenAiRequest& request = parts.prompts[i];
    const int64_t prompt_tokens = parts.group ? parts.begun_tokens : std::ssize(request.request.prompt_ids);
    prompts_[i].samples = request.request.n;
    prompts_[i].repeated_tokens = RepeatedTokens(request, prompt_tokens);
    prompts_[i].answer.usage.prompt = prompt_tokens;
    prompts_[i].answer.request = std::move(parts.prompts[i]);
  }
  if (prompts_.front().answer.request.vote_stop) vote_.emplace(std::max(1, prompts_.front().samples));
  if (!prompts_.front().answer.request.stream) return;
  int32_t first_choice = 0;
  for (const Prompt& prompt : prompts_) {
    streams_.push_back(StreamOf(&prompt.answer.request, facts_, first_choice, tokenizer_));
    first_choice += prompt.answer.request.choices;
  }
}

void GenerationCall::Start(Parts parts) {
  const std::shared_ptr<openai::KeptRequest> kept = parts.kept;
  const std::shared_ptr<openai::KeptRequest::Group> group = parts.group;
  ActiveCalls* const active = parts.active;
  ActiveCalls::Generation generation = {.id = parts.facts.id, .key = std::move(parts.key)};
  for (const openai::OpenAiRequest& prompt : parts.prompts) generation.client_ids.push_back(prompt.client_id);
  const std::shared_ptr<GenerationCall> call(new GenerationCall(std::move(parts)));
  generation.call = call->weak_from_this();
  if (active != nullptr) call->active_ = active->Add(std::move(generation));
  if (group) {
    call->TakeOver(*kept, group.get(), [&] { call->BeginStreams(); });
  } else {
    call->Begin([&] { call->SubmitPrompts(); });
  }
  call->responder_->WhenGone([weak = call->weak_from_this()] {
    if (const std::shared_ptr<RequestDriver> call = weak.lock()) call->Cancel();
  });
}

void GenerationCall::SubmitPrompts() {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    openai::OpenAiRequest& request = prompts_[i].answer.request;
    const bool keeps = !request.sample_ids.empty();
    std::shared_ptr<openai::KeptRequest> samples;
    if (!Submit(request.TakeRequest(), keeps ? &samples : nullptr)) return;
    if (keeps) on_kept_(i, samples);
  }
  BeginStreams();
}

void GenerationCall::BeginStreams() {
  if (streams_.empty()) return;
  responder_->BeginStream();  // before what the first event brings
  for (const std::unique_ptr<openai::AnswerStream>& stream : streams_) {
    std::string begin;
    std::unique_ptr<TextSource> large_begin = stream->Begin(&begin);
    if (!begin.empty()) responder_->Write(std::move(begin));
    if (large_begin) responder_->Write(std::move(large_begin));
  }
}

void GenerationCall::OnEvent(size_t index, const StreamEvent& event) {
  if (event.index >= 0 && !event.token_ids.empty()) {
    last_token_ = Clock::now();
    if (first_token_ == Clock::time_point()) first_token_ = last_token_;
  }
  if (cancelled()) return;  // what is generated until the engine ends it is counted, and nothing more
  Take(index, event);
  if (vote_ && event.finish_reason && failure().ok()) ReadAnswer(prompts_[index].answer.output.samples[event.index]);
}

void GenerationCall::ReadAnswer(const openai::Sample& sample) {
  if (!sample.finished()) return CountAnswer(std::optional<std::string>());
  post_([weak = weak_from_this(), text = sample.text, pattern = *prompts_.front().answer.request.vote] {
    // Where there is no memory, the vote is not settled, and all samples are the answer.
    (void)CatchExhaustion("counting a vote", [&] {
      const Result<std::optional<std::string>> answer = ExtractAnswer(text, pattern);
      const std::shared_ptr<RequestDriver> self = weak.lock();
      if (self == nullptr) return OkStatus();
      auto& call = static_cast<GenerationCall&>(*self);
      const auto lock = call.Lock();
      if (!call.ended() && !call.cancelled()) call.CountAnswer(answer);
      return OkStatus();
    });
  });
}

void GenerationCall::CountAnswer(const Result<std::optional<std::string>>& answer) {
  if (!vote_ || vote_->settled()) return;
  if (!answer.ok()) return vote_.reset();  // the vote will be null, and all samples the answer
  vote_->Add(*answer);
  if (!vote_->settled()) return;
  const std::vector<openai::Sample>& samples = prompts_.front().answer.output.samples;
  for (int32_t i = 0; i < prompts_.front().samples; ++i) {
    const bool has_ended = i < std::ssize(samples) && samples[i].finish_reason;
    if (!has_ended) Prune(0, i);
  }
}

void GenerationCall::Take(size_t index, const StreamEvent& event) {
  if (streams_.empty()) return prompts_[index].answer.output.Add(event);
  if (!failure().ok()) return;
  if (event.index < 0) {
    if (std::unique_ptr<TextSource> echo = streams_[index]->Echo(event)) responder_->Write(std::move(echo));
    return;
  }
  std::string frames;
  streams_[index]->Append(event, &frames);
  if (!frames.empty()) responder_->Write(std::move(frames));
}

openai::TokenUsage GenerationCall::Usage() const {
  int64_t prompt_tokens = 0;
  for (const Prompt& prompt : prompts_) prompt_tokens += prompt.answer.usage.prompt;
  return usage(prompt_tokens);
}

// A call that ends is counted and the key's place is free (End) before the last byte goes out: a client that has its answer
// finds it in /metrics, and its next request finds the place.
void GenerationCall::OnEnd() {
  if (!on_end_) return;  // called before, and there was no memory for the answer, which the responder says
  if (cancelled()) return End(kClientLeft);
  if (!streams_.empty() && !refused()) {
    openai::BodyError error;
    if (!failure().ok()) error = prompts_.front().answer.request.ErrorUnderWay(failure());
    std::string end;
    std::unique_ptr<TextSource> large_end = streams_.front()->End(Usage(), error, &end);
    End(failure().ok() ? 200 : openai::HttpStatus(failure()), std::string(failure().message()));
    if (!end.empty()) responder_->Write(std::move(end));
    if (large_end) responder_->Write(std::move(large_end));
    return responder_->EndStream();
  }
  if (!failure().ok()) {
    const HttpResponse error = FailureResponse();
    End(error.status, error.reason);
    return responder_->Send(error);
  }
  End(200);
  SendWhole();
}

HttpResponse GenerationCall::FailureResponse() const {
  const openai::OpenAiRequest& first = prompts_.front().answer.request;
  if (refused()) {
    if (failure().code() == StatusCode::kResourceExhausted) return ErrorResponse(429, failure().message());  // the queue is full
    return ErrorResponse(first.InItsWords({.status = failure()}).status);
  }
  const openai::BodyError error = first.ErrorUnderWay(failure());
  return ErrorResponse(error.status, error.param);
}

// An answer that becomes text on this thread, that of the engine's events, holds up all others. Large answers, and votes, whose
// regex is the client's, become text elsewhere.
void GenerationCall::SendWhole() {
  double bytes = 0;
  bool voted = false;
  std::vector<openai::Answer> answers;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    openai::Answer& answer = prompts_[i].answer;
    const openai::OpenAiRequest& request = answer.request;
    const openai::EchoedPrompt& echo = answer.output.prompt;
    answer.usage = counts()[i].usage(answer.usage.prompt);
    bytes += AnswerBytes(request, {.choices = request.choices,
                                   .prompt_tokens = std::ssize(echo.token_ids.empty() ? request.prompt_ids : echo.token_ids),
                                   .prompt_bytes = std::ssize(echo.text),
                                   .output_tokens = answer.usage.completion});
    voted |= request.vote.has_value();
    if (request.vote_stop) std::erase_if(answer.output.samples, [](const openai::Sample& sample) { return !sample.finished(); });
    answers.push_back(std::move(answer));
  }
  std::unique_ptr<TextSource> body = ResponseBody(std::move(answers), facts_, tokenizer_);
  responder_->Send(voted ? HttpResponse{.source = std::move(body)} : BodyResponse(std::move(body), bytes));
}

void GenerationCall::End(int status, std::string reason) {
  active_ = ActiveCalls::Entry();  // the call ends, its object perhaps later
  Outcome outcome = {.status = status, .reason = std::move(reason), .usage = Usage()};
  int64_t samples = 0;
  for (const Prompt& prompt : prompts_) samples += prompt.samples;
  for (size_t i = 0; i < counts().size(); ++i) {
    if (counts()[i].begun)
      outcome.computed_tokens += prompts_[i].answer.usage.prompt + prompts_[i].repeated_tokens + counts()[i].generated_tokens;
  }
  if (first_token_ != Clock::time_point()) {
    outcome.first_token_seconds = Seconds(first_token_ - begin_);
    if (outcome.usage.completion > samples)  // between tokens of one sample; all of them run side by side
      outcome.token_seconds = Seconds(last_token_ - first_token_) * static_cast<double>(samples) /
                              static_cast<double>(outcome.usage.completion - samples);
  }
  std::exchange(on_end_, nullptr)(outcome);
}

}  // namespace coppice::server
