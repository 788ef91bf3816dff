// Prefix-tree attention: softmax attention of many requests over one forest of shared KV segments, exact, each shared token
// read once per step for all requests that share it. A library of its own: it knows no tokens, no cache policy, no model.
// Layer: public API of coppice::attention. Method: Hydragen section 3 (split softmax), Cascade Inference (state and merge),
// Bifurcated Attention section 4, RelayAttention algorithm 1, POD-Attention (mixed work); see docs/attention.md.
//
//   caller edits a PrefixForest  ->  plan.Update(view)  ->  plan.Upload(stream)  ->  per layer: plan.Run(...)
//
// Words: a *node* is a vertex of the prefix tree and names the KV range [begin, end) of its *segment*; a *branch* is one request's
// path from a root to a leaf together with its *queries* of this step; a *row* is one query vector of one query head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "coppice/core/executor.h"
#include "coppice/core/kind_order.h"
#include "coppice/core/status.h"
#include "coppice/core/types.h"

namespace coppice::attention {

// ---------------------------------------------------------------------------------------------------------------- execution

using coppice::DeviceKind;
using coppice::Stream;

// Which kernels a CUDA context uses. kAuto: for each spec the Hopper ones where device, head_dim, page size and mode allow, else
// those of mma.sync, which run on every device since sm_80. The others force one kind; what it cannot do is refused.
enum class CudaKernels : uint8_t { kAuto, kHopper, kMmaSync };

// ------------------------------------------------------------------------------------------------------------------- problem

// One attention layer. One plan serves all layers with the same spec.
struct AttentionSpec {
  int32_t num_qo_heads = 0, num_kv_heads = 0;  // per rank, at most 65535; num_qo_heads is a multiple of num_kv_heads
  int32_t head_dim = 0;                        // multiple of 8, at most 256
  DType q_dtype = DType::kBF16;                // of q and out
  DType kv_dtype = DType::kBF16;
  float sm_scale = 0.0f;       // multiplies q . k; 0 means 1 / sqrt(head_dim)
  float soft_cap = 0.0f;       // c > 0: scores become c * tanh(score / c); 0 is off
  int32_t window = 0;          // w > 0: a query with kv index i sees kv indices in (i - w, i]; 0 is off
  bool deterministic = false;  // the bits of a request depend on nothing but the request (docs/numerics.md)

  int32_t group_size() const { return num_qo_heads / num_kv_heads; }
  bool operator==(const AttentionSpec&) const = default;
};

inline constexpr int32_t kLive = INT32_MAX;  // end of a leaf: the branch's live length
inline constexpr int32_t kNoParent = -1;     // parent of a root
inline constexpr int32_t kFreeSlot = -2;     // node_parent of an unused node slot; branch_node of an unused branch slot

// Which requests share which KV, in host memory owned and edited in place by the caller; ids are stable slots, gaps are legal.
//
// A kv index is the order along a branch's path, not a rotary position. Node n covers kv indices [node_begin[n], node_end[n]) of
// every branch below it; a child begins where its parent ends; a leaf of one branch ends at kLive. An empty node (begin == end)
// is legal. A node exists only where the set of branches changes; parents may have any slot order (cycles are refused). A branch
// that ends at a node with an end has that length: several may, also at inner nodes. Lengths are at most 2^30.
//
// The c queries of branch b are rows branch_query_begin[b] .. + c of q; query i has kv index kv_len - c + i and attends to kv
// indices at or below its own (and within the window). c = 0: the branch takes no part in this step but keeps its place.
//
// Branch b's page row is page_indices[branch_page_begin[b] .. + branch_page_capacity[b]): entry j holds kv indices
// [j * page_size, (j + 1) * page_size); the slot in a page is kv index % page_size. The row covers the whole path, shared
// tokens included, and is valid from slot 0. Slots past kv_len may hold anything, NaN too.
struct PrefixForestView {
  int32_t page_size = 16;  // 1..256
  // Grows whenever anything but branch_kv_len, branch_query_begin, query_tree_mask and newly used entries of page rows changes.
  // Equal versions promise unchanged nodes and unchanged entries of page rows, so that a plan may skip looking; all else is checked
  // in every Update.
  uint64_t version = 0;
  // Optional, of a caller that keeps count: all branches whose page rows changed after version `changed_since`, newly used entries
  // apart. An Upload that has seen that version copies these rows alone; 0: it compares them.
  uint64_t changed_since = 0;
  std::span<const int32_t> changed_branches;
  // Optional too: all node slots whose parent, begin or end changed after version `changed_since`, that came or that left, each one
  // of the N, in any order; others may be among them. An Update after one of that version or a later one, with as many node slots,
  // looks at these alone and takes all other nodes to be as they were; without it, or where changed_since is 0, it compares all.
  std::optional<std::span<const int32_t>> changed_nodes;

  std::span<const int32_t> node_parent, node_begin, node_end;  // [N]

  std::span<const int32_t> branch_node;                              // [B] last node of its path, or kFreeSlot
  std::span<const int32_t> branch_query_begin, branch_query_count;   // [B]
  std::span<const int32_t> branch_kv_len;                            // [B] this step's tokens included
  std::span<const int32_t> branch_page_begin, branch_page_capacity;  // [B] reserved at admission

  std::span<const int32_t> page_indices;
  // [Q] or empty. Bit j of query i: i sees its branch's query j (draft trees; at most 64 queries a branch). Kv indices before
  // the branch's queries are always seen. Empty: causal.
  std::span<const uint64_t> query_tree_mask;
};

// Fixed at creation; exceeding one is RESOURCE_EXHAUSTED with both values.
struct PlanCapacity {
  int32_t max_branches = 0;
  int32_t max_queries = 0;     // rows of q of one step
  int32_t max_nodes = 0;       // 0: 2 * max_branches
  int32_t max_page_slots = 0;  // size of page_indices
  int32_t page_size = 16;
  // Copies of the plan on a GPU, 1 or 2. Of two, an Upload writes the one that the Upload before it did not, while launches of
  // that one may run, and short steps that share nothing have a kernel of their own. One: a captured launch serves every step.
  int32_t device_images = 1;
};

// -------------------------------------------------------------------------------------------------------------------- KV pool

// One layer's KV, paged. Element d of K of kv head h in slot s of page p is k[p * page_stride + h * head_stride + s * slot_stride
// + d]; v likewise. Strides are in elements, of at least head_dim where there is more than one to step over; k and v are aligned to
// an element (CUDA: to 16 bytes, and strides are multiples of 8). Memory belongs to the caller. Scales are finite.
// Out = softmax(sm_scale * q . (k_scale * k)) (v_scale * v).
struct KvLayerView {
  void* k = nullptr;
  void* v = nullptr;
  int64_t page_stride = 0, head_stride = 0, slot_stride = 0;
  int32_t num_pages = 0, page_size = 0;
  DType dtype = DType::kBF16;
  float k_scale = 1.0f, v_scale = 1.0f;
};

// The native layout [page][kv_head][2][page_size][head_dim]: K and V of one page and head lie together.
struct KvPoolShape {
  int32_t num_pages = 0, page_size = 16, num_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kBF16;

  int64_t elements_per_page() const { return int64_t{2} * num_kv_heads * page_size * head_dim; }
  size_t bytes() const { return static_cast<size_t>(num_pages) * elements_per_page() * SizeOf(dtype); }
  // A view of one layer whose pool begins at `base` (bytes() bytes, 16-byte aligned).
  KvLayerView View(void* base) const;
};

// A layer's KV prepared for a backend (CUDA: tensor maps encoded). Valid as long as the memory of its view.
class BoundKv {
 public:
  virtual ~BoundKv() = default;
  const AttentionSpec& spec() const { return spec_; }
  const KvLayerView& view() const { return view_; }

 protected:
  BoundKv(const AttentionSpec& spec, const KvLayerView& view) : spec_(spec), view_(view) {}
  AttentionSpec spec_;
  KvLayerView view_;
};

// ----------------------------------------------------------------------------------------------------------------------- plan

// Which sharing the planner may use. Policies over one forest; results are equal within rounding.
enum class SharePolicy : uint8_t { kTree, kOneLevel, kStore };

struct PlannerOptions {
  SharePolicy policy = SharePolicy::kTree;
  bool force_sharing = false;  // kTree, kOneLevel: share wherever the tree allows, whatever the cost model says (tests, baselines)
  KindOrder kinds = KindOrder::kAuto;
  int32_t lookahead_tokens = 64;   // leaf growth laid out ahead, at most 2^20: Update is free for that many one-token steps
  std::string machine_model_path;  // JSON of `coppice bench calibrate`; empty: shipped constants for the device at hand
};

// Counted from the plan and the live lengths, per layer. On a GPU items, contributions, state bytes and predicted time are those of
// the plan as Upload cut it, before that of its uncut ranges.
struct PlanStats {
  int64_t kv_tokens_read = 0;                             // sum over items of tokens in range, each page row read once per item
  int64_t kv_tokens_read_unshared = 0;                    // the same of a plan under kStore, whose items read one branch each
  int64_t kv_bytes_read = 0, kv_bytes_read_unshared = 0;  // tokens x 2 x num_kv_heads x head_dim x element size
  // Each token of the forest that a query sees, once (Bifurcated Attention, equation 6): the least that memory gives.
  // kv_bytes_read counts a token once for each block of rows that reads it, which caches give for the most part.
  int64_t kv_bytes_distinct = 0;
  int64_t flops = 0;        // 4 x head_dim per visible (row, token) pair
  int64_t state_bytes = 0;  // partial states written + read
  int32_t num_items = 0, num_merge_sets = 0, num_contributions = 0, shared_nodes = 0, unshared_nodes = 0;
  double predicted_ns = 0;
  // Work of the last Update that replanned: the part that an incremental edit touched.
  int32_t nodes_replanned = 0, merge_sets_replanned = 0;
  int64_t updates_skipped = 0, updates_replanned = 0;
};

// Reads of a branch together with others.
struct BranchReads {
  int64_t kv_bytes_not_read = 0;  // bytes it would have read too, each shared read split evenly
  int32_t tokens = 0;
  int32_t sharers = 0;  // branches that a read was for, itself included, at most; 0: none was shared
};

// One layer's reads of KV by a plan, before a backend's own cuts: the counts of PlanStats that an engine asks for in every step,
// and which reads are really shared. Reads that could have been shared and were not count nothing.
struct PlanReads {
  int64_t kv_bytes_read = 0, kv_bytes_read_unshared = 0, kv_bytes_distinct = 0;  // as PlanStats
  int32_t grouped_queries = 0;            // that read some of their KV together with queries of another branch
  std::span<const BranchReads> branches;  // by branch slot; empty: nothing is shared
};

// Which captured launch serves a plan as it was uploaded last: where keys are equal, one serves both. Opaque: to compare, order and
// keep. Keys of different plans have nothing to do with each other.
enum class LaunchKey : uint64_t {};

// Exact bytes of every buffer a plan of this spec and capacity needs, before anything is allocated.
struct PlanSizes {
  size_t host_bytes = 0;       // planner's own memory
  size_t plan_bytes = 0;       // device copy of the plan (0 on the CPU)
  size_t workspace_bytes = 0;  // states and tickets; one workspace per launch in flight
  size_t alignment = 256;
  int32_t max_items = 0, max_members = 0, max_merge_sets = 0, max_contributions = 0, max_states = 0;
};

// Pointers of one call. q and out: [num_queries, num_qo_heads, head_dim], heads contiguous, rows row_stride elements apart.
struct RunArgs {
  const void* q = nullptr;
  int64_t q_row_stride = 0;
  void* out = nullptr;
  int64_t out_row_stride = 0;
  float* lse = nullptr;  // [num_queries, num_qo_heads] natural logarithm, or null. A row that sees nothing: lse = -inf, out = 0
};

class Context;

// The work list of one forest under one spec. Create allocates everything; Update, Upload and Run allocate nothing.
// One thread at a time; different plans are independent.
class AttentionPlan {
 public:
  // UNIMPLEMENTED, with the reason, for what the context's backend cannot do. INVALID_ARGUMENT for an impossible spec.
  static Result<std::unique_ptr<AttentionPlan>> Create(Context& context, const AttentionSpec& spec, const PlanCapacity& capacity,
                                                       const PlannerOptions& options = {});
  virtual ~AttentionPlan() = default;

  // Makes the plan fit the forest. Host only. Cheap (a version check) while only lengths grew by what was laid out ahead;
  // otherwise edits the changed nodes, their ancestors and members. INVALID_ARGUMENT names the node or branch that breaks a rule
  // of PrefixForestView; the plan then keeps its previous state. The spans of `forest` must stay valid until the next Update:
  // lengths and page rows are read through them.
  virtual Status Update(const PrefixForestView& forest) = 0;
  // Copies what changed (plan, lengths, page rows) to the device, outside any graph capture. CPU: nothing to do. On `stream` it
  // comes after launches of the image that it writes: of the last Upload, or with two device images of the one before the last.
  virtual Status Upload(Stream stream = nullptr) = 0;
  // Of the launches that Run makes after the last Upload. A captured graph of them serves any later step of the same key.
  virtual LaunchKey launch_key() const = 0;

  // One attention layer, all queries. Asynchronous on `stream` (CUDA) or done on return (CPU: OUT_OF_RANGE for a page not in kv).
  // INVALID_ARGUMENT for KV bound by another backend, or for a spec of other kv_dtype, num_kv_heads or head_dim.
  virtual Status Run(const BoundKv& kv, const RunArgs& args, Stream stream = nullptr) = 0;

  virtual PlanStats Stats() const = 0;
  // Of the last Update: O(branches), and O(items and members) where that replanned or a window moved. The branches stay where they
  // are until the Update after the next one, so that a step under way can still be asked about while the next one is planned.
  virtual PlanReads Reads() = 0;
  // The tree, each decision and its reason, bytes and FLOPs with and without sharing, predicted time.
  virtual std::string Explain() const = 0;
  // Forest, spec, options and plan as JSON, for `coppice inspect plan --replay`; of two launches, that of the second.
  virtual std::string Dump() const = 0;

 private:
  friend class InspectablePlan;  // the library's own plans: Create makes all there are
  AttentionPlan() = default;
};

// ---------------------------------------------------------------------------------------------------------------------- states

// Partial attention states, rows x heads: out [n, heads, head_dim] of `dtype`, normalised, and lse [n, heads], natural logarithm.
// The empty state is lse = -inf, out = 0.
struct StateView {
  void* out = nullptr;
  float* lse = nullptr;
};

// Rows of tokens to append: token t of k and v ([num_tokens, num_kv_heads, head_dim], rows row_stride elements apart, dtype of
// the pool) goes to page slot_mapping[t] / page_size, slot slot_mapping[t] % page_size; a negative entry is skipped.
struct AppendArgs {
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t row_stride = 0;
  std::span<const int64_t> slot_mapping;
};

struct PageCopy {
  int32_t from, to;
};

// page * page_size + slot.
struct SlotMove {
  int64_t from, to;
};

// A device with its backend. The caller owns threads and streams. Thread-compatible; outlives its plans and bound KV.
class Context {
 public:
  static Result<std::unique_ptr<Context>> CreateCpu(Executor* executor);  // executor outlives the context
  // UNAVAILABLE if not built, no such device, or an older one than sm_80.
  static Result<std::unique_ptr<Context>> CreateCuda(int device, CudaKernels kernels = CudaKernels::kAuto);
  virtual ~Context() = default;

  virtual DeviceKind device() const = 0;
  // For the user of a device on which the rates were not measured that plans go by unless PlannerOptions name others: a sentence.
  // Empty: they were.
  virtual std::string MachineNote() const { return ""; }
  virtual Result<PlanSizes> Sizes(const AttentionSpec& spec, const PlanCapacity& capacity) const = 0;
  virtual Result<std::unique_ptr<BoundKv>> BindKv(const AttentionSpec& spec, const KvLayerView& view) = 0;
  virtual Status AppendKv(const AttentionSpec& spec, const KvLayerView& kv, const AppendArgs& args, Stream stream = nullptr) = 0;
  // Copies whole pages within one layer, all kv heads, K and V (copy-on-write), in any order: no page is written twice, nor read
  // after it was written, so there are no more copies than pages.
  virtual Status CopyPages(const AttentionSpec& spec, const KvLayerView& kv, std::span<const PageCopy> copies,
                           Stream stream = nullptr) = 0;
  // Copies single tokens within one layer, all kv heads, K and V, one after the other: a slot may be written after it was read
  // (compaction of what was accepted of a draft tree).
  virtual Status MoveSlots(const AttentionSpec& spec, const KvLayerView& kv, std::span<const SlotMove> moves,
                           Stream stream = nullptr) = 0;
  // into = merge(into, from), row by row (Cascade Inference, "attention state"; exact, associative, commutative up to rounding).
  // mask, if not empty: [n], rows with 0 are left alone.
  virtual Status MergeStates(const StateView& into, std::span<const StateView> from, int64_t num_rows, int32_t num_heads,
                             int32_t head_dim, DType dtype, std::span<const uint8_t> mask, Stream stream = nullptr) = 0;

 private:
  friend class Backend;  // the library's own: CreateCpu and CreateCuda make all there are
  Context() = default;
};

}  // namespace coppice::attention
