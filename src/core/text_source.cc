#include "core/text_source.h"

#include <algorithm>
#include <utility>

namespace coppice {

std::string TextOf(TextSource* source) {
  std::string text;
  while (source->Next(&text)) {
  }
  return text;
}

void TextParts::Take(size_t enough, std::string* out) {
  while (!parts_.empty() && out->size() < enough) {
    if (std::string* const text = std::get_if<std::string>(&parts_.front())) {
      *out += *text;
    } else if (std::string_view* const view = std::get_if<std::string_view>(&parts_.front())) {
      const size_t size = std::min(view->size(), enough - out->size());
      *out += view->substr(0, size);
      view->remove_prefix(size);
      if (!view->empty()) return;
    } else {
      auto& [count, append, copy, next] = std::get<Elements>(parts_.front());
      const size_t begin = out->size();
      while (next < count && out->size() < enough) append(next++, out);
      if (copy) copy->append(*out, begin);
      if (next < count) return;
    }
    parts_.pop_front();
  }
}

bool PartedText::Next(std::string* out) {
  const size_t enough = out->size() + kTextPiece;
  while (out->size() < enough) {
    if (parts_.empty() && !AddParts(&parts_)) return false;
    parts_.Take(enough, out);
  }
  return true;
}

bool EnclosedText::Next(std::string* out) {
  *out += std::exchange(before_, {});
  if (source_->Next(out)) return true;
  *out += behind_;
  return false;
}

}  // namespace coppice
