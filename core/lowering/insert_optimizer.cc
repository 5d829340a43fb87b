// Pass 8: sections init and optimizer_step. Each rank updates the states it owns, wherever they
// live, and parameters that every rank keeps whole are gathered after (ZeRO paper, section 5.1; for
// states in host memory ZeRO-Offload, arXiv 2101.06840; on disk ZeRO-Infinity, arXiv 2104.07857).
#include <algorithm>
#include <cstddef>

#include "core/config/setup_facts.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/lowering/state_homes.h"
#include "core/program/step_state.h"

namespace zeroplan {
namespace {

KernelDims PieceDims(const StatePiece& piece) {
  return {static_cast<int64_t>(piece.count), piece.unit, static_cast<int64_t>(piece.begin)};
}
uint8_t PieceFlags(const Program& p) { return p.layout.owners() > 1 ? kOnRank : kNoFlags; }

// Masters in halves are made in fp32, so many elements at a time.
void InitHalves(Program& p, const StateHomes& homes, Emitter& emit, size_t i) {
  constexpr uint64_t kAtOnce = 1 << 24;
  const StatePiece& piece = homes.pieces()[i];
  SlotRing fresh(p,
                 {"fresh", Role::kStaging, Dtype::kF32,
                  piece.on_device() ? Space::kDevice : Space::kPageable, false},
                 1);
  for (uint64_t at = 0; at < piece.count; at += kAtOnce) {
    const uint64_t count = std::min(kAtOnce, piece.count - at);
    const Ref master = fresh.Next(count * DtypeBytes(Dtype::kF32));
    const KernelDims dims = {static_cast<int64_t>(count), piece.unit,
                             static_cast<int64_t>(piece.begin + at)};
    emit.Launch(KernelId::kParamInit, dims, PieceFlags(p), {master},
                StateHomes::KernelStream(piece));
    homes.StateFromFp32(emit, i, StateKind::kMaster, at, count, master);
  }
}

void BuildInit(Program& p, const StateHomes& homes) {
  Emitter emit(p, p.section(Section::kInit));
  emit.Tag(Phase::kInit, -2);
  p.section(Section::kInit).reserve(8 * homes.pieces().size() + p.layout.units.size() + 64);
  emit.CopyTo(Whole(p, p.state_host_buffer), Whole(p, p.state_buffer));
  auto fill = [&](const Ref& ref, Stream stream) {
    emit.Launch(KernelId::kFill, {static_cast<int64_t>(ref.bytes)}, kNoFlags, {ref}, stream);
  };
  for (size_t i = 0; i < homes.pieces().size(); ++i) {
    const StatePiece& piece = homes.pieces()[i];
    const Stream stream = StateHomes::KernelStream(piece);
    if (!homes.HasMaster(piece)) {
      fill(homes.Param(piece), stream);
      continue;
    }
    const bool halves = homes.FormOf(piece) == MasterForm::kHalf;
    const Ref master = halves ? Ref{} : homes.Master(p, i);
    if (halves) {
      InitHalves(p, homes, emit, i);
    } else {
      emit.Launch(KernelId::kParamInit, PieceDims(piece), PieceFlags(p), {master}, stream);
    }
    if (homes.has_adam() && piece.trainable) {
      fill(homes.StateRef(i, StateKind::kAdamM), stream);
      fill(homes.StateRef(i, StateKind::kAdamV), stream);
    }
    homes.Store(emit, i);
    const Ref target = homes.ParamTarget(p, i);
    if (target.null()) continue;
    homes.ParamFromMaster(emit, piece, master, target);
    homes.FinishParam(emit, i, target);
  }
  homes.GatherParams(emit, StateHomes::Gathered::kAll);
  if (!homes.has_adam()) return;
  // What no kernel writes of gradients that are accumulated in place must be zero: the alignment.
  if (GradsInPlace(p.setup)) {
    for (BufferId id : UnitBuffers(p, Role::kGradFull)) {
      if (id != kNoBuffer) fill(Whole(p, id), Stream::kCompute);
    }
  }
}

// Sum of squares of this rank's gradients to StepState::grad_norm_sq on the device. Those that came
// to the host one by one were summed there as they came (insert_offload).
void EmitNorm(Program& p, const StateHomes& homes, Emitter& emit) {
  const auto summed_on_host = [in_place = GradsInPlace(p.setup)](const StatePiece& piece) {
    return !in_place && !piece.on_device();
  };
  const bool any_on_host =
      std::any_of(homes.trained().begin(), homes.trained().end(), summed_on_host);
  if (any_on_host) {
    const uint64_t at = offsetof(StepState, grad_norm_sq);
    emit.CopyTo({p.state_host_buffer, at, 8, 0}, {p.state_buffer, at, 8, 0});
  }
  bool first = !any_on_host;
  for (const StatePiece& piece : homes.trained()) {
    if (summed_on_host(piece)) continue;
    emit.Launch(KernelId::kNormSq, {static_cast<int64_t>(piece.count)},
                first ? kNoFlags : kAccumulate,
                {homes.GradOnDevice(piece), Whole(p, p.state_buffer)});
    first = false;
  }
}

void EmitStepScalars(Program& p, Emitter& emit) {
  if (p.setup.batch.world_size > 1) {
    // At stage 0 every rank has the whole gradient, so its norm is not summed.
    const bool own_norm = p.setup.zero.stage == 0;
    const uint64_t begin = own_norm ? offsetof(StepState, stop_requested) : 0;
    emit.SumScalars({p.state_buffer, begin, kReducedScalars * 8 - begin, 0});
  }
  emit.Launch(KernelId::kStepScalars, {}, kNoFlags, {Whole(p, p.state_buffer)});
  emit.CopyTo(Whole(p, p.state_buffer), Whole(p, p.state_host_buffer));
}

void EmitUpdate(Program& p, const StateHomes& homes, Emitter& emit, size_t i) {
  const StatePiece& piece = homes.pieces()[i];
  const bool halves = homes.FormOf(piece) == MasterForm::kHalf;
  const Ref target = homes.ParamTarget(p, i);
  const auto flags = static_cast<uint8_t>(PieceFlags(p) | (halves ? kAccumulate : kNoFlags));
  emit.Launch(KernelId::kAdamW, PieceDims(piece), flags,
              {homes.Grad(piece), homes.StepStateOf(piece), homes.StateRef(i, StateKind::kMaster),
               homes.StateRef(i, StateKind::kAdamM), homes.StateRef(i, StateKind::kAdamV),
               halves ? homes.Param(piece) : target},
              StateHomes::KernelStream(piece));
  homes.FinishParam(emit, i, target);
  homes.Store(emit, i);
}

void BuildOptimizerStep(Program& p, const StateHomes& homes) {
  Emitter emit(p, p.section(Section::kOptimizerStep));
  emit.Tag(Phase::kStep, -2);
  p.section(Section::kOptimizerStep).reserve(12 * homes.pieces().size() + 64);
  const uint64_t at = offsetof(StepState, stop_requested);
  emit.CopyTo({p.state_host_buffer, at, 8, 0}, {p.state_buffer, at, 8, 0});
  if (GradsInPlace(p.setup)) {
    for (const StatePiece& piece : homes.trained()) {
      if (!piece.on_device()) emit.CopyTo(homes.GradOnDevice(piece), homes.Grad(piece));
    }
  }
  EmitNorm(p, homes, emit);
  EmitStepScalars(p, emit);
  // States on disk are read one piece ahead of their update, where there are slots for it.
  const size_t n = homes.trained().size();
  const size_t ahead = p.setup.zero.offload_optimizer.buffer_count >= 2 ? 1 : 0;
  if (ahead > 0) homes.Fetch(emit, 0);
  for (size_t i = 0; i < n; ++i) {
    if (i + ahead < n) homes.Fetch(emit, i + ahead);
    EmitUpdate(p, homes, emit, i);
  }
  homes.GatherParams(emit, StateHomes::Gathered::kTrained);
}

}  // namespace

Program InsertOptimizer(Program p) {
  const StateHomes homes(p);
  BuildInit(p, homes);
  if (homes.has_adam()) BuildOptimizerStep(p, homes);
  return p;
}

}  // namespace zeroplan
