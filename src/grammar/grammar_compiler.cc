#include "grammar/grammar_compiler.h"

#include <fmt/format.h>
#include <time.h>
#include <xgrammar/xgrammar.h>

#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/check.h"

namespace {

thread_local std::string library_warning;  // the first one since Guarded began

}  // namespace

// What the library asks its user to define (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }
void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  // Strings of a schema have budgets of characters (json_text_rules.h), which may run out within an escape: it is finished then.
  constexpr std::string_view kOfBudgets = "The character budget (max_chars) of a rule was exceeded";
  if (library_warning.empty() && !message.starts_with(kOfBudgets)) library_warning = message;
}

}  // namespace xgrammar

namespace coppice {
namespace {

// Of compiled grammars that are kept for their next use.
constexpr int64_t kCacheBytes = int64_t{256} << 20;
// A mask that takes longer ends its sample: other samples wait for it. Usual ones take some 10 us.
constexpr double kMostMaskSeconds = 0.1;

// Time that this thread ran, so that a busy machine ends no sample.
double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs `work`, which calls the library, whose errors are exceptions. What it warns of is an error too: it would ignore a part of
// what was asked.
template <class Work>
Status Guarded(const Work& work) {
  library_warning.clear();
  try {
    work();
  } catch (const std::bad_alloc&) {
    throw;  // whoever bounds memory answers
  } catch (const std::exception& error) {
    return InvalidArgument(error.what());
  }
  return library_warning.empty() ? OkStatus() : InvalidArgument(library_warning);
}

class MatcherState final : public ConstraintState {
 public:
  explicit MatcherState(const xgrammar::CompiledGrammar& grammar) : matcher_(grammar) {}

  Result<bool> FillMask(std::span<uint32_t> mask) override {
    int64_t shape[] = {static_cast<int64_t>(mask.size())};
    DLTensor tensor{.data = mask.data(), .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = shape};
    const double begin = ThreadSeconds();
    COPPICE_RETURN_IF_ERROR(Guarded([&] { matcher_.FillNextTokenBitmask(&tensor); }));
    if (const double seconds = ThreadSeconds() - begin; seconds > kMostMaskSeconds) {
      return ResourceExhausted(
          fmt::format("the grammar takes {:.0f} ms a token, expected at most {:.0f}: make it simpler, with fewer "
                      "parts that match the same text",
                      seconds * 1e3, kMostMaskSeconds * 1e3));
    }
    return matcher_.IsCompleted();
  }

  Status Accept(int32_t token) override {
    bool accepted = false;
    COPPICE_RETURN_IF_ERROR(Guarded([&] { accepted = matcher_.AcceptToken(token); }));
    return accepted ? OkStatus() : Internal(fmt::format("the grammar does not take token {}, which its mask allowed", token));
  }

 private:
  xgrammar::GrammarMatcher matcher_;
};

class CompiledConstraint final : public TokenConstraint {
 public:
  CompiledConstraint(xgrammar::CompiledGrammar grammar, int32_t vocab_size)
      : grammar_(std::move(grammar)), vocab_size_(vocab_size) {}

  std::unique_ptr<ConstraintState> Begin() const override { return std::make_unique<MatcherState>(grammar_); }
  int32_t vocab_size() const override { return vocab_size_; }

 private:
  xgrammar::CompiledGrammar grammar_;
  int32_t vocab_size_;
};

class XGrammarCompiler final : public GrammarCompiler {
 public:
  XGrammarCompiler(const Tokenizer& tokenizer, int32_t vocab_size) : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source) override {
    std::string text = source.text;
    if (IsOfSchema(source.kind)) {
      COPPICE_ASSIGN_OR_RETURN(text, SchemaGrammar(source));
    } else {
      COPPICE_RETURN_IF_ERROR(CheckGrammarSource(source));
    }
    const std::lock_guard lock(mutex_);
    std::optional<xgrammar::CompiledGrammar> compiled;
    const Status status = Guarded([&] { compiled = CompileText(source.kind, text); });
    if (!status.ok()) {
      if (compiler_) compiler_->ClearCache();  // which does not know what was warned of
      return InvalidArgument(fmt::format("the {} cannot be used: {}", Name(source.kind), status.message()));
    }
    return std::shared_ptr<const TokenConstraint>(std::make_shared<CompiledConstraint>(*std::move(compiled), vocab_size_));
  }

 private:
  // `text`: of the source, or the grammar of its schema.
  xgrammar::CompiledGrammar CompileText(GrammarKind kind, const std::string& text) {
    if (!compiler_) compiler_.emplace(MakeTokenizerInfo(), /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytes);
    switch (kind) {
      case GrammarKind::kRegex: return compiler_->CompileRegex(text);
      case GrammarKind::kStructuralTag: return compiler_->CompileStructuralTag(text);
      case GrammarKind::kJson:
      case GrammarKind::kJsonObject:
      case GrammarKind::kJsonSchema:
      case GrammarKind::kEbnf: break;
    }
    return compiler_->CompileGrammar(text);
  }

  // Control tokens have no text and are never part of an answer.
  xgrammar::TokenizerInfo MakeTokenizerInfo() const {
    std::vector<std::string> texts;
    texts.reserve(vocab_size_);
    for (int32_t id = 0; id < vocab_size_; ++id) texts.emplace_back(tokenizer_.TokenBytes(id));
    return xgrammar::TokenizerInfo(texts, xgrammar::VocabType::RAW, vocab_size_, std::vector<int32_t>{});
  }

  const Tokenizer& tokenizer_;
  int32_t vocab_size_;
  std::mutex mutex_;
  std::optional<xgrammar::GrammarCompiler> compiler_;  // made when it is needed: it takes a second with a large vocabulary
};

}  // namespace

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer& tokenizer, int32_t vocab_size) {
  return std::unique_ptr<GrammarCompiler>(std::make_unique<XGrammarCompiler>(tokenizer, vocab_size));
}

}  // namespace coppice
