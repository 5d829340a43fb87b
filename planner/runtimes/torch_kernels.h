// The machine that a PyTorch process runs on, the kernels that PyTorch launches for a transformer's
// forward and backward pass, and their times on the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/dtype.h"
#include "cost_models/attention_cost.h"
#include "cost_models/cluster_shape.h"
#include "cost_models/collective_cost.h"
#include "cost_models/gemm_cost.h"
#include "cost_models/host_cost.h"
#include "cost_models/memory_cost.h"
#include "hwprofiles/profile.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/torch_model.h"

namespace zeroplan {

// Constructed once for many choices. REQUIRES: TorchMachineLacks(...) is empty.
struct TorchMachine {
  TorchMachine(const HardwareProfile& profile, const ClusterShape& cluster);

  ClusterShape shape;
  GemmCost gemm;
  AttentionCost attention;
  MemoryCost memory;
  CollectiveCost collectives;
  TransferCost transfers;
  StorageCost storage;
  double compute_beside_collective, collective_beside_compute;
  double host_bytes_per_second;  // one rank's share of the host's memory bandwidth; 0: unknown
  bool h200;                     // the GPU to which TimeConstants::transformers_products applies
  // Converts arithmetic-bound work to bytes: the bytes that memory moves in the time of arithmetic
  // that on an H200 takes as long as one byte. It depends on multiprocessors and clock.
  double arithmetic_bytes;
};

// The fact that the profile lacks to time a runtime on `cluster`: "network.bandwidth_per_node";
// empty: none.
std::string TorchMachineLacks(const HardwareProfile& profile, const ClusterShape& cluster);

// Operations in the order of a forward pass. One that a model lacks takes no time.
enum class TorchOp : uint8_t {
  kEmbedding,
  kNorm1,
  kQkv,  // one matmul for queries, keys and values; else the matmul for queries
  kKey,  // the matmul for keys, and the one for values
  kRotary,
  kAttention,
  kOutProj,
  kAdd1,
  kNorm2,
  kUp,
  kGate,
  kActivation,
  kDown,
  kAdd2,
  kFinalNorm,
  kHead,
  kLoss,
  // Only in models that zeroplan does not train: a norm after attention or MLP, experts or one of
  // them, a vision tower.
  kPostNorm,
  kRouter,
  kExperts,
  kOneExpert,
  kVision
};
inline constexpr size_t kTorchOps = 22;

struct TorchWork {
  double seconds = 0;
  int launches = 0;
  TorchWork& operator+=(const TorchWork& other) {
    seconds += other.seconds;
    launches += other.launches;
    return *this;
  }
};

// The kernels of a model's operations. Pointwise, norm and reduction kernels read and write the
// bytes of the code's parts: one kernel per operation in eager code, fused as by inductor in
// compiled code.
class TorchKernels {
 public:
  TorchKernels(const TorchModel& model, const TorchRun& run, Dtype dtype,
               const TorchMachine& machine, const TimeConstants& constants);

  const TorchWork& forward(TorchOp op) const { return forward_[static_cast<size_t>(op)]; }
  const TorchWork& backward(TorchOp op) const { return backward_[static_cast<size_t>(op)]; }
  // The work of the adapter of the matmul `op`.
  const TorchWork& adapter_forward(TorchOp op) const {
    return adapter_forward_[static_cast<size_t>(op)];
  }
  const TorchWork& adapter_backward(TorchOp op) const {
    return adapter_backward_[static_cast<size_t>(op)];
  }

 private:
  void AddLayer(const TorchModel& model);
  void AddAttention(const TorchModel& model, const TorchParts& parts);
  void AddEnds(const TorchModel& model);
  void AddAdapters(const TorchModel& model);  // adapted_step.cc
  // In planned_step.cc: the layer after its matmuls for queries, keys and values.
  void AddPlannedLayer(const TorchModel& model, const TorchParts& parts);
  void AddExperts(const TorchModel& model, const TorchParts& parts);
  void AddVision(const TorchModel& model);
  // The matmul of [rows, k] and [k, n], `times` times.
  TorchWork Product(GemmKind kind, int64_t rows, int64_t k, int64_t n, int times = 1,
                    bool float8 = false) const;
  TorchWork Memory(double bytes, int launches, bool compiled) const;
  // Adds the matmul of [tokens, k] and [k, n], computed in chunks of the tokens.
  void AddProduct(TorchOp op, int64_t k, int64_t n, bool bias, int chunks = 1);
  // In torch_float8.cc: adds the casts of the matmul's operands to FP8.
  void AddFloat8(TorchOp op, int64_t k, int64_t n);
  void AddPart(TorchOp op, const CodePart& part, int64_t e, bool compiled);
  void AddMemory(TorchOp op, double forward_bytes, int forward_launches, double backward_bytes,
                 int backward_launches, bool compiled);

  TorchRun run_;
  Dtype dtype_;
  const TorchMachine& machine_;
  const TimeConstants& constants_;
  int64_t tokens_;
  double products_;  // rate of matmuls relative to the profile's
  int64_t heads_, q_columns_, kv_columns_;
  bool frozen_;  // weights have no gradients
  std::array<TorchWork, kTorchOps> forward_{}, backward_{};
  std::array<TorchWork, kTorchOps> adapter_forward_{}, adapter_backward_{};
};

}  // namespace zeroplan
