#include "executor/engine/rank_runner.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <variant>

#include "core/base/error.h"
#include "core/base/long_work.h"
#include "core/program/step_order.h"
#include "executor/device/arena.h"
#include "executor/kernels/cpu_levels.h"

namespace zeroplan {

RankRunner::RankRunner(const Program& program, int rank, bool record_trace)
    : program_(program), rank_(rank), record_trace_(record_trace) {
  if (record_trace_) executed_.reserve(kTraceReserve);
  if (program_.embedding_rows == 0 && program_.head_rows == 0) return;
  for (const ParamTensor& tensor : *program_.layout.tensors) {
    if (tensor.tokens.empty()) continue;
    const bool of_embedding = tensor.layer == kEmbeddingLayer;
    if (of_embedding) {
      row_places_.assign(static_cast<size_t>(program_.model.vocab),
                         static_cast<int32_t>(program_.embedding_rows));
      int32_t place = 0;
      for (const int64_t token : tensor.tokens) row_places_[static_cast<size_t>(token)] = place++;
    }
    if (of_embedding && !program_.model.tied_head) continue;
    head_tokens_.assign(tensor.tokens.begin(), tensor.tokens.end());
    head_tokens_.resize(static_cast<size_t>(program_.head_rows), -1);
  }
}

void RankRunner::Run(Section section, When kind, int repetition) {
  Issue(section, kind, repetition);
  if (section == Section::kOptimizerStep) carries_work_ = true;
}

void RankRunner::Drain() {
  if (std::exchange(carries_work_, false)) Complete(Section::kDrain);
}

void RankRunner::FillTokens(const FillBatch& fill, int64_t micro_step) {
  AwaitTokens();
  place_.Set(Doing::kReadsBatch, Section::kMicroStep, 0, static_cast<int>(micro_step));
  const std::span<int32_t> input = inputs();
  const std::span<int32_t> target = {input.data() + input.size(), input.size()};
  const uint64_t starts_bytes = program_.starts_table_bytes(program_.tokens_host_buffer);
  const std::span<int32_t> starts = {
      target.data() + target.size(),
      program_.document_borders ? starts_bytes / sizeof(int32_t) : 0};
  fill(rank_, micro_step, input, target, starts);
  if (program_.numbers_sequences()) NumberSequences(micro_step);
  FillTokenRows(input);
  uncounted_ += std::count_if(target.begin(), target.end(), [](int32_t t) { return t < 0; });
  place_.Turn(Doing::kRuns);
}

void RankRunner::FillTokenRows(std::span<const int32_t> input) {
  const std::span<std::byte> bytes = HostBytes(program_.tokens_host_buffer);
  if (program_.head_rows > 0) {
    const Ref head = program_.head_tokens(program_.tokens_host_buffer);
    std::memcpy(bytes.data() + head.offset, head_tokens_.data(), head.bytes);
  }
  if (program_.embedding_rows == 0) return;
  const uint64_t offset = program_.row_places(program_.tokens_host_buffer).offset;
  auto* const places = reinterpret_cast<int32_t*>(bytes.data() + offset);
  for (size_t i = 0; i < input.size(); ++i) {
    const auto token = static_cast<size_t>(input[i]);
    places[i] = token < row_places_.size() ? row_places_[token]
                                           : static_cast<int32_t>(program_.embedding_rows);
  }
}

void RankRunner::NumberSequences(int64_t micro_step) {
  const BatchSpec& batch = program_.setup.batch;
  const StepState& state = host_state();
  const int64_t attempts = state.step + state.skipped_steps;
  const int64_t number =
      ((attempts * batch.grad_accum + micro_step) * batch.world_size + rank_) * batch.micro_batch;
  const std::span<std::byte> bytes = HostBytes(program_.tokens_host_buffer);
  static_assert(sizeof(number) == Program::kSequenceNumberBytes);
  std::memcpy(bytes.data() + bytes.size() - sizeof(number), &number, sizeof(number));
}

void RankRunner::WriteSaveCopy(StateSink& sink) const {
  for (const Instruction& instruction : program_.section(Section::kSave)) {
    const auto* io = std::get_if<FileIo>(&instruction.op);
    if (io == nullptr || io->target != FileTarget::kCheckpoint) continue;
    const Buffer& buffer = program_.buffers[io->host.buffer];
    ZEROPLAN_CHECK(IsSaveCopy(buffer), "{} is no copy to save from", BufferName(buffer));
    std::byte* begin = bases()[static_cast<size_t>(buffer.space)] + buffer.offset +
                       io->host.begin(program_.axes().Of(rank_));
    RunCheckpointIo(program_, *io, rank_, {.sink = &sink},
                    {reinterpret_cast<float*>(begin), io->count});
  }
}

std::string RankRunner::InstructionText(const Standpoint& at) const {
  const std::vector<Instruction>& section = program_.section(at.section);
  std::string text = fmt::format("instruction {} of {} of section {}, micro-step {}", at.index,
                                 section.size(), SectionName(at.section), at.repetition);
  if (at.index < section.size()) {
    text += fmt::format(" ({})", FormatInstruction(program_, section[at.index]));
  }
  return text;
}

std::string RankRunner::PlaceText() const {
  const Standpoint at = place_.get();
  switch (at.doing) {
    case Doing::kNothing:
      return "has ended its part";
    case Doing::kReadsBatch:
      return fmt::format("reads the batch of micro-step {}", at.repetition);
    case Doing::kRuns:
      return "is at " + InstructionText(at);
    case Doing::kMeetsOthers:
      return fmt::format("waits for the others in its collective {}, {}", place_.collectives(),
                         InstructionText(at));
    case Doing::kAwaitsGpu:
      return fmt::format("waits for its GPU, with {} collectives issued, up to {}",
                         place_.collectives(), InstructionText(at));
    case Doing::kAwaitsEvent:
      return "waits for an event at " + InstructionText(at);
  }
  return "is somewhere";
}

std::span<int32_t> RankRunner::inputs() {
  const std::span<std::byte> bytes = HostBytes(program_.tokens_host_buffer);
  const uint64_t table = program_.token_table_bytes(program_.tokens_host_buffer);
  return {reinterpret_cast<int32_t*>(bytes.data()), table / sizeof(int32_t)};
}

StepState& RankRunner::host_state() {
  const std::span<std::byte> bytes = HostBytes(program_.state_host_buffer);
  ZEROPLAN_CHECK(bytes.size() >= sizeof(StepState), "{} bytes for the step state", bytes.size());
  return *reinterpret_cast<StepState*>(bytes.data());
}

std::vector<double> RankRunner::HostDoubles(BufferId buffer) {
  const std::span<std::byte> bytes = HostBytes(buffer);
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
  return values;
}

std::vector<float> RankRunner::LogitsRow() {
  const std::span<std::byte> bytes = HostBytes(program_.logits_host_buffer);
  const Dtype dtype = program_.buffers[program_.logits_host_buffer].dtype;
  std::vector<float> logits(bytes.size() / DtypeBytes(dtype));
  BestCpuKernels().widen(dtype, bytes.data(), static_cast<int64_t>(logits.size()), logits.data());
  return logits;
}

Engine::Traffic RankRunner::TakeTraffic() {
  Engine::Traffic taken = std::exchange(traffic_, {});
  taken.file_read_bytes = files().TakeReadBytes();
  taken.file_write_bytes = files().TakeWrittenBytes();
  return taken;
}

void RankRunner::NoteTraffic(const Copy& copy, const ResolvedInstruction& resolved) {
  const bool from_device = program_.buffers[copy.src.buffer].space == Space::kDevice;
  const bool to_device = program_.buffers[copy.dst.buffer].space == Space::kDevice;
  if (to_device && !from_device) traffic_.host_to_device_bytes += resolved.bytes;
  if (from_device && !to_device) traffic_.device_to_host_bytes += resolved.bytes;
}

std::span<std::byte> RankRunner::HostBytes(BufferId id) {
  ZEROPLAN_CHECK(id != kNoBuffer, "the program has no such buffer");
  const Buffer& buffer = program_.buffers[id];
  ZEROPLAN_CHECK(buffer.space != Space::kDevice && buffer.space != Space::kFile,
                 "{} is not in host memory", BufferName(buffer));
  ZEROPLAN_CHECK(
      buffer.offset + buffer.bytes <= program_.arena_bytes[static_cast<size_t>(buffer.space)],
      "{} ends past its arena", BufferName(buffer));
  const std::span<std::byte> bytes(bases()[static_cast<size_t>(buffer.space)] + buffer.offset,
                                   buffer.bytes);
  UnpoisonBytes(bytes.data(), bytes.size());
  return bytes;
}

namespace {

// First element within the unit.
uint64_t UnitBegin(const ParamLayout& layout, const FileIo& io, int rank) {
  const Unit& unit = layout.units[static_cast<size_t>(io.unit)];
  return layout.OwnerOf(rank) * unit.owned_elements() + io.begin;
}

template <typename Visit>
void ForEachTensorRange(const Unit& unit, StateKind state, uint64_t begin, uint64_t count,
                        Visit&& visit) {
  for (const TensorSlot& slot : unit.slots) {
    const uint64_t from = std::max(begin, slot.offset);
    const uint64_t to = std::min(begin + count, slot.offset + slot.elements);
    if (from < to)
      visit(TensorRange{slot.tensor, state, from - slot.offset, to - from}, from - begin);
  }
}

}  // namespace

void ReadShard(const ParamLayout& layout, const FileIo& io, int rank, const StateSource* source,
               std::span<float> out) {
  ZEROPLAN_CHECK(out.size() >= io.count, "{} floats for {} elements", out.size(), io.count);
  std::fill(out.begin(), out.end(), 0.0f);
  if (source == nullptr) return;
  ThrowIfInterrupted();
  ForEachTensorRange(layout.units[static_cast<size_t>(io.unit)], io.state,
                     UnitBegin(layout, io, rank), io.count,
                     [&](const TensorRange& range, uint64_t position) {
                       source->Read(range, out.subspan(position, range.count));
                     });
}

void WriteShard(const ParamLayout& layout, const FileIo& io, int rank,
                std::span<const float> values, StateSink& sink) {
  ZEROPLAN_CHECK(values.size() >= io.count, "{} floats for {} elements", values.size(), io.count);
  ForEachTensorRange(layout.units[static_cast<size_t>(io.unit)], io.state,
                     UnitBegin(layout, io, rank), io.count,
                     [&](const TensorRange& range, uint64_t position) {
                       sink.Write(range, values.subspan(position, range.count));
                     });
}

void RunCheckpointIo(const Program& program, const FileIo& io, int rank,
                     const CheckpointBinding& binding, std::span<float> host) {
  if (!io.write) {
    const bool fresh = io.state != StateKind::kMaster && !binding.with_optimizer;
    ZEROPLAN_CHECK(fresh || binding.source != nullptr, "nothing to load from");
    ReadShard(program.layout, io, rank, fresh ? nullptr : binding.source, host);
    return;
  }
  if (binding.later) return;
  // Replicas hold the same: one copy is enough.
  if (!program.layout.FirstOwner(rank)) return;
  ZEROPLAN_CHECK(binding.sink != nullptr, "nothing to save to");
  WriteShard(program.layout, io, rank, host, *binding.sink);
}

void RankFiles::Run(const FileIo& io, const ResolvedInstruction& resolved) {
  switch (io.target) {
    case FileTarget::kSwap:
      return RunSwap(io, resolved);
    case FileTarget::kCheckpoint:
      return RunCheckpointIo(program_, io, rank_, binding_,
                             {reinterpret_cast<float*>(resolved.src), io.count});
  }
}

void RankFiles::RunSwap(const FileIo& io, const ResolvedInstruction& resolved) {
  const std::span<std::byte> host(resolved.src, resolved.bytes);
  if (io.write) {
    swap_.Write(resolved.file_offset, host);
    written_bytes_ += resolved.bytes;
  } else {
    swap_.Read(resolved.file_offset, host);
    read_bytes_ += resolved.bytes;
  }
}

}  // namespace zeroplan
