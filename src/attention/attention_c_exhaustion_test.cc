// The C ABI where memory is refused, at every place where a call asks for it: a status, and the next call works. Layer: attention,
// tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/testing/c_forest.h"
#include "coppice/attention/attention_c.h"
#include "tests/support/heap.h"

namespace {

using coppice::attention::testing::CForest;

constexpr int32_t kHeads = 2, kHeadDim = 16, kPageSize = 4, kBranches = 2, kPages = 8, kRow = CForest::kRow,
                  kRowElements = kHeads * kHeadDim;

// A program's calls of the library, up to the first that fails; `out` receives the rows.
class Caller {
 public:
  ~Caller() {
    coppice_plan_destroy(plan_);
    coppice_kv_destroy(kv_);
    coppice_context_destroy(context_);
  }

  // The first status that is not OK.
  coppice_status Go(std::vector<float>* memory, std::vector<float>* out) {
    coppice_status status = COPPICE_OK;
    const auto ok = [&](coppice_status of_call) { return (status = of_call) == COPPICE_OK; };
    const bool all = ok(Open(memory)) && ok(Update()) && ok(Run(memory, out)) && ok(Grow()) && ok(Run(memory, out)) && ok(Look());
    return all ? COPPICE_OK : status;
  }
  const char* text() const { return text_; }

 private:
  coppice_status Open(std::vector<float>* memory) {
    coppice_context_options context{};
    context.struct_size = sizeof(context);
    context.num_threads = 2;
    if (!context_) {
      if (const auto status = coppice_context_create(&context, &context_, &message_)) return status;
    }
    coppice_kv_pool pool{sizeof(pool), kPages, kPageSize, kHeads, kHeadDim, COPPICE_F32};
    layer_.struct_size = sizeof(layer_);
    if (const auto status = coppice_kv_pool_get_layer(&pool, memory->data(), &layer_, &message_)) return status;
    spec_.struct_size = sizeof(spec_);
    spec_.num_qo_heads = spec_.num_kv_heads = kHeads;
    spec_.head_dim = kHeadDim;
    if (!kv_) {
      if (const auto status = coppice_kv_bind(context_, &spec_, &layer_, &kv_, &message_)) return status;
    }
    coppice_plan_options options{};
    options.struct_size = sizeof(options);
    options.max_branches = kBranches;
    options.max_queries = kBranches;
    options.max_page_slots = kBranches * kRow;
    options.page_size = kPageSize;
    return plan_ ? COPPICE_OK : coppice_plan_create(context_, &spec_, &options, &plan_, &message_);
  }
  coppice_status Update() { return coppice_plan_update(plan_, &forest_.view, &message_); }
  coppice_status Grow() {
    forest_.kv_len = {7, 7};
    return Update();
  }
  coppice_status Run(std::vector<float>* memory, std::vector<float>* out) {
    coppice_run_args args{};
    args.struct_size = sizeof(args);
    args.q = memory->data();
    args.out = out->data();
    args.q_row_stride = args.out_row_stride = kRowElements;
    return coppice_plan_run(plan_, kv_, &args, nullptr, &message_);
  }
  coppice_status Look() {
    const int32_t copy[2] = {6, 6};
    const int64_t move[2] = {30, 30};
    (void)coppice_plan_explain(plan_, text_, sizeof(text_));
    (void)coppice_plan_dump(plan_, text_, sizeof(text_));
    if (const auto status = coppice_kv_copy_pages(context_, &spec_, &layer_, copy, 1, nullptr, &message_)) return status;
    return coppice_kv_move_slots(context_, &spec_, &layer_, move, 1, nullptr, &message_);
  }

  char text_[256] = "";
  coppice_message message_{sizeof(coppice_message), text_, sizeof(text_)};
  coppice_context* context_ = nullptr;
  coppice_plan* plan_ = nullptr;
  coppice_bound_kv* kv_ = nullptr;
  coppice_attention_spec spec_{};
  coppice_kv_layer layer_{};
  CForest forest_{kPageSize, /*prefix=*/4, {5, 6}, {0, 1, 2, 7, 0, 3, 4, 5}};
};

TEST(AttentionCExhaustion, EachCallAnswersAndTheNextOneWorks) {
  std::vector<float> memory(size_t{kPages} * kHeads * 2 * kPageSize * kHeadDim), expected(kBranches * kRowElements);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = std::sin(static_cast<float>(i));
  const int64_t before = coppice::heap::NumAllocations();
  {
    Caller caller;
    ASSERT_EQ(caller.Go(&memory, &expected), COPPICE_OK) << caller.text();
  }
  const int64_t all = coppice::heap::NumAllocations() - before;
  ASSERT_GT(all, 10);
  for (const int64_t refused : {1, 3, 1000}) {
    for (int64_t granted = 0; granted < all; ++granted) {
      SCOPED_TRACE("refused " + std::to_string(refused) + " after " + std::to_string(granted) + " of " + std::to_string(all));
      std::vector<float> out(expected.size());
      Caller caller;
      coppice::heap::Refuse(granted, refused);
      const coppice_status status = caller.Go(&memory, &out);
      coppice::heap::Refuse(INT64_MAX / 4, 0);
      EXPECT_TRUE(status == COPPICE_OK || status == COPPICE_RESOURCE_EXHAUSTED) << caller.text();
      ASSERT_EQ(caller.Go(&memory, &out), COPPICE_OK) << caller.text();
      ASSERT_EQ(out, expected);
    }
  }
}

}  // namespace
