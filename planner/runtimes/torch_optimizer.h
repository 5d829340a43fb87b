// Optimizers that PyTorch programs update parameters with: their states, what a step makes beside
// them, and the time that it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "planner/runtimes/torch_memory.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"
#include "planner/torch_recipe.h"

namespace zeroplan {

// What a rank updates at once: a parameter, its shard, or several flattened into one.
struct UpdatedTensor {
  uint64_t elements = 0;
  uint64_t rows = 0;       // of a matrix; 0: it has one dimension
  bool embedding = false;  // of torch.nn.Embedding
};

// The parameters of `model`, whole.
std::vector<UpdatedTensor> UpdatedTensorsOf(const TorchModel& model);

// How an optimizer keeps its states of a tensor.
enum class StatesKept : uint8_t {
  kLikeParams,  // two, in the dtype in which it holds parameters
  kFp32,        // two
  kEightBit,    // two of one byte, with an fp32 scale for 256 elements; small ones as `small` says
  // Of a matrix the means of its rows and columns, of a vector one state, and a number; in fp32.
  kRowsAndColumns,
};

// One optimizer: facts that were counted, with what of.
struct OptimizerRow {
  TorchOptimizer optimizer;
  std::string_view text;  // "torch.optim.AdamW(fused=True)"
  StatesKept states;
  // Of kEightBit: tensors below this many elements, and where `whole_blocks` those that 256 does
  // not divide, have states of two bytes' or four bytes' numbers: in fp32, or like the parameters.
  uint64_t least_eight_bit = 0;
  bool whole_blocks = false, small_like_params = false;
  // Trainer registers embeddings of 8-bit optimizers for states in fp32.
  bool wide_embeddings = false;
  uint64_t tables = 0;         // bytes of quantization maps, of each 8-bit state
  uint64_t shared_tables = 0;  // of all together
  // States of tensors from this many elements on are in managed memory; 0: none.
  uint64_t least_paged = 0;
  // Bytes of an update that it reads and writes, in elements: of parameters, gradients, states, and
  // of fp32 temporaries.
  double params = 0, grads = 0, own = 0, wide = 0;
  // Casts of 16-bit parameters and gradients to fp32 and back, in bytes.
  double casts = 0;
  // Kernels of a step: of lists of tensors, or of each.
  int kernels = 0;
  bool lists = false;
  // A list as large as a state is made.
  bool copies_state = false;
  // Of 8-bit states both are made in fp32, with their scales.
  bool wide_copies = false;
  // Measured on one H200 (tests/data/runtimes/optimizer_runs.jsonl). Its kernels are this much
  // slower than eager kernels that move the same bytes; of 8-bit states, which hang on arithmetic,
  // an element counts as so many bytes, with parameters in fp32 and in 16 bit; Python's seconds for
  // each tensor, after which the host waits for the GPU.
  double slower = 1, eight_bit_bytes = 0, eight_bit_bytes_16 = 0, python = 0;
  // Whether it updates DTensors, FSDP2's parameters.
  bool dtensors = true;
};

const OptimizerRow& RowOf(TorchOptimizer optimizer);

// Bytes of its states of a tensor, held in `params`: those of PyTorch's allocator, and those in
// managed memory.
struct StatesBytes {
  uint64_t allocated = 0, managed = 0;
};
StatesBytes StatesBytesOf(const OptimizerRow& row, const UpdatedTensor& tensor, Dtype params);

// An optimizer's states on the GPU, and its steps. The pointers must outlive it.
class TorchStates {
 public:
  // `params`: the dtype in which it holds parameters and is given gradients.
  TorchStates(TorchOptimizer optimizer, Dtype params, std::vector<UpdatedTensor> tensors,
              TorchMemory* memory, TorchTimer* timer)
      : row_(RowOf(optimizer)),
        param_bytes_(DtypeBytes(params)),
        params_(params),
        tensors_(std::move(tensors)),
        states_(tensors_.size()),
        made_(tensors_.size()),
        memory_(memory),
        timer_(timer) {}

  // Updates all tensors. The first step makes the states.
  void Step(int stream = TorchClock::kComputeStream);
  // Updates one, as soon as its gradient is whole.
  void Update(size_t tensor, int stream = TorchClock::kComputeStream);
  // What an update reads and writes; and what it takes, as bytes of an eager kernel.
  double UpdateBytes(const UpdatedTensor& tensor) const;
  double TimedBytes(const UpdatedTensor& tensor) const;
  // What updates of all read and write.
  double UpdateBytes() const;

 private:
  void UpdateOne(size_t tensor, int stream);
  void MakeStates(size_t tensor, int stream);
  void TimeOne(const UpdatedTensor& tensor, int stream);
  void PlayTemporaries(const UpdatedTensor& tensor, int stream);

  const OptimizerRow& row_;
  const uint64_t param_bytes_;
  const Dtype params_;
  const std::vector<UpdatedTensor> tensors_;
  std::vector<std::vector<Tensor>> states_;  // those of the allocator
  std::vector<bool> made_;
  Tensor tables_;
  Tensor last_update_;  // Adafactor's, a variable of its loop
  TorchMemory* memory_;
  TorchTimer* timer_;
};

}  // namespace zeroplan
