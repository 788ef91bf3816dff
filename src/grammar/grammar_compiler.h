// Compiles what users ask of an answer's text into constraints of the engine, over the tokens of one model. Compiled ones are kept
// and used again. XGrammar: Dong et al. 2024, "XGrammar: Flexible and Efficient Structured Generation Engine for Large Language
// Models". Layer: grammar.
#pragma once

#include <cstdint>
#include <memory>

#include "coppice/core/status.h"
#include "coppice/engine/token_constraint.h"
#include "coppice/tokenizer/tokenizer.h"
#include "grammar/grammar_source.h"

namespace coppice {

// Thread-safe; one grammar is compiled at a time.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // `tokenizer` outlives the compiler. `vocab_size` is the model's, at least the tokenizer's. UNIMPLEMENTED in a build without
  // XGrammar.
  static Result<std::unique_ptr<GrammarCompiler>> Create(const Tokenizer& tokenizer, int32_t vocab_size);

  // INVALID_ARGUMENT says what is wrong with the source, or what of it is not supported. The constraint keeps what it needs.
  virtual Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source) = 0;
};

}  // namespace coppice
