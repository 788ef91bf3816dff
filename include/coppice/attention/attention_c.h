/* C ABI of coppice::attention: prefix-tree attention for engines in other languages. Every call maps to one of attention.h, so all
 * that is said here holds there. Layer: public API.
 *
 *   context -> plan (once per spec) and bound KV (once per layer)
 *   each step: append or copy KV, edit the forest, coppice_plan_update, coppice_plan_upload, then coppice_plan_run per layer
 *
 * Structs. Each begins with struct_size = sizeof(the struct the caller compiled with). Fields are only ever added at the end, and
 * what an older caller does not have reads as zero. All else zero is a usable default where a comment gives one.
 *
 * Errors. Calls return a coppice_status; the one-line message (what, value found, expected, what to do) goes to the caller's
 * buffer. A failed call leaves everything as it was; results are written on COPPICE_OK only. All pointers, counts, strides and
 * enums are checked where they can be: what a pointer leads to cannot. No C++ exception leaves a call. Codes of any call:
 *   COPPICE_INVALID_ARGUMENT    a value that can never work: NULL, a number out of its range, a struct without struct_size
 *   COPPICE_RESOURCE_EXHAUSTED  memory, threads, or a capacity of the plan: try again with less, or a larger plan
 *   COPPICE_UNIMPLEMENTED       legal, but not on this backend: the message says what it does do
 *   COPPICE_INTERNAL            a bug of Coppice or an error of the device
 * Others are named at their calls.
 *
 * Threads. Calls on different contexts may run at the same moment. Of one context, its plans and its bound KV, one call runs at a
 * time. coppice_status_name, coppice_abi_version and the coppice_kv_pool calls may run at any moment.
 *
 * Memory. Spans are pointer and count, in host memory unless said otherwise. KV, q, out, lse and states are memory of the context's
 * device, owned by the caller. Create and bind calls return a handle that the caller destroys: plans and bound KV before their
 * context. `stream` is a cudaStream_t and may be NULL (the default stream); a CPU context ignores it, and its calls return when
 * the work is done.
 *
 * Units. Strides are in elements, lengths in tokens, sizes in bytes unless a name says otherwise.
 */
#ifndef COPPICE_ATTENTION_C_H_
#define COPPICE_ATTENTION_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COPPICE_ATTENTION_ABI_VERSION 1

/* Version of the library at run time; structs and calls of version v stay valid in all later versions with the same number. */
int32_t coppice_abi_version(void);

typedef enum coppice_status {
  COPPICE_OK = 0,
  COPPICE_INVALID_ARGUMENT = 1,
  COPPICE_NOT_FOUND = 2,
  COPPICE_OUT_OF_RANGE = 3,        /* a page or slot that the layer does not have */
  COPPICE_FAILED_PRECONDITION = 4, /* legal, but not in this state: a run before the first update */
  COPPICE_RESOURCE_EXHAUSTED = 5,
  COPPICE_UNIMPLEMENTED = 6,
  COPPICE_UNAVAILABLE = 7, /* the backend is not in this build, or its device is absent */
  COPPICE_DATA_LOSS = 8,
  COPPICE_CANCELLED = 9,
  COPPICE_INTERNAL = 10,
  COPPICE_DEADLINE_EXCEEDED = 11
} coppice_status;

/* "OK", "INVALID_ARGUMENT", ...; "UNKNOWN" for any other number. Never NULL; valid for ever. */
const char* coppice_status_name(coppice_status status);

typedef enum coppice_dtype { COPPICE_F32 = 0, COPPICE_BF16 = 1, COPPICE_F16 = 2 } coppice_dtype;
typedef enum coppice_device { COPPICE_CPU = 0, COPPICE_CUDA = 1 } coppice_device;
/* Kernels of a CUDA context. AUTO: for each spec the Hopper ones where device, head_dim, page size and mode allow, else those of
 * mma.sync, which run on every device since sm_80. The others force one kind; what it cannot do is refused. */
typedef enum coppice_cuda_kernels {
  COPPICE_CUDA_KERNELS_AUTO = 0,
  COPPICE_CUDA_KERNELS_HOPPER = 1,
  COPPICE_CUDA_KERNELS_MMA_SYNC = 2
} coppice_cuda_kernels;
/* Which sharing a plan may use: wherever the tree allows and it saves time; only what all branches with queries have in common;
 * none (each branch reads its own path). Results are equal within rounding. */
typedef enum coppice_share_policy {
  COPPICE_SHARE_TREE = 0,
  COPPICE_SHARE_ONE_LEVEL = 1,
  COPPICE_SHARE_STORE = 2
} coppice_share_policy;

#define COPPICE_KV_LIVE INT32_MAX /* node_end of a leaf of one branch: the branch's length */
#define COPPICE_NO_PARENT (-1)    /* node_parent of a root */
#define COPPICE_FREE_SLOT (-2)    /* node_parent of an unused node slot; branch_node of an unused branch slot */

/* Receives the message of a failed call ("" on success): at most capacity bytes, always NUL-terminated. Pass NULL where it is not
 * wanted. A struct_size that leaves out a field means no message. */
typedef struct coppice_message {
  size_t struct_size;
  char* text;
  size_t capacity;
} coppice_message;

typedef struct coppice_context coppice_context;
typedef struct coppice_plan coppice_plan;
typedef struct coppice_bound_kv coppice_bound_kv;

typedef struct coppice_context_options {
  size_t struct_size;
  int32_t device;       /* coppice_device */
  int32_t device_index; /* CUDA ordinal */
  int32_t num_threads;  /* CPU: 0 means one per core, at most 4096; the context owns these threads */
  int32_t cuda_kernels; /* coppice_cuda_kernels */
} coppice_context_options;

/* One attention layer, of a tensor-parallel rank: out = softmax(sm_scale * q . k) v. */
typedef struct coppice_attention_spec {
  size_t struct_size;
  int32_t num_qo_heads, num_kv_heads; /* 1..65535; num_qo_heads is a multiple of num_kv_heads */
  int32_t head_dim;                   /* a multiple of 8 from 8 to 256 */
  int32_t q_dtype, kv_dtype;          /* coppice_dtype; q_dtype is that of q and out */
  float sm_scale;                     /* finite; 0: 1 / sqrt(head_dim) */
  float soft_cap;                     /* c > 0: scores become c * tanh(score / c); 0: off */
  int32_t window;                     /* w > 0: a query with kv index i sees kv indices in (i - w, i]; 0: off */
  int32_t deterministic;              /* 0 or 1: the bits of a request depend on nothing but the request */
} coppice_attention_spec;

/* Capacities are fixed at creation; a forest that exceeds one is refused with COPPICE_RESOURCE_EXHAUSTED. */
typedef struct coppice_plan_options {
  size_t struct_size;
  int32_t max_branches;     /* 1..2^28 */
  int32_t max_queries;      /* rows of q of one step; times num_qo_heads / num_kv_heads at most 2^28 */
  int32_t max_nodes;        /* at most 2^29; 0: 2 * max_branches */
  int32_t max_page_slots;   /* size of page_indices, at least 1 */
  int32_t page_size;        /* tokens, 1..256 */
  int32_t share_policy;     /* coppice_share_policy */
  int32_t force_sharing;    /* 0 or 1: share wherever the policy allows, whether it saves time or not */
  int32_t lookahead_tokens; /* growth of each branch laid out ahead, at most 2^20; 0: 64 */
  /* Copies of the plan on a GPU, 1 or 2; 0: 1. Of two, an upload writes the one that the upload before it did not, while runs of
   * that one may be under way, and short steps that share nothing have a kernel of their own. */
  int32_t device_images;
  const char* machine_model; /* file of `coppice bench calibrate`; NULL: the constants shipped for the device */
} coppice_plan_options;

/* Bytes that a plan allocates: the planner's on the host, the plan's copy on the device (0 on a CPU), states and tickets. */
typedef struct coppice_plan_sizes {
  size_t struct_size;
  size_t host_bytes, plan_bytes, workspace_bytes, alignment;
} coppice_plan_sizes;

/* Which requests share which KV: a forest owned and edited in place by the caller. Ids are stable slots; gaps are legal.
 *
 * A kv index is the order along a branch's path. Node n covers kv indices [node_begin[n], node_end[n]) of every branch below it; a
 * child begins where its parent ends; a root begins at 0; a leaf of one branch ends at COPPICE_KV_LIVE. Branch b's path ends at
 * node branch_node[b], which may be an inner node where the branch ends with it.
 *
 * The c = branch_query_count[b] queries of branch b are rows branch_query_begin[b] .. + c of q; no two branches have a row in
 * common. Query i has kv index kv_len - c + i and sees kv indices up to its own (and within the window). c = 0: the branch takes no
 * part in this step.
 *
 * Branch b's page row is page_indices[branch_page_begin[b] .. + branch_page_capacity[b]): entry j is the page that holds kv indices
 * [j * page_size, (j + 1) * page_size), shared ones included. Slots past kv_len may hold anything.
 *
 * All arrays must stay valid until the next coppice_plan_update that succeeds. page_indices and query_tree_mask are read by
 * coppice_plan_run, too, and must not change before it; the others may, on a GPU after coppice_plan_upload. */
typedef struct coppice_prefix_forest {
  size_t struct_size;
  int32_t page_size; /* as in the plan's options */
  /* Grows whenever anything but branch_kv_len, branch_query_begin, query_tree_mask and newly used entries of page rows changes.
   * Equal versions promise unchanged nodes and unchanged entries of page rows; all else is checked in every update. */
  uint64_t version;
  int32_t num_nodes;
  const int32_t *node_parent, *node_begin, *node_end; /* [num_nodes] */
  int32_t num_branches;
  const int32_t *branch_node, *branch_query_begin, *branch_query_count; /* [num_branches] */
  const int32_t* branch_kv_len;                            /* [num_branches] this step's tokens included; at most 2^30 */
  const int32_t *branch_page_begin, *branch_page_capacity; /* [num_branches] */
  int32_t num_page_slots;
  const int32_t* page_indices; /* [num_page_slots] */
  /* Draft trees: bit j of entry q says that row q sees query j of its own branch (64 queries a branch at most); kv indices before
   * the branch's queries are always seen. */
  int32_t num_query_tree_masks;    /* 0: causal; else at least as many as rows of q, at most max_queries */
  const uint64_t* query_tree_mask; /* [num_query_tree_masks] */
  /* Optional: all branches whose page rows changed after version changed_since, newly used entries apart. An upload that has seen
   * that version copies these rows alone; changed_since 0: it compares them. */
  uint64_t changed_since;
  int32_t num_changed_branches;
  const int32_t* changed_branches; /* [num_changed_branches] */
  /* Optional too: all node slots whose parent, begin or end changed after version changed_since, that came or that left, in any
   * order; others may be among them. An update after one of that version or a later one, with as many node slots, looks at these
   * alone and takes all other nodes to be as they were; with NULL, or where changed_since is 0, it compares all. */
  int32_t num_changed_nodes;
  const int32_t* changed_nodes; /* [num_changed_nodes]; not NULL where no node changed */
} coppice_prefix_forest;

/* One layer's KV, paged. Element d of K of kv head h in slot s of page p is k[p * page_stride + h * head_stride + s * slot_stride +
 * d]; v likewise. A stride that is stepped over has a magnitude of at least head_dim; CUDA wants multiples of 8, positive ones for
 * the Hopper kernels, and k and v aligned to 16 bytes (CPU: to an element). */
typedef struct coppice_kv_layer {
  size_t struct_size;
  void *k, *v;                                   /* device memory of the context */
  int64_t page_stride, head_stride, slot_stride; /* elements */
  int32_t num_pages, page_size;                  /* page_size 1..256 */
  int32_t dtype;                                 /* coppice_dtype; the spec's kv_dtype */
  float k_scale, v_scale;                        /* finite factors of K and V; 0 reads as 1 */
} coppice_kv_layer;

/* The native layout, which all kernels like best: [page][kv_head][2][page_size][head_dim], K and V of a page and head together. */
typedef struct coppice_kv_pool {
  size_t struct_size;
  int32_t num_pages;              /* at least 0 */
  int32_t page_size;              /* 1..256 */
  int32_t num_kv_heads, head_dim; /* as in the spec */
  int32_t dtype;                  /* coppice_dtype */
} coppice_kv_pool;

typedef struct coppice_run_args {
  size_t struct_size;
  const void* q;          /* [rows, num_qo_heads, head_dim] of q_dtype, heads contiguous; CUDA: aligned to 16 bytes */
  int64_t q_row_stride;   /* at least num_qo_heads * head_dim; CUDA: a multiple of 8 */
  void* out;              /* as q; may not overlap it */
  int64_t out_row_stride; /* as q_row_stride */
  float* lse;             /* [rows, num_qo_heads] natural logarithm, or NULL. A row that sees nothing: lse = -inf, out = 0 */
} coppice_run_args;

/* Token t of k and v goes to page slot_mapping[t] / page_size, slot slot_mapping[t] % page_size; a negative entry is skipped. */
typedef struct coppice_append_args {
  size_t struct_size;
  const void *k, *v;           /* [num_tokens, num_kv_heads, head_dim] of the layer's dtype, device memory */
  int64_t row_stride;          /* at least num_kv_heads * head_dim; CUDA: a multiple of 8 */
  int64_t num_tokens;          /* 0 does nothing */
  const int64_t* slot_mapping; /* [num_tokens] host memory; on CUDA device memory too, whose values are not checked */
} coppice_append_args;

/* Counted from the plan and the live lengths, per layer. On a GPU items, state bytes and predicted time are those of the plan as
 * upload cut it, before that of its uncut ranges. */
typedef struct coppice_plan_stats {
  size_t struct_size;
  int64_t kv_bytes_read;          /* sum over work items of the KV in their ranges */
  int64_t kv_bytes_read_unshared; /* the same of a plan under COPPICE_SHARE_STORE */
  int64_t flops;                  /* 4 x head_dim per visible (row, token) pair */
  int64_t state_bytes;            /* partial states written and read */
  int32_t num_items, num_merge_sets, shared_nodes, unshared_nodes;
  double predicted_ns;
} coppice_plan_stats;

/* COPPICE_UNAVAILABLE if the backend is not in this build or there is no such device (CUDA: sm_80 or newer). */
coppice_status coppice_context_create(const coppice_context_options* options, coppice_context** context, coppice_message* message);
void coppice_context_destroy(coppice_context* context); /* after its plans and bound KV; NULL is allowed */

/* Memory that coppice_plan_create would allocate. */
coppice_status coppice_plan_get_sizes(coppice_context* context, const coppice_attention_spec* spec,
                                      const coppice_plan_options* options, coppice_plan_sizes* sizes, coppice_message* message);
/* One plan serves all layers of a spec. Allocates everything: update, upload and run allocate nothing. */
coppice_status coppice_plan_create(coppice_context* context, const coppice_attention_spec* spec,
                                   const coppice_plan_options* options, coppice_plan** plan, coppice_message* message);
void coppice_plan_destroy(coppice_plan* plan); /* NULL is allowed */
/* Makes the plan fit the forest; host only. O(num_branches) while only lengths grow by what was laid out ahead, else O(nodes +
 * branches + queries). A forest that breaks a rule is refused with the node or branch; the plan then keeps its previous state. */
coppice_status coppice_plan_update(coppice_plan* plan, const coppice_prefix_forest* forest, coppice_message* message);
/* Copies what changed to the device, in stream order, outside any graph capture. A CPU context needs none. FAILED_PRECONDITION
 * before the first update. */
coppice_status coppice_plan_upload(coppice_plan* plan, void* stream, coppice_message* message);
/* Which captured run serves the plan as it was uploaded last: where keys are equal, one serves both. Opaque. */
coppice_status coppice_plan_launch_key(const coppice_plan* plan, uint64_t* key, coppice_message* message);
/* One attention layer, all queries; in stream order, and one run of a plan at a time. INVALID_ARGUMENT for KV that was bound for a
 * spec of other kv_dtype, num_kv_heads or head_dim, or with another page_size; FAILED_PRECONDITION before update, and on CUDA
 * upload; OUT_OF_RANGE (CPU) for a page that the layer does not have. */
coppice_status coppice_plan_run(coppice_plan* plan, const coppice_bound_kv* kv, const coppice_run_args* args, void* stream,
                                coppice_message* message);
coppice_status coppice_plan_get_stats(const coppice_plan* plan, coppice_plan_stats* stats, coppice_message* message);
/* Each writes a text (NUL-terminated, cut to capacity) and returns the bytes it needs, the NUL included: the plan explained for
 * people; forest, spec, options and plan as JSON for `coppice inspect plan --replay`. text may be NULL if capacity is 0.
 * Where memory runs out, the text is empty; every other call answers RESOURCE_EXHAUSTED. */
size_t coppice_plan_explain(const coppice_plan* plan, char* text, size_t capacity);
size_t coppice_plan_dump(const coppice_plan* plan, char* text, size_t capacity);

/* Bytes of one layer's pool. */
coppice_status coppice_kv_pool_get_bytes(const coppice_kv_pool* pool, size_t* bytes, coppice_message* message);
/* The layer whose pool begins at `base` (that many bytes, aligned to 16). Set layer->struct_size first. */
coppice_status coppice_kv_pool_get_layer(const coppice_kv_pool* pool, void* base, coppice_kv_layer* layer,
                                         coppice_message* message);

/* Prepares a layer for coppice_plan_run. Valid as long as the memory of the layer. */
coppice_status coppice_kv_bind(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                               coppice_bound_kv** bound, coppice_message* message);
void coppice_kv_destroy(coppice_bound_kv* bound); /* NULL is allowed */
/* OUT_OF_RANGE for a slot that the layer does not have. */
coppice_status coppice_kv_append(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                 const coppice_append_args* args, void* stream, coppice_message* message);
/* Copies whole pages within the layer, all kv heads, K and V, in any order: no page is written twice, nor read after it was
 * written. copies: num_copies pairs from, to, from, to, ...; at most num_pages of them. OUT_OF_RANGE for other pages. */
coppice_status coppice_kv_copy_pages(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                     const int32_t* copies, int64_t num_copies, void* stream, coppice_message* message);
/* Copies single tokens within the layer, all kv heads, K and V, one after the other: a slot may be written after it was read
 * (compaction of what was accepted of a draft tree). moves: num_moves pairs from, to, from, to, ... of page * page_size + slot; at
 * most as many as the layer has slots. OUT_OF_RANGE for other slots. */
coppice_status coppice_kv_move_slots(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                     const int64_t* moves, int64_t num_moves, void* stream, coppice_message* message);
/* Folds attention states, row by row: into = merge(into, from_0, from_1, ...). out [num_rows, num_heads, head_dim] of dtype,
 * normalised; lse [num_rows, num_heads] fp32, natural logarithm, -inf for the empty state; all contiguous device memory, from_out
 * and from_lse host arrays [num_from] of pointers to it. mask: host memory, NULL or [num_rows], rows with 0 are left alone.
 * head_dim 1..256. */
coppice_status coppice_merge_states(coppice_context* context, void* into_out, float* into_lse, void* const* from_out,
                                    float* const* from_lse, int32_t num_from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                                    int32_t dtype, const uint8_t* mask, void* stream, coppice_message* message);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* COPPICE_ATTENTION_C_H_ */
