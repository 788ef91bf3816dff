// The extension coppice_llm._native: what coppice_llm's Python needs of the engine. It converts arguments, waits without the GIL,
// and asks for signals while it waits. Layer: python.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "openai/field_reader.h"
#include "openai/sample_fields.h"
#include "openai/score.h"
#include "python/attention_module.h"
#include "python/call.h"
#include "python/engine_options.h"
#include "python/errors.h"
#include "python/metrics_dict.h"
#include "python/stepped_engine.h"
#include "python/unlocked.h"
#include "python/weight_tensors.h"

namespace coppice::python {
namespace {

namespace nb = nanobind;
using nb::literals::operator""_a;
using std::chrono::milliseconds;

// A waiting main thread learns that often of a signal.
constexpr milliseconds kSignalPeriod{50};

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> ToNumpy(std::vector<T> values) {
  auto* const owned = new std::vector<T>(std::move(values));
  const nb::capsule owner(owned, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

// The arguments of coppice_llm.Completion, in its order.
nb::tuple ToTuple(int32_t prompt, Piece piece, std::optional<KeptSample> sample) {
  nb::list alternatives;
  for (const std::vector<TokenLogprob>& place : piece.sample.top_logprobs) {
    nb::dict logprobs;
    for (const auto& [token, logprob] : place) logprobs[nb::int_(token)] = logprob;
    alternatives.append(logprobs);
  }
  nb::object reason = nb::none();
  if (piece.sample.finish_reason) {
    const std::string_view name = Name(*piece.sample.finish_reason);
    reason = nb::str(name.data(), name.size());
  }
  const nb::object error = piece.status.ok() ? nb::object(nb::none()) : nb::object(nb::cast(piece.status.ToString()));
  return nb::make_tuple(prompt, piece.sample.index, piece.sample.text, piece.sample.token_ids,
                        ToNumpy(std::move(piece.sample.logprobs)), alternatives, reason, piece.cached_tokens, piece.weight_version,
                        error, sample ? nb::cast(*std::move(sample)) : nb::object(nb::none()), piece.sample.beam_score);
}

// KeyError where a verb says that its sample is not there (any more).
Status SampleFound(Status done) {
  if (done.code() == StatusCode::kNotFound) throw nb::key_error(done.message().c_str());
  return done;
}
template <class T>
Result<T> SampleFound(Result<T> done) {
  (void)SampleFound(done.status());
  return done;
}

// Takes the GIL for the signals that came; throws what a handler raised.
void CheckSignals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

class PyCall {
 public:
  using Submitter = std::function<Result<std::unique_ptr<Call>>()>;
  explicit PyCall(Submitter submitter) : submitter_(std::move(submitter)) {}

  // Once; from then on Cancel and Take are of what was submitted. Python has the call before, so that no signal comes between.
  // KeyError: the sample that it is for is gone.
  void Submit() { call_ = ValueOrThrow(SampleFound(Unlocked(submitter_))); }
  // Puts the news behind `news`, as arguments of Completion; none: all has been taken. KeyboardInterrupt and what else a signal's
  // handler raises leave what runs as it is; one that comes as this returns finds the news in the caller's list.
  void Take(nb::list news) {
    if (Finished()) return;
    while (!ValueOrThrow(Unlocked([&] { return call_->Wait(kSignalPeriod); }))) CheckSignals();
    TakeReady(&news);
  }
  // The news that are there now; None where none are, an empty list where all has been taken.
  nb::object TakeNow() {
    nb::list news;
    if (Finished()) return news;
    if (!ValueOrThrow(Unlocked([&] { return call_->Wait(milliseconds(0)); }))) return nb::none();
    TakeReady(&news);
    return news;
  }
  // False: nothing was submitted.
  bool Cancel() {
    if (call_) Unlocked([&] { call_->Cancel(); });
    return call_ != nullptr;
  }
  int Descriptor() { return ValueOrThrow(call_->Descriptor()); }

 private:
  bool Finished() const { return ValueOrThrow(call_->Finished()); }
  void TakeReady(nb::list* news) {
    CallNews::Pieces pieces = Unlocked([&] { return call_->Take(); });
    for (auto& [place, piece] : pieces) {
      // A sample that ran out of time has its tokens until then; any other failure is thrown.
      if (!piece.status.ok() && piece.status.code() != StatusCode::kDeadlineExceeded) Throw(piece.status);
      news->append(ToTuple(place.first, std::move(piece), call_->SampleOf(place)));
    }
  }

  Submitter submitter_;
  std::unique_ptr<Call> call_;  // none before Submit
};

// Waits for the end of a score while signals are asked for; what a handler raises cancels it.
class ScoreWaiter {
 public:
  void End(openai::ScoreCall::Outcome outcome) {
    const std::lock_guard lock(mutex_);
    outcome_ = std::move(outcome);
    ended_.notify_all();
  }
  bool Wait(milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, timeout, [&] { return outcome_.has_value(); });
  }
  openai::ScoreCall::Outcome Take() { return *std::move(outcome_); }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<openai::ScoreCall::Outcome> outcome_;
};

PauseMode ToPauseMode(const std::string& when) {
  for (const PauseMode mode : {PauseMode::kWait, PauseMode::kAbort, PauseMode::kKeep}) {
    if (when == Name(mode)) return mode;
  }
  throw nb::value_error(fmt::format("when='{}': expected one of 'wait', 'abort', 'keep'", when).c_str());
}

class PyEngine {
 public:
  explicit PyEngine(const nb::dict& options) {
    const EngineOptions parsed = ToEngineOptions(options);
    engine_ = ValueOrThrow(Unlocked([&] { return SteppedEngine::Create(parsed); }));
  }
  ~PyEngine() {
    Unlocked([&] { engine_.reset(); });
  }

  PyCall Prepare(std::vector<std::string> bodies, bool whole, bool keep) {
    const CallNews::Delivery delivery = DeliveryOf(whole);
    return PyCall([engine = engine_, bodies = std::move(bodies), delivery, keep]() -> Result<std::unique_ptr<Call>> {
      std::vector<Request> requests;
      for (size_t i = 0; i < bodies.size(); ++i) {
        Result<Request> request = engine->MakeRequest(bodies[i]);
        if (!request.ok()) {
          const std::string place = bodies.size() > 1 ? fmt::format("prompts[{}]: ", i) : "";
          return Status(request.status().code(), place + request.status().message());
        }
        requests.push_back(std::move(request).value());
      }
      return Call::Submit(engine, std::move(requests), delivery, keep);
    });
  }
  // `body`: the fields of openai::TakeFork.
  PyCall Fork(const KeptSample& sample, const std::string& body, bool whole) {
    CheckOwn(sample);
    return PyCall([sample, body, delivery = DeliveryOf(whole)]() -> Result<std::unique_ptr<Call>> {
      COPPICE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(body));
      openai::FieldReader fields(json);
      const ForkOptions options = openai::TakeFork(fields, sample.of->request().SamplingOf(sample.index));
      COPPICE_RETURN_IF_ERROR(fields.Finish().status);
      return Call::Fork(sample, options, delivery);
    });
  }
  // `body`: the fields of openai::TakeExtension.
  PyCall Extend(const KeptSample& sample, const std::string& body, bool whole) {
    CheckOwn(sample);
    return PyCall([engine = engine_, sample, body, delivery = DeliveryOf(whole)]() -> Result<std::unique_ptr<Call>> {
      COPPICE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(body));
      openai::FieldReader fields(json);
      std::vector<int32_t> tokens;
      COPPICE_RETURN_IF_ERROR(engine->With([&](Engine& open) {
        tokens = openai::TakeExtension(fields, open.tokenizer(), engine->parser().bounds());
        return fields.Finish().status;
      }));
      return Call::Extend(sample, tokens, delivery);
    });
  }
  void Prune(const KeptSample& sample) {
    CheckOwn(sample);
    const auto prune = [&] { return engine_->With([&](Engine& engine) { return engine.Prune(sample.id()); }); };
    ThrowIfError(SampleFound(Unlocked(prune)));
  }
  void Release(const KeptSample& sample) {
    CheckOwn(sample);
    ThrowIfError(SampleFound(Unlocked([&] { return sample.of->Release(); })));
  }
  nb::tuple Describe(const KeptSample& sample) {
    CheckOwn(sample);
    const auto describe = [&] { return engine_->With([&](Engine& engine) { return engine.Describe(sample.id()); }); };
    const SampleInfo info = ValueOrThrow(SampleFound(Unlocked(describe)));
    return nb::make_tuple(info.prompt_tokens, info.token_ids, info.finished);
  }

  // By continuation: log-probabilities of its tokens, whether each is the most probable one, and the tokens.
  nb::list Score(const std::string& body) {
    const auto waiter = std::make_shared<ScoreWaiter>();
    openai::ScoreRequest request;
    const auto start = [&] {
      return engine_->With([&](Engine& engine) -> Result<std::shared_ptr<openai::ScoreCall>> {
        const Result<nlohmann::json> json = ParseJson(body);
        if (!json.ok()) return json.status();
        openai::BodyError error;
        std::optional<openai::ScoreRequest> parsed = openai::ParseScore(*json, engine_->parser(), &error);
        if (!parsed) return error.status;
        request = *std::move(parsed);
        return openai::ScoreCall::Start(&engine, request,
                                        [waiter](openai::ScoreCall::Outcome outcome) { waiter->End(std::move(outcome)); });
      });
    };
    const std::shared_ptr<openai::ScoreCall> call = ValueOrThrow(Unlocked(start));
    while (!Unlocked([&] { return waiter->Wait(kSignalPeriod); })) {
      ThrowIfError(engine_->CheckUsable());
      if (PyErr_CheckSignals() == 0) continue;
      Unlocked([&] { return engine_->With([&](Engine&) { return call->Cancel(), OkStatus(); }); }).ok();
      throw nb::python_error();
    }
    const openai::ScoreCall::Outcome outcome = waiter->Take();
    ThrowIfError(outcome.status);
    nb::list scores;
    for (size_t i = 0; i < outcome.score_ids.size(); ++i) {
      const openai::ScoredSequence& sequence = request.sequences[i];
      std::vector<float> logprobs;
      bool greedy = true;
      for (const int32_t id : outcome.score_ids[i]) {
        logprobs.push_back(outcome.scores[id].logprob);
        greedy &= outcome.scores[id].greedy;
      }
      scores.append(nb::make_tuple(ToNumpy(std::move(logprobs)), greedy,
                                   std::vector<int32_t>(sequence.tokens.begin() + sequence.begin, sequence.tokens.end())));
    }
    return scores;
  }

  // Computes the prompt of `body` and pins it under `name`.
  PyCall Pin(const std::string& body, const std::string& name) {
    return PyCall([engine = engine_, body, name]() -> Result<std::unique_ptr<Call>> {
      COPPICE_ASSIGN_OR_RETURN(Request request, engine->MakeRequest(body));
      request.pin_prompt_as = name;
      std::vector<Request> requests;
      requests.push_back(std::move(request));
      return Call::Submit(engine, std::move(requests), CallNews::Delivery::kWhole);
    });
  }
  void Unpin(const std::string& name) {
    const Status status = Unlocked([&] { return engine_->With([&](Engine& engine) { return engine.Unpin(name); }); });
    if (status.code() == StatusCode::kNotFound) throw nb::key_error(status.message().c_str());
    ThrowIfError(status);
  }
  void SavePrefix(const std::string& name, const std::string& path) {
    ThrowIfError(Unlocked([&] { return engine_->With([&](Engine& engine) { return engine.SavePrefix(name, path); }); }));
  }
  void LoadPrefix(const std::string& name, const std::string& path) {
    ThrowIfError(
        Unlocked([&] { return engine_->With([&](Engine& engine) { return engine.LoadPrefix(name, path, CacheTenant()); }); }));
  }

  int64_t UpdateWeights(const nb::dict& tensors, const std::string& when, const std::string& label) {
    const UpdateOptions options{.when = ToPauseMode(when), .label = label};
    const WeightTensors taken = ToWeightTensors(tensors);
    const auto update = [&] { return engine_->With([&](Engine& engine) { return engine.UpdateWeights(taken.tensors, options); }); };
    return ValueOrThrow(Unlocked(update)).number;
  }
  void Pause(const std::string& when, bool refuse_new) {
    const PauseOptions options{.mode = ToPauseMode(when), .refuse_new = refuse_new};
    ThrowIfError(Unlocked([&] { return engine_->With([&](Engine& engine) { return engine.Pause(options); }); }));
  }
  void Resume() {
    ThrowIfError(Unlocked([&] { return engine_->With([](Engine& engine) { return engine.Resume(); }); }));
  }
  void Sleep(int level, const std::string& when, bool refuse_new) {
    if (level != 1 && level != 2) throw nb::value_error(fmt::format("level={}: expected 1 or 2", level).c_str());
    const SleepOptions options{.level = static_cast<SleepLevel>(level),
                               .pause = {.mode = ToPauseMode(when), .refuse_new = refuse_new}};
    ThrowIfError(Unlocked([&] { return engine_->With([&](Engine& engine) { return engine.Sleep(options); }); }));
  }
  void Wake(bool reload, bool resume) {
    const WakeOptions options{.reload = reload, .resume = resume};
    ThrowIfError(Unlocked([&] { return engine_->With([&](Engine& engine) { return engine.Wake(options); }); }));
  }
  std::string State() {
    return Name(ValueOrThrow(engine_->With([](Engine& engine) -> Result<EngineLoad> { return engine.Load(); })).state);
  }

  nb::tuple WeightVersionOf() {
    const WeightVersion version =
        ValueOrThrow(engine_->With([](Engine& engine) -> Result<WeightVersion> { return engine.weight_version(); }));
    return nb::make_tuple(version.number, version.label);
  }

  nb::dict Metrics() {
    return ToDict(ValueOrThrow(
        Unlocked([&] { return engine_->With([](Engine& engine) -> Result<EngineMetrics> { return engine.Metrics(); }); })));
  }
  nb::dict Model() {
    return ToDict(ValueOrThrow(engine_->With([](Engine& engine) -> Result<ModelInfo> { return engine.model_info(); })));
  }

  std::vector<int32_t> Tokenize(const std::string& text, bool add_special) {
    return ValueOrThrow(engine_->With([&](Engine& engine) -> Result<std::vector<int32_t>> {
      if (!engine.tokenizer()) return engine.model_info().tokenizer_status;
      return engine.tokenizer()->Encode(text, {.add_special = add_special});
    }));
  }
  std::string Detokenize(const std::vector<int64_t>& ids, bool keep_special) {
    return ValueOrThrow(engine_->With([&](Engine& engine) -> Result<std::string> {
      const ModelInfo& model = engine.model_info();
      if (!engine.tokenizer()) return model.tokenizer_status;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= model.vocab_size)
          return InvalidArgument(fmt::format("token_ids[{}] is {}, expected a token id in 0..{}", i, ids[i], model.vocab_size - 1));
      }
      return engine.tokenizer()->Decode(std::vector<int32_t>(ids.begin(), ids.end()), keep_special);
    }));
  }

  void Close() {
    Unlocked([&] { engine_->Close(); });
  }
  bool closed() const { return engine_->closed(); }

 private:
  static CallNews::Delivery DeliveryOf(bool whole) { return whole ? CallNews::Delivery::kWhole : CallNews::Delivery::kPieces; }
  void CheckOwn(const KeptSample& sample) const {
    if (sample.of->engine() != engine_) throw nb::value_error("the sample is of another LLM");
  }

  std::shared_ptr<SteppedEngine> engine_;
};

}  // namespace
}  // namespace coppice::python

NB_MODULE(_native, module) {
  using coppice::python::KeptSample;
  using coppice::python::PyCall;
  using coppice::python::PyEngine;
  using namespace nanobind::literals;
  module.doc() = "Coppice's engine as coppice_llm uses it; not an interface of its own.";
  nanobind::set_leak_warnings(false);  // what a program's global variables hold at its end is no leak of the package
  nanobind::class_<PyCall>(module, "Call")
      .def("submit", &PyCall::Submit)
      .def("take", &PyCall::Take, "news"_a)
      .def("take_now", &PyCall::TakeNow)
      .def("cancel", &PyCall::Cancel)
      .def("descriptor", &PyCall::Descriptor);
  nanobind::class_<KeptSample>(module, "Sample").def("__repr__", [](const KeptSample& sample) {
    return fmt::format("<sample {}.{}>", static_cast<uint64_t>(sample.id().request), sample.index);
  });
  nanobind::class_<PyEngine>(module, "Engine")
      .def(nanobind::init<const nanobind::dict&>(), "options"_a)
      .def("prepare", &PyEngine::Prepare, "bodies"_a, "whole"_a, "keep"_a)
      .def("fork", &PyEngine::Fork, "sample"_a, "body"_a, "whole"_a)
      .def("extend", &PyEngine::Extend, "sample"_a, "body"_a, "whole"_a)
      .def("prune", &PyEngine::Prune, "sample"_a)
      .def("release", &PyEngine::Release, "sample"_a)
      .def("describe", &PyEngine::Describe, "sample"_a)
      .def("score", &PyEngine::Score, "body"_a)
      .def("pin", &PyEngine::Pin, "body"_a, "name"_a)
      .def("unpin", &PyEngine::Unpin, "name"_a)
      .def("save_prefix", &PyEngine::SavePrefix, "name"_a, "path"_a)
      .def("load_prefix", &PyEngine::LoadPrefix, "name"_a, "path"_a)
      .def("update_weights", &PyEngine::UpdateWeights, "tensors"_a, "when"_a, "label"_a)
      .def("pause", &PyEngine::Pause, "when"_a, "refuse_new"_a)
      .def("resume", &PyEngine::Resume)
      .def("sleep", &PyEngine::Sleep, "level"_a, "when"_a, "refuse_new"_a)
      .def("wake", &PyEngine::Wake, "reload"_a, "resume"_a)
      .def("state", &PyEngine::State)
      .def("weight_version", &PyEngine::WeightVersionOf)
      .def("metrics", &PyEngine::Metrics)
      .def("model", &PyEngine::Model)
      .def("tokenize", &PyEngine::Tokenize, "text"_a, "add_special"_a)
      .def("detokenize", &PyEngine::Detokenize, "ids"_a, "keep_special"_a)
      .def("close", &PyEngine::Close)
      .def("closed", &PyEngine::closed);
  coppice::python::AddAttention(module);
}
