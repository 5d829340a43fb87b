#include "planner/explain/compute_waits.h"

#include <algorithm>

#include "core/program/step_order.h"

namespace zeroplan {
namespace {

// Finds out which instruction a wait that ended at some time was for.
class WaitResolver {
 public:
  WaitResolver(const Program& program, const PlayedPart& played)
      : program_(program),
        section_(played.section),
        list_(program.section(played.section)),
        // A step's first micro-step finds what an update left, the others what one of them did.
        carried_from_((played.kinds & kTakesFromMicroStep) != 0 ? Section::kMicroStep
                                                                : Section::kOptimizerStep),
        total_(played.time.total_seconds),
        span_of_(list_.size() + program.section(carried_from_).size(), -1),
        record_of_(program.event_count, -1) {
    for (size_t s = 0; s < played.spans.size(); ++s) {
      span_of_[Id(played.spans[s])] = static_cast<int64_t>(s);
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

  // What an instruction is called here: its index, or past the section's if it was carried in.
  size_t Id(const PlayedSpan& span) const { return span.index + (span.carried ? list_.size() : 0); }
  Stream StreamOf(const PlayedSpan& span) const {
    return program_.section(span.section)[span.index].stream;
  }
  ComputeWait Wait(double seconds, int64_t id) const {
    const auto own = static_cast<int64_t>(list_.size());
    if (id < own) return {seconds, id, section_};
    return {seconds, id - own, carried_from_};
  }

  const std::vector<size_t>& queue(Stream stream) const {
    return queues_[static_cast<size_t>(stream)];
  }
  const PlayedSpan* SpanOf(size_t index) const {
    return span_of_[index] < 0 ? nullptr : &(*spans_)[static_cast<size_t>(span_of_[index])];
  }

  // What ended at `time` and held back queue position `at` of `stream`: through the waits in front
  // of it, or, from the second hop on, as the instruction before it.
  int64_t Resolve(Stream stream, size_t at, double time, int hops = 0) const {
    const std::vector<size_t>& queue = queues_[static_cast<size_t>(stream)];
    for (size_t q = at; q-- > 0;) {
      const PlayedSpan* span = SpanOf(queue[q]);
      if (span != nullptr) {
        if (hops > 0 && Near(span->end_seconds, time)) return span->index;
        break;
      }
      const auto* wait = std::get_if<WaitEvent>(&list_[queue[q]].op);
      if (wait == nullptr || record_of_[wait->event] < 0 || hops > kStreams) continue;
      const auto record = static_cast<size_t>(record_of_[wait->event]);
      if (record > queue[q]) continue;  // for the record that was carried in
      const Stream recorder = list_[record].stream;
      const std::vector<size_t>& theirs = queues_[static_cast<size_t>(recorder)];
      const auto position = std::lower_bound(theirs.begin(), theirs.end(), record);
      const int64_t found =
          Resolve(recorder, static_cast<size_t>(position - theirs.begin()), time, hops + 1);
      if (found >= 0) return found;
    }
    return -1;
  }

  // What held back instruction `index` until `time`.
  int64_t Before(int64_t index, double time) const {
    if (index >= static_cast<int64_t>(list_.size())) return EndedAt(time);  // carried in
    const Stream stream = list_[static_cast<size_t>(index)].stream;
    const std::vector<size_t>& queue = queues_[static_cast<size_t>(stream)];
    const auto position = std::lower_bound(queue.begin(), queue.end(), static_cast<size_t>(index));
    return Resolve(stream, static_cast<size_t>(position - queue.begin()), time, 1);
  }

  // Whatever ended at `time` off the compute stream.
  int64_t EndedAt(double time) const {
    for (const PlayedSpan& span : *spans_) {
      if (Near(span.end_seconds, time) && StreamOf(span) != Stream::kCompute) {
        return static_cast<int64_t>(Id(span));
      }
    }
    return -1;
  }
  bool Near(double a, double b) const { return std::abs(a - b) <= 1e-9 * total_; }

 private:
  const Program& program_;
  const Section section_;
  const std::vector<Instruction>& list_;
  const Section carried_from_;
  double total_;
  const std::vector<PlayedSpan>* spans_ = nullptr;
  std::vector<int64_t> span_of_;    // by instruction
  std::vector<int64_t> record_of_;  // by event
  std::array<std::vector<size_t>, kStreams> queues_;
};

// Takes the wait from `begin` to `end` apart, `last` being what ended it.
void AddWait(const WaitResolver& resolver, double begin, double end, int64_t last,
             std::vector<ComputeWait>& waits) {
  const auto first = static_cast<std::ptrdiff_t>(waits.size());
  while (end > begin && !resolver.Near(begin, end)) {
    if (last < 0) last = resolver.EndedAt(end);
    if (last < 0) {
      waits.push_back(resolver.Wait(end - begin, -1));
      break;
    }
    const double since = std::max(begin, resolver.SpanOf(static_cast<size_t>(last))->begin_seconds);
    if (since >= end) {  // it takes no time: whatever else ended then
      waits.push_back(resolver.Wait(end - begin, last));
      break;
    }
    waits.push_back(resolver.Wait(end - since, last));
    last = resolver.Before(last, since);
    end = since;
  }
  std::reverse(waits.begin() + first, waits.end());
}

}  // namespace

std::vector<ComputeWait> ComputeWaits(const Program& program, const PlayedPart& played) {
  const WaitResolver resolver(program, played);
  const std::vector<size_t>& queue = resolver.queue(Stream::kCompute);
  std::vector<ComputeWait> waits;
  double idle_since = 0;
  for (size_t q = 0; q < queue.size(); ++q) {
    const PlayedSpan* span = resolver.SpanOf(queue[q]);
    if (span == nullptr) continue;
    if (!resolver.Near(span->begin_seconds, idle_since)) {
      AddWait(resolver, idle_since, span->begin_seconds,
              resolver.Resolve(Stream::kCompute, q, span->begin_seconds), waits);
    }
    idle_since = span->end_seconds;
  }
  const double end = played.time.total_seconds;
  AddWait(resolver, idle_since, end, -1, waits);
  return waits;
}

}  // namespace zeroplan
