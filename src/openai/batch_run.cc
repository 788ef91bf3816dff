#include "openai/batch_run.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "core/text_source.h"
#include "openai/answer_size.h"
#include "openai/request_driver.h"
#include "openai/response_body.h"

namespace coppice::openai {
namespace {

constexpr auto kCrowded = std::chrono::seconds(1);  // until the next try

}  // namespace

struct BatchRun::Finished {
  std::mutex mutex;
  std::condition_variable news;
  std::vector<std::shared_ptr<Active>> requests;
  bool woken = false;   // what the next request waits for may be there
  bool closed = false;  // the run is gone: requests that end hold this, and would be held by it
};

class BatchRun::Active final : public RequestDriver {
 public:
  Active(Engine* engine, std::shared_ptr<Finished> finished) : RequestDriver(engine), finished_(std::move(finished)) {}

  // An error: the engine does not take it.
  Status Start(Request request) {
    Begin([&] { Submit(std::move(request)); });
    const auto lock = Lock();
    return refused() ? failure() : OkStatus();
  }
  // The request's counts, once it is among the finished ones.
  const RequestCounts& outcome() const { return counts().front(); }
  const Status& error() const { return failure(); }
  bool interrupted() const { return cancelled() && outcome().cancelled; }  // by the run, before it had all its tokens
  // A pause or an update of weights ended it so.
  bool aborted() const { return failure().ok() && !cancelled() && outcome().cancelled && !in_group; }

  size_t job = 0;
  bool in_group = false;  // which may end it with what it has
  BatchLine line;
  int64_t taken_tokens = 0;
  RequestOutput output;

 private:
  void OnEvent(size_t /*request*/, const StreamEvent& event) override { output.Add(event); }
  void OnEnd() override {
    if (refused()) return;
    const std::lock_guard lock(finished_->mutex);
    if (finished_->closed) return;
    finished_->requests.push_back(std::static_pointer_cast<Active>(shared_from_this()));
    finished_->news.notify_one();
  }

  const std::shared_ptr<Finished> finished_;
};

BatchRun::BatchRun(Engine* engine, const BatchInput* input, const OpenAiRequestParser* parser, BatchRunOptions options,
                   JobPrefixes* prefixes, BatchOutput* output, BatchErrors* errors)
    : engine_(*engine),
      input_(*input),
      parser_(*parser),
      options_(std::move(options)),
      prefixes_(prefixes),
      output_(*output),
      errors_(*errors),
      ended_(input->jobs().size()),
      finished_(std::make_shared<Finished>()) {
  counts_.total = static_cast<int64_t>(input_.jobs().size());
  for (const BatchJob& job : input_.jobs()) counts_.tokens_asked += job.output_tokens;
}

// Where a file failed, the requests still in the engine have no reader.
BatchRun::~BatchRun() {
  Cancel();
  std::vector<std::shared_ptr<Active>> unread;
  const std::lock_guard lock(finished_->mutex);
  finished_->closed = true;
  unread.swap(finished_->requests);
}

bool BatchRun::HasRoom() const {
  const auto active = static_cast<int64_t>(active_.size());
  if (options_.careful && active > counts_.done()) return false;
  if (options_.max_active > 0 && active >= options_.max_active) return false;
  if (std::chrono::steady_clock::now() < next_admission_) return false;
  const EngineLoad load = engine_.Load();
  return load.state == EngineState::kRunning && load.waiting < options_.max_waiting;
}

std::optional<size_t> BatchRun::Next() const {
  if (compiling_) return compiling_->job;
  if (!again_.empty()) return again_.front();
  return next_ < input_.jobs().size() ? std::optional(next_) : std::nullopt;
}

Status BatchRun::Submit() {
  while (!cancelled_ && !given_up() && HasRoom()) {
    const std::optional<size_t> job = Next();
    if (!job) break;
    COPPICE_ASSIGN_OR_RETURN(const bool taken, SubmitOne(*job));
    if (!taken) break;
    if (*job == next_) {
      ++next_;
    } else {
      std::erase(again_, *job);
    }
  }
  return OkStatus();
}

Result<bool> BatchRun::Begin(size_t index, std::shared_ptr<Active>* begun) {
  const BatchJob& job = input_.jobs()[index];
  if (prefixes_) prefixes_->Before(index);
  auto active = std::make_shared<Active>(&engine_, finished_);
  active->job = index;
  BatchErrors::Error refused;
  COPPICE_ASSIGN_OR_RETURN(std::optional<BatchLine> line, input_.Load(job, parser_, &refused));
  if (!line) {  // what it names is gone
    ++counts_.failed;
    End(index);
    COPPICE_RETURN_IF_ERROR(errors_.Report(refused));
    return true;
  }
  active->line = *std::move(line);
  if (options_.admit) {
    const BatchAdmission admission = options_.admit(&active->line.request);
    if (!admission.status.ok()) {
      COPPICE_RETURN_IF_ERROR(ReportFailure(index, active->line, admission.status, admission.param));
      return true;
    }
    if (admission.wait) {
      next_admission_ = std::chrono::steady_clock::now() + *admission.wait;
      return false;
    }
    active->taken_tokens = admission.taken_tokens;
  }
  *begun = std::move(active);
  return true;
}

std::optional<Result<std::shared_ptr<const TokenConstraint>>> BatchRun::Compile(const GrammarSource& source) {
  if (!options_.compile) return Unimplemented("no output can be constrained here");
  auto compiled = options_.compile(source, [finished = finished_] {
    const std::lock_guard lock(finished->mutex);
    finished->woken = true;
    finished->news.notify_one();
  });
  if (!compiled || compiled->status().code() != StatusCode::kResourceExhausted) return compiled;
  next_admission_ = std::chrono::steady_clock::now() + kCrowded;  // others' grammars, or those of requests that run
  return std::nullopt;
}

Result<bool> BatchRun::SubmitOne(size_t index) {
  std::shared_ptr<Active> active = std::exchange(compiling_, nullptr);
  if (!active) {
    COPPICE_ASSIGN_OR_RETURN(const bool may_go, Begin(index, &active));
    if (!may_go || !active) return may_go;
  }
  if (const OutputForm* const form = active->line.request.output.get()) {
    const auto compiled = Compile(form->source);
    if (!compiled) {
      compiling_ = std::move(active);
      return false;
    }
    if (!compiled->ok()) {
      Release(active->taken_tokens, 0);
      if (compiled->status().code() == StatusCode::kUnavailable) return compiled->status();
      const BodyError error = form->ErrorOf(compiled->status());
      COPPICE_RETURN_IF_ERROR(ReportFailure(index, active->line, error.status, error.param));
      return true;
    }
    active->line.request.request.constraint = **compiled;
  }
  active->in_group = !active->line.request.request.group.name.empty();
  const Status refused = active->Start(active->line.request.TakeRequest());
  if (refused.ok()) {
    active_.insert(std::move(active));
    return true;
  }
  Release(active->taken_tokens, 0);
  // A queue that others fill too empties again; where it is empty, the request itself does not fit.
  if (refused.code() == StatusCode::kResourceExhausted && engine_.Load().waiting > 0) return false;
  if (refused.code() == StatusCode::kUnavailable)  // of a pause it ends, of a lost device it does not
    return engine_.Load().state == EngineState::kRunning ? Result<bool>(refused) : Result<bool>(false);
  COPPICE_RETURN_IF_ERROR(ReportFailure(index, active->line, refused));
  return true;
}

void BatchRun::Release(int64_t taken, int64_t used) const {
  if (options_.on_end) options_.on_end(taken, used);
}

void BatchRun::End(size_t job) {
  ended_[job] = true;
  counts_.tokens_asked_of_done += input_.jobs()[job].output_tokens;
  if (prefixes_) prefixes_->Done(job);
}

Status BatchRun::ReportFailure(size_t index, const BatchLine& line, const Status& status, std::string param) {
  ++counts_.failed;
  End(index);
  BodyError error = line.request.InItsWords({status, std::move(param)});
  return errors_.Report({.line = input_.jobs()[index].line,
                         .id = line.id,
                         .custom_id = line.custom_id,
                         .status = std::move(error.status),
                         .param = std::move(error.param)});
}

void BatchRun::WaitForFinished(std::chrono::milliseconds timeout) {
  std::unique_lock lock(finished_->mutex);
  finished_->news.wait_for(lock, timeout, [this] { return !finished_->requests.empty() || finished_->woken; });
  finished_->woken = false;
}

void BatchRun::Cancel() {
  if (std::exchange(cancelled_, true)) return;
  if (const auto compiling = std::exchange(compiling_, nullptr)) Release(compiling->taken_tokens, 0);
  for (const std::shared_ptr<Active>& active : active_) active->Cancel();
}

Status BatchRun::WriteFinished() {
  std::vector<std::shared_ptr<Active>> finished;
  {
    const std::lock_guard lock(finished_->mutex);
    finished.swap(finished_->requests);
  }
  for (const std::shared_ptr<Active>& active : finished) {
    active_.erase(active);
    COPPICE_RETURN_IF_ERROR(Write(active.get()));
  }
  return OkStatus();
}

Status BatchRun::Write(Active* active) {
  BatchLine& line = active->line;
  const size_t job = active->job;
  const TokenUsage usage = active->outcome().usage(input_.jobs()[job].num_tokens);
  const int64_t used = usage.prompt + RepeatedTokens(line.request, usage.prompt) + usage.completion;
  Release(active->taken_tokens, active->outcome().begun ? used : 0);
  const Status& error = active->error();
  if (error.code() == StatusCode::kUnavailable) return error;  // of the device: no request is at fault
  if (active->interrupted()) return OkStatus();
  if (active->aborted()) {
    again_.push_back(job);
    return OkStatus();
  }
  if (!error.ok()) {
    const BodyError error_body = line.request.ErrorUnderWay(error);
    return ReportFailure(job, line, error_body.status, error_body.param);
  }
  ++counts_.answered;
  counts_.tokens_of_done += usage.completion;
  End(job);
  if (options_.on_answer) options_.on_answer(usage);
  ResponseFacts facts = {
      .id = line.id,
      .created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(),
      .model = options_.model};
  std::vector<Answer> answers;
  answers.push_back({.request = std::move(line.request), .output = std::move(active->output), .usage = usage});
  EnclosedText text(fmt::format(R"({{"id":{},"custom_id":{},"response":{{"status_code":200,"request_id":{},"body":)",
                                DumpJson("batch_req_" + line.id), DumpJson(line.custom_id), DumpJson("req_" + line.id)),
                    ResponseBody(std::move(answers), std::move(facts), engine_.tokenizer()), R"(},"error":null})");
  return output_.Append(&text);
}

Status BatchRun::ReportUnanswered(const std::string& code, const Status& why) {
  for (size_t index = 0; index < ended_.size(); ++index) {
    if (ended_[index]) continue;
    const BatchJob& job = input_.jobs()[index];
    BatchErrors::Error refused;
    COPPICE_ASSIGN_OR_RETURN(const std::optional<BatchLine> line, input_.Load(job, parser_, &refused));
    ++counts_.failed;
    End(index);
    COPPICE_RETURN_IF_ERROR(errors_.Report(
        {.line = job.line, .id = job.id, .custom_id = line ? line->custom_id : refused.custom_id, .status = why, .code = code}));
  }
  return OkStatus();
}

}  // namespace coppice::openai
