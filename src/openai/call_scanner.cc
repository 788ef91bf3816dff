#include "openai/call_scanner.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace coppice::openai {
namespace {

using nlohmann::json;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The string that the JSON string `token` stands for; false: it is none.
bool Decode(const std::string& token, std::string* text) {
  const json value = json::parse(token, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return false;
  *text = value.get<std::string>();
  return true;
}

}  // namespace

std::string CallScanner::TakeArguments() { return std::exchange(arguments_, {}); }

bool CallScanner::Push(char c) {
  switch (place_) {
    case Place::kInKey:
      token_ += c;
      if (EndsString(c)) EndKey();
      return true;
    case Place::kInString: token_ += c; return EndsString(c) ? EndString() : true;
    case Place::kInContainer:
      Keep(c);
      if (in_string_) {
        in_string_ = !EndsString(c);
      } else if (c == '"') {
        in_string_ = true;
      } else {
        depth_ += (c == '{' || c == '[') - (c == '}' || c == ']');
      }
      return depth_ > 0 || EndValue();
    case Place::kInScalar:
      if (!IsSpace(c) && c != ',' && c != '}') {
        token_ += c;
        return true;
      }
      if (!EndValue()) return false;
      break;  // the character is the object's
    default: break;
  }
  if (IsSpace(c)) return place_ != Place::kDone;
  switch (place_) {
    case Place::kBegin: place_ = Place::kKeyOrEnd; return c == '{';
    case Place::kKeyOrEnd:
      if (c == '}') return place_ = Place::kDone, true;
      [[fallthrough]];
    case Place::kKey:
      token_ = c;
      place_ = Place::kInKey;
      return c == '"';
    case Place::kColon: place_ = Place::kValue; return c == ':';
    case Place::kValue: return BeginValue(c);
    case Place::kCommaOrEnd: place_ = c == '}' ? Place::kDone : Place::kKey; return c == '}' || c == ',';
    default: return false;
  }
}

bool CallScanner::EndsString(char c) {
  if (std::exchange(escaped_, false)) return false;
  escaped_ = c == '\\';
  return c == '"';
}

void CallScanner::EndKey() {
  member_ = Member::kOther;
  if (token_ == R"("name")" && name_.empty()) member_ = Member::kName;
  if ((token_ == R"("arguments")" || token_ == R"("parameters")") && !has_arguments_) member_ = Member::kArguments;
  place_ = Place::kColon;
}

bool CallScanner::BeginValue(char c) {
  if (member_ == Member::kName && c != '"') return false;
  token_ = c;
  if (c == '"') {
    place_ = Place::kInString;
  } else if (c == '{' || c == '[') {
    place_ = Place::kInContainer;
    depth_ = 1;
    has_arguments_ |= member_ == Member::kArguments;
    Keep(c);
  } else {
    place_ = Place::kInScalar;
    return c != ',' && c != ':' && c != '}' && c != ']';
  }
  return true;
}

bool CallScanner::EndString() {
  place_ = Place::kCommaOrEnd;
  if (member_ == Member::kName) return Decode(token_, &name_) && !name_.empty();
  if (member_ == Member::kArguments) {
    has_arguments_ = true;
    if (!Decode(token_, &arguments_)) arguments_ = token_;
  }
  return true;
}

bool CallScanner::EndValue() {
  if (place_ == Place::kInScalar && member_ == Member::kArguments) {
    has_arguments_ = true;
    arguments_ = token_ == "null" ? "{}" : token_;
  }
  place_ = Place::kCommaOrEnd;
  return true;
}

void CallScanner::Keep(char c) {
  if (member_ == Member::kArguments) arguments_ += c;
}

}  // namespace coppice::openai
