// Pass 8: buffers of the optimizer states, of the gradients that their updates read, and the slots
// through which states and new parameters pass host memory. All later passes find them through
// StateHomes; none adds or resizes one.
#include <algorithm>

#include "core/base/error.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/lowering/state_homes.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

class StatePlacer {
 public:
  explicit StatePlacer(Program& p)
      : p_(p),
        offload_(p.setup.zero.offload_optimizer),
        offloaded_(OffloadedElements(p)),
        params_(RankParams(p)),
        trains_(!p.section(Section::kMicroStep).empty()) {
    const std::vector<Unit>& units = p.layout.units;
    const bool any =
        std::any_of(units.begin(), units.end(), [](const Unit& u) { return u.trainable; });
    ZEROPLAN_CHECK(any || !trains_, "no parameter of {} is trained", p.model.name);
  }

  void AddStates() {
    // Gradients that are accumulated in place are whole units, which are there already.
    if (trains_ && !GradsInPlace(p_.setup)) {
      for (size_t u = 0; u < offloaded_.size(); ++u) {
        Add("grad_shard", Role::kGradShard, p_.setup.precision.grad_accum_dtype, GradsOnDevice(u),
            u, Space::kDevice, MemoryClass::kGrads, !GradsAreTransient(p_.setup));
      }
    }
    for (size_t u = 0; u < offloaded_.size(); ++u) AddStatesOf(u);
  }

  // Slots for the pieces that need them, in turn: one for each state, in the order of StateKind.
  void AddSlots() {
    const std::vector<StatePiece> pieces = StatePieces(p_, offloaded_);
    const Space space = HostSpace(offload_.pin_memory);
    std::vector<SlotRing> states;  // by kind
    for (const Dtype dtype : p_.layout.states) {
      states.emplace_back(p_, SlotKind{"state_slot", Role::kStateSlot, dtype, space, true},
                          offload_.buffer_count);
    }
    for (const StatePiece& piece : pieces) {
      if (!TakesStateSlot(piece)) continue;
      for (size_t k = 0; k < states.size(); ++k) {
        states[k].Next(StoredBytes(p_.layout.states[k], piece.count));
      }
    }
    SlotRing params(p_, {"param_slot", Role::kParamSlot, p_.setup.precision.dtype, space, true},
                    offload_.buffer_count);
    for (const StatePiece& piece : pieces) {
      const Buffer& home = p_.buffers[params_[static_cast<size_t>(piece.unit)]];
      if (TakesParamSlot(piece, home)) params.Next(StoredBytes(home.dtype, piece.count));
    }
  }

 private:
  uint64_t OnDevice(size_t u) const {
    const Unit& unit = p_.layout.units[u];
    return unit.trainable ? unit.owned_elements() - offloaded_[u] : 0;
  }
  uint64_t GradsOnDevice(size_t u) const {
    const Unit& unit = p_.layout.units[u];
    return unit.trainable ? GradShardElements(p_.setup, unit) - offloaded_[u] : 0;
  }

  void AddStatesOf(size_t u) {
    const bool file = offload_.device == OffloadDevice::kNvme;
    const Home away = file ? Home::kFile : Home::kHost;
    const auto add = [&](StateKind kind, Home home, uint64_t elements) {
      Dtype dtype = p_.layout.StateDtype(kind);
      if (kind == StateKind::kMaster) {
        const MasterForm form = MasterFormOf(p_.setup.precision, p_.buffers[params_[u]], home);
        if (form == MasterForm::kParam) return;
        if (form == MasterForm::kHalf) dtype = Dtype::kI16;
      }
      const Space space = home == Home::kDevice ? Space::kDevice
                          : home == Home::kFile ? Space::kFile
                                                : Space::kPageable;
      Add(StateKindName(kind).data(), Role::kOptimizerState, dtype, elements, u, space,
          MemoryClass::kOptimizer, true, kind);
    };
    // Who only generates loads parameters straight into their precision.
    for (const StateKind kind : kStateKinds) {
      if (!trains_ && kind != StateKind::kMaster) continue;
      if (trains_) add(kind, Home::kDevice, OnDevice(u));
      add(kind, away, offloaded_[u]);
    }
    if (!trains_) return;
    Add("grads", Role::kGradHost, p_.setup.precision.grad_accum_dtype, offloaded_[u], u,
        HostSpace(offload_.pin_memory), MemoryClass::kGrads);
  }

  // Nothing where there are no elements.
  void Add(const char* label, Role role, Dtype dtype, uint64_t elements, size_t unit, Space space,
           MemoryClass memory_class, bool persistent = true, StateKind state = StateKind::kMaster) {
    if (elements == 0) return;
    const BufferId id = AddBuffer(p_, label, role, dtype, StoredBytes(dtype, elements));
    Buffer& buffer = p_.buffers[id];
    buffer.unit = static_cast<int32_t>(unit);
    buffer.space = space;
    buffer.persistent = persistent;
    buffer.memory_class = memory_class;
    buffer.state = state;
  }

  Program& p_;
  const ZeroConfig::OffloadOptimizer& offload_;
  const std::vector<uint64_t> offloaded_;
  const std::vector<BufferId> params_;
  const bool trains_;
};

}  // namespace

Program InsertStates(Program p) {
  StatePlacer placer(p);
  placer.AddStates();
  placer.AddSlots();
  return p;
}

}  // namespace zeroplan
