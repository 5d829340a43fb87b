// Sequences that ranks share (BatchSpec::sequence_ranks): a rank's part of attention, the exchanges
// of DeepSpeed's Ulysses around it, and PyTorch's ring attention.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/runtimes/torch_model.h"

namespace zeroplan {

// Elements of a rank's attention. Ulysses: all positions of the rank's part of the heads; if there
// are fewer heads of keys and values than ranks, they are replicated. Ring: all heads of the rank's
// part of the positions.
TorchElements AttentionElements(const ModelSpec& spec, const TorchRun& run);

// DeepSpeed 0.19.6, UlyssesSPAttentionHF (runtime/sequence_parallel/ulysses_sp.py). Counted from
// its code (benchmarks/peers/count_ulysses.py).
class HeadExchange {
 public:
  // The pointers must outlive it.
  HeadExchange(const ModelSpec& spec, const TorchRun& run, TorchMemory* memory, TorchTimer* timer);

  // Exchanges queries, keys and values (i, j, l) of the rank's tokens for those of its heads. Adds
  // to `held` the tensors that the functions around attention keep until it returns.
  void Forward(TorchSlots* attention, std::vector<Tensor>* held);
  // Exchanges the output of attention for that of the rank's tokens.
  Tensor ForwardContext();
  // The gradients of both exchanges.
  Tensor BackwardContext(Tensor grad);
  void Backward(Tensor* d_q, Tensor* d_k, Tensor* d_v);

 private:
  Tensor New(int64_t bytes) {
    return memory_->New(TorchClass::kActivations, static_cast<uint64_t>(bytes));
  }
  void Moves(int64_t bytes, int copies = 1);
  Tensor Received(int64_t bytes);
  // The received gradient. `laid_out`: `grad` already has the layout in which it is sent.
  Tensor ReceivedGradient(int64_t bytes, bool laid_out);
  // True if a rank has one head of one sequence, whose layout by token equals that by head.
  bool OneHead(int64_t elements) const;

  const TorchElements elements_;
  const int64_t head_size_, micro_batch_, copies_;
  TorchMemory* memory_;
  TorchTimer* timer_;
};

// torch.distributed.tensor.experimental.context_parallel of PyTorch 2.11
// (_context_parallel/_attention.py) with default settings: each rank has the chunks r and 2S - 1 -
// r of a sequence's 2S, keys and values are gathered once (set_rotate_method "allgather"), and
// blocks are merged in fp32. Models rank S - 1, each of whose blocks has all its queries. Counted
// from its code (benchmarks/peers/count_ring.py).
class RingAttention {
 public:
  // The pointers must outlive it.
  RingAttention(const ModelSpec& spec, const TorchRun& run, TorchMemory* memory, TorchTimer* timer);

  // From queries, keys and values (i, j, l), makes the output of attention (o) and the logarithms
  // of its sums (b). Runs the kernels of one block once per block.
  void Forward(TorchSlots* attention);
  // From the output's gradient (g), makes those of the inputs (d, D; keys and values share one
  // tensor). Frees the other tensors.
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
