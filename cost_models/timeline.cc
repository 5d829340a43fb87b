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

// Ranks of a shard group follow one another, and so do those that share sequences; those of a
// replica group are on all nodes.
PlayedResource LinksOf(const Program& program, RankAxis axis, const OverlapRates& rates) {
  const RankAxes axes = program.axes();
  const int in_a_row = axis == RankAxis::kReplica ? axes.ranks() : axes.Size(axis);
  const bool over_nodes = rates.ranks_per_node > 0 && in_a_row > rates.ranks_per_node;
  return over_nodes ? PlayedResource::kNetwork : PlayedResource::kNodeLinks;
}

// What a kernel or a copy shares with others.
PlayedResource OfStream(Stream stream) {
  return stream == Stream::kHost           ? PlayedResource::kHost
         : stream == Stream::kHostToDevice ? PlayedResource::kToDevice
         : stream == Stream::kDeviceToHost ? PlayedResource::kFromDevice
                                           : PlayedResource::kKernel;
}

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

void Timeline::Push(const Item& item, size_t lane) {
  if (item.kind == Item::Kind::kRecord) {
    ++issued_[item.event];
    recorded_by_[item.event] = static_cast<uint8_t>(lane);
  }
  lanes_[lane].queue.push_back(item);
}

void Timeline::Load(const Program& program, Section section, uint8_t kinds,
                    std::span<const double> seconds, const OverlapRates& rates,
                    const CarriedWork* before, std::span<const double> beside_collective) {
  for (Lane& lane : lanes_) {
    lane.queue.clear();
    lane.next = 0;
    lane.running = false;
  }
  now_ = 0;
  issued_.assign(program.event_count, 0);
  recorded_.assign(program.event_count, 0);
  recorded_by_.assign(program.event_count, kStreams);
  if (before != nullptr) {
    for (size_t s = 0; s < kStreams; ++s) {
      for (const Item& item : before->lanes[s]) Push(item, s);
    }
  }
  const std::vector<Instruction>& list = program.section(section);
  ZEROPLAN_CHECK(seconds.size() == list.size());
  ZEROPLAN_CHECK(beside_collective.empty() || beside_collective.size() == list.size());
  for (uint32_t i = 0; i < list.size(); ++i) {
    const Instruction& instruction = list[i];
    if (section == Section::kMicroStep && (instruction.when & kinds) == 0) continue;
    Item item{};
    item.index = i;
    item.section = section;
    item.kind = Item::Kind::kTimed;
    item.seconds = seconds[i];
    item.beside_collective =
        beside_collective.empty() ? rates.compute_beside_collective : beside_collective[i];
    item.step_phase = instruction.phase == Phase::kStep;
    const bool queued =
        std::visit(Overload{[&](const RecordEvent& record) {
                              item.kind = Item::Kind::kRecord;
                              item.event = record.event;
                              return true;
                            },
                            [&](const WaitEvent& wait) {
                              item.kind = Item::Kind::kWait;
                              item.event = wait.event;
                              item.records = issued_[wait.event];
                              return true;
                            },
                            [](const Alloc&) { return false; }, [](const Free&) { return false; },
                            [&](const LaunchKernel&) {
                              item.resource = OfStream(instruction.stream);
                              return true;
                            },
                            [&](const Collective& collective) {
                              item.resource = LinksOf(program, collective.axis, rates);
                              return true;
                            },
                            [&](const Copy&) {
                              item.resource = OfStream(instruction.stream);
                              return true;
                            },
                            [&](const FileIo&) {
                              item.resource = Resource::kDisk;
                              return true;
                            }},
                   instruction.op);
    if (queued) Push(item, static_cast<size_t>(instruction.stream));
  }
}

void Timeline::Advance() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Lane& lane : lanes_) {
      while (!lane.running && !lane.done()) {
        const Item& item = lane.item();
        if (item.kind == Item::Kind::kWait) {
          if (recorded_[item.event] < item.records) break;
          ++lane.next;
        } else if (item.kind == Item::Kind::kRecord) {
          ++recorded_[item.event];
          ++lane.next;
          changed = true;  // a lane before this one may have waited for it
        } else {
          lane.running = true;
          lane.left_seconds = item.seconds;
          lane.begin_seconds = item.under_way ? item.begin_seconds : now_;
        }
      }
    }
  }
}

void Timeline::SetRates(const OverlapRates& rates) {
  auto runs = [&](size_t lane, Resource resource) { return lanes_[lane].runs(resource); };
  const bool gather = lanes_[kGather].runs_collective();
  const bool reduce = lanes_[kReduce].runs_collective();
  const bool share =
      gather && reduce && lanes_[kGather].item().resource == lanes_[kReduce].item().resource;
  const bool up = runs(kUp, Resource::kToDevice), down = runs(kDown, Resource::kFromDevice);
  const bool host = runs(kHostLane, Resource::kHost), compute = lanes_[kCompute].running;
  for (Lane& lane : lanes_) {
    lane.rate = 1;
    if (!lane.running) continue;
    switch (lane.item().resource) {
      case Resource::kKernel:
        if (gather || reduce) lane.rate = lane.item().beside_collective;
        break;
      case Resource::kNodeLinks:
      case Resource::kNetwork:
        if (compute) lane.rate = rates.collective_beside_compute;
        if (share) lane.rate *= rates.two_collectives;
        break;
      case Resource::kToDevice:
      case Resource::kFromDevice:
        if (up && down) lane.rate = rates.pcie_both;
        // What the host reads for the GPU competes with its kernels; what the GPU writes does not.
        if (host && lane.item().resource == Resource::kToDevice) {
          lane.rate *= rates.copy_beside_host;
        }
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
    const uint8_t recorder = recorded_by_[lanes_[lane].item().event];
    if (recorder == kStreams) break;
    lane = recorder;
  }
  if (lanes_[lane].running) return static_cast<Stream>(lane);
  for (size_t s = 0; s < kStreams; ++s) {
    if (lanes_[s].running) return static_cast<Stream>(s);
  }
  return Stream::kCompute;
}

void Timeline::Account(double dt, SectionTime& time) const {
  for (size_t s = 0; s < kStreams; ++s) {
    if (lanes_[s].running) time.busy_seconds[s] += dt;
  }
  const Lane& compute = lanes_[kCompute];
  if (!compute.running) {
    time.exposed_seconds[static_cast<size_t>(Blocker())] += dt;
    return;
  }
  (compute.item().step_phase ? time.optimizer_seconds : time.compute_seconds) += dt * compute.rate;
  const size_t slower = lanes_[kReduce].runs_collective() ? kReduce : kGather;
  time.exposed_seconds[slower] += dt * (1 - compute.rate);
}

void Timeline::Leave(CarriedWork& after) const {
  after.Clear();
  for (size_t s = 0; s < kStreams; ++s) {
    const Lane& lane = lanes_[s];
    after.lanes[s].assign(lane.queue.begin() + static_cast<std::ptrdiff_t>(lane.next),
                          lane.queue.end());
    for (Item& item : after.lanes[s]) {
      item.carried = true;
      if (item.kind == Item::Kind::kWait) {
        item.records -= std::min(item.records, recorded_[item.event]);
      }
    }
    if (!lane.running) continue;
    Item& item = after.lanes[s].front();
    item.under_way = true;
    item.seconds = lane.left_seconds;
    item.begin_seconds = lane.begin_seconds - now_;
  }
}

SectionTime Timeline::Play(const Program& program, Section section, uint8_t kinds,
                           std::span<const double> seconds, const OverlapRates& rates,
                           std::vector<PlayedSpan>* spans, const CarriedWork* before,
                           CarriedWork* after, std::span<const double> beside_collective) {
  Load(program, section, kinds, seconds, rates, before, beside_collective);
  SectionTime time;
  for (;;) {
    Advance();
    if (after != nullptr && lanes_[kCompute].done()) break;
    SetRates(rates);
    double dt = std::numeric_limits<double>::infinity();
    for (const Lane& lane : lanes_) {
      if (lane.running) dt = std::min(dt, lane.left_seconds / lane.rate);
    }
    if (dt == std::numeric_limits<double>::infinity()) break;
    Account(dt, time);
    now_ += dt;
    for (Lane& lane : lanes_) {
      if (!lane.running) continue;
      lane.left_seconds -= dt * lane.rate;
      // The lane that set dt is over; others within rounding of it are too.
      if (lane.left_seconds > 1e-12 * now_) continue;
      lane.running = false;
      const Item& item = lane.queue[lane.next++];
      if (spans != nullptr) {
        spans->push_back({item.index, lane.begin_seconds, now_, item.section, item.carried});
      }
    }
  }
  if (after != nullptr) Leave(*after);
  for (const Lane& lane : lanes_) {
    const bool left = after != nullptr && lanes_[kCompute].done();
    ZEROPLAN_CHECK(left || lane.done(), "a {} stream waits for event {} for ever",
                   SectionName(section), lane.done() ? 0 : lane.item().event);
  }
  time.total_seconds = now_;
  return time;
}

}  // namespace zeroplan
