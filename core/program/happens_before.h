// Which instruction surely ran before which: vector clocks, one component a stream.
//
// Instructions are issued in list order. Each stream runs its own in that order; between streams
// only events order them, so two instructions on different streams may run in either order or at
// once unless a chain of RecordEvent and WaitEvent lies between (Mattern 1989; Fidge 1988).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// An issued instruction: the `time`-th on its stream, counted from 1.
struct Moment {
  Stream stream = Stream::kCompute;
  uint32_t time = 0;
};

class HappensBefore {
 public:
  explicit HappensBefore(EventId event_count) : events_(event_count) {}

  Moment Issue(Stream stream) { return {stream, ++clock(stream)[static_cast<size_t>(stream)]}; }

  // All that `stream` was issued (and waited for) so far comes before what waits for `event`.
  void Record(EventId event, Stream stream) { events_[event] = clock(stream); }

  // Waits for the latest record issued so far. An event that has none yet is signalled: nothing to
  // wait for, and no order gained.
  void Wait(EventId event, Stream stream) { Join(clock(stream), events_[event]); }

  // The host waits for all streams before it issues more.
  void Synchronize() {
    Clock all{};
    for (const Clock& clock : streams_) Join(all, clock);
    streams_.fill(all);
  }

  // Whether `earlier` surely ended before what `stream` was issued last begins.
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

}  // namespace zeroplan
