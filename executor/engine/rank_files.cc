#include "executor/engine/rank_files.h"

#include <algorithm>
#include <span>

#include "core/base/error.h"

namespace zeroplan {

namespace {

// First element within the unit.
uint64_t UnitBegin(const ParamLayout& layout, const FileIo& io, int rank) {
  const Unit& unit = layout.units[static_cast<size_t>(io.unit)];
  return layout.ShardOf(rank) * unit.shard_elements + io.begin;
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
  if (program.axes().Of(rank).replica != 0) return;
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
