// The part of Verify that follows memory through the unrolled program, for one rank: buffers are
// allocated before, and freed after, every use; uses that conflict are ordered; arenas are not
// shared.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/program/byte_ranges.h"
#include "core/program/happens_before.h"
#include "core/program/program.h"
#include "core/program/violations.h"

namespace zeroplan {

class MemoryCheck {
 public:
  // Keeps all three references. `order` has issued each instruction before it is given to Run().
  MemoryCheck(const Program& program, int rank, const HappensBefore& order, Violations& violations);

  void Run(const Instruction& instruction, Moment moment, Site site);
  // Transient buffers may not outlive the section that allocated them, but for those that a
  // micro-step `leaves` to the next one.
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

}  // namespace zeroplan
