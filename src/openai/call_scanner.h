// Reads one call of a tool, {"name": ..., "arguments": {...}}, character by character as a model writes it: the name and the
// arguments are known before the object is complete. Checks the object's own syntax, not that of what lies in it: arguments are
// text, which a model may get wrong.
// Layer: openai.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace coppice::openai {

// Thread-compatible. Each character costs constant time.
class CallScanner {
 public:
  // Takes the object's next character, '{' first. False where no object goes on like that; it is then over.
  bool Push(char c);

  // '}' came.
  bool done() const { return place_ == Place::kDone; }
  // Empty until it is complete.
  const std::string& name() const { return name_; }
  // The arguments began: as an object or another value, as it was written; as a string that holds JSON, decoded; null is {}.
  bool has_arguments() const { return has_arguments_; }
  // The results since they were taken last.
  std::string TakeArguments();

 private:
  enum class Place : uint8_t {
    kBegin,
    kKeyOrEnd,
    kKey,
    kInKey,
    kColon,
    kValue,
    kInString,
    kInContainer,
    kInScalar,
    kCommaOrEnd,
    kDone
  };
  enum class Member : uint8_t { kOther, kName, kArguments };

  bool BeginValue(char c);
  // Whether the string that `c` belongs to ends with it.
  bool EndsString(char c);
  void EndKey();
  // Of a string whose text is in token_; of anything else.
  bool EndString();
  bool EndValue();
  void Keep(char c);

  Place place_ = Place::kBegin;
  Member member_ = Member::kOther;
  bool escaped_ = false, in_string_ = false;  // in_string_: of a container
  int32_t depth_ = 0;                         // of containers in the value
  std::string token_;                         // a key, a string or a number as it was written
  std::string name_, arguments_;
  bool has_arguments_ = false;
};

}  // namespace coppice::openai
