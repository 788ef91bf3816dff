// Takes calls of tools out of a model's output as it comes: text of the answer goes on at once, the possible mark of a call
// waits until that is decided, and a call's arguments go on as they are written. Text that looks like a call and is none is text.
// Layer: openai.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "openai/call_scanner.h"
#include "openai/tool_call_format.h"

namespace coppice::openai {

// The tools that an answer may call, and how the model writes calls.
struct ToolCalls {
  ToolCallFormat format;
  std::set<std::string, std::less<>> names;
  bool parallel = true;  // else a second call is left out
  // Of the calls' text, what the prompt ends with instead of the output: the mark that a grammar cannot ask for.
  std::string begun;
};

// The result of a piece of output.
struct ParsedOutput {
  struct Call {
    int32_t index = 0;
    bool begins = false;
    std::string name;           // where it begins
    std::string arguments;      // what comes behind those that came before
    size_t content_before = 0;  // bytes of `content` that the output has before this
  };
  std::string content;
  std::vector<Call> calls;
  std::vector<int32_t> whole;  // indices of calls of which nothing more comes: their text is complete

  bool empty() const { return content.empty() && calls.empty(); }
};

// Of one sample. Thread-compatible. Work is in proportion to the text.
class ToolCallParser {
 public:
  // `tools` outlives the parser.
  explicit ToolCallParser(const ToolCalls* tools);

  // Appends what `text` decides to `*out`.
  void Push(std::string_view text, ParsedOutput* out);
  // The output has ended.
  void Finish(ParsedOutput* out);
  int32_t num_calls() const { return num_calls_; }

 private:
  enum class State : uint8_t { kText, kBare, kBeforeCall, kInCall, kAfterCall, kPlain };

  void Put(char c, ParsedOutput* out);
  void PutText(char c, ParsedOutput* out);
  void PutBare(char c, ParsedOutput* out);
  void PutBeforeCall(char c, ParsedOutput* out);
  void PutInCall(char c, ParsedOutput* out);
  void PutAfterCall(char c, ParsedOutput* out);
  // Whether `c` goes on with `mark`, of which matched_ characters came.
  bool Match(char c, std::string_view mark);
  bool IsAllowed(const std::string& name) const;
  void OpenCall(ParsedOutput* out);
  void AddArguments(ParsedOutput* out);
  // Held characters are text, and so are those that come, up to the next mark.
  void GiveUp(ParsedOutput* out);

  const ToolCalls& tools_;
  State state_;
  CallScanner scanner_;
  std::string held_;                                       // what may yet become a part of a call, or the white space before one
  size_t matched_ = 0;                                     // characters of a mark, at the end of held_
  size_t spaces_ = 0;                                      // white space before those
  bool in_list_ = false, open_ = false, dropped_ = false;  // open_: the call was reported; dropped_: it is one too many
  int32_t num_calls_ = 0;
};

}  // namespace coppice::openai
