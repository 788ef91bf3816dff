// A build without XGrammar.
#include "grammar/grammar_compiler.h"

namespace coppice {

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer&, int32_t) {
  return Unimplemented("this build cannot constrain output: run scripts/fetch_grammar and build again");
}

}  // namespace coppice
