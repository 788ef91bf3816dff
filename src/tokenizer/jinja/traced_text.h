// A text that a template works on, and which of its bytes come from the values that it was given: what is no word of the template's
// own must not be read as a control token. Layer: tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::jinja {

// Bytes without an origin are the template's own. A text made of others keeps the origins of their bytes: built-ins take parts,
// append and map, and none goes through a plain string.
class TracedText {
 public:
  using Source = int32_t;  // which value; what the numbers mean is the caller's
  // Bytes [begin, end) come from `source`.
  struct Origin {
    size_t begin, end;
    Source source;
  };

  TracedText() = default;
  TracedText(const char* own) : bytes_(own) {}
  explicit TracedText(std::string own) : bytes_(std::move(own)) {}
  explicit TracedText(std::string_view own) : bytes_(own) {}
  TracedText(std::string bytes, Source source) : bytes_(std::move(bytes)) { Mark(0, bytes_.size(), source); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  std::span<const Origin> origins() const { return origins_; }  // in order, none empty; neighbours of one source are one
  size_t cost() const { return bytes_.size() + origins_.size() * sizeof(Origin); }  // of a copy, in units of Meter

  void AppendOwn(std::string_view own) { bytes_ += own; }
  void Append(const TracedText& text) { Append(text, text.bytes_); }
  // `part` is a view into the bytes of `text`.
  void Append(const TracedText& text, std::string_view part);
  // `made` stands for `part` of `text`: all of it comes from where the first byte of `part` that is no template's own does.
  void AppendFor(std::string_view made, const TracedText& text, std::string_view part);
  TracedText Part(std::string_view part) const {
    TracedText text;
    text.Append(*this, part);
    return text;
  }
  // The text in which `map` replaces each run of bytes of one origin: right where it maps characters one by one.
  template <class Map>  // std::string(std::string_view)
  TracedText Mapped(Map map) const {
    if (origins_.empty()) return TracedText(map(std::string_view(bytes_)));
    TracedText mapped;
    size_t done = 0;
    const auto add = [&](size_t end) {
      const std::string_view run = std::string_view(bytes_).substr(done, end - done);
      if (!run.empty()) mapped.AppendFor(map(run), *this, run);
      done = end;
    };
    for (const Origin& origin : origins_) add(origin.begin), add(origin.end);
    add(bytes_.size());
    return mapped;
  }
  // `unit`, `count` times; the caller has charged for count * unit.cost().
  static TracedText Repeated(const TracedText& unit, size_t count);

 private:
  // The first origin that ends behind byte `begin`.
  std::vector<Origin>::const_iterator FirstBehind(size_t begin) const;
  void Mark(size_t begin, size_t end, Source source);

  std::string bytes_;
  std::vector<Origin> origins_;
};

}  // namespace coppice::jinja
