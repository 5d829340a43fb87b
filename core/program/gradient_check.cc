#include "core/program/gradient_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/program/format.h"

namespace zeroplan {

GradientCheck::GradientCheck(const Program& program, Violations& violations)
    : program_(program),
      violations_(violations),
      wanted_(program.setup.batch.world_size > 1 && !program.section(Section::kMicroStep).empty()),
      units_(program.layout.units.size()),
      reduced_bytes_(program.buffers.size()) {}

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
      break;
  }
  for (const Segment& segment : program_.segs(collective)) {
    const Buffer& source = program_.buffers[segment.src.buffer];
    if (source.unit < 0 || static_cast<size_t>(source.unit) >= units_.size()) continue;
    UnitState& unit = units_[static_cast<size_t>(source.unit)];
    // What the shard axis has summed lies in the rank's shard.
    if (collective.axis == RankAxis::kReplica) unit.over_replicas = true;
    if (collective.axis == RankAxis::kReplica || source.role != Role::kGradFull) continue;
    if (collective.axis == RankAxis::kShard) unit.over_shards = true;
    const uint64_t element = DtypeBytes(collective.dtype);
    unit.last = site;
    if (segment.unit >= 0) {
      unit.reduced.push_back({segment.begin, segment.end});
    } else {
      const uint64_t begin = segment.src.offset / element;
      unit.reduced.push_back({begin, begin + segment.src.bytes / element});
    }
    MarkReduced(segment.src);
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

void GradientCheck::MarkReduced(const Ref& ref) {
  std::vector<Range>& bytes = reduced_bytes_[ref.buffer];
  if (bytes.empty()) touched_.push_back(ref.buffer);
  bytes.push_back({ref.offset, ref.offset + ref.bytes});
}

void GradientCheck::CheckLateWrites(const LaunchKernel& launch, Site site) {
  // Gradients that are reduced in another dtype than they are kept in: the sum comes back.
  if (IsConversion(launch, /*to_be_reduced=*/false)) return;
  if (IsConversion(launch, /*to_be_reduced=*/true)) MarkReduced(program_.args(launch)[0]);
  for (int i = 0; i < launch.arg_count; ++i) {
    const Ref& ref = program_.refs[launch.first_arg + static_cast<size_t>(i)];
    if (ref.null() || !Writes(AccessMode(launch.kernel, i, launch.flags))) continue;
    for (const Range& range : reduced_bytes_[ref.buffer]) {
      if (range.end <= ref.offset || ref.offset + ref.bytes <= range.begin) continue;
      violations_.Add("late_gradient", site,
                      fmt::format("{} has been reduced already", FormatRef(program_, ref)));
    }
  }
}

void GradientCheck::EndSection(Section section) {
  if (wanted_ && section == Section::kMicroStep && program_.setup.zero.stage >= 2) EndPeriod();
}

void GradientCheck::EndStep() {
  if (wanted_ && program_.setup.zero.stage <= 1) EndPeriod();
}

void GradientCheck::EndPeriod() {
  for (size_t u = 0; u < units_.size(); ++u) {
    if (!program_.layout.units[u].trainable) continue;
    UnitState& unit = units_[u];
    std::sort(unit.reduced.begin(), unit.reduced.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    const uint64_t elements = program_.layout.units[u].padded_elements;
    uint64_t end = 0;
    bool once = true;
    for (const Range& range : unit.reduced) {
      once = once && range.begin == end;
      if (once) end = range.end;
    }
    if (!once || end != elements) {
      const Site site = unit.reduced.empty() ? Site{Section::kMicroStep, 0} : unit.last;
      violations_.Add("shard_cover", site,
                      fmt::format("the {} gradients of unit {} are not each reduced once; wrong "
                                  "from element {}",
                                  elements, u, end));
    }
    if (unit.over_shards && !unit.over_replicas) {
      violations_.Add("shard_cover", unit.last,
                      fmt::format("the gradients of unit {} are not summed over the replicas", u));
    }
    unit = {};
  }
  for (const BufferId id : touched_) reduced_bytes_[id].clear();
  touched_.clear();
}

}  // namespace zeroplan
