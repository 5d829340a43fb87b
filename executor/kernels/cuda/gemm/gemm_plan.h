// A matrix product ready to launch: cuBLASLt's descriptions of it and the algorithm to use.
#pragma once

#include <cublasLt.h>

#include <vector>

#include "executor/kernels/cuda/gemm/gemm_problem.h"

namespace zeroplan {

// Owns one cuBLASLt description; destroyed with it.
template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
class LtObject {
 public:
  LtObject() = default;
  ~LtObject() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  LtObject(const LtObject&) = delete;
  LtObject& operator=(const LtObject&) = delete;

  operator Handle() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

using LtMatmulDesc = LtObject<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LtLayout = LtObject<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using LtPreference = LtObject<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// A plan is not for several threads at once: a launch sets the epilogue's pointers in the
// description.
class GemmPlan {
 public:
  GemmPlan(cublasLtHandle_t handle, const GemmProblem& problem);

  // At most `count` algorithms, the library's favourite first; none: it cannot do this product.
  // Sums are kept in fp32 until the end and added in a fixed order.
  std::vector<cublasLtMatmulAlgo_t> Algorithms(const GemmPointers& pointers, int count);

  // Whether the library takes `algorithm` for this product within the workspace.
  bool Accepts(const cublasLtMatmulAlgo_t& algorithm, const GemmPointers& pointers);

  // Launches the product with `algorithm`, or with the chosen one.
  cublasStatus_t Launch(const cublasLtMatmulAlgo_t& algorithm, const GemmPointers& pointers,
                        cudaStream_t stream);
  cublasStatus_t Launch(const GemmPointers& pointers, cudaStream_t stream) {
    return Launch(algorithm, pointers, stream);
  }

  // The choice: supported is false where the library has no algorithm.
  bool supported = false;
  bool tuned = false;
  cublasStatus_t refusal = CUBLAS_STATUS_SUCCESS;  // of the last algorithm that failed when tried
  double milliseconds = 0;                         // if tuned
  cublasLtMatmulAlgo_t algorithm = {};

 private:
  void SetPointers(const GemmPointers& pointers);

  cublasLtHandle_t handle_;
  const GemmProblem problem_;
  LtMatmulDesc product_;
  LtLayout a_, b_, d_;  // C lies as D
};

}  // namespace zeroplan
