#include "executor/kernels/cuda/gemm/gemm_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace zeroplan {
namespace {

constexpr std::array<std::string_view, 6> kEpilogueNames = {"none",  "bias",    "gelu_aux_bias",
                                                            "dgelu", "bgrad_a", "bgrad_b"};

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
  p.in = in, p.out = out;
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
