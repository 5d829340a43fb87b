// Pass 6, stage 3 only: each rank keeps its shard of a unit; the whole unit is gathered before it
// is used and freed after (ZeRO paper, arXiv 1910.02054, section 5.3). Persistent units stay whole.
//
// A step is a run of instructions that use one unit. Two steps of one unit in a row are one gather
// if the elements used in between are at most max_reuse_distance or other units' of the same layer
// (those of its parameters that are not trained), or if they are a layer's recompute and its
// backward; in all cases only while max_live_parameters allows it.
#include <algorithm>
#include <cstddef>

#include "core/base/error.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

struct UseStep {
  int unit;
  size_t first, last;     // instructions of the section
  bool backward;          // first instruction's phase
  int next = -1;          // the unit's next step
  bool keep = false;      // stays gathered until `next`
  bool begins = true;     // has a gather of its own: no earlier step keeps the unit for it
  size_t issue_step = 0;  // where the gather is issued, for steps that begin a gather
};

// The sharded unit whose parameters an instruction uses, or -1.
int UsedUnit(const Program& p, const Instruction& instruction) {
  const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
  if (launch == nullptr) return -1;
  int unit = -1;
  for (const Ref& ref : p.args(*launch)) {
    if (ref.null() || p.buffers[ref.buffer].role != Role::kParamShard) continue;
    const int of = p.buffers[ref.buffer].unit;
    ZEROPLAN_CHECK(unit < 0 || unit == of, "a {} takes parameters of units {} and {}",
                   KernelInfo(launch->kernel).name, unit, of);
    unit = of;
  }
  return unit;
}

std::vector<UseStep> FindSteps(const Program& p, const std::vector<Instruction>& list) {
  std::vector<UseStep> steps;
  for (size_t i = 0; i < list.size(); ++i) {
    const int unit = UsedUnit(p, list[i]);
    if (unit < 0) continue;
    const bool backward = list[i].phase == Phase::kBackward;
    // The head's chunks alternate between phases; a layer's forward and backward are steps of their
    // own only if something else lies between, which the loop below finds.
    if (!steps.empty() && steps.back().unit == unit) {
      steps.back().last = i;
    } else {
      steps.push_back({unit, i, i, backward});
    }
  }
  std::vector<int> following(p.layout.units.size(), -1);
  for (size_t s = steps.size(); s-- > 0;) {
    steps[s].next = following[static_cast<size_t>(steps[s].unit)];
    following[static_cast<size_t>(steps[s].unit)] = static_cast<int>(s);
  }
  return steps;
}

class GatherPlan {
 public:
  GatherPlan(const Program& p, std::vector<UseStep>& steps)
      : p_(p), steps_(steps), live_limit_(LiveParameterLimit(p.setup.zero, p.layout)) {
    live_.reserve(steps.size());
    for (const UseStep& step : steps) live_.push_back(Elements(step.unit));
  }

  // Nearest reuses first, so that the live limit is spent where it lasts shortest.
  void KeepForReuse() {
    const ZeroConfig& zero = p_.setup.zero;
    std::vector<std::pair<uint64_t, size_t>> candidates;
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (steps_[s].next < 0) continue;
      const auto n = static_cast<size_t>(steps_[s].next);
      const int layer = LayerOf(s);
      uint64_t distance = 0;
      bool within_layer = true;
      for (size_t t = s + 1; t < n; ++t) {
        distance += Elements(steps_[t].unit);
        within_layer = within_layer && LayerOf(t) == layer;
      }
      const bool recompute = steps_[s].backward && steps_[n].backward && layer >= 0;
      if (within_layer || recompute || distance <= zero.max_reuse_distance) {
        candidates.emplace_back(distance, s);
      }
    }
    std::sort(candidates.begin(), candidates.end());
    for (const auto& [distance, s] : candidates) {
      const auto n = static_cast<size_t>(steps_[s].next);
      if (!Fits(s + 1, n, Elements(steps_[s].unit))) continue;
      Add(s + 1, n, Elements(steps_[s].unit));
      steps_[s].keep = true;
      steps_[n].begins = false;
    }
  }

  // Issues each gather as many steps early as the prefetch bucket and the live limit allow.
  void Prefetch() {
    const ZeroConfig& zero = p_.setup.zero;
    std::vector<int> previous(p_.layout.units.size(), -1);
    size_t last_issue = 0;  // gathers are issued in order of use: none overtakes one needed sooner
    for (size_t s = 0; s < steps_.size(); ++s) {
      const auto unit = static_cast<size_t>(steps_[s].unit);
      steps_[s].issue_step = s;
      if (steps_[s].begins && zero.overlap_comm && zero.prefetch_bucket_elements > 0) {
        const uint64_t size = Elements(steps_[s].unit);
        uint64_t ahead = size;
        while (steps_[s].issue_step > 0) {
          const size_t earlier = steps_[s].issue_step - 1;
          const bool one_ahead = earlier + 1 == s;
          const bool within =
              zero.prefetch_bucket_elements != kAuto && ahead <= zero.prefetch_bucket_elements;
          if (!one_ahead && !within) break;
          if (earlier < last_issue) break;
          if (static_cast<int>(earlier) <= previous[unit] || !Fits(earlier, earlier + 1, size))
            break;
          Add(earlier, earlier + 1, size);
          steps_[s].issue_step = earlier;
          if (steps_[earlier].begins) ahead += Elements(steps_[earlier].unit);
        }
      }
      if (steps_[s].begins) last_issue = steps_[s].issue_step;
      previous[unit] = static_cast<int>(s);
    }
  }

 private:
  int LayerOf(size_t step) const {
    return p_.layout.units[static_cast<size_t>(steps_[step].unit)].layer;
  }
  uint64_t Elements(int unit) const {
    return p_.layout.units[static_cast<size_t>(unit)].param_elements;
  }
  bool Fits(size_t begin, size_t end, uint64_t more) const {
    for (size_t t = begin; t < end; ++t) {
      if (live_[t] + more > live_limit_) return false;
    }
    return true;
  }
  void Add(size_t begin, size_t end, uint64_t more) {
    for (size_t t = begin; t < end; ++t) live_[t] += more;
  }

  const Program& p_;
  std::vector<UseStep>& steps_;
  const uint64_t live_limit_;
  std::vector<uint64_t> live_;  // gathered elements during each step
};

void EmitGather(Program& p, const Instruction& at, int unit, BufferId shard, BufferId whole,
                std::vector<Instruction>& out) {
  Emitter emit(p, out);
  emit.Tag(at.phase, p.layout.units[static_cast<size_t>(unit)].layer);
  const Segment segment{Whole(p, shard), Whole(p, whole)};
  emit.Collect(CollectiveKind::kAllGather, RankAxis::kShard, SentDtype(p.buffers[shard].dtype),
               {&segment, 1}, Stream::kGather);
}

void UnshardSection(Program& p, Section section, const std::vector<BufferId>& shards) {
  std::vector<Instruction> in = std::move(p.section(section));
  std::vector<UseStep> steps = FindSteps(p, in);
  GatherPlan plan(p, steps);
  plan.KeepForReuse();
  plan.Prefetch();

  // gathers_at[i]: steps whose gather is issued before instruction i.
  std::vector<std::vector<size_t>> gathers_at(in.size());
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].begins) gathers_at[steps[steps[s].issue_step].first].push_back(s);
  }
  std::vector<BufferId> buffer_of_step(steps.size(), kNoBuffer);
  std::vector<Instruction> out;
  out.reserve(in.size() + 2 * steps.size());
  size_t current = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    for (size_t s : gathers_at[i]) {
      const auto unit = static_cast<size_t>(steps[s].unit);
      const Dtype dtype = p.buffers[shards[unit]].dtype;
      const BufferId whole = AddBuffer(p, "gathered", Role::kParamFull, dtype,
                                       StoredBytes(dtype, p.layout.units[unit].padded_elements));
      p.buffers[whole].unit = steps[s].unit;
      buffer_of_step[s] = whole;
      EmitGather(p, in[i], steps[s].unit, shards[unit], whole, out);
    }
    while (current < steps.size() && i > steps[current].last) ++current;
    if (current < steps.size() && i >= steps[current].first) {
      if (auto* launch = std::get_if<LaunchKernel>(&in[i].op)) {
        for (uint32_t a = 0; a < launch->arg_count; ++a) {
          Ref& ref = p.refs[launch->first_arg + a];
          if (ref.null()) continue;
          const Buffer& buffer = p.buffers[ref.buffer];
          if (buffer.role == Role::kParamShard && buffer.unit == steps[current].unit) {
            ref.buffer = buffer_of_step[current];
          }
        }
      }
      if (i == steps[current].last && steps[current].keep) {
        buffer_of_step[static_cast<size_t>(steps[current].next)] = buffer_of_step[current];
      }
    }
    out.push_back(in[i]);
  }
  p.section(section) = std::move(out);
}

// Where a unit's shard lives; with nvme the first units stay in host memory while max_in_cpu lasts.
Space ShardSpace(const Program& p, uint64_t elements, uint64_t* elements_in_host) {
  const auto& offload = p.setup.zero.offload_param;
  if (offload.device == OffloadDevice::kNone) return Space::kDevice;
  if (offload.device == OffloadDevice::kNvme) {
    if (*elements_in_host + elements > offload.max_in_cpu_elements) return Space::kFile;
    *elements_in_host += elements;
  }
  return HostSpace(offload.pin_memory);
}

}  // namespace

Program InsertUnshard(Program p) {
  if (!ParamsSharded(p.setup)) return p;
  // The whole buffers become shards first; what still refers to them as whole units are the uses
  // that each section's gathers then take over.
  const std::vector<BufferId> params = UnitBuffers(p, Role::kParamFull);
  uint64_t elements_in_host = 0;
  for (BufferId id : params) {
    Buffer& buffer = p.buffers[id];
    const Unit& unit = p.layout.units[static_cast<size_t>(buffer.unit)];
    if (unit.persistent) continue;
    buffer.role = Role::kParamShard;
    buffer.label = "param_shard";
    buffer.bytes = StoredBytes(buffer.dtype, unit.shard_elements);
    buffer.space = ShardSpace(p, unit.shard_elements, &elements_in_host);
  }
  UnshardSection(p, Section::kMicroStep, params);
  UnshardSection(p, Section::kEval, params);
  return p;
}

}  // namespace zeroplan
