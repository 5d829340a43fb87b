#include "core/program/static_check.h"

#include <fmt/format.h>

#include "core/base/units.h"
#include "core/program/program.h"
#include "core/program/step_order.h"

namespace zeroplan {

namespace {
constexpr int64_t kContextLines = 5;  // shown before and after the offending one

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

// What is wrong with a unit, or "".
std::string UnitFault(const ParamLayout& layout, size_t index) {
  const Unit& unit = layout.units[index];
  if (unit.shard_elements * layout.shards != unit.padded_elements ||
      unit.padded_elements < unit.elements) {
    return fmt::format("{} shards of {} elements do not cover its {} elements, padded {}",
                       layout.shards, unit.shard_elements, unit.elements, unit.padded_elements);
  }
  if (unit.slices != layout.slices || unit.shard_elements % layout.slices != 0) {
    return fmt::format("{} slices are not a shard of {} elements, which says {}", layout.slices,
                       unit.shard_elements, unit.slices);
  }
  if (unit.owned_elements() % kShardAlignElements != 0) {
    return fmt::format("parts of {} elements are not aligned", unit.owned_elements());
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

// What one instruction may touch, and from which stream.

// Checks of one instruction; see CheckInstructions.
class InstructionCheck {
 public:
  InstructionCheck(const Program& program, Violations& violations, bool reaches,
                   const Instruction& instruction, Site site)
      : program_(program),
        axes_(program.axes()),
        violations_(violations),
        reaches_(reaches),
        stream_(instruction.stream),
        site_(site) {
    ForEachAccess(program, instruction, [&](const Ref& ref, ArgMode) { CheckRef(ref); });
  }

  void operator()(const LaunchKernel& launch) const {
    CheckStarts(launch);
    if (stream_ == Stream::kHostToDevice || stream_ == Stream::kDeviceToHost ||
        stream_ == Stream::kStorage || stream_ == Stream::kStorageWrite) {
      Add("stream_mismatch", "kernels run on compute, gather, reduce or host");
    }
    for (const Ref& ref : program_.args(launch)) {
      if (ref.null()) continue;
      const Space space = SpaceOf(ref);
      const bool fits = stream_ == Stream::kHost ? IsHost(space) : space == Space::kDevice;
      if (!fits) Add("wrong_space", "{} is out of its reach", Name(ref));
    }
  }

  void operator()(const Collective& collective) const {
    // One communicator, and so one order of issue on all ranks, each.
    if (stream_ != Stream::kGather && stream_ != Stream::kReduce) {
      Add("collective_order",
          "collectives belong on gather or reduce, which order them alike on "
          "all ranks");
    }
    for (const Segment& segment : program_.segs(collective)) {
      for (const Ref& ref : {segment.src, segment.dst}) {
        if (SpaceOf(ref) != Space::kDevice) {
          Add("wrong_space", "{} is not in device memory", Name(ref));
        }
        if (ref.bytes % DtypeBytes(collective.dtype) != 0) {
          Add("size_mismatch", "{} is not whole elements", Name(ref));
        }
      }
      CheckSegment(collective, segment);
    }
  }

  void operator()(const Copy& copy) const {
    if (copy.src.bytes != copy.dst.bytes) Add("size_mismatch", "a copy's two sizes are equal");
    const Space src = SpaceOf(copy.src), dst = SpaceOf(copy.dst);
    if (src == Space::kFile || dst == Space::kFile) {
      Add("wrong_space", "files are read and written by file_read and file_write");
      return;
    }
    bool fits = false;
    switch (stream_) {
      case Stream::kCompute:  // small inputs need not queue behind the copies of others
        fits = dst == Space::kDevice;
        break;
      case Stream::kGather:
      case Stream::kReduce:
        fits = src == Space::kDevice && dst == Space::kDevice;
        break;
      case Stream::kHostToDevice:
        fits = IsHost(src) && dst == Space::kDevice;
        break;
      case Stream::kDeviceToHost:
        fits = src == Space::kDevice && IsHost(dst);
        break;
      case Stream::kHost:
        fits = IsHost(src) && IsHost(dst);
        break;
      case Stream::kStorage:
      case Stream::kStorageWrite:
        break;
    }
    if (!fits) {
      Add("stream_mismatch",
          "copies go by the stream of their direction, or to the device on compute");
    }
  }

  void operator()(const FileIo& io) const {
    if (stream_ != io.stream()) {
      Add("stream_mismatch", "files belong on storage, writes of the swap file on storage_write");
    }
    if (!IsHost(SpaceOf(io.host)))
      Add("wrong_space", "{}", Name(io.host) + " is not in host memory");
    if (io.target == FileTarget::kSwap) {
      if (SpaceOf(io.file) != Space::kFile)
        Add("wrong_space", "{}", Name(io.file) + " is no file range");
      if (io.host.bytes != io.file.bytes) Add("size_mismatch", "the two sizes are equal");
    } else {
      const Unit& unit = program_.layout.units[static_cast<size_t>(io.unit)];
      if (io.host.bytes != io.count * sizeof(float)) Add("size_mismatch", "elements are fp32");
      if (io.begin + io.count > unit.owned_elements()) {
        Add("out_of_bounds", "a rank owns {} elements", unit.owned_elements());
      }
    }
  }

  void operator()(const Alloc&) const {}
  void operator()(const Free&) const {}
  void operator()(const RecordEvent&) const {}
  void operator()(const WaitEvent&) const {}

 private:
  // Where documents start is the third of a batch's tables, and heeded by all kernels or none.
  void CheckStarts(const LaunchKernel& launch) const {
    const int index = KernelInfo(launch.kernel).starts;
    if (index < 0 || stream_ == Stream::kHost) return;
    const bool has =
        index < launch.arg_count && !program_.args(launch)[static_cast<size_t>(index)].null();
    if (has != program_.document_borders) {
      Add("malformed", "{}",
          has ? "the program's batches do not say where documents start"
              : "it crosses the borders of the program's documents");
    }
    if (!has || !program_.document_borders) return;
    const uint64_t table = program_.token_table_bytes(program_.tokens_buffer);
    const Ref& starts = program_.args(launch)[static_cast<size_t>(index)];
    if (starts.buffer != program_.tokens_buffer || starts.offset != 2 * table ||
        starts.bytes != program_.starts_table_bytes(program_.tokens_buffer)) {
      Add("malformed", "{} does not say where documents start", Name(starts));
    }
  }

  Space SpaceOf(const Ref& ref) const { return program_.buffers[ref.buffer].space; }
  static bool IsHost(Space space) { return space == Space::kPinned || space == Space::kPageable; }
  std::string Name(const Ref& ref) const { return FormatRef(program_, ref); }
  template <typename... Args>
  void Add(std::string_view rule, fmt::format_string<Args...> what, Args&&... args) const {
    if (reaches_ || rule != "wrong_space") {
      violations_.Add(rule, site_, what, std::forward<Args>(args)...);
    }
  }

  void CheckRef(const Ref& ref) const {
    const Buffer& buffer = program_.buffers[ref.buffer];
    // The last shard reaches furthest; the others stay within what it and the first one touch.
    const uint64_t begin = ref.begin(axes_.Of(axes_.ranks() - 1));
    if (begin > buffer.bytes || ref.bytes > buffer.bytes - begin) {
      Add("out_of_bounds", "{} ends beyond the buffer's {} bytes", Name(ref), buffer.bytes);
    }
    const uint64_t element = DtypeBytes(buffer.dtype);
    const bool whole_elements = ref.offset % element == 0 && ref.shard_stride % element == 0 &&
                                ref.replica_stride % element == 0 && ref.bytes % element == 0;
    if (!whole_elements) {
      Add("misaligned", "{} cuts elements of {} bytes", Name(ref), element);
    }
  }

  // The sizes of source and destination, and where one lies within the other, as NCCL's in-place
  // forms want it.
  void CheckSegment(const Collective& collective, const Segment& segment) const {
    const auto ranks = static_cast<uint64_t>(axes_.Size(collective.axis));
    const Ref &src = segment.src, &dst = segment.dst;
    switch (collective.kind) {
      case CollectiveKind::kAllReduce:
        if (src.bytes != dst.bytes) Add("shard_cover", "an all-reduce keeps the size");
        CheckInPlace(collective.axis, src, dst, 0);
        break;
      case CollectiveKind::kReduceScatter:
        if (src.bytes != ranks * dst.bytes) {
          Add("shard_cover", "{} parts of {} do not cover {}", ranks, Name(dst), Name(src));
        }
        CheckInPlace(collective.axis, src, dst, dst.bytes);
        break;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kBroadcast:
        if (dst.bytes != ranks * src.bytes) {
          Add("shard_cover", "{} parts of {} do not cover {}", ranks, Name(src), Name(dst));
        }
        CheckInPlace(collective.axis, dst, src, src.bytes);
        break;
      case CollectiveKind::kReduceToOwners:
        CheckOwners(collective, segment);
        break;
      case CollectiveKind::kAllToAll:
        if (src.bytes != dst.bytes || src.bytes % ranks != 0) {
          Add("shard_cover", "{} and {} are not {} equal parts each", Name(src), Name(dst), ranks);
        }
        if (src.buffer == dst.buffer && src.offset < dst.offset + dst.bytes &&
            dst.offset < src.offset + src.bytes) {
          Add("shard_cover", "{} overlaps {}, which an all-to-all reads", Name(dst), Name(src));
        }
        break;
    }
  }

  void CheckOwners(const Collective& collective, const Segment& segment) const {
    const Unit& unit = program_.layout.units[static_cast<size_t>(segment.unit)];
    const uint64_t element = DtypeBytes(collective.dtype);
    if (axes_.Named(RankAxis::kShard) != collective.axis) {
      Add("shard_cover", "the owners of a unit's shards are the ranks of the shard axis");
    }
    if (segment.begin >= segment.end || segment.end > unit.padded_elements) {
      Add("shard_cover", "[{}, {}) is no range of unit {}, which has {} elements", segment.begin,
          segment.end, segment.unit, unit.padded_elements);
    } else if (segment.src.bytes != (segment.end - segment.begin) * element) {
      Add("shard_cover", "{} does not hold [{}, {})", Name(segment.src), segment.begin,
          segment.end);
    }
    CheckRef(segment.dst);
    if (segment.dst.buffer == segment.src.buffer && segment.src.offset != segment.begin * element) {
      Add("shard_cover", "{} in place is not at element {} of the unit", Name(segment.src),
          segment.begin);
    }
    if (segment.dst.bytes != unit.shard_elements * element) {
      Add("shard_cover", "{} is not a shard of {} elements", Name(segment.dst),
          unit.shard_elements);
    }
  }

  // Where `part` shares bytes with `whole`, it must be the rank's part of it, at place * stride.
  void CheckInPlace(RankAxis axis, const Ref& whole, const Ref& part, uint64_t stride) const {
    if (whole.buffer != part.buffer) return;
    for (const int rank : {0, axes_.ranks() - 1}) {
      const uint64_t begin = whole.begin(axes_.Of(rank)), at = part.begin(axes_.Of(rank));
      if (at >= begin + whole.bytes || begin >= at + part.bytes) continue;
      if (at != begin + static_cast<uint64_t>(axes_.Place(axis, rank)) * stride) {
        Add("shard_cover", "{} is not rank {}'s part of {}", Name(part), rank, Name(whole));
      }
    }
  }

  const Program& program_;
  const RankAxes axes_;
  Violations& violations_;
  const bool reaches_;
  const Stream stream_;
  const Site site_;
};

}  // namespace

void Violations::AddText(std::string_view rule, Site site, std::string_view what) {
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

bool CheckWellFormed(const Program& program, Violations& violations) {
  const int ranks = program.setup.batch.world_size;
  const uint64_t shards = program.layout.shards;
  if (shards == 0 || static_cast<uint64_t>(ranks) % shards != 0) {
    violations.Add("malformed", {}, "{} ranks do not divide into {} shards", ranks, shards);
    return false;
  }
  const uint64_t slices = program.layout.slices;
  if (slices != 1 && slices * shards != static_cast<uint64_t>(ranks)) {
    violations.Add("malformed", {}, "{} slices of {} shards are not one for each of {} ranks",
                   slices, shards, ranks);
    return false;
  }
  const int sequence = program.setup.batch.sequence_ranks;
  if (sequence < 1 || ranks % sequence != 0) {
    violations.Add("malformed", {}, "{} ranks do not divide into {} that share sequences", ranks,
                   sequence);
    return false;
  }
  bool well_formed = true;
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    std::string what = std::visit(FormCheck(program), instruction.op);
    if (what.empty() && (instruction.when & kEvery) == 0) what = "it never runs";
    if (what.empty()) return;
    well_formed = false;
    violations.Add("malformed", site, "{}", what);
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
      violations.Add("out_of_bounds", site, "{} ends at {}, beyond the {} of {} bytes",
                     BufferName(buffer), buffer.offset + buffer.bytes,
                     buffer.persistent ? "persistent region" : "arena", limit);
    }
    const uint64_t align = buffer.space == Space::kFile ? kFileAlign : kBufferAlign;
    if (buffer.offset % align != 0) {
      violations.Add("misaligned", site, "{} lies at {}, not a multiple of {}", BufferName(buffer),
                     buffer.offset, align);
    }
  });
}

void CheckSaveCopies(const Program& program, Violations& violations) {
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    if (site.section == Section::kSave || std::holds_alternative<Alloc>(instruction.op)) return;
    ForEachAccess(program, instruction, [&](const Ref& ref, ArgMode) {
      const Buffer& buffer = program.buffers[ref.buffer];
      if (!IsSaveCopy(buffer)) return;
      violations.Add("save_copy", site, "a save may be written from {} meanwhile",
                     BufferName(buffer));
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
    violations.Add("wait_without_record", site, "nothing ever records event {}", wait->event);
  });
}

void CheckLayout(const Program& program, Violations& violations) {
  const ParamLayout& layout = program.layout;
  size_t slots = 0;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    slots += layout.units[u].slots.size();
    const std::string fault = UnitFault(layout, u);
    if (!fault.empty()) violations.Add("shard_cover", {}, "unit {}: {}", u, fault);
  }
  if (slots != layout.place.size()) {
    violations.Add("shard_cover", {}, "units hold {} tensors of {}", slots, layout.place.size());
  }
}

void CheckInstructions(const Program& program, Violations& violations, bool reaches) {
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    std::visit(InstructionCheck(program, violations, reaches, instruction, site), instruction.op);
  });
}

}  // namespace zeroplan
