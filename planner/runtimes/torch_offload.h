// Offloading of the inputs of checkpointed layers: they are copied to page-locked host memory in
// the forward pass and back in the backward pass, on a stream of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "planner/runtimes/torch_memory.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

// The way in which a program offloads.
struct ActivationOffloading {
  std::string_view text;
  size_t stash;     // number of the newest inputs, whose copies are not waited for
  size_t kept;      // number of the newest inputs, which are not copied
  bool at_start;    // a layer's input is copied while the layer runs, not after it
  bool waits;       // the compute stream waits for the copies of inputs that leave the stash
  size_t in_order;  // a copy back waits until the input this many layers earlier has been used; 0:
                    // it does not wait
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
  // `bytes`: size of a layer's input. The pointees must outlive the object.
  ActivationOffload(const ActivationOffloading& how, uint64_t bytes, TorchMemory* memory,
                    TorchTimer* timer)
      : how_(how), bytes_(bytes), memory_(memory), timer_(timer) {}

  // Called in forward around each layer: BeginLayer when its input exists, Keep when nothing else
  // needs the input.
  void BeginLayer();
  void Keep(Tensor input);
  // Called in backward, the last layer first: returns the input of the next layer.
  Tensor Bring();

 private:
  void CopyOut();

  const ActivationOffloading& how_;
  const uint64_t bytes_;
  // Inputs on the GPU: kept_ are not copied; stash_ has inputs with the ends of their copies.
  std::deque<Tensor> kept_;
  struct Stashed {
    Tensor input;
    TorchClock::Event copied;
  };
  std::deque<Stashed> stash_;
  size_t on_host_ = 0;  // number of inputs that are only on the host
  std::deque<TorchClock::Event> used_;
  TorchMemory* memory_;
  TorchTimer* timer_;
};

}  // namespace zeroplan
