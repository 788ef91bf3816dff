#include "core/json.h"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/dismantle_json.h"
#include "core/quoted.h"

namespace coppice {
namespace {

// Builds the value from the parser's events and stops at the first fault. The library's own way to watch a parse, a callback,
// looks through the whole parent for dropped values each time that an object ends: quadratic in a header of many tensors.
template <class Json>
class StrictBuilder final : public nlohmann::json_sax<Json> {
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

 public:
  ~StrictBuilder() override { Dismantle(&value_); }

  const Status& status() const { return status_; }
  Json& value() { return value_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }  // JSON text has none

  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    auto& members = open_.back()->template get_ref<typename Json::object_t&>();
    if (kOrdered && members.size() == kMaxOrderedMembers)
      return Fail(InvalidArgument("an object has more than " + std::to_string(kMaxOrderedMembers) + " members"));
    const auto [member, is_new] = members.emplace(std::move(key), Json());
    if (!is_new) return Fail(InvalidArgument("key " + Quoted(member->first) + " appears twice in one JSON object"));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    std::string text(what);
    constexpr std::string_view kOneLine =
        "parse error at line 1, column ";  // most texts are one line, and of a file's line it would mislead
    if (text.starts_with(kOneLine)) text.replace(0, kOneLine.size(), "parse error at column ");
    return Fail(DataLoss("not valid JSON: " + Printable(text, 200)));
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
    if (open_.back()->is_array()) return &open_.back()->template get_ref<typename Json::array_t&>().emplace_back(std::move(value));
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

using OrderedJson = nlohmann::ordered_json;

// Gives a builder the events of the value at the end of a path.
class MemberPicker final : public nlohmann::json_sax<OrderedJson> {
 public:
  MemberPicker(std::span<const std::string_view> path, StrictBuilder<OrderedJson>* builder) : path_(path), builder_(*builder) {}

  bool null() override {
    return Scalar([&] { return builder_.null(); });
  }
  bool boolean(bool value) override {
    return Scalar([&] { return builder_.boolean(value); });
  }
  bool number_integer(int64_t value) override {
    return Scalar([&] { return builder_.number_integer(value); });
  }
  bool number_unsigned(uint64_t value) override {
    return Scalar([&] { return builder_.number_unsigned(value); });
  }
  bool number_float(double value, const std::string& text) override {
    return Scalar([&] { return builder_.number_float(value, text); });
  }
  bool string(std::string& value) override {
    return Scalar([&] { return builder_.string(value); });
  }
  bool binary(OrderedJson::binary_t&) override { return false; }

  bool start_object(size_t size) override {
    return Open(/*is_object=*/true, [&] { return builder_.start_object(size); });
  }
  bool start_array(size_t size) override {
    return Open(/*is_object=*/false, [&] { return builder_.start_array(size); });
  }
  bool end_object() override {
    return Close([&] { return builder_.end_object(); });
  }
  bool end_array() override {
    return Close([&] { return builder_.end_array(); });
  }
  bool key(std::string& key) override {
    if (inside_ > 0) return builder_.key(key);
    comes_next_ = followed_ > 0 && depth_ == followed_ && key == path_[followed_ - 1];
    return true;
  }
  bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception& error) override {
    return builder_.parse_error(position, token, error);
  }

 private:
  template <class Event>
  bool Scalar(const Event& event) {
    const bool begins = std::exchange(comes_next_, false) && followed_ == path_.size();
    return inside_ > 0 || begins ? event() : true;
  }
  template <class Event>
  bool Open(bool is_object, const Event& event) {
    const bool on_path = std::exchange(comes_next_, false);
    if (inside_ > 0 || (on_path && followed_ == path_.size())) {
      ++inside_;
      return event();
    }
    ++depth_;
    followed_ += on_path && is_object;
    return true;
  }
  template <class Event>
  bool Close(const Event& event) {
    if (inside_ > 0) {
      --inside_;
      return event();
    }
    followed_ -= depth_ == followed_;
    --depth_;
    return true;
  }

  const std::span<const std::string_view> path_;
  StrictBuilder<OrderedJson>& builder_;
  size_t depth_ = 0, followed_ = 0;  // open containers outside the value; the outermost of them that lie on the path
  size_t inside_ = 0;                // open containers of the value
  bool comes_next_ = true;           // the value that begins next lies on the path
};

template <class Json, class Sax>
Result<Json> ParseWith(std::string_view text, StrictBuilder<Json>* builder, Sax* sax) {
  // The library takes a NUL byte for the end of the text.
  if (const size_t nul = text.find('\0'); nul != text.npos)
    return DataLoss("not valid JSON: a NUL byte at offset " + std::to_string(nul));
  const bool parsed = Json::sax_parse(text.begin(), text.end(), sax);
  COPPICE_RETURN_IF_ERROR(builder->status());
  COPPICE_CHECK(parsed);  // the callback that stops the parse says why
  return std::move(builder->value());
}

}  // namespace

Result<nlohmann::json> ParseJson(std::string_view text) {
  StrictBuilder<nlohmann::json> builder;
  return ParseWith(text, &builder, &builder);
}

Result<OrderedJson> ParseOrderedJson(std::string_view text, std::span<const std::string_view> path) {
  StrictBuilder<OrderedJson> builder;
  MemberPicker picker(path, &builder);
  return ParseWith(text, &builder, &picker);
}

std::string DumpJson(OrderedJson value) {
  const DismantledJson<OrderedJson> held(std::move(value));
  return held->dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

std::string PrintableJson(const nlohmann::json& value, size_t max_bytes) {
  return Printable(value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace), max_bytes);
}

}  // namespace coppice
