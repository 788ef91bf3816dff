/* C ABI of coppice::attention, for engines in other languages. Thin: every call maps to one of attention.h, whose comments hold.
 * Layer: public API. Every struct begins with struct_size = sizeof(the struct the caller compiled with); fields are only ever
 * added at the end, and what an older caller does not have reads as zero. Calls return a coppice_status; the one-line message goes
 * to the caller's buffer. No C++ exception leaves a call. Spans are pointer and count, in host memory unless said otherwise.
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
  COPPICE_OUT_OF_RANGE = 3,
  COPPICE_FAILED_PRECONDITION = 4,
  COPPICE_RESOURCE_EXHAUSTED = 5,
  COPPICE_UNIMPLEMENTED = 6,
  COPPICE_UNAVAILABLE = 7,
  COPPICE_DATA_LOSS = 8,
  COPPICE_CANCELLED = 9,
  COPPICE_INTERNAL = 10
} coppice_status;

typedef enum coppice_dtype { COPPICE_F32 = 0, COPPICE_BF16 = 1, COPPICE_F16 = 2 } coppice_dtype;
typedef enum coppice_device { COPPICE_CPU = 0, COPPICE_CUDA = 1 } coppice_device;
/* CudaKernels of attention.h */
typedef enum coppice_cuda_kernels {
  COPPICE_CUDA_KERNELS_AUTO = 0,
  COPPICE_CUDA_KERNELS_HOPPER = 1,
  COPPICE_CUDA_KERNELS_MMA_SYNC = 2
} coppice_cuda_kernels;
typedef enum coppice_share_policy {
  COPPICE_SHARE_TREE = 0,
  COPPICE_SHARE_ONE_LEVEL = 1,
  COPPICE_SHARE_STORE = 2
} coppice_share_policy;

#define COPPICE_KV_LIVE INT32_MAX
#define COPPICE_NO_PARENT (-1)
#define COPPICE_FREE_SLOT (-2)

/* Receives the message of a failed call: at most capacity bytes, always NUL-terminated. Pass NULL where it is not wanted. */
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
  int32_t num_threads;  /* CPU: 0 means one per core; the context owns these threads */
  int32_t cuda_kernels; /* coppice_cuda_kernels */
} coppice_context_options;

typedef struct coppice_attention_spec {
  size_t struct_size;
  int32_t num_qo_heads, num_kv_heads, head_dim;
  int32_t q_dtype, kv_dtype; /* coppice_dtype */
  float sm_scale, soft_cap;
  int32_t window;
  int32_t deterministic; /* 0 or 1 */
} coppice_attention_spec;

typedef struct coppice_plan_options {
  size_t struct_size;
  int32_t max_branches, max_queries, max_nodes, max_page_slots, page_size;
  int32_t share_policy;     /* coppice_share_policy */
  int32_t force_sharing;    /* 0 or 1 */
  int32_t lookahead_tokens; /* 0: the default */
} coppice_plan_options;

typedef struct coppice_plan_sizes {
  size_t struct_size;
  size_t host_bytes, plan_bytes, workspace_bytes, alignment;
} coppice_plan_sizes;

/* PrefixForestView. Pointers must stay valid until the next coppice_plan_update. */
typedef struct coppice_prefix_forest {
  size_t struct_size;
  int32_t page_size;
  uint64_t version;
  int32_t num_nodes;
  const int32_t *node_parent, *node_begin, *node_end;
  int32_t num_branches;
  const int32_t *branch_node, *branch_query_begin, *branch_query_count, *branch_kv_len, *branch_page_begin, *branch_page_capacity;
  int32_t num_page_slots;
  const int32_t* page_indices;
  int32_t num_query_tree_masks; /* 0: causal */
  const uint64_t* query_tree_mask;
} coppice_prefix_forest;

typedef struct coppice_kv_layer {
  size_t struct_size;
  void *k, *v;                                   /* device memory of the context */
  int64_t page_stride, head_stride, slot_stride; /* elements */
  int32_t num_pages, page_size;
  int32_t dtype;          /* coppice_dtype */
  float k_scale, v_scale; /* 0 reads as 1 */
} coppice_kv_layer;

typedef struct coppice_run_args {
  size_t struct_size;
  const void* q;
  int64_t q_row_stride;
  void* out;
  int64_t out_row_stride;
  float* lse; /* natural logarithm, or NULL */
} coppice_run_args;

typedef struct coppice_append_args {
  size_t struct_size;
  const void *k, *v;
  int64_t row_stride;
  int64_t num_tokens;
  const int64_t* slot_mapping;
} coppice_append_args;

typedef struct coppice_plan_stats {
  size_t struct_size;
  int64_t kv_bytes_read, kv_bytes_read_unshared, flops, state_bytes;
  int32_t num_items, num_merge_sets, shared_nodes, absorbed_nodes;
  double predicted_ns;
} coppice_plan_stats;

coppice_status coppice_context_create(const coppice_context_options* options, coppice_context** context, coppice_message* message);
void coppice_context_destroy(coppice_context* context); /* after its plans and bound KV; NULL is allowed */

coppice_status coppice_plan_get_sizes(coppice_context* context, const coppice_attention_spec* spec,
                                      const coppice_plan_options* options, coppice_plan_sizes* sizes, coppice_message* message);
coppice_status coppice_plan_create(coppice_context* context, const coppice_attention_spec* spec,
                                   const coppice_plan_options* options, coppice_plan** plan, coppice_message* message);
void coppice_plan_destroy(coppice_plan* plan);
coppice_status coppice_plan_update(coppice_plan* plan, const coppice_prefix_forest* forest, coppice_message* message);
coppice_status coppice_plan_upload(coppice_plan* plan, void* stream, coppice_message* message);
coppice_status coppice_plan_run(coppice_plan* plan, const coppice_bound_kv* kv, const coppice_run_args* args, void* stream,
                                coppice_message* message);
coppice_status coppice_plan_get_stats(const coppice_plan* plan, coppice_plan_stats* stats, coppice_message* message);
/* Writes the explanation (NUL-terminated, cut to capacity) and returns the bytes it needs, the NUL included. */
size_t coppice_plan_explain(const coppice_plan* plan, char* text, size_t capacity);

coppice_status coppice_kv_bind(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                               coppice_bound_kv** bound, coppice_message* message);
void coppice_kv_destroy(coppice_bound_kv* bound);
coppice_status coppice_kv_append(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                 const coppice_append_args* args, void* stream, coppice_message* message);
/* copies: from, to, from, to, ... */
coppice_status coppice_kv_copy_pages(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                     const int32_t* copies, int64_t num_copies, void* stream, coppice_message* message);
/* into = merge(into, from_0, from_1, ...); out [num_rows, num_heads, head_dim], lse [num_rows, num_heads]; mask NULL or [num_rows].
 */
coppice_status coppice_merge_states(coppice_context* context, void* into_out, float* into_lse, void* const* from_out,
                                    float* const* from_lse, int32_t num_from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                                    int32_t dtype, const uint8_t* mask, void* stream, coppice_message* message);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* COPPICE_ATTENTION_C_H_ */
