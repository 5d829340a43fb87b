// Pass 13: at stage 3, units whose products alone read them, in eight bits (Fp8Config), are
// gathered in eight bits: half the bytes of 16, and the same numbers. Each rank finds the largest
// magnitudes of its shard, which all gather in a step's first micro-step, and rounds its shard by
// those of the whole tensors. Products as the weight lies take it from what was gathered; the
// others take a transposed copy of that.
//
// Units with other parameters in them are gathered as they are, and so are all with
// zero_quantized_weights, whose rounding comes first, or where parameters are offloaded.
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/base/fp8.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

class GatherRewriter {
 public:
  GatherRewriter(Program& p, Section section, BufferId parts)
      : p_(p),
        fresh_(section == Section::kMicroStep ? kWritesGrads : kEvery),
        in_(std::move(p.section(section))),
        out_(p.section(section)),
        emit_(p, out_),
        parts_(parts) {}

  void Run() {
    out_.clear();
    out_.reserve(in_.size() * 9 / 8);
    FindGathers();
    for (const Instruction& instruction : in_) {
      if (const auto* gather = std::get_if<Collective>(&instruction.op)) {
        const auto of = slots_.find(Gathered(*gather, instruction.stream));
        if (of != slots_.end()) {
          Gather(*gather, instruction, of->second);
          continue;
        }
      }
      if (auto launch = std::get_if<LaunchKernel>(&instruction.op); launch != nullptr) {
        if (Rewrite(*launch, instruction)) continue;
      }
      out_.push_back(instruction);
    }
  }

 private:
  Ref Arg(const LaunchKernel& launch, size_t index) const {
    return index < launch.arg_count ? p_.refs[launch.first_arg + index] : Ref{};
  }
  int UnitOf(BufferId id) const { return p_.buffers[id].unit; }

  // The whole unit that a collective gathers, or kNoBuffer.
  BufferId Gathered(const Collective& gather, Stream stream) const {
    if (gather.kind != CollectiveKind::kAllGather || stream != Stream::kGather || gather.scalar) {
      return kNoBuffer;
    }
    const Segment& segment = p_.segs(gather)[0];
    const Buffer& whole = p_.buffers[segment.dst.buffer];
    const bool of_unit = whole.role == Role::kParamFull && !whole.persistent && whole.unit >= 0 &&
                         DtypeElements(whole.dtype) == 1;
    // A shard that comes from the host lies in place there, in 16 bits.
    return of_unit && segment.src.buffer != segment.dst.buffer ? segment.dst.buffer : kNoBuffer;
  }

  // Those that only kernels that round to eight bits read, with the slots of their tensors.
  void FindGathers() {
    for (const Instruction& instruction : in_) {
      const auto* gather = std::get_if<Collective>(&instruction.op);
      if (gather == nullptr) continue;
      const BufferId whole = Gathered(*gather, instruction.stream);
      if (whole != kNoBuffer) slots_.try_emplace(whole, Ref{});
    }
    for (const Instruction& instruction : in_) {
      const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
      if (launch == nullptr) continue;
      for (size_t a = 0; a < launch->arg_count; ++a) {
        const auto of = slots_.find(Arg(*launch, a).buffer);
        if (of == slots_.end()) continue;
        const bool rounds = a == 0 && (launch->kernel == KernelId::kQuantize ||
                                       launch->kernel == KernelId::kLargestMagnitude);
        if (!rounds || Arg(*launch, 1).null()) {
          slots_.erase(of);
        } else {
          of->second = SlotsOf(Arg(*launch, 0), Arg(*launch, 1));
        }
      }
    }
    std::erase_if(slots_, [](const auto& one) { return one.second.null(); });
  }

  // All slots of the unit that `tensor` belongs to, whose largest magnitude is at `amax`.
  Ref SlotsOf(const Ref& tensor, const Ref& amax) const {
    const Unit& unit = p_.layout.units[static_cast<size_t>(UnitOf(tensor.buffer))];
    const uint64_t offset = tensor.offset / DtypeBytes(p_.buffers[tensor.buffer].dtype);
    uint64_t before = 0;
    while (before < unit.slots.size() && unit.slots[before].offset != offset) ++before;
    return {amax.buffer, amax.offset - kFp8AmaxAt - before * kFp8SlotBytes,
            unit.slots.size() * kFp8SlotBytes, 0};
  }

  void Gather(const Collective& gather, const Instruction& at, const Ref& slots) {
    const Segment segment = p_.segs(gather)[0];
    Buffer& whole = p_.buffers[segment.dst.buffer];
    const auto n = static_cast<int64_t>(segment.src.bytes / DtypeBytes(whole.dtype));
    const auto unit = static_cast<int64_t>(whole.unit);
    const auto ranks = p_.axes().Size(gather.axis);
    emit_.Tag(at.phase, at.layer, at.when);
    if (known_.insert(whole.unit).second) {
      const Ref parts{parts_, slots.offset * static_cast<uint64_t>(ranks),
                      slots.bytes * static_cast<uint64_t>(ranks), 0};
      Ref own = parts.Part(0, slots.bytes);
      own.shard_stride = slots.bytes;
      emit_.When(static_cast<uint8_t>(at.when & fresh_));
      emit_.Launch(KernelId::kFill, {static_cast<int64_t>(own.bytes)}, kNoFlags, {own}, at.stream);
      emit_.Launch(KernelId::kShardMagnitudes, {n, unit}, kNoFlags, {segment.src, own}, at.stream);
      const Segment sent{own, parts};
      emit_.Collect(CollectiveKind::kAllGather, gather.axis, Dtype::kF32, {&sent, 1}, at.stream);
      emit_.Launch(KernelId::kLargestOfParts, {static_cast<int64_t>(slots.bytes / 4), ranks},
                   kNoFlags, {parts, slots}, at.stream);
      emit_.When(at.when);
    }
    whole.dtype = Dtype::kE4M3;
    whole.bytes = static_cast<uint64_t>(n) * static_cast<uint64_t>(ranks);
    Ref own{segment.dst.buffer, 0, static_cast<uint64_t>(n), static_cast<uint64_t>(n)};
    emit_.Launch(KernelId::kQuantizeShard, {n, unit}, kNoFlags, {segment.src, own, slots},
                 at.stream);
    const Segment sent{own, Whole(p_, segment.dst.buffer)};
    emit_.Collect(CollectiveKind::kAllGather, gather.axis, Dtype::kU8, {&sent, 1}, at.stream);
  }

  // True where the kernel is not run as it is.
  bool Rewrite(const LaunchKernel& launch, const Instruction& at) {
    if (slots_.contains(Arg(launch, 0).buffer)) {
      if (launch.kernel == KernelId::kLargestMagnitude) return true;
      Ref codes = Arg(launch, 0);
      codes.offset /= DtypeBytes(p_.setup.precision.dtype);
      codes.bytes /= DtypeBytes(p_.setup.precision.dtype);
      if (const Ref plain = Arg(launch, 4); !plain.null()) gathered_[plain.buffer] = codes;
      if (const Ref transposed = Arg(launch, 2); !transposed.null()) {
        emit_.Tag(at.phase, at.layer, at.when);
        emit_.Launch(KernelId::kQuantize, launch.dims, kNoFlags, {codes, Ref{}, transposed},
                     at.stream);
      }
      return true;
    }
    for (uint32_t a = 0; a < launch.arg_count; ++a) {
      Ref& ref = p_.refs[launch.first_arg + a];
      const auto codes = gathered_.find(ref.buffer);
      if (codes != gathered_.end()) ref = codes->second;
    }
    return false;
  }

  Program& p_;
  const uint8_t fresh_;  // the micro-steps that find largest magnitudes
  const std::vector<Instruction> in_;
  std::vector<Instruction>& out_;
  Emitter emit_;
  const BufferId parts_;
  std::map<BufferId, Ref> slots_;     // by gathered unit: those of its tensors
  std::map<BufferId, Ref> gathered_;  // by the copy of a weight: where it was gathered
  std::set<int> known_;               // units whose largest magnitudes this section has found
};

}  // namespace

Program GatherFp8(Program p) {
  const Fp8Config& fp8 = p.setup.precision.fp8;
  const bool scales = fp8.enabled && fp8.recipe == Fp8Recipe::kTensor;
  if (!scales || p.layout.shards == 1 || p.setup.zero.stage < 3 || p.setup.zero.quantized_weights) {
    return p;
  }
  // Where all ranks' largest magnitudes of all weights are gathered.
  BufferId weights = kNoBuffer;
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    const Buffer& buffer = p.buffers[i];
    if (buffer.role == Role::kScales && buffer.persistent) weights = static_cast<BufferId>(i);
  }
  if (weights == kNoBuffer || p.buffers[weights].bytes == 0) return p;
  const BufferId parts = AddBuffer(p, "fp8_scales_of_ranks", Role::kScales, Dtype::kF32,
                                   p.buffers[weights].bytes * p.layout.shards);
  p.buffers[parts].persistent = true;
  for (const Section section : {Section::kMicroStep, Section::kEval}) {
    if (!p.section(section).empty()) GatherRewriter(p, section, parts).Run();
  }
  return p;
}

}  // namespace zeroplan
