#include "engine/text_stream.h"

#include <algorithm>
#include <string_view>

namespace coppice {
namespace {

// Length of the longest end of `text` that begins `stop` without completing it.
size_t BegunLength(std::string_view text, std::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::optional<int32_t> TextStream::Push(int32_t token, bool look_for_stops, std::string* text) {
  if (!decoder_) return std::nullopt;
  held_ += decoder_->Push(token, /*keep_special=*/std::ranges::find(visible_, token) != visible_.end());
  size_t begun = 0;
  if (look_for_stops) {
    size_t stop_at = std::string::npos;
    int32_t place = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      if (const size_t at = held_.find(stops_[i]); at < stop_at) {
        stop_at = at;
        place = static_cast<int32_t>(i);
      }
      begun = std::max(begun, BegunLength(held_, stops_[i]));
    }
    if (stop_at != std::string::npos) {
      text->append(held_, 0, stop_at);
      held_.clear();
      return place;
    }
  }
  text->append(held_, 0, held_.size() - begun);
  held_.erase(0, held_.size() - begun);
  return std::nullopt;
}

void TextStream::Finish(std::string* text) {
  if (!decoder_) return;
  *text += held_ + decoder_->Finish();
  held_.clear();
}

std::string PromptText(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  const Tokenizer::Info& info = tokenizer.info();
  if (info.add_bos && !ids.empty() && ids.front() == info.bos_id) ids = ids.subspan(1);
  IncrementalDecoder decoder(tokenizer, /*keep_special=*/true);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

}  // namespace coppice
