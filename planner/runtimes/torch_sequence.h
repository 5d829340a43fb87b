// Sequences that ranks share (BatchSpec::sequence_ranks): what a rank has in attention, what
// DeepSpeed's Ulysses exchanges around it, and PyTorch's ring attention.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/runtimes/torch_model.h"

namespace zeroplan {

// Elements of a rank's attention. Of Ulysses all positions of its part of the heads; heads of keys
// and values that are fewer than ranks are there several times. Of a ring all heads of its part of
// the positions.
TorchElements AttentionElements(const ModelSpec& spec, const TorchRun& run);

// DeepSpeed 0.19.6, UlyssesSPAttentionHF (runtime/sequence_parallel/ulysses_sp.py). Counted from
// its code (benchmarks/peers/count_ulysses.py).
class HeadExchange {
 public:
  // The pointers must outlive it.
  HeadExchange(const ModelSpec& spec, const TorchRun& run, TorchMemory* memory, TorchTimer* timer);

  // Queries, keys and values (i, j, l) of the rank's tokens become those of its heads. What the
  // functions around attention have until it returns is added to `held`.
  void Forward(TorchSlots* attention, std::vector<Tensor>* held);
  // Of what attention made, that of the rank's tokens.
  Tensor ForwardContext();
  // The gradients of both.
  Tensor BackwardContext(Tensor grad);
  void Backward(Tensor* d_q, Tensor* d_k, Tensor* d_v);

 private:
  Tensor New(int64_t bytes) {
    return memory_->New(TorchClass::kActivations, static_cast<uint64_t>(bytes));
  }
  void Moves(int64_t bytes, int copies = 1);
  Tensor Received(int64_t bytes);
  // The gradient's; `laid_out`: `grad` lies as it is sent.
  Tensor ReceivedGradient(int64_t bytes, bool laid_out);
  // A rank's one head of one sequence lies by token as by head.
  bool OneHead(int64_t elements) const;

  const TorchElements elements_;
  const int64_t head_size_, micro_batch_, copies_;
  TorchMemory* memory_;
  TorchTimer* timer_;
};

// torch.distributed.tensor.experimental.context_parallel of PyTorch 2.11
// (_context_parallel/_attention.py) as it is by default: each rank has the chunks r and 2S - 1 - r
// of a sequence's 2S, keys and values are gathered once (set_rotate_method "allgather"), and
// blocks are merged in fp32. Rank S - 1, whose blocks have all its queries. Counted from its code
// (benchmarks/peers/count_ring.py).
class RingAttention {
 public:
  // The pointers must outlive it.
  RingAttention(const ModelSpec& spec, const TorchRun& run, TorchMemory* memory, TorchTimer* timer);

  // Of queries, keys and values (i, j, l) what attention makes (o) and the logarithms of its sums
  // (b). Its kernels are those of one block, once a block.
  void Forward(TorchSlots* attention);
  // Of its gradient (g) theirs (d, D; those of keys and values are one tensor). Frees the others.
  void Backward(TorchSlots* attention);

 private:
  Tensor New(int64_t bytes) {
    return memory_->New(TorchClass::kActivations, static_cast<uint64_t>(bytes));
  }
  void Moves(int64_t bytes, int launches = 1);
  Tensor Gathered();
  Tensor PassedOn(int64_t bytes);

  const TorchElements elements_;
  const int ranks_;
  const int64_t q_, k_, sums_;  // bytes of queries, of keys, of sums
  TorchMemory* memory_;
  TorchTimer* timer_;
};

}  // namespace zeroplan
