// Matmuls of a wide matrix with thin ones, of rank r, as adapters (core/model/lora.h) need for x
// and dy. They are bound by reading the wide matrix, once. (Results of its size, y and dx, the
// library makes as fast.) Legend: M rows, C columns of a part, R rank of all parts together.
#pragma once

#include <cstdint>

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// A part of the columns of x, and the thin matrices that belong to it.
struct ThinPart {
  void* x_MC;        // row pitch x_stride
  void* rows_Mr;     // row pitch R
  void* columns_Cr;  // dense; or, with `across`, as [r, C]
  int64_t C;
  void* row_sums_Mr = nullptr;     // same layout as rows_Mr
  void* column_sums_Cr = nullptr;  // same layout as columns_Cr, in sums_dtype
};

// All but column_sums have `dtype`, of 16 bit. REQUIRES: all parts set the same pointers; M > 0.
struct ThinProduct {
  ThinPart parts[kMostThinParts];
  int count = 0;
  Dtype dtype = Dtype::kBF16, sums_dtype = Dtype::kF32;
  bool across = false;
  bool add = false;  // adds to column_sums
  float scale = 1;   // factor of row_sums
  int64_t M = 0, r = 0, R = 0;
  int64_t x_stride = 0;  // elements
};

// Whether the functions below support it: dtypes, ranks up to kMostThinRank, whole vectors of 16
// bytes.
bool IsThin(const ThinProduct& product);

// row_sums = scale * x * columns, column_sums (+)= x^T * rows: those whose pointers are set, the
// same in all parts. Reads x once, with ThinTogether for both sums. Sums have a fixed order.
// `scratch`: ThinSumsBytes, at a multiple of 16 bytes.
void LaunchThinSums(const ThinProduct& product, void* scratch, cudaStream_t stream);

}  // namespace zeroplan::cuda
