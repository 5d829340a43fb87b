// Pass 14: collectives that send blocks of integers (core/base/int_blocks.h) in place of floats. As
// in ZeRO++ (Wang et al. 2023, arXiv 2306.10209), each on its own:
//
// quantized_weights: the gather of a unit's parameters at stage 3 sends int8. A rank's shard is
// quantized, gathered, and read into the whole unit, its own part too: all ranks compute with the
// same parameters.
//
// quantized_gradients: a reduce-scatter at stage 3 becomes an all-to-all of int4. Every rank
// quantizes all parts, sends each to its owner, and sums what arrives in fp32 in rank order, so
// that a gradient is rounded to four bits once; with shard groups, whose sums are reduced over the
// groups, once more there. What is all-reduced over the groups is sent as it is.
//
// Persistent units, which are few and small, are gathered and reduced as without. The buffers of
// blocks are freed where the compute stream waits for what they serve anyway.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

class Quantizer {
 public:
  Quantizer(Program& p, std::vector<Instruction>& out) : p_(p), emit_(p, out), out_(out) {}

  void Run(const std::vector<Instruction>& in) {
    for (size_t i = 0; i < in.size(); ++i) {
      FreeBeforeUse(in[i]);
      const auto* free = std::get_if<Free>(&in[i].op);
      const bool drop = free != nullptr && unused_.contains(free->buffer);
      if (!drop && !Rewrite(in[i], i + 1 < in.size() ? &in[i + 1] : nullptr)) out_.push_back(in[i]);
      FreeAfterSource(in[i]);
    }
    while (!unbound_.empty()) FreeUnbound(in.back());
  }

 private:
  const Buffer& BufferOf(const Ref& ref) const { return p_.buffers[ref.buffer]; }
  const Unit& UnitOf(const Ref& ref) const {
    return p_.layout.units[static_cast<size_t>(BufferOf(ref).unit)];
  }
  uint64_t Elements(const Ref& ref) const { return ref.bytes / DtypeBytes(BufferOf(ref).dtype); }

  // A buffer of blocks for that many elements of the unit that `like` belongs to.
  BufferId AddBlocks(const char* label, Role role, Dtype kind, uint64_t elements, const Ref& like) {
    ZEROPLAN_CHECK(elements % DtypeElements(kind) == 0, "{} of {} elements", label, elements);
    const BufferId id = AddBuffer(p_, label, role, kind, StoredBytes(kind, elements));
    p_.buffers[id].unit = BufferOf(like).unit;
    return id;
  }

  void Convert(uint64_t elements, const Ref& src, const Ref& dst, Stream stream) {
    emit_.Launch(KernelId::kConvert, {static_cast<int64_t>(elements)}, kNoFlags, {src, dst},
                 stream);
  }

  // False: not what this pass changes. `next` may be null.
  bool Rewrite(const Instruction& instruction, const Instruction* next) {
    const auto* collective = std::get_if<Collective>(&instruction.op);
    if (collective == nullptr || collective->scalar) return false;
    emit_.Tag(instruction.phase, instruction.layer, instruction.when);
    if (collective->kind == CollectiveKind::kAllGather) {
      return p_.setup.zero.quantized_weights && RewriteGather(*collective, instruction.stream);
    }
    if (collective->kind == CollectiveKind::kReduceScatter) {
      return p_.setup.zero.quantized_gradients && RewriteReduction(*collective, instruction, next);
    }
    return false;
  }

  bool RewriteGather(const Collective& gather, Stream stream) {
    const Segment segment = p_.segs(gather)[0];
    const Buffer& whole = BufferOf(segment.dst);
    const bool of_unit = stream == Stream::kGather && whole.role == Role::kParamFull &&
                         !whole.persistent && DtypeElements(whole.dtype) == 1;
    if (!of_unit) return false;
    const uint64_t elements = Elements(segment.dst), part = Elements(segment.src);
    constexpr Dtype kKind = Dtype::kInt8Blocks;
    const BufferId blocks =
        AddBlocks("int8_params", Role::kWorkspace, kKind, elements, segment.dst);
    const uint64_t part_bytes = StoredBytes(kKind, part);
    const Segment sent{{blocks, 0, part_bytes, part_bytes}, Whole(p_, blocks)};
    Convert(part, segment.src, sent.src, stream);
    emit_.Collect(CollectiveKind::kAllGather, gather.axis, SentDtype(kKind), {&sent, 1}, stream);
    Convert(elements, sent.dst, segment.dst, stream);
    before_use_[segment.dst.buffer] = blocks;
    return true;
  }

  // Whether `next` reduces, over the groups, what `sum` holds.
  bool GoesOn(const Ref& sum, const Instruction* next) const {
    const auto* crossing = next == nullptr ? nullptr : std::get_if<Collective>(&next->op);
    if (crossing == nullptr || crossing->kind != CollectiveKind::kReduceScatter) return false;
    const std::span<const Segment> segments = p_.segs(*crossing);
    return std::any_of(segments.begin(), segments.end(), [&](const Segment& segment) {
      return segment.src.buffer == sum.buffer && segment.src.offset == sum.offset &&
             segment.src.bytes == sum.bytes;
    });
  }

  bool RewriteReduction(const Collective& reduction, const Instruction& at,
                        const Instruction* next) {
    std::vector<Segment> exact, quantized;
    for (const Segment& segment : p_.segs(reduction)) {
      (UnitOf(segment.src).persistent ? exact : quantized).push_back(segment);
    }
    if (quantized.empty()) return false;
    if (!exact.empty()) {
      emit_.Collect(reduction.kind, reduction.axis, reduction.dtype, exact, at.stream);
    }
    constexpr Dtype kKind = Dtype::kInt4Blocks;
    std::vector<Segment> sent;
    Blocks unbound;
    for (const Segment& segment : quantized) {
      const uint64_t elements = Elements(segment.src);
      BufferId from = kNoBuffer;
      if (const auto sums = in_blocks_.extract(segment.src.buffer); !sums.empty()) {
        from = sums.mapped();
      } else {
        from = AddBlocks("int4_grads", Role::kReduceScratch, kKind, elements, segment.src);
        Convert(elements, segment.src, Whole(p_, from), at.stream);
      }
      const BufferId to =
          AddBlocks("int4_parts", Role::kReduceScratch, kKind, elements, segment.src);
      sent.push_back({Whole(p_, from), Whole(p_, to)});
      const bool freed = !BufferOf(segment.src).persistent;
      Blocks& blocks = freed ? after_source_[segment.src.buffer] : unbound;
      blocks.insert(blocks.end(), {from, to});
    }
    emit_.Collect(CollectiveKind::kAllToAll, reduction.axis, SentDtype(kKind), sent, at.stream);
    for (size_t i = 0; i < sent.size(); ++i) {
      Ref sum = quantized[i].dst;
      const uint64_t part = Elements(sum);
      if (GoesOn(sum, next)) {  // as blocks, without floats in between
        const BufferId blocks =
            AddBlocks("int4_sums", Role::kReduceScratch, kKind, part, quantized[i].src);
        in_blocks_.emplace(sum.buffer, blocks);
        unused_.insert(sum.buffer);
        sum = Whole(p_, blocks);
      }
      unused_.erase(sum.buffer);
      ZEROPLAN_CHECK(part % DtypeElements(kKind) == 0, "parts of {} elements", part);
      emit_.Launch(KernelId::kSumParts,
                   {static_cast<int64_t>(part), p_.axes().Size(reduction.axis)}, kNoFlags,
                   {sent[i].dst, sum}, at.stream);
    }
    // One reduction more may be on its way, where the compute stream need not wait for it.
    if (unbound.empty()) return true;
    while (unbound_.size() > (p_.setup.zero.overlap_comm ? 1 : 0)) FreeUnbound(at);
    unbound_.push_back({std::move(unbound), at.when});
    return true;
  }

  // The first kernel that uses a gathered unit waits for its gather. All micro-steps gather; not
  // all need have that kernel.
  void FreeBeforeUse(const Instruction& instruction) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr || before_use_.empty()) return;
    emit_.Tag(instruction.phase, instruction.layer, kEvery);
    for (const Ref& ref : p_.args(*launch)) {
      const auto blocks = before_use_.find(ref.buffer);
      if (blocks == before_use_.end()) continue;
      emit_.Release(blocks->second);
      before_use_.erase(blocks);
    }
  }

  // Where InsertReduction frees gradients that have been reduced.
  void FreeAfterSource(const Instruction& instruction) {
    const auto* free = std::get_if<Free>(&instruction.op);
    if (free == nullptr) return;
    const auto blocks = after_source_.find(free->buffer);
    if (blocks == after_source_.end()) return;
    emit_.Tag(instruction.phase, instruction.layer, instruction.when);
    for (const BufferId id : blocks->second) emit_.Release(id);
    after_source_.erase(blocks);
  }

  void FreeUnbound(const Instruction& at) {
    const auto& [blocks, when] = unbound_.front();
    emit_.Tag(at.phase, at.layer, when);
    for (const BufferId id : blocks) emit_.Release(id);
    unbound_.pop_front();
  }

  using Blocks = std::vector<BufferId>;

  Program& p_;
  Emitter emit_;
  std::vector<Instruction>& out_;
  std::map<BufferId, BufferId> before_use_;  // by the gathered unit's buffer
  std::map<BufferId, Blocks> after_source_;  // by the reduced gradients' buffer
  std::set<BufferId> unused_;                // for floats that nothing writes or reads any more
  std::map<BufferId, BufferId> in_blocks_;  // sums of a group, by the buffer that floats would take
  // Of reductions whose source persists: what is not freed yet, and in which micro-steps it is.
  std::deque<std::pair<Blocks, uint8_t>> unbound_;
};

}  // namespace

Program InsertQuantize(Program p) {
  const ZeroConfig& zero = p.setup.zero;
  if (p.setup.batch.world_size == 1) return p;
  if (!zero.quantized_weights && !zero.quantized_gradients) return p;
  for (const Section section : {Section::kMicroStep, Section::kEval}) {
    std::vector<Instruction> in = std::move(p.section(section));
    std::vector<Instruction> out;
    out.reserve(in.size() * 5 / 4);
    if (!in.empty()) Quantizer(p, out).Run(in);
    p.section(section) = std::move(out);
  }
  return p;
}

}  // namespace zeroplan
