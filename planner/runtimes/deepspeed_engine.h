// The memory and time of DeepSpeed's engine and ZeRO optimizers: the tensors that they hold,
// allocate and free in addition to the model's own, and the work that they run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/settings/zero_config.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_optimizer.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

// Streams in addition to the compute stream. The last two stand for the threads that read and write
// files.
inline constexpr int kReduceStream = 1, kGatherStream = 2, kReadStream = 3, kWriteStream = 4;
// Bytes per gradient element that the check for infinities reads and writes, and its kernels
// (stage_1_and_2.py, _has_inf_or_nan: a copy in fp32, isnan, isinf, or, as fp32, max).
inline constexpr double kOverflowBytes = 36;
inline constexpr int kOverflowKernels = 9;
// The same for the norm, computed from a copy in fp64 (get_grad_norm_direct).
inline constexpr double kNormBytes = 18;
inline constexpr int kNormKernels = 3;
// Tensors smaller than this have no file (swap_tensor/utils.py, MIN_AIO_BYTES).
inline constexpr uint64_t kLeastFileBytes = 1 << 20;
// Bytes per element of FusedAdam: reads the gradient, reads and writes the master and two states,
// all in fp32.
inline constexpr double kAdamBytes = 28;

// Bytes per element that the optimizer holds. base_optimizer.py, _configure_master_weights:
// masters, and gradients for them. FusedAdam's states have the dtype of its parameters;
// DeepSpeedCPUAdam's are fp32, except with bf16_optimizer_states (get_optimizer_configuration).
struct HeldBytes {
  explicit HeldBytes(const PrecisionConfig& precision)
      : master(precision.master_weights == MasterWeights::kParam ? 2 : 4),
        host_state(precision.moment_dtype == Dtype::kBF16 ? 2 : 4) {}

  uint64_t master, host_state;
  bool light() const { return master == 2; }
  // Bytes that an update on the host reads and writes: gradient, master and states.
  double HostUpdate() const { return static_cast<double>(3 * master + 4 * host_state); }
  // The same on the GPU, by FusedAdam.
  double Update() const { return static_cast<double>(7 * master); }
};

// Bytes per element of gradients: `sums` of micro-steps (data_types.grad_accum_dtype), and as they
// are `sent` (communication_data_type).
struct GradBytes {
  explicit GradBytes(const PrecisionConfig& precision)
      : sums(DtypeBytes(precision.grad_accum_dtype)), sent(precision.fp32_reduction ? 4 : 2) {}

  uint64_t sums, sent;
};

// The optimizer on the GPU: FusedAdam, or one that the program hands to deepspeed.initialize.
class ZeroOptimizer {
 public:
  // Updates tensors of these sizes, each a partition or a sub-group.
  ZeroOptimizer(const TorchPlay& play, const std::vector<uint64_t>& sizes, TorchMemory* memory,
                TorchTimer* timer);

  // Step plays the update of one tensor: its states, and the temporaries of a step. BytesAround
  // returns the bytes per element to add to the copies around the update; not 0 where FusedAdam's
  // time is counted with those copies.
  void Step(size_t tensor) { states_.Update(tensor); }
  double BytesAround() const { return bytes_around_; }

 private:
  TorchTimer no_timer_{nullptr, {}};
  double bytes_around_;
  TorchStates states_;
};

// Stage 3's optimizer: sub-groups of the rank's shards, each on the GPU, the host or a disk.
class SubGroups {
 public:
  // `shards`: elements of a rank's shard of each parameter.
  SubGroups(const TorchPlay& play, const std::vector<uint64_t>& shards, TorchMemory* memory,
            TorchTimer* timer);

  // stage3.py, _create_fp32_partitions, initialize_optimizer_states.
  void Init();
  // Step plays the tensors that `step` allocates and frees, TimeStep its time.
  void Step();
  void TimeStep();
  // Called when the gradient of a parameter's shard is complete, if the optimizer is on the host.
  // Plays the gradient's fp32 copy to the host, which stays in host memory unless it is written to
  // a disk.
  void OffloadGradient(size_t param, int stream);
  void TimeOffloadGradient(const std::vector<size_t>& params, int stream);

  // Locks the buffers of shards of parameters on a disk (partitioned_param_swapper.py).
  void LockParamBuffers();
  bool params_in_files() const { return params_in_files_; }
  // has_file: the parameter's shard was written to a file. on_disk: it is also read from there.
  // params_in_files: its sub-group has no place on the host.
  bool has_file(size_t param) const {
    return params_in_files_ && 2 * shards_[param] >= kLeastFileBytes;
  }
  bool on_disk(size_t param) const { return has_file(param) && params_in_files(param); }
  bool params_in_files(size_t param) const { return groups_[group_of_[param]].params_in_files; }
  // The number of elements that one buffer on the host holds.
  uint64_t params_on_host() const {
    return params_in_files_ ? std::min(partition_, zero_.offload_param.max_in_cpu_elements)
                            : partition_;
  }

 private:
  struct SubGroup {
    uint64_t elements = 0;
    std::vector<size_t> params;
    bool on_host = false, in_files = false, params_in_files = false, has_states = false;
    Tensor master, grad;
  };
  void Make();
  void PlaceParams();
  void InitOnHost(SubGroup& group);
  void TimeFiles(size_t index);

  const ZeroConfig zero_;
  const HeldBytes held_;
  const uint64_t sum_bytes_;
  const bool offload_, offload_param_, optimizer_in_files_, params_in_files_;
  const std::vector<uint64_t> shards_;
  uint64_t partition_ = 0, largest_ = 0;
  std::vector<SubGroup> groups_;
  std::vector<size_t> group_of_;
  bool read_ahead_ = false;
  std::vector<Tensor> unwritten_;  // gradients that are too small for a file
  std::unique_ptr<ZeroOptimizer> optimizer_;
  TorchMemory* memory_;
  TorchTimer* timer_;
};

// Elements of the largest part of a parameter that a rank has in a file, with offload_param on
// NVMe: its buffers have to hold it. zero.Init asks AsyncPartitionedParameterSwapper.get_buffer for
// ceil(elements / ranks) of every parameter that is large enough for a file, persistent or not. 0:
// no parameter is in a file.
uint64_t LargestFilePart(const ModelSpec& model, const TrainSetup& setup);
// The error with which get_buffer ends a run whose offload_param.buffer_size is too small, and the
// way out; "" if there is none.
std::string ParamBufferProblem(const ModelSpec& model, const TrainSetup& setup);
// Makes offload_param.buffer_elements large enough.
void FitParamBuffers(const ModelSpec& model, TrainSetup& setup);

// Times the reduction of a parameter's gradient in int4 with a scale for each row or column: first
// within nodes, whatever the shard group, then between them (coalesced_collectives.py,
// all_to_all_quant_reduce).
void TimeQuantizedReduction(const TorchModel& model, size_t param, uint64_t gpus, TorchTimer* timer,
                            int stream);

// Create the engine of each stage.
std::unique_ptr<TorchRuntime> MakeStages0To2(const TorchModel& model, const TorchPlay& play,
                                             TorchMemory* memory, TorchTimer* timer);
std::unique_ptr<TorchRuntime> MakeStage3(const TorchModel& model, const TorchPlay& play,
                                         TorchMemory* memory, TorchTimer* timer);

}  // namespace zeroplan
