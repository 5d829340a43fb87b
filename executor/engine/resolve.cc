#include "executor/engine/resolve.h"

#include <algorithm>
#include <string>
#include <variant>

#include "core/base/error.h"
#include "core/program/collectives.h"

namespace zeroplan {
namespace {

// Resolves the instructions of one rank one after the other.
class Resolver {
 public:
  Resolver(const Program& program, const ArenaBases& arenas, const KernelTable& kernels, int rank,
           std::vector<KernelArg>& args, std::vector<CommSegment>& segments)
      : program_(program),
        arenas_(arenas),
        kernels_(kernels),
        rank_(rank),
        axes_(program.axes()),
        at_(axes_.Of(rank)),
        args_(args),
        segments_(segments) {}

  ResolvedInstruction Resolve(const Instruction& instruction) {
    out_ = {};
    std::visit([this](const auto& op) { Visit(op); }, instruction.op);
    return out_;
  }

 private:
  const Buffer& BufferOf(BufferId id) const {
    ZEROPLAN_CHECK(id < program_.buffers.size(), "there is no buffer {}", id);
    return program_.buffers[id];
  }

  // Checks the range and counts it as touched; its first byte within the arena.
  uint64_t Offset(const Ref& ref) {
    const Buffer& buffer = BufferOf(ref.buffer);
    const uint64_t begin = ref.begin(at_);
    ZEROPLAN_CHECK(begin <= buffer.bytes && ref.bytes <= buffer.bytes - begin,
                   "rank {}: [{}, +{}) is outside {} of {} bytes", rank_, begin, ref.bytes,
                   BufferName(buffer), buffer.bytes);
    ZEROPLAN_CHECK(begin % DtypeBytes(buffer.dtype) == 0, "{}+{} splits an element",
                   BufferName(buffer), begin);
    const auto space = static_cast<size_t>(buffer.space);
    const uint64_t offset = buffer.offset + begin;
    ZEROPLAN_CHECK(offset + ref.bytes <= program_.arena_bytes[space],
                   "{} ends past its arena of {} bytes", BufferName(buffer),
                   program_.arena_bytes[space]);
    out_.touched_end[space] = std::max(out_.touched_end[space], offset + ref.bytes);
    return offset;
  }

  std::byte* Address(const Ref& ref) {
    const uint64_t offset = Offset(ref);
    const Space space = BufferOf(ref.buffer).space;
    ZEROPLAN_CHECK(space != Space::kFile, "the file arena has no address");
    return arenas_[static_cast<size_t>(space)] + offset;
  }

  void Visit(const LaunchKernel& launch) {
    const KernelRow& row = KernelInfo(launch.kernel);
    ZEROPLAN_CHECK(kernels_.rows[static_cast<size_t>(launch.kernel)] != nullptr,
                   "this backend has no kernel {}", row.name);
    ZEROPLAN_CHECK(launch.arg_count <= kMaxKernelArgs &&
                       launch.first_arg + launch.arg_count <= program_.refs.size(),
                   "{} has {} arguments", row.name, launch.arg_count);
    out_.first = static_cast<uint32_t>(args_.size());
    out_.count = launch.arg_count;
    for (const Ref& ref : program_.args(launch)) {
      args_.push_back(ref.null() ? KernelArg{}
                                 : KernelArg{Address(ref), ref.bytes, BufferOf(ref.buffer).dtype});
    }
  }

  void Visit(const Collective& collective) {
    ZEROPLAN_CHECK(collective.first_segment + collective.segment_count <= program_.segments.size(),
                   "segments [{}, +{}) do not exist", collective.first_segment,
                   collective.segment_count);
    out_.first = static_cast<uint32_t>(segments_.size());
    out_.count = collective.segment_count;
    for (const Segment& segment : program_.segs(collective)) AddSegment(collective, segment);
    out_.bytes = RingSentBytes(program_, collective);
  }

  void AddSegment(const Collective& collective, const Segment& segment) {
    const auto parts = static_cast<uint64_t>(axes_.Size(collective.axis));
    const uint64_t element = DtypeBytes(collective.dtype);
    CommSegment resolved;
    resolved.src = Address(segment.src);
    switch (collective.kind) {
      case CollectiveKind::kAllReduce:
        resolved.dst = Address(segment.dst);
        ZEROPLAN_CHECK(segment.src.bytes == segment.dst.bytes, "sizes differ: {} and {}",
                       segment.src.bytes, segment.dst.bytes);
        resolved.elements = segment.src.bytes / element;
        break;
      case CollectiveKind::kReduceScatter:
        resolved.dst = Address(segment.dst);
        ZEROPLAN_CHECK(segment.src.bytes == segment.dst.bytes * parts,
                       "{} bytes are not {} parts of {}", segment.src.bytes, parts,
                       segment.dst.bytes);
        resolved.elements = segment.dst.bytes / element;
        break;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kBroadcast:
        resolved.dst = Address(segment.dst);
        ZEROPLAN_CHECK(segment.dst.bytes == segment.src.bytes * parts,
                       "{} bytes are not {} parts of {}", segment.dst.bytes, parts,
                       segment.src.bytes);
        resolved.elements = segment.src.bytes / element;
        break;
      case CollectiveKind::kReduceToOwners:
        ResolveOwned(segment, element, &resolved);
        break;
      case CollectiveKind::kAllToAll:
        resolved.dst = Address(segment.dst);
        ZEROPLAN_CHECK(
            segment.src.bytes == segment.dst.bytes && segment.src.bytes % (parts * element) == 0,
            "{} and {} bytes are not {} parts each", segment.src.bytes, segment.dst.bytes, parts);
        resolved.elements = segment.src.bytes / parts / element;
        break;
    }
    ZEROPLAN_CHECK(segment.src.bytes % element == 0 && segment.dst.bytes % element == 0,
                   "a segment of {} and {} bytes splits an element of {}", segment.src.bytes,
                   segment.dst.bytes, DtypeName(collective.dtype));
    segments_.push_back(resolved);
  }

  // Only the overlap of [begin, end) with the rank's shard is written; a rank may get nothing.
  void ResolveOwned(const Segment& segment, uint64_t element, CommSegment* resolved) {
    ZEROPLAN_CHECK(
        segment.unit >= 0 && static_cast<size_t>(segment.unit) < program_.layout.units.size(),
        "there is no unit {}", segment.unit);
    const uint64_t shard = program_.layout.units[static_cast<size_t>(segment.unit)].shard_elements;
    ZEROPLAN_CHECK(segment.begin <= segment.end && segment.end <= shard * program_.layout.shards &&
                       segment.src.bytes == (segment.end - segment.begin) * element &&
                       segment.dst.bytes == shard * element,
                   "elements [{}, {}) of unit {}, shard {}: {} and {} bytes", segment.begin,
                   segment.end, segment.unit, shard, segment.src.bytes, segment.dst.bytes);
    const uint64_t own = static_cast<uint64_t>(at_.shard) * shard;
    const uint64_t begin = std::clamp(segment.begin, own, own + shard);
    const uint64_t end = std::clamp(segment.end, own, own + shard);
    if (begin < end) {
      Ref written = segment.dst;
      written.offset += (begin - own) * element;
      written.bytes = (end - begin) * element;
      resolved->dst = Address(written) - (begin - own) * element;
    }
    resolved->elements = shard;
    resolved->begin = segment.begin;
    resolved->end = segment.end;
  }

  void Visit(const Copy& copy) {
    ZEROPLAN_CHECK(copy.src.bytes == copy.dst.bytes, "copy of {} bytes to {}", copy.src.bytes,
                   copy.dst.bytes);
    out_.src = Address(copy.src);
    out_.dst = Address(copy.dst);
    out_.bytes = copy.src.bytes;
  }

  void Visit(const FileIo& io) {
    out_.src = Address(io.host);
    out_.bytes = io.host.bytes;
    if (io.target == FileTarget::kSwap) {
      ZEROPLAN_CHECK(BufferOf(io.file.buffer).space == Space::kFile && io.file.bytes == out_.bytes,
                     "{} bytes of the swap file for {} of the host", io.file.bytes, out_.bytes);
      out_.file_offset = Offset(io.file);
      return;
    }
    ZEROPLAN_CHECK(
        BufferOf(io.host.buffer).dtype == Dtype::kF32 && io.count * sizeof(float) <= out_.bytes,
        "{} fp32 elements of a checkpoint in {} bytes", io.count, out_.bytes);
    ZEROPLAN_CHECK(io.unit >= 0 && static_cast<size_t>(io.unit) < program_.layout.units.size() &&
                       io.begin + io.count <=
                           program_.layout.units[static_cast<size_t>(io.unit)].owned_elements(),
                   "elements [{}, +{}) are outside the rank's part of unit {}", io.begin, io.count,
                   io.unit);
  }

  void Visit(const Alloc& alloc) { CheckPlaced(BufferOf(alloc.buffer)); }
  void Visit(const Free& free) { CheckPlaced(BufferOf(free.buffer)); }
  void Visit(const RecordEvent& record) { CheckEvent(record.event); }
  void Visit(const WaitEvent& wait) { CheckEvent(wait.event); }

  void CheckPlaced(const Buffer& buffer) const {
    ZEROPLAN_CHECK(
        buffer.offset + buffer.bytes <= program_.arena_bytes[static_cast<size_t>(buffer.space)],
        "{} ends past its arena", BufferName(buffer));
  }
  void CheckEvent(EventId event) const {
    ZEROPLAN_CHECK(event < program_.event_count, "there is no event {}", event);
  }

  const Program& program_;
  const ArenaBases& arenas_;
  const KernelTable& kernels_;
  const int rank_;
  const RankAxes axes_;
  const Coordinates at_;
  std::vector<KernelArg>& args_;
  std::vector<CommSegment>& segments_;
  ResolvedInstruction out_;
};

}  // namespace

ResolvedProgram::ResolvedProgram(const Program& program, const ArenaBases& arenas,
                                 const KernelTable& kernels, int rank) {
  args_.reserve(program.refs.size());
  segments_.reserve(program.segments.size());
  Resolver resolver(program, arenas, kernels, rank, args_, segments_);
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    std::vector<ResolvedInstruction>& resolved = sections_[static_cast<size_t>(s)];
    resolved.reserve(program.section(section).size());
    for (const Instruction& instruction : program.section(section)) {
      try {
        resolved.push_back(resolver.Resolve(instruction));
      } catch (const CheckFailure& failure) {
        throw CheckFailure(
            fmt::format("{}\n{}", failure.what(),
                        FormatSection(program, section, static_cast<int64_t>(resolved.size()))));
      }
    }
  }
}

}  // namespace zeroplan
