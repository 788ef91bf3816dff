#include "grammar/grammar_compiler.h"

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
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
#include "grammar/compiled_bytes.h"
#include "grammar/parser_work.h"
#include "runner/step_batch.h"

namespace {

thread_local std::string library_warning;  // the first one since Guarded began

}  // namespace

// Log functions that the library leaves to its user (XGRAMMAR_LOG_CUSTOMIZE).
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

// Of compiled grammars that the library keeps for their next use.
constexpr int64_t kCacheBytes = int64_t{256} << 20;
// Bounds on parser work for a mask and for a token (parser_work.h): some 0.1 s and 0.01 s. The engine's step waits for it. Usual
// ones take some 500 units; a class of characters that repeats up to 1000 times takes two million where its end is near.
constexpr int64_t kMostMaskWork = 6'000'000, kMostAcceptWork = 500'000;
// States of a usual token, of which kMostLiveParserStates has none. Most take 20.
constexpr int64_t kUsualStates = 64;

// Runs `work`, which calls the library, whose errors are exceptions. A warning is an error too: the library would ignore a part
// of the source. RESOURCE_EXHAUSTED where a ParserWorkLimit ended it.
template <class Work>
Status Guarded(const Work& work) {
  library_warning.clear();
  try {
    work();
  } catch (const std::bad_alloc&) {
    throw;  // the caller that bounds memory answers
  } catch (const ParserWorkExceeded&) {
    return ResourceExhausted(
        "the grammar lets its parser read the output in too many ways, and one more token would take too long: make it simpler, "
        "with fewer parts that match the same text");
  } catch (const std::exception& error) {
    return InvalidArgument(error.what());
  }
  return library_warning.empty() ? OkStatus() : InvalidArgument(library_warning);
}

// ------------------------------------------------------------------------------------------------------------------ constraints

Status HoldsTooMuch() {
  return ResourceExhausted(fmt::format(
      "the grammar's parsers hold more than {} states for samples that are under way: ask for less output, fewer samples "
      "or fewer requests at a time, or make it simpler, with fewer parts that match the same text",
      kMostLiveParserStates));
}

// A number of LiveParserStates, for a while.
class Holding {
 public:
  explicit Holding(std::shared_ptr<LiveParserStates> held) : held_(std::move(held)) {}
  Holding(const Holding&) = delete;
  ~Holding() { *held_ -= count_; }

  // False: that would be too many, and the number stays.
  bool GrowTo(int64_t count) {
    const int64_t more = count - count_;
    if (*held_ += more; *held_ > kMostLiveParserStates && more > 0) {
      *held_ -= more;
      return false;
    }
    count_ = count;
    return true;
  }
  int64_t count() const { return count_; }
  const std::shared_ptr<LiveParserStates>& held() const { return held_; }

 private:
  const std::shared_ptr<LiveParserStates> held_;
  int64_t count_ = 0;
};

class MatcherState final : public ConstraintState {
 public:
  MatcherState(const xgrammar::CompiledGrammar& grammar, std::shared_ptr<LiveParserStates> held)
      : matcher_(std::in_place, grammar), holding_(std::move(held)) {}
  // A clone. Where there is no room for its states, its first token is refused.
  MatcherState(const MatcherState& other) : kept_(other.kept_), tokens_(other.tokens_), holding_(other.holding_.held()) {
    if (other.matcher_ && holding_.GrowTo(other.holding_.count())) matcher_.emplace(other.matcher_->Fork());
  }

  Result<bool> FillMask(std::span<uint32_t> mask) override {
    if (!matcher_) return HoldsTooMuch();
    int64_t shape[] = {static_cast<int64_t>(mask.size())};
    DLTensor tensor{.data = mask.data(), .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 32, 1}, .shape = shape};
    const ParserWorkLimit limit(kMostMaskWork);
    COPPICE_RETURN_IF_ERROR(Guarded([&] { matcher_->FillNextTokenBitmask(&tensor); }));
    return matcher_->IsCompleted();
  }

  Status Accept(int32_t token) override {
    if (!matcher_) return HoldsTooMuch();
    bool accepted = false;
    const ParserWorkLimit limit(kMostAcceptWork);
    const int64_t before = parser_states_kept;
    COPPICE_RETURN_IF_ERROR(Guarded([&] { accepted = matcher_->AcceptToken(token); }));
    if (!accepted) return Internal(fmt::format("the grammar does not take token {}, which its mask allowed", token));
    kept_ += parser_states_kept - before;
    ++tokens_;
    return holding_.GrowTo(std::max(int64_t{0}, kept_ - kUsualStates * tokens_)) ? OkStatus() : HoldsTooMuch();
  }

  std::unique_ptr<ConstraintState> Clone() const override { return std::make_unique<MatcherState>(*this); }

 private:
  std::optional<xgrammar::GrammarMatcher> matcher_;
  int64_t kept_ = 0, tokens_ = 0;  // states in the matcher's history, of so many tokens
  Holding holding_;
};

class CompiledConstraint final : public TokenConstraint {
 public:
  // `held`: null: by request.
  CompiledConstraint(xgrammar::CompiledGrammar grammar, int32_t vocab_size, std::shared_ptr<LiveParserStates> held = nullptr)
      : grammar_(std::move(grammar)), vocab_size_(vocab_size), held_(std::move(held)) {}

  std::unique_ptr<ConstraintState> Begin() const override {
    return std::make_unique<MatcherState>(grammar_, held_ ? held_ : std::make_shared<LiveParserStates>(0));
  }
  int32_t vocab_size() const override { return vocab_size_; }
  int64_t bytes() const { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }
  std::shared_ptr<const TokenConstraint> CountIn(std::shared_ptr<LiveParserStates> held) const {
    return std::make_shared<CompiledConstraint>(grammar_, vocab_size_, std::move(held));
  }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const int32_t vocab_size_;
  const std::shared_ptr<LiveParserStates> held_;
};

// Accounting of constraints, the same in both compilers.
class XGrammarCompiler : public GrammarCompiler {
 public:
  std::shared_ptr<const TokenConstraint> CountIn(const TokenConstraint& constraint,
                                                 std::shared_ptr<LiveParserStates> held) const override {
    return static_cast<const CompiledConstraint&>(constraint).CountIn(std::move(held));
  }
  int64_t BytesOf(const TokenConstraint& constraint) const override {
    return static_cast<const CompiledConstraint&>(constraint).bytes();
  }
};

// -------------------------------------------------------------------------------------------------------------------- compiling

xgrammar::TokenizerInfo MakeTokenizerInfo(const std::vector<std::string>& texts) {
  const auto vocab_size = static_cast<int>(texts.size());
  return xgrammar::TokenizerInfo(texts, xgrammar::VocabType::RAW, vocab_size, std::vector<int32_t>{});
}

// `text`: that of TextToCompile.
xgrammar::CompiledGrammar CompileText(GrammarKind kind, const std::string& text, xgrammar::GrammarCompiler* compiler) {
  switch (kind) {
    case GrammarKind::kRegex: return compiler->CompileRegex(text);
    case GrammarKind::kStructuralTag: return compiler->CompileStructuralTag(text);
    case GrammarKind::kJson:
    case GrammarKind::kJsonObject:
    case GrammarKind::kJsonSchema:
    case GrammarKind::kEbnf: break;
  }
  return compiler->CompileGrammar(text);
}

// Compiles, and makes the first mask: a grammar whose first one is too much is better refused than begun.
Status CompileChecked(GrammarKind kind, const std::string& text, int32_t vocab_size, xgrammar::GrammarCompiler* compiler,
                      std::optional<xgrammar::CompiledGrammar>* compiled) {
  COPPICE_RETURN_IF_ERROR(Guarded([&] { *compiled = CompileText(kind, text, compiler); }));
  std::optional<MatcherState> state;
  {
    const ParserWorkLimit limit(kMostAcceptWork);
    COPPICE_RETURN_IF_ERROR(Guarded([&] { state.emplace(**compiled, std::make_shared<LiveParserStates>(0)); }));
  }
  std::vector<uint32_t> mask(MaskWords(vocab_size));
  return state->FillMask(mask).status();
}

// The text that the library compiles for a source: its own text, or the grammar of its schema.
Result<std::string> TextToCompile(const GrammarSource& source) {
  if (IsOfSchema(source.kind)) return SchemaGrammar(source);
  COPPICE_RETURN_IF_ERROR(CheckGrammarSource(source));
  return source.text;
}

Status Refused(GrammarKind kind, std::string_view why) {
  return InvalidArgument(fmt::format("the {} cannot be used: {}", Name(kind), why));
}

class LocalCompiler final : public XGrammarCompiler {
 public:
  explicit LocalCompiler(std::vector<std::string> texts)
      : texts_(std::move(texts)), vocab_size_(static_cast<int32_t>(texts_.size())) {}

  Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source, std::stop_token) override {
    COPPICE_ASSIGN_OR_RETURN(const std::string text, TextToCompile(source));
    const std::lock_guard lock(mutex_);
    if (!compiler_) compiler_.emplace(MakeTokenizerInfo(texts_), /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytes);
    std::optional<xgrammar::CompiledGrammar> compiled;
    const Status status = CompileChecked(source.kind, text, vocab_size_, &*compiler_, &compiled);
    if (!status.ok()) {
      compiler_->ClearCache();  // which does not know what was warned of
      return Refused(source.kind, status.message());
    }
    return std::shared_ptr<const TokenConstraint>(std::make_shared<CompiledConstraint>(*std::move(compiled), vocab_size_));
  }

 private:
  const std::vector<std::string> texts_;
  const int32_t vocab_size_;
  std::mutex mutex_;
  std::optional<xgrammar::GrammarCompiler> compiler_;  // made when it is needed: it takes a second with a large vocabulary
};

// -------------------------------------------------------------------------------------------------------- compiling in a process

// The first byte of a child's answer.
constexpr char kCompiled = 'c', kRefused = 'r';

// Texts of tokens, each with its length before it.
std::string JoinTexts(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) {
    const auto size = static_cast<uint32_t>(text.size());
    joined.append(reinterpret_cast<const char*>(&size), sizeof size) += text;
  }
  return joined;
}

std::vector<std::string> SplitTexts(std::string_view joined) {
  std::vector<std::string> texts;
  while (!joined.empty()) {
    uint32_t size = 0;
    joined.copy(reinterpret_cast<char*>(&size), sizeof size);
    texts.emplace_back(joined.substr(sizeof size, size));
    joined.remove_prefix(sizeof size + size);
  }
  return texts;
}

class CompileWork final : public ForkedWork {
 public:
  void Prepare(std::string_view data) override {
    const std::vector<std::string> texts = SplitTexts(data);
    vocab_size_ = static_cast<int32_t>(texts.size());
    compiler_.emplace(MakeTokenizerInfo(texts), /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytes);
    (void)compiler_->CompileGrammar(SchemaGrammar({GrammarKind::kJsonObject, {}}).value());  // often asked for
  }
  std::string Run(std::string_view input) override {
    const auto kind = static_cast<GrammarKind>(input.front());
    std::optional<xgrammar::CompiledGrammar> compiled;
    const Status status = CompileChecked(kind, std::string(input.substr(1)), vocab_size_, &*compiler_, &compiled);
    if (!status.ok()) return kRefused + status.message();
    if (const size_t bytes = compiled->MemorySizeBytes(); bytes > static_cast<size_t>(kMostCompiledBytes)) {
      return kRefused + fmt::format("its masks take {} MiB, expected at most {}: repeat less, or make it simpler", bytes >> 20,
                                    kMostCompiledBytes >> 20);
    }
    return kCompiled + ToBytes(*compiled);
  }

 private:
  int32_t vocab_size_ = 0;
  std::optional<xgrammar::GrammarCompiler> compiler_;
};

class ForkedCompiler final : public XGrammarCompiler {
 public:
  ForkedCompiler(std::vector<std::string> texts, std::shared_ptr<ForkServer> process)
      : vocab_size_(static_cast<int32_t>(texts.size())), process_(std::move(process)), texts_(std::move(texts)) {}

  Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source, std::stop_token stop) override {
    COPPICE_ASSIGN_OR_RETURN(const std::string text, TextToCompile(source));
    COPPICE_RETURN_IF_ERROR(Prepare());
    const Result<std::string> answer = process_->Run(static_cast<char>(source.kind) + text, std::move(stop));
    if (!answer.ok()) return Explain(source.kind, answer.status());
    const std::string_view rest = std::string_view(*answer).substr(1);
    if (answer->front() == kRefused) return Refused(source.kind, rest);
    std::optional<xgrammar::CompiledGrammar> compiled;
    COPPICE_RETURN_IF_ERROR(Guarded([&] { compiled = CompiledFromBytes(rest, *tokens_); }));
    return std::shared_ptr<const TokenConstraint>(std::make_shared<CompiledConstraint>(*std::move(compiled), vocab_size_));
  }

 private:
  // When it is needed: it takes a second with a large vocabulary.
  Status Prepare() {
    const std::lock_guard lock(mutex_);
    if (tokens_) return OkStatus();
    COPPICE_RETURN_IF_ERROR(process_->Prepare(JoinTexts(texts_)));
    COPPICE_RETURN_IF_ERROR(Guarded([this] { tokens_.emplace(MakeTokenizerInfo(texts_)); }));
    texts_ = {};
    return OkStatus();
  }

  static Status Explain(GrammarKind kind, const Status& status) {
    switch (status.code()) {
      case StatusCode::kCancelled: return status;
      case StatusCode::kDeadlineExceeded:
        return Refused(kind, fmt::format("compiling it takes more than {:.0f} s of CPU time: repeat less, or make it simpler",
                                         kMostCompileSeconds));
      case StatusCode::kResourceExhausted:
        return Refused(
            kind, fmt::format("compiling it takes more than {} MiB: repeat less, or make it simpler", kMostCompileBytes >> 20));
      case StatusCode::kUnavailable: return ResourceExhausted("nothing can be compiled now: " + status.message());
      default: return Internal(fmt::format("compiling the {} failed: {}", Name(kind), status.message()));
    }
  }

  const int32_t vocab_size_;
  const std::shared_ptr<ForkServer> process_;
  std::mutex mutex_;
  std::vector<std::string> texts_;                 // until Prepare
  std::optional<xgrammar::TokenizerInfo> tokens_;  // the process has them too
};

}  // namespace

std::unique_ptr<ForkedWork> MakeGrammarWork() { return std::make_unique<CompileWork>(); }

Result<std::unique_ptr<ForkServer>> StartGrammarProcess(std::unique_ptr<ForkedWork> work) {
  return ForkServer::Start(std::move(work),
                           {.name = "coppice-grammar", .cpu_seconds = kMostCompileSeconds, .memory_bytes = kMostCompileBytes});
}

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer& tokenizer, int32_t vocab_size,
                                                                 std::shared_ptr<ForkServer> process) {
  // Control tokens have no text and are never part of an answer.
  std::vector<std::string> texts;
  texts.reserve(vocab_size);
  for (int32_t id = 0; id < vocab_size; ++id) texts.emplace_back(tokenizer.TokenBytes(id));
  if (process) return std::unique_ptr<GrammarCompiler>(std::make_unique<ForkedCompiler>(std::move(texts), std::move(process)));
  return std::unique_ptr<GrammarCompiler>(std::make_unique<LocalCompiler>(std::move(texts)));
}

}  // namespace coppice
