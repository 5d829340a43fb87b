#include "executor/engine/cpu_rank.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/program/step_order.h"
#include "executor/engine/local_ranks.h"
#include "executor/kernels/kernel_util.h"
#include "executor/process/process_group.h"
#include "machine/detect.h"
#ifdef ZEROPLAN_WITH_GLOO
#include "executor/collectives/gloo/gloo_communicators.h"
#endif

namespace zeroplan {

namespace {

constexpr std::array<When, 4> kKinds = {kOnly, kFirst, kMiddle, kLast};

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

uint64_t OrderRng::Next() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The micro-step's four kinds come first, then the other sections by number.
size_t RandomOrder::PlanIndex(Section section, When kind) {
  if (section != Section::kMicroStep) return kKinds.size() + static_cast<size_t>(section);
  const auto* found = std::find(kKinds.begin(), kKinds.end(), kind);
  ZEROPLAN_CHECK(found != kKinds.end(), "{} is no kind of micro-step", static_cast<int>(kind));
  return static_cast<size_t>(found - kKinds.begin());
}

RandomOrder::RandomOrder(const Program& program, uint64_t seed)
    : rng_(seed), left_to_record_(program.event_count, 0) {
  plans_.resize(kKinds.size() + kSections);
  size_t longest = 0;
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    longest = std::max(longest, program.section(section).size());
    for (const When kind : kKinds) {
      plans_[PlanIndex(section, kind)] = MakePlan(program, section, kind);
    }
  }
  done_.resize(longest);
  for (std::vector<Item>& queue : queues_) queue.reserve(2 * longest);
}

RandomOrder::Plan RandomOrder::MakePlan(const Program& program, Section section, When kind) {
  Plan plan;
  std::vector<int32_t> recorded(program.event_count, -1);
  const std::vector<Instruction>& instructions = program.section(section);
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& instruction = instructions[i];
    if (!RunsIn(instruction, section, kind)) continue;
    Item item{section, static_cast<int32_t>(i)};
    if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      item.after = recorded[wait->event];
      item.event = static_cast<int32_t>(wait->event);
    } else if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      recorded[record->event] = item.index;
      item.records = static_cast<int32_t>(record->event);
    }
    plan.queues[static_cast<size_t>(instruction.stream)].push_back(item);
    ++plan.items;
  }
  // Streams meet at the end of everything else.
  const bool leaves = section == Section::kOptimizerStep ||
                      (section == Section::kMicroStep && (kind & kLeavesToMicroStep) != 0);
  if (leaves) MarkLeavable(plan);
  return plan;
}

// Marks the end of each stream but compute, as far as nothing that has to run waits for it.
void RandomOrder::MarkLeavable(Plan& plan) {
  // By stream: how many items from its begin have to run.
  std::array<size_t, kStreams> must_run{};
  must_run[static_cast<size_t>(Stream::kCompute)] =
      plan.queues[static_cast<size_t>(Stream::kCompute)].size();
  std::array<size_t, kStreams> seen{};
  const auto require = [&](int32_t index) {
    for (size_t s = 0; s < plan.queues.size(); ++s) {
      const auto& queue = plan.queues[s];
      const auto found =
          std::lower_bound(queue.begin(), queue.end(), index,
                           [](const Item& item, int32_t wanted) { return item.index < wanted; });
      if (found == queue.end() || found->index != index) continue;
      must_run[s] = std::max(must_run[s], static_cast<size_t>(found - queue.begin()) + 1);
    }
  };
  while (seen != must_run) {
    for (size_t s = 0; s < seen.size(); ++s) {
      for (; seen[s] < must_run[s]; ++seen[s]) {
        const int32_t after = plan.queues[s][seen[s]].after;
        if (after >= 0) require(after);
      }
    }
  }
  for (size_t s = 0; s < plan.queues.size(); ++s) {
    for (size_t q = must_run[s]; q < plan.queues[s].size(); ++q) {
      plan.queues[s][q].may_be_left = true;
      --plan.items;
    }
  }
}

void RandomOrder::Begin(const Plan& plan) {
  std::fill(done_.begin(), done_.end(), uint8_t{0});
  left_ = plan.items;
  for (size_t s = 0; s < queues_.size(); ++s) {
    std::vector<Item>& queue = queues_[s];
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(head_[s]));
    head_[s] = 0;
    for (Item& item : queue) {
      // Without a record that is left, it waits for one of an earlier section, which is over: the
      // one that its own section left is behind it in the list.
      const bool over = item.event >= 0 && item.after < 0 &&
                        left_to_record_[static_cast<size_t>(item.event)] == 0;
      if (over) item.event = -1;
      item.was_left = true;
      item.after = -1;  // if it was left too, its record is
      // In front of what the section must run, it must run itself.
      item.may_be_left = plan.queues[s].empty();
      left_ += item.may_be_left ? 0 : 1;
    }
  }
  for (size_t s = 0; s < queues_.size(); ++s) {
    for (const Item& item : queues_[s]) {
      if (item.records >= 0) left_to_record_[static_cast<size_t>(item.records)] = 1;
    }
    queues_[s].insert(queues_[s].end(), plan.queues[s].begin(), plan.queues[s].end());
  }
  // Even odds would keep the streams about level. Some run far ahead instead, others in other
  // sections.
  for (uint64_t& weight : weight_) weight = uint64_t{1} << (4 * rng_.Below(4));
}

bool RandomOrder::Ready(const Item& item) const {
  if (item.after >= 0) return done_[static_cast<size_t>(item.after)] != 0;
  return item.event < 0 || left_to_record_[static_cast<size_t>(item.event)] == 0;
}

int RandomOrder::Pick() {
  std::array<uint64_t, kStreams> odds{};
  uint64_t total = 0;
  for (size_t s = 0; s < odds.size(); ++s) {
    if (head_[s] == queues_[s].size() || !Ready(queues_[s][head_[s]])) continue;
    odds[s] = weight_[s];
    total += odds[s];
  }
  if (total == 0) return -1;
  uint64_t drawn = rng_.Below(total);
  for (size_t s = 0; s < odds.size(); ++s) {
    if (drawn < odds[s]) return static_cast<int>(s);
    drawn -= odds[s];
  }
  return -1;
}

CpuRank::CpuRank(const Program& program, const EngineOptions& options, int rank, int threads,
                 std::shared_ptr<RankCommunicators> communicators, Clock::time_point built)
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

namespace {

// The rank of options.group that is this process.
std::unique_ptr<LocalRanks> MakeCpuProcess(const Program& program, const EngineOptions& options) {
#ifdef ZEROPLAN_WITH_GLOO
  ProcessGroup& group = *options.group;
  // A launcher may have bound each rank to cores of its own.
  const int share = static_cast<int>(std::thread::hardware_concurrency()) /
                    std::max(1, group.place().local_world_size);
  const int threads = options.threads_per_rank > 0
                          ? options.threads_per_rank
                          : std::max(1, std::min(share, QueryHost().cores));
  const auto communicators =
      std::make_shared<GlooCommunicators>(program.axes(), group, options.communicator_seconds);
  const auto built = CpuRank::Clock::now();
  return std::make_unique<LocalRanks>(group.rank(), 1, LocalRanks::Threads::kOwn, [&](int rank) {
    return std::make_unique<CpuRank>(program, options, rank, threads, communicators, built);
  });
#else
  (void)program;
  ThrowUsage(
      "this build of zeroplan has no Gloo, which CPU ranks in {} processes need; install "
      "libgloo-dev and configure the build again",
      options.group->world_size());
#endif
}

}  // namespace

std::unique_ptr<LocalRanks> MakeCpuRanks(const Program& program, const EngineOptions& options) {
  if (options.group != nullptr && options.group->world_size() > 1) {
    return MakeCpuProcess(program, options);
  }
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
