#include "executor/engine/rank_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "executor/device/poison.h"
#include "executor/engine/checkpoint_io.h"
#include "executor/kernels/convert.h"

namespace zeroplan {
namespace {

constexpr size_t kTraceReserve = 1u << 14;

KernelContext MakeContext(const Program& program, int rank, uint64_t seed, ThreadPool* pool) {
  KernelContext context;
  context.program = &program;
  context.rank = rank;
  context.seed = seed;
  context.pool = pool;
  return context;
}

}  // namespace

RankEngine::RankEngine(const Program& program, const EngineOptions& options, int rank, int threads,
                       Communicator& communicator, Clock::time_point built)
    : program_(program),
      rank_(rank),
      record_trace_(options.record_trace),
      built_(built),
      communicator_(communicator),
      kernels_(CpuKernels()),
      arenas_(program, rank, options.swap_dir, options.pattern_arenas),
      resolved_(program, arenas_.bases(), kernels_, rank, communicator.world_size()),
      pool_(threads),
      context_(MakeContext(program, rank, options.seed, &pool_)) {
  // The state's start values are written before section init has allocated anything.
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent) arenas_.MarkLive(buffer);
  }
  if (options.random_order_seed != 0) random_order_.emplace(program, options.random_order_seed);
  if (record_trace_) {
    executed_.reserve(kTraceReserve);
    spans_.reserve(kTraceReserve);
  }
}

void RankEngine::RunSection(Section section, When kind, int repetition) {
  if (random_order_) {
    // What an earlier section left is no micro-step's: its repetition is 0.
    random_order_->Run(section, kind, [&](Section of, size_t index) {
      Execute(of, index, of == section ? repetition : 0);
    });
    return;
  }
  const std::vector<Instruction>& instructions = program_.section(section);
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (section == Section::kMicroStep && (instructions[i].when & kind) == 0) continue;
    Execute(section, i, repetition);
  }
}

void RankEngine::Execute(Section section, size_t index, int repetition) {
  const Instruction& instruction = program_.section(section)[index];
  const ResolvedInstruction& resolved = resolved_.section(section)[index];
  const double begin = record_trace_ ? Seconds() : 0;
  try {
    Dispatch(instruction, resolved);
  } catch (const CheckFailure& failure) {
    throw CheckFailure(fmt::format("{}\n  rank {}, section {}, instruction {}: {}", failure.what(),
                                   rank_, SectionName(section), index,
                                   FormatInstruction(program_, instruction)));
  }
  for (size_t space = 0; space < touched_bytes_.size(); ++space) {
    touched_bytes_[space] = std::max(touched_bytes_[space], resolved.touched_end[space]);
  }
  if (record_trace_) {
    executed_.push_back({section, static_cast<int32_t>(index), repetition});
    spans_.push_back({section, static_cast<int32_t>(index), begin, Seconds()});
  }
}

void RankEngine::Dispatch(const Instruction& instruction, const ResolvedInstruction& resolved) {
  std::visit(Overload{
                 [&](const LaunchKernel& launch) { Run(launch, resolved); },
                 [&](const Collective& collective) { Run(collective, resolved); },
                 [&](const Copy& copy) { Run(copy, resolved); },
                 [&](const FileIo& io) { Run(io, resolved); },
                 [&](const Alloc& alloc) { arenas_.MarkLive(program_.buffers[alloc.buffer]); },
                 [&](const Free& free) { arenas_.MarkFree(program_.buffers[free.buffer]); },
                 // A rank runs one instruction at a time, in an order that respects the events.
                 [](const RecordEvent&) {},
                 [](const WaitEvent&) {},
             },
             instruction.op);
}

void RankEngine::Run(const LaunchKernel& launch, const ResolvedInstruction& resolved) {
  kernels_.rows[static_cast<size_t>(launch.kernel)]({launch.kernel, launch.flags, launch.dims,
                                                     resolved_.args(resolved), context_,
                                                     launch.scalars});
}

void RankEngine::Run(const Collective& collective, const ResolvedInstruction& resolved) {
  communicator_.Run(rank_, {collective.kind, collective.dtype, resolved_.segments(resolved)},
                    &pool_);
  (collective.scalar ? traffic_.scalar_bytes : traffic_.collective_bytes) += resolved.bytes;
}

void RankEngine::Run(const Copy& copy, const ResolvedInstruction& resolved) {
  std::memcpy(resolved.dst, resolved.src, resolved.bytes);
  const bool from_device = program_.buffers[copy.src.buffer].space == Space::kDevice;
  const bool to_device = program_.buffers[copy.dst.buffer].space == Space::kDevice;
  if (to_device && !from_device) traffic_.host_to_device_bytes += resolved.bytes;
  if (from_device && !to_device) traffic_.device_to_host_bytes += resolved.bytes;
}

void RankEngine::Run(const FileIo& io, const ResolvedInstruction& resolved) {
  switch (io.target) {
    case FileTarget::kSwap:
      return RunSwap(io, resolved);
    case FileTarget::kCheckpoint:
      return RunCheckpointIo(program_, io, rank_, checkpoint_,
                             {reinterpret_cast<float*>(resolved.src), io.count});
  }
}

void RankEngine::RunSwap(const FileIo& io, const ResolvedInstruction& resolved) {
  const std::span<std::byte> host(resolved.src, resolved.bytes);
  if (io.write) {
    arenas_.file().Write(resolved.file_offset, host);
    traffic_.file_write_bytes += resolved.bytes;
  } else {
    arenas_.file().Read(resolved.file_offset, host);
    traffic_.file_read_bytes += resolved.bytes;
  }
}

std::span<std::byte> RankEngine::HostBytes(BufferId id) {
  ZEROPLAN_CHECK(id != kNoBuffer, "the program has no such buffer");
  const std::span<std::byte> bytes = arenas_.bytes(program_.buffers[id]);
  UnpoisonBytes(bytes.data(), bytes.size());
  return bytes;
}

StepState& RankEngine::host_state() {
  const std::span<std::byte> bytes = HostBytes(program_.state_host_buffer);
  ZEROPLAN_CHECK(bytes.size() >= sizeof(StepState), "{} bytes for the step state", bytes.size());
  return *reinterpret_cast<StepState*>(bytes.data());
}

std::span<int32_t> RankEngine::inputs() {
  const std::span<std::byte> bytes = HostBytes(program_.tokens_host_buffer);
  return {reinterpret_cast<int32_t*>(bytes.data()), bytes.size() / sizeof(int32_t) / 2};
}

void RankEngine::FillTokens(const FillBatch& fill, int64_t micro_step) {
  const std::span<int32_t> input = inputs();
  fill(rank_, micro_step, input, {input.data() + input.size(), input.size()});
}

std::vector<float> RankEngine::LogitsAsFloat() {
  const std::span<std::byte> bytes = HostBytes(program_.logits_host_buffer);
  const Dtype dtype = program_.buffers[program_.logits_host_buffer].dtype;
  std::vector<float> logits(bytes.size() / DtypeBytes(dtype));
  Widen(dtype, bytes.data(), static_cast<int64_t>(logits.size()), logits.data());
  return logits;
}

double RankEngine::Seconds() const {
  return std::chrono::duration<double>(Clock::now() - built_).count();
}

}  // namespace zeroplan
