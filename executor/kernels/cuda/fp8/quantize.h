// Launchers of what makes tensors of eight bits (core/base/fp8.h). Legend: M rows, K columns.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// amax = the larger of it and the largest |x_n|. Fastest where x is aligned to 16 bytes.
void LaunchLargestMagnitude(const FloatArray& x_n, int64_t n, float* amax, cudaStream_t stream);

// Copies of x_MK, of eight bits: as it lies and transposed, either may be absent (null).
struct QuantizeCopies {
  FloatArray x_MK;    // floats; or, with rows 0, codes of eight bits that are only moved
  const float* amax;  // of floats, rows 0
  bool e5m2;          // else E4M3
  uint8_t *q_MK, *qt_KM;
  // Of rows 0 one each, that may be absent; else as the row Quantize has them.
  float *scale, *scale_t;
  int64_t M, K, rows;
};
// REQUIRES: M and K are multiples of kFp8Multiple, those of blocks of kFp8Block; x, q and qt are
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
// q = x in E4M3, each piece by the largest magnitude in its slot.
void LaunchQuantizeShard(const FloatArray& x_n, uint8_t* q_n, const ShardPieces& pieces,
                         cudaStream_t stream);
// The scales of `count` slots, one behind the other, in E4M3.
void LaunchSetScales(char* slots, int64_t count, cudaStream_t stream);
// dst = the largest of P arrays, element by element.
void LaunchLargestOfParts(const float* parts_Pn, float* dst_n, int64_t n, int64_t P,
                          cudaStream_t stream);

}  // namespace zeroplan::cuda
