// PCRE2 behind a small class: Unicode patterns, matched with limits so that a hostile pattern costs at most about 0.1 s and a time
// in proportion to the text.
// Layer: tokenizer.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "coppice/core/status.h"

namespace coppice {

// Immutable after Compile: safe to use from several threads, each with a scratch of its own.
class Regex {
 public:
  // INVALID_ARGUMENT with PCRE2's message and the offset.
  static Result<Regex> Compile(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Memory that one thread needs to match, and the work left for its hard matches: use one for the texts of one piece of work.
  class Scratch {
   public:
    // RESOURCE_EXHAUSTED if there is no memory for it.
    static Result<Scratch> Create();
    Scratch(Scratch&&) noexcept;
    Scratch& operator=(Scratch&&) noexcept;
    ~Scratch();

   private:
    friend class Regex;
    struct Data;
    explicit Scratch(std::unique_ptr<Data> data);
    std::unique_ptr<Data> data_;
  };

  // Bytes [begin, end) of the text; \K can make `end` come before where the search began. The group is the pattern's first one, if
  // it has one that took part in the match.
  struct Match {
    size_t begin = 0, end = 0;
    std::optional<std::string_view> group;
  };
  // The first match of `text`, which is valid UTF-8, at or after byte `position`, a character boundary; none: an empty optional.
  // INVALID_ARGUMENT when the match limit, or what the scratch allows, is exceeded.
  Status Find(std::string_view text, size_t position, Scratch& scratch, std::optional<Match>* match) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace coppice
