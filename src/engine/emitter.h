// Events on their way out: tokens become text and on_event is called, at the end of a step or on a thread of its own, so that the
// next step need not wait for either. Decides nothing: which token ends a sample is known when it comes here.
// Layer: engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coppice/engine/engine.h"
#include "engine/text_stream.h"

namespace coppice {

// A request's facts for its events, apart from the request: it may be gone when its last ones are sent.
struct Listener {
  RequestId request{};
  // Of the prompt, found in the cache at admission, which comes before its events but the ends of samples that are not wanted any
  // more; -1: not admitted.
  std::atomic<int32_t> cached_tokens{-1};
  bool has_stops = false;
  std::vector<int32_t> visible_tokens;               // of the request
  std::function<void(const StreamEvent&)> on_event;  // may be empty
  // By sample. Of a request with stop strings the stepping thread decodes, since the text decides when a sample ends; of all others
  // the emitter does.
  std::vector<TextStream> texts;
  // An event could not be sent for want of memory: of what comes, ends alone are sent, as errors.
  std::atomic<bool> lost_event{false};

  // Gives a sample a new text stream, the first one where it has none; returns what the old one held back.
  std::string BeginText(int32_t sample, TextStream text);
  bool begun() const { return cached_tokens >= 0; }  // a step took the request in
};

// One step's events, in order. Plain data beside the arrays that rare parts lie in.
struct Emissions {
  struct Item {
    Listener* listener = nullptr;
    int32_t index = -1;  // sample
    int32_t token = -1;  // -1: none
    float logprob = 0;
    int32_t rank = 0;
    int32_t stop = -1;                     // StreamEvent::stop; -1: none
    int32_t text = -1;                     // in `texts`, of requests with stop strings
    int32_t status = -1;                   // in `statuses`
    int32_t prompt = -1;                   // in `prompts`: the event of a prompt
    int32_t begun_text = -1;               // in `begun_texts`: no event, the sample's text begins anew
    int32_t reads = -1;                    // in `shared_reads`: of a request's last event
    int32_t top_begin = 0, top_count = 0;  // in `top_logprobs`
    int64_t weight_version = 0;
    bool decodes = false;  // the token's text belongs to the output
    bool request_done = false;
    std::optional<FinishReason> reason;
    std::optional<float> beam_score;
  };
  std::vector<Item> items;
  std::vector<std::string> texts;
  std::vector<Status> statuses;
  std::vector<StreamEvent> prompts;
  std::vector<TokenLogprob> top_logprobs;
  std::vector<SharedReads> shared_reads;
  std::vector<TextStream> begun_texts;
  std::vector<std::unique_ptr<Listener>> retired;  // of requests without further events: destroyed after these

  bool empty() const { return items.empty() && retired.empty(); }
  void Clear();
};

// Thread-compatible: called by the stepping thread.
class Emitter {
 public:
  // own_thread: Send returns at once and events are sent on a thread of the emitter's own; else within Send.
  // on_sent: EngineOptions::on_events_sent.
  explicit Emitter(bool own_thread, std::function<void()> on_sent = {});
  // Sends what is left.
  ~Emitter();

  // Takes the emissions and leaves empty ones. With a thread: waits while some thousand events are in the queue, so that a slow
  // consumer slows the engine down rather than fill the memory and delay the next events of all requests.
  void Send(Emissions* emissions);
  // Returns when everything has been sent.
  void Drain();
  // Whether, since the last call, events of a listener were lost for want of memory: its request is to be ended.
  bool TakeLost() { return lost_.exchange(false); }
  // Time spent on events so far.
  double seconds() const;

 private:
  void Loop();
  void Process(Emissions* emissions);
  void Send(const Emissions& emissions, const Emissions::Item& item);
  // The last event of a request that lost one.
  static void SendEnd(const Emissions::Item& item);

  const std::function<void()> on_sent_;
  std::atomic<bool> lost_{false};
  StreamEvent event_;         // reused: its vectors keep their memory
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Emissions> queue_, spare_;  // spare ones keep their memory
  size_t pending_ = 0;                    // events queued or being sent
  bool busy_ = false, stop_ = false;
  double seconds_ = 0;
  std::thread thread_;
};

}  // namespace coppice
