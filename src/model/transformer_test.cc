// The forward pass with the attention library against what Hugging Face transformers computed (float32) for random models.
// Figures of this test are in docs/matrix_products.md.
#include "model/transformer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/buffer.h"
#include "core/communicator.h"
#include "core/thread_pool.h"
#include "model/rope.h"
#include "model/safetensors.h"
#include "model/weight_map.h"

namespace coppice {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kPageSize = 16;

std::string FixturePath(const std::string& name) { return std::string(COPPICE_TEST_DATA) + "/models/" + name; }

// Results of transformers for one prompt.
struct Expected {
  std::vector<int32_t> prompt, greedy;
  std::vector<float> logits, greedy_logprobs;  // logits: [prompt, vocab]
};

Expected LoadExpected(const std::string& name) {
  auto file = SafetensorsFile::Open(FixturePath(name) + "/expected.safetensors");
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  return {*file->Read<int32_t>("prompt"), *file->Read<int32_t>("greedy"), *file->Read<float>("logits"),
          *file->Read<float>("greedy_logprobs")};
}

std::vector<double> LogProbabilities(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float l : logits) sum += std::exp(l - max);
  std::vector<double> result;
  for (float l : logits) result.push_back(l - max - std::log(sum));
  return result;
}

// A model with KV for `num_branches` sequences that share their first `shared` tokens (whole pages), one node for those and one
// leaf each.
class Runner {
 public:
  Runner(const std::string& fixture, DType dtype, bool deterministic, int32_t num_branches = 1, int32_t shared = 0,
         Communicator* communicator = nullptr, std::optional<DType> head_dtype = {})
      : shared_(shared), pool_(communicator == nullptr ? 2 : 1) {
    auto checkpoint = Checkpoint::Open(FixturePath(fixture));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    context_ = *attention::Context::CreateCpu(&pool_);
    auto model = Transformer::Create(**checkpoint, {.dtype = dtype,
                                                    .head_dtype = head_dtype,
                                                    .device = device_.get(),
                                                    .communicator = communicator,
                                                    .max_tokens = 320,
                                                    .max_logit_rows = 320,
                                                    .deterministic = deterministic});
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    model_ = std::move(model).value();

    const attention::AttentionSpec spec = model_->attention_specs().front();
    const int32_t pages_per_branch = 24;  // 384 tokens
    const attention::KvPoolShape shape = {.num_pages = pages_per_branch * num_branches,
                                          .page_size = kPageSize,
                                          .num_kv_heads = spec.num_kv_heads,
                                          .head_dim = spec.head_dim,
                                          .dtype = dtype};
    for (int32_t layer = 0; layer < model_->config().num_layers; ++layer) {
      pages_.push_back(*Buffer::Allocate(shape.bytes()));
      std::memset(pages_.back().data(), 0xff, pages_.back().size());  // NaN: nothing may be read before it is written
      const attention::AttentionSpec& layer_spec = model_->attention_specs()[model_->layer_groups()[layer]];
      kv_.push_back(*context_->BindKv(layer_spec, shape.View(pages_.back().data())));
    }
    inputs_ = *StepInputs::Create(device_.get(), {.max_tokens = 320,
                                                  .max_logit_rows = 320,
                                                  .vocab_size = model_->config().vocab_size,
                                                  .max_position = model_->config().max_position,
                                                  .num_slots = int64_t{shape.num_pages} * kPageSize});
    if (shared > 0) {
      parent_.push_back(attention::kNoParent);
      begin_.push_back(0);
      end_.push_back(shared);
    }
    for (int32_t b = 0; b < num_branches; ++b) {
      branch_node_.push_back(static_cast<int32_t>(parent_.size()));
      parent_.push_back(shared > 0 ? 0 : attention::kNoParent);
      begin_.push_back(shared);
      end_.push_back(attention::kLive);
      query_begin_.push_back(0);
      query_count_.push_back(0);
      kv_len_.push_back(shared);
      page_begin_.push_back(b * pages_per_branch);
      page_capacity_.push_back(pages_per_branch);
      for (int32_t p = 0; p < pages_per_branch; ++p) page_indices_.push_back(p < shared / kPageSize ? p : b * pages_per_branch + p);
    }
    kv_len_[0] = 0;  // computes the shared part
    for (const attention::AttentionSpec& group : model_->attention_specs()) {
      plans_.push_back(*attention::AttentionPlan::Create(*context_, group,
                                                         {.max_branches = num_branches,
                                                          .max_queries = 320,
                                                          .max_page_slots = static_cast<int32_t>(page_indices_.size()),
                                                          .page_size = kPageSize},
                                                         {.force_sharing = shared > 0}));
    }
  }

  // Appends tokens[b] to branch b, for all branches in one batch; logits of `rows`, or of every row, in order.
  Result<std::vector<float>> Step(const std::vector<std::vector<int32_t>>& tokens, std::optional<std::vector<int32_t>> rows = {}) {
    std::vector<int32_t> ids, positions;
    std::vector<int64_t> slots;
    for (size_t b = 0; b < tokens.size(); ++b) {
      query_begin_[b] = static_cast<int32_t>(ids.size());
      query_count_[b] = static_cast<int32_t>(tokens[b].size());
      for (int32_t id : tokens[b]) {
        const int32_t position = kv_len_[b]++;
        ids.push_back(id);
        positions.push_back(position);
        slots.push_back(int64_t{page_indices_[page_begin_[b] + position / kPageSize]} * kPageSize + position % kPageSize);
      }
    }
    if (!rows) {
      rows.emplace(ids.size());
      std::iota(rows->begin(), rows->end(), 0);
    }
    const attention::PrefixForestView forest = {.page_size = kPageSize,
                                                .version = ++version_,
                                                .node_parent = parent_,
                                                .node_begin = begin_,
                                                .node_end = end_,
                                                .branch_node = branch_node_,
                                                .branch_query_begin = query_begin_,
                                                .branch_query_count = query_count_,
                                                .branch_kv_len = kv_len_,
                                                .branch_page_begin = page_begin_,
                                                .branch_page_capacity = page_capacity_,
                                                .page_indices = page_indices_};
    for (const auto& plan : plans_) {
      if (Status status = plan->Update(forest); !status.ok()) return status;
      if (Status status = plan->Upload(); !status.ok()) return status;
    }
    const auto logits = Forward({ids, positions, slots, *rows});
    if (!logits.ok()) return logits.status();
    const MatrixView<const float> view = HostView<float>(*logits);
    return std::vector<float>(view.data, view.data + view.rows * view.cols);
  }

  Result<ConstDeviceTensor> Forward(const ForwardBatch& batch) {
    const auto uploaded = inputs_->Upload(batch, nullptr);
    if (!uploaded.ok()) return uploaded.status();
    std::vector<attention::AttentionPlan*> plans;
    for (const auto& plan : plans_) plans.push_back(plan.get());
    if (Status status = model_->Forward(*uploaded, plans, kv_, nullptr); !status.ok()) return status;
    return model_->Logits(0, uploaded->logit_rows.size, nullptr);
  }

  // All of one branch's tokens, `chunk` at a time.
  std::vector<float> Prefill(std::span<const int32_t> tokens, int32_t chunk) {
    std::vector<float> all;
    for (size_t first = 0; first < tokens.size(); first += chunk) {
      const auto part = tokens.subspan(first, std::min<size_t>(chunk, tokens.size() - first));
      const auto logits = Step({{part.begin(), part.end()}});
      EXPECT_TRUE(logits.ok()) << logits.status().ToString();
      if (!logits.ok()) return all;
      all.insert(all.end(), logits->begin(), logits->end());
    }
    return all;
  }

  // The next step begins with the first token.
  void Restart() { std::ranges::fill(kv_len_, 0); }

  Transformer& model() { return *model_; }
  int32_t vocab_size() const { return model_->config().vocab_size; }

 private:
  int32_t shared_;
  ThreadPool pool_;
  std::unique_ptr<Device> device_ = Device::CreateCpu(&pool_);
  std::unique_ptr<attention::Context> context_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<StepInputs> inputs_;
  std::vector<Buffer> pages_;
  std::vector<std::unique_ptr<attention::BoundKv>> kv_;
  std::vector<std::unique_ptr<attention::AttentionPlan>> plans_;
  std::vector<int32_t> parent_, begin_, end_, branch_node_, query_begin_, query_count_, kv_len_, page_begin_, page_capacity_,
      page_indices_;
  uint64_t version_ = 0;
};

// Ranks of threads, each with a Runner of its own.
class Ranks {
 public:
  Ranks(int size, const std::string& fixture, DType dtype) {
    pools_.resize(size);
    std::vector<Executor*> executors;
    for (auto& pool : pools_) executors.push_back((pool = std::make_unique<ThreadPool>(1)).get());
    group_ = MakeThreadGroup(executors);
    for (int rank = 0; rank < size; ++rank) {
      ends_.push_back(group_->MakeRank(rank));
      runners_.push_back(std::make_unique<Runner>(fixture, dtype, /*deterministic=*/true, 1, 0, ends_.back().get()));
    }
  }
  Runner& first() { return *runners_.front(); }

  void ForEach(const std::function<void(Runner&, size_t rank)>& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < runners_.size(); ++rank) threads.emplace_back([&, rank] { body(*runners_[rank], rank); });
    for (std::thread& thread : threads) thread.join();
  }
  // Logits of the first rank; the others have none.
  std::vector<float> Prefill(std::span<const int32_t> tokens, int32_t chunk) {
    std::vector<std::vector<float>> logits(runners_.size());
    ForEach([&](Runner& runner, size_t rank) { logits[rank] = runner.Prefill(tokens, chunk); });
    for (size_t rank = 1; rank < logits.size(); ++rank) EXPECT_TRUE(logits[rank].empty());
    return logits.front();
  }

 private:
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::unique_ptr<CommunicatorGroup> group_;
  std::vector<std::unique_ptr<Communicator>> ends_;
  std::vector<std::unique_ptr<Runner>> runners_;
};

// The contract of float32: 1e-3 absolute and 1e-4 relative (L2, per position).
void ExpectLogits(std::span<const float> actual, std::span<const float> expected, int32_t vocab) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t first = 0; first < actual.size(); first += vocab) {
    double difference = 0, norm = 0;
    for (size_t i = first; i < first + vocab; ++i) {
      ASSERT_NEAR(actual[i], expected[i], 1e-3) << "position " << first / vocab << ", token " << i - first;
      difference += std::pow(double{actual[i]} - expected[i], 2);
      norm += std::pow(double{expected[i]}, 2);
    }
    ASSERT_LT(std::sqrt(difference / norm), 1e-4) << "position " << first / vocab;
  }
}

class FixtureTest : public testing::TestWithParam<const char*> {
 protected:
  const Expected expected_ = LoadExpected(GetParam());
};

TEST_P(FixtureTest, Float32LogitsOfEveryPromptPosition) {
  const auto length = static_cast<int32_t>(expected_.prompt.size());
  for (int32_t chunk : {length, 1, 7, 16, 50}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    Runner runner(GetParam(), DType::kF32, false);
    const std::vector<float> logits = runner.Prefill(expected_.prompt, chunk);
    ASSERT_NO_FATAL_FAILURE(ExpectLogits(logits, expected_.logits, runner.vocab_size()));
  }
}

TEST_P(FixtureTest, Float32GreedyContinuation) {
  Runner runner(GetParam(), DType::kF32, false);
  std::vector<float> logits = runner.Prefill(expected_.prompt, 64);
  for (size_t i = 0; i < expected_.greedy.size(); ++i) {
    const std::span<const float> last(logits.end() - runner.vocab_size(), logits.end());
    const auto token = static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
    ASSERT_EQ(token, expected_.greedy[i]) << "step " << i;
    ASSERT_NEAR(LogProbabilities(last)[token], expected_.greedy_logprobs[i], 1e-3) << "step " << i;
    const auto next = runner.Step({{token}});
    ASSERT_TRUE(next.ok()) << next.status().ToString();
    logits = *next;
  }
}

// Weights unlike a checkpoint's, as a trainer has them.
struct OtherWeights {
  explicit OtherWeights(const Checkpoint& checkpoint) {
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      const bool is_vector = tensor.shape.size() == 1;
      std::vector<float>& changed = values[name];
      changed.resize(tensor.shape[0] * (is_vector ? 1 : tensor.shape[1]));
      const Status loaded = checkpoint.Load(name, is_vector ? 1 : tensor.shape[0], tensor.shape.back(), DType::kF32,
                                            std::as_writable_bytes(std::span(changed)));
      EXPECT_TRUE(loaded.ok()) << loaded.ToString();
      for (size_t i = 0; i < changed.size(); ++i) changed[i] = changed[i] * (0.75f + 0.01f * (i % 50)) + 0.001f;
      tensors[name] = {
          .file = "trainer", .type = StoredType::kF32, .shape = tensor.shape, .data = std::as_bytes(std::span(changed))};
    }
  }
  std::map<std::string, std::vector<float>> values;
  TensorMap tensors;
};

// All of a model's weights are replaced by others, whole or tensor by tensor, and back by those of its file.
TEST_P(FixtureTest, ReplacedWeightsGiveTheBitsOfLoadedOnes) {
  const auto checkpoint = Checkpoint::Open(FixturePath(GetParam())).value();
  const OtherWeights others(*checkpoint);
  const TensorMap& tensors = others.tensors;
  const auto prompt = std::span(expected_.prompt).first(20);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Runner fresh(GetParam(), dtype, true), whole(GetParam(), dtype, true), pieces(GetParam(), dtype, true);
    const std::vector<float> before = fresh.Prefill(prompt, 20);
    const auto update = [](Runner* runner, const TensorMap& with) {
      const auto source = runner->model().PrepareUpdate(with);
      return source.ok() ? runner->model().UpdateWeights(**source) : source.status();
    };
    ASSERT_TRUE(update(&whole, tensors).ok());
    for (const auto& [name, tensor] : tensors) {
      const Status status = update(&pieces, {{name, tensor}});
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    const std::vector<float> after = whole.Prefill(prompt, 20);
    EXPECT_NE(after, before);
    EXPECT_EQ(pieces.Prefill(prompt, 20), after);
    for (Runner* runner : {&whole, &pieces}) {
      ASSERT_TRUE(runner->model().UpdateWeights(*checkpoint).ok());
      runner->Restart();
      EXPECT_EQ(runner->Prefill(prompt, 20), before);
    }
  }
}

// Rows of the output projection that no token of the prompt has as an embedding are made multiples of unit vectors, so that their
// logits are inputs of the projection: those of a head in f32 are what a head in bf16 rounds.
TEST_P(FixtureTest, AFloat32HeadRoundsNeitherInputsNorWeights) {
  const auto checkpoint = Checkpoint::Open(FixturePath(GetParam())).value();
  const ModelConfig& config = checkpoint->config();
  const auto prompt = std::span(expected_.prompt).first(20);
  const WeightEntry head = WeightsOf(config).at({kNoLayer, config.tie_embeddings ? WeightRole::kEmbedding : WeightRole::kLmHead});
  std::vector<size_t> rows;
  for (int32_t row = 0; row < config.vocab_size && std::ssize(rows) < config.hidden_size; ++row) {
    if (std::ranges::find(prompt, row) == prompt.end()) rows.push_back(static_cast<size_t>(row));
  }
  Runner rounding(GetParam(), DType::kBF16, true), exact(GetParam(), DType::kBF16, true, 1, 0, nullptr, DType::kF32);
  if (!config.tie_embeddings) {
    EXPECT_EQ(exact.model().Weights().at(head.name + ".weight").dtype, DType::kF32);
  }
  const size_t vocab = config.vocab_size, hidden = config.hidden_size;
  const auto logits_with = [&](float scale) {
    OtherWeights others(*checkpoint);
    std::vector<float>& values = others.values.at(head.name + ".weight");
    for (size_t k = 0; k < rows.size(); ++k) {
      for (size_t i = 0; i < hidden; ++i) values[rows[k] * hidden + i] = i == k ? scale : 0.0f;
    }
    if (head.bias) std::ranges::fill(others.values.at(head.name + ".bias"), 0.0f);
    std::vector<std::vector<float>> logits;
    for (Runner* runner : {&rounding, &exact}) {
      const auto source = runner->model().PrepareUpdate(others.tensors);
      EXPECT_TRUE(source.ok() && runner->model().UpdateWeights(**source).ok());
      runner->Restart();
      logits.push_back(runner->Prefill(prompt, 20));
    }
    return logits;
  };
  constexpr float kFine = 1 + 1.0f / 1024;  // in bf16: 1
  const auto plain = logits_with(1), scaled = logits_with(kFine);
  int32_t rounded = 0;
  for (size_t p = 0; p < prompt.size(); ++p) {
    for (const size_t row : rows) {
      const size_t i = p * vocab + row;
      ASSERT_EQ(plain[0][i], BF16::FromFloat(plain[1][i]).ToFloat());
      ASSERT_EQ(scaled[0][i], plain[0][i]);
      ASSERT_EQ(scaled[1][i], plain[1][i] * kFine);
      rounded += plain[0][i] != plain[1][i];
    }
  }
  EXPECT_GT(rounded, 10 * std::ssize(rows));
}

// Of an update in parts, what has not come is missing until its end; after one that is given up, all that the next one lacks.
TEST_P(FixtureTest, PartsOfAnUpdateReportWhatIsMissing) {
  const auto checkpoint = Checkpoint::Open(FixturePath(GetParam())).value();
  Runner runner(GetParam(), DType::kF32, true);
  Transformer& model = runner.model();
  const auto missing = [&] {
    return std::ranges::count_if(model.Weights(), [](const auto& weight) { return weight.second.missing; });
  };
  const int64_t all = std::ssize(model.Weights());
  EXPECT_EQ(all, std::ssize(ExpectedWeights(model.config())));
  const auto& [name, tensor] = *checkpoint->tensors().begin();
  const auto part = model.PrepareUpdate({{name, tensor}}).value();
  EXPECT_EQ(model.Weights().at(name).shape, tensor.shape);
  model.BeginUpdate();
  EXPECT_EQ(missing(), all);
  ASSERT_TRUE(model.UpdateWeights(*part).ok());
  EXPECT_EQ(missing(), all - 1);
  EXPECT_FALSE(model.Weights().at(name).missing);
  EXPECT_FALSE(model.weights_are_whole());
  model.EndUpdate();
  EXPECT_TRUE(model.weights_are_whole());
  model.BeginUpdate();
  model.BeginUpdate();
  ASSERT_TRUE(model.UpdateWeights(*part).ok());
  model.EndUpdate();
  EXPECT_EQ(missing(), all - 1);
  model.BeginUpdate();
  ASSERT_TRUE(model.UpdateWeights(*checkpoint).ok());
  EXPECT_TRUE(model.weights_are_whole());
}

// Two ranks; three and four, among which heads, columns and vocabulary are not divided evenly: a rank may have nothing but zeros.
TEST_P(FixtureTest, RanksGiveTheLogitsOfOneAndTheSameBitsEachTime) {
  for (const int size : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    std::vector<float> before;
    for (const int32_t chunk : {50, 50, 7}) {
      Ranks ranks(size, GetParam(), DType::kF32);
      const std::vector<float> logits = ranks.Prefill(expected_.prompt, chunk);
      ASSERT_NO_FATAL_FAILURE(ExpectLogits(logits, expected_.logits, ranks.first().vocab_size()));
      if (!before.empty()) {
        ASSERT_EQ(logits, before) << "chunk " << chunk;
      }
      before = logits;
    }
  }
}

// Each rank takes its part of other weights, whole or tensor by tensor, and of its file's again.
TEST_P(FixtureTest, WeightsAreReplacedOnEveryRank) {
  const auto checkpoint = Checkpoint::Open(FixturePath(GetParam())).value();
  const OtherWeights others(*checkpoint);
  const auto prompt = std::span(expected_.prompt).first(20);
  Runner one(GetParam(), DType::kF32, true);
  Ranks whole(3, GetParam(), DType::kF32), pieces(3, GetParam(), DType::kF32);
  const std::vector<float> before = whole.Prefill(prompt, 20);
  const auto update = [](Runner& runner, const TensorMap& with) {
    const auto source = runner.model().PrepareUpdate(with);
    const Status status = source.ok() ? runner.model().UpdateWeights(**source) : source.status();
    EXPECT_TRUE(status.ok()) << status.ToString();
  };
  update(one, others.tensors);
  whole.ForEach([&](Runner& runner, size_t) {
    update(runner, others.tensors);
    runner.Restart();
  });
  pieces.ForEach([&](Runner& runner, size_t) {
    for (const auto& [name, tensor] : others.tensors) update(runner, {{name, tensor}});
  });
  const std::vector<float> after = whole.Prefill(prompt, 20);
  ASSERT_NO_FATAL_FAILURE(ExpectLogits(after, one.Prefill(prompt, 20), one.vocab_size()));
  EXPECT_EQ(pieces.Prefill(prompt, 20), after);
  whole.ForEach([&](Runner& runner, size_t) {
    EXPECT_TRUE(runner.model().UpdateWeights(*checkpoint).ok());
    runner.Restart();
  });
  EXPECT_EQ(whole.Prefill(prompt, 20), before);
}

TEST_P(FixtureTest, Float32BranchesThatShareTheirPrefix) {
  constexpr int32_t kBranches = 3;
  const int32_t shared = static_cast<int32_t>(expected_.prompt.size()) * 3 / 4 / kPageSize * kPageSize;
  Runner runner(GetParam(), DType::kF32, false, kBranches, shared);
  const std::span<const int32_t> prompt = expected_.prompt;
  std::vector<std::vector<int32_t>> step(kBranches);
  step[0].assign(prompt.begin(), prompt.begin() + shared);
  ASSERT_TRUE(runner.Step(step).ok());
  for (auto& tokens : step) tokens.assign(prompt.begin() + shared, prompt.end());
  const auto logits = runner.Step(step);
  ASSERT_TRUE(logits.ok()) << logits.status().ToString();
  const size_t per_branch = logits->size() / kBranches;
  for (int32_t b = 0; b < kBranches; ++b) {
    SCOPED_TRACE("branch " + std::to_string(b));
    ASSERT_NO_FATAL_FAILURE(ExpectLogits(std::span(*logits).subspan(b * per_branch, per_branch),
                                         std::span(expected_.logits).subspan(shared * runner.vocab_size()), runner.vocab_size()));
  }
}

// Storage in bf16 costs accuracy; how much is printed. The bound is that of the real model.
TEST_P(FixtureTest, BF16LogProbabilities) {
  Runner runner(GetParam(), DType::kBF16, false);
  const std::vector<float> logits = runner.Prefill(expected_.prompt, 64);
  ASSERT_EQ(logits.size(), expected_.logits.size());
  const size_t vocab = runner.vocab_size();
  double sum = 0, largest = 0;
  for (size_t p = 0; p + 1 < expected_.prompt.size(); ++p) {
    const int32_t next = expected_.prompt[p + 1];
    const double difference = std::abs(LogProbabilities(std::span(logits).subspan(p * vocab, vocab))[next] -
                                       LogProbabilities(std::span(expected_.logits).subspan(p * vocab, vocab))[next]);
    sum += difference;
    largest = std::max(largest, difference);
  }
  const double mean = sum / static_cast<double>(expected_.prompt.size() - 1);
  RecordProperty("mean_abs_logprob_difference", std::to_string(mean));
  std::printf("bf16 %s: prompt log-probabilities differ by %.5f in the mean, %.5f at most\n", GetParam(), mean, largest);
  EXPECT_LT(mean, 0.05);
}

TEST_P(FixtureTest, DeterministicBitsDoNotDependOnChunks) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<float> whole;
    for (int32_t chunk : {static_cast<int32_t>(expected_.prompt.size()), 1, 13, 64}) {
      Runner runner(GetParam(), dtype, true);
      const std::vector<float> logits = runner.Prefill(expected_.prompt, chunk);
      ASSERT_EQ(logits.size(), expected_.logits.size());
      if (whole.empty()) whole = logits;
      const auto [a, b] = std::mismatch(whole.begin(), whole.end(), logits.begin());
      ASSERT_TRUE(a == whole.end()) << Name(dtype) << " chunk " << chunk << ": logit " << a - whole.begin() << " is " << *b
                                    << ", was " << *a;
    }
  }
}

// The last layer leaves out the rows whose logits are not wanted; those of others, of this step and the next, stay as they are.
TEST_P(FixtureTest, LogitsDoNotDependOnWhichOthersAreWanted) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const auto length = static_cast<int32_t>(expected_.prompt.size());
    Runner all(GetParam(), dtype, true);
    const std::vector<float> expected = all.Prefill(expected_.prompt, length);
    const auto next = all.Step({{expected_.greedy.front()}});
    ASSERT_TRUE(next.ok());
    const int32_t vocab = all.vocab_size();
    for (const std::vector<int32_t>& rows :
         std::vector<std::vector<int32_t>>{{}, {length - 1}, {length - 1, 3, 3}, {0, length / 2}}) {
      Runner some(GetParam(), dtype, true);
      const auto logits = some.Step({expected_.prompt}, rows);
      ASSERT_TRUE(logits.ok()) << logits.status().ToString();
      ASSERT_EQ(logits->size(), rows.size() * vocab);
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto begin = logits->begin() + static_cast<int64_t>(i) * vocab;
        EXPECT_TRUE(std::equal(begin, begin + vocab, expected.begin() + int64_t{rows[i]} * vocab))
            << Name(dtype) << ", row " << rows[i] << " of " << rows.size();
      }
      const auto after = some.Step({{expected_.greedy.front()}});
      ASSERT_TRUE(after.ok());
      EXPECT_EQ(*after, *next) << Name(dtype) << ", after " << rows.size() << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FixtureTest,
                         testing::Values("llama-gqa", "llama3-rope", "llama-hd64-long", "llama-hd128-long", "qwen2-a", "qwen3",
                                         "mistral-sw", "mistral-hd64-sw-long", "llama-yarn-a", "phi2-a", "starcoder-a",
                                         "starcoder-long-a", "codegen-a", "gemma3-a", "gemma3-long-a"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Transformer, RefusesABatchThatDoesNotFit) {
  Runner runner("llama-gqa", DType::kF32, false);
  ASSERT_TRUE(runner.Step({{1, 2, 3}}).ok());
  const auto error = [&](ForwardBatch batch) { return runner.Forward(batch).status().message(); };
  const std::vector<int32_t> ids = {1, 320}, positions = {3, 4}, rows = {0}, late = {2};
  const std::vector<int64_t> slots = {3, 4};
  EXPECT_THAT(error({}), HasSubstr("a batch has 0 tokens; expected 1 to 320"));
  EXPECT_THAT(error({ids, positions, slots, rows}), HasSubstr("token 1 of a batch is 320; the model's ids are 0 to 319"));
  EXPECT_THAT(error({ids, std::span(positions).first(1), slots, rows}), HasSubstr("2 tokens has 1 positions and 2 slots"));
  EXPECT_THAT(error({positions, positions, slots, late}), HasSubstr("row 2 of a batch of 2 tokens"));
  EXPECT_THAT(error({positions, std::vector<int32_t>{3, 4096}, slots, rows}),
              HasSubstr("position 4096; the model's are 0 to 2047"));
  EXPECT_THAT(error({positions, positions, std::vector<int64_t>{3, 384}, rows}), HasSubstr("slot 384; the KV pool has 384"));
  EXPECT_THAT(runner.model().Forward({}, {}, {}, nullptr).message(), HasSubstr("the KV cache has 0 layers, the model 3"));
}

TEST(Transformer, LogitsOfAFewRowsAtATimeAreThoseOfAll) {
  std::vector<int32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(7 * i % 320);
  std::vector<int32_t> most(70), few;  // most of the rows, and so few that the last layer leaves the others out
  std::iota(most.begin(), most.end(), 10);
  for (int32_t row = 3; row < 100; row += 4) few.push_back(row);
  for (const std::vector<int32_t>& rows : {most, few}) {
    Runner runner("llama-gqa", DType::kF32, /*deterministic=*/true);
    const auto all = runner.Step({tokens}, rows);
    ASSERT_TRUE(all.ok()) << all.status().ToString();
    const auto count = static_cast<int64_t>(rows.size());
    const size_t vocab = all->size() / rows.size();
    for (int64_t begin = 0; begin < count; begin += 9) {
      const int64_t part = std::min<int64_t>(9, count - begin);
      const auto logits = runner.model().Logits(begin, part, nullptr);
      ASSERT_TRUE(logits.ok()) << logits.status().ToString();
      ASSERT_EQ(logits->rows, part);
      for (int64_t r = 0; r < part; ++r) {
        const std::span<const float> row = HostView<float>(*logits).Row(r);
        ASSERT_TRUE(std::ranges::equal(row, std::span(*all).subspan((begin + r) * vocab, vocab))) << begin + r;
      }
    }
    const auto beyond = runner.model().Logits(count - 1, 2, nullptr).status();
    EXPECT_THAT(beyond.message(), HasSubstr("expected at most 320 at a time of the step's " + std::to_string(count)));
  }
}

TEST(InverseFrequencies, PlainLinearLlama3AndDivisors) {
  const std::vector<float> plain = InverseFrequencies({.theta = 1e4f}, 8, 0);
  ASSERT_EQ(plain.size(), 4u);
  EXPECT_FLOAT_EQ(plain[0], 1.0f);
  EXPECT_FLOAT_EQ(plain[1], 0.1f);
  EXPECT_FLOAT_EQ(plain[3], 1e-3f);
  EXPECT_FLOAT_EQ(InverseFrequencies({.theta = 1e4f, .scaling = RopeScaling::kLinear, .factor = 4}, 8, 0)[1], 0.025f);
  EXPECT_FLOAT_EQ(InverseFrequencies({.theta = 1e4f, .frequency_divisors = {1, 2, 4, 8}}, 8, 0)[2], 0.0025f);
  // 100 positions: wavelength 6.28 is short (kept), 62.8 is in 1.59 turns of 1..4 (blended), 628 is long (divided by 8).
  const std::vector<float> llama3 = InverseFrequencies({.theta = 1e4f,
                                                        .scaling = RopeScaling::kLlama3,
                                                        .factor = 8,
                                                        .low_freq_factor = 1,
                                                        .high_freq_factor = 4,
                                                        .original_max_position = 100},
                                                       8, 0);
  EXPECT_FLOAT_EQ(llama3[0], 1.0f);
  const double keep = (100 / (2 * M_PI / 0.1) - 1) / 3;
  EXPECT_FLOAT_EQ(llama3[1], static_cast<float>((1 - keep) * 0.1 / 8 + keep * 0.1));
  EXPECT_FLOAT_EQ(llama3[2], 0.01f / 8);
}

TEST(InverseFrequencies, YarnKeepsFastDimensionsAndDividesSlowOnes) {
  RopeConfig yarn = {.theta = 1e4f, .scaling = RopeScaling::kYarn, .factor = 4, .original_max_position = 1000};
  // 32 turns in 1,000 positions: dimension 8 ln(1000 / (64 pi)) / (2 ln 1e4) = 0.70; one turn: 2.20. Whole dimensions: 0 and 3.
  const std::vector<float> whole = InverseFrequencies(yarn, 8, 0);
  for (int i = 0; i < 4; ++i) {
    const double plain = std::pow(1e4, -2.0 * i / 8), divided = i / 3.0;
    EXPECT_FLOAT_EQ(whole[i], static_cast<float>(plain / 4 * divided + plain * (1 - divided))) << i;
  }
  yarn.truncate = false;
  const double low = 8 * std::log(1000 / (64 * M_PI)) / (2 * std::log(1e4)),
               high = 8 * std::log(1000 / (2 * M_PI)) / (2 * std::log(1e4));
  const double divided = (1 - low) / (high - low);
  EXPECT_FLOAT_EQ(InverseFrequencies(yarn, 8, 0)[1], static_cast<float>(0.1 / 4 * divided + 0.1 * (1 - divided)));
}

TEST(InverseFrequencies, LongRopeChoosesByTheContext) {
  const RopeConfig rope = {
      .theta = 1e4f, .original_max_position = 100, .frequency_divisors = {1, 1, 1, 1}, .long_divisors = {1, 2, 4, 8}};
  EXPECT_FLOAT_EQ(InverseFrequencies(rope, 8, 100)[3], 1e-3f);
  EXPECT_FLOAT_EQ(InverseFrequencies(rope, 8, 101)[3], 1e-3f / 8);
  EXPECT_EQ(FrequencyChoice(rope, 100), "");
  EXPECT_EQ(FrequencyChoice(rope, 101), FrequencyChoice(rope, 102));
  EXPECT_NE(FrequencyChoice(rope, 101), "");
}

// transformers, _compute_dynamic_ntk_parameters, for a sequence of 300 tokens.
TEST(InverseFrequencies, DynamicScalingEnlargesThetaWithTheContext) {
  const RopeConfig rope = {.theta = 1e4f, .scaling = RopeScaling::kDynamic, .factor = 4, .original_max_position = 100};
  EXPECT_FLOAT_EQ(InverseFrequencies(rope, 8, 100)[3], 1e-3f);
  const double theta = 1e4 * std::pow(4 * 300.0 / 100 - 3, 8 / 6.0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(InverseFrequencies(rope, 8, 300)[i], static_cast<float>(std::pow(theta, -2.0 * i / 8))) << i;
  }
  EXPECT_EQ(FrequencyChoice(rope, 100), "");
  EXPECT_NE(FrequencyChoice(rope, 200), FrequencyChoice(rope, 300));
}

}  // namespace
}  // namespace coppice
