#include "cost_models/memory_walk.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/program/collectives.h"
#include "core/program/replay.h"
#include "core/program/step_order.h"

namespace zeroplan {

OutsideArenas OutsideArenasOf(const Program& program) {
  OutsideArenas outside;
  outside.communicators = static_cast<int>(CommunicatorsOf(program).size());
  const RankAxes axes = program.axes();
  for (const CommunicatorKey& key : ExchangingCommunicators(program)) {
    outside.exchanges.push_back({axes.Size(key.axis), axes.Apart(key.axis)});
  }
  if (program.backend != Backend::kCuda) return outside;
  const ReplayCount replayed = CountReplayed(program);
  outside.graph_bytes = static_cast<uint64_t>(replayed.graphs) * kGraphBytes +
                        static_cast<uint64_t>(replayed.nodes) * kGraphNodeBytes;
  return outside;
}

namespace {

// One Alloc (free == false) or Free, in the order of the walk.
struct LifeEvent {
  BufferId buffer;
  bool free;
};

class Walker {
 public:
  Walker(const Program& program, const LiveObserver& observe)
      : program_(program), observe_(observe), live_(program.buffers.size(), 0) {
    events_.reserve(2 * program.buffers.size());
  }

  MemoryReport Walk() {
    for (const SectionRun& run : WalkOrder(program_)) {
      const std::vector<Instruction>& list = program_.section(run.section);
      std::optional<Phase> phase;
      for (size_t i = 0; i < list.size(); ++i) {
        if (!RunsIn(list[i], run.section, run.kinds)) continue;
        Visit(list[i]);
        if (!observe_) continue;
        if (phase == list[i].phase && !ChangesDevice(list[i])) continue;
        phase = list[i].phase;
        observe_({run.section, run.kinds, static_cast<uint32_t>(i), *phase, live_classes_});
      }
    }
    report_.arena_bytes = program_.arena_bytes;
    report_.outside = OutsideArenasOf(program_);
    const uint64_t device_peak = report_.live_peak_bytes[static_cast<size_t>(Space::kDevice)];
    const uint64_t arena = report_.arena(Space::kDevice);
    ZEROPLAN_CHECK(arena >= device_peak, "device arena of {} bytes holds {} live", arena,
                   device_peak);
    report_.gap_bytes = arena - device_peak;
    report_.class_bytes[static_cast<size_t>(MemoryClass::kBuffers)] += report_.gap_bytes;
    FindCulprits();
    return std::move(report_);
  }

 private:
  void Visit(const Instruction& instruction) {
    const bool changes = std::visit(
        Overload{[&](const Alloc& alloc) { return Begin(alloc.buffer), true; },
                 [&](const Free& free) { return End(free.buffer), true; },
                 [](const LaunchKernel&) { return false; }, [](const Collective&) { return false; },
                 [](const Copy&) { return false; }, [](const FileIo&) { return false; },
                 [](const RecordEvent&) { return false; }, [](const WaitEvent&) { return false; }},
        instruction.op);
    // As much is live as before, in the same phase.
    if (!changes && instruction.phase == last_phase_) return;
    last_phase_ = instruction.phase;
    auto& peak = report_.phases[static_cast<size_t>(instruction.phase)];
    const uint64_t live = live_bytes_[static_cast<size_t>(Space::kDevice)];
    if (live > peak.bytes) {
      peak.bytes = live;
      peak_at_[static_cast<size_t>(instruction.phase)] = events_.size();
    }
  }

  bool ChangesDevice(const Instruction& instruction) const {
    BufferId id = kNoBuffer;
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) id = alloc->buffer;
    if (const auto* free = std::get_if<Free>(&instruction.op)) id = free->buffer;
    return id != kNoBuffer && program_.buffers[id].space == Space::kDevice;
  }

  void Begin(BufferId id) {
    const Buffer& buffer = program_.buffers[id];
    ZEROPLAN_CHECK(live_[id] == 0, "{} is allocated twice", BufferName(buffer));
    live_[id] = 1;
    events_.push_back({id, false});
    const auto space = static_cast<size_t>(buffer.space);
    live_bytes_[space] += buffer.bytes;
    if (buffer.space == Space::kDevice) {
      live_classes_[static_cast<size_t>(buffer.memory_class)] += buffer.bytes;
    }
    if (live_bytes_[space] > report_.live_peak_bytes[space]) {
      report_.live_peak_bytes[space] = live_bytes_[space];
      if (buffer.space == Space::kDevice) report_.class_bytes = live_classes_;
    }
  }

  void End(BufferId id) {
    const Buffer& buffer = program_.buffers[id];
    ZEROPLAN_CHECK(live_[id] == 1, "{} is freed while not live", BufferName(buffer));
    live_[id] = 0;
    events_.push_back({id, true});
    live_bytes_[static_cast<size_t>(buffer.space)] -= buffer.bytes;
    if (buffer.space == Space::kDevice) {
      live_classes_[static_cast<size_t>(buffer.memory_class)] -= buffer.bytes;
    }
  }

  // Live bytes per label change with every event; they are copied where a phase has its peak.
  void FindCulprits() {
    std::vector<Culprit> labels;
    std::vector<const char*> seen;  // labels are static strings: most compare equal by address
    std::vector<uint32_t> label_of(program_.buffers.size());
    // Where a label was found last: there are few, and thousands of buffers.
    std::array<std::pair<const char*, uint32_t>, 64> known{};
    for (BufferId id = 0; id < program_.buffers.size(); ++id) {
      const char* text = program_.buffers[id].label;
      const auto address = reinterpret_cast<uintptr_t>(text);
      auto& last = known[(address ^ (address >> 6)) % known.size()];
      if (last.first == text) {
        label_of[id] = last.second;
        continue;
      }
      auto found = std::find(seen.begin(), seen.end(), text);
      if (found == seen.end()) {
        seen.push_back(text);
        labels.push_back({text});
        found = seen.end() - 1;
      }
      label_of[id] = static_cast<uint32_t>(found - seen.begin());
      last = {text, label_of[id]};
    }
    std::array<size_t, kPhases> by_time{};
    for (size_t phase = 0; phase < by_time.size(); ++phase) by_time[phase] = phase;
    std::sort(by_time.begin(), by_time.end(),
              [&](size_t a, size_t b) { return peak_at_[a] < peak_at_[b]; });
    size_t at = 0;  // events that are counted
    for (const size_t phase : by_time) {
      if (report_.phases[phase].bytes == 0) continue;
      for (; at < peak_at_[phase]; ++at) {
        const LifeEvent& event = events_[at];
        const Buffer& buffer = program_.buffers[event.buffer];
        if (buffer.space != Space::kDevice) continue;
        Culprit& culprit = labels[label_of[event.buffer]];
        culprit.bytes += event.free ? -buffer.bytes : buffer.bytes;
        culprit.count += event.free ? -1 : 1;
      }
      report_.phases[phase].culprits = Largest(labels);
    }
  }

  static std::vector<Culprit> Largest(std::vector<Culprit> labels) {
    // The same text may have several addresses (one a translation unit): merge by text.
    std::sort(labels.begin(), labels.end(),
              [](const Culprit& a, const Culprit& b) { return a.label < b.label; });
    std::vector<Culprit> merged;
    for (Culprit& culprit : labels) {
      if (culprit.bytes == 0) continue;
      if (!merged.empty() && merged.back().label == culprit.label) {
        merged.back().bytes += culprit.bytes;
        merged.back().count += culprit.count;
      } else {
        merged.push_back(std::move(culprit));
      }
    }
    std::stable_sort(merged.begin(), merged.end(),
                     [](const Culprit& a, const Culprit& b) { return a.bytes > b.bytes; });
    if (merged.size() > kMaxCulprits) merged.resize(kMaxCulprits);
    return merged;
  }

  const Program& program_;
  const LiveObserver& observe_;
  MemoryReport report_;
  std::vector<uint8_t> live_;
  std::vector<LifeEvent> events_;
  std::array<uint64_t, kSpaces> live_bytes_{};
  std::array<uint64_t, kMemoryClasses> live_classes_{};
  std::array<size_t, kPhases> peak_at_{};  // events before the phase's peak
  std::optional<Phase> last_phase_;        // of the instruction before
};

}  // namespace

std::string CulpritName(const Culprit& culprit) {
  return culprit.count == 1 ? culprit.label : fmt::format("{} x{}", culprit.label, culprit.count);
}

MemoryReport WalkMemory(const Program& program, const LiveObserver& observe) {
  return Walker(program, observe).Walk();
}

}  // namespace zeroplan
