// Pass 3: activation recompute.
//
// Full: layers form segments of `every`; only a segment's input is kept from forward to backward,
// the rest is computed again just before the segment's backward (Chen et al. 2016, arXiv
// 1604.06174). The kernel that only makes the segment's output is not repeated.
//
// Selective: a layer's norms, GELU and SwiGLU, which take little time for what they hold, run again
// just before the first kernel of the backward pass that needs what they made (their own gradients
// aside, the weight gradient of the product behind them), and so do the copies of eight bits that
// products take; all else is kept.
//
// Products: as full, of segments of one layer, but for attention, whose output is kept: its time
// grows with the square of the sequence, and its backward pass needs no more of it than that.
#include <array>

#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

bool IsAttentionForward(KernelId kernel) {
  return kernel == KernelId::kAttentionForward || kernel == KernelId::kUnfusedAttentionForward;
}

bool IsForwardOfLayer(const Instruction& i, int64_t begin, int64_t end) {
  return i.phase == Phase::kForward && i.layer >= begin && i.layer < end;
}

// Copies of `forward` (one segment's kernels, and exchanges of heads) over fresh buffers, appended
// to `out`; `renamed` maps the old buffers to the fresh ones. `output` is what the segment hands
// on. With `but_attention` what attention made is there still.
void RepeatKernels(Program& p, const std::vector<Instruction>& forward, BufferId output,
                   bool but_attention, std::vector<BufferId>& renamed,
                   std::vector<Instruction>& out) {
  auto fresh = [&](BufferId id) {
    if (renamed[id] == kNoBuffer) {
      const Buffer copy = p.buffers[id];
      p.buffers.push_back(copy);
      renamed[id] = static_cast<BufferId>(p.buffers.size() - 1);
    }
    return renamed[id];
  };
  for (const Instruction& instruction : forward) {
    if (const auto* exchange = std::get_if<Collective>(&instruction.op)) {
      out.push_back(instruction);
      out.back().phase = Phase::kBackward;
      std::get<Collective>(out.back().op).first_segment = static_cast<uint32_t>(p.segments.size());
      for (uint32_t i = 0; i < exchange->segment_count; ++i) {
        Segment segment = p.segments[exchange->first_segment + i];
        const BufferId from = renamed[segment.src.buffer];
        if (from != kNoBuffer) segment.src.buffer = from;
        segment.dst.buffer = fresh(segment.dst.buffer);
        p.segments.push_back(segment);
      }
      continue;
    }
    LaunchKernel launch = std::get<LaunchKernel>(instruction.op);
    if (launch.kernel == KernelId::kLargestMagnitude) continue;  // it is known
    if (but_attention && IsAttentionForward(launch.kernel)) continue;
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

bool IsBackwardOfLayer(const Program& p, const Instruction& i) {
  return i.phase == Phase::kBackward && i.layer >= 0 && i.layer < p.model.layers;
}

// The kernels that selective recompute runs again, by what they make: KernelRow::recompute.
class CheapKernels {
 public:
  explicit CheapKernels(Program& program) : p_(program), maker_(program.buffers.size()) {}

  // Notes what makes a layer's forward kernel's outputs again, if something cheap does.
  void Note(const Instruction& instruction) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr) return;
    const CheapKernel& cheap = KernelInfo(launch->kernel).recompute;
    if (cheap.args.size() == 0) return;
    Kernel kernel{*launch};
    // Flags and scalars of a row mean nothing to another.
    if (cheap.kernel != launch->kernel) kernel.launch = {cheap.kernel};
    kernel.launch.dims = cheap.dims != nullptr ? cheap.dims(launch->dims) : launch->dims;
    kernel.launch.arg_count = 0;
    for (const uint8_t index : cheap.args) {
      if (index >= launch->arg_count) break;  // a workspace that the backend does without
      const Ref& ref = p_.args(*launch)[index];
      kernel.args[kernel.launch.arg_count++] = ref;
      if (Makes(kernel, kernel.launch.arg_count - 1u)) {
        maker_[ref.buffer] = static_cast<uint32_t>(kernels_.size() + 1);
      }
    }
    kernels_.push_back(kernel);
  }

  // Appends to `out` what must run before `backward` may: kernels over fresh buffers, which
  // `renamed` maps the old ones to.
  void Repeat(const Instruction& backward, std::vector<BufferId>& renamed,
              std::vector<Instruction>& out) {
    const auto* launch = std::get_if<LaunchKernel>(&backward.op);
    if (launch == nullptr) return;  // an exchange of gradients
    for (uint32_t i = 0; i < launch->arg_count; ++i) {
      Make(p_.refs[launch->first_arg + i].buffer, backward, renamed, out);
    }
  }

 private:
  // The same for one buffer: what its maker reads first.
  void Make(BufferId id, const Instruction& backward, std::vector<BufferId>& renamed,
            std::vector<Instruction>& out) {
    if (id >= maker_.size() || maker_[id] == 0 || renamed[id] != kNoBuffer) return;
    const Kernel kernel = kernels_[maker_[id] - 1];
    for (size_t i = 0; i < kernel.launch.arg_count; ++i) {
      if (!Makes(kernel, i)) Make(kernel.args[i].buffer, backward, renamed, out);
    }
    Instruction again = backward;
    again.op = Launch(kernel, renamed);
    out.push_back(again);
  }

  struct Kernel {
    LaunchKernel launch;
    std::array<Ref, kMaxKernelArgs> args;
  };

  // True for an argument that is an output; a workspace is none.
  bool Makes(const Kernel& kernel, size_t index) const {
    const Ref& ref = kernel.args[index];
    return !ref.null() && p_.buffers[ref.buffer].role == Role::kActivation &&
           Writes(AccessMode(kernel.launch.kernel, static_cast<int>(index), kernel.launch.flags));
  }

  LaunchKernel Launch(const Kernel& kernel, std::vector<BufferId>& renamed) {
    LaunchKernel launch = kernel.launch;
    launch.first_arg = static_cast<uint32_t>(p_.refs.size());
    for (size_t i = 0; i < launch.arg_count; ++i) {
      Ref ref = kernel.args[i];
      const bool makes = Makes(kernel, i);
      const bool scratch = !ref.null() && p_.buffers[ref.buffer].role == Role::kWorkspace &&
                           !p_.buffers[ref.buffer].persistent;
      if (makes || scratch) {
        const Buffer copy = p_.buffers[ref.buffer];
        p_.buffers.push_back(copy);
        const auto fresh = static_cast<BufferId>(p_.buffers.size() - 1);
        if (makes) renamed[ref.buffer] = fresh;
        ref.buffer = fresh;
      } else if (ref.buffer < renamed.size() && renamed[ref.buffer] != kNoBuffer) {
        ref.buffer = renamed[ref.buffer];
      }
      p_.refs.push_back(ref);
    }
    return launch;
  }

  Program& p_;
  std::vector<Kernel> kernels_;
  std::vector<uint32_t> maker_;  // by buffer: into kernels_, from 1 on; 0: none
};

// What the backward pass of each layer finds computed again, by the layer's kind.
class Recompute {
 public:
  explicit Recompute(Program& program)
      : p_(program),
        in_(std::move(program.section(Section::kMicroStep))),
        renamed_(program.buffers.size(), kNoBuffer),
        forward_of_(static_cast<size_t>(program.model.layers)),
        cheap_(program),
        begun_(program.model.layers) {}

  void Run() {
    out_.reserve(in_.size() * 2);
    for (size_t i = 0; i < in_.size(); ++i) {
      const Instruction& instruction = in_[i];
      if (IsForwardOfLayer(instruction, 0, p_.model.layers)) {
        forward_of_[static_cast<size_t>(instruction.layer)].push_back(i);
        if (KindOf(instruction) == RecomputeKind::kSelective) cheap_.Note(instruction);
      } else if (IsBackwardOfLayer(p_, instruction)) {
        Prepare(instruction);
        RenameActivations(p_, instruction, renamed_);
      }
      out_.push_back(instruction);
    }
    p_.section(Section::kMicroStep) = std::move(out_);
  }

 private:
  RecomputeKind KindOf(const Instruction& of_layer) const {
    return p_.setup.recompute.KindOf(of_layer.layer);
  }

  void Prepare(const Instruction& backward) {
    switch (KindOf(backward)) {
      case RecomputeKind::kNone:
        return;
      case RecomputeKind::kSelective:
        cheap_.Repeat(backward, renamed_, out_);
        return;
      case RecomputeKind::kProducts:
        RepeatLayers(backward.layer, backward.layer, true);
        return;
      case RecomputeKind::kFull: {
        const int64_t every = p_.setup.recompute.every;
        RepeatLayers(backward.layer / every * every, backward.layer, false);
      }
    }
  }

  // The segment of layers [begin, last], unless that was done.
  void RepeatLayers(int64_t begin, int64_t last, bool but_attention) {
    if (last >= begun_) return;
    std::vector<Instruction> forward;
    for (int64_t layer = begin; layer <= last; ++layer) {
      for (const size_t i : forward_of_[static_cast<size_t>(layer)]) forward.push_back(in_[i]);
    }
    RepeatKernels(p_, forward, SegmentOutput(p_, forward), but_attention, renamed_, out_);
    begun_ = begin;
  }

  Program& p_;
  const std::vector<Instruction> in_;
  std::vector<Instruction> out_;
  std::vector<BufferId> renamed_;                // by buffer: what was computed again of it
  std::vector<std::vector<size_t>> forward_of_;  // a layer's kernels, in `in_`
  CheapKernels cheap_;
  int64_t begun_;  // layers at and above this one have their activations again
};

// Copies of eight bits that nobody reads: transposed ones in the forward pass, where they are made
// again, and those for products that are not repeated.
Program DropUnreadCopies(Program p) {
  std::vector<bool> read(p.buffers.size(), false);
  std::vector<Instruction>& section = p.section(Section::kMicroStep);
  for (const Instruction& instruction : section) {
    ForEachAccess(p, instruction, [&](const Ref& ref, ArgMode mode) {
      if (Reads(mode)) read[ref.buffer] = true;
    });
  }
  std::erase_if(section, [&](Instruction& instruction) {
    auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr || launch->kernel != KernelId::kQuantize) return false;
    // x, amax, transposed, its scales, plain, its scales; those of the latter may be the former's.
    std::array<Ref, 6> args{};
    for (size_t i = 0; i < launch->arg_count; ++i) args[i] = p.args(*launch)[i];
    const auto unread = [&](const Ref& ref) { return ref.null() || !read[ref.buffer]; };
    if (unread(args[4])) args[4] = args[5] = {};
    if (unread(args[2])) {
      if (!args[4].null() && args[5].null()) args[5] = args[3];
      args[2] = args[3] = {};
    }
    launch->first_arg = static_cast<uint32_t>(p.refs.size());
    launch->arg_count = args.size();
    p.refs.insert(p.refs.end(), args.begin(), args.end());
    return args[2].null() && args[4].null();
  });
  return p;
}

}  // namespace

Program InsertRecompute(Program p) {
  if (p.setup.recompute.kind == RecomputeKind::kNone) return p;
  Recompute(p).Run();
  return p.setup.precision.fp8.enabled ? DropUnreadCopies(std::move(p)) : p;
}

}  // namespace zeroplan
