// What Engine does, for one kind of hardware. Engine's comments are the contract; it checks
// arguments before it calls.
#pragma once

#include <memory>

#include "executor/engine/engine.h"

namespace zeroplan {

class EngineBackend {
 public:
  virtual ~EngineBackend() = default;

  virtual int first_local_rank() const = 0;
  virtual int local_rank_count() const = 0;

  virtual void Init() = 0;
  virtual void Load(const StateSource& source, bool with_optimizer, const StepState* state) = 0;
  virtual void Save(std::span<StateSink* const> sinks) = 0;
  virtual StepState Step(const FillBatch& fill) = 0;
  virtual double Evaluate(const FillBatch& fill) = 0;
  virtual std::vector<float> Logits(std::span<const int32_t> tokens, int32_t position) = 0;
  virtual void RequestStop() = 0;

  virtual StepState state() const = 0;
  virtual StepTimes LastStepTimes() const { return {}; }
  virtual std::optional<uint64_t> DeviceUsedBytes() const { return std::nullopt; }
  virtual HighWater high_water() const = 0;
  virtual std::array<uint64_t, kSpaces> PatternHighWater() const = 0;
  virtual Engine::Traffic TakeTraffic() = 0;
  virtual std::vector<ExecutedInstruction> ExecutedTrace(int rank) const = 0;
  virtual void Drain() = 0;
  virtual std::vector<TraceSpan> SpanTrace(int rank) = 0;
  virtual std::span<const std::byte> Peek(int rank, BufferId buffer) const = 0;
};

std::unique_ptr<EngineBackend> MakeCpuEngine(const Program& program, const EngineOptions& options);
// In a build with CUDA.
std::unique_ptr<EngineBackend> MakeCudaEngine(const Program& program, const EngineOptions& options);

}  // namespace zeroplan
