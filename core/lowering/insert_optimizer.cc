// Pass 10: sections init and optimizer_step. Each rank updates the states it owns, wherever they
// live, and parameters that every rank keeps whole are gathered after (ZeRO paper, section 5.1; for
// states in host memory ZeRO-Offload, arXiv 2101.06840; on disk ZeRO-Infinity, arXiv 2104.07857).
#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/lowering/state_homes.h"
#include "core/program/step_state.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

KernelDims PieceDims(const StatePiece& piece) {
  return {static_cast<int64_t>(piece.count), piece.unit, static_cast<int64_t>(piece.begin)};
}
uint8_t PieceFlags(const Program& p) { return p.layout.owners() > 1 ? kOnRank : kNoFlags; }

// Masters that are not kept in fp32 are made in it, so many elements at a time.
void InitThroughFp32(Program& p, const StateHomes& homes, Emitter& emit, size_t i) {
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
    const bool in_fp32 = homes.InFp32(piece, StateKind::kMaster);
    const Ref master = homes.Master(p, i);
    if (in_fp32) {
      emit.Launch(KernelId::kParamInit, PieceDims(piece), PieceFlags(p), {master}, stream);
    } else {
      InitThroughFp32(p, homes, emit, i);
    }
    if (homes.has_moments() && piece.trainable) {
      for (const StateKind kind : kMomentKinds) fill(homes.StateRef(i, kind), stream);
    }
    homes.Store(emit, i);
    const Ref target = homes.ParamTarget(p, i);
    if (target.null()) continue;
    homes.ParamFromMaster(emit, piece, master, target);
    homes.FinishParam(emit, i, target);
  }
  homes.GatherParams(emit, StateHomes::Gathered::kAll);
  if (!homes.has_moments()) return;
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

// Copies the step's totals of routing, over all ranks, to the host: before the state, which the
// host waits for.
void EmitRouterTotals(Program& p, Emitter& emit) {
  if (p.router_totals_buffer == kNoBuffer) return;
  const Ref totals = Whole(p, p.router_totals_buffer);
  if (p.setup.batch.world_size > 1) emit.SumScalars(totals);
  emit.CopyTo(totals, Whole(p, p.router_totals_host_buffer));
}

void EmitStepScalars(Program& p, Emitter& emit) {
  if (p.setup.batch.world_size > 1) {
    // At stage 0 every rank has the whole gradient, so its norm is not summed.
    const bool own_norm = p.setup.zero.stage == 0;
    const uint64_t begin = own_norm ? offsetof(StepState, stop_requested) : 0;
    emit.SumScalars({p.state_buffer, begin, kReducedScalars * 8 - begin, 0});
  }
  emit.Launch(KernelId::kStepScalars, {}, kNoFlags, {Whole(p, p.state_buffer)});
  EmitRouterTotals(p, emit);
  emit.CopyTo(Whole(p, p.state_buffer), Whole(p, p.state_host_buffer));
}

// `device`: the stream that updates states on the device.
void EmitUpdate(Program& p, const StateHomes& homes, Emitter& emit, size_t i,
                Stream device = Stream::kCompute) {
  const StatePiece& piece = homes.pieces()[i];
  const bool halves = homes.FormOf(piece) == MasterForm::kHalf;
  const Ref target = homes.ParamTarget(p, i);
  const auto flags = static_cast<uint8_t>(PieceFlags(p) | (halves ? kAccumulate : kNoFlags));
  emit.Launch(KernelId::kAdamW, PieceDims(piece), flags,
              {homes.Grad(piece), homes.StepStateOf(piece), homes.StateRef(i, StateKind::kMaster),
               homes.StateRef(i, StateKind::kFirst), homes.StateRef(i, StateKind::kSecond),
               halves ? homes.Param(piece) : target},
              piece.on_device() ? device : StateHomes::KernelStream(piece));
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

// ---- updates in the backward pass (ZeroConfig::optimizer_in_backward) ----

// Sections micro_step and optimizer_step, where each piece is updated as soon as the last
// micro-step has its whole gradient and is done with its unit's parameters. Lomo (arXiv 2306.09782)
// and PyTorch's post-accumulate hooks do so for gradients that need no room; SuperOffload (arXiv
// 2509.21271) for the host's time.
class UpdatesInBackward {
 public:
  UpdatesInBackward(Program& p, const StateHomes& homes)
      : p_(p), homes_(homes), in_(std::move(p.section(Section::kMicroStep))), emit_(p, out_) {}

  void Build() {
    FindPlaces();
    for (size_t i = 0, k = 0; i < in_.size(); ++i) {
      out_.push_back(in_[i]);
      emit_.Tag(Phase::kBackward, -2, kCompletesGrads);
      if (i == loss_at_) EmitScalars();
      for (; k < order_.size() && place_[order_[k]] == i; ++k) EmitPiece(k);
    }
    for (const std::vector<BufferId>& used : used_) Release(used);
    p_.section(Section::kMicroStep) = std::move(out_);
    BuildRest();
  }

 private:
  // Behind which instruction the step's scalars and each piece come.
  void FindPlaces() {
    std::vector<size_t> last(p_.buffers.size(), 0);
    for (size_t i = 0; i < in_.size(); ++i) {
      if ((in_[i].when & kCompletesGrads) == 0) continue;
      const auto* launch = std::get_if<LaunchKernel>(&in_[i].op);
      if (launch != nullptr && launch->kernel == KernelId::kLossReduce) loss_at_ = i;
      ForEachTouched(p_, in_[i], [&](BufferId id) { last[id] = i; });
    }
    for (size_t k = 0; k < homes_.trained().size(); ++k) {
      const StatePiece& piece = homes_.pieces()[k];
      const BufferId grad = homes_.Grad(piece).buffer, param = homes_.Param(piece).buffer;
      place_.push_back(std::max({last[grad], last[param], loss_at_}));
      order_.push_back(k);
    }
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return place_[a] < place_[b]; });
  }

  // All that an update needs but the norm.
  void EmitScalars() {
    const Ref state = Whole(p_, p_.state_buffer), host = Whole(p_, p_.state_host_buffer);
    const uint64_t at = offsetof(StepState, stop_requested);
    emit_.CopyTo(host.Part(at, 8), state.Part(at, 8));
    if (p_.setup.batch.world_size > 1) emit_.SumScalars(state.Part(at, kReducedScalars * 8 - at));
    emit_.Launch(KernelId::kStepScalars, {}, kBeforeNorm, {state});
    emit_.CopyTo(state, host);
  }

  // The k-th in order of their places.
  void EmitPiece(size_t k) {
    if (fetched_ == k) homes_.Fetch(emit_, order_[fetched_++]);
    // One piece ahead, where it does not take the slot of the one before: slots go by pieces'
    // turns.
    const auto slot = [&](size_t at) {
      return homes_.StateRef(order_[at], StateKind::kMaster).buffer;
    };
    if (fetched_ < order_.size() && slot(fetched_) != slot(k)) {
      homes_.Fetch(emit_, order_[fetched_++]);
    }
    const StatePiece& piece = homes_.pieces()[order_[k]];
    std::vector<BufferId> used;
    if (piece.on_device()) {
      emit_.Launch(KernelId::kNormSq, {static_cast<int64_t>(piece.count)},
                   any_summed_ ? kAccumulate : kNoFlags,
                   {homes_.Grad(piece), Whole(p_, p_.state_buffer)}, Stream::kReduce);
      any_summed_ = true;
      const auto& launch = std::get<LaunchKernel>(out_.back().op);
      for (const Ref& ref : p_.args(launch)) {
        if (!ref.null() && !p_.buffers[ref.buffer].persistent) used.push_back(ref.buffer);
      }
    }
    EmitUpdate(p_, homes_, emit_, order_[k], Stream::kReduce);
    // Freed two pieces later, so that the compute stream, which frees, need not wait.
    used_.push_back(std::move(used));
    if (used_.size() <= 2) return;
    Release(used_.front());
    used_.pop_front();
  }

  void Release(const std::vector<BufferId>& buffers) {
    emit_.When(Accumulates(p_.setup) ? kCompletesGrads : kEvery);
    for (const BufferId id : buffers) emit_.Release(id);
    emit_.When(kCompletesGrads);
  }

  // What is left for the end of the step: the norm, and gathers of new parameters.
  void BuildRest() {
    Emitter emit(p_, p_.section(Section::kOptimizerStep));
    emit.Tag(Phase::kStep, -2);
    const Ref state = Whole(p_, p_.state_buffer), host = Whole(p_, p_.state_host_buffer);
    const uint64_t at = offsetof(StepState, grad_norm_sq);
    if (!any_summed_) emit.CopyTo(host.Part(at, 8), state.Part(at, 8));
    if (p_.setup.batch.world_size > 1) emit.SumScalars(state.Part(at, 8));
    emit.Launch(KernelId::kStepScalars, {}, kAfterNorm, {state});
    EmitRouterTotals(p_, emit);
    emit.CopyTo(state, host);
    homes_.GatherParams(emit, StateHomes::Gathered::kTrained);
  }

  Program& p_;
  const StateHomes& homes_;
  const std::vector<Instruction> in_;
  std::vector<Instruction> out_;
  Emitter emit_;
  size_t loss_at_ = 0;
  std::vector<size_t> place_, order_;       // by piece; pieces in the order of their places
  size_t fetched_ = 0;                      // of `order_`
  bool any_summed_ = false;                 // on the device
  std::deque<std::vector<BufferId>> used_;  // of the last pieces, not freed yet
};

}  // namespace

Program InsertOptimizer(Program p) {
  const StateHomes homes(p);
  BuildInit(p, homes);
  if (!homes.has_moments()) return p;
  if (p.setup.zero.optimizer_in_backward) {
    UpdatesInBackward(p, homes).Build();
  } else {
    BuildOptimizerStep(p, homes);
  }
  return p;
}

}  // namespace zeroplan
