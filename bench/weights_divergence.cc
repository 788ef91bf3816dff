// Accuracy lost by each form of weights: the next-token distributions of a text's windows, beside those of the same weights
// in f32 with products and KV in f32. KL divergence in nats a token, largest and mean, and perplexity. One JSON object a line.
//
//   weights_divergence MODEL TEXT [window=512] [windows=2]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/check.h"
#include "core/thread_pool.h"
#include "model/checkpoint.h"
#include "model/step_inputs.h"
#include "model/transformer.h"

namespace coppice {
namespace {

constexpr int32_t kPageSize = 16, kRowsAtATime = 64;  // logits of so many rows are in memory

struct Form {
  const char* name;
  DType dtype, kv_dtype;
  KeepStored keep_stored;
};
constexpr Form kForms[] = {{"f32, KV bf16", DType::kF32, DType::kBF16, KeepStored::kNone},
                           {"bf16", DType::kBF16, DType::kBF16, KeepStored::kNone},
                           {"fastest", DType::kBF16, DType::kBF16, KeepStored::kWhereFaster},
                           {"stored", DType::kBF16, DType::kBF16, KeepStored::kWherePossible}};

// A model with room for one sequence.
class Runner {
 public:
  static Result<std::unique_ptr<Runner>> Create(const Checkpoint& checkpoint, ThreadPool* threads, const Form& form,
                                                int32_t window) {
    auto runner = std::make_unique<Runner>();
    runner->device_ = Device::CreateCpu(threads);
    COPPICE_ASSIGN_OR_RETURN(runner->context_, attention::Context::CreateCpu(threads));
    COPPICE_ASSIGN_OR_RETURN(runner->model_, Transformer::Create(checkpoint, {.dtype = form.dtype,
                                                                              .kv_dtype = form.kv_dtype,
                                                                              .keep_stored = form.keep_stored,
                                                                              .device = runner->device_.get(),
                                                                              .max_tokens = kRowsAtATime,
                                                                              .max_logit_rows = kRowsAtATime}));
    const int32_t pages = (window + kPageSize - 1) / kPageSize;
    for (int32_t layer = 0; layer < checkpoint.config().num_layers; ++layer) {
      const attention::AttentionSpec& spec = runner->model_->attention_specs()[runner->model_->layer_groups()[layer]];
      const attention::KvPoolShape shape = {.num_pages = pages,
                                            .page_size = kPageSize,
                                            .num_kv_heads = spec.num_kv_heads,
                                            .head_dim = spec.head_dim,
                                            .dtype = spec.kv_dtype};
      COPPICE_ASSIGN_OR_RETURN(Buffer memory, Buffer::Allocate(shape.bytes()));
      COPPICE_ASSIGN_OR_RETURN(auto bound, runner->context_->BindKv(spec, shape.View(memory.data())));
      runner->memory_.push_back(std::move(memory));
      runner->kv_.push_back(std::move(bound));
    }
    for (const attention::AttentionSpec& spec : runner->model_->attention_specs()) {
      COPPICE_ASSIGN_OR_RETURN(
          auto plan, attention::AttentionPlan::Create(
                         *runner->context_, spec,
                         {.max_branches = 1, .max_queries = kRowsAtATime, .max_page_slots = pages, .page_size = kPageSize}, {}));
      runner->plans_.push_back(std::move(plan));
    }
    COPPICE_ASSIGN_OR_RETURN(runner->inputs_,
                             StepInputs::Create(runner->device_.get(), {.max_tokens = kRowsAtATime,
                                                                        .max_logit_rows = kRowsAtATime,
                                                                        .vocab_size = checkpoint.config().vocab_size,
                                                                        .max_position = checkpoint.config().max_position,
                                                                        .num_slots = int64_t{pages} * kPageSize}));
    runner->pages_.resize(pages);
    std::iota(runner->pages_.begin(), runner->pages_.end(), 0);
    return runner;
  }

  // Logits behind tokens [begin, begin + tokens.size()) of a window whose earlier ones have been given.
  Result<MatrixView<const float>> Step(int32_t begin, std::span<const int32_t> tokens) {
    const auto count = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> positions(count), rows(count);
    std::vector<int64_t> slots(count);
    for (int32_t i = 0; i < count; ++i) positions[i] = begin + i, rows[i] = i, slots[i] = begin + i;
    const int32_t parent = attention::kNoParent, zero = 0, live = attention::kLive, length = begin + count,
                  capacity = static_cast<int32_t>(pages_.size());
    const attention::PrefixForestView forest = {.page_size = kPageSize,
                                                .version = ++version_,
                                                .node_parent = {&parent, 1},
                                                .node_begin = {&zero, 1},
                                                .node_end = {&live, 1},
                                                .branch_node = {&zero, 1},
                                                .branch_query_begin = {&zero, 1},
                                                .branch_query_count = {&count, 1},
                                                .branch_kv_len = {&length, 1},
                                                .branch_page_begin = {&zero, 1},
                                                .branch_page_capacity = {&capacity, 1},
                                                .page_indices = pages_};
    std::vector<attention::AttentionPlan*> plans;
    for (const auto& plan : plans_) {
      COPPICE_RETURN_IF_ERROR(plan->Update(forest));
      COPPICE_RETURN_IF_ERROR(plan->Upload());
      plans.push_back(plan.get());
    }
    COPPICE_ASSIGN_OR_RETURN(const DeviceBatch batch, inputs_->Upload({tokens, positions, slots, rows}, nullptr));
    COPPICE_RETURN_IF_ERROR(model_->Forward(batch, plans, kv_, nullptr));
    COPPICE_ASSIGN_OR_RETURN(const ConstDeviceTensor logits, model_->Logits(0, count, nullptr));
    return HostView<float>(logits);
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<attention::Context> context_;
  std::unique_ptr<Transformer> model_;
  std::vector<Buffer> memory_;
  std::vector<std::unique_ptr<attention::BoundKv>> kv_;
  std::vector<std::unique_ptr<attention::AttentionPlan>> plans_;
  std::unique_ptr<StepInputs> inputs_;
  std::vector<int32_t> pages_;
  uint64_t version_ = 0;
};

std::vector<double> LogProbabilities(const float* logits, int64_t vocab) {
  const double largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - largest);
  std::vector<double> result(vocab);
  for (int64_t v = 0; v < vocab; ++v) result[v] = logits[v] - largest - std::log(sum);
  return result;
}

struct Sums {
  double kl = 0, largest = 0, logprob = 0, reference_logprob = 0;
  int64_t tokens = 0, predicted = 0;
};

// Adds what a window says of a form.
Status Compare(Runner& reference, Runner& other, std::span<const int32_t> window, Sums* sums) {
  for (size_t begin = 0; begin < window.size(); begin += kRowsAtATime) {
    const auto part = window.subspan(begin, std::min<size_t>(kRowsAtATime, window.size() - begin));
    COPPICE_ASSIGN_OR_RETURN(const MatrixView<const float> expected, reference.Step(static_cast<int32_t>(begin), part));
    COPPICE_ASSIGN_OR_RETURN(const MatrixView<const float> found, other.Step(static_cast<int32_t>(begin), part));
    for (int64_t row = 0; row < expected.rows; ++row) {
      const std::vector<double> p = LogProbabilities(&expected(row, 0), expected.cols),
                                q = LogProbabilities(&found(row, 0), found.cols);
      double kl = 0;
      for (size_t v = 0; v < p.size(); ++v) kl += std::exp(p[v]) * (p[v] - q[v]);
      sums->kl += kl;
      sums->largest = std::max(sums->largest, kl);
      ++sums->tokens;
      const size_t next = begin + row + 1;
      if (next >= window.size()) continue;
      sums->logprob += q[window[next]];
      sums->reference_logprob += p[window[next]];
      ++sums->predicted;
    }
  }
  return OkStatus();
}

Status Run(const std::string& path, const std::string& text, int32_t window, int32_t windows) {
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  COPPICE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, checkpoint->MakeTokenizer());
  COPPICE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokenizer->Encode(text));
  ThreadPool threads(2);
  COPPICE_ASSIGN_OR_RETURN(const auto reference,
                           Runner::Create(*checkpoint, &threads, {"f32", DType::kF32, DType::kF32, KeepStored::kNone}, window));
  for (const Form& form : kForms) {
    COPPICE_ASSIGN_OR_RETURN(const auto other, Runner::Create(*checkpoint, &threads, form, window));
    Sums sums;
    for (int32_t w = 0; w < windows && static_cast<size_t>(w) * window < tokens.size(); ++w) {
      const size_t begin = static_cast<size_t>(w) * window;
      COPPICE_RETURN_IF_ERROR(
          Compare(*reference, *other, std::span(tokens).subspan(begin, std::min<size_t>(window, tokens.size() - begin)), &sums));
    }
    const double perplexity = std::exp(-sums.logprob / static_cast<double>(sums.predicted)),
                 exact = std::exp(-sums.reference_logprob / static_cast<double>(sums.predicted));
    std::printf(
        "{\"weights\": \"%s\", \"tokens\": %ld, \"kl_mean\": %.3g, \"kl_largest\": %.3g, \"perplexity\": %.4f, "
        "\"perplexity_f32\": %.4f, \"perplexity_change\": \"%+.2f %%\"}\n",
        form.name, static_cast<long>(sums.tokens), sums.kl / static_cast<double>(sums.tokens), sums.largest, perplexity, exact,
        100 * (perplexity / exact - 1));
    std::fflush(stdout);
  }
  return OkStatus();
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: weights_divergence MODEL TEXT [window=512] [windows=2]\n";
    return 2;
  }
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const coppice::Status status =
      coppice::Run(argv[1], text, argc > 3 ? std::atoi(argv[3]) : 512, argc > 4 ? std::atoi(argv[4]) : 2);
  if (!status.ok()) std::cerr << status.ToString() << "\n";
  return status.ok() ? 0 : 1;
}
