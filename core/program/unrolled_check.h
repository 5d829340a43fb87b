// The part of Verify that follows a program as an engine issues it, one rank at a time, in any
// order that its events allow: checks memory and gradients.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "core/program/program.h"
#include "core/program/static_check.h"

namespace zeroplan {

// ---- the order guaranteed between instructions ----

// Vector clocks, one component a stream, kept by HappensBefore (Mattern 1989; Fidge 1988).
// Instructions are issued in list order. Each stream runs its own in that order. Between streams
// only events order them: two instructions on different streams may run in either order or
// concurrently unless a chain of RecordEvent and WaitEvent connects them.

// An issued instruction: the `time`-th on its stream, counted from 1.
struct Moment {
  Stream stream = Stream::kCompute;
  uint32_t time = 0;
};

class HappensBefore {
 public:
  explicit HappensBefore(EventId event_count) : events_(event_count) {}

  Moment Issue(Stream stream) { return {stream, ++clock(stream)[static_cast<size_t>(stream)]}; }

  // All instructions issued to `stream` so far (and those it waited for) come before any that waits
  // for `event`.
  void Record(EventId event, Stream stream) { events_[event] = clock(stream); }

  // Waits for the latest record issued so far. An event without a record counts as signalled: there
  // is nothing to wait for, and no order is gained.
  void Wait(EventId event, Stream stream) { Join(clock(stream), events_[event]); }

  // The host waits for all streams before it issues more.
  void Synchronize() {
    Clock all{};
    for (const Clock& clock : streams_) Join(all, clock);
    streams_.fill(all);
  }

  // Whether `earlier` is sure to end before the last instruction issued to `stream` begins.
  bool Ordered(Moment earlier, Stream stream) const {
    return streams_[static_cast<size_t>(stream)][static_cast<size_t>(earlier.stream)] >=
           earlier.time;
  }

 private:
  using Clock = std::array<uint32_t, kStreams>;

  Clock& clock(Stream stream) { return streams_[static_cast<size_t>(stream)]; }
  static void Join(Clock& into, const Clock& from) {
    for (size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }

  std::array<Clock, kStreams> streams_{};
  std::vector<Clock> events_;  // zero: not recorded yet
};

// ---- bytes that were written, and the owners of an arena's bytes ----

// A set of bytes as sorted ranges that neither overlap nor touch.
class ByteSet {
 public:
  void Clear() { ranges_.clear(); }
  void Add(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    auto first = FirstEndingAtOrAfter(begin);
    auto last = first;
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      ranges_.erase(first + 1, last);
    }
  }
  // The first byte of [begin, end) that is missing; `end` if all are there.
  uint64_t FirstMissing(uint64_t begin, uint64_t end) const {
    const auto range = const_cast<ByteSet*>(this)->FirstEndingAtOrAfter(begin);
    if (range == ranges_.end() || range->begin > begin) return begin;
    return std::min(range->end, end);
  }

 private:
  struct Range {
    uint64_t begin, end;
  };
  std::vector<Range>::iterator FirstEndingAtOrAfter(uint64_t begin) {
    return std::lower_bound(ranges_.begin(), ranges_.end(), begin,
                            [](const Range& range, uint64_t at) { return range.end < at; });
  }
  std::vector<Range> ranges_;
};

// The present or last owner of each byte of an arena. Bytes without any owner so far have no piece.
class ArenaMap {
 public:
  struct Piece {
    uint64_t end = 0;
    BufferId owner = kNoBuffer;
    bool live = false;
    Moment freed;  // set if the piece is not live
    Site freed_site;
  };

  // Calls visit(piece) for every piece that overlaps [begin, end), then gives the range to `owner`.
  template <typename Visit>
  void Take(uint64_t begin, uint64_t end, BufferId owner, Visit&& visit) {
    if (begin >= end) return;
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin() && std::prev(it)->second.end > begin) --it;
    while (it != pieces_.end() && it->first < end) {
      const uint64_t piece_begin = it->first;
      const Piece piece = it->second;
      visit(piece);
      it = pieces_.erase(it);
      // The parts of the piece outside the range keep their owner.
      if (piece_begin < begin) {
        Piece left = piece;
        left.end = begin;
        pieces_.emplace(piece_begin, left);
      }
      if (piece.end > end) it = pieces_.emplace(end, piece).first;
    }
    pieces_.emplace(begin, Piece{end, owner, true, {}, {}});
  }

  void Release(uint64_t begin, uint64_t end, BufferId owner, Moment moment, Site site) {
    for (auto it = pieces_.lower_bound(begin); it != pieces_.end() && it->first < end; ++it) {
      if (it->second.owner != owner) continue;
      it->second.live = false;
      it->second.freed = moment;
      it->second.freed_site = site;
    }
  }

 private:
  std::map<uint64_t, Piece> pieces_;  // by first byte, disjoint
};

// Buffers are allocated before, and freed after, every use; uses that conflict are ordered; arenas
// are not shared.
class MemoryCheck {
 public:
  // Keeps all three references. `order` must have issued each instruction before Run() gets it.
  MemoryCheck(const Program& program, int rank, const HappensBefore& order, Violations& violations);

  void Run(const Instruction& instruction, Moment moment, Site site);
  // Ends a section: transient buffers may not outlive the section that allocated them, except for
  // those that a micro-step `leaves` to the next one.
  void EndSection(bool leaves);

 private:
  // An access that a later one may conflict with.
  struct Touch {
    uint64_t begin, end;
    bool write;
    Moment moment;
    Site site;
  };
  enum class Life : uint8_t { kNever, kLive, kFreed };
  struct State {
    Life life = Life::kNever;
    bool set_from_outside = false;  // the engine writes it: tokens, step state
    Moment allocated;
    Site allocated_site, freed_site;
    std::vector<Touch> touches;
    ByteSet written;
  };

  void RunAlloc(BufferId id, Moment moment, Site site);
  void RunFree(BufferId id, Moment moment, Site site);
  void CheckAccess(const Ref& ref, ArgMode mode, Moment moment, Site site);
  void CheckWritten(const Ref& ref, const State& state, Site site);
  void CheckRaces(const Ref& ref, State& state, const Touch& now);

  const Program& program_;
  const int rank_;
  const Coordinates at_;
  const HappensBefore& order_;
  Violations& violations_;
  std::vector<State> states_;
  std::array<ArenaMap, kSpaces> arenas_;
  const std::vector<bool> left_to_micro_step_;  // by buffer
  std::vector<BufferId> live_transients_;
};

// The part of Verify that follows gradients. Every element of every unit must be summed over the
// ranks exactly once, an optimizer step at stages 0 and 1, a micro-step at stages 2 and 3, and not
// written after. If it is summed over the shard axis alone, it must then be summed over the replica
// axis too: each element of the shard once a step, or once a micro-step (CrossesEachMicroStep).
class GradientCheck {
 public:
  // Keeps both references.
  GradientCheck(const Program& program, Violations& violations);

  void Run(const Instruction& instruction, Site site);
  void EndSection(Section section);
  void EndStep();

 private:
  struct Range {
    uint64_t begin, end;
  };
  struct UnitState {
    std::vector<Range> reduced;  // elements
    // The elements of the shard summed over the replica axis, after the shard axis.
    std::vector<Range> crossed;
    bool over_shards = false;
    Site last;  // the last instruction that reduced some
  };

  // The source of blocks of integers, and its elements within its unit or shard.
  struct Quantized {
    Ref of;
    uint64_t begin = 0, end = 0;
  };

  void RunReduction(const Collective& collective, Site site);
  void CheckLateWrites(const LaunchKernel& launch, Site site);
  // Whether the launch converts gradients between the dtype they are stored in and the one they are
  // reduced in: towards the reduction, or back.
  bool IsConversion(const LaunchKernel& launch, bool to_be_reduced) const;
  // Records the source of the blocks of integers that a launch makes.
  void NoteQuantized(const LaunchKernel& launch);
  // Marks the gradients in `ref` as being reduced: nothing may write them any more.
  void MarkReduced(const Ref& ref);
  // Whether the ranges, which it sorts, cover [0, elements) exactly once; `end`: the end of the
  // covered prefix.
  static bool EachOnce(std::vector<Range>& ranges, uint64_t elements, uint64_t& end);
  // Checks that all units have been reduced; starts anew.
  void EndPeriod();
  // Checks that all sums over the shard axis were also summed over the replica axis; starts anew.
  void EndCrossing();

  const Program& program_;
  Violations& violations_;
  const bool wanted_;  // there is more than one rank
  std::vector<UnitState> units_;
  std::vector<std::vector<Range>> reduced_bytes_;  // by buffer
  std::vector<BufferId> touched_;                  // buffers with reduced_bytes_
  std::vector<Quantized> quantized_;               // by buffer of blocks
};

// ---- the order in which an engine issues a program ----

// Receives the unrolled program.
class UnrollVisitor {
 public:
  virtual ~UnrollVisitor() = default;
  virtual void Run(const Instruction& instruction, Site site) = 0;
  // `kind`: the micro-step's.
  virtual void EndSection(Section section, uint8_t kind) = 0;
  virtual void EndStep() = 0;
  // The engine waits for all streams.
  virtual void Synchronize() = 0;
};

// Visits init; two optimizer steps; drain, then each of eval, generate, save and load that exists,
// and a step after each; drain. The engine synchronises after init and around the sections in
// between, whose results it returns to its caller, and nowhere else.
void Unroll(const Program& program, UnrollVisitor& visitor);

}  // namespace zeroplan
