// One rank on the CPU: its arenas, its threads, and the loop that runs a section.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/program/program.h"
#include "executor/collectives/in_process.h"
#include "executor/device/arena.h"
#include "executor/engine/engine.h"
#include "executor/engine/rank_runner.h"
#include "executor/engine/resolve.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {

// A random legal order of a section's instructions, to reveal missing waits, which list order
// hides.

// SplitMix64 (Steele, Lea and Flood 2014): small, and the same on every machine, so that all ranks
// draw the same order.
class OrderRng {
 public:
  explicit OrderRng(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

// One per rank. Objects with the same program and seed yield the same orders, so collectives match.
//
// Instructions that a stream runs at the end of an update, or of a micro-step that is not the
// step's last, may be left to the next section if nothing in their own waits for them. There they
// come first on their stream. So a missing wait for a carried-over event shows too.
class RandomOrder {
 public:
  RandomOrder(const Program& program, uint64_t seed);

  // Calls execute(section, index, was_left) for the instructions of the section that belong to
  // micro-step `kind` (kind counts in kMicroStep only), except those left to the next section, and
  // for those left by the previous one: in list order within a stream, and a wait only after the
  // record that is the last before it in the list, or was left. A wait for an event without such a
  // record counts as signalled. Allocates nothing.
  template <typename Execute>
  void Run(Section section, When kind, Execute&& execute) {
    const Plan& plan = plans_[PlanIndex(section, kind)];
    Begin(plan);
    while (left_ > 0) {
      const int stream = Pick();
      ZEROPLAN_CHECK(stream >= 0, "section {}: every stream waits for another",
                     SectionName(section));
      const auto s = static_cast<size_t>(stream);
      const Item item = queues_[s][head_[s]++];
      execute(item.section, static_cast<size_t>(item.index), item.was_left);
      if (item.records >= 0) left_to_record_[static_cast<size_t>(item.records)] = 0;
      if (!item.was_left) done_[static_cast<size_t>(item.index)] = 1;
      if (!item.may_be_left) --left_;
    }
  }

 private:
  struct Item {
    Section section;
    int32_t index;         // index within the section
    int32_t after = -1;    // index of the record in the same section that must have run; -1: none
    int32_t event = -1;    // event that it waits for; -1: none
    int32_t records = -1;  // event that it records; -1: none
    bool may_be_left = false;
    bool was_left = false;
  };
  struct Plan {
    std::array<std::vector<Item>, kStreams> queues;
    size_t items = 0;  // number of items that may not be left
  };

  static size_t PlanIndex(Section section, When kind);
  static Plan MakePlan(const Program& program, Section section, When kind);
  static void MarkLeavable(Plan& plan);
  void Begin(const Plan& plan);
  bool Ready(const Item& item) const;
  int Pick();

  std::vector<Plan> plans_;
  OrderRng rng_;
  // items of the running section, after those that were left to it
  std::array<std::vector<Item>, kStreams> queues_;
  std::array<size_t, kStreams> head_{};
  size_t left_ = 0;  // items that the running section must still run
  std::array<uint64_t, kStreams> weight_{};
  std::vector<uint8_t> done_;            // by index within the section
  std::vector<uint8_t> left_to_record_;  // by event: an earlier section left its record to this one
};

class CpuRank final : public RankRunner {
 public:
  using Clock = std::chrono::steady_clock;

  // `program` must outlive it. `built`: the origin of a trace's times.
  CpuRank(const Program& program, const EngineOptions& options, int rank, int threads,
          std::shared_ptr<RankCommunicators> communicators, Clock::time_point built);

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
  const std::shared_ptr<RankCommunicators> communicators_;
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
