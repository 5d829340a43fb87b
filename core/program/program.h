// The step program, which planner and executor share: a flat list of instructions over named
// streams, with every buffer placed in its arena. MemoryWalk sums its memory, Timeline simulates
// it, Engine runs it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/program/axes.h"
#include "core/program/kernel.h"
#include "core/program/layout.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// ---- memory ----

// The arenas, each one allocation. kFile is the rank's extent of the NVMe swap file.
enum class Space : uint8_t { kDevice, kPinned, kPageable, kFile };
inline constexpr int kSpaces = 4;
std::string_view SpaceName(Space space);  // "device", "pinned", "pageable", "file"

// The classes of GPU memory, whose names are fixed. (`runtime`, the memory outside the arenas, is a
// term of the hardware profile.)
enum class MemoryClass : uint8_t { kParams, kGrads, kOptimizer, kActivations, kBuffers };
inline constexpr int kMemoryClasses = 5;
std::string_view MemoryClassName(MemoryClass memory_class);  // "params", ..., "buffers"

// The purpose of a buffer. Passes find buffers by role and unit; reports derive names from the
// role.
enum class Role : uint8_t {
  kParamFull,       // a whole unit in the compute dtype
  kParamShard,      // a rank's shard in the compute dtype (stage 3), on device, host or disk
  kGradFull,        // gradient of a whole unit, before reduction
  kGradShard,       // reduced gradient of a rank's shard (grad_accum dtype)
  kOptimizerState,  // the rank's part of one kind of state (Buffer::state) at one home (HomeOf),
                    // for a unit
  kGradHost,        // in host memory: the part of the reduced gradient whose states are offloaded
  kStateSlot,       // staging slots in host memory, for states on disk while they are updated
  kParamSlot,       // staging slots for new parameters on the way to their home
  kStaging,         // staging slots for all other transfers
  kTokens,
  kTokensHost,
  kState,
  kStateHost,
  kActivation,
  kActivationGrad,
  kLogits,
  kKeysValues,  // keys and values of a layer's tokens so far: [T, 2*G*D]
  kLoss,
  kWorkspace,
  kReduceScratch,
  kScales,  // largest magnitudes and scales of the inputs of FP8 matmuls
};
std::string_view RoleName(Role role);

// The places of optimizer states: one part is on the device, the offloaded part in host memory or
// in the swap file.
enum class Home : uint8_t { kDevice, kHost, kFile };
inline constexpr std::array kHomes = {Home::kDevice, Home::kHost, Home::kFile};
Home HomeOf(Space space);

using BufferId = uint32_t;
inline constexpr BufferId kNoBuffer = 0xffffffffu;

struct Buffer {
  uint64_t bytes = 0;
  uint64_t offset = 0;     // within its arena, set by placement
  const char* label = "";  // static string: "qkv", "params", ...
  int32_t layer = -2;      // -2: none
  int32_t unit = -1;       // -1: none
  Space space = Space::kDevice;
  MemoryClass memory_class = MemoryClass::kBuffers;
  Role role = Role::kActivation;
  StateKind state = StateKind::kMaster;  // for kOptimizerState only
  Dtype dtype = Dtype::kU8;
  bool persistent = false;  // allocated in section init, never freed

  bool holds(StateKind kind) const { return role == Role::kOptimizerState && state == kind; }
};
// "qkv[3]", "params.unit[0]".
std::string BufferName(const Buffer& buffer);

// Bytes [offset + shard*shard_stride + replica*replica_stride, + bytes) of a buffer, by the rank's
// coordinates along the two axes. A null ref stands for an absent argument.
struct Ref {
  BufferId buffer = kNoBuffer;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t shard_stride = 0;
  uint64_t replica_stride = 0;

  bool null() const { return buffer == kNoBuffer; }
  // Bytes [from, from + count) of this range.
  Ref Part(uint64_t from, uint64_t count) const {
    return {buffer, offset + from, count, shard_stride, replica_stride};
  }
  uint64_t begin(Coordinates at) const {
    return offset + static_cast<uint64_t>(at.shard) * shard_stride +
           static_cast<uint64_t>(at.replica) * replica_stride;
  }
};

// ---- time ----

enum class Stream : uint8_t {
  kCompute,
  kGather,
  kReduce,
  kHostToDevice,
  kDeviceToHost,
  kHost,
  kStorage,      // reads of the swap file, and all I/O of checkpoints
  kStorageWrite  // writes of the swap file, because disks can read and write concurrently
};
inline constexpr int kStreams = 8;
std::string_view StreamName(Stream stream);
// The streams that host threads serve; the others are a GPU's.
inline constexpr std::array kHostStreams = {Stream::kHost, Stream::kStorage, Stream::kStorageWrite};
inline bool OnHost(Stream stream) {
  return stream == Stream::kHost || stream == Stream::kStorage || stream == Stream::kStorageWrite;
}

// The sections of a program. Training runs kInit, then for each optimizer step grad_accum times
// kMicroStep and once kOptimizerStep. The other sections are separate programs over the same
// persistent buffers; their transient buffers share the arena.
enum class Section : uint8_t {
  kInit,
  kMicroStep,
  kOptimizerStep,
  kDrain,
  kEval,
  kGenerate,
  kSave,
  kLoad,
  kDecode  // one token, after the tokens whose keys and values kGenerate or kDecode left
};
inline constexpr int kSections = 9;
std::string_view SectionName(Section section);

// The micro-steps that an instruction belongs to, as a set of kinds. With grad_accum 1 the only
// micro-step is kOnly; else they are kFirst, kMiddle..., kLast.
enum When : uint8_t {
  kOnly = 1,
  kFirst = 2,
  kMiddle = 4,
  kLast = 8,
  kEvery = 15,
  kWritesGrads = kOnly | kFirst,  // gradients are written
  kAddsGrads = kMiddle | kLast,   // gradients are added
  kReduces = kOnly | kLast,       // stages 0 and 1 reduce
  kCompletesGrads = kReduces,     // after it the step's gradients are complete
};
// The kind of micro-step m of g.
When MicroStepKind(int64_t m, int64_t grad_accum);

// The memory report's name for the time in which an instruction runs.
enum class Phase : uint8_t { kInit, kForward, kBackward, kStep, kSave };
inline constexpr int kPhases = 5;
std::string_view PhaseName(Phase phase);

// ---- instructions ----

struct LaunchKernel {
  KernelId kernel;
  uint8_t flags = kNoFlags;
  uint16_t arg_count = 0;
  uint32_t first_arg = 0;  // into Program::refs
  KernelDims dims{};
  KernelScalars scalars{};
};

// Collectives run over the N ranks of one group of Collective::axis; r is a rank's place in its
// group.
enum class CollectiveKind : uint8_t {
  kAllReduce,       // each segment: dst = sum over ranks of src, everywhere (in place: src == dst)
  kReduceScatter,   // each segment: src is N equal parts; dst = sum of part [r]
  kAllGather,       // each segment: dst is N equal parts; part [r] comes from src
  kReduceToOwners,  // each segment: a range of a unit's gradient that does not divide into equal
                    // parts; every rank gets the sum of the part that overlaps its own shard,
                    // written to dst (see Segment). Over the shard axis
  kBroadcast,       // each segment: the rank at r sends part [r] of dst, one send per owner
  kAllToAll,        // each segment: src and dst are N equal parts; part [r] of dst is the part of
                    // the src of the rank at r that has this rank's place
};
std::string_view CollectiveKindName(CollectiveKind kind);

struct Segment {
  Ref src, dst;
  // kReduceToOwners: src holds elements [begin, end) of unit `unit`; the rank's shard lies at
  // elements [shard*shard_elements, ...) and dst is the whole of the rank's shard. kAllReduce of a
  // part of a unit in a buffer of its own: the elements of that part. Else unset.
  int32_t unit = -1;
  uint64_t begin = 0, end = 0;
};
struct Collective {
  CollectiveKind kind;
  Dtype dtype;
  uint32_t first_segment = 0;  // into Program::segments: one group, one launch
  uint32_t segment_count = 0;
  bool scalar = false;             // not counted in the communication volume, but listed separately
  RankAxis axis = RankAxis::kAll;  // the axis whose ranks it runs over (RankAxes::Named)
};

// Copies between device and host spaces, or within one. REQUIRES: src and dst have equal sizes.
struct Copy {
  Ref src, dst;
};

enum class FileTarget : uint8_t { kSwap, kCheckpoint };
struct FileIo {
  bool write;
  FileTarget target = FileTarget::kSwap;
  Ref host;  // pinned or pageable
  Ref file;  // kSwap: the range in the file arena
  // kCheckpoint: fp32 elements [begin, begin+count) of this rank's part of `unit`.
  int32_t unit = -1;
  StateKind state = StateKind::kMaster;
  uint64_t begin = 0, count = 0;

  Stream stream() const {
    return write && target == FileTarget::kSwap ? Stream::kStorageWrite : Stream::kStorage;
  }
};

struct Alloc {
  BufferId buffer;
};
struct Free {
  BufferId buffer;
};
using EventId = uint32_t;
struct RecordEvent {
  EventId event;
};
struct WaitEvent {
  EventId event;
};

using Op =
    std::variant<LaunchKernel, Collective, Copy, FileIo, Alloc, Free, RecordEvent, WaitEvent>;

struct Instruction {
  Op op;
  Stream stream = Stream::kCompute;
  uint8_t when = kEvery;  // set of When; meaningful in kMicroStep only
  Phase phase = Phase::kInit;
  int16_t layer = -2;  // -2: none
};

// ---- program ----

struct Program {
  ModelSpec model;
  TrainSetup setup;
  Backend backend = Backend::kCpu;
  ParamLayout layout;

  std::vector<Buffer> buffers;
  std::vector<Ref> refs;          // kernel arguments
  std::vector<Segment> segments;  // parts of collectives
  std::array<std::vector<Instruction>, kSections> sections;
  EventId event_count = 0;
  std::array<uint64_t, kSpaces> arena_bytes{};       // set by placement
  std::array<uint64_t, kSpaces> persistent_bytes{};  // arena prefix of the persistent buffers
  // The largest sum of live bytes at any instant, which is what a perfect placement would need.
  std::array<uint64_t, kSpaces> live_peak_bytes{};

  BufferId state_buffer = kNoBuffer;       // StepState on the device
  BufferId state_host_buffer = kNoBuffer;  // its pinned copy
  // True: batches contain the starts of documents, and kernels respect them
  // (LowerOptions::document_borders).
  bool document_borders = false;
  // True: attention within documents runs on own kernels (LowerOptions::own_documents).
  bool own_documents = false;
  double visible_keys = 0;  // LowerOptions::visible_keys, no part of the fingerprint
  // I32 [B, T/S] of inputs and of targets (negative: does not count), with S the ranks that share
  // sequences. With document_borders also [B, T]: for each position the start of its document in
  // the row. It covers the whole row, because attention does. One buffer is on the device; the data
  // loader fills the other one. If sequences are numbered, the last 8 bytes are the number of the
  // batch's first sequence: ((steps taken and skipped * micro-steps + micro-step) * ranks + rank) *
  // B. The other sequences are numbered consecutively. A rank's part of a sequence counts as a
  // sequence of its own.
  BufferId tokens_buffer = kNoBuffer;
  BufferId tokens_host_buffer = kNoBuffer;
  BufferId logits_host_buffer = kNoBuffer;  // generate: compute dtype [Vp], the logits of the row
                                            // at StepState::position
  // A model with experts has BalanceLoss's totals, F64 [3 + L*E] for the L layers with experts,
  // summed over the micro-steps; and their pinned copy, which after a step has the sums over all
  // ranks.
  BufferId router_totals_buffer = kNoBuffer, router_totals_host_buffer = kNoBuffer;
  BufferId matmul_workspace = kNoBuffer;  // shared by the matmuls where their library needs one

  // Dropout depends on the number of the sequence.
  bool numbers_sequences() const { return model.lora_dropout > 0; }
  static constexpr uint64_t kSequenceNumberBytes = 8;
  // The rows in memory of ParamRow::tokens of the embedding and of the head. A head tied to the
  // embedding has the embedding's rows.
  int64_t embedding_rows = 0, head_rows = 0;
  // Each of the two token buffers holds, in this order: inputs and targets [B, T/S]; the starts of
  // documents [B, T]; for each input its place among the embedding's rows of tokens, or
  // embedding_rows for none [B, T/S]; the tokens of the head's rows, -1 for padding; the number of
  // the first sequence. All are I32 but the last.
  uint64_t token_table_bytes(BufferId tokens) const {
    const auto parts = static_cast<uint64_t>(document_borders ? setup.batch.sequence_ranks : 0);
    return (buffers[tokens].bytes - tail_bytes()) / (2 + parts + (embedding_rows > 0 ? 1 : 0));
  }
  uint64_t starts_table_bytes(BufferId tokens) const {
    return token_table_bytes(tokens) * static_cast<uint64_t>(setup.batch.sequence_ranks);
  }
  Ref row_places(BufferId tokens) const {
    const uint64_t table = token_table_bytes(tokens);
    return {tokens, 2 * table + (document_borders ? starts_table_bytes(tokens) : 0), table, 0};
  }
  Ref head_tokens(BufferId tokens) const {
    return {tokens, buffers[tokens].bytes - tail_bytes(), static_cast<uint64_t>(head_rows) * 4, 0};
  }
  uint64_t tail_bytes() const {
    return static_cast<uint64_t>(head_rows) * 4 + (numbers_sequences() ? kSequenceNumberBytes : 0);
  }
  RankAxes axes() const {
    return {static_cast<int>(layout.shards), setup.batch.world_size, setup.batch.sequence_ranks};
  }
  std::vector<Instruction>& section(Section s) { return sections[static_cast<size_t>(s)]; }
  const std::vector<Instruction>& section(Section s) const {
    return sections[static_cast<size_t>(s)];
  }
  std::span<const Ref> args(const LaunchKernel& launch) const {
    return {refs.data() + launch.first_arg, launch.arg_count};
  }
  std::span<const Segment> segs(const Collective& c) const {
    return {segments.data() + c.first_segment, c.segment_count};
  }
};

// Calls visit(ref, mode) for every byte range that an instruction touches. Alloc and Free touch the
// whole buffer as kOut; events touch nothing.
template <typename Visit>
void ForEachAccess(const Program& program, const Instruction& instruction, Visit&& visit);
// Calls visit(buffer) for each byte range that an instruction touches.
template <typename Visit>
void ForEachTouched(const Program& program, const Instruction& instruction, Visit&& visit);

// The bytes that a launch reads and writes, by its kernel's row.
double LaunchBytes(const Program& program, const LaunchKernel& launch);

// "compute  matmul_forward  ln1[0] params.unit[1]+0:1536 -> qkv[0]  (M=64 K=16 N=48)"
std::string FormatInstruction(const Program& program, const Instruction& instruction);
// A section or all sections, one instruction per line; `mark` (an index into the section) gets
// "-->".
std::string FormatSection(const Program& program, Section section, int64_t mark = -1);
std::string FormatProgram(const Program& program);

// This and the functions below return parts of that text, for messages. Here: "", "[first]" or
// "[only|last]".
std::string FormatWhen(uint8_t when);
// "params.unit[1]+0:1536@rank*1536"; only the name for a whole buffer, "_" for an absent argument.
std::string FormatRef(const Program& program, const Ref& ref);
// Lines [begin, end) of a section, clamped to it; the line `mark` gets "-->".
std::string FormatLines(const Program& program, Section section, int64_t begin, int64_t end,
                        int64_t mark = -1);

// ---- implementation ----

template <typename... Fs>
struct Overload : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overload(Fs...) -> Overload<Fs...>;

// Calls visit(ref, mode), where mode() returns an ArgMode. It is a call so that a visitor without
// need for the mode does not pay for the look-up.
template <typename Visit>
void ForEachRef(const Program& program, const Instruction& instruction, Visit&& visit) {
  constexpr auto in = [] { return ArgMode::kIn; };
  constexpr auto out = [] { return ArgMode::kOut; };
  auto whole = [&](BufferId id) { return Ref{id, 0, program.buffers[id].bytes, 0}; };
  std::visit(Overload{
                 [&](const LaunchKernel& launch) {
                   for (int i = 0; i < launch.arg_count; ++i) {
                     const Ref& ref = program.refs[launch.first_arg + static_cast<uint32_t>(i)];
                     if (ref.null()) continue;
                     visit(ref, [&] { return AccessMode(launch.kernel, i, launch.flags); });
                   }
                 },
                 [&](const Collective& collective) {
                   for (const Segment& segment : program.segs(collective)) {
                     visit(segment.src, in);
                     // In place, the shards that ranks write lie within the source.
                     const bool owned = collective.kind == CollectiveKind::kReduceToOwners &&
                                        segment.dst.buffer == segment.src.buffer;
                     visit(owned ? segment.src : segment.dst, out);
                   }
                 },
                 [&](const Copy& copy) {
                   visit(copy.src, in);
                   visit(copy.dst, out);
                 },
                 [&](const FileIo& io) {
                   io.write ? visit(io.host, in) : visit(io.host, out);
                   if (!io.file.null()) io.write ? visit(io.file, out) : visit(io.file, in);
                 },
                 [&](const Alloc& alloc) { visit(whole(alloc.buffer), out); },
                 [&](const Free& free) { visit(whole(free.buffer), out); },
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

template <typename Visit>
void ForEachAccess(const Program& program, const Instruction& instruction, Visit&& visit) {
  ForEachRef(program, instruction, [&](const Ref& ref, auto mode) { visit(ref, mode()); });
}

template <typename Visit>
void ForEachTouched(const Program& program, const Instruction& instruction, Visit&& visit) {
  ForEachRef(program, instruction, [&](const Ref& ref, auto) { visit(ref.buffer); });
}

}  // namespace zeroplan
