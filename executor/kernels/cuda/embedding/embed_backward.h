// Launcher of the embeddings' gradients. Legend: B micro-batch, T sequence, C hidden, V vocabulary.
#pragma once

#include <cstddef>

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

struct EmbedBackwardArgs {
  const int32_t* tokens_BT;
  const int32_t* starts_BT;  // the start of each position's document in its row; null: 0
  FloatArray dx_BTC, dwte_VpC, dwpe_TC;
  bool add_to_dwpe;
  int64_t B, T, C, V;
};

// Bytes of scratch that the sort needs on this GPU; EmbedScratch::sort_bytes must be at least as
// many.
size_t EmbedSortBytes(int64_t positions, int64_t V);

// dwte[token] += the rows of dx at the token's positions; dwpe[t] (+)= the rows at position t of
// their documents, if there is a dwpe. fp32 sums in a fixed order. `scratch`: EmbedScratchOf(B * T,
// C).bytes. A token outside [0, V) ends the launch with an error. Returns the sort's status.
cudaError_t LaunchEmbedBackward(const EmbedBackwardArgs& args, void* scratch, cudaStream_t stream);

}  // namespace zeroplan::cuda
