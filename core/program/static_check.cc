#include "core/program/static_check.h"

#include <fmt/format.h>

#include "core/base/units.h"
#include "core/program/program.h"
#include "core/program/step_order.h"

namespace zeroplan {

namespace {
constexpr int64_t kContextLines = 5;  // shown before and after the offending one
}  // namespace

void Violations::Add(std::string_view rule, Site site, std::string_view what) {
  // `rule` is always a literal, so that its view may be kept.
  if (full() || !seen_.insert({rule, site.section, site.index}).second) return;
  std::string text = fmt::format("{}: {}\n", rule, what);
  text += FormatLines(program_, site.section, site.index - kContextLines,
                      site.index + kContextLines + 1, site.index);
  found_.push_back({std::string(rule), site.section, site.index, std::move(text)});
}

std::string FormatSite(const Program& program, Site site) {
  const std::vector<Instruction>& list = program.section(site.section);
  return fmt::format("{} line {}: {}", SectionName(site.section), site.index,
                     FormatInstruction(program, list[static_cast<size_t>(site.index)]));
}

namespace {

constexpr uint64_t kBufferAlign = 128;
constexpr uint64_t kFileAlign = 4096;

class FormCheck {
 public:
  explicit FormCheck(const Program& program) : program_(program) {}

  // What is wrong with the operation, or "".
  std::string operator()(const LaunchKernel& launch) const {
    if (!KernelExists(launch.kernel)) return "no such kernel";
    const KernelRow& row = KernelInfo(launch.kernel);
    if (launch.arg_count > row.args.size()) return "too many arguments";
    if (!Within(launch.first_arg, launch.arg_count, program_.refs.size())) return "no such refs";
    for (int i = 0; i < launch.arg_count; ++i) {
      const Ref& ref = program_.refs[launch.first_arg + static_cast<size_t>(i)];
      if (!ref.null() && !Known(ref)) return fmt::format("argument {} names no buffer", i);
    }
    return "";
  }
  std::string operator()(const Collective& collective) const {
    if (!Within(collective.first_segment, collective.segment_count, program_.segments.size())) {
      return "no such segments";
    }
    if (static_cast<int>(collective.axis) >= kAxes) return "no such axis";
    if (program_.axes().Named(collective.axis) != collective.axis) {
      return fmt::format("the axis {} has all ranks", RankAxisName(collective.axis));
    }
    for (const Segment& segment : program_.segs(collective)) {
      if (!Known(segment.src) || !Known(segment.dst)) return "a segment names no buffer";
      const bool by_unit = collective.kind == CollectiveKind::kReduceToOwners;
      if (by_unit && !KnownUnit(segment.unit)) return "a segment names no unit";
    }
    return "";
  }
  std::string operator()(const Copy& copy) const {
    return Known(copy.src) && Known(copy.dst) ? "" : "source or destination names no buffer";
  }
  std::string operator()(const FileIo& io) const {
    if (!Known(io.host)) return "the host range names no buffer";
    if (io.target == FileTarget::kSwap) return Known(io.file) ? "" : "the file range is missing";
    if (!io.file.null()) return "a checkpoint has no range in the file arena";
    return KnownUnit(io.unit) ? "" : "no such unit";
  }
  std::string operator()(const Alloc& alloc) const { return Buffer(alloc.buffer); }
  std::string operator()(const Free& free) const { return Buffer(free.buffer); }
  std::string operator()(const RecordEvent& record) const { return Event(record.event); }
  std::string operator()(const WaitEvent& wait) const { return Event(wait.event); }

 private:
  static bool Within(uint64_t first, uint64_t count, uint64_t size) {
    return first <= size && count <= size - first;
  }
  bool Known(const Ref& ref) const { return ref.buffer < program_.buffers.size(); }
  bool KnownUnit(int32_t unit) const {
    return unit >= 0 && static_cast<size_t>(unit) < program_.layout.units.size();
  }
  std::string Buffer(BufferId id) const {
    return id < program_.buffers.size() ? "" : fmt::format("no buffer {}", id);
  }
  std::string Event(EventId id) const {
    return id < program_.event_count ? "" : fmt::format("no event {}", id);
  }
  const Program& program_;
};

}  // namespace

bool CheckWellFormed(const Program& program, Violations& violations) {
  const int ranks = program.setup.batch.world_size;
  const uint64_t shards = program.layout.shards;
  if (shards == 0 || static_cast<uint64_t>(ranks) % shards != 0) {
    violations.Add("malformed", {},
                   fmt::format("{} ranks do not divide into {} shards", ranks, shards));
    return false;
  }
  bool well_formed = true;
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    std::string what = std::visit(FormCheck(program), instruction.op);
    if (what.empty() && (instruction.when & kEvery) == 0) what = "it never runs";
    if (what.empty()) return;
    well_formed = false;
    violations.Add("malformed", site, what);
  });
  return well_formed;
}

void CheckBuffers(const Program& program, Violations& violations) {
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    const Alloc* alloc = std::get_if<Alloc>(&instruction.op);
    if (alloc == nullptr) return;
    const Buffer& buffer = program.buffers[alloc->buffer];
    const auto space = static_cast<size_t>(buffer.space);
    const uint64_t limit =
        buffer.persistent ? program.persistent_bytes[space] : program.arena_bytes[space];
    if (buffer.offset > limit || buffer.bytes > limit - buffer.offset) {
      violations.Add("out_of_bounds", site,
                     fmt::format("{} ends at {}, beyond the {} of {} bytes", BufferName(buffer),
                                 buffer.offset + buffer.bytes,
                                 buffer.persistent ? "persistent region" : "arena", limit));
    }
    const uint64_t align = buffer.space == Space::kFile ? kFileAlign : kBufferAlign;
    if (buffer.offset % align != 0) {
      violations.Add("misaligned", site,
                     fmt::format("{} lies at {}, not a multiple of {}", BufferName(buffer),
                                 buffer.offset, align));
    }
  });
}

void CheckSaveCopies(const Program& program, Violations& violations) {
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    if (site.section == Section::kSave || std::holds_alternative<Alloc>(instruction.op)) return;
    ForEachAccess(program, instruction, [&](const Ref& ref, ArgMode) {
      const Buffer& buffer = program.buffers[ref.buffer];
      if (!IsSaveCopy(buffer)) return;
      violations.Add("save_copy", site,
                     fmt::format("a save may be written from {} meanwhile", BufferName(buffer)));
    });
  });
}

void CheckEvents(const Program& program, Violations& violations) {
  std::vector<bool> recorded(program.event_count, false);
  const uint8_t kinds = MicroStepKinds(program.setup.batch.grad_accum);
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    const RecordEvent* record = std::get_if<RecordEvent>(&instruction.op);
    if (record != nullptr && RunsIn(instruction, site.section, kinds))
      recorded[record->event] = true;
  });
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    const WaitEvent* wait = std::get_if<WaitEvent>(&instruction.op);
    if (wait == nullptr || !RunsIn(instruction, site.section, kinds) || recorded[wait->event])
      return;
    violations.Add("wait_without_record", site,
                   fmt::format("nothing ever records event {}", wait->event));
  });
}

namespace {

// What is wrong with a unit, or "".
std::string UnitFault(const ParamLayout& layout, size_t index) {
  const Unit& unit = layout.units[index];
  if (unit.shard_elements * layout.shards != unit.padded_elements ||
      unit.padded_elements < unit.elements) {
    return fmt::format("{} shards of {} elements do not cover its {} elements, padded {}",
                       layout.shards, unit.shard_elements, unit.elements, unit.padded_elements);
  }
  if (unit.shard_elements % kShardAlignElements != 0) {
    return fmt::format("shards of {} elements are not aligned", unit.shard_elements);
  }
  uint64_t end = 0, sum = 0;
  for (size_t s = 0; s < unit.slots.size(); ++s) {
    const TensorSlot& slot = unit.slots[s];
    if (slot.tensor < 0 || static_cast<size_t>(slot.tensor) >= layout.place.size()) {
      return fmt::format("slot {} holds no tensor of the table", s);
    }
    if (slot.offset < end || slot.offset % kShardAlignElements != 0) {
      return fmt::format("slot {} at {} overlaps the one before or is not aligned", s, slot.offset);
    }
    const ParamLayout::Place& place = layout.place[static_cast<size_t>(slot.tensor)];
    if (place.unit != static_cast<int>(index) || place.slot != static_cast<int>(s)) {
      return fmt::format("tensor {} is also said to lie in unit {} slot {}", slot.tensor,
                         place.unit, place.slot);
    }
    end = slot.offset + slot.elements;
    sum += slot.elements;
  }
  if (end != unit.elements || sum != unit.param_elements) {
    return fmt::format("its tensors end at {} and have {} elements, not {} and {}", end, sum,
                       unit.elements, unit.param_elements);
  }
  return "";
}

}  // namespace

void CheckLayout(const Program& program, Violations& violations) {
  const ParamLayout& layout = program.layout;
  size_t slots = 0;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    slots += layout.units[u].slots.size();
    const std::string fault = UnitFault(layout, u);
    if (!fault.empty()) violations.Add("shard_cover", {}, fmt::format("unit {}: {}", u, fault));
  }
  if (slots != layout.place.size()) {
    violations.Add("shard_cover", {},
                   fmt::format("units hold {} tensors of {}", slots, layout.place.size()));
  }
}

}  // namespace zeroplan
