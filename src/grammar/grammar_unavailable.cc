// A build without XGrammar.
#include "grammar/grammar_compiler.h"

namespace coppice {
namespace {

Status NotBuilt() { return Unimplemented("this build cannot constrain output: run scripts/fetch_grammar and build again"); }

}  // namespace

std::unique_ptr<ForkedWork> MakeGrammarWork() { return nullptr; }

Result<std::unique_ptr<ForkServer>> StartGrammarProcess(std::unique_ptr<ForkedWork>) { return NotBuilt(); }

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer&, int32_t, std::shared_ptr<ForkServer>) {
  return NotBuilt();
}

}  // namespace coppice
