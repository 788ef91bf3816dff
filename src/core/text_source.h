// Text that is made while it is taken, so that its whole length is never in memory: answers, lines of files. Layer: core.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace coppice {

// Bytes that a source makes at once, or a little more.
inline constexpr size_t kTextPiece = size_t{256} << 10;

// Thread-compatible.
class TextSource {
 public:
  virtual ~TextSource() = default;
  // Appends the next piece to `*out`; false: there is no more behind it.
  virtual bool Next(std::string* out) = 0;
  // Bytes that it holds for what is to come.
  virtual size_t held_bytes() const = 0;
};

// All that is left.
std::string TextOf(TextSource* source);

// Parts that follow each other.
class TextParts {
 public:
  // Appends the text of element `index`.
  using Append = std::function<void(size_t index, std::string* out)>;

  void Add(std::string text) { parts_.emplace_back(std::move(text)); }
  // `text` outlives its part.
  void AddView(std::string_view text) { parts_.emplace_back(text); }
  // Elements [0, count), one by one; their text is appended to `*copy` too, if it is not null.
  void AddEach(size_t count, Append append, std::string* copy = nullptr) {
    parts_.emplace_back(Elements{.count = count, .append = std::move(append), .copy = copy});
  }

  bool empty() const { return parts_.empty(); }
  // Moves text to `*out` until that has `enough` bytes or nothing is left.
  void Take(size_t enough, std::string* out);

 private:
  struct Elements {
    size_t count = 0;
    Append append;
    std::string* copy = nullptr;
    size_t next = 0;
  };

  std::deque<std::variant<std::string, std::string_view, Elements>> parts_;
};

// Entries of a list that has `before` of them already.
inline TextParts::Append WithCommas(TextParts::Append append, size_t before = 0) {
  return [append = std::move(append), before](size_t i, std::string* out) {
    if (before + i > 0) *out += ',';
    append(i, out);
  };
}

// A source whose parts are known a few at a time.
class PartedText : public TextSource {
 public:
  bool Next(std::string* out) final;

 private:
  // The next parts; false, with none added: there are no more.
  virtual bool AddParts(TextParts* parts) = 0;

  TextParts parts_;
};

// `source` between two texts.
class EnclosedText final : public TextSource {
 public:
  EnclosedText(std::string before, std::unique_ptr<TextSource> source, std::string behind)
      : before_(std::move(before)), source_(std::move(source)), behind_(std::move(behind)) {}

  bool Next(std::string* out) override;
  size_t held_bytes() const override { return before_.size() + source_->held_bytes() + behind_.size(); }

 private:
  std::string before_;
  const std::unique_ptr<TextSource> source_;
  std::string behind_;
};

}  // namespace coppice
