#include "planner/played_section.h"

#include <algorithm>

namespace zeroplan {
namespace {

// Finds out which instruction a wait that ended at some time was for.
class WaitResolver {
 public:
  WaitResolver(const Program& program, const PlayedSection& played)
      : list_(program.section(played.section)),
        total_(played.time.total_seconds),
        span_of_(list_.size(), -1),
        record_of_(program.event_count, -1) {
    for (size_t s = 0; s < played.spans.size(); ++s) {
      span_of_[played.spans[s].index] = static_cast<int64_t>(s);
    }
    for (size_t i = 0; i < list_.size(); ++i) {
      if (played.section == Section::kMicroStep && (list_[i].when & played.kinds) == 0) continue;
      queues_[static_cast<size_t>(list_[i].stream)].push_back(i);
      if (const auto* record = std::get_if<RecordEvent>(&list_[i].op)) {
        record_of_[record->event] = static_cast<int64_t>(i);
      }
    }
    spans_ = &played.spans;
  }

  const std::vector<size_t>& queue(Stream stream) const {
    return queues_[static_cast<size_t>(stream)];
  }
  const PlayedSpan* SpanOf(size_t index) const {
    return span_of_[index] < 0 ? nullptr : &(*spans_)[static_cast<size_t>(span_of_[index])];
  }

  // What ended at `time` and held back queue position `at` of `stream`, directly or through the
  // streams it waited for.
  int64_t Resolve(Stream stream, size_t at, double time, int hops = 0) const {
    const std::vector<size_t>& queue = queues_[static_cast<size_t>(stream)];
    // Back over the waits in front of it.
    for (size_t q = at; q-- > 0;) {
      const PlayedSpan* span = SpanOf(queue[q]);
      if (span != nullptr) {
        if (hops > 0 && Near(span->end_seconds, time)) return span->index;
        break;
      }
      const auto* wait = std::get_if<WaitEvent>(&list_[queue[q]].op);
      if (wait == nullptr || record_of_[wait->event] < 0 || hops > kStreams) continue;
      const auto record = static_cast<size_t>(record_of_[wait->event]);
      const Stream recorder = list_[record].stream;
      const std::vector<size_t>& theirs = queues_[static_cast<size_t>(recorder)];
      const auto position = std::lower_bound(theirs.begin(), theirs.end(), record);
      const int64_t found =
          Resolve(recorder, static_cast<size_t>(position - theirs.begin()), time, hops + 1);
      if (found >= 0) return found;
    }
    return -1;
  }

  // Whatever ended at `time` off the compute stream.
  int64_t EndedAt(double time) const {
    for (const PlayedSpan& span : *spans_) {
      if (Near(span.end_seconds, time) && list_[span.index].stream != Stream::kCompute) {
        return span.index;
      }
    }
    return -1;
  }
  bool Near(double a, double b) const { return std::abs(a - b) <= 1e-9 * total_; }

 private:
  const std::vector<Instruction>& list_;
  double total_;
  const std::vector<PlayedSpan>* spans_ = nullptr;
  std::vector<int64_t> span_of_;    // by instruction
  std::vector<int64_t> record_of_;  // by event
  std::array<std::vector<size_t>, kStreams> queues_;
};

}  // namespace

PlayedSection PlaySection(const Program& program, Section section, uint8_t kinds,
                          const CostModel& costs) {
  PlayedSection played;
  played.section = section;
  played.kinds = kinds;
  for (const Instruction& instruction : program.section(section)) {
    played.seconds.push_back(costs.Seconds(program, instruction));
  }
  played.time =
      Timeline().Play(program, section, kinds, played.seconds, costs.overlap(), &played.spans);
  return played;
}

std::vector<ComputeWait> ComputeWaits(const Program& program, const PlayedSection& played) {
  const WaitResolver resolver(program, played);
  const std::vector<size_t>& queue = resolver.queue(Stream::kCompute);
  std::vector<ComputeWait> waits;
  double idle_since = 0;
  for (size_t q = 0; q < queue.size(); ++q) {
    const PlayedSpan* span = resolver.SpanOf(queue[q]);
    if (span == nullptr) continue;
    if (!resolver.Near(span->begin_seconds, idle_since)) {
      int64_t waited_for = resolver.Resolve(Stream::kCompute, q, span->begin_seconds);
      if (waited_for < 0) waited_for = resolver.EndedAt(span->begin_seconds);
      waits.push_back({span->begin_seconds - idle_since, waited_for});
    }
    idle_since = span->end_seconds;
  }
  const double end = played.time.total_seconds;
  if (!resolver.Near(end, idle_since)) waits.push_back({end - idle_since, resolver.EndedAt(end)});
  return waits;
}

}  // namespace zeroplan
