// Names of the program's enumerations.
#include "core/program/program.h"

namespace zeroplan {

std::string_view RankAxisName(RankAxis axis) {
  switch (axis) {
    case RankAxis::kAll:
      return "all";
    case RankAxis::kShard:
      return "shard";
    case RankAxis::kReplica:
      return "replica";
  }
  return "?";
}

std::string_view SpaceName(Space space) {
  switch (space) {
    case Space::kDevice:
      return "device";
    case Space::kPinned:
      return "pinned";
    case Space::kPageable:
      return "pageable";
    case Space::kFile:
      return "file";
  }
  return "?";
}

std::string_view MemoryClassName(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kParams:
      return "params";
    case MemoryClass::kGrads:
      return "grads";
    case MemoryClass::kOptimizer:
      return "optimizer";
    case MemoryClass::kActivations:
      return "activations";
    case MemoryClass::kBuffers:
      return "buffers";
  }
  return "?";
}

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kParamFull:
      return "param_full";
    case Role::kParamShard:
      return "param_shard";
    case Role::kGradFull:
      return "grad_full";
    case Role::kGradShard:
      return "grad_shard";
    case Role::kMaster:
      return "master";
    case Role::kAdamM:
      return "adam_m";
    case Role::kAdamV:
      return "adam_v";
    case Role::kGradHost:
      return "grad_host";
    case Role::kMasterHost:
      return "master_host";
    case Role::kAdamMHost:
      return "adam_m_host";
    case Role::kAdamVHost:
      return "adam_v_host";
    case Role::kMasterFile:
      return "master_file";
    case Role::kAdamMFile:
      return "adam_m_file";
    case Role::kAdamVFile:
      return "adam_v_file";
    case Role::kStateSlot:
      return "state_slot";
    case Role::kParamSlot:
      return "param_slot";
    case Role::kStaging:
      return "staging";
    case Role::kTokens:
      return "tokens";
    case Role::kTokensHost:
      return "tokens_host";
    case Role::kState:
      return "state";
    case Role::kStateHost:
      return "state_host";
    case Role::kActivation:
      return "activation";
    case Role::kActivationGrad:
      return "activation_grad";
    case Role::kLogits:
      return "logits";
    case Role::kKeysValues:
      return "keys_values";
    case Role::kLoss:
      return "loss";
    case Role::kWorkspace:
      return "workspace";
    case Role::kReduceScratch:
      return "reduce_scratch";
  }
  return "?";
}

std::string_view StreamName(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
      return "compute";
    case Stream::kGather:
      return "gather";
    case Stream::kReduce:
      return "reduce";
    case Stream::kHostToDevice:
      return "host_to_device";
    case Stream::kDeviceToHost:
      return "device_to_host";
    case Stream::kHost:
      return "host";
    case Stream::kStorage:
      return "storage";
  }
  return "?";
}

std::string_view SectionName(Section section) {
  switch (section) {
    case Section::kInit:
      return "init";
    case Section::kMicroStep:
      return "micro_step";
    case Section::kOptimizerStep:
      return "optimizer_step";
    case Section::kDrain:
      return "drain";
    case Section::kEval:
      return "eval";
    case Section::kGenerate:
      return "generate";
    case Section::kSave:
      return "save";
    case Section::kLoad:
      return "load";
    case Section::kDecode:
      return "decode";
  }
  return "?";
}

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kInit:
      return "init";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kStep:
      return "step";
    case Phase::kSave:
      return "save";
  }
  return "?";
}

std::string_view CollectiveKindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceToOwners:
      return "reduce_to_owners";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "?";
}

std::string_view StateKindName(StateKind kind) {
  switch (kind) {
    case StateKind::kMaster:
      return "master";
    case StateKind::kAdamM:
      return "adam_m";
    case StateKind::kAdamV:
      return "adam_v";
  }
  return "?";
}

When MicroStepKind(int64_t m, int64_t grad_accum) {
  if (grad_accum == 1) return kOnly;
  if (m == 0) return kFirst;
  return m == grad_accum - 1 ? kLast : kMiddle;
}

}  // namespace zeroplan
