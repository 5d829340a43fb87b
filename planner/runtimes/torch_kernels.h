// The machine that a PyTorch process runs on, the kernels that PyTorch launches for a transformer's
// forward and backward pass, and what they take there.
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

// Made once for many choices. REQUIRES: TorchMachineLacks(...) is empty.
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
  double host_bytes_per_second;  // of the host's memory, one rank's share; 0: not known
  bool h200;                     // the GPU that TimeConstants::transformers_products is of
  // Bytes that move while kernels run that arithmetic holds back and that on an H200 take as long
  // as one byte does: they go by multiprocessors and clock.
  double arithmetic_bytes;
};

// What the profile lacks to time a runtime on such a cluster: "network.bandwidth_per_node"; empty:
// nothing.
std::string TorchMachineLacks(const HardwareProfile& profile, const ClusterShape& cluster);

// In the order of a forward pass. What a model lacks takes no time.
enum class TorchOp : uint8_t {
  kEmbedding,
  kNorm1,
  kQkv,  // one product of queries, keys and values; else that of queries
  kKey,  // the product of keys, and that of values
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
  // Of models that zeroplan does not train: a norm behind attention or MLP, experts, a tower that
  // sees.
  kPostNorm,
  kRouter,
  kExperts,
  kVision
};
inline constexpr size_t kTorchOps = 21;

struct TorchWork {
  double seconds = 0;
  int launches = 0;
  TorchWork& operator+=(const TorchWork& other) {
    seconds += other.seconds;
    launches += other.launches;
    return *this;
  }
};

// Bytes that pointwise, norm and reduction kernels read and write are those of the code's parts,
// one kernel an operation where it is eager, fused as inductor does where it is compiled.
class TorchKernels {
 public:
  TorchKernels(const TorchModel& model, const TorchRun& run, Dtype dtype,
               const TorchMachine& machine, const TimeConstants& constants);

  const TorchWork& forward(TorchOp op) const { return forward_[static_cast<size_t>(op)]; }
  const TorchWork& backward(TorchOp op) const { return backward_[static_cast<size_t>(op)]; }
  // Of the adapter beside the product `op`.
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
  // planned_step.cc. The layer behind its products of queries, keys and values.
  void AddPlannedLayer(const TorchModel& model, const TorchParts& parts);
  void AddExperts(const TorchModel& model, const TorchParts& parts);
  void AddVision(const TorchModel& model);
  // The product of [rows, k] and [k, n], `times` times.
  TorchWork Product(GemmKind kind, int64_t rows, int64_t k, int64_t n, int times = 1,
                    bool float8 = false) const;
  TorchWork Memory(double bytes, int launches, bool compiled) const;
  // Adds the product of [tokens, k] and [k, n], made by chunks of the tokens.
  void AddProduct(TorchOp op, int64_t k, int64_t n, bool bias, int chunks = 1);
  // torch_float8.cc. What casts the product's operands to 8 bits.
  void AddFloat8(TorchOp op, int64_t k, int64_t n);
  void AddPart(TorchOp op, const CodePart& part, int64_t e, bool compiled);
  void AddMemory(TorchOp op, double forward_bytes, int forward_launches, double backward_bytes,
                 int backward_launches, bool compiled);

  TorchRun run_;
  Dtype dtype_;
  const TorchMachine& machine_;
  const TimeConstants& constants_;
  int64_t tokens_;
  double products_;  // their rate beside the profile's
  int64_t heads_, q_columns_, kv_columns_;
  bool frozen_;  // products have no gradients of weights
  std::array<TorchWork, kTorchOps> forward_{}, backward_{};
  std::array<TorchWork, kTorchOps> adapter_forward_{}, adapter_backward_{};
};

}  // namespace zeroplan
