// Pass 12: what crosses PCIe or the disk in forward and backward. Reduced gradients of offloaded
// states go to host memory as soon as they are there and are summed there; parameter shards that
// live in host memory or in the swap file come to the device before their gather.
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/program/step_state.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

// ---- gradients ----

// "Host memory (+)= what arrived on the device" becomes a copy to the host and an addition there.
class GradOffload {
 public:
  GradOffload(Program& p, std::vector<Instruction>& out)
      : p_(p),
        emit_(p, out),
        slots_(p,
               {"grad_slot", Role::kStaging, HostGradDtype(p.setup),
                HostSpace(p.setup.zero.offload_optimizer.pin_memory), true},
               p.setup.zero.offload_optimizer.buffer_count) {}

  // False: not such an instruction.
  bool Rewrite(const Instruction& instruction) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr || launch->kernel != KernelId::kConvert) return false;
    const Ref src = p_.args(*launch)[0], host = p_.args(*launch)[1];
    if (p_.buffers[host.buffer].role != Role::kGradHost) return false;
    const uint64_t elements = host.bytes / DtypeBytes(p_.buffers[host.buffer].dtype);
    const bool same = p_.buffers[src.buffer].dtype == p_.buffers[host.buffer].dtype;
    emit_.Tag(instruction.phase, instruction.layer, kEvery);
    if (!Accumulates(p_.setup) && same) {
      emit_.CopyTo(src, host);
      SumSquares(host, elements);
      return true;
    }
    // One copy serves the first micro-step's write and the others' addition.
    if (!(launch->flags & kAccumulate)) {
      slot_ = slots_.Next(src.bytes);
      emit_.CopyTo(src, slot_);
    }
    emit_.When(instruction.when)
        .Launch(KernelId::kConvert, launch->dims, launch->flags, {slot_, host}, Stream::kHost);
    const bool complete = !Accumulates(p_.setup) || (launch->flags & kAccumulate);
    if (complete) SumSquares(host, elements);
    return true;
  }

 private:
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
    SlotRing slots(p,
                   {"param_read_slot", Role::kStaging, p.setup.precision.dtype,
                    HostSpace(zero.offload_param.pin_memory), true},
                   zero.offload_param.buffer_count);
    OffloadParams(p, Section::kMicroStep, slots);
    OffloadParams(p, Section::kEval, slots);
  }
  return p;
}

}  // namespace zeroplan
