// Products by kernels of several instruction sets: what a probe chooses, and that each kind of product takes what was chosen for
// it. Layer: ops, tests.
#include "ops/cpu/product_forms.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/math.h"
#include "core/thread_pool.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/testing/host_tensor.h"

namespace coppice::ops {
namespace {

std::vector<const Kernels*> Forms() {
  std::vector<const Kernels*> forms;
  for (const Kernels* kernels : SupportedKernels()) {
    if (kernels->code_input != nullptr) forms.push_back(kernels);
  }
  return forms;
}

TEST(ProductForms, FollowTheProbeKindByKind) {
  const std::vector<const Kernels*> forms = Forms();
  if (forms.size() < 2) GTEST_SKIP() << "one set of kernels";
  for (size_t faster = 0; faster < ProductKinds().size(); ++faster) {
    ProbeResult probe{.source = ProbeResult::Source::kMeasured};
    for (size_t kind = 0; kind < ProductKinds().size(); ++kind) {
      probe.times.emplace_back(forms.size(), FormTime{.ns = 1});
      if (kind == faster) probe.times[kind][1] = {.ns = 1, .ratio = 0.5, .high = 0.6};
    }
    const ProductForms chosen = ChooseProducts(forms, probe);
    for (size_t kind = 0; kind < ProductKinds().size(); ++kind)
      EXPECT_EQ(chosen.*ProductKinds()[kind].form, forms[kind == faster]) << ProductKinds()[kind].name;
  }
  const ProductForms table = ChooseProducts(forms, {});
  EXPECT_EQ(table.bf16_many, forms.front());
}

// Every kind of every set is timed within the time that a start has for it, on a machine that does nothing else.
TEST(ProductForms, TimesEveryKind) {
  const std::vector<const Kernels*> forms = Forms();
  if (forms.size() < 2) GTEST_SKIP() << "one set of kernels";
  const ProbeResult result = ProbeKernels(PlanProductProbe(forms), {.seconds = 10});
  ASSERT_EQ(result.source, ProbeResult::Source::kMeasured);
  ASSERT_EQ(result.times.size(), ProductKinds().size());
  for (const auto& kind : result.times) {
    for (const FormTime& time : kind) EXPECT_GT(time.ns, 0);
  }
}

// A product by mixed forms has the bits of the one form that was chosen for its kind, whatever the others are.
class MixedFormsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kInputs = 96, kOutputs = 80;

  std::vector<float> Multiply(Ops& ops, DType dtype, const LinearPart& part, int64_t rows) {
    std::vector<float> x(RoundUp(rows, kRowPadding) * kInputs);
    std::vector<BF16> x_bf16(x.size());
    for (int64_t i = 0; i < rows * kInputs; ++i) {
      x[i] = static_cast<float>(i * 7919 % 1000) / 1000 - 0.5f;
      x_bf16[i] = BF16::FromFloat(x[i]);
    }
    const auto weight = ops.Pack(dtype, kInputs, {&part, 1});
    EXPECT_TRUE(weight.ok()) << weight.status().ToString();
    std::vector<float> y(rows * kOutputs);
    const void* const data = dtype == DType::kF32 ? static_cast<const void*>(x.data()) : x_bf16.data();
    EXPECT_TRUE(ops.Linear({data, dtype, rows, kInputs, kInputs}, **weight, HostTensor(y, rows, kOutputs), {}, nullptr).ok());
    return y;
  }

  ThreadPool pool_{2};
  std::unique_ptr<Device> device_ = Device::CreateCpu(&pool_);
};

TEST_F(MixedFormsTest, EachKindTakesItsOwn) {
  const std::vector<const Kernels*> forms = Forms();
  if (forms.size() < 2) GTEST_SKIP() << "one set of kernels";
  std::vector<float> f32(kInputs * kOutputs);
  std::vector<BF16> bf16(f32.size());
  for (size_t i = 0; i < f32.size(); ++i) {
    f32[i] = static_cast<float>(i * 104729 % 1000) / 1000 - 0.5f;
    bf16[i] = BF16::FromFloat(f32[i]);
  }
  const LinearPart of_f32{f32.data(), kOutputs}, of_bf16{bf16.data(), kOutputs};
  for (const Kernels* other : forms) {
    const Kernels& best = *forms.front();
    const ProductForms of_best = ProductForms::Of(best), of_other = ProductForms::Of(*other);
    ProductForms mixed = of_best;
    mixed.bf16_many = mixed.f32_few = other;
    const auto multiply = [&](const ProductForms& products, DType dtype, int64_t rows) {
      return Multiply(*MakeCpuOps(device_.get(), {}, best, ProductLibrary::kPanels, products), dtype,
                      dtype == DType::kF32 ? of_f32 : of_bf16, rows);
    };
    for (const int64_t rows : {1, 4, 5, 64, 66}) {
      const bool few = rows <= kFewRows;
      EXPECT_EQ(multiply(mixed, DType::kBF16, rows), multiply(few ? of_best : of_other, DType::kBF16, rows)) << other->isa << rows;
      EXPECT_EQ(multiply(mixed, DType::kF32, rows), multiply(few ? of_other : of_best, DType::kF32, rows)) << other->isa << rows;
    }
  }
}

// Whether blocks are preferred to bf16 goes by the kernels of many rows.
TEST_F(MixedFormsTest, BlocksArePreferredWhereManyRowsHaveNoPairs) {
  const std::vector<const Kernels*> forms = Forms();
  if (forms.empty()) GTEST_SKIP() << "the baseline alone";
  const auto preferred = [&](const Kernels* many) {
    ProductForms products = ProductForms::Of(*forms.front());
    products.bf16_many = many;
    const auto ops = MakeCpuOps(device_.get(), {}, *forms.front(), ProductLibrary::kAuto, products);
    const PartShape part{.rows = 64, .format = BlocksFormat{BlockFormat::kQ4_1}};
    return ops->Accepts({&part, 1}, DType::kBF16, 256).preferred;
  };
  for (const Kernels* form : forms) EXPECT_EQ(preferred(form), !form->multiplies_bf16) << form->isa;
}

}  // namespace
}  // namespace coppice::ops
