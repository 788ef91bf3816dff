// The engine: requests in, tokens out. It keeps the KV of shared text once, plans one forest a step, and samples n continuations of
// one prompt as one tree node with n leaves.
// Layer: public API of coppice::engine.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "coppice/core/kind_order.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"
#include "coppice/engine/forest_listener.h"
#include "coppice/engine/model_info.h"
#include "coppice/engine/pause.h"
#include "coppice/engine/step_plan.h"
#include "coppice/engine/token_constraint.h"
#include "coppice/engine/weights.h"
#include "coppice/runner/sampling.h"
#include "coppice/tokenizer/tokenizer.h"

namespace coppice {

enum class RequestId : uint64_t {};

// A sample of a request: StreamEvent::request and index. Those that Submit begins are 0..n-1, each that Fork makes has the next
// number, and none is given again.
struct SampleId {
  RequestId request{};
  int32_t index = 0;
  auto operator<=>(const SampleId&) const = default;
};

// Whose KV it is. Tenants never share KV, whatever their salts: KV of one is found, counted and timed by none of the
// others.
struct CacheTenant {
  std::string name;   // empty: none, all requests'
  int32_t begin = 0;  // prompt tokens before this index stay shared with all
};

// A token whose log-probability after prompt tokens [0, position] is wanted.
struct PromptScore {
  int32_t position = 0, token = 0;
};

// Requests of one name are a group within their Request::share_of.
struct RequestGroup {
  std::string name;  // empty: none; 256 bytes at most
  // Once so many samples of the group have ended by themselves, the rest end with kCancelled, those of requests that come later
  // too. Of several numbers that requests of the group have, the smallest counts. 0: none.
  int32_t min_answered = 0;
};

// When a beam search is over, once as many outputs have ended as it has beams: early_stopping of transformers.
enum class EarlyStopping : uint8_t {
  kFalse,  // no beam, as long as it is now, has a better score than the worst of them
  kTrue,   // at once
  kNever,  // no beam can have a better score than the worst of them, however long it becomes
};
constexpr std::string_view Name(EarlyStopping early_stopping) {
  switch (early_stopping) {
    case EarlyStopping::kFalse: return "false";
    case EarlyStopping::kTrue: return "true";
    case EarlyStopping::kNever: return "never";
  }
  return "?";
}

// The most probable outputs in place of drawn ones. Each step keeps the `width` best of all continuations of all beams, by the sum
// of the model's log-probabilities; sampling parameters do not count. Outputs that end by a token or by their length compete by
// their score, that sum / tokens^length_penalty, and the best n of the `width` best are sent, best first, when the search is over.
struct BeamOptions {
  static constexpr int32_t kMaxWidth = 256;
  int32_t width = 0;  // beams, at least n; 0: samples are drawn
  float length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  // Stochastic beam search (Kool et al. 2019): `width` different outputs are drawn, without replacement, from the model's
  // distribution at SamplingParams::temperature, above 0, with `seed`; without length_penalty and early_stopping. Scores are
  // log-probabilities with Gumbel noise: the n best ones are a sample without replacement themselves.
  bool stochastic = false;
};

struct Request {
  std::vector<int32_t> prompt_ids;  // at least one token
  int32_t n = 1;                    // samples of this prompt: at most the pages of the KV cache, or max_running if that is more
  int32_t max_tokens = 16;          // per sample; 0: the prompt is computed, and samples end without a token
  int32_t min_tokens = 0;
  SamplingParams sampling;
  // Samples are the outputs of a beam search. Not with penalties, logit_bias, a constraint, stop strings, top_logprobs, ranks or
  // keep; stop_token_ids and min_tokens hold. Fork, Extend and Describe refuse them.
  BeamOptions beams;
  std::vector<std::string> stop;  // text; not part of the output. 256 strings of 1,024 bytes at most
  std::vector<int32_t> stop_token_ids;
  // Control tokens that have text in the output, which others have not: a model may mark with one what a tool call is.
  std::vector<int32_t> visible_tokens;
  bool ignore_eos = false;
  // May come, if not null. Where it lets the output end, the tokens that end a sample may come too; where nothing else may
  // come, the sample ends, even before min_tokens. Such samples are not drafted, and with steps_ahead decode in every second step.
  std::shared_ptr<const TokenConstraint> constraint;
  bool prompt_logprobs = false;
  int32_t prompt_logprobs_begin = 0;  // of prompt tokens from this index on; earlier ones may come from the cache
  // Tokens to score after the prompt's tokens, in the order of their positions; not with prompt_logprobs. Tokens before the first
  // position may come from the cache; from there on the prompt is computed, cached or not.
  std::vector<PromptScore> prompt_scores;
  // 0..kMaxTopLogprobs: the most probable tokens at each place of the output, for StreamEvent::top_logprobs, and with
  // prompt_logprobs at each place of the prompt.
  int32_t top_logprobs = 0;
  std::optional<int32_t> prompt_top_logprobs;  // the same of the prompt, where another number is wanted than top_logprobs
  bool ranks = false;                          // StreamEvent::ranks, and with prompt_logprobs prompt_ranks
  bool echo = false;  // the event of the prompt (index -1) carries its token ids and text: what comes before each sample's output
  std::string cache_salt;           // requests with different salts never share KV; a tenant's salt is that tenant's alone
  int32_t cache_private_begin = 0;  // with a salt: prompt tokens before this index stay shared with all, or all of the tenant
  CacheTenant cache_tenant;
  // A name under which the prompt's KV stays cached once it is computed, whatever else needs room, until Engine::Unpin. A name in
  // use is given to the new prompt. Not with SharingMode::kNone.
  std::string pin_prompt_as;
  // A client. While requests wait, those of different names get equal shares of the engine, counted in tokens (fair queueing), and
  // of its places: a name's samples beyond its part are interrupted for another name's request. Those of one name come in the order
  // of their arrival.
  std::string share_of;
  int32_t priority = 0;  // of those that wait, higher ones come first, of any name
  // A group is known while a request of it is in the engine, and beyond that while it is one of the last 4,096 such.
  RequestGroup group;
  double timeout_seconds = 0;  // from Submit; what is unfinished then ends with kError, DEADLINE_EXCEEDED. 0: none
  // Samples that end stay, as tokens and settings, for Fork and Extend, until they are pruned or the request is released. They hold
  // no place and no pages: what is cached of them may be evicted, and is computed again. Not where the request ends before it
  // began.
  bool keep = false;
  // Called at the end of a step on the thread that steps the engine, or with EngineOptions::event_thread on a thread of the
  // engine's own, one event at a time, those of a request in order; when Step returns false all have been sent. May call Submit,
  // Cancel, Prune, Release, Unpin, Load, Metrics and what returns constants; all else of the engine waits for the step.
  std::function<void(const struct StreamEvent&)> on_event;

  // Outputs that are computed at a time: n samples, or the beams.
  int32_t num_sequences() const { return beams.width > n ? beams.width : n; }
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };
constexpr std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "?";
}

// Children of a sample: their first tokens, and how they go on (Engine::Fork).
struct ForkOptions {
  int32_t n = 1;  // children: as many as a request may have samples
  // Of the sample's tokens behind the prompt, events' and those of Extend, so many first ones. None: all, also one that ended it.
  std::optional<int32_t> keep_tokens = {};
  // Child i draws as sample i of a request of this seed would. None: the sample's seed, from streams that no other sample has.
  std::optional<uint64_t> seed = {};
  std::optional<SamplingParams> params = {};  // its seed does not count. None: the sample's
  // Tokens of each child behind those that it begins with, at least 1. None: as many as would let it have what the sample may have,
  // or, of a kept one, Request::max_tokens.
  std::optional<int32_t> max_tokens = {};
};

// The result of Engine::Extend.
struct Extension {
  bool had_ended = false;  // the sample was kept and begins again: another event will end it
  int32_t num_tokens = 0;  // of the sample now: the prompt's, those of committed steps, and the added ones last
};

// A sample, as of Engine::Describe.
struct SampleInfo {
  int32_t prompt_tokens = 0;
  std::vector<int32_t> token_ids;  // the prompt's, and all behind it that committed steps have given or Extend has added
  bool finished = false;           // and kept
};

// The model's score of a token of Request::prompt_scores.
struct ScoredToken {
  float logprob = 0;    // natural logarithm; NaN if the model's logits are not finite numbers
  bool greedy = false;  // no token is more probable there
};

// KV that a request's samples read together with other samples, its own or others'. Only reads that a step's plan shared count: in
// a step, attention reads a range of KV once for the r samples whose rows it reads it for, and each of them is spared (r - 1) / r
// of its bytes. Reads of `store` and `none` are never shared; nor is what a planner reads apart since that is faster.
struct SharedReads {
  int64_t kv_bytes_not_read = 0;  // spared, by all its samples in all steps and layers
  int32_t tokens = 0;             // the most tokens that one of its samples read together with others in a step
  int32_t sharers = 0;            // the most samples, itself included, that such a read was for; 0: nothing was shared

  void Add(const SharedReads& other) {
    kv_bytes_not_read += other.kv_bytes_not_read;
    tokens = tokens < other.tokens ? other.tokens : tokens;
    sharers = sharers < other.sharers ? other.sharers : sharers;
  }
};

// One sample made progress, or the prompt is done (index -1, before all others: with prompt_logprobs, prompt_scores or echo).
struct StreamEvent {
  RequestId request{};
  int32_t index = -1;              // sample
  std::vector<int32_t> token_ids;  // new tokens; with echo, index -1: the prompt
  std::vector<float> logprobs;  // of each new token, natural logarithm, of the distribution that SamplingParams::logprobs_mode says
  // With Request::top_logprobs: for each new token those that were most probable in its place, most probable first, of equals the
  // lower id; fewer where the vocabulary is smaller. Else empty.
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  // With Request::ranks, of each new token: 1 is the most probable one, of equals the lower id. Of the distribution of `logprobs`.
  std::vector<int32_t> ranks;
  std::string text;  // new complete characters; empty without a tokenizer. Of the prompt: special tokens included
  // Index -1 only: by token of the prompt, null or empty for the first one and those before Request::prompt_logprobs_begin, and by
  // Request::prompt_scores.
  std::vector<std::optional<float>> prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> prompt_top_logprobs;  // with prompt_logprobs and top_logprobs
  std::vector<int32_t> prompt_ranks;                           // with prompt_logprobs and ranks; 0 where there is no logprob
  std::vector<ScoredToken> prompt_scores;
  bool begun = false;                         // a step took the request in: it is no longer one that only waited
  int32_t cached_tokens = 0;                  // of the prompt, found in the cache when the request was admitted
  std::optional<FinishReason> finish_reason;  // set with the sample's last event
  // With kStop by a stop string: its place in Request::stop. Where a token ended the sample, it is the last one.
  std::optional<int32_t> stop;
  std::optional<float> beam_score;  // of a beam search's output (BeamOptions), with its last event
  bool request_done = false;        // last event of the request; of a kept one, until a sample is forked or extended
  SharedReads shared_reads;         // of the whole request, with its last event
  int64_t weight_version = 0;       // WeightVersion::number of the weights that chose the tokens
  Status status;                    // why, for kError
};

// The work of a step when samples decode and prompts wait to be computed.
enum class SchedulePolicy : uint8_t {
  kMixed,         // every running sample decodes, prompts fill up the step in chunks: none stalls (Sarathi-Serve, POD-Attention)
  kPrefillFirst,  // prompts alone as long as there are any that fit, while running samples wait: the baseline of POD figure 2
};
constexpr std::string_view Name(SchedulePolicy policy) {
  switch (policy) {
    case SchedulePolicy::kMixed: return "mixed";
    case SchedulePolicy::kPrefillFirst: return "prefill-first";
  }
  return "?";
}

// EngineOptions::chunk: the smallest chunk whose prefill throughput is within 5% of the best, measured by Create (about a second
// on small models). EngineMetrics::chunk_probe has the measurements.
inline constexpr int32_t kAutoChunk = -1;

// EngineOptions::steps_ahead: 1 on a GPU, 0 on a CPU.
inline constexpr int32_t kAutoStepsAhead = -1;

// The drafter of tokens that the model verifies several at a time. Output keeps the model's distribution; greedy output,
// and with kNgram or in deterministic mode sampled output too, is what it would be without drafts.
enum class DraftMode : uint8_t {
  kNone,
  kNgram,  // what followed the last tokens where they occurred before in the prompt or the output
  kModel,  // a smaller model of the same vocabulary
};
constexpr std::string_view Name(DraftMode mode) {
  switch (mode) {
    case DraftMode::kNone: return "none";
    case DraftMode::kNgram: return "ngram";
    case DraftMode::kModel: return "model";
  }
  return "?";
}

// How a model's matrices are held and multiplied (docs/numerics.md, "Weights").
enum class WeightForm : uint8_t {
  kFastest,  // as products of this machine are fastest: as kStored or in `dtype`, on some CPUs with the file's integers beside it
  kStored,   // a quantised file's blocks stay as they are, once; CPU only. Matrices of other types: in `dtype`
  kBF16,     // rounded to bf16, as are the inputs of products
  kF32,      // exact in f32, as are the inputs of products; CPU only
};
constexpr std::string_view Name(WeightForm form) {
  switch (form) {
    case WeightForm::kFastest: return "fastest";
    case WeightForm::kStored: return "stored";
    case WeightForm::kBF16: return "bf16";
    case WeightForm::kF32: return "f32";
  }
  return "?";
}

// When tokens are guessed.
enum class DraftPolicy : uint8_t {
  kMeasured,  // where it makes tokens cheaper, by the times of steps with and without drafts
  kAlways,
};
constexpr std::string_view Name(DraftPolicy policy) {
  switch (policy) {
    case DraftPolicy::kMeasured: return "measured";
    case DraftPolicy::kAlways: return "always";
  }
  return "?";
}

// Baselines, and what benches and tests vary. Without the promises of EngineOptions: these may change or go.
struct EngineExperiment {
  bool random_weights = false;     // EngineOptions::model_path is a config.json alone: for measuring a shape without its weights
  bool without_attention = false;  // no row attends to anything, and tokens mean nothing: what all else costs (Hydragen's ceiling)
  bool force_sharing = false;      // share wherever the tree allows, whatever the cost model says
  KindOrder kinds = KindOrder::kAuto;  // others than kAuto are baselines
  SchedulePolicy schedule = SchedulePolicy::kMixed;
  int32_t draft_branches = 1;  // kNgram: continuations guessed at the same time, a tree; 1 in deterministic mode
  DraftPolicy draft_policy = DraftPolicy::kMeasured;
  // On a GPU: how many captured steps are kept. Beyond that the one whose shape came least recently is forgotten.
  // 0: no step is captured.
  int32_t max_graphs = 256;
  bool ranks_by_nccl = false;  // ranks on GPUs exchange values through NCCL where they could read each other's memory
};

struct EngineOptions {
  std::string model_path;  // GGUF file or Hugging Face folder
  // Where the model runs: "cpu", "cuda", "cuda:1", or "auto": the first CUDA device if there is one that can, else the CPU.
  // "cuda:0,cuda:1": one model divided among ranks on these GPUs; "cpu,cpu": among ranks that divide the threads (docs/ranks.md).
  std::string device = "auto";
  KvSplit kv_split = KvSplit::kAuto;  // kTokens: INVALID_ARGUMENT, with the reason, where tokens cannot be divided
  // Of KV, and of weights and product inputs unless `weights` says otherwise; kF16 on CUDA devices alone, kF32 on CPUs. None:
  // kBF16, but on CUDA devices kF16 for files whose weights are of f16 or quantised, of families that f16 has the range for
  // (docs/numerics.md, "f16"). ModelInfo::kv_dtype says which it came to be.
  std::optional<DType> dtype;
  // kF32: the output projection's weight and input, so that logits are of f32 products whatever the others are; a tied one is held
  // beside the embedding then. None: as the others. No other value.
  std::optional<DType> head_dtype;
  WeightForm weights = WeightForm::kFastest;
  SharingMode sharing = SharingMode::kTree;
  int32_t page_size = 16;               // tokens per page, 1..256; where ranks divide the tokens of KV: those of each rank
  int64_t kv_cache_bytes = 0;           // 0: enough for max_running full-length requests, at most half of the free memory (CPU) or
                                        // what gpu_memory_utilization leaves beside the weights
  double gpu_memory_utilization = 0.9;  // share of a GPU's memory that the process may use, what others use included; (0, 1]
  int32_t max_running = 256;            // samples that decode at the same moment
  int32_t max_batch_tokens = 512;       // token budget of a step: decode rows first, then prefill chunks
  int32_t chunk = 0;  // prompt tokens of a step, all prompts together; 0: as many as max_batch_tokens leaves; kAutoChunk
  // Seconds between two tokens of a sample, as far as prompts have a part in them: of a step in which samples decode, so many
  // prompt tokens at most as are predicted to let it end in time, by the steps before and a measurement of Create (as of
  // kAutoChunk); 16 at least, so that prompts come to their end. `chunk` is the most. 0: no target. Not with
  // SchedulePolicy::kPrefillFirst.
  double target_tbt = 0;
  int32_t max_context = 0;  // 0: the model's
  // Samples of requests that wait and have not begun; Submit refuses more with RESOURCE_EXHAUSTED. While requests of several names
  // (Request::share_of) wait, each may have half of them, and gets in with an equal share of them at least. 0: no limit.
  int32_t max_waiting = 0;
  int num_threads = 0;  // 0: one per core; at most 4,096
  // Tokens become text and on_event is called on a thread of its own, beside the next step, so that neither delays it. (Requests
  // with stop strings are decoded in the step: their text decides when it ends.) State that on_event touches must then be locked.
  bool event_thread = false;
  // Called where on_event is, once the events of a step have been sent: wakes those that wait for them once, not by event. May be
  // empty; may call what on_event may.
  std::function<void()> on_events_sent;
  std::shared_ptr<ForestListener> forest_listener;  // hears of each step's prefix forest; null: none, at no cost
  // Steps that are scheduled and launched before the one under way has said its tokens: 0, 1, or kAutoStepsAhead. With 1 the host's
  // work lies beside a device's. Changes no sample's tokens. Steps that draft are never launched ahead.
  int32_t steps_ahead = kAutoStepsAhead;
  // On a GPU: measure first with which of the library's algorithms the model's products make its steps fastest, unless this machine
  // has measured them before (docs/matrix_products.md, "Products"). A sample's tokens may differ by it as sums of another order do.
  bool tune = false;
  // JSON of `coppice bench calibrate`: the constants that attention is planned by. Empty: those shipped for the device at hand.
  std::string machine_model_path;
  bool deterministic = false;
  DraftMode draft = DraftMode::kNone;
  int32_t draft_tokens = 4;      // guessed ahead at most, 1..63; fewer while they are refused, or where the step has no room
  std::string draft_model_path;  // kModel: GGUF file or Hugging Face folder
  EngineExperiment experiment;
};

// A run of cached tokens that requests have in common: a node of the prefix tree.
struct CachedPrefix {
  int32_t id = 0, parent = 0;  // names of nodes, given again when they are gone; 0: the root, which has no entry
  int32_t begin = 0, end = 0;  // tokens of the prompt: what lies before `begin` is an entry of its own
  int64_t hits = 0;            // admissions that found it
  int32_t users = 0;           // running samples that go through it now
  bool pinned = false;
};

// One step.
struct StepMetrics {
  int64_t step = 0;            // 1 is the first
  int64_t weight_version = 0;  // WeightVersion::number
  int32_t decode_rows = 0, prefill_rows = 0;
  int32_t grouped_rows = 0;  // of all rows, those that read some KV together with another sample's rows
  int64_t kv_bytes_read = 0, kv_bytes_read_unshared = 0;
  bool ran_as_graph = false;  // on a GPU: as one captured graph
  bool new_shape = false;     // on a GPU: without one, or capturing it, since no step of its shape had come before
  // KV of the samples that ran, as EngineMetrics has it at the peak.
  int64_t kv_bytes_stored = 0, kv_bytes_stored_unshared = 0, kv_page_rounding_bytes = 0;
  double seconds = 0, plan_seconds = 0, forward_seconds = 0, sample_seconds = 0, host_seconds = 0, detokenize_seconds = 0;
};

struct ChunkSpeed {
  int32_t tokens = 0;
  double tokens_per_second = 0;
};

// Counters since creation; a snapshot is consistent, and has counted each event's step before on_event is called.
struct EngineMetrics {
  int64_t steps = 0, prompt_tokens = 0, prefilled_tokens = 0, generated_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens whose KV was found in the cache
  // Speculative decoding. A sample makes (sample_steps + accepted_draft_tokens) / sample_steps tokens a step.
  int64_t drafted_tokens = 0, accepted_draft_tokens = 0;
  int64_t draft_trees_cut = 0;      // trees of which the linear part alone was tried, since prompts ran in the same step
  int64_t sample_steps = 0;         // steps of running samples, each at least a token
  int64_t undrafted_steps = 0;      // decode_steps without guesses, by DraftPolicy::kMeasured
  int64_t draft_kv_bytes_read = 0;  // by the draft model, all its layers; not part of kv_bytes_read
  double draft_seconds = 0;
  int64_t bubbles =
      0;  // with steps_ahead: how often a step was not launched ahead, since it needed what the one under way frees or says
  // On a GPU: steps that ran as one captured graph; and how long the device computed nothing between two steps, as it saw it
  // itself, while there was work. 0 on a CPU.
  int64_t graph_steps = 0;
  double device_idle_seconds = 0;
  int64_t preemptions = 0;           // samples that gave their pages up and were computed again later
  int32_t waiting = 0, running = 0;  // requests, samples
  int64_t requests_begun = 0;        // that a step took in, and how long all of them had waited for it
  double queue_seconds = 0;
  int32_t pages_total = 0, pages_used = 0;
  int64_t peak_pages_used = 0;
  int64_t merged_pages = 0;  // pages given back because running samples had generated the same text
  // KV traffic of attention over all steps and layers, counted by the plan; "unshared": what `none` and `store` would read.
  int64_t kv_bytes_read = 0, kv_bytes_read_unshared = 0;
  // Each token once a step and layer (Bifurcated Attention, equation 6), where kv_bytes_read has it once for each block of rows.
  int64_t kv_bytes_distinct = 0, decode_kv_bytes_distinct = 0;
  int64_t decode_steps = 0, decode_graph_steps = 0, decode_kv_bytes_read = 0, decode_kv_bytes_read_unshared = 0;
  int64_t kv_bytes_stored = 0, kv_bytes_stored_unshared = 0;  // at the peak; whole pages
  int64_t kv_page_rounding_bytes = 0;                         // part of kv_bytes_stored that no token uses
  double prefill_seconds = 0, decode_seconds = 0;  // wall time of steps with and without prefill rows; page copies: prefill
  int64_t hybrid_steps = 0;                        // with rows of both kinds
  double hybrid_seconds = 0;                       // part of prefill_seconds
  // With a target_tbt: the predicted time of hybrid steps, and how many took longer than the target.
  double hybrid_predicted_seconds = 0;
  int64_t hybrid_steps_over_target = 0;
  int64_t rows = 0, grouped_rows = 0;  // rows of attention; those that shared a read with another sample's
  // Time apart: the work list; the model, page copies included; logits to tokens; all else of the step (schedule, forest, commit);
  // tokens to text with the callers' on_event, which is not part of a step's seconds.
  double plan_seconds = 0, forward_seconds = 0, sample_seconds = 0, host_seconds = 0, detokenize_seconds = 0;
  StepMetrics last_step;
  // The nodes of the prefix tree that running samples go through, and 256 nodes at least, those in most use: by users, then those
  // that are pinned, then by hits. A node's parent is always before it. Gathered at most ten times a second, at the end of the last
  // request and when the engine runs idle.
  std::vector<CachedPrefix> prefixes;
  // Likewise of each tenant's own nodes, whatever else is cached, by CacheTenant::name; the root stands for parents that all
  // shares. Null: no tenant has any.
  std::shared_ptr<const std::map<std::string, std::vector<CachedPrefix>>> tenant_prefixes;
  int32_t tree_nodes = 0;  // how many there are in all
  // How attention read what samples have in common: in a step that was at most a tenth of a second old while the engine works, and
  // in the first one with the most samples since creation. Null: there was none, or nothing plans attention.
  std::shared_ptr<const StepPlan> plan, fullest_plan;
  int32_t chunk = 0;                    // prompt tokens of a step at most
  std::vector<ChunkSpeed> chunk_probe;  // with kAutoChunk or a target_tbt: measured speeds
};

// Asked often, by routers and by callers that decide whether to submit more.
struct EngineLoad {
  int32_t waiting = 0, running = 0;  // requests, samples
  bool draining = false;             // UpdateWeights, Pause or Sleep waits for what runs: no other request begins
  EngineState state = EngineState::kRunning;
};

// Thread-safe, but for Step and Run, which one thread calls.
class Engine {
 public:
  // Loads the model. Errors name the file and what to do.
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  virtual ~Engine() = default;

  // INVALID_ARGUMENT for an impossible request (empty prompt, n = 0, prompt over the context length: both values named).
  virtual Result<RequestId> Submit(Request request) = 0;
  // Ends the samples of a request that are not finished; kept ones stay.
  virtual Status Cancel(RequestId id) = 0;

  // Trees that callers grow. Fork, Extend and Describe are called as SavePrefix; they act on the tokens that committed steps gave.
  // NOT_FOUND: no such request or sample is there (any more); FAILED_PRECONDITION: the sample has ended and is not kept;
  // INVALID_ARGUMENT names the option, its value and what is expected; UNAVAILABLE and errors of the device as Submit and Step.
  // In all of these nothing is changed.

  // Begins children of a sample, whether it waits, runs or is kept: samples of the same request, with its settings but for those of
  // `options`. The sample itself goes on. Where it decodes, each child that finds a place takes one row of the next step and a copy
  // of one page at most; all else is shared with it. Others queue and find in the cache what is there. Their first events
  // may come before this returns.
  virtual Result<std::vector<SampleId>> Fork(SampleId sample, const ForkOptions& options) = 0;
  // Puts tokens behind those that a sample has, such as a tool's answer or a user's turn, and lets it go on. They are not part of
  // events, and do not count against max_tokens; a constraint must allow them. A kept sample may have Request::max_tokens again.
  // While the prompt is not computed: FAILED_PRECONDITION. Events of what comes behind may come before this returns.
  virtual Result<Extension> Extend(SampleId sample, std::span<const int32_t> tokens) = 0;
  // The sample is not wanted any more: unfinished it ends with kCancelled, kept it is forgotten. Its children stay. The next step
  // begins with what it held. May be called from on_event. NOT_FOUND where no such request is alive; nothing to do where the sample
  // is gone.
  virtual Status Prune(SampleId sample) = 0;
  // Request::keep no longer holds: ended samples are forgotten, unfinished ones go on. Called as Prune.
  virtual Status Release(RequestId id) = 0;
  virtual Result<SampleInfo> Describe(SampleId sample) = 0;

  // Lets the prompt that was pinned under `name` be evicted again. NOT_FOUND if there is none (yet).
  virtual Status Unpin(const std::string& name) = 0;
  // Writes the prompt that is pinned under `name`, tokens and KV, to a file that LoadPrefix reads. Called by any thread but not
  // from on_event: waits for the end of the step that runs, copies, lets the steps go on, and returns when the file is on the disk.
  // The file is replaced whole or not at all; it holds the prompt and its salt, and its access follows from the umask.
  // NOT_FOUND if nothing is pinned under that name (yet); FAILED_PRECONDITION if the prompt is to be computed anew, after
  // UpdateWeights; INVALID_ARGUMENT if `path` is no regular file, or holds anything else than a prefix; an error with the system's
  // reason if the file cannot be written.
  virtual Status SavePrefix(const std::string& name, const std::string& path) = 0;
  // Reads such a file and pins its prompt under `name`, as if it had been computed here for `tenant`, which the file does not say;
  // what is cached of it already is kept.
  // Called as SavePrefix; the KV is there for every step after the return. A file of another model, dtype or (deterministic
  // engines) mode is INVALID_ARGUMENT, a truncated or corrupt one DATA_LOSS, no room for it RESOURCE_EXHAUSTED, and UNAVAILABLE
  // says that a request computes a part of this prompt right now; the engine is then as it was.
  virtual Status LoadPrefix(const std::string& name, const std::string& path, const CacheTenant& tenant) = 0;
  // Replaces weights, some or all of them, in place, and returns the version that they make. Called as SavePrefix. Cached KV is
  // dropped, so that no token is computed with KV of other weights, but for samples that PauseMode::kKeep lets go on; a pinned
  // prompt keeps its name and is computed anew, until when SavePrefix says FAILED_PRECONDITION; files of prefixes that other
  // weights made are refused. With PauseMode::kWait it returns when all that runs has finished: the engine must be stepped
  // meanwhile. INVALID_ARGUMENT or UNIMPLEMENTED: a name, shape or dtype that the model does not have, and nothing is changed;
  // FAILED_PRECONDITION: likewise, the weights are held as a file stores them, quantised (load the model with WeightForm::kBF16 or
  // kF32). Any other error may leave a mixture of weights: all requests end with UNAVAILABLE, as those that come, until an update
  // of all weights has come. So they do between the parts of an update (UpdatePart), but while the engine is paused, where they
  // wait. FAILED_PRECONDITION of kNext and kLast: no update is open, or (kLast) weights are missing from before this update and it
  // did not bring them; it has ended then.
  virtual Result<WeightVersion> UpdateWeights(std::span<const WeightTensor> tensors, const UpdateOptions& options) = 0;
  virtual WeightVersion weight_version() const = 0;
  // The tensors that UpdateWeights takes, by name; none: the engine runs without a model. Called as SavePrefix.
  virtual Result<std::vector<WeightInfo>> Weights() = 0;
  // Drops what is cached, as UpdateWeights with PauseMode::kKeep does: samples that run go on with the KV that they have, which
  // nothing else finds any more. Returns how many pinned prompts are to be computed anew. Called as SavePrefix.
  virtual Result<int32_t> DropCache() = 0;

  // Pause, Resume, Sleep and Wake are called as SavePrefix; with PauseMode::kWait the engine must be stepped meanwhile.
  // No step computes anything until Resume. Deadlines and cancellations go on. A paused engine may be paused again, otherwise:
  // FAILED_PRECONDITION to wait for samples that an earlier pause keeps, or while the engine is asleep.
  virtual Status Pause(const PauseOptions& options) = 0;
  // Nothing to do where it runs. FAILED_PRECONDITION while it is asleep, or where weights are missing after Sleep or an update.
  virtual Status Resume() = 0;
  // Pause, and memory is given back until Wake. Cached tokens are dropped; a pinned prompt keeps its name and is computed anew.
  // FAILED_PRECONDITION, and nothing is changed: it is asleep already, or weights that are held as a file stores them, quantised,
  // would be dropped. UNIMPLEMENTED likewise: the device cannot. Another error leaves the engine asleep, some memory not given
  // back.
  virtual Status Sleep(const SleepOptions& options) = 0;
  // Takes the memory again; it also reads the model's file where an update left a mixture of weights. Nothing to do where the
  // engine is not asleep and its weights are whole. RESOURCE_EXHAUSTED where others have the memory now: it can be called again.
  // Errors of the file as Engine::Create's, of Resume its own; the engine is then paused.
  virtual Status Wake(const WakeOptions& options) = 0;
  // Runs one step; false when there is nothing to do. When the model fails, the requests that took part in the step end with kError
  // and its status, which is returned too; all others go on with the next step. UNAVAILABLE: the device is lost, and all requests
  // have ended.
  virtual Result<bool> Step() = 0;
  // Steps until `stop` is requested, and sleeps while there is nothing to do. Returns a failed step's status, with the requests
  // ended as Step says; it may be called again then. Unfinished requests go on with the next call, and no event comes before.
  virtual Status Run(std::stop_token stop) = 0;
  virtual EngineLoad Load() const = 0;  // costs a lock, where Metrics copies lists
  virtual EngineMetrics Metrics() const = 0;

  // The model's tokenizer; null: ModelInfo::tokenizer_status says why.
  virtual const Tokenizer* tokenizer() const = 0;
  virtual const ModelInfo& model_info() const = 0;
};

}  // namespace coppice
