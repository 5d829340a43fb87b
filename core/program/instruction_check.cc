// What one instruction may touch, and from which stream.
#include <fmt/format.h>

#include "core/program/program.h"
#include "core/program/static_check.h"

namespace zeroplan {
namespace {

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
        stream_ == Stream::kStorage) {
      Add("stream_mismatch", "kernels run on compute, gather, reduce or host");
    }
    for (const Ref& ref : program_.args(launch)) {
      if (ref.null()) continue;
      const Space space = SpaceOf(ref);
      const bool fits = stream_ == Stream::kHost ? IsHost(space) : space == Space::kDevice;
      if (!fits) Add("wrong_space", fmt::format("{} is out of its reach", Name(ref)));
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
          Add("wrong_space", fmt::format("{} is not in device memory", Name(ref)));
        }
        if (ref.bytes % DtypeBytes(collective.dtype) != 0) {
          Add("size_mismatch", fmt::format("{} is not whole elements", Name(ref)));
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
        break;
    }
    if (!fits) {
      Add("stream_mismatch",
          "copies go by the stream of their direction, or to the device on compute");
    }
  }

  void operator()(const FileIo& io) const {
    if (stream_ != Stream::kStorage) Add("stream_mismatch", "files belong on storage");
    if (!IsHost(SpaceOf(io.host))) Add("wrong_space", Name(io.host) + " is not in host memory");
    if (io.target == FileTarget::kSwap) {
      if (SpaceOf(io.file) != Space::kFile) Add("wrong_space", Name(io.file) + " is no file range");
      if (io.host.bytes != io.file.bytes) Add("size_mismatch", "the two sizes are equal");
    } else {
      const Unit& unit = program_.layout.units[static_cast<size_t>(io.unit)];
      if (io.host.bytes != io.count * sizeof(float)) Add("size_mismatch", "elements are fp32");
      if (io.begin + io.count > unit.shard_elements) {
        Add("out_of_bounds", fmt::format("a shard has {} elements", unit.shard_elements));
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
      Add("malformed", has ? "the program's batches do not say where documents start"
                           : "it crosses the borders of the program's documents");
    }
    if (!has || !program_.document_borders) return;
    const uint64_t table = program_.buffers[program_.tokens_buffer].bytes / 3;
    const Ref& starts = program_.args(launch)[static_cast<size_t>(index)];
    if (starts.buffer != program_.tokens_buffer || starts.offset != 2 * table ||
        starts.bytes != table) {
      Add("malformed", fmt::format("{} does not say where documents start", Name(starts)));
    }
  }

  Space SpaceOf(const Ref& ref) const { return program_.buffers[ref.buffer].space; }
  static bool IsHost(Space space) { return space == Space::kPinned || space == Space::kPageable; }
  std::string Name(const Ref& ref) const { return FormatRef(program_, ref); }
  void Add(std::string_view rule, std::string_view what) const {
    if (reaches_ || rule != "wrong_space") violations_.Add(rule, site_, what);
  }

  void CheckRef(const Ref& ref) const {
    const Buffer& buffer = program_.buffers[ref.buffer];
    // The last shard reaches furthest; the others stay within what it and the first one touch.
    const uint64_t begin = ref.begin(axes_.Of(axes_.ranks() - 1));
    if (begin > buffer.bytes || ref.bytes > buffer.bytes - begin) {
      Add("out_of_bounds",
          fmt::format("{} ends beyond the buffer's {} bytes", Name(ref), buffer.bytes));
    }
    const uint64_t element = DtypeBytes(buffer.dtype);
    if (ref.offset % element != 0 || ref.shard_stride % element != 0 || ref.bytes % element != 0) {
      Add("misaligned", fmt::format("{} cuts elements of {} bytes", Name(ref), element));
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
          Add("shard_cover",
              fmt::format("{} parts of {} do not cover {}", ranks, Name(dst), Name(src)));
        }
        CheckInPlace(collective.axis, src, dst, dst.bytes);
        break;
      case CollectiveKind::kAllGather:
      case CollectiveKind::kBroadcast:
        if (dst.bytes != ranks * src.bytes) {
          Add("shard_cover",
              fmt::format("{} parts of {} do not cover {}", ranks, Name(src), Name(dst)));
        }
        CheckInPlace(collective.axis, dst, src, src.bytes);
        break;
      case CollectiveKind::kReduceToOwners:
        CheckOwners(collective, segment);
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
      Add("shard_cover",
          fmt::format("[{}, {}) is no range of unit {}, which has {} elements", segment.begin,
                      segment.end, segment.unit, unit.padded_elements));
    } else if (segment.src.bytes != (segment.end - segment.begin) * element) {
      Add("shard_cover",
          fmt::format("{} does not hold [{}, {})", Name(segment.src), segment.begin, segment.end));
    }
    CheckRef(segment.dst);
    if (segment.dst.buffer == segment.src.buffer && segment.src.offset != segment.begin * element) {
      Add("shard_cover", fmt::format("{} in place is not at element {} of the unit",
                                     Name(segment.src), segment.begin));
    }
    if (segment.dst.bytes != unit.shard_elements * element) {
      Add("shard_cover",
          fmt::format("{} is not a shard of {} elements", Name(segment.dst), unit.shard_elements));
    }
  }

  // Where `part` shares bytes with `whole`, it must be the rank's part of it, at place * stride.
  void CheckInPlace(RankAxis axis, const Ref& whole, const Ref& part, uint64_t stride) const {
    if (whole.buffer != part.buffer) return;
    for (const int rank : {0, axes_.ranks() - 1}) {
      const uint64_t begin = whole.begin(axes_.Of(rank)), at = part.begin(axes_.Of(rank));
      if (at >= begin + whole.bytes || begin >= at + part.bytes) continue;
      if (at != begin + static_cast<uint64_t>(axes_.Place(axis, rank)) * stride) {
        Add("shard_cover",
            fmt::format("{} is not rank {}'s part of {}", Name(part), rank, Name(whole)));
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

void CheckInstructions(const Program& program, Violations& violations, bool reaches) {
  ForEachInstruction(program, [&](const Instruction& instruction, Site site) {
    std::visit(InstructionCheck(program, violations, reaches, instruction, site), instruction.op);
  });
}

}  // namespace zeroplan
