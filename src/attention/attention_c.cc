// The C ABI over attention.h: copies versioned structs, forwards, and turns every failure into a code and a message.
// Layer: attention.
#include "coppice/attention/attention_c.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attention/argument_checks.h"
#include "attention/forest.h"
#include "coppice/attention/attention.h"
#include "core/check.h"
#include "core/thread_pool.h"

using namespace coppice;             // NOLINT(google-build-using-namespace): this file is the border between the two
using namespace coppice::attention;  // NOLINT(google-build-using-namespace)

struct coppice_context {
  std::unique_ptr<ThreadPool> pool;  // CPU contexts only
  std::unique_ptr<Context> context;
};
struct coppice_plan {
  std::unique_ptr<AttentionPlan> plan;
};
struct coppice_bound_kv {
  std::unique_ptr<BoundKv> bound;
};

namespace {

static_assert(COPPICE_INVALID_ARGUMENT == static_cast<int>(StatusCode::kInvalidArgument) &&
                  COPPICE_DEADLINE_EXCEEDED == static_cast<int>(StatusCode::kDeadlineExceeded),
              "the C codes are StatusCode's");
static_assert(COPPICE_F32 == static_cast<int>(DType::kF32) && COPPICE_F16 == static_cast<int>(DType::kF16));
static_assert(COPPICE_CUDA_KERNELS_MMA_SYNC == static_cast<int>(CudaKernels::kMmaSync));
static_assert(COPPICE_KV_LIVE == kLive && COPPICE_NO_PARENT == kNoParent && COPPICE_FREE_SLOT == kFreeSlot);

void WriteText(std::string_view text, char* out, size_t capacity) {
  if (out == nullptr || capacity == 0) return;
  const size_t count = std::min(text.size(), capacity - 1);
  std::memcpy(out, text.data(), count);
  out[count] = '\0';
}

// Copies the fields that the caller's version of the struct has; the others are zero.
template <class T>
T KnownFields(const T& in) {
  static_assert(std::is_trivially_copyable_v<T>);
  T out{};
  std::memcpy(&out, &in, std::min(in.struct_size, sizeof(T)));
  return out;
}

// Takes no memory.
coppice_status Report(StatusCode code, std::string_view text, coppice_message* message) {
  if (message != nullptr) {
    const coppice_message m = KnownFields(*message);
    WriteText(text, m.text, m.capacity);
  }
  return static_cast<coppice_status>(code);
}

// Runs `body` (returning Status); no exception passes.
template <class Body>
coppice_status Guard(coppice_message* message, Body body) {
  try {
    const Status status = body();
    return Report(status.code(), status.message(), message);
  } catch (const std::bad_alloc&) {
    return Report(StatusCode::kResourceExhausted, "out of host memory", message);
  } catch (const std::length_error&) {
    return Report(StatusCode::kResourceExhausted, "out of host memory", message);
  } catch (const std::exception& e) {
    return Report(StatusCode::kInternal, e.what(), message);
  } catch (...) {
    return Report(StatusCode::kInternal, "unexpected exception", message);
  }
}

// A caller's struct as this library knows it: fields that the caller's version lacks are zero.
template <class T>
Result<T> Read(const T* in, const char* name) {
  if (in == nullptr) return InvalidArgument(std::string(name) + " is NULL");
  if (in->struct_size < sizeof(size_t)) {
    return InvalidArgument(std::string(name) + ".struct_size is " + std::to_string(in->struct_size) + "; set it to sizeof(" + name +
                           ")");
  }
  return KnownFields(*in);
}

// Copies as many fields of `value` as the caller's struct has; keeps its struct_size.
template <class T>
Status Write(T value, T* out, const char* name) {
  if (out == nullptr || out->struct_size < sizeof(size_t))
    return InvalidArgument(std::string(name) + " is NULL or has no struct_size");
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min(out->struct_size, sizeof(T)));
  return OkStatus();
}

template <class Enum>
Result<Enum> ReadEnum(int32_t value, int32_t last, const char* name) {
  if (value < 0 || value > last) {
    return InvalidArgument(std::string(name) + " is " + std::to_string(value) + "; expected 0.." + std::to_string(last));
  }
  return static_cast<Enum>(value);
}

Result<bool> ReadFlag(int32_t value, const char* name) { return ReadEnum<bool>(value, 1, name); }

Result<DType> ReadDType(int32_t value, const char* name) { return ReadEnum<DType>(value, COPPICE_F16, name); }

Result<AttentionSpec> ReadSpec(const coppice_attention_spec* in) {
  COPPICE_ASSIGN_OR_RETURN(const coppice_attention_spec c, Read(in, "coppice_attention_spec"));
  COPPICE_ASSIGN_OR_RETURN(const DType q_dtype, ReadDType(c.q_dtype, "q_dtype"));
  COPPICE_ASSIGN_OR_RETURN(const DType kv_dtype, ReadDType(c.kv_dtype, "kv_dtype"));
  COPPICE_ASSIGN_OR_RETURN(const bool deterministic, ReadFlag(c.deterministic, "deterministic"));
  return AttentionSpec{.num_qo_heads = c.num_qo_heads,
                       .num_kv_heads = c.num_kv_heads,
                       .head_dim = c.head_dim,
                       .q_dtype = q_dtype,
                       .kv_dtype = kv_dtype,
                       .sm_scale = c.sm_scale,
                       .soft_cap = c.soft_cap,
                       .window = c.window,
                       .deterministic = deterministic};
}

struct CapacityAndOptions {
  PlanCapacity capacity;
  PlannerOptions options;
};

Result<CapacityAndOptions> ReadOptions(const coppice_plan_options* in) {
  COPPICE_ASSIGN_OR_RETURN(const coppice_plan_options c, Read(in, "coppice_plan_options"));
  COPPICE_ASSIGN_OR_RETURN(const SharePolicy policy, ReadEnum<SharePolicy>(c.share_policy, COPPICE_SHARE_STORE, "share_policy"));
  COPPICE_ASSIGN_OR_RETURN(const bool force_sharing, ReadFlag(c.force_sharing, "force_sharing"));
  CapacityAndOptions out;
  out.capacity = {.max_branches = c.max_branches,
                  .max_queries = c.max_queries,
                  .max_nodes = c.max_nodes,
                  .max_page_slots = c.max_page_slots,
                  .page_size = c.page_size,
                  .device_images = c.device_images == 0 ? 1 : c.device_images};
  out.options.policy = policy;
  out.options.force_sharing = force_sharing;
  if (c.lookahead_tokens != 0) out.options.lookahead_tokens = c.lookahead_tokens;
  if (c.machine_model != nullptr) out.options.machine_model_path = c.machine_model;
  return out;
}

Result<KvLayerView> ReadLayer(const coppice_kv_layer* in) {
  COPPICE_ASSIGN_OR_RETURN(const coppice_kv_layer c, Read(in, "coppice_kv_layer"));
  COPPICE_ASSIGN_OR_RETURN(const DType dtype, ReadDType(c.dtype, "dtype"));
  return KvLayerView{.k = c.k,
                     .v = c.v,
                     .page_stride = c.page_stride,
                     .head_stride = c.head_stride,
                     .slot_stride = c.slot_stride,
                     .num_pages = c.num_pages,
                     .page_size = c.page_size,
                     .dtype = dtype,
                     .k_scale = c.k_scale == 0.0f ? 1.0f : c.k_scale,
                     .v_scale = c.v_scale == 0.0f ? 1.0f : c.v_scale};
}

// The native layout; what it lays out is a layer of some spec.
Result<KvPoolShape> ReadPool(const coppice_kv_pool* in) {
  COPPICE_ASSIGN_OR_RETURN(const coppice_kv_pool c, Read(in, "coppice_kv_pool"));
  COPPICE_ASSIGN_OR_RETURN(const DType dtype, ReadDType(c.dtype, "dtype"));
  const AttentionSpec spec = {
      .num_qo_heads = c.num_kv_heads, .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .kv_dtype = dtype};
  COPPICE_RETURN_IF_ERROR(ValidateSpec(spec));
  const KvPoolShape shape = {
      .num_pages = c.num_pages, .page_size = c.page_size, .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .dtype = dtype};
  alignas(16) std::byte anywhere[16];
  COPPICE_RETURN_IF_ERROR(CheckKvLayer(spec, KvLayerView{.k = anywhere,
                                                         .v = anywhere,
                                                         .page_stride = shape.elements_per_page(),
                                                         .head_stride = shape.elements_per_page(),
                                                         .slot_stride = c.head_dim,
                                                         .num_pages = c.num_pages,
                                                         .page_size = c.page_size,
                                                         .dtype = dtype}));
  return shape;
}

template <class T>
Result<std::span<const T>> ReadSpan(const T* data, int64_t count, const char* name) {
  if (count < 0 || (count > 0 && data == nullptr)) {
    return InvalidArgument(std::string(name) + ": count " + std::to_string(count) + " with pointer " + (data ? "set" : "NULL"));
  }
  return std::span<const T>(data, static_cast<size_t>(count));
}

// `count` pairs of numbers: from, to, from, to, ...
template <class Pair, class T>
Result<std::vector<Pair>> ReadPairs(const T* data, int64_t count, int64_t most, const char* name) {
  if (count > most) {
    return InvalidArgument(std::string(name) + ": count " + std::to_string(count) + "; expected at most " + std::to_string(most));
  }
  COPPICE_RETURN_IF_ERROR(ReadSpan(data, count, name).status());
  std::vector<Pair> pairs(static_cast<size_t>(count));
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = {.from = data[2 * i], .to = data[2 * i + 1]};
  return pairs;
}

// Writes what `make` returns, cut to `capacity`; the bytes that it needs.
template <class Make>
size_t WriteWhole(const coppice_plan* plan, char* text, size_t capacity, Make make) {
  try {
    const std::string whole = plan == nullptr ? std::string("plan is NULL") : make(*plan->plan);
    WriteText(whole, text, capacity);
    return whole.size() + 1;
  } catch (...) {
    WriteText("", text, capacity);
    return 1;
  }
}

Status RequireHandle(const void* handle, const char* name) {
  return handle == nullptr ? InvalidArgument(std::string(name) + " is NULL") : OkStatus();
}

}  // namespace

extern "C" {

int32_t coppice_abi_version(void) { return COPPICE_ATTENTION_ABI_VERSION; }

const char* coppice_status_name(coppice_status status) {
  const int value = status;  // any number may come
  if (value < 0 || value > COPPICE_DEADLINE_EXCEEDED) return "UNKNOWN";
  return StatusCodeName(static_cast<StatusCode>(value)).data();  // of a literal
}

coppice_status coppice_context_create(const coppice_context_options* options, coppice_context** context, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_ASSIGN_OR_RETURN(const coppice_context_options c, Read(options, "coppice_context_options"));
    COPPICE_ASSIGN_OR_RETURN(const DeviceKind device, ReadEnum<DeviceKind>(c.device, COPPICE_CUDA, "device"));
    auto out = std::make_unique<coppice_context>();
    if (device == DeviceKind::kCpu) {
      COPPICE_ASSIGN_OR_RETURN(out->pool, ThreadPool::Create(c.num_threads));
      COPPICE_ASSIGN_OR_RETURN(out->context, Context::CreateCpu(out->pool.get()));
    } else {
      COPPICE_ASSIGN_OR_RETURN(const CudaKernels kernels,
                               ReadEnum<CudaKernels>(c.cuda_kernels, COPPICE_CUDA_KERNELS_MMA_SYNC, "cuda_kernels"));
      COPPICE_ASSIGN_OR_RETURN(out->context, Context::CreateCuda(c.device_index, kernels));
    }
    *context = out.release();
    return OkStatus();
  });
}

void coppice_context_destroy(coppice_context* context) { delete context; }

coppice_status coppice_plan_get_sizes(coppice_context* context, const coppice_attention_spec* spec,
                                      const coppice_plan_options* options, coppice_plan_sizes* sizes, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_ASSIGN_OR_RETURN(const AttentionSpec s, ReadSpec(spec));
    COPPICE_ASSIGN_OR_RETURN(const CapacityAndOptions o, ReadOptions(options));
    COPPICE_ASSIGN_OR_RETURN(const PlanSizes got, context->context->Sizes(s, o.capacity));
    return Write({.host_bytes = got.host_bytes,
                  .plan_bytes = got.plan_bytes,
                  .workspace_bytes = got.workspace_bytes,
                  .alignment = got.alignment},
                 sizes, "coppice_plan_sizes");
  });
}

coppice_status coppice_plan_create(coppice_context* context, const coppice_attention_spec* spec,
                                   const coppice_plan_options* options, coppice_plan** plan, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_RETURN_IF_ERROR(RequireHandle(plan, "plan"));
    COPPICE_ASSIGN_OR_RETURN(const AttentionSpec s, ReadSpec(spec));
    COPPICE_ASSIGN_OR_RETURN(const CapacityAndOptions o, ReadOptions(options));
    auto out = std::make_unique<coppice_plan>();
    COPPICE_ASSIGN_OR_RETURN(out->plan, AttentionPlan::Create(*context->context, s, o.capacity, o.options));
    *plan = out.release();
    return OkStatus();
  });
}

void coppice_plan_destroy(coppice_plan* plan) { delete plan; }

coppice_status coppice_plan_update(coppice_plan* plan, const coppice_prefix_forest* forest, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(plan, "plan"));
    COPPICE_ASSIGN_OR_RETURN(const coppice_prefix_forest c, Read(forest, "coppice_prefix_forest"));
    PrefixForestView view;
    view.page_size = c.page_size;
    view.version = c.version;
    view.changed_since = c.changed_since;
    COPPICE_ASSIGN_OR_RETURN(view.node_parent, ReadSpan(c.node_parent, c.num_nodes, "node_parent"));
    COPPICE_ASSIGN_OR_RETURN(view.node_begin, ReadSpan(c.node_begin, c.num_nodes, "node_begin"));
    COPPICE_ASSIGN_OR_RETURN(view.node_end, ReadSpan(c.node_end, c.num_nodes, "node_end"));
    COPPICE_ASSIGN_OR_RETURN(view.branch_node, ReadSpan(c.branch_node, c.num_branches, "branch_node"));
    COPPICE_ASSIGN_OR_RETURN(view.branch_query_begin, ReadSpan(c.branch_query_begin, c.num_branches, "branch_query_begin"));
    COPPICE_ASSIGN_OR_RETURN(view.branch_query_count, ReadSpan(c.branch_query_count, c.num_branches, "branch_query_count"));
    COPPICE_ASSIGN_OR_RETURN(view.branch_kv_len, ReadSpan(c.branch_kv_len, c.num_branches, "branch_kv_len"));
    COPPICE_ASSIGN_OR_RETURN(view.branch_page_begin, ReadSpan(c.branch_page_begin, c.num_branches, "branch_page_begin"));
    COPPICE_ASSIGN_OR_RETURN(view.branch_page_capacity, ReadSpan(c.branch_page_capacity, c.num_branches, "branch_page_capacity"));
    COPPICE_ASSIGN_OR_RETURN(view.changed_branches, ReadSpan(c.changed_branches, c.num_changed_branches, "changed_branches"));
    COPPICE_ASSIGN_OR_RETURN(const std::span<const int32_t> nodes, ReadSpan(c.changed_nodes, c.num_changed_nodes, "changed_nodes"));
    if (c.changed_nodes != nullptr) view.changed_nodes = nodes;
    COPPICE_ASSIGN_OR_RETURN(view.page_indices, ReadSpan(c.page_indices, c.num_page_slots, "page_indices"));
    COPPICE_ASSIGN_OR_RETURN(view.query_tree_mask, ReadSpan(c.query_tree_mask, c.num_query_tree_masks, "query_tree_mask"));
    return plan->plan->Update(view);
  });
}

coppice_status coppice_plan_upload(coppice_plan* plan, void* stream, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(plan, "plan"));
    return plan->plan->Upload(stream);
  });
}

coppice_status coppice_plan_run(coppice_plan* plan, const coppice_bound_kv* kv, const coppice_run_args* args, void* stream,
                                coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(plan, "plan"));
    COPPICE_RETURN_IF_ERROR(RequireHandle(kv, "kv"));
    COPPICE_ASSIGN_OR_RETURN(const coppice_run_args c, Read(args, "coppice_run_args"));
    return plan->plan->Run(
        *kv->bound, {.q = c.q, .q_row_stride = c.q_row_stride, .out = c.out, .out_row_stride = c.out_row_stride, .lse = c.lse},
        stream);
  });
}

coppice_status coppice_plan_get_stats(const coppice_plan* plan, coppice_plan_stats* stats, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(plan, "plan"));
    const PlanStats got = plan->plan->Stats();
    return Write({.kv_bytes_read = got.kv_bytes_read,
                  .kv_bytes_read_unshared = got.kv_bytes_read_unshared,
                  .flops = got.flops,
                  .state_bytes = got.state_bytes,
                  .num_items = got.num_items,
                  .num_merge_sets = got.num_merge_sets,
                  .shared_nodes = got.shared_nodes,
                  .unshared_nodes = got.unshared_nodes,
                  .predicted_ns = got.predicted_ns},
                 stats, "coppice_plan_stats");
  });
}

coppice_status coppice_plan_launch_key(const coppice_plan* plan, uint64_t* key, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(plan, "plan"));
    COPPICE_RETURN_IF_ERROR(RequireHandle(key, "key"));
    *key = static_cast<uint64_t>(plan->plan->launch_key());
    return OkStatus();
  });
}

size_t coppice_plan_explain(const coppice_plan* plan, char* text, size_t capacity) {
  return WriteWhole(plan, text, capacity, [](const AttentionPlan& p) { return p.Explain(); });
}

size_t coppice_plan_dump(const coppice_plan* plan, char* text, size_t capacity) {
  return WriteWhole(plan, text, capacity, [](const AttentionPlan& p) { return p.Dump(); });
}

coppice_status coppice_kv_pool_get_bytes(const coppice_kv_pool* pool, size_t* bytes, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(bytes, "bytes"));
    COPPICE_ASSIGN_OR_RETURN(const KvPoolShape shape, ReadPool(pool));
    *bytes = shape.bytes();
    return OkStatus();
  });
}

coppice_status coppice_kv_pool_get_layer(const coppice_kv_pool* pool, void* base, coppice_kv_layer* layer,
                                         coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(base, "base"));
    COPPICE_ASSIGN_OR_RETURN(const KvPoolShape shape, ReadPool(pool));
    const KvLayerView view = shape.View(base);
    return Write({.k = view.k,
                  .v = view.v,
                  .page_stride = view.page_stride,
                  .head_stride = view.head_stride,
                  .slot_stride = view.slot_stride,
                  .num_pages = view.num_pages,
                  .page_size = view.page_size,
                  .dtype = static_cast<int32_t>(view.dtype),
                  .k_scale = view.k_scale,
                  .v_scale = view.v_scale},
                 layer, "coppice_kv_layer");
  });
}

coppice_status coppice_kv_bind(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                               coppice_bound_kv** bound, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_RETURN_IF_ERROR(RequireHandle(bound, "bound"));
    COPPICE_ASSIGN_OR_RETURN(const AttentionSpec s, ReadSpec(spec));
    COPPICE_ASSIGN_OR_RETURN(const KvLayerView view, ReadLayer(layer));
    auto out = std::make_unique<coppice_bound_kv>();
    COPPICE_ASSIGN_OR_RETURN(out->bound, context->context->BindKv(s, view));
    *bound = out.release();
    return OkStatus();
  });
}

void coppice_kv_destroy(coppice_bound_kv* bound) { delete bound; }

coppice_status coppice_kv_append(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                 const coppice_append_args* args, void* stream, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_ASSIGN_OR_RETURN(const AttentionSpec s, ReadSpec(spec));
    COPPICE_ASSIGN_OR_RETURN(const KvLayerView view, ReadLayer(layer));
    COPPICE_ASSIGN_OR_RETURN(const coppice_append_args c, Read(args, "coppice_append_args"));
    COPPICE_ASSIGN_OR_RETURN(const std::span<const int64_t> slots, ReadSpan(c.slot_mapping, c.num_tokens, "slot_mapping"));
    return context->context->AppendKv(s, view, {.k = c.k, .v = c.v, .row_stride = c.row_stride, .slot_mapping = slots}, stream);
  });
}

coppice_status coppice_kv_copy_pages(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                     const int32_t* copies, int64_t num_copies, void* stream, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_ASSIGN_OR_RETURN(const AttentionSpec s, ReadSpec(spec));
    COPPICE_ASSIGN_OR_RETURN(const KvLayerView view, ReadLayer(layer));
    COPPICE_RETURN_IF_ERROR(CheckKvLayer(s, view));
    COPPICE_ASSIGN_OR_RETURN(const std::vector<PageCopy> pairs, ReadPairs<PageCopy>(copies, num_copies, view.num_pages, "copies"));
    return context->context->CopyPages(s, view, pairs, stream);
  });
}

coppice_status coppice_kv_move_slots(coppice_context* context, const coppice_attention_spec* spec, const coppice_kv_layer* layer,
                                     const int64_t* moves, int64_t num_moves, void* stream, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_ASSIGN_OR_RETURN(const AttentionSpec s, ReadSpec(spec));
    COPPICE_ASSIGN_OR_RETURN(const KvLayerView view, ReadLayer(layer));
    COPPICE_RETURN_IF_ERROR(CheckKvLayer(s, view));
    const int64_t num_slots = int64_t{view.num_pages} * view.page_size;
    COPPICE_ASSIGN_OR_RETURN(const std::vector<SlotMove> pairs, ReadPairs<SlotMove>(moves, num_moves, num_slots, "moves"));
    return context->context->MoveSlots(s, view, pairs, stream);
  });
}

coppice_status coppice_merge_states(coppice_context* context, void* into_out, float* into_lse, void* const* from_out,
                                    float* const* from_lse, int32_t num_from, int64_t num_rows, int32_t num_heads, int32_t head_dim,
                                    int32_t dtype, const uint8_t* mask, void* stream, coppice_message* message) {
  return Guard(message, [&]() -> Status {
    COPPICE_RETURN_IF_ERROR(RequireHandle(context, "context"));
    COPPICE_ASSIGN_OR_RETURN(const std::span<void* const> outs, ReadSpan(from_out, num_from, "from_out"));
    COPPICE_ASSIGN_OR_RETURN(const std::span<float* const> lses, ReadSpan(from_lse, num_from, "from_lse"));
    COPPICE_ASSIGN_OR_RETURN(const DType type, ReadDType(dtype, "dtype"));
    COPPICE_RETURN_IF_ERROR(CheckMerge({.out = into_out, .lse = into_lse}, {}, num_rows, num_heads, head_dim, {}));
    std::vector<StateView> from(outs.size());
    for (size_t i = 0; i < from.size(); ++i) from[i] = {.out = outs[i], .lse = lses[i]};
    const std::span<const uint8_t> row_mask(mask, mask == nullptr ? 0 : static_cast<size_t>(std::max<int64_t>(num_rows, 0)));
    return context->context->MergeStates({.out = into_out, .lse = into_lse}, from, num_rows, num_heads, head_dim, type, row_mask,
                                         stream);
  });
}

}  // extern "C"
