#include "ops/cuda/library_product.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/cuda_status.h"

namespace coppice::ops::cuda {
namespace {

using coppice::cuda::CudaStatus;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what NVIDIA asks for on Hopper (cuBLAS documentation, "Workspace")
constexpr int kCandidates = 12;
constexpr int kDeterministicRows = 256;  // the rows for which the one algorithm of that mode is chosen
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(MeasuredAlgorithm::code));

Status LibraryStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return OkStatus();
  const std::string text = std::string(what) + ": " + cublasLtGetStatusName(status) + ", " + cublasLtGetStatusString(status);
  return status == CUBLAS_STATUS_ALLOC_FAILED ? ResourceExhausted(text) : Internal(text);
}

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F; }

}  // namespace

AlgorithmKey AlgorithmKeyOf(const ProductShape& shape) {
  return {.dtype = shape.dtype, .out_dtype = shape.out_dtype, .accumulates = shape.accumulates, .n = shape.n, .k = shape.k};
}

// The library sees matrices by columns: y^T [n, rows] = W^T^T [n, k] x^T [k, rows].
struct LibraryProduct::Description {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t w, x, y;

  static Result<Description> Of(const ProductShape& shape) {
    Description d;
    COPPICE_RETURN_IF_ERROR(
        LibraryStatus(cublasLtMatmulDescInit(&d.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit"));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    COPPICE_RETURN_IF_ERROR(
        LibraryStatus(cublasLtMatmulDescSetAttribute(&d.product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)),
                      "a product's order"));
    COPPICE_RETURN_IF_ERROR(
        LibraryStatus(cublasLtMatrixLayoutInit(&d.w, TypeOf(shape.dtype), shape.k, shape.n, shape.w_stride), "a weight's layout"));
    COPPICE_RETURN_IF_ERROR(LibraryStatus(cublasLtMatrixLayoutInit(&d.x, TypeOf(shape.dtype), shape.k, shape.rows, shape.x_stride),
                                          "an input's layout"));
    return LibraryStatus(cublasLtMatrixLayoutInit(&d.y, TypeOf(shape.out_dtype), shape.n, shape.rows, shape.y_stride),
                         "an output's layout")
                   .ok()
               ? Result<Description>(d)
               : Result<Description>(InvalidArgument("an output of stride " + std::to_string(shape.y_stride) + " and " +
                                                     std::to_string(shape.n) + " columns"));
  }
};

Result<std::unique_ptr<LibraryProduct>> LibraryProduct::Create(Device* device, bool deterministic, AlgorithmFile* algorithms) {
  const coppice::cuda::DeviceGuard guard(device->ordinal());
  std::unique_ptr<LibraryProduct> product(new LibraryProduct(device, deterministic, algorithms));
  COPPICE_RETURN_IF_ERROR(LibraryStatus(cublasLtCreate(&product->handle_), "cublasLtCreate"));
  COPPICE_ASSIGN_OR_RETURN(product->workspace_, device->Allocate(kWorkspaceBytes));
  return Result<std::unique_ptr<LibraryProduct>>(std::move(product));
}

LibraryProduct::~LibraryProduct() {
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

bool LibraryProduct::CanRun(const ProductShape& shape, const cublasLtMatmulAlgo_t& algorithm) const {
  Result<Description> description = Description::Of(shape);
  if (!description.ok()) return false;
  Description& d = *description;
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle_, &d.product, &d.w, &d.x, &d.y, &d.y, &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspaceBytes;
}

Result<cublasLtMatmulAlgo_t> LibraryProduct::Choose(const ProductShape& shape) {
  if (!deterministic_ && shape.alignment >= 16) {
    const MeasuredAlgorithm* const measured = algorithms_->Find(AlgorithmKeyOf(shape), shape.rows);
    if (measured != nullptr && measured->kind == MeasuredAlgorithm::Kind::kLibrary) {
      const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(measured->code);
      if (CanRun(shape, algorithm)) return algorithm;
    }
  }
  return FromHeuristic(shape);
}

namespace {

// The heuristic's candidates, best first.
Result<std::vector<cublasLtMatmulAlgo_t>> CandidatesOf(cublasLtHandle_t handle, const ProductShape& shape, bool splits_sums,
                                                       int count, const cublasLtMatmulDescOpaque_t& product,
                                                       const cublasLtMatrixLayoutOpaque_t& w, const cublasLtMatrixLayoutOpaque_t& x,
                                                       const cublasLtMatrixLayoutOpaque_t& y) {
  cublasLtMatmulPreferenceOpaque_t preference;
  COPPICE_RETURN_IF_ERROR(LibraryStatus(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit"));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return LibraryStatus(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
                         "a product's preferences");
  };
  COPPICE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes));
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    COPPICE_RETURN_IF_ERROR(set(operand, shape.alignment));
  }
  if (!splits_sums) {
    COPPICE_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE)));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(count);
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, const_cast<cublasLtMatmulDescOpaque_t*>(&product), const_cast<cublasLtMatrixLayoutOpaque_t*>(&w),
      const_cast<cublasLtMatrixLayoutOpaque_t*>(&x), const_cast<cublasLtMatrixLayoutOpaque_t*>(&y),
      const_cast<cublasLtMatrixLayoutOpaque_t*>(&y), &preference, count, results.data(), &found);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  }
  if (algorithms.empty()) {
    return Unimplemented("cuBLASLt has no algorithm for a product of " + std::to_string(shape.rows) + " rows, " +
                         std::to_string(shape.k) + " inputs and " + std::to_string(shape.n) + " outputs in " +
                         std::string(Name(shape.dtype)) + ": " + cublasLtGetStatusName(status));
  }
  return algorithms;
}

}  // namespace

Result<cublasLtMatmulAlgo_t> LibraryProduct::FromHeuristic(const ProductShape& shape) {
  ProductShape asked = shape;
  if (deterministic_) asked.rows = kDeterministicRows;
  COPPICE_ASSIGN_OR_RETURN(const Description d, Description::Of(asked));
  COPPICE_ASSIGN_OR_RETURN(
      const std::vector<cublasLtMatmulAlgo_t> algorithms,
      CandidatesOf(handle_, asked, !deterministic_, deterministic_ ? kCandidates : 1, d.product, d.w, d.x, d.y));
  if (!deterministic_) return algorithms.front();
  // The first that takes few rows and many alike.
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
    const bool takes_all = std::ranges::all_of(std::array<int64_t, 4>{1, 17, 1024, 16384}, [&](int64_t rows) {
      ProductShape other = shape;
      other.rows = rows;
      return CanRun(other, algorithm);
    });
    if (takes_all) return algorithm;
  }
  return Unimplemented("no algorithm of cuBLASLt takes every number of rows of a product of " + std::to_string(shape.k) +
                       " inputs and " + std::to_string(shape.n) + " outputs: the deterministic mode cannot run this shape");
}

Status LibraryProduct::Run(const ProductShape& shape, const ProductOperands& operands, cudaStream_t stream) {
  if (shape.rows == 0) return OkStatus();
  auto chosen = chosen_.find(shape);
  if (chosen == chosen_.end()) {
    COPPICE_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, Choose(shape));
    chosen = chosen_.emplace(shape, algorithm).first;
  }
  return Multiply(shape, operands, chosen->second, stream);
}

Status LibraryProduct::Multiply(const ProductShape& shape, const ProductOperands& operands, const cublasLtMatmulAlgo_t& algorithm,
                                cudaStream_t stream) const {
  COPPICE_ASSIGN_OR_RETURN(Description d, Description::Of(shape));
  const float one = 1.0f, beta = shape.accumulates ? 1.0f : 0.0f;
  return LibraryStatus(cublasLtMatmul(handle_, &d.product, &one, operands.w, &d.w, operands.x, &d.x, &beta, operands.y, &d.y,
                                      operands.y, &d.y, &algorithm, workspace_.data(), kWorkspaceBytes, stream),
                       "cublasLtMatmul");
}

Result<std::vector<MeasuredAlgorithm>> LibraryProduct::Candidates(const ProductShape& shape) const {
  COPPICE_ASSIGN_OR_RETURN(const Description d, Description::Of(shape));
  COPPICE_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> algorithms,
                           CandidatesOf(handle_, shape, true, kCandidates, d.product, d.w, d.x, d.y));
  std::vector<MeasuredAlgorithm> candidates;
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
    candidates.push_back({.kind = MeasuredAlgorithm::Kind::kLibrary, .code = std::bit_cast<std::array<uint64_t, 8>>(algorithm)});
  }
  return candidates;
}

}  // namespace coppice::ops::cuda
