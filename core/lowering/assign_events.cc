// Pass 17: events, so that streams wait for one another where data or memory need it and nowhere
// else.
//
// List order is what the program means. For each instruction the pass looks up, by the bytes it
// touches, what on other streams must be over before it (reads after writes, writes after both),
// and adds a wait unless the stream already knows: it keeps, per stream, how far every other stream
// is known to have come. Buffers that only one stream touches order nothing. All this per kind of
// micro-step, since an instruction may run in some kinds only. Streams meet at a section's begin
// and end, but for what follows the step's scalars on the host's streams and on the one that copies
// to the device (offloaded states are updated, and parameters return) and, where collectives may
// overlap, for the gathers of updated parameters, within a shard group and over the groups: they
// are carried over the end of the optimizer step. Each records an event of its own, and in the
// first micro-step of the next step they count as instructions that came before the list.
//
// Every micro-step but the last also leaves to the next one what its reductions have yet to do: the
// collectives, adding to the shards, and their way to the host where states are offloaded. Each of
// these streams records one event at the micro-step's end; in the next micro-step all that the
// stream ran counts as one instruction that came before the list. No micro-step leaves what it
// found under way: its end waits for that.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/lowering/access_history.h"
#include "core/lowering/passes.h"
#include "core/program/step_order.h"

namespace zeroplan {
namespace {

// An instruction of optimizer_step that the next step may find under way.
struct CarriedInstruction {
  size_t instruction;
  EventId event;
};

struct Carried {
  std::vector<CarriedInstruction> instructions;  // in list order
  // By stream: its last one, which comes after its others; none where the stream is not carried.
  std::array<std::optional<size_t>, kStreams> last;
  // By stream: the event at the end of what a micro-step may leave to the next one.
  std::array<std::optional<EventId>, kStreams> micro_step_ends;
};

bool TouchesTransients(const Program& p, const Instruction& instruction) {
  bool touches = false;
  ForEachTouched(p, instruction, [&](BufferId id) { touches |= !p.buffers[id].persistent; });
  return touches;
}

// Kinds of micro-steps that find what an update left.
constexpr uint8_t kTakesFromUpdate = kOnly | kFirst;

void FindCarriedByMicroSteps(Program& p, Carried& carried) {
  const uint8_t leave = MicroStepKinds(p.setup.batch.grad_accum) & kLeavesToMicroStep;
  for (const Instruction& instruction : p.section(Section::kMicroStep)) {
    if ((instruction.when & leave) == 0) continue;
    // Where collectives may not overlap, what follows them on the device is waited for with them.
    const Stream stream = instruction.stream;
    const bool may_carry =
        stream == Stream::kHost || (p.setup.zero.overlap_comm &&
                                    (stream == Stream::kReduce || stream == Stream::kDeviceToHost));
    std::optional<EventId>& end = carried.micro_step_ends[static_cast<size_t>(stream)];
    if (may_carry && !end) end = p.event_count++;
  }
}

Carried FindCarried(Program& p) {
  Carried carried;
  FindCarriedByMicroSteps(p, carried);
  const std::vector<Instruction>& list = p.section(Section::kOptimizerStep);
  const auto scalars = std::find_if(list.begin(), list.end(), [](const Instruction& i) {
    const auto* launch = std::get_if<LaunchKernel>(&i.op);
    return launch != nullptr && launch->kernel == KernelId::kStepScalars;
  });
  std::array<bool, kStreams> may_carry{};
  for (const Stream stream : kHostStreams) may_carry[static_cast<size_t>(stream)] = true;
  may_carry[static_cast<size_t>(Stream::kHostToDevice)] = true;
  for (const Stream stream : {Stream::kGather, Stream::kReduce}) {
    may_carry[static_cast<size_t>(stream)] =
        p.setup.zero.overlap_comm && p.setup.batch.world_size > 1;
  }
  // The next micro-step's transients may lie where this section's lay.
  for (auto i = scalars; i != list.end(); ++i) {
    if (TouchesTransients(p, *i)) may_carry[static_cast<size_t>(i->stream)] = false;
  }
  for (auto i = scalars; i != list.end(); ++i) {
    const auto s = static_cast<size_t>(i->stream);
    if (!may_carry[s]) continue;
    carried.last[s] = carried.instructions.size();
    carried.instructions.push_back({static_cast<size_t>(i - list.begin()), p.event_count++});
  }
  return carried;
}

class EventPass {
 public:
  EventPass(Program& p, Section section, const Carried& carried, AccessHistories& histories)
      : p_(p),
        section_(section),
        list_(p.section(section)),
        carried_(carried),
        histories_(histories),
        blocking_(!p.setup.zero.overlap_comm) {
    if (section != Section::kMicroStep) {
      kinds_ = {kOnly};
      return;
    }
    for (const When kind : {kOnly, kFirst, kLast, kMiddle}) {
      if (MicroStepKinds(p.setup.batch.grad_accum) & kind) kinds_.push_back(kind);
    }
    for (size_t s = 0; s < kStreams; ++s) {
      if (const auto end = carried.micro_step_ends[s])
        before_.push_back({s, *end, kTakesFromMicroStep});
    }
    for (const CarriedInstruction& instruction : carried.instructions) {
      const Stream stream = p.section(Section::kOptimizerStep)[instruction.instruction].stream;
      before_.push_back({static_cast<size_t>(stream), instruction.event, kTakesFromUpdate});
    }
  }

  void Run() {
    if (list_.empty()) return;
    const size_t k = kinds_.size();
    FindStreams();
    histories_.Begin(k);
    known_.assign(k * kStreams, {{0, kNoneYet}});
    if (section_ == Section::kMicroStep) TakeCarried();
    for (size_t i = 0; i < list_.size(); ++i) Visit(i);
    if (section_ == Section::kMicroStep) EndCarried();
    Rebuild();
  }

 private:
  struct Wait {
    size_t before;            // the waiting instruction
    Stream stream;            // that waits
    int32_t for_instruction;  // negative: a carried one
    uint8_t when;
  };

  // What a micro-step may find under way, as one instruction.
  struct Before {
    size_t stream;
    EventId event;
    uint8_t taken_by;  // kinds of micro-steps
  };

  struct Access {
    size_t slot;
    ByteSpan span;
    uint64_t buffer_bytes;
    bool writes, in_file;
  };

  // What was there before is numbered up to -1, so that it comes before the list.
  int32_t IndexOfBefore(size_t b) const {
    return static_cast<int32_t>(b) - static_cast<int32_t>(before_.size());
  }
  const Before& BeforeAt(int32_t index) const {
    const auto count = static_cast<std::ptrdiff_t>(before_.size());
    return before_[static_cast<size_t>(count + index)];
  }

  void FindStreams() {
    streams_of_.assign(p_.buffers.size(), 0);
    const auto note = [&](const Instruction& instruction) {
      const auto bit = static_cast<uint8_t>(1u << static_cast<unsigned>(instruction.stream));
      ForEachTouched(p_, instruction, [&](BufferId id) { streams_of_[id] |= bit; });
    };
    for (const Instruction& instruction : list_) note(instruction);
    if (section_ != Section::kMicroStep) return;
    const std::vector<Instruction>& step = p_.section(Section::kOptimizerStep);
    for (const CarriedInstruction& carried : carried_.instructions) note(step[carried.instruction]);
  }
  bool SeveralStreamsTouch(BufferId id) const {
    return (streams_of_[id] & (streams_of_[id] - 1)) != 0;
  }

  void NoteBefore(const Instruction& instruction, size_t b) {
    TakeAccesses(instruction);
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (kinds_[k] & before_[b].taken_by) Note(k, before_[b].stream, IndexOfBefore(b));
    }
  }

  void TakeCarried() {
    for (size_t b = 0; b < before_.size(); ++b) {
      if (before_[b].taken_by != kTakesFromMicroStep) continue;
      for (const Instruction& instruction : list_) {
        const bool left = static_cast<size_t>(instruction.stream) == before_[b].stream &&
                          (instruction.when & kLeavesToMicroStep) != 0;
        if (left) NoteBefore(instruction, b);
      }
    }
    const std::vector<Instruction>& step = p_.section(Section::kOptimizerStep);
    size_t b = before_.size() - carried_.instructions.size();
    for (const CarriedInstruction& carried : carried_.instructions) {
      NoteBefore(step[carried.instruction], b++);
    }
  }

  // What no instruction waited for is waited for all the same: nothing is carried any further. The
  // last micro-step waits for its own streams' ends anyway, which come later on the same streams.
  void EndCarried() {
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (kinds_[k] == kLast) continue;
      StreamClock need = kNoneYet;
      for (size_t b = 0; b < before_.size(); ++b) {
        if (kinds_[k] & before_[b].taken_by) need[before_[b].stream] = IndexOfBefore(b);
      }
      WaitFor(list_.size(), static_cast<size_t>(Stream::kCompute), k, need);
    }
  }

  void TakeAccesses(const Instruction& instruction) {
    accesses_.clear();
    ForEachRef(p_, instruction, [&](const Ref& ref, auto mode) {
      if (!SeveralStreamsTouch(ref.buffer)) return;
      const Buffer& buffer = p_.buffers[ref.buffer];
      accesses_.push_back({histories_.SlotOf(ref.buffer), SpanOverRanks(ref, p_.axes()),
                           buffer.bytes, Writes(mode()), buffer.space == Space::kFile});
    });
  }

  void Note(size_t k, size_t stream, int32_t index) {
    for (const Access& a : accesses_) {
      histories_[a.slot + k].Note(a.span, a.buffer_bytes, a.writes, stream, index, a.in_file);
    }
  }

  // What a stream knows to be over, from an instruction on.
  struct Knowledge {
    size_t from;
    StreamClock over;
  };

  std::vector<Knowledge>& Known(size_t kind, size_t stream) {
    return known_[kind * kStreams + stream];
  }
  // What is over once an instruction of `stream` is, itself aside.
  const StreamClock& KnownAt(size_t instruction, size_t kind, size_t stream) {
    const std::vector<Knowledge>& known = Known(kind, stream);
    const auto after =
        std::upper_bound(known.begin(), known.end(), instruction,
                         [](size_t i, const Knowledge& knowledge) { return i < knowledge.from; });
    return after[-1].over;
  }

  void Visit(size_t i) {
    const Instruction& instruction = list_[i];
    const auto s = static_cast<size_t>(instruction.stream);
    uses_stream_[s] = true;
    TakeAccesses(instruction);
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (!(instruction.when & kinds_[k])) continue;
      if (!accesses_.empty()) {
        StreamClock need = kNoneYet;
        for (const Access& a : accesses_) histories_[a.slot + k].AddNeeds(a.span, a.writes, need);
        WaitFor(i, s, k, need);
      }
      Note(k, s, static_cast<int32_t>(i));
      if (blocking_ && std::holds_alternative<Collective>(instruction.op)) {
        // Waited for where it is issued: before whatever compute does next.
        StreamClock block = kNoneYet;
        block[s] = static_cast<int32_t>(i);
        WaitFor(i + 1, static_cast<size_t>(Stream::kCompute), k, block);
      }
    }
  }

  void WaitFor(size_t before, size_t s, size_t k, const StreamClock& need) {
    StreamClock known = Known(k, s).back().over;
    bool more = false;
    for (size_t t = 0; t < kStreams; ++t) more |= t != s && need[t] > known[t];
    if (!more) return;
    // Latest first: what one wait brings along need not be waited for again.
    std::array<size_t, kStreams> order;
    for (size_t t = 0; t < kStreams; ++t) order[t] = t;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return need[a] > need[b]; });
    for (size_t t : order) {
      if (t == s || need[t] <= known[t]) continue;
      AddWait(before, static_cast<Stream>(s), need[t], kinds_[k]);
      if (need[t] < 0) {  // carried: what came before it is not worth knowing
        known[t] = need[t];
        continue;
      }
      const StreamClock& over = KnownAt(static_cast<size_t>(need[t]), k, t);
      for (size_t x = 0; x < known.size(); ++x) known[x] = std::max(known[x], over[x]);
      known[t] = need[t];
    }
    Known(k, s).push_back({before, known});
  }

  void AddWait(size_t before, Stream stream, int32_t target, uint8_t kind) {
    for (auto wait = waits_.rbegin(); wait != waits_.rend() && wait->before == before; ++wait) {
      if (wait->stream == stream && wait->for_instruction == target) {
        wait->when |= kind;
        return;
      }
    }
    waits_.push_back({before, stream, target, kind});
  }

  Instruction Event(Op op, Stream stream, uint8_t when, const Instruction& like) const {
    Instruction instruction{op};
    instruction.stream = stream;
    instruction.when = when;
    instruction.phase = like.phase;
    instruction.layer = like.layer;
    return instruction;
  }

  uint8_t Normal(uint8_t when, uint8_t of) const {
    uint8_t all = 0;
    for (uint8_t kind : kinds_) all |= kind & of;
    return when == all ? of : when;
  }

  void Rebuild() {
    std::vector<EventId> recorded(list_.size(), UINT32_MAX);
    const bool carries = section_ == Section::kOptimizerStep;
    if (carries) {
      for (const CarriedInstruction& carried : carried_.instructions) {
        recorded[carried.instruction] = carried.event;
      }
    }
    for (const Wait& wait : waits_) {
      if (wait.for_instruction < 0) continue;
      EventId& id = recorded[static_cast<size_t>(wait.for_instruction)];
      if (id == UINT32_MAX) id = p_.event_count++;
    }
    std::stable_sort(waits_.begin(), waits_.end(),
                     [](const Wait& a, const Wait& b) { return a.before < b.before; });
    std::vector<Instruction> out;
    out.reserve(list_.size() + 2 * waits_.size() + 4 * kStreams);
    const Instruction& front = list_.front();
    const auto compute = static_cast<size_t>(Stream::kCompute);
    bool others = false;
    for (size_t s = 0; s < kStreams; ++s) others |= s != compute && uses_stream_[s];
    if (others) {
      const EventId begin = p_.event_count++;
      out.push_back(Event(RecordEvent{begin}, Stream::kCompute, kEvery, front));
      for (size_t s = 0; s < kStreams; ++s) {
        if (s == compute || !uses_stream_[s]) continue;
        out.push_back(Event(WaitEvent{begin}, static_cast<Stream>(s), kEvery, front));
      }
    }
    size_t w = 0;
    for (size_t i = 0; i <= list_.size(); ++i) {
      for (; w < waits_.size() && waits_[w].before == i; ++w) {
        const int32_t target = waits_[w].for_instruction;
        const auto t = static_cast<size_t>(target);
        const Instruction& like = list_[std::min(i, list_.size() - 1)];
        const uint8_t when =
            Normal(waits_[w].when, target < 0 ? BeforeAt(target).taken_by : list_[t].when);
        const EventId event = target < 0 ? BeforeAt(target).event : recorded[t];
        out.push_back(Event(WaitEvent{event}, waits_[w].stream, when, like));
      }
      if (i == list_.size()) break;
      out.push_back(list_[i]);
      if (recorded[i] != UINT32_MAX) {
        out.push_back(Event(RecordEvent{recorded[i]}, list_[i].stream, list_[i].when, list_[i]));
      }
    }
    for (size_t s = 0; s < kStreams; ++s) {
      if (s == compute || !uses_stream_[s]) continue;
      if (carries && carried_.last[s]) continue;
      const bool left = section_ == Section::kMicroStep && carried_.micro_step_ends[s];
      const EventId end = left ? *carried_.micro_step_ends[s] : p_.event_count++;
      const uint8_t joins = left ? kCompletesGrads : kEvery;
      out.push_back(Event(RecordEvent{end}, static_cast<Stream>(s), kEvery, list_.back()));
      out.push_back(Event(WaitEvent{end}, Stream::kCompute, joins, list_.back()));
    }
    list_ = std::move(out);
  }

  Program& p_;
  const Section section_;
  std::vector<Instruction>& list_;
  const Carried& carried_;
  AccessHistories& histories_;
  const bool blocking_;
  std::vector<uint8_t> kinds_;
  std::vector<Before> before_;  // of micro_step; those that micro-steps leave come first
  static_assert(kStreams <= 8);
  std::vector<uint8_t> streams_of_;            // by buffer: those that touch it, a bit each
  std::vector<Access> accesses_;               // of one instruction, to what several streams touch
  std::vector<std::vector<Knowledge>> known_;  // [kind][stream]: what changes, in list order
  std::vector<Wait> waits_;
  std::array<bool, kStreams> uses_stream_{};
};

}  // namespace

Program AssignEvents(Program p, Extent extent) {
  const Carried carried = FindCarried(p);
  AccessHistories histories(p.buffers.size());
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    const bool of_step = section == Section::kMicroStep || section == Section::kOptimizerStep;
    if (of_step || extent == Extent::kWhole) EventPass(p, section, carried, histories).Run();
  }
  for (const std::optional<size_t>& last : carried.last) {
    if (!last) continue;
    Instruction wait{WaitEvent{carried.instructions[*last].event}};
    wait.phase = Phase::kStep;
    p.section(Section::kDrain).push_back(wait);
  }
  return p;
}

}  // namespace zeroplan
