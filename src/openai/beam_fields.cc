#include "openai/beam_fields.h"

#include <optional>

namespace coppice::openai {
namespace {

void TakeEarlyStopping(FieldReader& fields, EarlyStopping* early_stopping) {
  const nlohmann::json* value = fields.Find("early_stopping");
  if (!value) return;
  if (*value == false) {
    *early_stopping = EarlyStopping::kFalse;
  } else if (*value == true) {
    *early_stopping = EarlyStopping::kTrue;
  } else if (*value == "never") {
    *early_stopping = EarlyStopping::kNever;
  } else {
    fields.Expect("early_stopping", *value, R"(true, false or "never")");
  }
}

void RefuseWithoutBeams(FieldReader& fields, const BeamOptions& beams) {
  const auto refuse = [&](const char* name) {
    fields.Fail(name,
                InvalidArgument(fmt::format("{} is of beam search: give use_beam_search or a beam_width above 1, too", name)));
  };
  if (beams.length_penalty != 1) refuse("length_penalty");
  if (beams.early_stopping != EarlyStopping::kFalse) refuse("early_stopping");
  if (beams.stochastic) refuse("stochastic_beams");
}

}  // namespace

void TakeBeams(FieldReader& fields, Request* request) {
  BeamOptions& beams = request->beams;
  std::optional<bool> is_asked_for;
  std::optional<int32_t> width;
  fields.Take("use_beam_search", &is_asked_for);
  fields.Take("beam_width", &width);
  fields.Take("length_penalty", &beams.length_penalty);
  TakeEarlyStopping(fields, &beams.early_stopping);
  fields.Take("stochastic_beams", &beams.stochastic);
  if (is_asked_for == false && width.value_or(1) > 1) {
    const std::string message = fmt::format("use_beam_search is false and beam_width is {}: leave out one of the two", *width);
    return fields.Fail("use_beam_search", InvalidArgument(message));
  }
  if (!is_asked_for.value_or(false) && width.value_or(1) == 1) return RefuseWithoutBeams(fields, beams);
  if (!width) fields.Take("best_of", &width);
  beams.width = width.value_or(request->n);
  if (beams.width < 1) return fields.Expect(fields.Find("beam_width") ? "beam_width" : "best_of", beams.width, "at least 1");
  const SamplingParams neutral;
  if (!fields.Find("presence_penalty")) request->sampling.presence_penalty = neutral.presence_penalty;
  if (!fields.Find("frequency_penalty")) request->sampling.frequency_penalty = neutral.frequency_penalty;
  if (!fields.Find("repetition_penalty")) request->sampling.repetition_penalty = neutral.repetition_penalty;
}

}  // namespace coppice::openai
