// What a runtime's program does, as time: kernels, collectives and copies on its streams, work of
// its Python thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/runtimes/fitted.h"
#include "planner/runtimes/torch_clock.h"
#include "planner/runtimes/torch_kernels.h"
#include "planner/runtimes/torch_machine.h"

namespace zeroplan {

// Calls of a runtime's Python code that take the host longer than an operation, at stage 3 of
// DeepSpeed: a module's hooks, of its forward or backward pass; a gather of some parameters, and
// each of them; a parameter that is gathered by itself after an update; a gradient.
enum class PythonCall : uint8_t {
  kModuleHooks,
  kGather,
  kGatheredParam,
  kPersistentParam,
  kGradient,
  kReduction
};
inline constexpr size_t kPythonCalls = 6;

// Without a machine nothing takes time.
class TorchTimer {
 public:
  TorchTimer(const TorchMachine* machine, const TimeConstants& constants);

  explicit operator bool() const { return machine_ != nullptr; }
  const TimeConstants& constants() const { return constants_; }

  // Sets the model for all that follows.
  void SetModel(const TorchModel& model, const TorchRun& run, Dtype dtype);
  void Forward(TorchOp op) {
    if (kernels_) Launch(kernels_->forward(op));
  }
  void Backward(TorchOp op) {
    if (kernels_) Launch(kernels_->backward(op));
  }
  // Kernels take no time, while it is so.
  void Skip(bool skip) { skip_ = skip; }
  // Compiled code is entered: a layer, or a module of its own; a layer within
  // torch.utils.checkpoint, which costs eager code.
  void EnterGraph();
  void EnterModuleGraph();
  void EnterCheckpoint();

  // Kernels that read and write `bytes` in all.
  void Memory(double bytes, int launches = 1, int stream = TorchClock::kComputeStream);
  // `full_bytes` as CollectiveCost counts them. Nothing with one rank.
  void Collective(int stream, CollectiveOp op, double full_bytes, int calls = 1);
  // Between page-locked memory and the GPU.
  void Copy(int stream, bool to_device, double bytes, int calls = 1);
  // `count` calls, each as long as TimeConstants says.
  void Python(PythonCall call, int count = 1);
  // How many calls there have been.
  int64_t calls(PythonCall call) const { return calls_[static_cast<size_t>(call)]; }
  void Host(double seconds) {
    if (machine_) clock_.Host(seconds);
  }
  // The optimizer's own work on the host, which reads and writes `bytes` of its memory.
  void HostUpdate(double bytes);
  void StreamWaits(int stream, int other) { clock_.StreamWaits(stream, other); }
  void HostWaits(int stream) { clock_.HostWaits(stream); }
  void HostWaitsForAll() { clock_.HostWaitsForAll(); }
  TorchClock::Event Record(int stream) { return clock_.Record(stream); }
  void HostWaits(const TorchClock::Event& event) { clock_.HostWaits(event); }

  // The step of which Time() tells begins now; its micro-steps begin where they are marked.
  void BeginStep();
  void BeginMicroStep();
  void EndStep();
  // Time of the last step, with `micro_steps` of them in place of the `played` ones, each as long
  // as the last but one. Nothing without a machine.
  std::optional<RuntimeTime> Time(int64_t micro_steps) const;

 private:
  void Launch(const TorchWork& work);

  const TorchMachine* machine_;
  TimeConstants constants_;
  TorchClock clock_;
  std::optional<TorchKernels> kernels_;
  bool compiled_ = false, skip_ = false;
  std::array<int64_t, kPythonCalls> calls_{};
  std::vector<TorchClock::Reading> micro_steps_;
  TorchClock::Reading begin_, end_;
};

}  // namespace zeroplan
