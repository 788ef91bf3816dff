#include "tests/support/attention_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>

#include "attention/cpu/cpu_backend.h"
#include "core/buffer.h"
#include "core/thread_pool.h"

namespace coppice::attention::testing {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(size_t bytes) : buffer_(std::move(Buffer::Allocate(bytes)).value()) {}
  void* data() override { return buffer_.data(); }
  void CopyFrom(std::span<const std::byte> host) override { std::memcpy(buffer_.data(), host.data(), host.size()); }
  void CopyTo(std::span<std::byte> host) override { std::memcpy(host.data(), buffer_.data(), host.size()); }

 private:
  Buffer buffer_;
};

class CpuTestDevice final : public TestDevice {
 public:
  CpuTestDevice(int num_threads, const cpu::TileForms& forms)
      : isa_(forms.dense), pool_(num_threads), backend_(std::move(MakeCpuBackend(&pool_, forms)).value()) {}
  Backend& backend() override { return *backend_; }
  std::unique_ptr<DeviceMemory> Allocate(size_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  bool HasIntegerProducts(const AttentionSpec& spec) const override {
    const bool has =
        isa_ == cpu::Isa::kAvx2 || isa_ == cpu::Isa::kAvxVnni || (isa_ == cpu::Isa::kAvx512 && cpu::CpuHasAvx512Vnni());
    return has && spec.q_dtype == DType::kBF16 && spec.kv_dtype == DType::kBF16;
  }

 private:
  cpu::Isa isa_;  // of dense tiles
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
};

void Store(std::byte* base, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF32: reinterpret_cast<float*>(base)[index] = value; return;
    case DType::kBF16: reinterpret_cast<BF16*>(base)[index] = BF16::FromFloat(value); return;
    case DType::kF16: reinterpret_cast<F16*>(base)[index] = F16::FromFloat(value); return;
  }
}

float Load(const std::byte* base, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32: return reinterpret_cast<const float*>(base)[index];
    case DType::kBF16: return reinterpret_cast<const BF16*>(base)[index].ToFloat();
    case DType::kF16: return reinterpret_cast<const F16*>(base)[index].ToFloat();
  }
  return 0;
}

// splitmix64: element values depend on the token's identity alone, so copies of a page agree.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Roughly normal, standard deviation 1: the sum of four uniforms of 16 bits.
float Normal(uint64_t bits) {
  float sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) / 65536.0f - 0.5f;
  return sum * 1.7320508f;
}

void FillRow(std::byte* base, DType dtype, int64_t offset, int32_t count, uint64_t key, float magnitude) {
  for (int32_t e = 0; e < count; ++e) Store(base, dtype, offset + e, magnitude * Normal(Mix(key + static_cast<uint64_t>(e))));
}

}  // namespace

std::unique_ptr<TestDevice> MakeCpuTestDevice(int num_threads, const cpu::TileForms& forms) {
  return std::make_unique<CpuTestDevice>(num_threads, forms);
}

std::string CaseOptions::ToString() const {
  std::ostringstream s;
  s << "seed " << seed << ": heads " << spec.num_qo_heads << "/" << spec.num_kv_heads << ", head_dim " << spec.head_dim << ", q "
    << Name(spec.q_dtype) << ", kv " << Name(spec.kv_dtype) << ", window " << spec.window << ", soft_cap " << spec.soft_cap
    << ", sm_scale " << spec.sm_scale << (spec.deterministic ? ", deterministic" : "") << ", page_size " << forest.page_size
    << ", queries <= " << forest.max_query_count << (forest.tree_masks ? " in draft trees" : "") << ", layout "
    << static_cast<int>(layout) << ", q magnitude " << q_magnitude;
  return s.str();
}

CaseOptions RandomCase(uint64_t seed) {
  std::mt19937_64 rng(seed * 2 + 1);
  const auto pick = [&]<class T>(std::initializer_list<T> list) { return list.begin()[rng() % list.size()]; };
  CaseOptions c;
  c.seed = seed;
  const int32_t group = pick({1, 1, 2, 3, 4, 5, 7, 8, 16}), kv_heads = group > 4 ? 1 : pick({1, 2, 3});
  c.spec.num_kv_heads = kv_heads;
  c.spec.num_qo_heads = kv_heads * group;
  c.spec.head_dim = pick({64, 80, 96, 128, 128, 256, 8 * (1 + static_cast<int32_t>(rng() % 32))});
  const std::pair<DType, DType> same[] = {{DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF16}};
  const auto [q_dtype, kv_dtype] = rng() % 4 != 0 ? same[rng() % 3] : std::pair{same[rng() % 3].first, same[rng() % 3].first};
  c.spec.q_dtype = q_dtype;
  c.spec.kv_dtype = kv_dtype;
  c.spec.window = pick({0, 0, 0, 1, 7, 50, 130});
  c.spec.soft_cap = pick({0.0f, 0.0f, 0.0f, 5.0f, 30.0f});
  c.spec.sm_scale = pick({0.0f, 0.0f, 0.2f});
  c.spec.deterministic = rng() % 5 == 0;
  c.forest.page_size = pick({1, 2, 8, 16, 16, 16, 32, 64, 256, 1 + static_cast<int32_t>(rng() % 256)});
  c.forest.max_branches = pick({1, 2, 6, 12, 20});
  c.forest.max_segment = pick({3, 20, 80, 160});
  c.forest.max_kv_len = 400;
  c.forest.tree_masks = rng() % 4 == 0;
  c.forest.max_query_count = c.forest.tree_masks ? pick({4, 16, 64}) : pick({1, 1, 4, 40, 90});
  if (c.forest.max_query_count > 4) {  // the oracle's time: at most some 150 queries of 8 heads
    c.forest.max_branches = std::min(c.forest.max_branches, 3);
    c.spec.num_kv_heads = std::min(kv_heads, 8 / std::min(group, 8));
    c.spec.num_qo_heads = c.spec.num_kv_heads * group;
  }
  c.forest.own_root = pick({0.0, 0.1, 1.0});
  c.forest.query_gap = pick({0.0, 0.2});
  c.layout = pick({KvLayout::kNative, KvLayout::kNative, KvLayout::kNhd, KvLayout::kSeparate});
  c.k_scale = pick({1.0f, 1.0f, 0.5f});
  c.v_scale = pick({1.0f, 1.0f, 3.0f});
  c.q_magnitude = pick({1.0f, 1.0f, 4.0f, 0.01f});
  c.row_padding = pick({0, 0, 8});
  return c;
}

AttentionCase::AttentionCase(TestDevice& device, const CaseOptions& options)
    : device_(device), options_(options), forest_(options.forest, options.seed) {
  const AttentionSpec& spec = options_.spec;
  const int64_t d = spec.head_dim, heads = spec.num_kv_heads, page_size = options_.forest.page_size, pages = forest_.num_pages();
  const int64_t plane = pages * page_size * heads * d;
  host_pool_.resize(2 * plane * SizeOf(spec.kv_dtype));
  pool_ = device_.Allocate(host_pool_.size());
  const auto view = [&](std::byte* base) -> KvLayerView {
    KvLayerView kv = {
        .k = base, .num_pages = static_cast<int32_t>(pages), .page_size = static_cast<int32_t>(page_size), .dtype = spec.kv_dtype};
    switch (options_.layout) {
      case KvLayout::kNative:
        kv = KvPoolShape{kv.num_pages, kv.page_size, spec.num_kv_heads, spec.head_dim, spec.kv_dtype}.View(base);
        break;
      case KvLayout::kNhd:  // [page][2][slot][head][d]
        kv.v = base + page_size * heads * d * SizeOf(kv.dtype);
        kv.page_stride = 2 * page_size * heads * d;
        kv.slot_stride = heads * d;
        kv.head_stride = d;
        break;
      case KvLayout::kSeparate:  // two pools [page][head][slot][d]
        kv.v = base + plane * SizeOf(kv.dtype);
        kv.page_stride = heads * page_size * d;
        kv.head_stride = page_size * d;
        kv.slot_stride = d;
        break;
    }
    kv.k_scale = options_.k_scale;
    kv.v_scale = options_.v_scale;
    return kv;
  };
  kv_ = view(static_cast<std::byte*>(pool_->data()));
  host_kv_ = view(host_pool_.data());
  const PlanCapacity capacity = forest_.Capacity();
  const int64_t row = spec.num_qo_heads * d + options_.row_padding;
  host_q_.resize(capacity.max_queries * row * SizeOf(spec.q_dtype));
  q_ = device_.Allocate(host_q_.size());
  out_ = device_.Allocate(host_q_.size());
  lse_ = device_.Allocate(capacity.max_queries * spec.num_qo_heads * sizeof(float));
  Refresh();
}

void AttentionCase::Refresh() {
  const AttentionSpec& spec = options_.spec;
  const PrefixForestView view = forest_.View();
  std::ranges::fill(host_pool_, std::byte{0xff});  // NaN in every dtype
  for (int32_t b = 0; b < std::ssize(view.branch_node); ++b) {
    if (view.branch_node[b] == kFreeSlot) continue;
    for (int32_t i = 0; i < view.branch_kv_len[b]; ++i) {
      const int64_t page = view.page_indices[view.branch_page_begin[b] + i / view.page_size];
      for (int32_t h = 0; h < spec.num_kv_heads; ++h) {
        const int64_t offset = page * host_kv_.page_stride + h * host_kv_.head_stride + i % view.page_size * host_kv_.slot_stride;
        const uint64_t key = Mix(forest_.Token(b, i) * 64 + h) & ~uint64_t{1023};
        FillRow(static_cast<std::byte*>(host_kv_.k), spec.kv_dtype, offset, spec.head_dim, key, 1.0f);
        FillRow(static_cast<std::byte*>(host_kv_.v), spec.kv_dtype, offset, spec.head_dim, key + 512, 1.0f);
      }
    }
  }
  pool_->CopyFrom(host_pool_);
  std::ranges::fill(host_q_, std::byte{0xff});
  const int64_t row = int64_t{spec.num_qo_heads} * spec.head_dim + options_.row_padding;
  for (int32_t b = 0; b < std::ssize(view.branch_node); ++b) {
    if (view.branch_node[b] == kFreeSlot) continue;
    for (int32_t i = 0; i < view.branch_query_count[b]; ++i) {
      const uint64_t token = forest_.Token(b, view.branch_kv_len[b] - view.branch_query_count[b] + i);
      FillRow(host_q_.data(), spec.q_dtype, (view.branch_query_begin[b] + i) * row, spec.num_qo_heads * spec.head_dim,
              Mix(token ^ uint64_t{1} << 40), options_.q_magnitude);
    }
  }
  q_->CopyFrom(host_q_);
  out_->CopyFrom(std::vector<std::byte>(host_q_.size(), std::byte{0xff}));
  lse_->CopyFrom(std::vector<std::byte>(forest_.Capacity().max_queries * spec.num_qo_heads * sizeof(float), std::byte{0xff}));
}

RunArgs AttentionCase::Args(bool with_lse) {
  const int64_t row = int64_t{options_.spec.num_qo_heads} * options_.spec.head_dim + options_.row_padding;
  return {.q = q_->data(),
          .q_row_stride = row,
          .out = out_->data(),
          .out_row_stride = row,
          .lse = with_lse ? static_cast<float*>(lse_->data()) : nullptr};
}

AttentionOutput AttentionCase::Read() {
  const AttentionSpec& spec = options_.spec;
  const int64_t width = int64_t{spec.num_qo_heads} * spec.head_dim, stride = width + options_.row_padding;
  AttentionOutput output;
  output.raw.resize(host_q_.size());
  out_->CopyTo(output.raw);
  output.lse.resize(forest_.Capacity().max_queries * spec.num_qo_heads);
  lse_->CopyTo(std::as_writable_bytes(std::span(output.lse)));
  output.lse.resize(num_rows() * spec.num_qo_heads);
  for (int64_t r = 0; r < num_rows(); ++r) {
    for (int64_t e = 0; e < width; ++e) output.out.push_back(Load(output.raw.data(), spec.q_dtype, r * stride + e));
  }
  return output;
}

ReferenceResult AttentionCase::Reference() const {
  return ReferenceAttention(options_.spec, forest_.View(), host_kv_, host_q_.data(),
                            int64_t{options_.spec.num_qo_heads} * options_.spec.head_dim + options_.row_padding, num_rows());
}

std::string AttentionCase::Compare(const AttentionOutput& output, int32_t contributions, bool with_lse) const {
  const AttentionSpec& spec = options_.spec;
  const ReferenceResult reference = Reference();
  const int32_t d = spec.head_dim, heads = spec.num_qo_heads;
  const auto wrong = [&](const char* what, int64_t row, int64_t head, int64_t e, double got, double want, double allowed) {
    std::ostringstream s;
    s.precision(9);
    s << what << " of row " << row << ", head " << head;
    if (e >= 0) s << ", element " << e;
    s << " is " << got << "; the oracle says " << want << ", tolerance " << allowed << " (" << options_.ToString() << ")";
    return s.str();
  };
  const auto agree = [](double got, double want, double allowed) {
    if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want);  // NaN: the row belongs to no branch
    if (std::isinf(want) || std::isinf(got)) return got == want;
    return std::abs(got - want) <= allowed;
  };
  for (int64_t r = 0; r < num_rows(); ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const double lse = reference.lse[r * heads + h];
      Tolerance tolerance = ToleranceFor(spec, options_.forest.max_kv_len, contributions, reference.max_abs_score[r * heads + h]);
      if (device_.HasIntegerProducts(spec)) {
        const double score_error = kIntegerScores * reference.max_abs_score[r * heads + h];
        tolerance.lse_absolute += score_error;
        tolerance.out_relative += 2 * score_error;
        tolerance.out_absolute += kIntegerValues * reference.sum_largest[r * heads + h];
      }
      if (with_lse && !agree(output.lse[r * heads + h], lse, tolerance.lse_absolute)) {
        return wrong("lse", r, h, -1, output.lse[r * heads + h], lse, tolerance.lse_absolute);
      }
      for (int64_t e = 0; e < d; ++e) {
        const int64_t i = (r * heads + h) * d + e;
        const double allowed =
            tolerance.out_relative * (reference.sum_abs[i] + std::abs(reference.out[i])) + tolerance.out_absolute;
        if (!agree(output.out[i], reference.out[i], allowed))
          return wrong("out", r, h, e, output.out[i], reference.out[i], allowed);
      }
    }
  }
  return "";
}

}  // namespace coppice::attention::testing
