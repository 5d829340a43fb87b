#include "core/program/unrolled_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/program/program.h"
#include "core/program/static_check.h"
#include "core/program/step_order.h"
#include "core/program/verify.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

MemoryCheck::MemoryCheck(const Program& program, int rank, const HappensBefore& order,
                         Violations& violations)
    : program_(program),
      rank_(rank),
      at_(program.axes().Of(rank)),
      order_(order),
      violations_(violations),
      left_to_micro_step_(LeftToMicroStep(program)) {
  states_.resize(program.buffers.size());
  for (const BufferId id :
       {program.state_buffer, program.state_host_buffer, program.tokens_host_buffer}) {
    if (id != kNoBuffer) states_[id].set_from_outside = true;
  }
}

void MemoryCheck::Run(const Instruction& instruction, Moment moment, Site site) {
  auto accesses = [&] {
    // Reads first: an instruction that reads what it writes must find it written.
    ForEachAccess(program_, instruction, [&](const Ref& ref, ArgMode mode) {
      if (Reads(mode)) CheckWritten(ref, states_[ref.buffer], site);
    });
    ForEachAccess(program_, instruction,
                  [&](const Ref& ref, ArgMode mode) { CheckAccess(ref, mode, moment, site); });
  };
  std::visit(Overload{
                 [&](const Alloc& alloc) { RunAlloc(alloc.buffer, moment, site); },
                 [&](const Free& free) { RunFree(free.buffer, moment, site); },
                 [&](const LaunchKernel&) { accesses(); },
                 [&](const Collective&) { accesses(); },
                 [&](const Copy&) { accesses(); },
                 [&](const FileIo&) { accesses(); },
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

void MemoryCheck::RunAlloc(BufferId id, Moment moment, Site site) {
  State& state = states_[id];
  const Buffer& buffer = program_.buffers[id];
  if (state.life == Life::kLive) {
    violations_.Add("double_alloc", site, "{} is live since {}", BufferName(buffer),
                    FormatSite(program_, state.allocated_site));
    return;
  }
  if (buffer.persistent && site.section != Section::kInit) {
    violations_.Add("persistent_alloc", site, "{} is persistent: init allocates it",
                    BufferName(buffer));
  }
  state.life = Life::kLive;
  state.allocated = moment;
  state.allocated_site = site;
  state.touches.clear();
  state.written.Clear();
  if (!buffer.persistent) live_transients_.push_back(id);

  auto check_owner = [&](const ArenaMap::Piece& piece) {
    const Buffer& other = program_.buffers[piece.owner];
    if (piece.live) {
      violations_.Add("overlap", site, "{} at [{}, {}) lies over {} at [{}, {}), which is live",
                      BufferName(buffer), buffer.offset, buffer.offset + buffer.bytes,
                      BufferName(other), other.offset, other.offset + other.bytes);
    } else if (!order_.Ordered(piece.freed, moment.stream)) {
      violations_.Add(
          "overlap", site, "{} takes memory of {}, whose free is not ordered before: {}",
          BufferName(buffer), BufferName(other), FormatSite(program_, piece.freed_site));
    }
  };
  arenas_[static_cast<size_t>(buffer.space)].Take(buffer.offset, buffer.offset + buffer.bytes, id,
                                                  check_owner);
}

void MemoryCheck::RunFree(BufferId id, Moment moment, Site site) {
  State& state = states_[id];
  const Buffer& buffer = program_.buffers[id];
  if (buffer.persistent) {
    violations_.Add("persistent_freed", site, "{} is persistent", BufferName(buffer));
    return;
  }
  if (state.life != Life::kLive) {
    violations_.Add(state.life == Life::kNever ? "use_before_alloc" : "double_free", site,
                    "{} is not live", BufferName(buffer));
    return;
  }
  if (!order_.Ordered(state.allocated, moment.stream)) {
    violations_.Add("use_before_alloc", site, "the free of {} is not ordered after its alloc: {}",
                    BufferName(buffer), FormatSite(program_, state.allocated_site));
  }
  for (const Touch& touch : state.touches) {
    if (order_.Ordered(touch.moment, moment.stream)) continue;
    violations_.Add("use_after_free", site, "{} is freed without waiting for {}",
                    BufferName(buffer), FormatSite(program_, touch.site));
    break;
  }
  state.life = Life::kFreed;
  state.freed_site = site;
  state.touches.clear();
  std::erase(live_transients_, id);
  arenas_[static_cast<size_t>(buffer.space)].Release(buffer.offset, buffer.offset + buffer.bytes,
                                                     id, moment, site);
}

void MemoryCheck::CheckWritten(const Ref& ref, const State& state, Site site) {
  if (state.set_from_outside || state.life != Life::kLive) return;
  const uint64_t begin = ref.begin(at_);
  const uint64_t missing = state.written.FirstMissing(begin, begin + ref.bytes);
  if (missing >= begin + ref.bytes) return;
  violations_.Add("uninitialised_read", site,
                  "{} is read, but nothing wrote its byte {} since its alloc (rank {})",
                  FormatRef(program_, ref), missing, rank_);
}

void MemoryCheck::CheckAccess(const Ref& ref, ArgMode mode, Moment moment, Site site) {
  State& state = states_[ref.buffer];
  const std::string_view rule = state.life == Life::kFreed ? "use_after_free" : "use_before_alloc";
  if (state.life != Life::kLive) {
    violations_.Add(rule, site, "{} is not live here", FormatRef(program_, ref));
    return;
  }
  if (!order_.Ordered(state.allocated, moment.stream)) {
    violations_.Add(rule, site, "{} may be used before its alloc: {}", FormatRef(program_, ref),
                    FormatSite(program_, state.allocated_site));
  }
  const uint64_t begin = ref.begin(at_);
  CheckRaces(ref, state, {begin, begin + ref.bytes, Writes(mode), moment, site});
  if (Writes(mode)) state.written.Add(begin, begin + ref.bytes);
}

void MemoryCheck::CheckRaces(const Ref& ref, State& state, const Touch& now) {
  if (now.begin >= now.end) return;
  size_t kept = 0;
  for (size_t i = 0; i < state.touches.size(); ++i) {
    const Touch& old = state.touches[i];
    const bool ordered = order_.Ordered(old.moment, now.moment.stream);
    if (!ordered && (old.write || now.write) && old.begin < now.end && now.begin < old.end) {
      violations_.Add("race", now.site, "{} may be {} while it is {} by {}",
                      FormatRef(program_, ref), now.write ? "written" : "read",
                      old.write ? "written" : "read", FormatSite(program_, old.site));
    }
    // What comes after `now` also comes after `old`, so where `now` conflicts with all that `old`
    // conflicts with, `old` need not be kept.
    const bool covered =
        ordered && now.begin <= old.begin && old.end <= now.end && (now.write || !old.write);
    if (!covered) state.touches[kept++] = old;
  }
  state.touches.resize(kept);
  state.touches.push_back(now);
}

void MemoryCheck::EndSection(bool leaves) {
  std::vector<BufferId> left;
  for (const BufferId id : live_transients_) {
    if (leaves && left_to_micro_step_[id]) {
      left.push_back(id);
      continue;
    }
    State& state = states_[id];
    const Buffer& buffer = program_.buffers[id];
    violations_.Add("leak", state.allocated_site, "{} is not freed in its section",
                    BufferName(buffer));
    state.life = Life::kNever;
    arenas_[static_cast<size_t>(buffer.space)].Release(buffer.offset, buffer.offset + buffer.bytes,
                                                       id, state.allocated, state.allocated_site);
  }
  live_transients_ = std::move(left);
}

GradientCheck::GradientCheck(const Program& program, Violations& violations)
    : program_(program),
      violations_(violations),
      wanted_(program.setup.batch.world_size > 1 && !program.section(Section::kMicroStep).empty()),
      units_(program.layout.units.size()),
      reduced_bytes_(program.buffers.size()),
      quantized_(program.buffers.size()) {}

void GradientCheck::Run(const Instruction& instruction, Site site) {
  const bool training =
      site.section == Section::kMicroStep || site.section == Section::kOptimizerStep;
  if (!wanted_ || !training) return;
  if (const auto* collective = std::get_if<Collective>(&instruction.op)) {
    RunReduction(*collective, site);
  } else if (const auto* launch = std::get_if<LaunchKernel>(&instruction.op)) {
    CheckLateWrites(*launch, site);
  }
}

void GradientCheck::RunReduction(const Collective& collective, Site site) {
  switch (collective.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kBroadcast:
      return;
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kReduceToOwners:
    case CollectiveKind::kAllToAll:
      break;
  }
  const uint64_t element = DtypeBytes(collective.dtype);
  for (const Segment& segment : program_.segs(collective)) {
    Quantized from{segment.src, segment.src.offset / element,
                   (segment.src.offset + segment.src.bytes) / element};
    // Parts of quantized gradients that their owners sum.
    if (collective.kind == CollectiveKind::kAllToAll) from = quantized_[segment.src.buffer];
    if (from.of.null()) continue;
    const Buffer& source = program_.buffers[from.of.buffer];
    if (source.unit < 0 || static_cast<size_t>(source.unit) >= units_.size()) continue;
    UnitState& unit = units_[static_cast<size_t>(source.unit)];
    // What the shard axis has summed lies in the rank's shard.
    if (collective.axis == RankAxis::kReplica) {
      unit.crossed.push_back({from.begin, from.end});
      unit.last = site;
      continue;
    }
    if (source.role != Role::kGradFull) continue;
    if (collective.axis == RankAxis::kShard) unit.over_shards = true;
    unit.last = site;
    if (segment.unit >= 0) {
      unit.reduced.push_back({segment.begin, segment.end});
    } else {
      unit.reduced.push_back({from.begin, from.end});
    }
    MarkReduced(from.of);
  }
}

bool GradientCheck::IsConversion(const LaunchKernel& launch, bool to_be_reduced) const {
  if (launch.kernel != KernelId::kConvert || launch.arg_count < 2) return false;
  const std::span<const Ref> args = program_.args(launch);
  if (args[0].null() || args[1].null()) return false;
  const Buffer &src = program_.buffers[args[0].buffer], &dst = program_.buffers[args[1].buffer];
  const auto kept = [](const Buffer& b) { return b.role == Role::kGradFull && b.persistent; };
  const auto sent = [](const Buffer& b) {
    return (b.role == Role::kGradFull || b.role == Role::kReduceScratch) && !b.persistent;
  };
  return to_be_reduced ? kept(src) && sent(dst) : sent(src) && kept(dst);
}

void GradientCheck::NoteQuantized(const LaunchKernel& launch) {
  const bool sums = launch.kernel == KernelId::kSumParts;
  if ((launch.kernel != KernelId::kConvert && !sums) || launch.arg_count < 2) return;
  const Ref &src = program_.args(launch)[0], &dst = program_.args(launch)[1];
  if (src.null() || dst.null() || DtypeElements(program_.buffers[dst.buffer].dtype) == 1) return;
  // Sums of parts are a whole shard's.
  const uint64_t begin = sums ? 0 : src.offset / DtypeBytes(program_.buffers[src.buffer].dtype);
  quantized_[dst.buffer] = {src, begin, begin + static_cast<uint64_t>(launch.dims[0])};
}

void GradientCheck::MarkReduced(const Ref& ref) {
  std::vector<Range>& bytes = reduced_bytes_[ref.buffer];
  if (bytes.empty()) touched_.push_back(ref.buffer);
  bytes.push_back({ref.offset, ref.offset + ref.bytes});
}

void GradientCheck::CheckLateWrites(const LaunchKernel& launch, Site site) {
  // Gradients that are reduced in another dtype than they are kept in: the sum comes back.
  if (IsConversion(launch, /*to_be_reduced=*/false)) return;
  if (IsConversion(launch, /*to_be_reduced=*/true)) MarkReduced(program_.args(launch)[0]);
  NoteQuantized(launch);
  for (int i = 0; i < launch.arg_count; ++i) {
    const Ref& ref = program_.refs[launch.first_arg + static_cast<size_t>(i)];
    if (ref.null() || !Writes(AccessMode(launch.kernel, i, launch.flags))) continue;
    for (const Range& range : reduced_bytes_[ref.buffer]) {
      if (range.end <= ref.offset || ref.offset + ref.bytes <= range.begin) continue;
      violations_.Add("late_gradient", site, "{} has been reduced already",
                      FormatRef(program_, ref));
    }
  }
}

void GradientCheck::EndSection(Section section) {
  if (!wanted_ || section != Section::kMicroStep || program_.setup.zero.stage <= 1) return;
  EndPeriod();
  if (CrossesEachMicroStep(program_.setup)) EndCrossing();
}

void GradientCheck::EndStep() {
  if (!wanted_) return;
  if (program_.setup.zero.stage <= 1) EndPeriod();
  EndCrossing();
}

bool GradientCheck::EachOnce(std::vector<Range>& ranges, uint64_t elements, uint64_t& end) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  end = 0;
  for (const Range& range : ranges) {
    if (range.begin != end) return false;
    end = range.end;
  }
  return end == elements;
}

void GradientCheck::EndPeriod() {
  for (size_t u = 0; u < units_.size(); ++u) {
    if (!program_.layout.units[u].trainable) continue;
    UnitState& unit = units_[u];
    const uint64_t elements = program_.layout.units[u].padded_elements;
    uint64_t end = 0;
    if (!EachOnce(unit.reduced, elements, end)) {
      const Site site = unit.reduced.empty() ? Site{Section::kMicroStep, 0} : unit.last;
      violations_.Add("shard_cover", site,
                      "the {} gradients of unit {} are not each reduced once; wrong "
                      "from element {}",
                      elements, u, end);
    }
    unit.reduced.clear();
  }
  for (const BufferId id : touched_) reduced_bytes_[id].clear();
  touched_.clear();
}

void GradientCheck::EndCrossing() {
  for (size_t u = 0; u < units_.size(); ++u) {
    UnitState& unit = units_[u];
    uint64_t end = 0;
    if (unit.over_shards && !EachOnce(unit.crossed, program_.layout.units[u].shard_elements, end)) {
      violations_.Add("shard_cover", unit.last,
                      "the gradients of unit {} are not summed over the replicas, each once; wrong "
                      "from element {} of a shard",
                      u, end);
    }
    unit = {};
  }
}

namespace {

void RunSection(const Program& program, Section section, uint8_t kind, UnrollVisitor& visitor) {
  int64_t index = 0;
  for (const Instruction& instruction : program.section(section)) {
    if (RunsIn(instruction, section, kind)) visitor.Run(instruction, {section, index});
    ++index;
  }
  visitor.EndSection(section, kind);
}

void RunStep(const Program& program, UnrollVisitor& visitor) {
  // Two middle micro-steps follow each other where there are as many.
  const int64_t micro_steps = std::min<int64_t>(program.setup.batch.grad_accum, 4);
  ForEachStepSection(micro_steps, [&](Section section, uint8_t kind, int64_t) {
    RunSection(program, section, kind, visitor);
  });
  visitor.EndStep();
}

// Unrolls the program and checks it on the order that its events guarantee, whatever order a run
// takes.

// One rank's pass over the unrolled program.
class RankCheck : public UnrollVisitor {
 public:
  RankCheck(const Program& program, int rank, Violations& violations)
      : order_(program.event_count),
        memory_(program, rank, order_, violations),
        gradients_(program, violations) {}

  void Run(const Instruction& instruction, Site site) override {
    const Moment moment = order_.Issue(instruction.stream);
    if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      order_.Record(record->event, instruction.stream);
    } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      order_.Wait(wait->event, instruction.stream);
    } else {
      memory_.Run(instruction, moment, site);
      gradients_.Run(instruction, site);
    }
  }
  void EndSection(Section section, uint8_t kind) override {
    memory_.EndSection(section == Section::kMicroStep && (kind & kLeavesToMicroStep) != 0);
    gradients_.EndSection(section);
  }
  void EndStep() override { gradients_.EndStep(); }
  void Synchronize() override { order_.Synchronize(); }

 private:
  HappensBefore order_;
  MemoryCheck memory_;
  GradientCheck gradients_;
};

}  // namespace

void Unroll(const Program& program, UnrollVisitor& visitor) {
  RunSection(program, Section::kInit, kEvery, visitor);
  visitor.Synchronize();
  RunStep(program, visitor);
  RunStep(program, visitor);
  bool resumed = false;
  for (const Section section : kSectionsBetweenSteps) {
    if (program.section(section).empty()) continue;
    RunSection(program, Section::kDrain, kEvery, visitor);
    visitor.Synchronize();
    RunSection(program, section, kEvery, visitor);
    visitor.Synchronize();
    RunStep(program, visitor);
    resumed = true;
  }
  if (!resumed) RunStep(program, visitor);
  RunSection(program, Section::kDrain, kEvery, visitor);
}

std::vector<Violation> Verify(const Program& program, int limit) {
  Violations violations(program, limit);
  if (!CheckWellFormed(program, violations)) return violations.Take();
  CheckLayout(program, violations);
  CheckBuffers(program, violations);
  CheckSaveCopies(program, violations);
  CheckInstructions(program, violations);
  CheckEvents(program, violations);
  // A rank touches its own arenas only, at places linear in its coordinates: if the first and the
  // last rank are within bounds, so are all.
  RankCheck first(program, 0, violations);
  Unroll(program, first);
  if (const int last = program.setup.batch.world_size - 1; last > 0) {
    RankCheck check(program, last, violations);
    Unroll(program, check);
  }
  return violations.Take();
}

void VerifyOrThrow(const Program& program) {
  const std::vector<Violation> found = Verify(program, 1);
  if (!found.empty()) throw CheckFailure(found.front().message);
}

}  // namespace zeroplan
