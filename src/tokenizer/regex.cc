#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

namespace coppice {
namespace {

// Backtracking steps of one match. The known kinds of pre-tokenizer need none that grow with the text; a hostile pattern stops
// here, after about 0.1 s.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackStart = 32 << 10, kJitStackMax = 1 << 20;
constexpr uint32_t kGroups = 2;  // the match and its first group

std::string Pcre2Message(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

template <auto kFree>
struct Freer {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

}  // namespace

struct Regex::Scratch::Data {
  std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>> match{pcre2_match_data_create(kGroups, nullptr)};
  std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Freer<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};
};

Regex::Scratch::Scratch(std::unique_ptr<Data> data) : data_(std::move(data)) {}
Regex::Scratch::Scratch(Scratch&&) noexcept = default;
Regex::Scratch& Regex::Scratch::operator=(Scratch&&) noexcept = default;
Regex::Scratch::~Scratch() = default;

Result<Regex::Scratch> Regex::Scratch::Create() {
  auto data = std::make_unique<Data>();
  if (!data->match || !data->context || !data->stack) return ResourceExhausted("no memory for a regex match");
  pcre2_set_match_limit(data->context.get(), kMatchLimit);
  pcre2_set_heap_limit(data->context.get(), kHeapLimitKib);
  pcre2_jit_stack_assign(data->context.get(), nullptr, data->stack.get());
  return Scratch(std::move(data));
}

struct Regex::Code {
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> pcre2;
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::Compile(std::string_view pattern) {
  int error = 0;
  size_t error_offset = 0;
  auto code = std::make_unique<Code>();
  code->pcre2.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &error_offset, nullptr));
  if (!code->pcre2) {
    return InvalidArgument(Pcre2Message(error) + " at offset " + std::to_string(error_offset) +
                           "; expected a regular expression that PCRE2 can compile");
  }
  pcre2_jit_compile(code->pcre2.get(), PCRE2_JIT_COMPLETE);  // no JIT on this machine: the interpreter matches the same
  return Regex(std::move(code));
}

Status Regex::Find(std::string_view text, size_t position, Scratch& scratch, std::optional<Match>* match) const {
  pcre2_match_data* const data = scratch.data_->match.get();
  const int found = pcre2_match(code_->pcre2.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                                PCRE2_NO_UTF_CHECK, data, scratch.data_->context.get());
  match->reset();
  if (found == PCRE2_ERROR_NOMATCH) return OkStatus();
  if (found < 0) {
    return InvalidArgument(Pcre2Message(found) + " at byte " + std::to_string(position) + " of " + std::to_string(text.size()));
  }
  const size_t* const offsets = pcre2_get_ovector_pointer(data);
  Match& result = match->emplace(Match{.begin = offsets[0], .end = offsets[1]});
  // 0: there are more groups than offsets, so the first one is among them.
  if ((found == 0 || found > 1) && offsets[2] != PCRE2_UNSET) result.group = text.substr(offsets[2], offsets[3] - offsets[2]);
  return OkStatus();
}

}  // namespace coppice
