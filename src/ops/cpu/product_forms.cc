#include "ops/cpu/product_forms.h"

#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "ops/cpu/quantized_strip.h"

namespace coppice::ops {
namespace {

// Operands stay in the second-level cache, so that what is timed is the kernels' own work.
constexpr int64_t kInputs = 512, kPanels = 2, kManyRows = 48;
constexpr BlockFormat kFormat = BlockFormat::kQ4_1;
constexpr int kFewRepeats = 4;

enum class Kind : uint8_t { kF32Few, kF32Many, kBf16Few, kBf16Many, kCoded, kBlocksFew, kBlocksMany };

struct Operands {
  explicit Operands(std::vector<const Kernels*> kernels) : forms(std::move(kernels)) {
    const QuantizedKernels& quantized = *forms.front()->quantized;
    for (int64_t r = 0; r < kManyRows; ++r) {
      quantized.quantize_wide(&x[r * kInputs], DType::kF32, kInputs, Wide().FromRow(r, kInputs));
      forms.front()->code_input(&x_bf16[r * kInputs], kInputs, &codes[r * kInputs], &scales[r * kBlocks], &sums[r * kBlocks]);
    }
  }

  // One turn.
  void Run(Kind kind, const Kernels& kernels) {
    switch (kind) {
      case Kind::kF32Few:
        for (int i = 0; i < kFewRepeats; ++i) F32(kernels, 1);
        break;
      case Kind::kF32Many: F32(kernels, kManyRows); break;
      case Kind::kBf16Few:
        for (int i = 0; i < kFewRepeats; ++i) Bf16(kernels, 1);
        break;
      case Kind::kBf16Many: Bf16(kernels, kManyRows); break;
      case Kind::kCoded:
        for (int i = 0; i < kFewRepeats; ++i) Coded(kernels, 2);
        break;
      case Kind::kBlocksFew:
        for (int i = 0; i < kFewRepeats; ++i) Blocks(kernels, 1, InputPrecision::kWide);
        break;
      case Kind::kBlocksMany: Blocks(kernels, kManyRows, InputPrecision::kNarrow); break;
    }
  }

 private:
  static constexpr int64_t kBlocks = kInputs / kQuantBlock, kStrips = kPanels * kPanelCols / kQuantStripCols;

  void F32(const Kernels& kernels, int64_t rows) {
    for (int64_t p = 0; p < kPanels; ++p)
      kernels.panel_f32(x.data(), kInputs, rows, &panels[p * kInputs * kPanelCols], kInputs, tile.data(), kPanelCols, {});
  }
  void Bf16(const Kernels& kernels, int64_t rows) {
    for (int64_t p = 0; p < kPanels; ++p)
      kernels.panel_bf16(x_bf16.data(), kInputs, rows, &panels_bf16[p * kInputs * kPanelCols], kInputs, tile.data(), kPanelCols,
                         {});
  }
  void Coded(const Kernels& kernels, int64_t rows) {
    const CodedInput input = {.codes = codes.data(), .scales = scales.data(), .sums = sums.data()};
    for (int64_t p = 0; p < kPanels; ++p)
      kernels.panel_coded4(input, rows, blocks.data(), /*ahead=*/0, kInputs, tile.data(), kPanelCols);
  }
  void Blocks(const Kernels& kernels, int64_t rows, InputPrecision precision) {
    const QuantizedKernels& quantized = *kernels.quantized;
    const auto multiply = (precision == InputPrecision::kWide ? quantized.wide : quantized.narrow)[static_cast<size_t>(kFormat)];
    for (int64_t s = 0; s < kStrips; ++s) multiply(Wide(), rows, blocks.data(), /*ahead=*/0, kInputs, tile.data(), kPanelCols);
  }
  QuantizedInput Wide() {
    return {codes.data(), narrow.data(), scales.data(), scales.data(), sums.data(), negated.data(), halves.data()};
  }

  std::vector<const Kernels*> forms;
  std::vector<float> x = std::vector<float>(kManyRows * kInputs, 0.5f);
  std::vector<BF16> x_bf16 = std::vector<BF16>(kManyRows * kInputs, BF16::FromFloat(0.5f));
  std::vector<float> panels = std::vector<float>(kPanels * kInputs * kPanelCols, 0.01f);
  std::vector<BF16> panels_bf16 = std::vector<BF16>(kPanels * kInputs * kPanelCols, BF16::FromFloat(0.01f));
  // Of a strip of blocks, and of a coded panel: zeros, whose products take as long as any.
  std::vector<std::byte> blocks = std::vector<std::byte>(
      std::max(Layout(kFormat).StripBytes(kInputs), kPanelCols / kStripCols * kInputs / kCodeBlock * CodedBlockBytes(4)));
  std::vector<float> tile = std::vector<float>(kManyRows * kPanelCols);
  std::vector<int16_t> codes = std::vector<int16_t>(kManyRows * kInputs);
  std::vector<int8_t> narrow = std::vector<int8_t>(kManyRows * kInputs);
  std::vector<float> scales = std::vector<float>(kManyRows * kBlocks), sums = scales;
  std::vector<int32_t> negated = std::vector<int32_t>(kManyRows * kBlocks), halves = std::vector<int32_t>(2 * kManyRows * kBlocks);
};

// All that this machine runs but the baseline, which is never the faster one where there is another.
std::vector<const Kernels*> ProbedForms() {
  std::vector<const Kernels*> forms;
  for (const Kernels* kernels : SupportedKernels()) {
    if (kernels->code_input != nullptr) forms.push_back(kernels);
  }
  return forms;
}

struct Host {
  std::vector<const Kernels*> all = ProbedForms();
  ProbePlan plan = PlanProductProbe(all);
  ProbeResult probe;
  ProductForms forms = ProductForms::Of(SelectKernels());

  Host() {
    if (KernelsAreForced()) {
      probe.why = "COPPICE_CPU_ISA names them";
    } else {
      probe = ProbeKernels(plan, ProbeOptions::OfProcess(reinterpret_cast<const void*>(&PlanProductProbe)));
      if (!all.empty()) forms = ChooseProducts(all, probe);
    }
  }
};

const Host& ThisHost() {
  static const Host host;
  return host;
}

}  // namespace

const std::vector<ProductKind>& ProductKinds() {
  static const std::vector<ProductKind> kinds = {
      {"f32-few", &ProductForms::f32_few},        {"f32-many", &ProductForms::f32_many}, {"bf16-few", &ProductForms::bf16_few},
      {"bf16-many", &ProductForms::bf16_many},    {"coded", &ProductForms::coded},       {"blocks-few", &ProductForms::blocks_few},
      {"blocks-many", &ProductForms::blocks_many}};
  return kinds;
}

ProbePlan PlanProductProbe(std::vector<const Kernels*> forms) {
  ProbePlan plan{.subject = "products"};
  for (const ProductKind& kind : ProductKinds()) plan.kinds.emplace_back(kind.name);
  for (const Kernels* form : forms) plan.forms.emplace_back(form->isa);
  plan.prepare = [forms = std::move(forms)] {
    const auto operands = std::make_shared<Operands>(forms);
    return [operands, forms](size_t kind, size_t form) {
      return TimeTurn([&] { operands->Run(static_cast<Kind>(kind), *forms[form]); });
    };
  };
  return plan;
}

ProductForms ChooseProducts(const std::vector<const Kernels*>& forms, const ProbeResult& probe) {
  ProductForms chosen = ProductForms::Of(*forms.front());
  for (size_t kind = 0; kind < ProductKinds().size(); ++kind) chosen.*ProductKinds()[kind].form = forms[probe.Fastest(kind)];
  return chosen;
}

const ProductForms& HostProductForms() { return ThisHost().forms; }

ProbeReport ProductReport() {
  const Host& host = ThisHost();
  std::vector<std::string> chosen;
  for (const ProductKind& kind : ProductKinds()) chosen.emplace_back((host.forms.*kind.form)->isa);
  return ReportProbe(host.plan, host.probe, chosen);
}

}  // namespace coppice::ops
