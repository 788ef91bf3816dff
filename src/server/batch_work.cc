#include "server/batch_work.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/exhaustion.h"
#include "server/batch_compile.h"
#include "server/record.h"

namespace coppice::server {
namespace {

namespace fs = std::filesystem;

constexpr auto kPoll = std::chrono::milliseconds(50);  // until a stop is seen, or room where others made it

// Below all requests of clients that wait for their answer; among batches, `priority` says which comes first.
constexpr int64_t kBatchPriority = -1'000'000;

// A batch whose requests fail from the first one on is given up: its author has most use of the first errors, and its neighbours of
// what the rest would cost.
constexpr int64_t kGiveUpAfter = 100;  // requests
constexpr int64_t kMostErrors = 1000;  // lines of an error file; more are counted

BatchError ErrorOf(const Status& status) {
  if (status.code() == StatusCode::kInvalidArgument) return {"invalid_input", status.message()};
  return {"failed", "the server could not go on with the batch; its log says why"};
}

int32_t PriorityInBatch(int32_t priority) {
  return static_cast<int32_t>(std::max(int64_t{priority} + kBatchPriority, int64_t{std::numeric_limits<int32_t>::min()}));
}

}  // namespace

BatchWork::BatchWork(const BatchContext& context, Batch batch, FileRoom* room, bool resumed, Asked asked, Publish publish)
    : context_(context),
      batch_(std::move(batch)),
      room_(*room),
      resumed_(resumed),
      asked_(std::move(asked)),
      publish_(std::move(publish)) {}

void BatchWork::Run() {
  Status status;
  try {
    status = CatchExhaustion("working on a batch", [&] { return ReadAndRun(); });
  } catch (const std::exception& error) {  // a fault of ours: it costs one batch, not the server
    status = Internal(fmt::format("working on the batch failed: {}", error.what()));
  }
  if (asked_() == BatchStop::kShutdown) return;
  if (status.code() == StatusCode::kUnavailable)
    return spdlog::warn("{} waits for the next start: {}", batch_.id, status.message());
  if (!status.ok()) {
    spdlog::warn("{} failed: {}", batch_.id, status.message());
    if (batch_.errors.empty()) batch_.errors.push_back(ErrorOf(status));
    if (const Status published = PublishFiles(); !published.ok())
      spdlog::warn("what {} answered cannot be kept: {}", batch_.id, published.message());
    batch_.Enter(BatchState::kFailed);
    status = publish_(batch_, /*lasting=*/true);
  }
  if (!status.ok()) spdlog::warn("{} is not kept: {}; the next start works on it again", batch_.id, status.message());
}

Status BatchWork::ReadAndRun() {
  using openai::BatchErrors;
  using openai::BatchInput;
  using openai::BatchOutput;
  if (!context_.files->Get(batch_.key, batch_.input_file_id)) return InvalidArgument("the input file is gone");
  COPPICE_ASSIGN_OR_RETURN(BatchOutput output, BatchOutput::Open(context_.files->PathOf(batch_.output_file_id)));
  COPPICE_ASSIGN_OR_RETURN(BatchErrors errors, BatchErrors::Resume(context_.files->PathOf(batch_.error_file_id), kMostErrors));
  Result<BatchInput> input = BatchInput::Read(context_.files->PathOf(batch_.input_file_id), *context_.parser, output, &errors,
                                              {.endpoint = batch_.endpoint,
                                               .max_requests = context_.max_requests,
                                               .give_up_after = kGiveUpAfter,
                                               .max_line_bytes = context_.max_line_bytes,
                                               .find_prefix = context_.prefixes_of(batch_.key),
                                               .should_stop = [this] { return asked_() != BatchStop::kNone; }});
  if (!input.ok()) return input.status().code() == StatusCode::kCancelled ? Finish(asked_()) : input.status();
  Count(*input, errors, nullptr);
  if (batch_.num_requests == 0) return InvalidArgument("the input file holds no request");
  COPPICE_RETURN_IF_ERROR(KeepRoom(output, errors));
  if (batch_.state == BatchState::kValidating) {
    batch_.Enter(BatchState::kInProgress);
    COPPICE_RETURN_IF_ERROR(publish_(batch_, /*lasting=*/true));
  }
  std::optional<BatchCompile> compile;
  if (context_.compile_queue) compile.emplace(context_.compile_queue, batch_.key);
  openai::BatchRun run(context_.engine, &*input, context_.parser,
                       {.model = context_.model,
                        .max_waiting = context_.max_waiting,
                        .max_active = context_.max_active,
                        .give_up_after = input->num_finished_before() > 0 ? 0 : kGiveUpAfter,
                        .careful = resumed_,
                        .admit =
                            [this](openai::OpenAiRequest* request) {
                              openai::BatchAdmission admission = context_.admit(batch_.key, request);
                              request->request.priority = PriorityInBatch(request->request.priority);
                              return admission;
                            },
                        .compile = compile ? std::ref(*compile) : decltype(openai::BatchRunOptions::compile)(),
                        .on_end = [this](int64_t taken, int64_t used) { context_.release(batch_.key, taken, used); },
                        .on_answer = [this](const openai::TokenUsage& usage) { context_.count(batch_.key, usage); }},
                       /*prefixes=*/nullptr, &output, &errors);
  BatchStop stop = BatchStop::kNone;
  while (!run.done()) {
    if (stop == BatchStop::kNone) stop = asked_();
    if (stop != BatchStop::kNone) run.Cancel();
    COPPICE_RETURN_IF_ERROR(run.Submit());
    COPPICE_RETURN_IF_ERROR(run.WriteFinished());
    Count(*input, errors, &run);
    COPPICE_RETURN_IF_ERROR(KeepRoom(output, errors));
    if (run.given_up())
      return InvalidArgument(fmt::format("the first {} requests all failed; the error file says why", run.counts().failed));
    if (asked_() == BatchStop::kShutdown) break;  // no thread may be left to step the engine
    if (!run.done()) run.WaitForFinished(kPoll);
  }
  COPPICE_RETURN_IF_ERROR(output.Sync());
  if (asked_() == BatchStop::kShutdown) return OkStatus();
  if (stop == BatchStop::kExpired) {
    COPPICE_RETURN_IF_ERROR(run.ReportUnanswered(
        "batch_expired", DeadlineExceeded("this request was not answered before the batch's completion window was over")));
  }
  Count(*input, errors, &run);
  return Finish(stop);
}

Status BatchWork::KeepRoom(const openai::BatchOutput& output, const openai::BatchErrors& errors) {
  Status grown = room_.GrowTo(output.size() + errors.size());
  if (!grown.ok()) batch_.errors.push_back({"storage_limit", grown.message()});
  return grown;
}

void BatchWork::Count(const openai::BatchInput& input, const openai::BatchErrors& errors, const openai::BatchRun* run) {
  const int64_t completed = input.num_finished_before() + (run ? run->counts().answered : 0);
  const int64_t failed = errors.count();
  // Errors that Read found are no jobs; those of jobs are in the run's count.
  const int64_t total = std::ssize(input.jobs()) + input.num_finished_before() + failed - (run ? run->counts().failed : 0);
  if (completed == batch_.num_completed && failed == batch_.num_failed && total == batch_.num_requests) return;
  batch_.num_completed = completed;
  batch_.num_failed = failed;
  batch_.num_requests = total;
  (void)publish_(batch_, /*lasting=*/false);
}

Status BatchWork::Finish(BatchStop why) {
  if (why == BatchStop::kShutdown) return OkStatus();
  if (why == BatchStop::kNone) {
    batch_.Enter(BatchState::kFinalizing);
    COPPICE_RETURN_IF_ERROR(publish_(batch_, /*lasting=*/true));
  }
  COPPICE_RETURN_IF_ERROR(PublishFiles());
  batch_.Enter(why == BatchStop::kCancelled ? BatchState::kCancelled
               : why == BatchStop::kExpired ? BatchState::kExpired
                                            : BatchState::kCompleted);
  return publish_(batch_, /*lasting=*/true);
}

Status BatchWork::PublishFiles() {
  const auto publish = [&](const std::string& file, const char* what, bool* there) {
    const std::string path = context_.files->PathOf(file);
    std::error_code absent;
    const auto size = fs::file_size(path, absent);
    if (absent) return OkStatus();
    if (size == 0) {
      fs::remove(path, absent);
      return OkStatus();
    }
    FileInfo info = {
        .id = file, .key = batch_.key, .filename = fmt::format("{}_{}.jsonl", batch_.id, what), .purpose = "batch_output"};
    if (batch_.output_expires_after) info.expires = SecondsNow() + *batch_.output_expires_after;
    COPPICE_RETURN_IF_ERROR(context_.files->Publish(std::move(info)));
    *there = true;
    return OkStatus();
  };
  COPPICE_RETURN_IF_ERROR(publish(batch_.output_file_id, "output", &batch_.has_output));
  return publish(batch_.error_file_id, "error", &batch_.has_errors);
}

}  // namespace coppice::server
