// Writes a step's events down as its results are committed; the Emitter sends them afterwards. Counts a request's samples down, so
// that it knows which event is the last. Decides nothing: what happened is said by commit.h.
// Layer: engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/emitter.h"
#include "engine/request_groups.h"
#include "engine/request_state.h"

namespace coppice {

// Thread-compatible.
class StepEvents {
 public:
  // `tokenizer` may be null; it outlives the events.
  explicit StepEvents(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // The event of a computed prompt, where it is wanted.
  void AddPrompt(const RequestState& request);
  // A sample's event: Begin, whatever there is to say, End. Items are filled in place. A copy would be read in wider pieces than it
  // was written, and the processor then waits until all stores before have left for the cache: 200 cycles a sample.
  Emissions::Item& Begin(const Sequence& sequence) {
    Emissions::Item& item = emissions_.items.emplace_back();
    is_open_ = true;
    item.listener = sequence.request->listener.get();
    item.index = sequence.index;
    item.weight_version = weight_version_;
    return item;
  }
  // Of the tokens that come.
  void set_weight_version(int64_t version) { weight_version_ = version; }
  int64_t weight_version() const { return weight_version_; }
  // Text of the item, from where stop strings are looked for; its earlier text is dropped.
  std::string* NewText(Emissions::Item* item);
  std::string* TextOf(const Emissions::Item& item) { return &emissions_.texts[item.text]; }
  void SetStatus(Emissions::Item* item, const Status& status);
  void SetTopLogprobs(Emissions::Item* item, std::span<const TokenLogprob> top);
  // Completes the item that was begun last, and drops it without a listener.
  void End(Sequence& sequence) {
    RequestState& request = *sequence.request;
    Emissions::Item& item = emissions_.items.back();
    if (item.reason) {
      if (request.group != nullptr) request.group->Note(*item.reason);
      if (request.unfinished == 1) {
        item.request_done = true;
        item.reads = static_cast<int32_t>(emissions_.shared_reads.size());
        emissions_.shared_reads.push_back(request.shared_reads);
        if (!request.params.keep || !request.has_begun()) Forget(&request);
      }
      --request.unfinished;  // last: whatever throws leaves the event open
      sequence.end_is_written = true;
    }
    is_open_ = false;
    if (!request.has_listener) emissions_.items.pop_back();
  }

  // A sample has a new text stream, in the order of its events: a sample that has just been made, or one whose text begins anew.
  // Where the text that it had holds something back, that is sent.
  void BeginText(const Sequence& sequence, TextStream text);
  // The request has no further events: it is not kept, or no longer.
  void Forget(RequestState* request) {
    done_.push_back(request->id);
    request->params.keep = false;
  }

  // Drops an event that something threw in the middle of.
  void DropOpen() {
    if (std::exchange(is_open_, false)) emissions_.items.pop_back();
  }
  // Ends all samples that have not ended with an error. All of it is written, or nothing, and it throws for want of memory.
  void EndAll(RequestState* request, const Status& status);

  // Requests whose last event was written since ForgetDone.
  std::span<const RequestId> done() const { return done_; }
  void ForgetDone() { done_.clear(); }
  // The events to be sent.
  Emissions* emissions() { return &emissions_; }

 private:
  const Tokenizer* tokenizer_;
  Emissions emissions_;
  std::vector<RequestId> done_;
  int64_t weight_version_ = 0;
  bool is_open_ = false;  // the last item was begun and not completed
};

}  // namespace coppice
