#include "executor/engine/cpu_rank.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/program/step_order.h"
#include "executor/engine/local_ranks.h"
#include "executor/kernels/copy_bytes.h"
#include "machine/detect.h"

namespace zeroplan {
namespace {

KernelContext MakeContext(const Program& program, int rank, const EngineOptions& options,
                          ThreadPool* pool) {
  KernelContext context;
  context.program = &program;
  context.rank = rank;
  context.seed = options.seed;
  context.fresh_weights = options.fresh_weights;
  context.pool = pool;
  return context;
}

}  // namespace

CpuRank::CpuRank(const Program& program, const EngineOptions& options, int rank, int threads,
                 std::shared_ptr<AxisCommunicators> communicators, Clock::time_point built)
    : RankRunner(program, rank, options.record_trace),
      built_(built),
      communicators_(std::move(communicators)),
      kernels_(CpuKernels()),
      arenas_(program, rank, options.swap_dir, options.pattern_arenas),
      bases_(arenas_.bases()),
      resolved_(program, bases_, kernels_, rank),
      files_(program, rank, arenas_.file()),
      pool_(threads),
      context_(MakeContext(program, rank, options, &pool_)) {
  // The state's start values are written before section init has allocated anything.
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent) arenas_.MarkLive(buffer);
  }
  if (options.random_order_seed != 0) random_order_.emplace(program, options.random_order_seed);
  if (record_trace_) spans_.reserve(kTraceReserve);
}

void CpuRank::Issue(Section section, When kind, int repetition) {
  if (random_order_) {
    random_order_->Run(section, kind, [&](Section of, size_t index, bool was_left) {
      // What was left is the micro-step's before this one, or no micro-step's.
      const int own = of == Section::kMicroStep ? repetition - 1 : 0;
      Execute(of, index, was_left ? own : repetition);
    });
    return;
  }
  const std::vector<Instruction>& instructions = program_.section(section);
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (!RunsIn(instructions[i], section, kind)) continue;
    Execute(section, i, repetition);
  }
}

void CpuRank::Execute(Section section, size_t index, int repetition) {
  const Instruction& instruction = program_.section(section)[index];
  const ResolvedInstruction& resolved = resolved_.section(section)[index];
  const double begin = record_trace_ ? Seconds() : 0;
  const bool meets = std::holds_alternative<Collective>(instruction.op);
  if (meets) place_.CountCollectives(1);
  place_.Set(meets ? Doing::kMeetsOthers : Doing::kRuns, section, index, repetition);
  try {
    Dispatch(instruction, resolved);
  } catch (const CheckFailure& failure) {
    throw CheckFailure(fmt::format("{}\n  rank {}, section {}, instruction {}: {}", failure.what(),
                                   rank_, SectionName(section), index,
                                   FormatInstruction(program_, instruction)));
  }
  NoteExecuted(section, index, repetition, resolved);
  if (record_trace_) spans_.push_back({section, static_cast<int32_t>(index), begin, Seconds()});
}

StepTimes CpuRank::Finish() {
  StepTimes times;
  times.waited_for_others_seconds = communicators_->TakeWaitedSeconds(rank_);
  return times;
}

// One that waits in a collective, or has ended its part, waits for whoever has not.
Standing CpuRank::standing() const {
  const Doing doing = place_.get().doing;
  return {rank_, PlaceText(), doing == Doing::kReadsBatch || doing == Doing::kRuns};
}

void CpuRank::Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved) {
  std::visit(Overload{
                 [&](const LaunchKernel& launch) { Launch(launch, resolved); },
                 [&](const Collective& collective) { Communicate(collective, resolved); },
                 [&](const Copy& copy) { Move(copy, resolved); },
                 [&](const FileIo& io) { files_.Run(io, resolved); },
                 [&](const Alloc& alloc) { arenas_.MarkLive(program_.buffers[alloc.buffer]); },
                 [&](const Free& free) { arenas_.MarkFree(program_.buffers[free.buffer]); },
                 // A rank runs one instruction at a time, in an order that respects the events.
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

void CpuRank::Launch(const LaunchKernel& launch, const ResolvedInstruction& resolved) {
  kernels_.rows[static_cast<size_t>(launch.kernel)]({launch.kernel, launch.flags, launch.dims,
                                                     resolved_.args(resolved), context_,
                                                     launch.scalars});
}

void CpuRank::Communicate(const Collective& collective, const ResolvedInstruction& resolved) {
  communicators_->Run(collective.axis, rank_,
                      {collective.kind, collective.dtype, resolved_.segments(resolved)}, &pool_);
  NoteTraffic(collective, resolved);
}

void CpuRank::Move(const Copy& copy, const ResolvedInstruction& resolved) {
  CopyBytes(pool_, resolved.dst, resolved.src, resolved.bytes);
  NoteTraffic(copy, resolved);
}

double CpuRank::Seconds() const {
  return std::chrono::duration<double>(Clock::now() - built_).count();
}

std::unique_ptr<LocalRanks> MakeCpuRanks(const Program& program, const EngineOptions& options) {
  const int world_size = program.setup.batch.world_size;
  const int cores = QueryHost().cores;
  const int threads =
      options.threads_per_rank > 0 ? options.threads_per_rank : std::max(1, cores / world_size);
  const auto communicators = std::make_shared<AxisCommunicators>(program);
  const auto built = CpuRank::Clock::now();
  return std::make_unique<LocalRanks>(0, world_size, LocalRanks::Threads::kOwn, [&](int rank) {
    return std::make_unique<CpuRank>(program, options, rank, threads, communicators, built);
  });
}

}  // namespace zeroplan
