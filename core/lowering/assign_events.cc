// Pass 9: events, so that streams wait for one another where data or memory need it and nowhere
// else.
//
// List order is what the program means. For each instruction the pass looks up, by the bytes it
// touches, what on other streams must be over before it (reads after writes, writes after both),
// and adds a wait unless the stream already knows: it keeps, per stream, how far every other stream
// is known to have come. All this per kind of micro-step, since an instruction may run in some
// kinds only. Streams meet at a section's begin and end.
#include <algorithm>
#include <array>

#include "core/lowering/access_history.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

class EventPass {
 public:
  EventPass(Program& p, Section section)
      : p_(p),
        list_(p.section(section)),
        blocking_(!p.setup.zero.overlap_comm),
        ranks_(p.setup.batch.world_size) {
    if (section == Section::kMicroStep && p.setup.batch.grad_accum > 1) {
      kinds_ = {kFirst, kLast};
      if (p.setup.batch.grad_accum > 2) kinds_.push_back(kMiddle);
    } else {
      kinds_ = {kOnly};
    }
  }

  void Run() {
    if (list_.empty()) return;
    const size_t k = kinds_.size();
    history_.assign(p_.buffers.size() * k, {});
    known_.assign(k * kStreams, kNoneYet);
    over_.resize(list_.size() * k);
    for (size_t i = 0; i < list_.size(); ++i) Visit(i);
    Rebuild();
  }

 private:
  struct Wait {
    size_t before;  // the waiting instruction
    Stream stream;  // that waits
    int32_t for_instruction;
    uint8_t when;
  };

  StreamClock& Known(size_t kind, size_t stream) { return known_[kind * kStreams + stream]; }
  StreamClock& Over(size_t instruction, size_t kind) {
    return over_[instruction * kinds_.size() + kind];
  }
  AccessHistory& HistoryOf(BufferId id, size_t kind) {
    return history_[id * kinds_.size() + kind];
  }

  void Visit(size_t i) {
    const Instruction& instruction = list_[i];
    const auto s = static_cast<size_t>(instruction.stream);
    uses_stream_[s] = true;
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (!(instruction.when & kinds_[k])) continue;
      StreamClock need = kNoneYet;
      ForEachAccess(p_, instruction, [&](const Ref& ref, ArgMode mode) {
        HistoryOf(ref.buffer, k).AddNeeds(SpanOverRanks(ref, ranks_), Writes(mode), need);
      });
      WaitFor(i, s, k, need);
      StreamClock over = Known(k, s);
      over[s] = static_cast<int32_t>(i);
      Known(k, s) = over;
      Over(i, k) = over;
      ForEachAccess(p_, instruction, [&](const Ref& ref, ArgMode mode) {
        HistoryOf(ref.buffer, k).Note(SpanOverRanks(ref, ranks_), p_.buffers[ref.buffer].bytes,
                                      Writes(mode), s, static_cast<int32_t>(i));
      });
      if (blocking_ && std::holds_alternative<Collective>(instruction.op)) {
        // Waited for where it is issued: before whatever compute does next.
        StreamClock block = kNoneYet;
        block[s] = static_cast<int32_t>(i);
        WaitFor(i + 1, static_cast<size_t>(Stream::kCompute), k, block);
      }
    }
  }

  void WaitFor(size_t before, size_t s, size_t k, const StreamClock& need) {
    StreamClock& known = Known(k, s);
    // Latest first: what one wait brings along need not be waited for again.
    std::array<size_t, kStreams> order;
    for (size_t t = 0; t < kStreams; ++t) order[t] = t;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return need[a] > need[b]; });
    for (size_t t : order) {
      if (t == s || need[t] <= known[t]) continue;
      AddWait(before, static_cast<Stream>(s), need[t], kinds_[k]);
      const StreamClock& over = Over(static_cast<size_t>(need[t]), k);
      for (size_t x = 0; x < kStreams; ++x) known[x] = std::max(known[x], over[x]);
    }
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
    for (const Wait& wait : waits_) {
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
        const auto target = static_cast<size_t>(waits_[w].for_instruction);
        const Instruction& like = list_[std::min(i, list_.size() - 1)];
        const uint8_t when = Normal(waits_[w].when, list_[target].when);
        out.push_back(Event(WaitEvent{recorded[target]}, waits_[w].stream, when, like));
      }
      if (i == list_.size()) break;
      out.push_back(list_[i]);
      if (recorded[i] != UINT32_MAX) {
        out.push_back(Event(RecordEvent{recorded[i]}, list_[i].stream, list_[i].when, list_[i]));
      }
    }
    for (size_t s = 0; s < kStreams; ++s) {
      if (s == compute || !uses_stream_[s]) continue;
      const EventId end = p_.event_count++;
      out.push_back(Event(RecordEvent{end}, static_cast<Stream>(s), kEvery, list_.back()));
      out.push_back(Event(WaitEvent{end}, Stream::kCompute, kEvery, list_.back()));
    }
    list_ = std::move(out);
  }

  Program& p_;
  std::vector<Instruction>& list_;
  const bool blocking_;
  const int ranks_;
  std::vector<uint8_t> kinds_;
  std::vector<AccessHistory> history_;  // [buffer][kind]
  std::vector<StreamClock> known_;      // [kind][stream]
  std::vector<StreamClock> over_;       // [instruction][kind]: what is over once it is
  std::vector<Wait> waits_;
  std::array<bool, kStreams> uses_stream_{};
};

}  // namespace

Program AssignEvents(Program p) {
  for (int s = 0; s < kSections; ++s) EventPass(p, static_cast<Section>(s)).Run();
  return p;
}

}  // namespace zeroplan
