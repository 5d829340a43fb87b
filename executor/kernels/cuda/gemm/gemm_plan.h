// A matmul ready to launch: its cuBLASLt descriptions and the algorithm to use.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "executor/device/cuda/cuda_libraries.h"
#include "executor/kernels/cuda/gemm/gemm_layout.h"

namespace zeroplan {

// A matmul as described to cuBLASLt, without its pointers: the key of a tuned algorithm.
enum class GemmEpilogue : uint8_t {
  kNone,
  kBias,         // + bias_m
  kGeluAuxBias,  // aux = matmul + bias_m; D = gelu(aux)
  kDGelu,        // D = matmul * gelu'(aux)
  kBgradA,       // in addition to D: bias_m = sums of op(A) over k
  kBgradB,       // in addition to D: bias_n = sums of op(B) over k
};

// The scale that the library multiplies an 8-bit operand by.
enum class GemmScale : uint8_t {
  kNone,
  kOne,     // one number
  kRows,    // one for kFp8Block neighbours along k: [k / kFp8Block][m or n]
  kBlocks,  // one for kFp8Block of m or n too: [m or n / kFp8Block][Fp8BlockScalesRow(k)]
};

// D = op(A) op(B) (+ C), epilogue applied; column-major, C with the layout of D. Sums are fp32. Aux
// has the layout and dtype of D; bias has its dtype.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldd = 0;
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_d = 0;
  uint64_t workspace_bytes = 0;
  uint8_t transpose_a = 0, transpose_b = 0;
  uint8_t adds_c = 0;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  Dtype in = Dtype::kF32, out = Dtype::kF32;  // dtype of A (and B); dtype of C, D, bias and aux
  // log2 of the pointers' alignment in bytes, at most kMostAlign.
  uint8_t align_a = 0, align_b = 0, align_c = 0, align_d = 0, align_bias = 0, align_aux = 0;
  Dtype in_b = Dtype::kF32;
  GemmScale scale_a = GemmScale::kNone, scale_b = GemmScale::kNone;
  uint8_t fast_sums = 0;  // 8-bit matmuls: sums may temporarily have fewer bits than fp32

  bool operator==(const GemmProblem&) const = default;
};
static_assert(sizeof(GemmProblem) == 104, "hashed as words: no padding");

// 16 bytes: no kernel loads or stores more at a time, and bulk copies require no more.
inline constexpr uint8_t kMostAlign = 4;

// The pointers of a matmul. a and b are those of `layout`'s A and B.
struct GemmPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // may be d; ignored unless adds_c
  void* d = nullptr;
  void* bias = nullptr;  // read by kBias and kGeluAuxBias, written by kBgradA and kBgradB
  void* aux = nullptr;   // written by kGeluAuxBias, read by kDGelu
  void* workspace = nullptr;
  float alpha = 1;  // factor of op(A) op(B)
  // On the device, at multiples of 16 bytes; ignored for kNone.
  const void *scale_a = nullptr, *scale_b = nullptr;
};

struct GemmProblemHash {
  size_t operator()(const GemmProblem& problem) const {
    const auto words = std::bit_cast<std::array<uint64_t, sizeof(GemmProblem) / 8>>(problem);
    uint64_t hash = 0x9e3779b97f4a7c15;
    for (uint64_t word : words) {
      hash = (hash ^ word) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    return static_cast<size_t>(hash);
  }
};

// One line that names everything in the problem: the key in the cache file.
std::string GemmProblemText(const GemmProblem& problem);

// Makes the problem from a layout and the alignment of the pointers. `in` is the dtype of A and B.
GemmProblem MakeGemmProblem(const GemmLayout& layout, Dtype in, Dtype out, GemmEpilogue epilogue,
                            bool adds_c, const GemmPointers& pointers, uint64_t workspace_bytes);

// Owns one cuBLASLt description; destroyed with it.
template <typename Handle, cublasStatus_t (*LtFunctions::*kDestroy)(Handle)>
class LtObject {
 public:
  LtObject() = default;
  ~LtObject() {
    if (handle_ != nullptr) (Lt().*kDestroy)(handle_);
  }
  LtObject(const LtObject&) = delete;
  LtObject& operator=(const LtObject&) = delete;

  operator Handle() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};

using LtMatmulDesc = LtObject<cublasLtMatmulDesc_t, &LtFunctions::MatmulDescDestroy>;
using LtLayout = LtObject<cublasLtMatrixLayout_t, &LtFunctions::MatrixLayoutDestroy>;
using LtPreference = LtObject<cublasLtMatmulPreference_t, &LtFunctions::MatmulPreferenceDestroy>;

// For one thread at a time, because a launch sets the epilogue's pointers in the description.
class GemmPlan {
 public:
  GemmPlan(cublasLtHandle_t handle, const GemmProblem& problem);

  // At most `count` algorithms, the library's favourite first; none: it does not support this
  // matmul. Sums stay in fp32 until the end and are added in a fixed order.
  std::vector<cublasLtMatmulAlgo_t> Algorithms(const GemmPointers& pointers, int count);

  // Whether the library accepts `algorithm` for this matmul within the workspace.
  bool Accepts(const cublasLtMatmulAlgo_t& algorithm, const GemmPointers& pointers);

  // Launches the matmul with `algorithm`, or with the chosen one.
  cublasStatus_t Launch(const cublasLtMatmulAlgo_t& algorithm, const GemmPointers& pointers,
                        cudaStream_t stream);
  cublasStatus_t Launch(const GemmPointers& pointers, cudaStream_t stream) {
    return Launch(algorithm, pointers, stream);
  }

  // The choice: supported is false if the library has no algorithm.
  bool supported = false;
  bool tuned = false;
  // status of the last algorithm that failed when tried
  cublasStatus_t refusal = CUBLAS_STATUS_SUCCESS;
  double milliseconds = 0;  // if tuned
  cublasLtMatmulAlgo_t algorithm = {};

 private:
  void SetPointers(const GemmPointers& pointers);
  void SetScales();

  cublasLtHandle_t handle_;
  const GemmProblem problem_;
  LtMatmulDesc product_;
  LtLayout a_, b_, d_;  // C has the layout of D
};

}  // namespace zeroplan
