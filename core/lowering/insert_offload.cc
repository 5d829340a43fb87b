// Pass 7: what crosses PCIe or the disk in forward and backward. Reduced gradients of offloaded
// states go to host memory as soon as they are there and are summed there; parameter shards that
// live in host memory or in the swap file come to the device before their gather.
#include <algorithm>

#include "core/config/setup_facts.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/lowering/state_homes.h"
#include "core/program/step_state.h"

namespace zeroplan {
namespace {

BufferId AddSlot(Program& p, const char* label, Dtype dtype, bool pinned) {
  const BufferId id = AddBuffer(p, label, Role::kStaging, dtype, 0);
  p.buffers[id].persistent = true;
  p.buffers[id].space = pinned ? Space::kPinned : Space::kPageable;
  return id;
}

// Host slots used in turn, made when first needed, as large as the largest use.
class SlotRing {
 public:
  SlotRing(Program& p, const char* label, Dtype dtype, int count, bool pinned)
      : p_(p), label_(label), dtype_(dtype), count_(count), pinned_(pinned) {}
  Ref Next(uint64_t bytes) {
    const auto i = static_cast<size_t>(next_++ % count_);
    if (i == ids_.size()) ids_.push_back(AddSlot(p_, label_, dtype_, pinned_));
    p_.buffers[ids_[i]].bytes = std::max(p_.buffers[ids_[i]].bytes, bytes);
    return {ids_[i], 0, bytes, 0};
  }

 private:
  Program& p_;
  const char* label_;
  const Dtype dtype_;
  const int count_;
  const bool pinned_;
  int next_ = 0;
  std::vector<BufferId> ids_;
};

// ---- gradients ----

class GradOffload {
 public:
  GradOffload(Program& p, std::vector<Instruction>& out)
      : p_(p),
        emit_(p, out),
        offloaded_(OffloadedElements(p)),
        host_(UnitBuffers(p, Role::kGradHost)),
        slots_(p, "grad_slot", p.setup.precision.dtype, p.setup.zero.offload_optimizer.buffer_count,
               p.setup.zero.offload_optimizer.pin_memory) {}

  // Rewrites "shard (+)= what arrived"; false: not such an instruction.
  bool Rewrite(const Instruction& instruction) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr || launch->kernel != KernelId::kConvert) return false;
    const Ref src = p_.refs[launch->first_arg], dst = p_.refs[launch->first_arg + 1];
    if (p_.buffers[dst.buffer].role != Role::kGradShard) return false;
    const auto u = static_cast<size_t>(p_.buffers[dst.buffer].unit);
    const uint64_t from_size = DtypeBytes(p_.buffers[src.buffer].dtype);
    const uint64_t to_size = DtypeBytes(p_.buffers[dst.buffer].dtype);
    const uint64_t begin = dst.offset / to_size, end = begin + src.bytes / from_size;
    const uint64_t h = offloaded_[u], split = std::clamp(h, begin, end);
    if (begin < split) ToHost(instruction, *launch, src, begin, split, u, from_size, to_size);
    if (split < end) {  // stays on the device, at the shard's device part
      const Ref part{src.buffer, src.offset + (split - begin) * from_size,
                     (end - split) * from_size, src.rank_stride};
      emit_.Tag(instruction.phase, instruction.layer, instruction.when);
      emit_.Launch(KernelId::kConvert, {static_cast<int64_t>(end - split)}, launch->flags,
                   {part, Ref{dst.buffer, (split - h) * to_size, (end - split) * to_size, 0}},
                   instruction.stream);
    }
    return true;
  }

 private:
  void ToHost(const Instruction& instruction, const LaunchKernel& launch, const Ref& src,
              uint64_t begin, uint64_t end, size_t unit, uint64_t from_size, uint64_t to_size) {
    const Ref part{src.buffer, src.offset, (end - begin) * from_size, src.rank_stride};
    const Ref host{host_[unit], begin * to_size, (end - begin) * to_size, 0};
    const bool same = p_.buffers[src.buffer].dtype == p_.buffers[host.buffer].dtype;
    emit_.Tag(instruction.phase, instruction.layer, kEvery);
    if (!Accumulates(p_.setup) && same) {
      emit_.CopyTo(part, host);
      SumSquares(host, end - begin);
      return;
    }
    // One copy serves the first micro-step's write and the others' addition.
    if (!(launch.flags & kAccumulate)) {
      slot_ = slots_.Next(part.bytes);
      emit_.CopyTo(part, slot_);
    }
    emit_.When(instruction.when)
        .Launch(KernelId::kConvert, {static_cast<int64_t>(end - begin)}, launch.flags,
                {slot_, host}, Stream::kHost);
    const bool complete = !Accumulates(p_.setup) || (launch.flags & kAccumulate);
    if (complete) SumSquares(host, end - begin);
  }

  // The norm is summed beside the backward pass, so that the update need not read all of it first.
  void SumSquares(const Ref& host, uint64_t elements) {
    const Ref state{p_.state_host_buffer, 0, sizeof(StepState), 0};
    emit_.When(kCompletesGrads)
        .Launch(KernelId::kNormSq, {static_cast<int64_t>(elements)},
                any_summed_ ? kAccumulate : kNoFlags, {host, state}, Stream::kHost);
    any_summed_ = true;
  }

  Program& p_;
  Emitter emit_;
  const std::vector<uint64_t> offloaded_;
  const std::vector<BufferId> host_;
  SlotRing slots_;
  Ref slot_;
  bool any_summed_ = false;
};

void OffloadGrads(Program& p) {
  std::vector<Instruction> in = std::move(p.section(Section::kMicroStep));
  std::vector<Instruction> out;
  out.reserve(in.size() * 5 / 4);
  GradOffload offload(p, out);
  for (Instruction& instruction : in) {
    if (!offload.Rewrite(instruction)) out.push_back(instruction);
  }
  p.section(Section::kMicroStep) = std::move(out);
}

// ---- parameters ----

void OffloadParams(Program& p, Section section, SlotRing& slots) {
  std::vector<Instruction> in = std::move(p.section(section));
  std::vector<Instruction> out;
  out.reserve(in.size() * 5 / 4);
  Emitter emit(p, out);
  for (Instruction& instruction : in) {
    const auto* gather = std::get_if<Collective>(&instruction.op);
    const bool from_shard = gather != nullptr && gather->kind == CollectiveKind::kAllGather &&
                            p.buffers[p.segs(*gather)[0].src.buffer].role == Role::kParamShard;
    if (!from_shard) {
      out.push_back(instruction);
      continue;
    }
    Segment& segment = p.segments[gather->first_segment];
    const uint64_t bytes = segment.src.bytes;
    Ref host = segment.src;
    emit.Tag(instruction.phase, instruction.layer, instruction.when);
    if (p.buffers[segment.src.buffer].space == Space::kFile) {
      host = slots.Next(bytes);
      emit.Swap(false, host, segment.src);
    }
    const bool alone = p.setup.batch.world_size == 1;
    const Ref own_part{segment.dst.buffer, 0, bytes, alone ? 0 : bytes};
    emit.CopyTo(host, own_part);
    if (alone) continue;
    segment.src = own_part;
    out.push_back(instruction);
  }
  p.section(section) = std::move(out);
}

}  // namespace

Program InsertOffload(Program p) {
  const bool train = !p.section(Section::kMicroStep).empty();
  if (!train) return p;
  const auto& zero = p.setup.zero;
  if (zero.offload_optimizer.device != OffloadDevice::kNone && !GradsInPlace(p.setup))
    OffloadGrads(p);
  if (zero.offload_param.device != OffloadDevice::kNone) {
    SlotRing slots(p, "param_read_slot", p.setup.precision.dtype, zero.offload_param.buffer_count,
                   zero.offload_param.pin_memory);
    OffloadParams(p, Section::kMicroStep, slots);
    OffloadParams(p, Section::kEval, slots);
  }
  return p;
}

}  // namespace zeroplan
