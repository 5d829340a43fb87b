// Pass 4: removes what nobody needs.
//
// If a part of the model is frozen, a backward pass ends at the lowest tensor that is trained:
// gradients of activations below it, kernels that are repeated for them, and tensors that are saved
// for gradients of frozen weights lead to nothing. If experts are computed again, nothing reads the
// results of their down matmul.
#include <algorithm>

#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

// From the last instruction to the first: one is needed if it is neither kernel nor collective, or
// makes anything that persists or that a later one which is needed reads.
class Liveness {
 public:
  explicit Liveness(const Program& program) : p_(program), read_(program.buffers.size(), false) {}

  bool Needs(const Instruction& instruction) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch != nullptr && !MakesAny(*launch)) return false;
    const auto* collective = std::get_if<Collective>(&instruction.op);
    if (collective != nullptr && !MakesAny(*collective)) return false;
    ForEachAccess(p_, instruction, [&](const Ref& ref, ArgMode mode) {
      if (Reads(mode)) read_[ref.buffer] = true;
    });
    return true;
  }

 private:
  bool MakesAny(const Collective& collective) const {
    const std::span<const Segment> segments = p_.segs(collective);
    return std::any_of(segments.begin(), segments.end(), [&](const Segment& segment) {
      return p_.buffers[segment.dst.buffer].persistent || read_[segment.dst.buffer];
    });
  }
  // Largest magnitudes and scales are made beside what they belong to: they count where a kernel
  // makes nothing else. They persist for the step's later micro-steps, which read them at the same
  // places.
  bool MakesAny(const LaunchKernel& launch) const {
    const std::span<const Ref> args = p_.args(launch);
    bool only_scales = true, scales_read = false;
    for (size_t a = 0; a < args.size(); ++a) {
      if (args[a].null() || KernelInfo(launch.kernel).args[a] == ArgMode::kScratch) continue;
      if (!Writes(AccessMode(launch.kernel, static_cast<int>(a), launch.flags))) continue;
      const Buffer& made = p_.buffers[args[a].buffer];
      if (made.role == Role::kScales) {
        scales_read = scales_read || read_[args[a].buffer];
        continue;
      }
      only_scales = false;
      if (made.persistent || read_[args[a].buffer]) return true;
    }
    return only_scales && scales_read;
  }

  const Program& p_;
  std::vector<bool> read_;  // by buffer
};

}  // namespace

Program RemoveDead(Program p) {
  const std::vector<Unit>& units = p.layout.units;
  const RecomputeKind kind = p.setup.recompute.kind;
  const bool repeats_experts =
      p.model.experts > 0 && (kind == RecomputeKind::kProducts || kind == RecomputeKind::kFull);
  if (!repeats_experts &&
      std::all_of(units.begin(), units.end(), [](const Unit& u) { return u.trainable; })) {
    return p;
  }
  std::vector<Instruction>& section = p.section(Section::kMicroStep);
  Liveness liveness(p);
  std::vector<Instruction> needed;
  needed.reserve(section.size());
  for (auto instruction = section.rbegin(); instruction != section.rend(); ++instruction) {
    if (liveness.Needs(*instruction)) needed.push_back(*instruction);
  }
  std::reverse(needed.begin(), needed.end());
  section = std::move(needed);
  return p;
}

}  // namespace zeroplan
