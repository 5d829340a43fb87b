// Optimizers of PyTorch programs: their states, the temporaries of a step, and its time.
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

// A tensor that a rank updates: a parameter, its shard, or several flattened into one.
struct UpdatedTensor {
  uint64_t elements = 0;
  uint64_t rows = 0;       // rows of a matrix; 0: it has one dimension
  bool embedding = false;  // belongs to a torch.nn.Embedding
};

// The whole parameters of `model`.
std::vector<UpdatedTensor> UpdatedTensorsOf(const TorchModel& model);

// The form of an optimizer's states of a tensor.
enum class StatesKept : uint8_t {
  kLikeParams,  // two states, in the dtype in which it holds parameters
  kFp32,        // two
  kEightBit,    // two states of one byte, with an fp32 scale for 256 elements; small tensors: see
                // least_eight_bit
  // For a matrix the means of its rows and columns, for a vector one state, and one number; in
  // fp32.
  kRowsAndColumns,
};

// The counted facts of one optimizer.
struct OptimizerRow {
  TorchOptimizer optimizer;
  std::string_view text;  // "torch.optim.AdamW(fused=True)"
  StatesKept states;
  // For kEightBit: tensors below this many elements, and with `whole_blocks` tensors that 256 does
  // not divide, have states in fp32, or with `small_like_params` in the parameters' dtype.
  uint64_t least_eight_bit = 0;
  bool whole_blocks = false, small_like_params = false;
  // The Trainer registers embeddings with 8-bit optimizers for states in fp32.
  bool wide_embeddings = false;
  uint64_t tables = 0;         // bytes of quantization maps, of each 8-bit state
  uint64_t shared_tables = 0;  // bytes that all states share
  // States of tensors with at least this many elements are in managed memory; 0: none are.
  uint64_t least_paged = 0;
  // Elements that an update reads and writes per parameter element: of parameters, gradients,
  // states, and fp32 temporaries.
  double params = 0, grads = 0, own = 0, wide = 0;
  // Bytes of casts of 16-bit parameters and gradients to fp32 and back.
  double casts = 0;
  // Kernels of a step: per list of tensors with `lists`, else per tensor.
  int kernels = 0;
  bool lists = false;
  // A step allocates a list of tensors as large as a state.
  bool copies_state = false;
  // A step makes fp32 copies of both 8-bit states, with their scales.
  bool wide_copies = false;
  // Measured on one H200 (tests/data/runtimes/optimizer_runs.jsonl). slower: the factor by which
  // its kernels are slower than eager kernels that move the same bytes. eight_bit_bytes: updates of
  // 8-bit states are bound by arithmetic, so an element counts as this many bytes, with parameters
  // in fp32; eight_bit_bytes_16: the same in 16 bit. python: Python's seconds for each tensor,
  // after which the host waits for the GPU.
  double slower = 1, eight_bit_bytes = 0, eight_bit_bytes_16 = 0, python = 0;
  // True if it can update DTensors, FSDP2's parameters.
  bool dtensors = true;
};

const OptimizerRow& RowOf(TorchOptimizer optimizer);

// The bytes of an optimizer's states of a tensor whose parameters are held in `params`: in
// PyTorch's allocator, and in managed memory.
struct StatesBytes {
  uint64_t allocated = 0, managed = 0;
};
StatesBytes StatesBytesOf(const OptimizerRow& row, const UpdatedTensor& tensor, Dtype params);

// An optimizer's states on the GPU, and its steps. The pointees must outlive the object.
class TorchStates {
 public:
  // `params`: the dtype in which the optimizer holds parameters and gets gradients.
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

  // Updates all tensors. The first step allocates the states.
  void Step(int stream = TorchClock::kComputeStream);
  // Updates one tensor, as soon as its gradient is complete.
  void Update(size_t tensor, int stream = TorchClock::kComputeStream);
  // UpdateBytes: the bytes that an update reads and writes. TimedBytes: the bytes that an eager
  // kernel would move in the time of the update.
  double UpdateBytes(const UpdatedTensor& tensor) const;
  double TimedBytes(const UpdatedTensor& tensor) const;
  // The bytes that the updates of all tensors read and write.
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
  std::vector<std::vector<Tensor>> states_;  // states in the allocator
  std::vector<bool> made_;
  Tensor tables_;
  Tensor last_update_;  // Adafactor's, a variable of its loop
  TorchMemory* memory_;
  TorchTimer* timer_;
};

}  // namespace zeroplan
