#include "openai/tool_call_parser.h"

#include <algorithm>
#include <utility>

namespace coppice::openai {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

ToolCallParser::ToolCallParser(const ToolCalls* tools)
    : tools_(*tools), state_(tools->format.style == ToolCallStyle::kLlama ? State::kBare : State::kText) {
  ParsedOutput nothing;  // a mark alone says nothing
  Push(tools->begun, &nothing);
}

void ToolCallParser::Push(std::string_view text, ParsedOutput* out) {
  for (const char c : text) Put(c, out);
}

void ToolCallParser::Finish(ParsedOutput* out) {
  // Behind a call, white space is no answer, nor what began another one before the output was cut off.
  const bool begins_call = state_ == State::kBeforeCall || state_ == State::kInCall || state_ == State::kAfterCall;
  const bool says_something = num_calls_ == 0 || (!begins_call && !std::ranges::all_of(held_, IsSpace));
  if (says_something) out->content += held_;
  held_.clear();
  state_ = State::kPlain;
}

void ToolCallParser::Put(char c, ParsedOutput* out) {
  switch (state_) {
    case State::kText: return PutText(c, out);
    case State::kBare: return PutBare(c, out);
    case State::kBeforeCall: return PutBeforeCall(c, out);
    case State::kInCall: return PutInCall(c, out);
    case State::kAfterCall: return PutAfterCall(c, out);
    case State::kPlain: out->content += c;
  }
}

bool ToolCallParser::Match(char c, std::string_view mark) {
  if (matched_ == mark.size() || c != mark[matched_]) return false;
  ++matched_;
  return true;
}

// Text, in which a mark begins calls. White space is held too: before a call it is no answer. A mark's first character is nowhere
// else in it, so a match that fails can only begin anew at the character that fails it.
void ToolCallParser::PutText(char c, ParsedOutput* out) {
  const std::string_view mark = tools_.format.begin;
  held_ += c;
  if (Match(c, mark)) {
    if (matched_ < mark.size()) return;
    state_ = State::kBeforeCall;
    matched_ = spaces_ = 0;
    in_list_ = false;
    return;
  }
  const bool begins = c == mark.front(), is_space = IsSpace(c);
  spaces_ = begins ? 0 : is_space ? (matched_ == 0 ? spaces_ + 1 : 1) : 0;
  matched_ = begins;
  const size_t ready = held_.size() - spaces_ - matched_;
  if (ready == 0) return;
  out->content.append(held_, 0, ready);
  held_.erase(0, ready);
}

// The output's beginning, where a call has no mark or one that may be left out.
void ToolCallParser::PutBare(char c, ParsedOutput* out) {
  const std::string_view mark = tools_.format.begin;
  held_ += c;
  if (matched_ < mark.size() && Match(c, mark)) return;
  const bool between = matched_ == 0 || matched_ == mark.size();
  if (between && IsSpace(c)) return;
  if (!between || c != '{') return GiveUp(out);
  held_.pop_back();
  matched_ = 0;
  state_ = State::kBeforeCall;
  PutBeforeCall(c, out);
}

void ToolCallParser::PutBeforeCall(char c, ParsedOutput* out) {
  held_ += c;
  if (IsSpace(c)) return;
  if (c == '[' && tools_.format.style == ToolCallStyle::kMistral && !in_list_) {
    in_list_ = true;
    return;
  }
  if (c == '{') {
    state_ = State::kInCall;
    scanner_ = CallScanner();
    open_ = dropped_ = false;
    scanner_.Push(c);
    return;
  }
  held_.pop_back();
  GiveUp(out);
  Put(c, out);
}

void ToolCallParser::PutInCall(char c, ParsedOutput* out) {
  const bool goes_on = scanner_.Push(c);
  if (goes_on && !open_) held_ += c;
  const bool named = !scanner_.name().empty();
  if (!goes_on || (named && !open_ && !IsAllowed(scanner_.name())) || (scanner_.done() && !named)) {
    if (open_) {
      state_ = State::kAfterCall;
    } else {
      GiveUp(out);
    }
    if (!goes_on) Put(c, out);
    return;
  }
  if (named && !open_ && (scanner_.has_arguments() || scanner_.done())) OpenCall(out);
  if (open_) AddArguments(out);
  if (!scanner_.done()) return;
  matched_ = 0;
  state_ = State::kAfterCall;
  if (!dropped_) out->whole.push_back(num_calls_ - 1);
}

void ToolCallParser::PutAfterCall(char c, ParsedOutput* out) {
  const ToolCallFormat& format = tools_.format;
  if (Match(c, format.end)) {
    held_ += c;
    if (matched_ < format.end.size()) return;
    held_.clear();
    matched_ = 0;
    state_ = State::kText;
    return;
  }
  if (matched_ == 0) {
    if (IsSpace(c)) return;
    const bool is_list = in_list_ && (c == ',' || c == ']');
    const bool is_bare = format.style == ToolCallStyle::kLlama && (c == ';' || c == '{');
    if (is_list || is_bare) {
      state_ = c == ']' ? State::kText : State::kBeforeCall;
      if (c == '{') return PutBeforeCall(c, out);
      if (c != ']') held_ += c;
      return;
    }
  }
  // No mark: text, in which one may begin.
  const std::string text = std::exchange(held_, {}) + c;
  matched_ = 0;
  state_ = format.style == ToolCallStyle::kLlama ? State::kPlain : State::kText;
  Push(text, out);
}

// Without a mark, an object with a name is a call only if it calls something that there is.
bool ToolCallParser::IsAllowed(const std::string& name) const {
  return tools_.format.style != ToolCallStyle::kLlama || tools_.names.contains(name);
}

void ToolCallParser::OpenCall(ParsedOutput* out) {
  open_ = true;
  held_.clear();
  dropped_ = num_calls_ > 0 && !tools_.parallel;
  if (dropped_) return;
  out->calls.push_back({.index = num_calls_++, .begins = true, .name = scanner_.name(), .content_before = out->content.size()});
  if (!scanner_.has_arguments()) out->calls.back().arguments = "{}";
}

void ToolCallParser::AddArguments(ParsedOutput* out) {
  std::string arguments = scanner_.TakeArguments();
  if (arguments.empty() || dropped_) return;
  const int32_t index = num_calls_ - 1;
  if (out->calls.empty() || out->calls.back().index != index)
    out->calls.push_back({.index = index, .content_before = out->content.size()});
  out->calls.back().arguments += arguments;
}

void ToolCallParser::GiveUp(ParsedOutput* out) {
  out->content += std::exchange(held_, {});
  matched_ = spaces_ = 0;
  state_ = tools_.format.style == ToolCallStyle::kLlama ? State::kPlain : State::kText;
}

}  // namespace coppice::openai
