// Sums over a wide matrix with thin ones, of rank r: what adapters (core/model/lora.h) read x and
// dy for. They are bound by reading it, once. (What is written, y and dx, the library makes as
// fast.) Legend: M rows, C columns of a part, R rank of all parts together.
#pragma once

#include <cstdint>

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// A part of the columns of x, and the thin matrices that belong to it.
struct ThinPart {
  void* x_MC;        // rows x_stride apart
  void* rows_Mr;     // rows R apart
  void* columns_Cr;  // dense; or, `across`, as [r, C]
  int64_t C;
  void* row_sums_Mr = nullptr;     // as rows_Mr
  void* column_sums_Cr = nullptr;  // as columns_Cr, of sums_dtype
};

// All but column_sums have `dtype`, of 16 bit. REQUIRES: all parts have the same of their pointers;
// M > 0.
struct ThinProduct {
  ThinPart parts[kMostThinParts];
  int count = 0;
  Dtype dtype = Dtype::kBF16, sums_dtype = Dtype::kF32;
  bool across = false;
  bool add = false;  // to column_sums
  float scale = 1;   // of row_sums
  int64_t M = 0, r = 0, R = 0;
  int64_t x_stride = 0;  // elements
};

// Whether the functions below take it: dtypes, ranks up to kMostThinRank, whole vectors of 16
// bytes.
bool IsThin(const ThinProduct& product);

// row_sums = scale * x * columns, column_sums (+)= x^T * rows: those that are there, of all parts
// alike. x is read once; where ThinTogether also for both. Sums have a fixed order. `scratch`:
// ThinSumsBytes, at a multiple of 16 bytes.
void LaunchThinSums(const ThinProduct& product, void* scratch, cudaStream_t stream);

}  // namespace zeroplan::cuda
