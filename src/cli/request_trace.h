// The requests of a file as a trace: a trace's own lines, or those of an OpenAI batch. Layer: cli.
#pragma once

#include <cstdint>
#include <string>

#include "coppice/core/status.h"
#include "model/checkpoint.h"
#include "simulate/trace.h"

namespace CLI {
class App;
}

namespace coppice::cli {

struct TraceSource {
  std::string path;            // "-": standard input
  int32_t block_tokens = 512;  // of a trace's hash_ids
};

// --block-tokens.
void AddBlockTokens(CLI::App& command, TraceSource* source);

// Which of the two it is the first line says. Lines of a batch all come at once, in the order of their prompts, and are as long as
// they may be; their text is that of the model's tokenizer. In the order of arrival. Errors name the file and the line.
Result<simulate::Trace> ReadTrace(const TraceSource& source, const Checkpoint& model);

}  // namespace coppice::cli
