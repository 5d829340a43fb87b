// One rank on the CPU: its arenas, its threads, and the loop that runs a section.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/program/program.h"
#include "executor/collectives/in_process.h"
#include "executor/device/arena.h"
#include "executor/engine/engine.h"
#include "executor/engine/random_order.h"
#include "executor/engine/rank_files.h"
#include "executor/engine/rank_runner.h"
#include "executor/engine/resolve.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {

class CpuRank final : public RankRunner {
 public:
  using Clock = std::chrono::steady_clock;

  // `program` outlives it. `built`: the origin of a trace's times.
  CpuRank(const Program& program, const EngineOptions& options, int rank, int threads,
          std::shared_ptr<AxisCommunicators> communicators, Clock::time_point built);

  void Abort(const std::exception_ptr& cause) noexcept override { communicators_->Abort(cause); }

  StepTimes Finish() override;
  Standing standing() const override;
  void Interrupt(const std::exception_ptr& cause) noexcept override {
    communicators_->Abort(cause);
  }

  std::vector<TraceSpan> spans() const override { return spans_; }
  std::array<uint64_t, kSpaces> PatternHighWater() const override {
    return arenas_.PatternHighWater();
  }
  std::span<const std::byte> Peek(BufferId buffer) override {
    return arenas_.bytes(program_.buffers.at(buffer));
  }

 protected:
  void Issue(Section section, When kind, int repetition) override;
  RankFiles& files() override { return files_; }
  const ArenaBases& bases() const override { return bases_; }

 private:
  void Execute(Section section, size_t index, int repetition);
  void Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved);
  void Launch(const LaunchKernel& launch, const ResolvedInstruction& resolved);
  void Communicate(const Collective& collective, const ResolvedInstruction& resolved);
  void Move(const Copy& copy, const ResolvedInstruction& resolved);
  double Seconds() const;

  const Clock::time_point built_;
  const std::shared_ptr<AxisCommunicators> communicators_;
  const KernelTable& kernels_;
  const RankArenas arenas_;
  const ArenaBases bases_;
  const ResolvedProgram resolved_;
  RankFiles files_;
  ThreadPool pool_;
  const KernelContext context_;
  std::optional<RandomOrder> random_order_;
  std::vector<TraceSpan> spans_;
};

}  // namespace zeroplan
