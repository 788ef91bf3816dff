// Test bodies that every backend runs, on its own device: attention against the fp64 oracle over random and named forests, bits in
// deterministic mode, merges of states, writes into the pool. They fail through GoogleTest; a caller that goes on afterwards checks
// HasFatalFailure().
// Layer: tests.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/attention_case.h"
#include "tests/support/hand_plan.h"

namespace coppice::attention::testing {

// The variable's value as a number, or `otherwise`.
uint64_t FromEnvironment(const char* name, uint64_t otherwise);

HandPlanOptions RandomPlanOptions(uint64_t seed, bool deterministic);
PlannerOptions RandomPlannerOptions(uint64_t seed);
// Few branches that the test itself places: 4/2 heads of 64, pages of 16.
CaseOptions SmallCase(int32_t branches, int32_t max_kv_len);

// Plans the case's present state, uploads and runs it.
void RunPlan(AttentionCase& test, AttentionPlan& plan, bool with_lse = true);
// The same, compared with the oracle.
void RunAndCompare(AttentionCase& test, AttentionPlan& plan, bool with_lse = true);
void RunAndCompare(AttentionCase& test, PlanExecutor& executor, const PlanView& plan, bool with_lse = true);
void RunAndCompare(AttentionCase& test, PlanExecutor& executor, const HandPlan& plan, bool with_lse = true);
// Null after a failure.
std::unique_ptr<AttentionPlan> MakePlan(TestDevice& device, AttentionCase& test, const PlannerOptions& options = {});

// Random forests under hand-made plans, so that every legal shape runs and not only those that the planner likes, and under the
// planner's own, over edits and growing lengths. `make_case` gives the options of a seed.
void RandomForestsAgreeWithOracle(TestDevice& device, uint64_t first_seed, uint64_t num_seeds,
                                  const std::function<CaseOptions(uint64_t)>& make_case);
// Empty prefix, no suffix, one token, page boundaries, deep chain, all share, none share; no queries at all.
void EdgeCasesAgreeWithOracle(TestDevice& device);
// Scores all zero: the softmax of n equal scores has lse = ln n, whatever base the kernels work in.
void LseIsNaturalLogarithm(TestDevice& device, std::initializer_list<DType> dtypes);
// A draft tree whose first query may see nothing, not even itself.
void RowThatSeesNothing(TestDevice& device);
// The bits of one request's last query: alone or in a batch, shared or not, on any number of threads, as a decode row or inside
// chunks of any length.
void DeterministicBitsDependOnTheRequestAlone(const std::function<std::unique_ptr<TestDevice>(int num_threads)>& make_device,
                                              const std::vector<std::pair<DType, int32_t>>& dtypes_and_head_dims);
// The same for every request of random forests over several units and superblocks: in its batch under the planner's sharing, and
// alone with none. options_of(seed): of a forest's case, whose spec becomes deterministic.
CaseOptions DeterministicCase(uint64_t seed);
void DeterministicBitsAreThoseOfTheRequestAlone(TestDevice& device, uint64_t first_seed, uint64_t num_seeds,
                                                const std::function<CaseOptions(uint64_t)>& options_of = DeterministicCase);

// Context::MergeStates on random states: against the formula in f64, commutative, associative, n-ary, neutral empty state, mask.
void MergedStatesAreTheSoftmaxOfTheUnion(TestDevice& device);
// Context::AppendKv in every layout, from rows with `row_padding` elements after each; Context::CopyPages.
void AppendedTokensLandInTheirSlots(TestDevice& device, int32_t row_padding);
void CopiedPagesAreEqual(TestDevice& device, DType dtype);
void MovedSlotsKeepTheirOrder(TestDevice& device);
// All of them, and BindKv, name what is wrong with their arguments.
void BadArgumentsAreNamed(TestDevice& device);

}  // namespace coppice::attention::testing
