#include "planner/runtimes/runtime_footprint.h"

#include <algorithm>

namespace zeroplan {

std::string_view TorchClassName(TorchClass kind) {
  switch (kind) {
    case TorchClass::kParams:
      return "params";
    case TorchClass::kGrads:
      return "grads";
    case TorchClass::kOptimizer:
      return "optimizer";
    case TorchClass::kActivations:
      return "activations";
    case TorchClass::kLogits:
      return "logits";
    case TorchClass::kBuffers:
      return "buffers";
  }
  return "";
}

std::string_view TorchPhaseName(TorchPhase phase) {
  switch (phase) {
    case TorchPhase::kInit:
      return "init";
    case TorchPhase::kForwardBackward:
      return "forward_backward";
    case TorchPhase::kStep:
      return "step";
  }
  return "";
}

TorchPhase RuntimeFootprint::DecidingPhase() const {
  const auto largest = std::max_element(
      peaks.begin(), peaks.end(),
      [](const TorchPeak& a, const TorchPeak& b) { return a.reserved_bytes < b.reserved_bytes; });
  return static_cast<TorchPhase>(largest - peaks.begin());
}

uint64_t RuntimeFootprint::StepAllocatedBytes() const {
  return std::max(peaks[static_cast<size_t>(TorchPhase::kForwardBackward)].allocated_bytes,
                  peaks[static_cast<size_t>(TorchPhase::kStep)].allocated_bytes);
}

uint64_t RuntimeFootprint::StepReservedBytes() const {
  return std::max(peaks[static_cast<size_t>(TorchPhase::kForwardBackward)].reserved_bytes,
                  peaks[static_cast<size_t>(TorchPhase::kStep)].reserved_bytes);
}

uint64_t RuntimeFootprint::ReservedBytes() const {
  return peaks[static_cast<size_t>(DecidingPhase())].reserved_bytes;
}

}  // namespace zeroplan
