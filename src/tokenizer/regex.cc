#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <ctime>
#include <utility>

namespace coppice {
namespace {

// Backtracking steps of one match. Almost every match of the known pre-tokenizers takes fewer than the first limit, whatever the
// text, and costs no clock; one that takes more is tried again under the second, and its time counts against the scratch's.
constexpr uint32_t kQuickMatchLimit = 2'000, kMatchLimit = 10'000'000;
constexpr uint32_t kDepthLimit = 100'000, kHeapLimitKib = 64 << 10;  // of the interpreter, where PCRE2 has no JIT
// CPU time of such matches: a hostile pattern ends after about 0.05 s and 5 us for a byte of text, fifty times what ordinary
// patterns take.
constexpr int64_t kBaseNanoseconds = 50'000'000, kNanosecondsPerByte = 5'000;
constexpr size_t kMaxPattern = 16 << 10;  // bytes: those in use have a few hundred
constexpr size_t kJitStackStart = 32 << 10, kJitStackMax = 1 << 20;
constexpr uint32_t kGroups = 2;  // the match and its first group

// CPU time of this thread: what others do on the machine does not count.
int64_t ThreadNanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

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
  std::string_view text;  // that was searched last
  int64_t nanoseconds_left = kBaseNanoseconds;

  int Match(const pcre2_code* code, size_t position, uint32_t limit) {
    pcre2_set_match_limit(context.get(), limit);
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position, PCRE2_NO_UTF_CHECK, match.get(),
                       context.get());
  }
};

Regex::Scratch::Scratch(std::unique_ptr<Data> data) : data_(std::move(data)) {}
Regex::Scratch::Scratch(Scratch&&) noexcept = default;
Regex::Scratch& Regex::Scratch::operator=(Scratch&&) noexcept = default;
Regex::Scratch::~Scratch() = default;

Result<Regex::Scratch> Regex::Scratch::Create() {
  auto data = std::make_unique<Data>();
  if (!data->match || !data->context || !data->stack) return ResourceExhausted("no memory for a regex match");
  pcre2_set_depth_limit(data->context.get(), kDepthLimit);
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
  if (pattern.size() > kMaxPattern) {
    return InvalidArgument("a regular expression of " + std::to_string(pattern.size()) + " bytes; expected at most " +
                           std::to_string(kMaxPattern));
  }
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
  Scratch::Data& data = *scratch.data_;
  if (text.data() != data.text.data() || text.size() != data.text.size()) {
    data.text = text;
    data.nanoseconds_left += kNanosecondsPerByte * static_cast<int64_t>(text.size());
  }
  int found = data.Match(code_->pcre2.get(), position, kQuickMatchLimit);
  if (found == PCRE2_ERROR_MATCHLIMIT && data.nanoseconds_left > 0) {
    const int64_t begin = ThreadNanoseconds();
    found = data.Match(code_->pcre2.get(), position, kMatchLimit);
    data.nanoseconds_left -= ThreadNanoseconds() - begin;
  }
  match->reset();
  if (found == PCRE2_ERROR_NOMATCH) return OkStatus();
  if (found < 0) {
    return InvalidArgument(Pcre2Message(found) + " at byte " + std::to_string(position) + " of " + std::to_string(text.size()));
  }
  const size_t* const offsets = pcre2_get_ovector_pointer(data.match.get());
  Match& result = match->emplace(Match{.begin = offsets[0], .end = offsets[1]});
  // 0: there are more groups than offsets, so the first one is among them.
  if ((found == 0 || found > 1) && offsets[2] != PCRE2_UNSET) result.group = text.substr(offsets[2], offsets[3] - offsets[2]);
  return OkStatus();
}

}  // namespace coppice
