#include "python/attention_module.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <charconv>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/forest.h"
#include "attention/owned_forest.h"
#include "coppice/attention/attention.h"
#include "coppice/attention/dlpack.h"
#include "core/device.h"
#include "core/thread_pool.h"
#include "python/errors.h"
#include "python/process_check.h"
#include "python/tensor.h"
#include "python/unlocked.h"

namespace coppice::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using attention::AttentionPlan;
using attention::AttentionSpec;
using attention::BoundKv;
using attention::KvLayerView;
using attention::OwnedForest;

// A device for attention. One call at a time runs on a CPU's threads; plans of one device may be used by several threads.
class PyContext {
 public:
  PyContext(const std::string& device, int num_threads) {
    auto owned = std::make_unique<Owned>();
    if (device == "cpu") {
      owned->threads = ValueOrThrow(ThreadPool::Create(num_threads));
      owned->context = ValueOrThrow(attention::Context::CreateCpu(owned->threads.get()));
    } else {
      owned->context = ValueOrThrow(attention::Context::CreateCuda(ordinal_ = OrdinalOf(device)));
    }
    owned_ = std::move(owned);
  }
  ~PyContext() {
    if (!process_.here()) (void)owned_.release();  // its threads cannot be waited for
  }

  attention::Context& context() {
    ThrowIfError(process_.Check());
    return *owned_->context;
  }
  // Held while the device's threads compute.
  std::mutex& running() { return running_; }

  void CheckDevice(const std::string& name, int type, int id) const {
    if (is_cpu() ? type == nb::device::cpu::value : type == nb::device::cuda::value && id == ordinal_) return;
    throw nb::value_error(fmt::format("{} is on another device (DLPack's {}:{}), expected {}", name, type, id,
                                      is_cpu() ? "host memory" : fmt::format("cuda:{}", ordinal_))
                              .c_str());
  }
  int ordinal() const { return ordinal_; }
  bool is_cpu() const { return owned_->context->device() == DeviceKind::kCpu; }

  // Memory of the device that is given back with the last of its owners.
  std::shared_ptr<DeviceMemory> Allocate(size_t bytes) {
    return std::make_shared<DeviceMemory>(ValueOrThrow(device().Allocate(bytes)));
  }
  Device& device() {
    if (!owned_->device) {
      owned_->device = is_cpu() ? Device::CreateCpu(owned_->threads.get()) : ValueOrThrow(Device::CreateCuda(ordinal_));
    }
    return *owned_->device;
  }

 private:
  struct Owned {
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<attention::Context> context;
    std::unique_ptr<Device> device;  // none before something is allocated
  };

  static int OrdinalOf(const std::string& device) {
    int ordinal = 0;
    if (device == "cuda") return ordinal;
    const char* const end = device.data() + device.size();
    const bool named = device.starts_with("cuda:");
    const auto [stop, error] = std::from_chars(device.data() + (named ? 5 : 0), end, ordinal);
    if (!named || error != std::errc() || stop != end || ordinal < 0) {
      throw nb::value_error(fmt::format("device='{}': expected 'cpu', 'cuda' or 'cuda:N'", device).c_str());
    }
    return ordinal;
  }

  const ProcessCheck process_;
  int ordinal_ = 0;
  std::unique_ptr<Owned> owned_;
  std::mutex running_;
};

using HostInts = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostOffsets = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto ToSpan(const Array& array) {
  return std::span(array.data(), array.size());
}

// Waits for the lock without the GIL, which the thread that has the lock may need.
std::unique_lock<std::mutex> Locked(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock) Unlocked([&] { lock.lock(); });
  return lock;
}

// Which requests share which KV. `edits` counts changes, so that a plan knows whether it has seen them. `reading`: held while a
// plan reads it, and for a change; behind PyContext::running where both are.
struct PyForest {
  OwnedForest forest;
  uint64_t edits = 0;
  std::mutex reading;

  int32_t AddNode(std::optional<int32_t> parent, int32_t begin, std::optional<int32_t> end) {
    const std::unique_lock lock = Locked(reading);
    if (parent) CheckIndex("parent", *parent, forest.node_parent.size());
    if (end && *end < begin) throw nb::value_error(fmt::format("end={}: expected begin={} or more", *end, begin).c_str());
    Changed();
    return forest.AddNode(parent.value_or(attention::kNoParent), begin, end.value_or(attention::kLive));
  }
  int32_t AddBranch(int32_t node, int32_t kv_len, const std::vector<int32_t>& pages, int32_t query_count) {
    const std::unique_lock lock = Locked(reading);
    CheckIndex("node", node, forest.node_parent.size());
    const int32_t rows = forest.branch_node.empty() ? 0 : forest.branch_query_begin.back() + forest.branch_query_count.back();
    if (query_count < 0 || query_count > attention::kMaxRows - rows) {
      throw nb::value_error(fmt::format("query_count={}: expected 0 to {}, since the branches so far have {} queries", query_count,
                                        attention::kMaxRows - rows, rows)
                                .c_str());
    }
    Changed();
    return forest.AddBranch(node, kv_len, query_count, pages);
  }
  void AddPageTables(const HostInts& pages, const HostOffsets& begin, const HostOffsets& end, const HostInts& kv_lens,
                     const HostInts& query_counts) {
    const std::unique_lock lock = Locked(reading);
    Changed();
    ThrowIfError(attention::AddPageTables({.pages = ToSpan(pages),
                                           .begin = ToSpan(begin),
                                           .end = ToSpan(end),
                                           .kv_len = ToSpan(kv_lens),
                                           .query_count = ToSpan(query_counts)},
                                          forest));
  }
  void SetLength(int32_t branch, int32_t kv_len) {
    const std::unique_lock lock = Locked(reading);
    CheckIndex("branch", branch, forest.branch_node.size());
    ++edits;
    forest.branch_kv_len[branch] = kv_len;
  }
  static void CheckIndex(const char* name, int32_t index, size_t count) {
    if (index < 0 || static_cast<size_t>(index) >= count)
      throw nb::value_error(fmt::format("{}={}: there are {} of them so far", name, index, count).c_str());
  }

 private:
  // No two forests have a version in common, so that a plan may go from one to another.
  void Changed() {
    static std::atomic<uint64_t> versions = 0;
    forest.version = ++versions;
    ++edits;
  }
};

std::string Shape(const Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.shape, tensor.shape + tensor.ndim, ", ")); }

// The slots of an append, in host memory or on the pool's GPU.
nb::ndarray<nb::ro> TakeSlots(const PyContext& context, const nb::object& value) {
  auto slots = TakeTensor<nb::ndarray<nb::ro>>("slots", value);
  if (slots.device_type() != nb::device::cpu::value) context.CheckDevice("slots", slots.device_type(), slots.device_id());
  const Tensor view = ToTensor(slots);
  CheckContiguous("slots", view);
  if (view.ndim != 1 || slots.dtype() != nb::dtype<int64_t>()) {
    throw nb::value_error(fmt::format("slots is {} of DLPack dtype (code {}, {} bits), expected int64 [tokens]", Shape(view),
                                      static_cast<int>(view.dtype.code), static_cast<int>(view.dtype.bits))
                              .c_str());
  }
  return slots;
}

// KV of one layer in the caller's memory, bound once for each spec that reads it.
class PyKv {
 public:
  PyKv(std::shared_ptr<PyContext> context, const nb::object& k, const nb::object& v, bool heads_first)
      : context_(std::move(context)),
        k_object_(k),
        v_object_(v),
        k_(TakeTensor<nb::ndarray<nb::ro>>("k", k)),
        v_(TakeTensor<nb::ndarray<nb::ro>>("v", v)) {
    context_->CheckDevice("k", k_.device_type(), k_.device_id());
    context_->CheckDevice("v", v_.device_type(), v_.device_id());
    const auto layout = heads_first ? attention::KvLayout::kHND : attention::KvLayout::kNHD;
    view_ = ValueOrThrow(attention::KvLayerFromDlpack(ToTensor(k_), ToTensor(v_), layout));
    num_kv_heads_ = static_cast<int32_t>(k_.shape(heads_first ? 1 : 2));
    head_dim_ = static_cast<int32_t>(k_.shape(3));
  }

  PyKv(const PyKv&) = delete;  // its memory is bound once
  PyKv& operator=(const PyKv&) = delete;

  const BoundKv& Bound(const AttentionSpec& spec) {
    for (const auto& bound : bound_) {
      if (bound->spec() == spec) return *bound;
    }
    if (spec.num_kv_heads != num_kv_heads_ || spec.head_dim != head_dim_) {
      throw nb::value_error(fmt::format("the KV has {} heads of {} elements, the plan {} of {}", num_kv_heads_, head_dim_,
                                        spec.num_kv_heads, spec.head_dim)
                                .c_str());
    }
    return *bound_.emplace_back(ValueOrThrow(context_->context().BindKv(spec, view_)));
  }
  const std::shared_ptr<PyContext>& context() const { return context_; }

  void Append(const nb::object& k, const nb::object& v, const nb::object& slots_value, uintptr_t stream) {
    (void)TakeTensor<nb::ndarray<>>("the pool's k", k_object_);  // it is written
    (void)TakeTensor<nb::ndarray<>>("the pool's v", v_object_);
    const auto k_rows = TakeTensor<nb::ndarray<nb::ro>>("k", k), v_rows = TakeTensor<nb::ndarray<nb::ro>>("v", v);
    const nb::ndarray<nb::ro> slots = TakeSlots(*context_, slots_value);
    const attention::RowsView keys = Rows("k", k_rows, slots.size()), values = Rows("v", v_rows, slots.size());
    if (keys.row_stride != values.row_stride) {
      throw nb::value_error(
          fmt::format("k has row stride {} and v {}, expected the same", keys.row_stride, values.row_stride).c_str());
    }
    const AttentionSpec spec{.num_qo_heads = num_kv_heads_,
                             .num_kv_heads = num_kv_heads_,
                             .head_dim = head_dim_,
                             .q_dtype = view_.dtype,
                             .kv_dtype = view_.dtype};
    const attention::AppendArgs args{.k = keys.data,
                                     .v = values.data,
                                     .row_stride = keys.row_stride,
                                     .slot_mapping = {static_cast<const int64_t*>(slots.data()), slots.size()}};
    attention::Context& context = context_->context();
    Status status;
    {
      const GilRelease release;
      const std::lock_guard lock(context_->running());
      status = context.AppendKv(spec, view_, args, reinterpret_cast<Stream>(stream));
    }
    ThrowIfError(status);
  }

 private:
  attention::RowsView Rows(const char* name, const nb::ndarray<nb::ro>& array, size_t count) const {
    context_->CheckDevice(name, array.device_type(), array.device_id());
    const attention::RowsView rows = ValueOrThrow(attention::RowsFromDlpack(ToTensor(array), name));
    if (rows.rows != static_cast<int64_t>(count) || rows.heads != num_kv_heads_ || rows.head_dim != head_dim_ ||
        rows.dtype != view_.dtype) {
      throw nb::value_error(fmt::format("{} is {} [{}, {}, {}], expected {} [{}, {}, {}]", name, Name(rows.dtype), rows.rows,
                                        rows.heads, rows.head_dim, Name(view_.dtype), count, num_kv_heads_, head_dim_)
                                .c_str());
    }
    return rows;
  }

  std::shared_ptr<PyContext> context_;
  nb::object k_object_, v_object_;
  nb::ndarray<nb::ro> k_, v_;
  KvLayerView view_;
  int32_t num_kv_heads_ = 0, head_dim_ = 0;
  std::vector<std::unique_ptr<BoundKv>> bound_;
};

// The option `name`; TypeError: it is of another type.
template <class T>
T TakeOption(const nb::dict& options, const char* name, const char* expected) {
  const nb::object value = options[name];
  T taken;
  if (!nb::try_cast<T>(value, taken)) {
    throw nb::type_error(fmt::format("{}={}: expected {}", name, nb::cast<std::string>(nb::repr(value)), expected).c_str());
  }
  return taken;
}

DType ParseDType(const char* name, const std::string& text) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (Name(dtype) == text) return dtype;
  }
  throw nb::value_error(fmt::format("{}='{}': expected one of 'f32', 'bf16', 'f16'", name, text).c_str());
}

class PyPlan {
 public:
  PyPlan(std::shared_ptr<PyContext> context, const nb::dict& options) : context_(std::move(context)) {
    const auto number = [&]<class T>(const char* name, T* out) {
      *out = TakeOption<T>(options, name, std::is_integral_v<T> ? "a number without fraction, below 2^31" : "a number");
    };
    const auto flag = [&](const char* name) { return TakeOption<bool>(options, name, "True or False"); };
    const auto dtype = [&](const char* name) { return ParseDType(name, TakeOption<std::string>(options, name, "a string")); };
    number("num_qo_heads", &spec_.num_qo_heads);
    number("num_kv_heads", &spec_.num_kv_heads);
    number("head_dim", &spec_.head_dim);
    number("sm_scale", &spec_.sm_scale);
    number("soft_cap", &spec_.soft_cap);
    number("window", &spec_.window);
    spec_.deterministic = flag("deterministic");
    spec_.q_dtype = dtype("dtype");
    spec_.kv_dtype = dtype("kv_dtype");
    attention::PlanCapacity capacity;
    number("max_branches", &capacity.max_branches);
    number("max_queries", &capacity.max_queries);
    number("max_nodes", &capacity.max_nodes);
    number("max_page_slots", &capacity.max_page_slots);
    number("page_size", &capacity.page_size);
    attention::PlannerOptions planner;
    planner.force_sharing = flag("force_sharing");
    if (!flag("share")) planner.policy = attention::SharePolicy::kStore;
    plan_ = ValueOrThrow(AttentionPlan::Create(context_->context(), spec_, capacity, planner));
  }

  void Update(std::shared_ptr<PyForest> forest, uintptr_t stream) {
    (void)context_->context();  // whether this is its process
    const std::unique_lock running = Locked(context_->running()), reading = Locked(forest->reading);
    ThrowIfError(plan_->Update(forest->forest.Forest()));
    num_queries_ = forest->forest.num_queries();
    edits_ = forest->edits;
    forest_ = std::move(forest);
    ThrowIfError(plan_->Upload(reinterpret_cast<Stream>(stream)));
  }

  // Returns how many queries there were, in rows of out and lse; other rows stay as they are.
  int32_t Run(PyKv& kv, const nb::object& q, const nb::object& out, const nb::object& lse, uintptr_t stream) {
    (void)context_->context();
    // Before the locks: a tensor may be computed when it is taken, by attention too.
    const auto q_array = TakeTensor<nb::ndarray<nb::ro>>("q", q);
    const auto out_array = TakeTensor<nb::ndarray<>>("out", out);
    std::optional<nb::ndarray<>> lse_array;
    if (!lse.is_none()) lse_array = TakeTensor<nb::ndarray<>>("lse", lse);
    std::unique_lock running = Locked(context_->running());
    if (!forest_) throw nb::value_error("plan.update(forest) comes first");
    std::unique_lock reading = Locked(forest_->reading);
    CheckForest();
    if (kv.context() != context_) throw nb::value_error("kv is of another device object than the plan");
    const attention::RowsView q_rows = Rows("q", q_array.device_type(), q_array.device_id(), ToTensor(q_array));
    const attention::RowsView out_rows = Rows("out", out_array.device_type(), out_array.device_id(), ToTensor(out_array));
    if (lse_array) {
      context_->CheckDevice("lse", lse_array->device_type(), lse_array->device_id());
      const Tensor view = ToTensor(*lse_array);
      CheckContiguous("lse", view);
      const DType dtype = TakeDType("lse", view);
      if (view.ndim != 2 || view.shape[0] < num_queries_ || view.shape[1] != spec_.num_qo_heads || dtype != DType::kF32) {
        throw nb::value_error(
            fmt::format("lse is {} {}, expected f32 [{}, {}]", Name(dtype), Shape(view), num_queries_, spec_.num_qo_heads).c_str());
      }
    }
    const BoundKv& bound = kv.Bound(spec_);
    const attention::RunArgs args{.q = q_rows.data,
                                  .q_row_stride = q_rows.row_stride,
                                  .out = out_rows.data,
                                  .out_row_stride = out_rows.row_stride,
                                  .lse = lse_array ? static_cast<float*>(lse_array->data()) : nullptr};
    const int32_t queries = num_queries_;
    const auto run = [&] {
      Status status = plan_->Run(bound, args, reinterpret_cast<Stream>(stream));
      reading.unlock();  // before the GIL is taken again
      running.unlock();
      return status;
    };
    ThrowIfError(Unlocked(run));
    return queries;
  }

  int32_t num_queries() const { return num_queries_; }
  std::string Explain() const {
    CheckForest();
    return plan_->Explain();
  }
  nb::dict Stats() const {
    CheckForest();
    const attention::PlanStats stats = plan_->Stats();
    nb::dict dict;
    dict["kv_tokens_read"] = stats.kv_tokens_read;
    dict["kv_tokens_read_unshared"] = stats.kv_tokens_read_unshared;
    dict["kv_bytes_read"] = stats.kv_bytes_read;
    dict["kv_bytes_read_unshared"] = stats.kv_bytes_read_unshared;
    dict["kv_bytes_distinct"] = stats.kv_bytes_distinct;
    dict["flops"] = stats.flops;
    dict["num_items"] = stats.num_items;
    dict["shared_nodes"] = stats.shared_nodes;
    dict["predicted_ns"] = stats.predicted_ns;
    return dict;
  }

 private:
  // The plan reads its forest's arrays, which a change may have moved.
  void CheckForest() const {
    if (forest_ && forest_->edits != edits_)
      throw nb::value_error("the forest changed after plan.update(forest): update the plan first");
  }
  attention::RowsView Rows(const char* name, int device, int id, const Tensor& tensor) const {
    context_->CheckDevice(name, device, id);
    const attention::RowsView rows = ValueOrThrow(attention::RowsFromDlpack(tensor, name));
    if (rows.rows < num_queries_ || rows.heads != spec_.num_qo_heads || rows.head_dim != spec_.head_dim ||
        rows.dtype != spec_.q_dtype) {
      throw nb::value_error(fmt::format("{} is {} [{}, {}, {}], expected {} [{}, {}, {}]", name, Name(rows.dtype), rows.rows,
                                        rows.heads, rows.head_dim, Name(spec_.q_dtype), num_queries_, spec_.num_qo_heads,
                                        spec_.head_dim)
                                .c_str());
    }
    return rows;
  }

  std::shared_ptr<PyContext> context_;
  AttentionSpec spec_;
  std::unique_ptr<AttentionPlan> plan_;
  std::shared_ptr<PyForest> forest_;  // whose lengths and page rows a run reads
  uint64_t edits_ = 0;
  int32_t num_queries_ = 0;
};

// Memory for a result of a library whose tensors cannot be written: zeros, or `fill` where it is f32.
nb::ndarray<nb::array_api> MakeBuffer(const std::shared_ptr<PyContext>& context, const std::vector<size_t>& shape,
                                      const std::string& dtype, float fill) {
  const DType type = ParseDType("dtype", dtype);
  size_t elements = 1;
  for (const size_t size : shape) elements *= size;
  std::shared_ptr<DeviceMemory> memory = context->Allocate(elements * SizeOf(type));
  if (type == DType::kF32 && fill != 0) {
    const std::vector<float> filled(elements, fill);
    ThrowIfError(context->device().Copy(memory->data(), filled.data(), memory->size(), nullptr));
  }
  // The memory goes before the device that it is of.
  struct Owner {
    std::shared_ptr<PyContext> context;
    std::shared_ptr<DeviceMemory> memory;
  };
  void* const data = memory->data();
  const nb::capsule owner(new Owner{context, std::move(memory)},
                          [](void* pointer) noexcept { delete static_cast<Owner*>(pointer); });
  const nb::dlpack::dtype element{
      static_cast<uint8_t>(type == DType::kBF16 ? nb::dlpack::dtype_code::Bfloat : nb::dlpack::dtype_code::Float),
      static_cast<uint8_t>(8 * SizeOf(type)), 1};
  return nb::ndarray<nb::array_api>(data, shape.size(), shape.data(), owner, nullptr, element,
                                    context->is_cpu() ? nb::device::cpu::value : nb::device::cuda::value,
                                    context->device().ordinal());
}

// into = merge(into, others), in place: out [n, heads, head_dim], lse float32 [n, heads].
void MergeStates(PyContext& context, const nb::object& out, const nb::object& lse,
                 const std::vector<std::pair<nb::object, nb::object>>& others, uintptr_t stream) {
  struct Taken {
    nb::ndarray<nb::ro> out, lse;
  };
  std::vector<Taken> taken;
  const auto take = [&](const std::string& name, const nb::object& out_value, const nb::object& lse_value) -> attention::StateView {
    Taken& state = taken.emplace_back(Taken{TakeTensor<nb::ndarray<nb::ro>>(name + ".out", out_value),
                                            TakeTensor<nb::ndarray<nb::ro>>(name + ".lse", lse_value)});
    for (const nb::ndarray<nb::ro>* array : {&state.out, &state.lse}) {
      context.CheckDevice(name, array->device_type(), array->device_id());
      CheckContiguous(name, ToTensor(*array));
    }
    const Tensor o = ToTensor(state.out), l = ToTensor(state.lse), first = ToTensor(taken.front().out);
    const bool shaped = o.ndim == 3 && l.ndim == 2 && o.shape[0] == first.shape[0] && o.shape[1] == first.shape[1] &&
                        o.shape[2] == first.shape[2] && l.shape[0] == o.shape[0] && l.shape[1] == o.shape[1];
    if (!shaped) {
      throw nb::value_error(
          fmt::format("{} is out {} and lse {}, expected out [n, heads, head_dim] and lse [n, heads], the same for all states: "
                      "states[0].out is {}",
                      name, Shape(o), Shape(l), Shape(first))
              .c_str());
    }
    if (const DType dtype = TakeDType(name + ".lse", l); dtype != DType::kF32)
      throw nb::value_error(fmt::format("{}.lse is {}, expected f32", name, Name(dtype)).c_str());
    if (const DType dtype = TakeDType(name + ".out", o), expected = TakeDType("states[0].out", first); dtype != expected)
      throw nb::value_error(fmt::format("{}.out is {}, expected {}, as states[0].out", name, Name(dtype), Name(expected)).c_str());
    return {.out = o.data, .lse = static_cast<float*>(l.data)};
  };
  taken.reserve(others.size() + 1);
  (void)TakeTensor<nb::ndarray<>>("states[0].out", out);  // they are written
  (void)TakeTensor<nb::ndarray<>>("states[0].lse", lse);
  const attention::StateView into = take("states[0]", out, lse);
  std::vector<attention::StateView> from;
  for (const auto& [other_out, other_lse] : others)
    from.push_back(take(fmt::format("states[{}]", from.size() + 1), other_out, other_lse));
  const Tensor shape = ToTensor(taken.front().out);
  const DType dtype = TakeDType("states[0].out", shape);
  attention::Context& device = context.context();
  Status status;
  {
    const GilRelease release;
    const std::lock_guard lock(context.running());
    status = device.MergeStates(into, from, shape.shape[0], static_cast<int32_t>(shape.shape[1]),
                                static_cast<int32_t>(shape.shape[2]), dtype, {}, reinterpret_cast<Stream>(stream));
  }
  ThrowIfError(status);
}

}  // namespace

void AddAttention(nb::module_& module) {
  nb::class_<PyContext>(module, "AttentionDevice")
      .def(nb::init<const std::string&, int>(), "device"_a, "num_threads"_a)
      .def("ordinal", [](PyContext& self) { return self.is_cpu() ? std::nullopt : std::optional(self.ordinal()); })
      .def("synchronize",
           [](PyContext& self, uintptr_t stream) { ThrowIfError(self.device().Synchronize(reinterpret_cast<Stream>(stream))); });
  nb::class_<PyForest>(module, "AttentionForest")
      .def("__init__",
           [](PyForest* self, int32_t page_size) {
             if (page_size < 1 || page_size > 256)
               throw nb::value_error(fmt::format("page_size={}: expected 1 to 256", page_size).c_str());
             new (self) PyForest();
             self->forest.page_size = page_size;
           })
      .def("add_node", &PyForest::AddNode, "parent"_a.none(), "begin"_a, "end"_a.none())
      .def("add_branch", &PyForest::AddBranch, "node"_a, "kv_len"_a, "pages"_a, "query_count"_a)
      .def("add_page_tables", &PyForest::AddPageTables, "pages"_a, "begin"_a, "end"_a, "kv_lens"_a, "query_counts"_a)
      .def("set_length", &PyForest::SetLength, "branch"_a, "kv_len"_a)
      .def("capacity", [](const PyForest& self) {
        const attention::PlanCapacity capacity = self.forest.Capacity();
        nb::dict dict;
        dict["max_branches"] = capacity.max_branches;
        dict["max_queries"] = capacity.max_queries;
        dict["max_nodes"] = capacity.max_nodes;
        dict["max_page_slots"] = capacity.max_page_slots;
        dict["page_size"] = capacity.page_size;
        return dict;
      });
  nb::class_<PyKv>(module, "AttentionKv")
      .def(
          "__init__",
          [](PyKv* self, std::shared_ptr<PyContext> device, const nb::object& k, const nb::object& v, bool heads_first) {
            new (self) PyKv(std::move(device), k, v, heads_first);
          },
          "device"_a, "k"_a.none(), "v"_a.none(), "heads_first"_a)
      .def("append", &PyKv::Append, "k"_a.none(), "v"_a.none(), "slots"_a, "stream"_a);
  nb::class_<PyPlan>(module, "AttentionPlan")
      .def(nb::init<std::shared_ptr<PyContext>, const nb::dict&>(), "device"_a, "options"_a)
      .def("update", &PyPlan::Update, "forest"_a, "stream"_a)
      .def("run", &PyPlan::Run, "kv"_a, "q"_a, "out"_a, "lse"_a.none(), "stream"_a)
      .def("num_queries", &PyPlan::num_queries)
      .def("explain", &PyPlan::Explain)
      .def("stats", &PyPlan::Stats);
  module.def("buffer", &MakeBuffer, "device"_a, "shape"_a, "dtype"_a, "fill"_a);
  module.def("merge_states", &MergeStates, "device"_a, "out"_a, "lse"_a, "others"_a, "stream"_a);
}

}  // namespace coppice::python
