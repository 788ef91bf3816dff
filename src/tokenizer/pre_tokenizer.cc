#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "core/check.h"
#include "core/quoted.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/utf8.h"

namespace coppice {
namespace {

using Behavior = PreTokenizerStep::Behavior;
using Range = Pieces::Range;

// A piece taken apart: matches of a pattern and the gaps between them, in order.
struct Part {
  Range range;
  bool is_match;
};

Status FindParts(std::string_view text, Range piece, const Regex& regex, Regex::Scratch& scratch, std::vector<Part>* parts) {
  parts->clear();
  const std::string_view part = text.substr(piece.begin, piece.end - piece.begin);
  size_t done = 0;
  const auto cut = [&](size_t end, bool is_match) {
    if (end > done) parts->push_back({{piece.begin + done, piece.begin + end}, is_match});
    done = std::max(done, end);
  };
  for (size_t position = 0; position < part.size();) {
    std::optional<Regex::Match> match;
    COPPICE_RETURN_IF_ERROR(regex.Find(part, position, scratch, &match));
    if (!match) break;
    if (match->end <= match->begin || match->end <= position) {  // empty (\K can even make it end early): look again one later
      position = std::max(position, match->end);
      if (position < part.size()) position += DecodeUtf8(part.substr(position)).length;
      continue;
    }
    cut(match->begin, false);
    cut(match->end, true);
    position = match->end;
  }
  cut(part.size(), false);
  return OkStatus();
}

void AppendPieces(const std::vector<Part>& parts, const PreTokenizerStep& rule, std::vector<Range>* pieces) {
  const size_t first = pieces->size();
  bool previous_match = false, open = false;  // open: the next gap joins the last piece
  for (const Part& part : parts) {
    const bool is_match = part.is_match != rule.invert;
    const bool has_previous = pieces->size() > first && pieces->back().end == part.range.begin;
    bool join = false;
    switch (rule.behavior) {
      case Behavior::kIsolated: break;
      case Behavior::kRemoved:
        if (is_match) continue;
        break;
      case Behavior::kContiguous: join = has_previous && is_match == previous_match; break;
      case Behavior::kMergedWithPrevious: join = is_match && has_previous && !previous_match; break;
      case Behavior::kMergedWithNext: join = !is_match && has_previous && open; break;
    }
    previous_match = is_match;
    open = is_match;
    join ? void(pieces->back().end = part.range.end) : pieces->push_back(part.range);
  }
}

// Writes each piece anew: `write(piece, index, out)`.
template <class Write>
void Rewrite(Pieces* pieces, Write write) {
  std::string out;
  out.reserve(pieces->text.size() + pieces->text.size() / 4);
  for (size_t i = 0; i < pieces->ranges.size(); ++i) {
    const size_t begin = out.size();
    write(pieces->piece(i), i, &out);
    pieces->ranges[i] = {begin, out.size()};
  }
  pieces->rewritten = std::move(out);
  pieces->text = pieces->rewritten;
}

void Metaspace(const PreTokenizerStep& rule, bool at_start, Pieces* pieces) {
  Rewrite(pieces, [&](std::string_view piece, size_t i, std::string* out) {
    const bool wanted = rule.prepend == PreTokenizerStep::Prepend::kAlways ||
                        (rule.prepend == PreTokenizerStep::Prepend::kFirst && at_start && i == 0);
    if (wanted && !piece.starts_with(' ') && !piece.starts_with(rule.replacement)) *out += rule.replacement;
    for (char c : piece) c == ' ' ? out->append(rule.replacement) : out->append(1, c);
  });
  if (!rule.split) return;
  std::vector<Range> split;
  for (const Range& piece : pieces->ranges) {
    size_t begin = piece.begin;
    for (size_t at = piece.begin + 1; at < piece.end; ++at) {
      if (!pieces->text.substr(at, piece.end - at).starts_with(rule.replacement)) continue;
      split.push_back({begin, at});
      begin = at;
    }
    split.push_back({begin, piece.end});
  }
  pieces->ranges = std::move(split);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::Create(const std::vector<PreTokenizerStep>& steps) {
  PreTokenizer pre_tokenizer;
  for (const PreTokenizerStep& rule : steps) {
    Step step{.rule = rule};
    if (rule.kind == PreTokenizerStep::Kind::kSplit) {
      Result<Regex> regex = Regex::Compile(OnigurumaPattern(rule.pattern));
      if (!regex.ok()) return InvalidArgument("pre-tokenizer pattern " + Quoted(rule.pattern) + ": " + regex.status().message());
      step.regex = std::make_shared<const Regex>(*std::move(regex));
    }
    pre_tokenizer.steps_.push_back(std::move(step));
  }
  return pre_tokenizer;
}

Status PreTokenizer::Split(Pieces* pieces, bool at_start) const {
  pieces->ranges.clear();
  if (!pieces->text.empty()) pieces->ranges.push_back({0, pieces->text.size()});
  if (steps_.empty()) return OkStatus();
  COPPICE_ASSIGN_OR_RETURN(Regex::Scratch scratch, Regex::Scratch::Create());
  std::vector<Part> parts;
  std::vector<Range> next;
  for (const Step& step : steps_) {
    switch (step.rule.kind) {
      case PreTokenizerStep::Kind::kSplit:
        next.clear();
        for (const Range& piece : pieces->ranges) {
          if (const Status status = FindParts(pieces->text, piece, *step.regex, scratch, &parts); !status.ok()) {
            return InvalidArgument("the pre-tokenizer pattern cannot split this text: " + status.message() + ", pattern " +
                                   Quoted(step.rule.pattern));
          }
          AppendPieces(parts, step.rule, &next);
        }
        pieces->ranges.swap(next);
        break;
      case PreTokenizerStep::Kind::kMetaspace: Metaspace(step.rule, at_start, pieces); break;
      case PreTokenizerStep::Kind::kPrefixSpace:
        Rewrite(pieces, [](std::string_view piece, size_t, std::string* out) {
          if (!piece.starts_with(' ')) *out += ' ';
          *out += piece;
        });
        break;
    }
  }
  return OkStatus();
}

}  // namespace coppice
