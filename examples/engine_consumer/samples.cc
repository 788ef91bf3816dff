// Prints four samples of one prompt, whose KV is stored once and read once a step for all of them. Usage: samples MODEL PROMPT
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "coppice/engine/engine.h"

namespace {

template <class T>
T OrDie(coppice::Result<T> result) {
  if (result.ok()) return *std::move(result);
  std::fprintf(stderr, "samples: %s\n", result.status().ToString().c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) OrDie<int>(coppice::InvalidArgument("expected MODEL PROMPT"));
  const auto engine = OrDie(coppice::Engine::Create({.model_path = argv[1]}));
  if (engine->tokenizer() == nullptr) OrDie<int>(engine->model_info().tokenizer_status);

  std::vector<std::string> texts(4);
  coppice::Request request{.prompt_ids = OrDie(engine->tokenizer()->Encode(argv[2])), .n = 4, .max_tokens = 64};
  request.sampling.temperature = 0.8f;
  request.on_event = [&texts](const coppice::StreamEvent& event) { texts[event.index] += event.text; };
  OrDie(engine->Submit(std::move(request)));
  while (OrDie(engine->Step())) {
  }
  for (const std::string& text : texts) std::printf("%s\n---\n", text.c_str());
}
