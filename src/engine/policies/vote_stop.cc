#include "engine/policies/vote_stop.h"

#include <algorithm>

#include "core/check.h"

namespace coppice {

void VoteStop::Add(const std::optional<std::string>& answer) {
  COPPICE_CHECK(open_ > 0);
  --open_;
  if (!answer) return;
  const int32_t votes = ++votes_[*answer];
  if (first_ > 0 && *answer == leader_) {
    first_ = votes;
  } else if (votes > first_) {
    second_ = first_;
    first_ = votes;
    leader_ = *answer;
  } else {
    second_ = std::max(second_, votes);
  }
}

// k more votes for the first settle it where lead + k > open - k.
int32_t VoteStop::needed() const { return settled() ? 0 : std::min((open_ - lead()) / 2 + 1, open_); }

}  // namespace coppice
