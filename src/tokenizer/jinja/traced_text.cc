#include "tokenizer/jinja/traced_text.h"

#include <algorithm>

#include "core/check.h"
#include "tokenizer/jinja/unicode.h"

namespace coppice::jinja {

std::vector<TracedText::Origin>::const_iterator TracedText::FirstBehind(size_t begin) const {
  return std::partition_point(origins_.begin(), origins_.end(), [begin](const Origin& origin) { return origin.end <= begin; });
}

void TracedText::Mark(size_t begin, size_t end, Source source) {
  if (begin == end) return;
  if (!origins_.empty() && origins_.back().end == begin && origins_.back().source == source) {
    origins_.back().end = end;
  } else {
    origins_.push_back({begin, end, source});
  }
}

void TracedText::Append(const TracedText& text, std::string_view part) {
  const size_t at = bytes_.size();
  if (part.empty()) return;
  const auto begin = static_cast<size_t>(part.data() - text.bytes_.data()), end = begin + part.size();
  COPPICE_CHECK(begin <= end && end <= text.bytes_.size());
  const size_t count = text.origins_.size();  // `text` may be this one
  for (auto index = static_cast<size_t>(text.FirstBehind(begin) - text.origins_.begin()); index < count; ++index) {
    const Origin origin = text.origins_[index];
    if (origin.begin >= end) break;
    Mark(at + std::max(origin.begin, begin) - begin, at + std::min(origin.end, end) - begin, origin.source);
  }
  bytes_.append(text.bytes_, begin, part.size());
}

void TracedText::AppendFor(std::string_view made, const TracedText& text, std::string_view part) {
  const size_t at = bytes_.size();
  if (!part.empty()) {
    const auto begin = static_cast<size_t>(part.data() - text.bytes_.data()), end = begin + part.size();
    const auto origin = text.FirstBehind(begin);
    if (origin != text.origins_.end() && origin->begin < end) Mark(at, at + made.size(), origin->source);
  }
  bytes_ += made;
}

TracedText TracedText::Repeated(const TracedText& unit, size_t count) {
  TracedText text;
  text.bytes_ = jinja::Repeated(unit.bytes_, count);
  if (unit.origins_.empty()) return text;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * unit.size();
    for (const Origin& origin : unit.origins_) text.Mark(at + origin.begin, at + origin.end, origin.source);
  }
  return text;
}

}  // namespace coppice::jinja
