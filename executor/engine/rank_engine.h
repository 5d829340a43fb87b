// One rank of the CPU engine: its arenas, its threads, and the loop that runs a section.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "core/program/program.h"
#include "core/program/step_state.h"
#include "executor/checkpoint/state_io.h"
#include "executor/collectives/in_process.h"
#include "executor/device/arena.h"
#include "executor/engine/checkpoint_io.h"
#include "executor/engine/engine.h"
#include "executor/engine/random_order.h"
#include "executor/engine/resolve.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {

// REQUIRES: every call comes from the rank's own thread, but for the reports, which another thread
// may read while no section runs.
class RankEngine {
 public:
  using Clock = std::chrono::steady_clock;

  // `program`, `options` and `communicator` outlive it.
  RankEngine(const Program& program, const EngineOptions& options, int rank, int threads,
             Communicator& communicator, Clock::time_point built);

  // Runs the instructions of `section` that belong to micro-step `kind` (kind counts in kMicroStep
  // only). `repetition` is what the trace says.
  void RunSection(Section section, When kind = kOnly, int repetition = 0);

  void BindCheckpoint(const CheckpointBinding& binding) { checkpoint_ = binding; }
  // A batch's inputs and targets, B*T each, in host memory.
  void FillTokens(const FillBatch& fill, int64_t micro_step);
  std::span<int32_t> inputs();
  // The pinned copy of the step state.
  StepState& host_state();
  std::vector<float> LogitsAsFloat();

  const RankArenas& arenas() const { return arenas_; }
  const std::array<uint64_t, kSpaces>& touched_bytes() const { return touched_bytes_; }
  Engine::Traffic TakeTraffic() { return std::exchange(traffic_, {}); }
  const std::vector<ExecutedInstruction>& executed() const { return executed_; }
  const std::vector<TraceSpan>& spans() const { return spans_; }

 private:
  void Execute(Section section, size_t index, int repetition);
  void Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved);
  void Run(const LaunchKernel& launch, const ResolvedInstruction& resolved);
  void Run(const Collective& collective, const ResolvedInstruction& resolved);
  void Run(const Copy& copy, const ResolvedInstruction& resolved);
  void Run(const FileIo& io, const ResolvedInstruction& resolved);
  void RunSwap(const FileIo& io, const ResolvedInstruction& resolved);
  // Memory that callers reach between sections, whether the program keeps it allocated then or not.
  std::span<std::byte> HostBytes(BufferId id);
  double Seconds() const;

  const Program& program_;
  const int rank_;
  const bool record_trace_;
  const Clock::time_point built_;
  Communicator& communicator_;
  const KernelTable& kernels_;
  const RankArenas arenas_;
  const ResolvedProgram resolved_;
  ThreadPool pool_;
  const KernelContext context_;
  std::optional<RandomOrder> random_order_;
  CheckpointBinding checkpoint_;

  std::array<uint64_t, kSpaces> touched_bytes_{};
  Engine::Traffic traffic_;
  std::vector<ExecutedInstruction> executed_;
  std::vector<TraceSpan> spans_;
};

}  // namespace zeroplan
