// Masks of what constrained samples may say next, made once a step is scheduled: on several threads, and beside the step under way
// where there is one. Samples with the same output so far have one state and one mask. Layer: engine.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "coppice/core/executor.h"
#include "engine/scheduled_batch.h"

namespace coppice {

// Thread-compatible.
class ConstraintMasks {
 public:
  // `executor` outlives the masks.
  ConstraintMasks(Executor* executor, int32_t vocab_size) : executor_(executor), vocab_size_(vocab_size) {}

  using Clock = std::chrono::steady_clock;
  // The time of the masks of one Request::share_of.
  struct Share {
    std::string_view share_of;
    int64_t cpu_ns = 0;  // written and read by several threads
  };

  // Moves the states of constrained samples on by the tokens that they drew last, and gives their draws masks.
  void Fill(ScheduledBatch* batch);
  // Of the last Fill; they refer to its requests.
  std::span<const Share> shares() const { return shares_; }
  // How long a share should sit out while others have something to do, so that its masks hold them up for a fifth of the time at
  // most; zero where they took little.
  Clock::duration PauseAfter(const Share& share) const;

 private:
  // A sample that draws in this step, and the token that its state does not know yet (-1: it knows all).
  struct Member {
    const ScheduledBatch::Entry* entry = nullptr;
    SharedConstraint* state = nullptr;
    int32_t token = -1;
  };
  // Members that have the same state and token: what comes next has one state and one mask, the group's number.
  struct Group {
    size_t begin = 0, end = 0;  // of members_
    size_t owner = 0;
    bool splits = false;  // it gets a state of its own, as other samples need the one that it comes from
    std::shared_ptr<SharedConstraint> state;
  };
  // Of samples that one slow mask ends together.
  struct Owner {
    const TokenConstraint* constraint = nullptr;
    size_t share = 0;
    bool is_slow = false;  // written and read by several threads
  };

  void FindMembers(const ScheduledBatch& batch);
  void FindGroups();
  size_t ShareOf(const RequestState& request);
  size_t OwnerOf(const RequestState& request);
  // The group's state moves on, and fills its mask.
  void FillOne(const Group& group, std::span<uint32_t> mask, ScheduledBatch::ConstraintMask* result);
  // CPU time that one share's masks may take in a step.
  int64_t MostOfAStep() const;

  Executor* executor_;
  int32_t vocab_size_;
  std::vector<Member> members_;
  std::vector<Group> groups_;
  std::vector<Owner> owners_;
  std::vector<Share> shares_;
};

}  // namespace coppice
