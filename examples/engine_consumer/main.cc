// Generates 16 tokens with the installed engine and prints their ids: those of `coppice run` with the same prompt and seed.
// Usage: engine_consumer MODEL PROMPT SEED
#include <cstdio>
#include <cstdlib>

#include "coppice/engine/engine.h"

int main(int argc, char** argv) {
  const auto fail = [](const coppice::Status& status) {
    std::fprintf(stderr, "engine_consumer: %s\n", status.ToString().c_str());
    return EXIT_FAILURE;
  };
  if (argc != 4) return fail(coppice::InvalidArgument("expected MODEL PROMPT SEED"));
  const auto engine = coppice::Engine::Create({.model_path = argv[1]});
  if (!engine.ok()) return fail(engine.status());
  if ((*engine)->tokenizer() == nullptr) return fail((*engine)->model_info().tokenizer_status);
  const auto prompt = (*engine)->tokenizer()->Encode(argv[2]);
  if (!prompt.ok()) return fail(prompt.status());

  coppice::Request request{.prompt_ids = *prompt, .max_tokens = 16};
  request.sampling.seed = std::strtoull(argv[3], nullptr, 10);
  request.on_event = [](const coppice::StreamEvent& event) {
    for (const int32_t id : event.token_ids) std::printf("%d\n", id);
  };
  if (const auto submitted = (*engine)->Submit(request); !submitted.ok()) return fail(submitted.status());
  for (;;) {
    const auto worked = (*engine)->Step();
    if (!worked.ok()) return fail(worked.status());
    if (!*worked) return EXIT_SUCCESS;
  }
}
