#include "simulate/replica.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"

namespace coppice::simulate {
namespace {

constexpr size_t kWindow = 32;  // of those that wait, how many are compared (AdmissionOrder)

}  // namespace

Replica::Replica(int32_t id, const Trace* trace, const Costs* costs, const ServerOptions& options, std::span<Outcome> outcomes,
                 OnEnded on_ended, OnHeld on_held)
    : id_(id),
      trace_(*trace),
      costs_(*costs),
      options_(options),
      outcomes_(outcomes),
      on_ended_(std::move(on_ended)),
      on_held_(std::move(on_held)),
      decoding_(costs->attention.Nothing()) {}

// ---------------------------------------------------------------------------------------------------------------------- entries

void Replica::FillPath(int32_t node) {
  path_nodes_.clear();
  for (; node != kNoNode; node = trace_.nodes()[node].parent) path_nodes_.push_back(node);
  std::ranges::reverse(path_nodes_);
}

int32_t Replica::FindEntry(int32_t node) const {
  const auto found = entry_of_node_.find(node);
  return found == entry_of_node_.end() ? -1 : found->second;
}

int32_t Replica::EntryOf(int32_t node) {
  if (node != kNoNode) {
    if (const int32_t found = FindEntry(node); found >= 0) return found;
  }
  int32_t entry = static_cast<int32_t>(entries_.size());
  if (free_entries_.empty()) {
    entries_.emplace_back();
  } else {
    entry = free_entries_.back();
    free_entries_.pop_back();
  }
  entries_[entry] = {.node = node};
  if (node != kNoNode) {
    entries_[entry].tokens = trace_.nodes()[node].tokens;
    entry_of_node_.emplace(node, entry);
    if (on_held_) on_held_(node, true);
  }
  return entry;
}

void Replica::DropIfUnused(int32_t entry) {
  const Entry& e = entries_[entry];
  if (e.ready || e.computing || e.users > 0 || e.waiting > 0) return;
  if (e.node != kNoNode) {
    entry_of_node_.erase(e.node);
    if (on_held_) on_held_(e.node, false);
  }
  free_entries_.push_back(entry);
}

void Replica::List(int32_t entry) {
  Entry& e = entries_[entry];
  COPPICE_DCHECK(!e.listed && e.ready && e.users == 0);
  e.listed = true;
  e.before = newest_;
  e.after = -1;
  (newest_ >= 0 ? entries_[newest_].after : oldest_) = entry;
  newest_ = entry;
  listed_tokens_ += e.tokens;
}

void Replica::Unlist(int32_t entry) {
  Entry& e = entries_[entry];
  if (!e.listed) return;
  (e.before >= 0 ? entries_[e.before].after : oldest_) = e.after;
  (e.after >= 0 ? entries_[e.after].before : newest_) = e.before;
  e.listed = false;
  listed_tokens_ -= e.tokens;
}

// Evicts until so many tokens are free; false, and nothing is evicted, where that cannot be.
bool Replica::MakeRoom(int64_t tokens) {
  if (options_.kv_tokens - used_tokens_ + listed_tokens_ < tokens) return false;
  while (options_.kv_tokens - used_tokens_ < tokens) {
    const int32_t entry = oldest_;
    Unlist(entry);
    entries_[entry].ready = false;
    used_tokens_ -= entries_[entry].tokens;
    totals_.evicted_tokens += entries_[entry].tokens;
    DropIfUnused(entry);
  }
  return true;
}

// ------------------------------------------------------------------------------------------------------------ requests come and go

void Replica::Submit(int32_t request, double now) {
  const TraceRequest& asked = RequestOf(request);
  Outcome& outcome = outcomes_[request];
  outcome.replica = id_;
  const int64_t prompt = trace_.prompt_tokens(asked), samples = std::min(asked.samples, options_.max_running);
  if (prompt + samples * (asked.output_tokens + options_.page_size) > options_.kv_tokens) {
    outcome.refused = true;
    return;
  }
  ++outstanding_;
  ++totals_.requests;
  totals_.prompt_tokens += prompt;
  Waiting waiting{.request = request};
  FillPath(asked.prompt);
  int32_t there = 0;
  for (const int32_t node : path_nodes_) {
    const int32_t entry = EntryOf(node);
    Entry& e = entries_[entry];
    const bool was_expected = e.ready || e.computing || e.waiting > 0;
    if (was_expected && there + e.tokens == trace_.nodes()[node].end) there += e.tokens;
    ++e.waiting;
  }
  waiting.backlog = static_cast<int32_t>(prompt) - std::min<int32_t>(there, static_cast<int32_t>(prompt) - 1);
  waiting_tokens_ += waiting.backlog;
  samples_waiting_ += samples;
  waiting_.push_back(waiting);
  if (end_ == kNever) {
    Plan(now);
  } else if (planned_ > 1 && samples_running_ + samples <= options_.max_running) {
    // The step that runs now is the last one without it.
    const double elapsed = now - begin_;
    // first * n + growth * n * (n - 1) / 2 = elapsed
    const double growth = growth_.seconds, linear = first_.seconds - growth / 2;
    const double done = growth > 0 ? (std::sqrt(linear * linear + 2 * growth * elapsed) - linear) / growth : elapsed / linear;
    planned_ = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(done)), 1, planned_);
    end_ = begin_ + Sum(&AttentionStep::seconds);
  }
}

double Replica::Sum(double AttentionStep::*what) const {
  const auto steps = static_cast<double>(planned_);
  return first_.*what * steps + growth_.*what * steps * (steps - 1) / 2;
}

void Replica::SetDecoding(const Running& running, bool decodes) {
  const int32_t change = decodes ? running.samples : -running.samples;
  decode_path_.clear();
  for (const int32_t entry : running.path) {
    Entry& e = entries_[entry];
    decode_path_.push_back({.tokens = e.tokens, .end = trace_.nodes()[e.node].end, .samples = e.decoding, .reads = &e.reads});
    e.decoding += change;
  }
  costs_.attention.ChangePath(decode_path_, change, &decoding_);
  costs_.attention.ChangeSamples(change, trace_.prompt_tokens(RequestOf(running.request)), &decoding_);
  decode_rows_ += change;
}

// The prompt is computed, and the step ends that drew the first token.
void Replica::BeginDecoding(Running* running, double now) {
  const TraceRequest& request = RequestOf(running->request);
  Outcome& outcome = outcomes_[running->request];
  if (running->generated == 0) outcome.first_token_seconds = static_cast<float>(now - request.arrival + options_.request_seconds);
  if (request.output_tokens <= running->generated + 1) {
    Leave(running, now);
    return;
  }
  running->decodes = true;
  running->ends_at = steps_ + request.output_tokens - running->generated - 1;
  own_tokens_ += int64_t{running->samples} * (running->generated + 1);
  SetDecoding(*running, true);
}

// Text behind a prompt stays cached: as the node that a later prompt has, or as what only takes room.
void Replica::KeepGenerated(const Running& running, int32_t per_sample) {
  const TraceRequest& request = RequestOf(running.request);
  const int64_t tokens = int64_t{per_sample} * running.samples;
  if (tokens == 0) return;
  const bool is_known = request.output != kNoNode && per_sample == request.output_tokens;
  const int32_t entry = EntryOf(is_known ? request.output : kNoNode);
  Entry& e = entries_[entry];
  if (e.ready || e.computing) {  // it is there already
    used_tokens_ -= tokens;
    return;
  }
  e.tokens = static_cast<int32_t>(tokens);
  e.ready = true;
  List(entry);
}

void Replica::Leave(Running* running, double now) {
  const TraceRequest& request = RequestOf(running->request);
  if (running->decodes) {
    SetDecoding(*running, false);
    own_tokens_ -= int64_t{running->samples} * request.output_tokens;
  }
  if (request.output_tokens == 0) used_tokens_ -= running->samples;  // room for a token that none draws
  KeepGenerated(*running, request.output_tokens);
  for (size_t i = running->path.size(); i-- > 0;) {  // what is above is used after what is below, and stays longer
    Entry& e = entries_[running->path[i]];
    e.users -= running->samples;
    if (e.users == 0) List(running->path[i]);
  }
  samples_running_ -= running->samples;
  --outstanding_;
  totals_.output_tokens += int64_t{request.samples} * request.output_tokens;
  outcomes_[running->request].seconds = static_cast<float>(now - request.arrival + options_.request_seconds);
  running->samples = 0;  // gone
  if (on_ended_) on_ended_(running->request);
}

// ------------------------------------------------------------------------------------------------------------------------- steps

Replica::Admission Replica::TryAdmit(const Waiting& waiting) {
  const TraceRequest& request = RequestOf(waiting.request);
  const int32_t samples = std::min(request.samples, options_.max_running);
  FillPath(request.prompt);
  int32_t there = 0;
  size_t ready = 0;
  for (; ready < path_nodes_.size(); ++ready) {
    const int32_t entry = FindEntry(path_nodes_[ready]);
    if (entry >= 0 && entries_[entry].computing) return Admission::kPending;
    if (entry < 0 || !entries_[entry].ready) break;
    there = trace_.nodes()[path_nodes_[ready]].end;
  }
  const int32_t prompt = trace_.prompt_tokens(request);
  // Nodes that were found must not be evicted for those that were not.
  for (size_t i = 0; i < ready; ++i) {
    const int32_t entry = FindEntry(path_nodes_[i]);
    Unlist(entry);
    entries_[entry].users += samples;
  }
  const int64_t fresh = int64_t{prompt - there} + int64_t{samples} * (waiting.generated + 1);
  const int64_t spare = running_.empty() ? 0 : (samples_running_ + samples) * options_.page_size;
  if (!MakeRoom(fresh + spare)) {
    for (size_t i = ready; i-- > 0;) {
      const int32_t entry = FindEntry(path_nodes_[i]);
      entries_[entry].users -= samples;
      if (entries_[entry].users == 0) List(entry);
    }
    return Admission::kNoRoom;
  }
  used_tokens_ += fresh;
  Running running{.request = waiting.request,
                  .samples = samples,
                  .computed = std::min(there, prompt - 1),
                  .target = prompt + waiting.generated,
                  .generated = waiting.generated,
                  .next_unready = ready};
  for (size_t i = 0; i < path_nodes_.size(); ++i) {
    const int32_t entry = EntryOf(path_nodes_[i]);
    Entry& e = entries_[entry];
    if (i >= ready) {
      e.computing = true;
      e.users += samples;
    }
    --e.waiting;
    running.path.push_back(entry);
  }
  if (!waiting.begun) {
    outcomes_[waiting.request].cached_tokens = running.computed;
    totals_.cached_tokens += running.computed;
  }
  prefilling_tokens_ += running.target - running.computed;
  samples_running_ += samples;
  samples_waiting_ -= samples;
  waiting_tokens_ -= waiting.backlog;
  running_.push_back(std::move(running));
  return Admission::kAdmitted;
}

// The next tokens of a prompt, as many as the budget has. Nodes that they complete may be used by others of the same step.
void Replica::ComputeChunk(Running* running, int32_t* budget) {
  const int32_t count = std::min(running->target - running->computed, *budget);
  if (count <= 0) return;
  prompts_.chunks.push_back({.tokens = count, .before = running->computed});
  chunk_of_.push_back(running - running_.data());
  running->computed += count;
  prefilling_tokens_ -= count;
  *budget -= count;
  for (; running->next_unready < running->path.size(); ++running->next_unready) {
    Entry& e = entries_[running->path[running->next_unready]];
    if (trace_.nodes()[e.node].end > running->computed) break;
    e.ready = true;
    e.computing = false;
  }
}

void Replica::ComputePrompts(int32_t* budget) {
  for (Running& running : running_) {
    if (!running.decodes) ComputeChunk(&running, budget);
  }
}

void Replica::Admit(int32_t* budget) {
  std::vector<char> is_pending(std::min(waiting_.size(), kWindow));
  while (!waiting_.empty() && *budget > 0) {
    // The best of the window: by what running samples have of it, then by what is cached.
    size_t best = waiting_.size();
    std::pair<int32_t, int32_t> best_overlap{-1, -1};
    const size_t window = std::min(waiting_.size(), kWindow);
    is_pending.resize(window);
    for (size_t i = 0; i < window; ++i) {
      if (is_pending[i]) continue;
      if (window == 1 || waiting_[i].begun) {
        best = i;
        break;
      }
      std::pair<int32_t, int32_t> overlap{0, 0};
      for (int32_t n = RequestOf(waiting_[i].request).prompt; n != kNoNode; n = trace_.nodes()[n].parent) {
        const int32_t entry = FindEntry(n);
        if (entry < 0) continue;
        const Entry& e = entries_[entry];
        if (overlap.second == 0 && (e.ready || e.computing)) overlap.second = trace_.nodes()[n].end;
        if (e.users > 0) {
          overlap.first = trace_.nodes()[n].end;
          break;
        }
      }
      if (overlap > best_overlap) best_overlap = overlap, best = i;
    }
    if (best == waiting_.size()) return;  // all wait for prompts in flight
    const int64_t samples = std::min(RequestOf(waiting_[best].request).samples, options_.max_running);
    if (samples_running_ + samples > options_.max_running) return;
    switch (TryAdmit(waiting_[best])) {
      case Admission::kNoRoom: return;
      case Admission::kPending: is_pending[best] = 1; continue;
      case Admission::kAdmitted: break;
    }
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(best));
    is_pending.erase(is_pending.begin() + static_cast<ptrdiff_t>(best));
    ComputeChunk(&running_.back(), budget);
  }
}

void Replica::PreemptNewest() {
  for (size_t i = running_.size(); i-- > 0;) {
    Running& running = running_[i];
    if (!running.decodes) continue;
    const TraceRequest& request = RequestOf(running.request);
    const auto generated = static_cast<int32_t>(request.output_tokens - (running.ends_at - steps_));
    SetDecoding(running, false);
    own_tokens_ -= int64_t{running.samples} * generated;
    KeepGenerated(running, generated);
    for (size_t p = running.path.size(); p-- > 0;) {
      Entry& e = entries_[running.path[p]];
      e.users -= running.samples;
      ++e.waiting;
      if (e.users == 0) List(running.path[p]);
    }
    samples_running_ -= running.samples;
    samples_waiting_ += running.samples;
    waiting_.push_front({.request = running.request, .generated = generated, .begun = true});
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    ++totals_.preemptions;
    return;
  }
}

// Whether those that decode cannot take one more token each.
bool Replica::IsShortOfRoom() { return options_.kv_tokens - used_tokens_ + listed_tokens_ < decode_rows_; }

// Which nodes the step's chunks see together with samples that decode, or with each other.
void Replica::FindSharedNodes() {
  const auto for_each_seen = [&](size_t c, auto&& visit) {
    for (const int32_t entry : running_[chunk_of_[c]].path) {
      const int32_t end = trace_.nodes()[entries_[entry].node].end;
      if (end > prompts_.chunks[c].before || !visit(end, &entries_[entry])) return;
    }
  };
  for (size_t c = 0; c < chunk_of_.size(); ++c) for_each_seen(c, [](int32_t, Entry* e) { return ++e->chunks > 0; });
  for (size_t c = 0; c < chunk_of_.size(); ++c) {
    int32_t last = -1, last_end = 0;
    for_each_seen(c, [&](int32_t end, Entry* e) {
      if (e->decoding == 0 && e->chunks == 1) return false;
      if (e->place < 0) {
        e->place = static_cast<int32_t>(prompts_.nodes.size());
        prompts_.nodes.push_back(
            {.tokens = e->tokens, .end = end, .samples = e->decoding, .reads = e->reads, .parent = last, .chunks = {}});
      }
      last = e->place;
      last_end = end;
      return true;
    });
    if (last >= 0) prompts_.nodes[last].chunks.push_back(static_cast<int32_t>(c));
    prompts_.chunks[c].alone = prompts_.chunks[c].before - last_end;
  }
  for (size_t c = 0; c < chunk_of_.size(); ++c) {
    for_each_seen(c, [](int32_t, Entry* e) {
      e->chunks = 0;
      e->place = -1;
      return true;
    });
  }
}

void Replica::PlanSteps(double now) {
  FindSharedNodes();
  int32_t ended = 0, prompt_rows = 0;
  for (const PromptChunk& chunk : prompts_.chunks) prompt_rows += chunk.tokens;
  planned_ = std::numeric_limits<int64_t>::max();
  for (const Running& running : running_) {
    if (running.decodes) {
      planned_ = std::min(planned_, running.ends_at - steps_);
    } else if (running.computed == running.target) {
      ++ended;
    }
  }
  if (!prompts_.chunks.empty()) planned_ = 1;
  if (decode_rows_ > 0) planned_ = std::min<int64_t>(planned_, (options_.kv_tokens - used_tokens_ + listed_tokens_) / decode_rows_);
  planned_ = std::max<int64_t>(planned_, 1);
  const StepRows rows{.prompt = prompt_rows, .decode = decode_rows_, .ended = ended};
  const double beside = costs_.steps.Seconds(rows);
  // The k-th step's samples have k tokens more each; reads grow evenly but where the roofline bends.
  first_ = costs_.attention.Step(decoding_, own_tokens_ + decode_rows_, prompts_);
  first_.seconds += beside;
  growth_ = {};
  if (planned_ > 1) {
    const AttentionStep last = costs_.attention.Step(decoding_, own_tokens_ + decode_rows_ * planned_, prompts_);
    const auto steps = static_cast<double>(planned_ - 1);
    growth_ = {.seconds = std::max(0.0, last.seconds + beside - first_.seconds) / steps,
               .bytes_read = (last.bytes_read - first_.bytes_read) / steps,
               .bytes_read_unshared = (last.bytes_read_unshared - first_.bytes_read_unshared) / steps};
  }
  begin_ = now;
  end_ = now + Sum(&AttentionStep::seconds);
}

void Replica::Plan(double now) {
  prompts_.chunks.clear();
  prompts_.nodes.clear();
  chunk_of_.clear();
  while (decode_rows_ > 0 && IsShortOfRoom()) PreemptNewest();
  const int32_t left = std::max(0, options_.max_batch_tokens - decode_rows_);
  int32_t budget = options_.chunk > 0 ? std::min(left, options_.chunk) : left;
  ComputePrompts(&budget);
  Admit(&budget);
  if (running_.empty()) {
    end_ = kNever;
    planned_ = 0;
    return;
  }
  PlanSteps(now);
}

void Replica::Advance() {
  COPPICE_DCHECK(end_ != kNever);
  const double now = end_;
  steps_ += planned_;
  totals_.steps += planned_;
  totals_.busy_seconds += end_ - begin_;
  totals_.kv_bytes_read += Sum(&AttentionStep::bytes_read);
  totals_.kv_bytes_read_unshared += Sum(&AttentionStep::bytes_read_unshared);
  const int64_t grown = planned_ * decode_rows_;
  // Room for it was there when the steps were planned; less is evicted than could be where it grew by less.
  COPPICE_CHECK(MakeRoom(grown) || decode_rows_ == 0);
  used_tokens_ += grown;
  own_tokens_ += grown;
  for (Running& running : running_) {
    if (running.decodes) {
      if (running.ends_at == steps_) Leave(&running, now);
    } else if (running.computed == running.target) {
      BeginDecoding(&running, now);
    }
  }
  std::erase_if(running_, [](const Running& running) { return running.samples == 0; });
  Plan(now);
}

bool Replica::CheckIntegrity() const {
  int64_t used = 0, listed = 0, samples = 0, prefilling = 0, own = 0;
  int32_t decode = 0;
  std::vector<bool> is_free(entries_.size());
  for (const int32_t entry : free_entries_) is_free[entry] = true;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (is_free[i]) continue;
    const Entry& e = entries_[i];
    if (e.ready || e.computing) used += e.tokens;
    if (e.listed) listed += e.tokens;
    if (e.listed != (e.ready && e.users == 0)) return false;
    if (e.ready && e.computing) return false;
  }
  for (const Running& running : running_) {
    samples += running.samples;
    if (running.decodes) {
      const int64_t generated = RequestOf(running.request).output_tokens - (running.ends_at - steps_);
      decode += running.samples;
      own += running.samples * generated;
      used += running.samples * generated;
    } else {
      prefilling += running.target - running.computed;
      used += int64_t{running.samples} * (running.generated + 1);
    }
  }
  return used == used_tokens_ && listed == listed_tokens_ && samples == samples_running_ && decode == decode_rows_ &&
         own == own_tokens_ && prefilling == prefilling_tokens_ && used_tokens_ <= options_.kv_tokens;
}

}  // namespace coppice::simulate
