#include "executor/collectives/in_process.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/base/units.h"
#include "core/program/collectives.h"
#include "executor/kernels/cpu_levels.h"
#include "executor/kernels/thread_pool.h"

namespace zeroplan {

void AbortableBarrier::Wait() {
  std::unique_lock lock(mutex_);
  if (cause_) throw GroupAborted();
  const uint64_t round = round_;
  if (Arrive()) return;
  changed_.wait(lock, [&] { return round_ != round || cause_; });
  if (round_ == round) throw GroupAborted();
}

void AbortableBarrier::WaitForAll() {
  std::unique_lock lock(mutex_);
  const uint64_t round = round_;
  if (Arrive()) return;
  changed_.wait(lock, [&] { return round_ != round; });
}

bool AbortableBarrier::Arrive() {
  if (++arrived_ < size_) return false;
  arrived_ = 0;
  ++round_;
  changed_.notify_all();
  return true;
}

void AbortableBarrier::Abort(std::exception_ptr cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = std::move(cause);
  }
  changed_.notify_all();
}

std::exception_ptr AbortableBarrier::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

namespace {

// Less work than this is not worth a second thread.
constexpr int64_t kGrainElements = 1 << 15;
// Slices of an all-reduce start at cache lines, whatever the dtype.
constexpr uint64_t kSliceAlignElements = 64;

template <typename Fn>
void ForRange(ThreadPool* pool, uint64_t count, Fn&& fn) {
  if (pool == nullptr || static_cast<int64_t>(count) <= kGrainElements) {
    if (count > 0) fn(uint64_t{0}, count);
    return;
  }
  pool->ParallelFor(static_cast<int64_t>(count), kGrainElements,
                    [&](int64_t begin, int64_t end, int /*worker*/) {
                      fn(static_cast<uint64_t>(begin), static_cast<uint64_t>(end));
                    });
}

}  // namespace

Communicator::Communicator(int world_size)
    : world_size_(world_size), barrier_(world_size), slots_(static_cast<size_t>(world_size)) {
  for (Slot& slot : slots_) {
    slot.sources.resize(slots_.size());
    slot.targets.resize(slots_.size());
  }
}

void Communicator::CheckSameCalls() const {
  const CommCall& first = slots_[0].call;
  for (size_t rank = 1; rank < slots_.size(); ++rank) {
    const CommCall& other = slots_[rank].call;
    ZEROPLAN_CHECK(other.kind == first.kind && other.dtype == first.dtype &&
                       other.segments.size() == first.segments.size(),
                   "rank {} is at a {} of {} {} segments, rank 0 at a {} of {} {} segments", rank,
                   CollectiveKindName(other.kind), other.segments.size(), DtypeName(other.dtype),
                   CollectiveKindName(first.kind), first.segments.size(), DtypeName(first.dtype));
    for (size_t i = 0; i < other.segments.size(); ++i) {
      const CommSegment& a = other.segments[i];
      const CommSegment& b = first.segments[i];
      ZEROPLAN_CHECK(a.elements == b.elements && a.begin == b.begin && a.end == b.end,
                     "segment {} of a {} has {} elements on rank {} and {} on rank 0", i,
                     CollectiveKindName(other.kind), a.elements, rank, b.elements);
    }
  }
}

void Communicator::Run(int rank, const CommCall& call, ThreadPool* pool) {
  double& waited = slots_[static_cast<size_t>(rank)].waited_seconds;
  slots_[static_cast<size_t>(rank)].call = call;
  auto came = std::chrono::steady_clock::now();
  barrier_.Wait();
  waited += SecondsSince(came);
  // All ranks are here, and read what the others' calls point to. Whatever fails, and whoever
  // aborts the group, none leaves before all are through.
  std::exception_ptr failure;
  try {
    CheckSameCalls();
    for (size_t i = 0; i < call.segments.size(); ++i) RunSegment(rank, i, pool);
  } catch (...) {
    failure = std::current_exception();
    Abort(failure);
  }
  came = std::chrono::steady_clock::now();
  barrier_.WaitForAll();
  waited += SecondsSince(came);
  if (failure) std::rethrow_exception(failure);
  if (cause()) throw GroupAborted();
}

void Communicator::RunSegment(int rank, size_t index, ThreadPool* pool) {
  Slot& slot = slots_[static_cast<size_t>(rank)];
  const CommCall& call = slot.call;
  const CommSegment& mine = call.segments[index];
  for (size_t r = 0; r < slots_.size(); ++r) {
    slot.sources[r] = slots_[r].call.segments[index].src;
    slot.targets[r] = slots_[r].call.segments[index].dst;
  }
  const auto rank_index = static_cast<uint64_t>(rank);
  const auto world = static_cast<uint64_t>(world_size_);
  const uint64_t element_bytes = DtypeBytes(call.dtype);
  const std::span<const std::byte* const> sources = slot.sources;
  const std::span<std::byte* const> own_target(&mine.dst, 1);

  // A rank sums its slice of the elements: it alone reads that slice and it alone writes it, so
  // results may replace sources without a second pass.
  const auto sum = [&](uint64_t source_begin, std::span<std::byte* const> targets,
                       uint64_t target_begin, uint64_t count) {
    ForRange(pool, count, [&](uint64_t begin, uint64_t end) {
      SumElements(call.dtype, sources, source_begin + begin, targets, target_begin + begin,
                  end - begin);
    });
  };

  switch (call.kind) {
    case CollectiveKind::kAllReduce: {
      const auto [begin, end] = AllReduceSlice(mine.elements, rank_index, world);
      sum(begin, slot.targets, begin, end - begin);
      return;
    }
    case CollectiveKind::kReduceScatter:
      sum(rank_index * mine.elements, own_target, 0, mine.elements);
      return;
    case CollectiveKind::kReduceToOwners: {
      const uint64_t shard = rank_index * mine.elements;
      const uint64_t begin = std::max(mine.begin, shard);
      const uint64_t end = std::min(mine.end, shard + mine.elements);
      if (begin < end) sum(begin - mine.begin, own_target, begin - shard, end - begin);
      return;
    }
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      for (uint64_t r = 0; r < world; ++r) {
        std::byte* part = mine.dst + r * mine.elements * element_bytes;
        const std::byte* from = sources[r];
        if (part == from) continue;
        ForRange(pool, mine.elements * element_bytes, [&](uint64_t begin, uint64_t end) {
          std::memcpy(part + begin, from + begin, end - begin);
        });
      }
      return;
    case CollectiveKind::kAllToAll: {
      const uint64_t part_bytes = mine.elements * element_bytes;
      for (uint64_t r = 0; r < world; ++r) {
        std::byte* part = mine.dst + r * part_bytes;
        const std::byte* from = sources[r] + rank_index * part_bytes;
        ForRange(pool, part_bytes, [&](uint64_t begin, uint64_t end) {
          std::memcpy(part + begin, from + begin, end - begin);
        });
      }
      return;
    }
  }
  ZEROPLAN_CHECK(false, "collective kind {}", static_cast<int>(call.kind));
}

AxisCommunicators::AxisCommunicators(const Program& program) : axes_(program.axes()) {
  for (const CommunicatorKey& key : CommunicatorsOf(program)) {
    // A rank runs one instruction at a time, whatever its stream: one communicator serves them all.
    std::vector<std::unique_ptr<Communicator>>& groups = groups_[static_cast<size_t>(key.axis)];
    while (groups.size() < static_cast<size_t>(axes_.Groups(key.axis))) {
      groups.push_back(std::make_unique<Communicator>(axes_.Size(key.axis)));
    }
  }
}

void AxisCommunicators::Run(RankAxis axis, int rank, const CommCall& call, ThreadPool* pool) {
  const auto group = static_cast<size_t>(axes_.Group(axis, rank));
  groups_[static_cast<size_t>(axis)][group]->Run(axes_.Place(axis, rank), call, pool);
}

double AxisCommunicators::TakeWaitedSeconds(int rank) {
  double seconds = 0;
  for (size_t a = 0; a < groups_.size(); ++a) {
    if (groups_[a].empty()) continue;
    const auto axis = static_cast<RankAxis>(a);
    Communicator& group = *groups_[a][static_cast<size_t>(axes_.Group(axis, rank))];
    seconds += group.TakeWaitedSeconds(axes_.Place(axis, rank));
  }
  return seconds;
}

void AxisCommunicators::Abort(const std::exception_ptr& cause) noexcept {
  for (const auto& groups : groups_) {
    for (const auto& group : groups) group->Abort(cause);
  }
}

namespace {

// Elements summed at a time: source block, sums and result stay in the first-level cache.
constexpr uint64_t kSumBlock = 1024;

void AddInto(float* sum, const float* more, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) sum[i] += more[i];
}

void CheckSummable(Dtype dtype) {
  ZEROPLAN_CHECK(
      dtype == Dtype::kF64 || dtype == Dtype::kF32 || dtype == Dtype::kBF16 || dtype == Dtype::kF16,
      "sum of {} elements", DtypeName(dtype));
}

}  // namespace

std::pair<uint64_t, uint64_t> AllReduceSlice(uint64_t elements, uint64_t place, uint64_t ranks) {
  const uint64_t slice = AlignUp(CeilDiv(elements, ranks), kSliceAlignElements);
  const uint64_t begin = std::min(place * slice, elements);
  return {begin, std::min(begin + slice, elements)};
}

uint64_t SumBytes(Dtype dtype) {
  CheckSummable(dtype);
  return dtype == Dtype::kF64 ? sizeof(double) : sizeof(float);
}

void AddToSum(Dtype dtype, const std::byte* source, uint64_t count, bool first, std::byte* sum) {
  CheckSummable(dtype);
  const uint64_t bytes = DtypeBytes(dtype);
  if (first) {
    if (dtype == Dtype::kF64) {
      std::memcpy(sum, source, count * bytes);
    } else {
      BestCpuKernels().widen(dtype, source, static_cast<int64_t>(count),
                             reinterpret_cast<float*>(sum));
    }
    return;
  }
  if (dtype == Dtype::kF64) {
    auto* to = reinterpret_cast<double*>(sum);
    const auto* from = reinterpret_cast<const double*>(source);
    for (uint64_t i = 0; i < count; ++i) to[i] += from[i];
    return;
  }
  auto* to = reinterpret_cast<float*>(sum);
  if (dtype == Dtype::kF32) return AddInto(to, reinterpret_cast<const float*>(source), count);
  alignas(64) std::array<float, kSumBlock> wide;
  for (uint64_t at = 0; at < count; at += kSumBlock) {
    const uint64_t n = std::min(kSumBlock, count - at);
    BestCpuKernels().widen(dtype, source + at * bytes, static_cast<int64_t>(n), wide.data());
    AddInto(to + at, wide.data(), n);
  }
}

void RoundSum(Dtype dtype, const std::byte* sum, uint64_t count, std::byte* target) {
  CheckSummable(dtype);
  if (dtype == Dtype::kF64) {
    std::memcpy(target, sum, count * sizeof(double));
  } else {
    BestCpuKernels().narrow(dtype, reinterpret_cast<const float*>(sum), static_cast<int64_t>(count),
                            target);
  }
}

// By blocks: when a block's sum is written, all its sources have been read, so that a target may be
// one of them.
void SumElements(Dtype dtype, std::span<const std::byte* const> sources, uint64_t source_begin,
                 std::span<std::byte* const> targets, uint64_t target_begin, uint64_t count) {
  CheckSummable(dtype);
  const uint64_t bytes = DtypeBytes(dtype);
  alignas(64) std::array<std::byte, kSumBlock * sizeof(double)> sum, rounded;
  for (uint64_t at = 0; at < count; at += kSumBlock) {
    const uint64_t n = std::min(kSumBlock, count - at);
    for (size_t r = 0; r < sources.size(); ++r) {
      AddToSum(dtype, sources[r] + (source_begin + at) * bytes, n, r == 0, sum.data());
    }
    RoundSum(dtype, sum.data(), n, rounded.data());
    for (std::byte* target : targets) {
      std::memcpy(target + (target_begin + at) * bytes, rounded.data(), n * bytes);
    }
  }
}

}  // namespace zeroplan
