#include "executor/kernels/cuda/gemm/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/base/error.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan {
namespace {

cudaDataType_t LibraryType(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return CUDA_R_16BF;
    case Dtype::kF16:
      return CUDA_R_16F;
    case Dtype::kE4M3:
      return CUDA_R_8F_E4M3;
    case Dtype::kE5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t LibraryEpilogue(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kGeluAuxBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kDGelu:
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::kBgradA:
      return CUBLASLT_EPILOGUE_BGRADA;
    case GemmEpilogue::kBgradB:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <typename T>
void Set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  CheckLtCall(Lt().MatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
              "describing a matrix product");
}

template <typename T>
void Prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
            const T& value) {
  CheckLtCall(Lt().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
              "stating what a matrix product may use");
}

// The layout of the matrix as it is stored, before op().
void MakeLayout(LtLayout& layout, Dtype dtype, int64_t rows, int64_t columns, int64_t ld,
                int64_t batch, int64_t stride) {
  CheckLtCall(Lt().MatrixLayoutCreate(layout.out(), LibraryType(dtype), static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(columns), ld),
              "describing a matrix");
  if (batch == 1) return;
  const auto count = static_cast<int32_t>(batch);
  CheckLtCall(Lt().MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                            sizeof(count)),
              "describing a batch");
  CheckLtCall(Lt().MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &stride, sizeof(stride)),
              "describing a batch");
}

}  // namespace

GemmPlan::GemmPlan(cublasLtHandle_t handle, const GemmProblem& p) : handle_(handle), problem_(p) {
  CheckLtCall(Lt().MatmulDescCreate(product_.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
              "describing a matrix product");
  const auto op = [](uint8_t transpose) { return transpose != 0 ? CUBLAS_OP_T : CUBLAS_OP_N; };
  Set(product_, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(op(p.transpose_a)));
  Set(product_, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(op(p.transpose_b)));
  Set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(LibraryEpilogue(p.epilogue)));
  if (p.epilogue == GemmEpilogue::kGeluAuxBias || p.epilogue == GemmEpilogue::kDGelu) {
    Set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldd);
  }
  MakeLayout(a_, p.in, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, p.batch,
             p.stride_a);
  MakeLayout(b_, p.in_b, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, p.batch,
             p.stride_b);
  MakeLayout(d_, p.out, p.m, p.n, p.ldd, p.batch, p.stride_d);
  SetScales();
}

void GemmPlan::SetScales() {
  if (problem_.fast_sums != 0) Set(product_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  const auto in_blocks = [](GemmScale scale) { return scale > GemmScale::kOne; };
  if (!in_blocks(problem_.scale_a) && !in_blocks(problem_.scale_b)) return;
#if CUBLAS_VERSION >= 120900
  const auto mode = [](GemmScale scale) {
    return scale == GemmScale::kRows     ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
           : scale == GemmScale::kBlocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                         : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  };
  Set(product_, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<int32_t>(mode(problem_.scale_a)));
  Set(product_, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<int32_t>(mode(problem_.scale_b)));
#else
  ThrowRuntime(
      "cuBLASLt of CUDA {}.{} multiplies nothing by scales of blocks; build with CUDA 12.9 or "
      "newer, or use ⟦fp8_recipe⟧ tensor",
      CUDART_VERSION / 1000, CUDART_VERSION / 10 % 100);
#endif
}

void GemmPlan::SetPointers(const GemmPointers& pointers) {
  if (problem_.scale_a != GemmScale::kNone) {
    Set(product_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.scale_a);
  }
  if (problem_.scale_b != GemmScale::kNone) {
    Set(product_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.scale_b);
  }
  const GemmEpilogue epilogue = problem_.epilogue;
  if (epilogue == GemmEpilogue::kNone) return;
  if (epilogue != GemmEpilogue::kDGelu) {
    Set(product_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias);
  }
  if (epilogue == GemmEpilogue::kGeluAuxBias || epilogue == GemmEpilogue::kDGelu) {
    Set(product_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pointers.aux);
  }
}

std::vector<cublasLtMatmulAlgo_t> GemmPlan::Algorithms(const GemmPointers& pointers, int count) {
  SetPointers(pointers);  // the library reads how they are aligned
  LtPreference preference;
  CheckLtCall(Lt().MatmulPreferenceCreate(preference.out()), "choosing an algorithm");
  Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, problem_.workspace_bytes);
  // The other schemes of split-K add up partial sums rounded to the output's dtype.
  Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 1u << problem_.align_a);
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 1u << problem_.align_b);
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 1u << problem_.align_c);
  Prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 1u << problem_.align_d);

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  const cublasStatus_t status = Lt().MatmulAlgoGetHeuristic(
      handle_, product_, a_, b_, d_, d_, preference, count, results.data(), &found);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  // "Not supported" and "invalid value" are how the library declines, say an epilogue.
  if (status != CUBLAS_STATUS_SUCCESS) {
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
      CheckLtCall(status, "choosing an algorithm");
    }
    return algorithms;
  }
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

bool GemmPlan::Accepts(const cublasLtMatmulAlgo_t& candidate, const GemmPointers& pointers) {
  SetPointers(pointers);
  cublasLtMatmulHeuristicResult_t result = {};
  return Lt().MatmulAlgoCheck(handle_, product_, a_, b_, d_, d_, &candidate, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= problem_.workspace_bytes;
}

cublasStatus_t GemmPlan::Launch(const cublasLtMatmulAlgo_t& with, const GemmPointers& pointers,
                                cudaStream_t stream) {
  SetPointers(pointers);
  const float alpha = pointers.alpha, beta = problem_.adds_c ? 1.0f : 0.0f;
  return Lt().Matmul(handle_, product_, &alpha, pointers.a, a_, pointers.b, b_, &beta,
                     problem_.adds_c ? pointers.c : pointers.d, d_, pointers.d, d_, &with,
                     pointers.workspace, problem_.workspace_bytes, stream);
}

namespace {

constexpr std::array<std::string_view, 6> kEpilogueNames = {"none",  "bias",    "gelu_aux_bias",
                                                            "dgelu", "bgrad_a", "bgrad_b"};

constexpr std::array<std::string_view, 4> kScaleNames = {"none", "one", "rows", "blocks"};

// An absent pointer counts as aligned, so that it makes no difference.
uint8_t AlignLog2(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address == 0) return kMostAlign;
  return static_cast<uint8_t>(std::min<int>(std::countr_zero(address), kMostAlign));
}

}  // namespace

std::string GemmProblemText(const GemmProblem& p) {
  std::string text = fmt::format(
      "{}x{}x{} {}{} ld {},{},{} {}->{} {}{} align {},{},{},{},{},{} workspace {}", p.m, p.n, p.k,
      p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.lda, p.ldb, p.ldd, DtypeName(p.in),
      DtypeName(p.out), kEpilogueNames[static_cast<size_t>(p.epilogue)], p.adds_c ? " +c" : "",
      p.align_a, p.align_b, p.align_c, p.align_d, p.align_bias, p.align_aux, p.workspace_bytes);
  if (p.batch != 1) {
    text += fmt::format(" batch {} strides {},{},{}", p.batch, p.stride_a, p.stride_b, p.stride_d);
  }
  if (p.scale_a != GemmScale::kNone) {
    text += fmt::format(
        " by {} scales {},{}{}", DtypeName(p.in_b), kScaleNames[static_cast<size_t>(p.scale_a)],
        kScaleNames[static_cast<size_t>(p.scale_b)], p.fast_sums != 0 ? " fast" : "");
  }
  return text;
}

GemmProblem MakeGemmProblem(const GemmLayout& layout, Dtype in, Dtype out, GemmEpilogue epilogue,
                            bool adds_c, const GemmPointers& pointers, uint64_t workspace_bytes) {
  GemmProblem p;
  p.m = layout.m, p.n = layout.n, p.k = layout.k;
  p.lda = layout.lda, p.ldb = layout.ldb, p.ldd = layout.ldd;
  p.batch = layout.batch;
  p.stride_a = layout.stride_a, p.stride_b = layout.stride_b, p.stride_d = layout.stride_d;
  p.workspace_bytes = workspace_bytes;
  p.transpose_a = layout.transpose_a, p.transpose_b = layout.transpose_b;
  p.adds_c = adds_c;
  p.epilogue = epilogue;
  p.in = p.in_b = in, p.out = out;
  p.align_a = AlignLog2(pointers.a), p.align_b = AlignLog2(pointers.b);
  p.align_d = AlignLog2(pointers.d);
  p.align_c = adds_c ? AlignLog2(pointers.c) : p.align_d;
  const bool has_bias = epilogue != GemmEpilogue::kNone && epilogue != GemmEpilogue::kDGelu;
  const bool has_aux = epilogue == GemmEpilogue::kGeluAuxBias || epilogue == GemmEpilogue::kDGelu;
  p.align_bias = has_bias ? AlignLog2(pointers.bias) : kMostAlign;
  p.align_aux = has_aux ? AlignLog2(pointers.aux) : kMostAlign;
  return p;
}

}  // namespace zeroplan
