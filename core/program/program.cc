// The program as text: names of its enumerations, and one instruction a line, stable, for golden
// tests and failure messages.
#include "core/program/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace zeroplan {
namespace {

template <typename Enum>
using Name = std::pair<Enum, std::string_view>;

template <typename Enum, size_t count>
std::string_view NameIn(const Name<Enum> (&names)[count], Enum value) {
  for (const auto& [known, name] : names) {
    if (known == value) return name;
  }
  return "?";
}

using Out = std::back_insert_iterator<std::string>;

constexpr Name<uint8_t> kFlagNames[] = {
    {kAccumulate, "accumulate"},     {kTransposed, "transposed"}, {kForwardOnly, "forward_only"},
    {kAddToOutput, "add_to_output"}, {kOnRank, "on_rank"},        {kHalfAway, "half_away"},
    {kBeforeNorm, "before_norm"},    {kAfterNorm, "after_norm"},
};

void AppendRef(std::string& text, const Program& program, const Ref& ref) {
  if (ref.null()) {
    text += '_';
    return;
  }
  if (ref.buffer >= program.buffers.size()) {
    fmt::format_to(Out(text), "buffer#{}?", ref.buffer);
    return;
  }
  const Buffer& buffer = program.buffers[ref.buffer];
  text += BufferName(buffer);
  const bool fixed = ref.shard_stride == 0 && ref.replica_stride == 0;
  if (ref.offset == 0 && ref.bytes == buffer.bytes && fixed) return;
  fmt::format_to(Out(text), "+{}:{}", ref.offset, ref.bytes);
  if (ref.shard_stride != 0) {
    const bool all = program.axes().Named(RankAxis::kShard) == RankAxis::kAll;
    fmt::format_to(Out(text), "@{}*{}", all ? "rank" : "shard", ref.shard_stride);
  }
  if (ref.replica_stride != 0) fmt::format_to(Out(text), "@replica*{}", ref.replica_stride);
}

// The arguments whose mode `wanted` accepts, each after a space.
template <typename Wanted>
void AppendArgs(std::string& text, const Program& program, const LaunchKernel& launch,
                Wanted&& wanted) {
  const KernelRow& row = KernelInfo(launch.kernel);
  for (int i = 0; i < std::min<int>(launch.arg_count, row.args.size()); ++i) {
    const bool scratch = row.args[static_cast<size_t>(i)] == ArgMode::kScratch;
    const ArgMode mode = AccessMode(launch.kernel, i, launch.flags);
    if (!wanted(scratch, mode)) continue;
    text += scratch ? " ~" : mode == ArgMode::kInOut ? " &" : " ";
    const size_t index = launch.first_arg + static_cast<size_t>(i);
    AppendRef(text, program, index < program.refs.size() ? program.refs[index] : Ref{});
  }
}

// Inputs, "->", then outputs; '&' marks what is read and written, '~' scratch, '_' an absent
// argument.
void AppendOp(std::string& text, const Program& program, const LaunchKernel& launch) {
  if (!KernelExists(launch.kernel)) {
    text += "kernel?";
    return;
  }
  const KernelRow& row = KernelInfo(launch.kernel);
  text += row.name;
  const size_t inputs = text.size();
  AppendArgs(text, program, launch,
             [](bool scratch, ArgMode mode) { return !scratch && mode == ArgMode::kIn; });
  if (text.size() > inputs) text.insert(inputs, 1, ' ');
  text += " ->";
  AppendArgs(text, program, launch, [](bool scratch, ArgMode mode) {
    return !scratch && (mode == ArgMode::kOut || mode == ArgMode::kInOut);
  });
  AppendArgs(text, program, launch, [](bool scratch, ArgMode) { return scratch; });
  for (const auto& [bit, name] : kFlagNames) {
    if ((launch.flags & bit) != 0) fmt::format_to(Out(text), " {}", name);
  }
  const std::string dims = FormatDims(launch.kernel, launch.dims, launch.scalars);
  if (!dims.empty()) fmt::format_to(Out(text), "  ({})", dims);
}

void AppendOp(std::string& text, const Program& program, const Collective& collective) {
  fmt::format_to(Out(text), "{} {}{} ", CollectiveKindName(collective.kind),
                 DtypeName(collective.dtype), collective.scalar ? " scalar" : "");
  if (collective.axis != RankAxis::kAll) {
    fmt::format_to(Out(text), "over {} ", RankAxisName(collective.axis));
  }
  for (uint32_t i = 0; i < collective.segment_count; ++i) {
    if (collective.first_segment + i >= program.segments.size()) {
      text += " ?";
      break;
    }
    const Segment& segment = program.segments[collective.first_segment + i];
    text += i == 0 ? " " : ", ";
    AppendRef(text, program, segment.src);
    if (segment.unit >= 0) {
      fmt::format_to(Out(text), "(unit {} [{}, {}))", segment.unit, segment.begin, segment.end);
    }
    text += " -> ";
    AppendRef(text, program, segment.dst);
  }
}

void AppendOp(std::string& text, const Program& program, const Copy& copy) {
  text += "copy  ";
  AppendRef(text, program, copy.src);
  text += " -> ";
  AppendRef(text, program, copy.dst);
}

void AppendOp(std::string& text, const Program& program, const FileIo& io) {
  std::string file;
  if (io.target == FileTarget::kSwap) {
    AppendRef(file, program, io.file);
  } else {
    file = fmt::format("checkpoint:{}.unit[{}]+{}:{}", StateKindName(io.state), io.unit, io.begin,
                       io.count);
  }
  text += io.write ? "file_write  " : "file_read  ";
  if (!io.write) text += file + " -> ";
  AppendRef(text, program, io.host);
  if (io.write) text += " -> " + file;
}

void AppendOp(std::string& text, const Program& program, const Alloc& alloc) {
  text += "alloc  ";
  if (alloc.buffer >= program.buffers.size()) {
    AppendRef(text, program, {alloc.buffer, 0, 0, 0});
    return;
  }
  const Buffer& buffer = program.buffers[alloc.buffer];
  AppendRef(text, program, {alloc.buffer, 0, buffer.bytes, 0});
  fmt::format_to(Out(text), "  ({} bytes {})", buffer.bytes, DtypeName(buffer.dtype));
}

void AppendOp(std::string& text, const Program& program, const Free& free) {
  const bool known = free.buffer < program.buffers.size();
  text += "free  ";
  AppendRef(text, program, {free.buffer, 0, known ? program.buffers[free.buffer].bytes : 0, 0});
}

void AppendOp(std::string& text, const Program&, const RecordEvent& record) {
  fmt::format_to(Out(text), "record  event[{}]", record.event);
}

void AppendOp(std::string& text, const Program&, const WaitEvent& wait) {
  fmt::format_to(Out(text), "wait  event[{}]", wait.event);
}

}  // namespace

std::string_view RankAxisName(RankAxis axis) {
  using enum RankAxis;
  static constexpr Name<RankAxis> kNames[] = {
      {kAll, "all"}, {kShard, "shard"}, {kReplica, "replica"}, {kSequence, "sequence"}};
  return NameIn(kNames, axis);
}

std::string_view SpaceName(Space space) {
  using enum Space;
  static constexpr Name<Space> kNames[] = {
      {kDevice, "device"}, {kPinned, "pinned"}, {kPageable, "pageable"}, {kFile, "file"}};
  return NameIn(kNames, space);
}

std::string_view MemoryClassName(MemoryClass memory_class) {
  using enum MemoryClass;
  static constexpr Name<MemoryClass> kNames[] = {
      {kParams, "params"},           {kGrads, "grads"},     {kOptimizer, "optimizer"},
      {kActivations, "activations"}, {kBuffers, "buffers"},
  };
  return NameIn(kNames, memory_class);
}

std::string_view RoleName(Role role) {
  using enum Role;
  static constexpr Name<Role> kNames[] = {
      {kParamFull, "param_full"},
      {kParamShard, "param_shard"},
      {kGradFull, "grad_full"},
      {kGradShard, "grad_shard"},
      {kOptimizerState, "optimizer_state"},
      {kGradHost, "grad_host"},
      {kStateSlot, "state_slot"},
      {kParamSlot, "param_slot"},
      {kStaging, "staging"},
      {kTokens, "tokens"},
      {kTokensHost, "tokens_host"},
      {kState, "state"},
      {kStateHost, "state_host"},
      {kActivation, "activation"},
      {kActivationGrad, "activation_grad"},
      {kLogits, "logits"},
      {kKeysValues, "keys_values"},
      {kLoss, "loss"},
      {kWorkspace, "workspace"},
      {kReduceScratch, "reduce_scratch"},
      {kScales, "scales"},
  };
  return NameIn(kNames, role);
}

std::string_view StreamName(Stream stream) {
  using enum Stream;
  static constexpr Name<Stream> kNames[] = {
      {kCompute, "compute"},
      {kGather, "gather"},
      {kReduce, "reduce"},
      {kHostToDevice, "host_to_device"},
      {kDeviceToHost, "device_to_host"},
      {kHost, "host"},
      {kStorage, "storage"},
      {kStorageWrite, "storage_write"},
  };
  return NameIn(kNames, stream);
}

std::string_view SectionName(Section section) {
  using enum Section;
  static constexpr Name<Section> kNames[] = {
      {kInit, "init"},
      {kMicroStep, "micro_step"},
      {kOptimizerStep, "optimizer_step"},
      {kDrain, "drain"},
      {kEval, "eval"},
      {kGenerate, "generate"},
      {kSave, "save"},
      {kLoad, "load"},
      {kDecode, "decode"},
  };
  return NameIn(kNames, section);
}

std::string_view PhaseName(Phase phase) {
  using enum Phase;
  static constexpr Name<Phase> kNames[] = {
      {kInit, "init"}, {kForward, "forward"}, {kBackward, "backward"},
      {kStep, "step"}, {kSave, "save"},
  };
  return NameIn(kNames, phase);
}

std::string_view CollectiveKindName(CollectiveKind kind) {
  using enum CollectiveKind;
  static constexpr Name<CollectiveKind> kNames[] = {
      {kAllReduce, "all_reduce"}, {kReduceScatter, "reduce_scatter"},
      {kAllGather, "all_gather"}, {kReduceToOwners, "reduce_to_owners"},
      {kBroadcast, "broadcast"},  {kAllToAll, "all_to_all"},
  };
  return NameIn(kNames, kind);
}

std::string_view StateKindName(StateKind kind) {
  using enum StateKind;
  static constexpr Name<StateKind> kNames[] = {
      {kMaster, "master"}, {kFirst, "adam_m"}, {kSecond, "adam_v"}};
  return NameIn(kNames, kind);
}

Home HomeOf(Space space) {
  if (space == Space::kDevice) return Home::kDevice;
  return space == Space::kFile ? Home::kFile : Home::kHost;
}

When MicroStepKind(int64_t m, int64_t grad_accum) {
  if (grad_accum == 1) return kOnly;
  if (m == 0) return kFirst;
  return m == grad_accum - 1 ? kLast : kMiddle;
}

double LaunchBytes(const Program& program, const LaunchKernel& launch) {
  std::array<ArgShape, kMaxKernelArgs> args;
  size_t count = 0;
  for (const Ref& ref : program.args(launch)) {
    args[count++] =
        ref.null() ? ArgShape{} : ArgShape{ref.bytes, program.buffers[ref.buffer].dtype};
  }
  return KernelInfo(launch.kernel)
      .bytes({launch.kernel, launch.flags, launch.dims, {args.data(), count}});
}

std::string BufferName(const Buffer& buffer) {
  if (buffer.unit >= 0) return fmt::format("{}.unit[{}]", buffer.label, buffer.unit);
  if (buffer.layer == kEmbeddingLayer) return fmt::format("{}[embed]", buffer.label);
  if (buffer.layer >= 0) return fmt::format("{}[{}]", buffer.label, buffer.layer);
  return buffer.label;
}

std::string FormatWhen(uint8_t when) {
  constexpr Name<When> kNames[] = {
      {kOnly, "only"}, {kFirst, "first"}, {kMiddle, "middle"}, {kLast, "last"}};
  if ((when & kEvery) == kEvery) return "";
  std::string text;
  for (const auto& [kind, name] : kNames) {
    if ((when & kind) == 0) continue;
    text += text.empty() ? '[' : '|';
    text += name;
  }
  return text.empty() ? "[never]" : text + ']';
}

std::string FormatRef(const Program& program, const Ref& ref) {
  std::string text;
  AppendRef(text, program, ref);
  return text;
}

std::string FormatInstruction(const Program& program, const Instruction& instruction) {
  // Most streams' names have at most seven letters, so that columns line up.
  std::string text = fmt::format("{:<7}  ", StreamName(instruction.stream));
  if (const std::string when = FormatWhen(instruction.when); !when.empty()) text += when + ' ';
  std::visit([&](const auto& op) { AppendOp(text, program, op); }, instruction.op);
  return text;
}

std::string FormatLines(const Program& program, Section section, int64_t begin, int64_t end,
                        int64_t mark) {
  const std::vector<Instruction>& list = program.section(section);
  begin = std::max<int64_t>(begin, 0);
  end = std::min(end, static_cast<int64_t>(list.size()));
  std::string text = fmt::format("{}:\n", SectionName(section));
  for (int64_t i = begin; i < end; ++i) {
    text += i == mark ? "--> " : "    ";
    text += FormatInstruction(program, list[static_cast<size_t>(i)]);
    text += '\n';
  }
  return text;
}

std::string FormatSection(const Program& program, Section section, int64_t mark) {
  return FormatLines(program, section, 0, static_cast<int64_t>(program.section(section).size()),
                     mark);
}

std::string FormatProgram(const Program& program) {
  std::string text;
  for (int s = 0; s < kSections; ++s) {
    const auto section = static_cast<Section>(s);
    if (!program.section(section).empty()) text += FormatSection(program, section);
  }
  return text;
}

}  // namespace zeroplan
