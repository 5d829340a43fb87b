// Pass 2: full activation recompute. Layers form segments of `every`; only a segment's input is
// kept from forward to backward, the rest is computed again just before the segment's backward
// (Chen et al. 2016, arXiv 1604.06174). The kernel that only makes the segment's output is not
// repeated.

#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

bool IsForwardOfLayer(const Instruction& i, int64_t begin, int64_t end) {
  return i.phase == Phase::kForward && i.layer >= begin && i.layer < end;
}

// Copies of `forward` (one segment's kernels) over fresh buffers, appended to `out`; `renamed` maps
// the old buffers to the fresh ones. `output` is what the segment hands on.
void Repeat(Program& p, const std::vector<Instruction>& forward, BufferId output,
            std::vector<BufferId>& renamed, std::vector<Instruction>& out) {
  auto fresh = [&](BufferId id) {
    if (renamed[id] == kNoBuffer) {
      const Buffer copy = p.buffers[id];
      p.buffers.push_back(copy);
      renamed[id] = static_cast<BufferId>(p.buffers.size() - 1);
    }
    return renamed[id];
  };
  for (const Instruction& instruction : forward) {
    LaunchKernel launch = std::get<LaunchKernel>(instruction.op);
    const auto first = static_cast<uint32_t>(p.refs.size());
    bool only_output = false;
    for (uint32_t i = 0; i < launch.arg_count; ++i) {
      Ref ref = p.refs[launch.first_arg + i];
      if (!ref.null()) {
        const ArgMode mode = AccessMode(launch.kernel, static_cast<int>(i), launch.flags);
        const Role role = p.buffers[ref.buffer].role;
        if (ref.buffer == output && Writes(mode)) {
          only_output = true;
        } else if (role == Role::kWorkspace && !p.buffers[ref.buffer].persistent) {
          renamed[ref.buffer] = kNoBuffer;
          ref.buffer = fresh(ref.buffer);
        } else if (role == Role::kActivation && Writes(mode)) {
          ref.buffer = fresh(ref.buffer);
        } else if (ref.buffer < renamed.size() && renamed[ref.buffer] != kNoBuffer) {
          ref.buffer = renamed[ref.buffer];
        }
      }
      p.refs.push_back(ref);
    }
    if (only_output) {
      p.refs.resize(first);
      continue;
    }
    Instruction repeated = instruction;
    launch.first_arg = first;
    repeated.op = launch;
    repeated.phase = Phase::kBackward;
    out.push_back(repeated);
  }
}

// The buffer of role activation that the last kernel of the segment writes.
BufferId SegmentOutput(const Program& p, const std::vector<Instruction>& forward) {
  const auto& launch = std::get<LaunchKernel>(forward.back().op);
  for (int i = 0; i < launch.arg_count; ++i) {
    const Ref& ref = p.refs[launch.first_arg + static_cast<uint32_t>(i)];
    if (ref.null() || !Writes(AccessMode(launch.kernel, i, launch.flags))) continue;
    if (p.buffers[ref.buffer].role == Role::kActivation) return ref.buffer;
  }
  return kNoBuffer;
}

}  // namespace

Program InsertRecompute(Program p) {
  const int64_t every = p.setup.recompute.every;
  if (every == 0) return p;
  std::vector<Instruction> in = std::move(p.section(Section::kMicroStep));
  std::vector<Instruction> out;
  out.reserve(in.size() * 2);
  std::vector<BufferId> renamed(p.buffers.size(), kNoBuffer);
  int64_t begun = p.model.layers;  // layers at and above this one have their activations again
  for (Instruction& instruction : in) {
    const bool backward = instruction.phase == Phase::kBackward && instruction.layer >= 0 &&
                          instruction.layer < p.model.layers;
    if (backward && instruction.layer < begun) {
      const int64_t begin = instruction.layer / every * every;
      const int64_t end = instruction.layer + 1;
      std::vector<Instruction> forward;
      for (const Instruction& i : in) {
        if (IsForwardOfLayer(i, begin, end)) forward.push_back(i);
      }
      Repeat(p, forward, SegmentOutput(p, forward), renamed, out);
      begun = begin;
    }
    if (backward) {
      auto& launch = std::get<LaunchKernel>(instruction.op);
      for (uint32_t i = 0; i < launch.arg_count; ++i) {
        Ref& ref = p.refs[launch.first_arg + i];
        if (!ref.null() && ref.buffer < renamed.size() && renamed[ref.buffer] != kNoBuffer &&
            p.buffers[ref.buffer].role == Role::kActivation) {
          ref.buffer = renamed[ref.buffer];
        }
      }
    }
    out.push_back(instruction);
  }
  p.section(Section::kMicroStep) = std::move(out);
  return p;
}

}  // namespace zeroplan
