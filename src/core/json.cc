#include "core/json.h"

#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/quoted.h"

namespace coppice {
namespace {

using Json = nlohmann::json;

// Builds the value from the parser's events and stops at the first fault. The library's own way to watch a parse, a callback,
// looks through the whole parent for dropped values each time that an object ends: quadratic in a header of many tensors.
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  const Status& status() const { return status_; }
  Json& value() { return value_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // JSON text has none

  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [member, is_new] = members.try_emplace(std::move(key));
    if (!is_new) return Fail(InvalidArgument("key " + Quoted(member->first) + " appears twice in one JSON object"));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    return Fail(DataLoss("not valid JSON: " + Printable(what, 200)));
  }

 private:
  bool Fail(Status status) {
    status_ = std::move(status);
    return false;
  }

  // Puts `value` where the parser stands: the root, the end of an array or the member whose key came last.
  Json* Place(Json value) {
    if (open_.empty()) {
      value_ = std::move(value);
      return &value_;
    }
    if (open_.back()->is_array()) return &open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
    *member_ = std::move(value);
    return member_;
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json container) {
    if (open_.size() == kMaxJsonDepth) {
      return Fail(InvalidArgument("JSON nested deeper than " + std::to_string(kMaxJsonDepth) + " levels"));
    }
    // The address holds while the container is open: until then nothing is added to its parent.
    open_.push_back(Place(std::move(container)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  Json value_;
  std::vector<Json*> open_;  // from the root to where the parser stands
  Json* member_ = nullptr;   // of the innermost open object
  Status status_;
};

}  // namespace

Result<Json> ParseJson(std::string_view text) {
  // The library takes a NUL byte for the end of the text.
  if (const size_t nul = text.find('\0'); nul != text.npos)
    return DataLoss("not valid JSON: a NUL byte at offset " + std::to_string(nul));
  StrictBuilder builder;
  const bool parsed = Json::sax_parse(text.begin(), text.end(), &builder);
  COPPICE_RETURN_IF_ERROR(builder.status());
  COPPICE_CHECK(parsed);  // whoever stops the parse says why
  return std::move(builder.value());
}

}  // namespace coppice
