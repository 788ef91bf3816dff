// Compiles what users ask of an answer's text into constraints of the engine, over the tokens of one model. XGrammar: Dong et al.
// 2024, "XGrammar: Flexible and Efficient Structured Generation Engine for Large Language Models". Layer: grammar.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>

#include "coppice/core/status.h"
#include "coppice/engine/token_constraint.h"
#include "coppice/tokenizer/tokenizer.h"
#include "grammar/fork_server.h"
#include "grammar/grammar_source.h"

namespace coppice {

// Bounds on compiling one grammar in a process of its own, and on the memory of the compiled grammar.
inline constexpr double kMostCompileSeconds = 30;  // of CPU time
inline constexpr int64_t kMostCompileBytes = int64_t{256} << 20, kMostCompiledBytes = int64_t{64} << 20;

// States that parsers of samples hold together, beyond those that a usual token takes; some 50 bytes each.
using LiveParserStates = std::atomic<int64_t>;
inline constexpr int64_t kMostLiveParserStates = 4'000'000;

// Work of the process for GrammarCompiler::Create; null in a build without XGrammar.
std::unique_ptr<ForkedWork> MakeGrammarWork();
// Starts that process, as the program begins (ForkServer::Start). UNIMPLEMENTED where there is no `work`.
Result<std::unique_ptr<ForkServer>> StartGrammarProcess(std::unique_ptr<ForkedWork> work = MakeGrammarWork());

// Thread-safe.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // `tokenizer` outlives the compiler. `vocab_size` is the model's, at least the tokenizer's. With a `process`, of
  // StartGrammarProcess and of this compiler alone, grammars are compiled in its children, several at a time, within the bounds
  // above: for grammars that others write. Without one they are compiled here, one at a time, and are kept for their next use.
  // UNIMPLEMENTED in a build without XGrammar.
  static Result<std::unique_ptr<GrammarCompiler>> Create(const Tokenizer& tokenizer, int32_t vocab_size,
                                                         std::shared_ptr<ForkServer> process = nullptr);

  // INVALID_ARGUMENT says what is wrong with the source, what of it is not supported, or which bound it passes. CANCELLED: `stop`
  // was requested, which a process is needed for. RESOURCE_EXHAUSTED: the system has no process now. The constraint keeps what it
  // needs.
  virtual Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source, std::stop_token stop = {}) = 0;
  // A constraint of Compile again, whose samples count what they hold in `held`, with those of other constraints. Without it, those
  // of each request count for themselves.
  virtual std::shared_ptr<const TokenConstraint> CountIn(const TokenConstraint& constraint,
                                                         std::shared_ptr<LiveParserStates> held) const = 0;
  // Bytes that a constraint of Compile holds; what its samples hold comes on top.
  virtual int64_t BytesOf(const TokenConstraint& constraint) const = 0;
};

}  // namespace coppice
