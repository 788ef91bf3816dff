// How much XGrammar's parser does for a mask or a token. That follows from the grammar, which a user wrote, and from the output so
// far, so nothing else bounds it. third_party/xgrammar/CMakeLists.txt puts the calls into the library, whose standard is C++17.
// Layer: grammar.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace coppice {

struct ParserWorkExceeded : std::runtime_error {
  ParserWorkExceeded() : std::runtime_error("the parser does too much") {}
};

// Of this thread. A unit takes about 10 ns: a state that is looked at, a token that is compared.
inline thread_local int64_t parser_work_left = INT64_MAX;
// States that this thread's parsers have put into their histories so far, some 50 bytes each.
inline thread_local int64_t parser_states_kept = 0;

inline void CountParserWork(int64_t units) {
  if ((parser_work_left -= units) < 0) throw ParserWorkExceeded();
}
inline void CountParserStates(int64_t count) { parser_states_kept += count; }

// A bound on the work of this thread's parser, while one lives.
class ParserWorkLimit {
 public:
  explicit ParserWorkLimit(int64_t units) : before_(parser_work_left) { parser_work_left = units; }
  ParserWorkLimit(const ParserWorkLimit&) = delete;
  ~ParserWorkLimit() { parser_work_left = before_; }

 private:
  const int64_t before_;
};

}  // namespace coppice
