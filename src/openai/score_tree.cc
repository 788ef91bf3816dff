#include "openai/score_tree.h"

#include <algorithm>
#include <numeric>

namespace coppice::openai {
namespace {

constexpr int32_t kAbsent = -1;

// Walks the sequences in the order of their tokens, so that those with a common path follow each other.
class Builder {
 public:
  explicit Builder(const std::vector<ScoredSequence>& sequences) : sequences_(sequences) {}

  ScoreTree Build() {
    std::vector<size_t> order(sequences_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) -> const std::vector<int32_t>& { return sequences_[i].tokens; });
    tree_.score_ids.resize(sequences_.size());
    const std::vector<int32_t>* before = nullptr;
    for (const size_t i : order) {
      const std::vector<int32_t>& tokens = sequences_[i].tokens;
      const auto common = before ? static_cast<size_t>(std::ranges::mismatch(*before, tokens).in2 - tokens.begin()) : size_t{0};
      owners_.resize(std::min(owners_.size(), common));
      scores_.resize(std::min(scores_.size(), common));
      AddSequence(i);
      before = &tokens;
    }
    for (ScoreTree::Part& part : tree_.parts) Sort(&part);
    return std::move(tree_);
  }

 private:
  void AddSequence(size_t i) {
    const auto& [tokens, begin] = sequences_[i];
    owners_.resize(tokens.size(), kAbsent);
    scores_.resize(tokens.size(), kAbsent);
    int32_t own_part = kAbsent;
    std::ptrdiff_t computed = 0;  // by its own part
    for (size_t place = static_cast<size_t>(begin); place < tokens.size(); ++place) {
      if (scores_[place] == kAbsent) {
        if (owners_[place - 1] == kAbsent) {  // no request computes the token before it so far
          if (own_part == kAbsent) {
            own_part = static_cast<int32_t>(tree_.parts.size());
            tree_.parts.emplace_back();
          }
          owners_[place - 1] = own_part;
          computed = static_cast<std::ptrdiff_t>(place);
        }
        ScoreTree::Part& part = tree_.parts[owners_[place - 1]];
        part.scores.push_back({.position = static_cast<int32_t>(place) - 1, .token = tokens[place]});
        part.ids.push_back(scores_[place] = tree_.num_scores++);
      }
      tree_.score_ids[i].push_back(scores_[place]);
    }
    if (own_part != kAbsent) tree_.parts[own_part].prompt_ids.assign(tokens.begin(), tokens.begin() + computed);
  }

  static void Sort(ScoreTree::Part* part) {
    std::vector<size_t> order(part->scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return part->scores[i].position; });
    ScoreTree::Part sorted;
    for (const size_t i : order) {
      sorted.scores.push_back(part->scores[i]);
      sorted.ids.push_back(part->ids[i]);
    }
    part->scores = std::move(sorted.scores);
    part->ids = std::move(sorted.ids);
  }

  const std::vector<ScoredSequence>& sequences_;
  ScoreTree tree_;
  // Of the path to the sequence at hand, by place: the part that computes the token, and the score of the token.
  std::vector<int32_t> owners_, scores_;
};

}  // namespace

ScoreTree MakeScoreTree(const std::vector<ScoredSequence>& sequences) { return Builder(sequences).Build(); }

}  // namespace coppice::openai
