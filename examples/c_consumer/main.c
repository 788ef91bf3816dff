/* A two-level forest through the C ABI: three requests share a 32-token prefix, each adds tokens of its own, and one call attends
 * for all of them, reading the prefix once. Checked against a plain softmax loop. Exit status 1 on an error or a difference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coppice/attention/attention_c.h"

enum { kHeads = 4, kKvHeads = 2, kHeadDim = 64, kPageSize = 16, kRequests = 3, kPages = 8, kRowPages = 4 };

static char text[512];
static coppice_message message = {sizeof(message), text, sizeof(text)};

static void check(coppice_status status) {
  if (status == COPPICE_OK) return;
  fprintf(stderr, "c_consumer: %s: %s\n", coppice_status_name(status), text);
  exit(1);
}

int main(void) {
  const coppice_attention_spec spec = {
      .struct_size = sizeof(spec), .num_qo_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kHeadDim}; /* f32 */

  /* Node 0 is the prefix [0, 32); nodes 1 to 3 are the requests' own tokens. Each page row begins with the shared pages 0, 1. */
  const int32_t parent[] = {COPPICE_NO_PARENT, 0, 0, 0}, begin[] = {0, 32, 32, 32};
  const int32_t end[] = {32, COPPICE_KV_LIVE, COPPICE_KV_LIVE, COPPICE_KV_LIVE};
  const int32_t leaf[] = {1, 2, 3}, query_begin[] = {0, 1, 2}, query_count[] = {1, 1, 1}, kv_len[] = {33, 47, 64};
  const int32_t row_begin[] = {0, 4, 8}, row_capacity[] = {4, 4, 4}, pages[] = {0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 6, 7};
  const coppice_prefix_forest forest = {.struct_size = sizeof(forest),
                                        .page_size = kPageSize,
                                        .version = 1,
                                        .num_nodes = 4,
                                        .node_parent = parent,
                                        .node_begin = begin,
                                        .node_end = end,
                                        .num_branches = kRequests,
                                        .branch_node = leaf,
                                        .branch_query_begin = query_begin,
                                        .branch_query_count = query_count,
                                        .branch_kv_len = kv_len,
                                        .branch_page_begin = row_begin,
                                        .branch_page_capacity = row_capacity,
                                        .num_page_slots = kRequests * kRowPages,
                                        .page_indices = pages};
  /* Sharing a prefix this short saves no time; a real engine leaves that to the cost model. */
  const coppice_plan_options plan_options = {.struct_size = sizeof(plan_options),
                                             .max_branches = kRequests,
                                             .max_queries = kRequests,
                                             .max_page_slots = kRequests * kRowPages,
                                             .page_size = kPageSize,
                                             .force_sharing = 1};
  const coppice_kv_pool pool = {
      .struct_size = sizeof(pool), .num_pages = kPages, .page_size = kPageSize, .num_kv_heads = kKvHeads, .head_dim = kHeadDim};
  size_t bytes = 0;
  check(coppice_kv_pool_get_bytes(&pool, &bytes, &message));
  float* const memory = aligned_alloc(64, bytes); /* a multiple of 64: pages of 16 tokens of 64 floats */
  if (memory == NULL) return 1;
  for (size_t i = 0; i < bytes / sizeof(float); ++i) memory[i] = sinf(0.7f * (float)(i % 9973));
  coppice_kv_layer layer = {.struct_size = sizeof(layer)};
  check(coppice_kv_pool_get_layer(&pool, memory, &layer, &message));
  float q[kRequests * kHeads * kHeadDim], out[kRequests * kHeads * kHeadDim];
  for (size_t i = 0; i < sizeof(q) / sizeof(float); ++i) q[i] = cosf(0.3f * (float)i);
  const coppice_run_args run = {
      .struct_size = sizeof(run), .q = q, .q_row_stride = kHeads * kHeadDim, .out = out, .out_row_stride = kHeads * kHeadDim};

  const coppice_context_options options = {.struct_size = sizeof(options), .device = COPPICE_CPU, .num_threads = 2};
  coppice_context* context = NULL;
  coppice_plan* plan = NULL;
  coppice_bound_kv* kv = NULL;
  check(coppice_context_create(&options, &context, &message));
  check(coppice_plan_create(context, &spec, &plan_options, &plan, &message));
  check(coppice_kv_bind(context, &spec, &layer, &kv, &message));
  check(coppice_plan_update(plan, &forest, &message));
  check(coppice_plan_upload(plan, NULL, &message)); /* what a GPU needs; a CPU has it */
  check(coppice_plan_run(plan, kv, &run, NULL, &message));

  double worst = 0;
  for (int row = 0; row < kRequests * kHeads; ++row) { /* one query a request, four heads each */
    const int request = row / kHeads, kv_head = row % kHeads / (kHeads / kKvHeads);
    double expected[kHeadDim] = {0}, sum = 0;
    for (int t = 0; t < kv_len[request]; ++t) {
      const int64_t at = pages[request * kRowPages + t / kPageSize] * layer.page_stride + kv_head * layer.head_stride +
                         t % kPageSize * layer.slot_stride;
      double score = 0;
      for (int d = 0; d < kHeadDim; ++d) score += (double)q[row * kHeadDim + d] * ((const float*)layer.k)[at + d];
      const double weight = exp(score / 8); /* 1 / sqrt(head_dim) */
      sum += weight;
      for (int d = 0; d < kHeadDim; ++d) expected[d] += weight * ((const float*)layer.v)[at + d];
    }
    for (int d = 0; d < kHeadDim; ++d) {
      const double difference = fabs(out[row * kHeadDim + d] - expected[d] / sum);
      if (!(difference <= worst)) worst = isnan(difference) ? INFINITY : difference;
    }
  }
  printf("largest difference from the plain loop: %.2g\n", worst);
  coppice_plan_destroy(plan);
  coppice_kv_destroy(kv);
  coppice_context_destroy(context);
  free(memory);
  return worst < 1e-4 ? 0 : 1;
}
