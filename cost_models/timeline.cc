#include "cost_models/timeline.h"

#include <algorithm>
#include <limits>

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr size_t kCompute = static_cast<size_t>(Stream::kCompute);
constexpr size_t kGather = static_cast<size_t>(Stream::kGather);
constexpr size_t kReduce = static_cast<size_t>(Stream::kReduce);
constexpr size_t kUp = static_cast<size_t>(Stream::kHostToDevice);
constexpr size_t kDown = static_cast<size_t>(Stream::kDeviceToHost);
constexpr size_t kHostLane = static_cast<size_t>(Stream::kHost);

}  // namespace

SectionTime& SectionTime::operator+=(const SectionTime& other) {
  total_seconds += other.total_seconds;
  compute_seconds += other.compute_seconds;
  optimizer_seconds += other.optimizer_seconds;
  for (size_t s = 0; s < kStreams; ++s) {
    exposed_seconds[s] += other.exposed_seconds[s];
    busy_seconds[s] += other.busy_seconds[s];
  }
  return *this;
}

SectionTime SectionTime::operator*(double times) const {
  SectionTime result = *this;
  result.total_seconds *= times;
  result.compute_seconds *= times;
  result.optimizer_seconds *= times;
  for (size_t s = 0; s < kStreams; ++s) {
    result.exposed_seconds[s] *= times;
    result.busy_seconds[s] *= times;
  }
  return result;
}

void Timeline::Load(const Program& program, Section section, uint8_t kinds,
                    std::span<const double> seconds) {
  for (Lane& lane : lanes_) {
    lane.queue.clear();
    lane.next = 0;
    lane.running = false;
  }
  now_ = 0;
  signalled_.assign(program.event_count, 1);
  recorded_by_.assign(program.event_count, kStreams);
  const std::vector<Instruction>& list = program.section(section);
  for (uint32_t i = 0; i < list.size(); ++i) {
    const Instruction& instruction = list[i];
    if (section == Section::kMicroStep && (instruction.when & kinds) == 0) continue;
    const bool queued = std::visit(
        Overload{[&](const RecordEvent& record) {
                   signalled_[record.event] = 0;
                   recorded_by_[record.event] = static_cast<uint8_t>(instruction.stream);
                   return true;
                 },
                 [](const WaitEvent&) { return true; }, [](const Alloc&) { return false; },
                 [](const Free&) { return false; }, [&](const LaunchKernel&) { return true; },
                 [&](const Collective&) { return true; }, [&](const Copy&) { return true; },
                 [&](const FileIo&) { return true; }},
        instruction.op);
    if (queued) lanes_[static_cast<size_t>(instruction.stream)].queue.push_back(i);
  }
  ZEROPLAN_CHECK(seconds.size() == list.size());
}

void Timeline::Advance(std::span<const Instruction> list, std::span<const double> seconds) {
  for (bool changed = true; changed;) {
    changed = false;
    for (Lane& lane : lanes_) {
      while (!lane.running && lane.next < lane.queue.size()) {
        const uint32_t index = lane.queue[lane.next];
        const Op& op = list[index].op;
        if (const auto* wait = std::get_if<WaitEvent>(&op)) {
          lane.waits_for = wait->event;
          if (!signalled_[wait->event]) break;
          ++lane.next;
        } else if (const auto* record = std::get_if<RecordEvent>(&op)) {
          signalled_[record->event] = 1;
          ++lane.next;
          changed = true;  // a lane before this one may have waited for it
        } else {
          const Stream stream = list[index].stream;
          lane.running = true;
          lane.left_seconds = seconds[index];
          lane.begin_seconds = now_;
          lane.resource = std::holds_alternative<Collective>(op) ? Resource::kCollective
                          : std::holds_alternative<FileIo>(op)   ? Resource::kDisk
                          : stream == Stream::kHost              ? Resource::kHost
                          : stream == Stream::kHostToDevice      ? Resource::kToDevice
                          : stream == Stream::kDeviceToHost      ? Resource::kFromDevice
                                                                 : Resource::kKernel;
        }
      }
    }
  }
}

void Timeline::SetRates(const OverlapRates& rates) {
  auto runs = [&](size_t lane, Resource resource) {
    return lanes_[lane].running && lanes_[lane].resource == resource;
  };
  const bool gather = runs(kGather, Resource::kCollective);
  const bool reduce = runs(kReduce, Resource::kCollective);
  const bool up = runs(kUp, Resource::kToDevice), down = runs(kDown, Resource::kFromDevice);
  const bool host = runs(kHostLane, Resource::kHost), compute = lanes_[kCompute].running;
  for (Lane& lane : lanes_) {
    lane.rate = 1;
    if (!lane.running) continue;
    switch (lane.resource) {
      case Resource::kKernel:
        if (gather || reduce) lane.rate = rates.compute_beside_collective;
        break;
      case Resource::kCollective:
        if (compute) lane.rate = rates.collective_beside_compute;
        if (gather && reduce) lane.rate *= rates.two_collectives;
        break;
      case Resource::kToDevice:
      case Resource::kFromDevice:
        if (up && down) lane.rate = rates.pcie_both;
        if (host) lane.rate *= rates.copy_beside_host;
        break;
      case Resource::kHost:
        if (up || down) lane.rate = rates.host_beside_copy;
        break;
      case Resource::kDisk:
        break;
    }
  }
}

Stream Timeline::Blocker() const {
  // A chain of waits visits a stream once at most, else the section would never end.
  size_t lane = kCompute;
  for (int hops = 0; hops <= kStreams && !lanes_[lane].running; ++hops) {
    if (lanes_[lane].done()) break;
    const uint8_t recorder = recorded_by_[lanes_[lane].waits_for];
    if (recorder == kStreams) break;
    lane = recorder;
  }
  if (lanes_[lane].running) return static_cast<Stream>(lane);
  for (size_t s = 0; s < kStreams; ++s) {
    if (lanes_[s].running) return static_cast<Stream>(s);
  }
  return Stream::kCompute;
}

void Timeline::Account(std::span<const Instruction> list, double dt, SectionTime& time) const {
  for (size_t s = 0; s < kStreams; ++s) {
    if (lanes_[s].running) time.busy_seconds[s] += dt;
  }
  const Lane& compute = lanes_[kCompute];
  if (!compute.running) {
    time.exposed_seconds[static_cast<size_t>(Blocker())] += dt;
    return;
  }
  const bool step = list[compute.queue[compute.next]].phase == Phase::kStep;
  (step ? time.optimizer_seconds : time.compute_seconds) += dt * compute.rate;
  const size_t slower = lanes_[kReduce].running && lanes_[kReduce].resource == Resource::kCollective
                            ? kReduce
                            : kGather;
  time.exposed_seconds[slower] += dt * (1 - compute.rate);
}

SectionTime Timeline::Play(const Program& program, Section section, uint8_t kinds,
                           std::span<const double> seconds, const OverlapRates& rates,
                           std::vector<PlayedSpan>* spans) {
  const std::vector<Instruction>& list = program.section(section);
  Load(program, section, kinds, seconds);
  SectionTime time;
  for (;;) {
    Advance(list, seconds);
    SetRates(rates);
    double dt = std::numeric_limits<double>::infinity();
    for (const Lane& lane : lanes_) {
      if (lane.running) dt = std::min(dt, lane.left_seconds / lane.rate);
    }
    if (dt == std::numeric_limits<double>::infinity()) break;
    Account(list, dt, time);
    now_ += dt;
    for (Lane& lane : lanes_) {
      if (!lane.running) continue;
      lane.left_seconds -= dt * lane.rate;
      // The lane that set dt is over; others within rounding of it are too.
      if (lane.left_seconds > 1e-12 * now_) continue;
      lane.running = false;
      const uint32_t index = lane.queue[lane.next++];
      if (spans != nullptr) spans->push_back({index, lane.begin_seconds, now_});
    }
  }
  for (const Lane& lane : lanes_) {
    ZEROPLAN_CHECK(lane.done(), "a {} stream waits for event {} for ever", SectionName(section),
                   lane.waits_for);
  }
  time.total_seconds = now_;
  return time;
}

}  // namespace zeroplan
