// Inputs of checkpointed layers that go to page-locked host memory in the forward pass and come
// back in the backward pass, on a stream of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "planner/runtimes/torch_memory.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

// How a program does it.
struct ActivationOffloading {
  std::string_view text;
  size_t stash;     // of the newest inputs, whose copies are not waited for
  size_t kept;      // of the newest, that are not copied
  bool at_start;    // a layer's input is copied while the layer runs, not after it
  bool waits;       // the compute stream waits for what leaves the stash
  size_t in_order;  // copies back wait until a layer so many before has been used; 0: they do not
};
// torchtune 0.6's OffloadActivations (training/_activation_offloading.py), of which TRL has a copy.
inline constexpr ActivationOffloading kTorchtuneOffloading{
    "torchtune's and TRL's OffloadActivations move them", 5, 0, true, true, 2};
// DeepSpeed 0.19.6, cpu_checkpointing (runtime/activation_checkpointing/offload_activations.py).
inline constexpr ActivationOffloading kDeepSpeedOffloading{
    "DeepSpeed's cpu_checkpointing (deepspeed.checkpointing.checkpoint, or around transformers' "
    "models its CheckpointHiddenStatesOffload) moves them; no run of that was compared",
    2,
    1,
    false,
    false,
    0};

class ActivationOffload {
 public:
  // `bytes` of a layer's input. The pointers must outlive it.
  ActivationOffload(const ActivationOffloading& how, uint64_t bytes, TorchMemory* memory,
                    TorchTimer* timer)
      : how_(how), bytes_(bytes), memory_(memory), timer_(timer) {}

  // In forward, around each layer: its input is there; nothing else wants it.
  void BeginLayer();
  void Keep(Tensor input);
  // In backward, the last layer first: the input of the next one.
  Tensor Bring();

 private:
  void CopyOut();

  const ActivationOffloading& how_;
  const uint64_t bytes_;
  // Inputs on the GPU: not copied; in the stash, with the ends of their copies.
  std::deque<Tensor> kept_;
  struct Stashed {
    Tensor input;
    TorchClock::Event copied;
  };
  std::deque<Stashed> stash_;
  size_t on_host_ = 0;  // that are on the host alone
  std::deque<TorchClock::Event> used_;
  TorchMemory* memory_;
  TorchTimer* timer_;
};

}  // namespace zeroplan
