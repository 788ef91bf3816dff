// A request whose samples are kept, and where its events go: each call that begins some of its samples, by Submit, Fork or Extend,
// has the events of these alone, as if they were a request of their own. Layer: openai.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "coppice/core/status.h"
#include "coppice/engine/engine.h"

namespace coppice::openai {

// Thread-safe. Held by the engine for as long as the request is in it.
class KeptRequest {
 public:
  using OnEvent = std::function<void(const StreamEvent&)>;

  // Samples that one call began. Their events have as `index` the sample's place in `samples`; request_done is in the last one's
  // end; shared_reads are those of the whole request, where nothing else of it is unfinished.
  class Group {
   public:
    const std::vector<SampleId>& samples() const { return samples_; }

   private:
    friend class KeptRequest;
    std::vector<SampleId> samples_;
    int64_t unfinished_ = 0;
    OnEvent on_event_;                  // none before Listen and after the last event
    std::vector<StreamEvent> unheard_;  // before Listen
  };

  // Makes `request`, which is submitted next, one whose samples are kept. Its on_event has the events of the prompt, and of the
  // samples that Submit begins.
  static std::shared_ptr<KeptRequest> Keep(Request* request);
  // The number that Submit gave the request; before anything of what follows.
  void SetId(RequestId id) { id_ = id; }
  RequestId id() const { return id_; }
  SampleId sample(int32_t index) const { return {.request = id_, .index = index}; }

  // As the engine's. Events of the samples wait for Listen, which is called once. Not from on_event.
  Result<std::shared_ptr<Group>> Fork(Engine& engine, int32_t index, const ForkOptions& options);
  struct Extended {
    int32_t num_tokens = 0;        // Extension::num_tokens
    std::shared_ptr<Group> group;  // null: the sample had not ended, and the call that it was begun by has what comes
  };
  Result<Extended> Extend(Engine& engine, int32_t index, std::span<const int32_t> tokens);
  void Listen(Group* group, OnEvent on_event);

  // How a sample draws: as its request does, or as it was forked to.
  SamplingParams SamplingOf(int32_t index) const;
  // The sample is pruned: SamplingOf is not asked for it any more.
  void Forget(int32_t index);

 private:
  struct Listener {
    std::shared_ptr<Group> group;
    int32_t place = 0;
  };

  void Report(const StreamEvent& event);
  // With the lock held:
  void Report(int32_t index, const StreamEvent& event);
  static void Deliver(const Listener& listener, const StreamEvent& event);
  std::shared_ptr<Group> Add(std::vector<SampleId> samples);
  // The children of a fork draw as it says, or as their parent.
  void NoteSampling(int32_t parent, const ForkOptions& options, std::span<const SampleId> children);

  std::atomic<RequestId> id_{};
  std::mutex extending_;                               // held from a sample's extension to its listener
  mutable std::mutex mutex_;                           // guards what follows; held while events are sent
  std::shared_ptr<Group> first_;                       // those that Submit begins
  std::map<int32_t, std::deque<Listener>> listeners_;  // by sample: the listener until it ends, and those once it was extended
  std::map<int32_t, std::vector<StreamEvent>> early_;  // of samples that a verb begins which has not returned

  SamplingParams sampling_;  // the request's
  mutable std::mutex sampling_mutex_;
  // Of samples that were forked to it and not forgotten; guarded by sampling_mutex_, since samples are pruned as events are sent.
  std::map<int32_t, std::shared_ptr<const SamplingParams>> own_sampling_;
};

}  // namespace coppice::openai
