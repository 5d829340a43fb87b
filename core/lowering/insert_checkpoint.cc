// Pass 11: sections save and load. States travel as fp32 through host memory, a chunk at a time;
// what lies in host memory goes straight. With async_save all of them are copied to host memory of
// their own first, which files are written from.
#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/lowering/state_homes.h"
#include "core/model/lora.h"

namespace zeroplan {
namespace {

// So that the largest models' sections stay short: at most about this many chunks of each state.
constexpr uint64_t kMostChunks = 1024;

struct Context {
  const StateHomes& homes;
  Emitter& emit;
  SlotRing& slots;
  SlotRing& wide_on_device;  // states that are not kept in fp32, as fp32
  SlotRing& wide_on_host;
  uint64_t chunk;
  const ParamLayout& layout;
  std::vector<BufferId> copies;  // by unit; empty: files are written from where the states are
  bool memory_only = false;      // leaves out what memory does not depend on
};

// A buffer a unit: the rank's masters, then its first, then its second moments; of what is not
// trained its parameters alone, as masters.
std::vector<BufferId> AddSaveCopies(Program& p) {
  std::vector<BufferId> copies;
  for (size_t u = 0; u < p.layout.units.size(); ++u) {
    const Unit& unit = p.layout.units[u];
    if (!unit.trainable && HasAdapters(p.model)) {
      copies.push_back(kNoBuffer);
      continue;
    }
    const uint64_t bytes =
        (unit.trainable ? 3 : 1) * unit.owned_elements() * DtypeBytes(Dtype::kF32);
    const BufferId id = AddBuffer(p, "save_copy", Role::kStaging, Dtype::kF32, bytes);
    Buffer& buffer = p.buffers[id];
    buffer.unit = static_cast<int32_t>(u);
    buffer.space = Space::kPageable;
    buffer.persistent = true;
    copies.push_back(id);
  }
  return copies;
}

// Writes `count` elements from `at` on of a piece, which host memory holds at `from`.
void WriteState(Context& c, const Ref& from, const StatePiece& piece, StateKind kind, uint64_t at,
                uint64_t count) {
  Ref source = from;
  if (!c.copies.empty()) {
    const auto unit = static_cast<size_t>(piece.unit);
    const uint64_t before = static_cast<uint64_t>(kind) * c.layout.units[unit].owned_elements();
    source = {c.copies[unit], (before + piece.begin + at) * 4, count * 4, 0};
    c.emit.CopyTo(from, source);
  }
  c.emit.Checkpoint(true, source, piece.unit, kind, piece.begin + at, count);
}

// A state on the device, or one that is not kept in fp32, goes a chunk at a time, in fp32 on either
// side of PCIe.
void MoveState(Context& c, bool save, size_t index, StateKind kind, const Ref& state) {
  const StatePiece& piece = c.homes.pieces()[index];
  const bool on_device = piece.on_device(), in_fp32 = c.homes.InFp32(piece, kind);
  if (!on_device && in_fp32) {
    if (save) {
      WriteState(c, state, piece, kind, 0, piece.count);
    } else {
      c.emit.Checkpoint(false, state, piece.unit, kind, piece.begin, piece.count);
    }
    return;
  }
  SlotRing& wide = on_device ? c.wide_on_device : c.wide_on_host;
  for (uint64_t at = 0; at < piece.count; at += c.chunk) {
    const uint64_t count = std::min(c.chunk, piece.count - at);
    // Two chunks fewer, one a slot: others before and after them are as large.
    if (c.memory_only && at > 0 && piece.count - at > 4 * c.chunk) {
      at += c.chunk;
      continue;
    }
    const Ref values = in_fp32 ? state.Part(at * 4, count * 4) : wide.Next(count * 4);
    const Ref slot = on_device ? c.slots.Next(count * 4) : values;
    if (save) {
      if (!in_fp32) c.homes.StateToFp32(c.emit, index, kind, at, count, values);
      if (on_device) c.emit.CopyTo(values, slot);
      WriteState(c, slot, piece, kind, at, count);
    } else {
      c.emit.Checkpoint(false, slot, piece.unit, kind, piece.begin + at, count);
      if (on_device) c.emit.CopyTo(slot, values);
      if (!in_fp32) c.homes.StateFromFp32(c.emit, index, kind, at, count, values);
    }
  }
}

// Parameters of a program that has no masters, a chunk at a time: rounded on the device.
void LoadParam(Context& c, const StatePiece& piece, Dtype dtype) {
  const Ref param = c.homes.Param(piece);
  const uint64_t size = param.bytes / piece.count;
  for (uint64_t at = 0; at < piece.count; at += c.chunk) {
    const uint64_t count = std::min(c.chunk, piece.count - at);
    const Ref slot = c.slots.Next(count * 4), loaded = c.wide_on_device.Next(count * 4);
    c.emit.Checkpoint(false, slot, piece.unit, StateKind::kMaster, piece.begin + at, count);
    c.emit.CopyTo(slot, loaded);
    const bool rounded = piece.trainable && dtype == Dtype::kBF16;
    c.emit.Launch(KernelId::kConvert, {static_cast<int64_t>(count)}, rounded ? kHalfAway : kNoFlags,
                  {loaded, param.Part(at * size, count * size)});
  }
}

// kSave or kLoad. `from_copy`: files are written from a copy in host memory.
void BuildSection(Program& p, const StateHomes& homes, Section section, bool from_copy,
                  uint64_t chunk, Extent extent) {
  const bool save = section == Section::kSave, memory_only = extent != Extent::kWhole;
  Emitter emit(p, p.section(section));
  emit.Tag(save ? Phase::kSave : Phase::kInit, -2);
  // Transient: the slots live in this section only.
  SlotRing slots(p, {"checkpoint_slot", Role::kStaging, Dtype::kF32, Space::kPinned, false}, 2);
  SlotRing on_device(
      p, {save ? "saved" : "loaded", Role::kStaging, Dtype::kF32, Space::kDevice, false}, 2);
  SlotRing on_host(
      p, {save ? "saved" : "loaded", Role::kStaging, Dtype::kF32, Space::kPageable, false}, 2);
  Context c{homes, emit, slots, on_device, on_host, chunk, p.layout, {}, memory_only};
  if (save && from_copy) c.copies = AddSaveCopies(p);
  if (!save) emit.CopyTo(Whole(p, p.state_host_buffer), Whole(p, p.state_buffer));
  size_t chunks = 0;
  for (const StatePiece& piece : homes.pieces()) chunks += CeilDiv(piece.count, chunk);
  p.section(section).reserve(9 * chunks + 8 * homes.pieces().size() + 64);
  for (size_t i = 0; i < homes.pieces().size(); ++i) {
    const StatePiece& piece = homes.pieces()[i];
    if (save && !piece.trainable && HasAdapters(p.model)) continue;  // ParamRow::saved
    if (!homes.HasMaster(piece)) {
      LoadParam(c, piece, p.buffers[homes.Param(piece).buffer].dtype);
      continue;
    }
    // It touches no transient buffer.
    const bool in_fp32 = std::all_of(kStateKinds.begin(), kStateKinds.end(),
                                     [&](StateKind kind) { return homes.InFp32(piece, kind); });
    const bool of_no_transient = !piece.on_device() && piece.trainable && in_fp32;
    if (memory_only && of_no_transient && !p.section(section).empty()) continue;
    if (save) homes.Fetch(emit, i);
    const Ref master = homes.Master(p, i);
    if (save && !piece.trainable && !homes.MasterIsParam(piece)) {
      emit.Launch(KernelId::kConvert, {static_cast<int64_t>(piece.count)}, kNoFlags,
                  {homes.FetchParam(emit, i), master}, StateHomes::KernelStream(piece));
    }
    MoveState(c, save, i, StateKind::kMaster, master);
    if (homes.has_moments() && piece.trainable) {
      for (const StateKind kind : kMomentKinds)
        MoveState(c, save, i, kind, homes.StateRef(i, kind));
    }
    if (save) continue;
    homes.Store(emit, i);
    const Ref target = homes.ParamTarget(p, i);
    if (target.null()) continue;
    homes.ParamFromMaster(emit, piece, master, target);
    homes.FinishParam(emit, i, target);
  }
  if (!save && !memory_only) homes.GatherParams(emit, StateHomes::Gathered::kAll);
}

}  // namespace

Program InsertCheckpoint(Program p, const LowerOptions& options, Extent extent) {
  if (!options.checkpoints) return p;
  uint64_t elements = 0;
  for (const Unit& unit : p.layout.units) elements += unit.owned_elements();
  const StateHomes homes(p);
  const uint64_t chunk =
      AlignUp(std::max(options.checkpoint_chunk_elements, elements / kMostChunks), homes.align());
  if (homes.has_moments()) {
    BuildSection(p, homes, Section::kSave, options.async_save, chunk, extent);
  }
  BuildSection(p, homes, Section::kLoad, /*from_copy=*/false, chunk, extent);
  return p;
}

}  // namespace zeroplan
