// Launchers that quantize tensors to 8 bits (core/base/fp8.h). Legend: M rows, K columns.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// Raises amax to the largest |x_n|. Fastest if x is aligned to 16 bytes.
void LaunchLargestMagnitude(const FloatArray& x_n, int64_t n, float* amax, cudaStream_t stream);

// 8-bit copies of x_MK: as stored and transposed; either may be absent (null).
struct QuantizeCopies {
  FloatArray x_MK;    // floats; or, with rows 0, 8-bit codes that are only moved
  const float* amax;  // for floats with rows 0
  bool e5m2;          // else E4M3
  uint8_t *q_MK, *qt_KM;
  // One scale each if rows is 0, which may be absent; else arrays as in the row Quantize.
  float *scale, *scale_t;
  int64_t M, K, rows;
};
// REQUIRES: M and K are multiples of kFp8Multiple, with blocks of kFp8Block; x, q and qt are
// aligned to 16 bytes.
inline constexpr int64_t kFp8Multiple = 16;
void LaunchQuantize(const QuantizeCopies& copies, cudaStream_t stream);

// Pieces of a shard: `count` elements from `first` on, of the tensor with this slot.
struct ShardPiece {
  int64_t first, count;
  char* slot;
};
struct ShardPieces {
  static constexpr int kMost = 64;
  ShardPiece pieces[kMost];
  int count = 0;
};
// Raises the largest magnitude in each piece's slot by that of the piece.
void LaunchShardMagnitudes(const FloatArray& x_n, const ShardPieces& pieces, cudaStream_t stream);
// q = x in E4M3, each piece scaled by the largest magnitude in its slot.
void LaunchQuantizeShard(const FloatArray& x_n, uint8_t* q_n, const ShardPieces& pieces,
                         cudaStream_t stream);
// Sets the E4M3 scales of `count` slots, stored one behind the other.
void LaunchSetScales(char* slots, int64_t count, cudaStream_t stream);
// dst = the elementwise maximum of P arrays.
void LaunchLargestOfParts(const float* parts_Pn, float* dst_n, int64_t n, int64_t P,
                          cudaStream_t stream);

}  // namespace zeroplan::cuda
