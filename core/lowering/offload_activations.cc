// Pass 15: what is kept of a layer between its forward and its backward pass goes to host memory
// (ActivationHome). Each tensor has a place of its own there, to which it is copied behind the
// kernel that makes it, and comes back into a fresh buffer while layers above run backward. It is
// what InsertRecompute has left to be kept; what is computed again stays where it was.
//
// Turns are runs of instructions of one layer or segment in one phase. A tensor's memory is free
// again when the next turn whose tensors go to the host begins, but two turns later at the
// earliest, so that its copy has a turn's time, and behind the last layer at the latest; its copy
// back begins one turn before it is read, or two where nothing comes back for the turn between.
#include <algorithm>
#include <numeric>
#include <vector>

#include "core/lowering/emitter.h"
#include "core/lowering/kept_activations.h"
#include "core/lowering/passes.h"

namespace zeroplan {
namespace {

class ActivationOffloader {
 public:
  explicit ActivationOffloader(Program& program)
      : p_(program),
        kept_(KeptActivations(program)),
        list_(std::move(program.section(Section::kMicroStep))),
        emit_(program, out_),
        fresh_(program.buffers.size(), kNoBuffer) {}

  void Run() {
    FindTurns();
    Plan();
    out_.reserve(list_.size() + 3 * moved_.size());
    const std::vector<uint32_t> by_made = Order(&Moved::made);
    const std::vector<uint32_t> by_free = Order(&Moved::free_before);
    const std::vector<uint32_t> by_fetch = Order(&Moved::fetch_before);
    size_t made = 0, freed = 0, fetched = 0;
    for (uint32_t i = 0; i < list_.size(); ++i) {
      emit_.Tag(list_[i].phase, list_[i].layer, kEvery);
      for (; freed < by_free.size() && moved_[by_free[freed]].free_before == i; ++freed) {
        emit_.Release(moved_[by_free[freed]].device);
      }
      for (; fetched < by_fetch.size() && moved_[by_fetch[fetched]].fetch_before == i; ++fetched) {
        const Moved& moved = moved_[by_fetch[fetched]];
        emit_.CopyTo(Whole(p_, moved.host), Whole(p_, moved.back));
      }
      if (list_[i].phase == Phase::kBackward) RenameActivations(p_, list_[i], fresh_);
      out_.push_back(list_[i]);
      for (; made < by_made.size() && moved_[by_made[made]].made == i; ++made) {
        const Moved& moved = moved_[by_made[made]];
        emit_.CopyTo(Whole(p_, moved.device), Whole(p_, moved.host));
      }
    }
    p_.section(Section::kMicroStep) = std::move(out_);
  }

 private:
  // A tensor that goes to the host, and the instructions that its copies and its Free are beside.
  struct Moved {
    BufferId device = kNoBuffer, host = kNoBuffer, back = kNoBuffer;
    uint32_t made = 0, free_before = 0, fetch_before = 0;
  };
  struct Turn {
    uint32_t begin = 0;
    Phase phase = Phase::kForward;
    int64_t segment = 0;
  };

  int64_t SegmentOf(const Instruction& instruction) const {
    const int64_t layer = instruction.layer;
    const RecomputeConfig& recompute = p_.setup.recompute;
    const bool segments = layer >= 0 && layer < p_.model.layers && recompute.every > 1 &&
                          recompute.KindOf(layer) == RecomputeKind::kFull;
    return segments ? layer / recompute.every * recompute.every : layer;
  }

  void FindTurns() {
    turn_of_.resize(list_.size());
    for (uint32_t i = 0; i < list_.size(); ++i) {
      const bool computes =
          list_[i].stream == Stream::kCompute && std::holds_alternative<LaunchKernel>(list_[i].op);
      const bool same = !computes || (!turns_.empty() && list_[i].phase == turns_.back().phase &&
                                      SegmentOf(list_[i]) == turns_.back().segment);
      if (turns_.empty() || !same) turns_.push_back({i, list_[i].phase, SegmentOf(list_[i])});
      turn_of_[i] = static_cast<uint32_t>(turns_.size() - 1);
    }
  }

  void Plan() {
    for (const KeptActivation& kept : kept_) {
      const BufferId id = kept.buffer;
      const Buffer buffer = p_.buffers[id];
      if (!p_.setup.recompute.offload.Takes(buffer.layer, p_.model.layers)) continue;
      Moved moved;
      moved.device = id;
      moved.host = AddBuffer(p_, buffer.label, Role::kStaging, buffer.dtype, buffer.bytes);
      p_.buffers[moved.host].layer = buffer.layer;
      p_.buffers[moved.host].space = HostSpace(true);
      p_.buffers[moved.host].persistent = true;
      p_.buffers.push_back(buffer);
      moved.back = fresh_[id] = static_cast<BufferId>(p_.buffers.size() - 1);
      moved.made = kept.made;
      moved.free_before = turn_of_[kept.last_forward];
      moved.fetch_before = turn_of_[kept.first_backward];
      moved_.push_back(moved);
    }
    PlaceBesideTurns();
  }

  // From the turns of a tensor's last forward and first backward use to those at whose begin its
  // memory is freed and its copy back begins.
  void PlaceBesideTurns() {
    std::vector<bool> leaves(turns_.size(), false), comes(turns_.size(), false);
    for (const Moved& moved : moved_) {
      leaves[moved.free_before] = true;
      comes[moved.fetch_before] = true;
    }
    for (Moved& moved : moved_) {
      // Of the last layers it may be needed again before the next one leaves: not before it left.
      const uint32_t left = moved.free_before + 1;
      uint32_t fetch = std::max(left, moved.fetch_before - 1);
      if (fetch > left && !comes[fetch]) --fetch;
      uint32_t free = left + 1;
      while (free < fetch && turns_[free].segment < p_.model.layers && !leaves[free]) ++free;
      moved.fetch_before = turns_[fetch].begin;
      moved.free_before = turns_[std::min(free, fetch)].begin;
    }
  }

  // Indices of moved_ by rising `where`.
  std::vector<uint32_t> Order(uint32_t Moved::*where) const {
    std::vector<uint32_t> order(moved_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return moved_[a].*where < moved_[b].*where; });
    return order;
  }

  Program& p_;
  const std::vector<KeptActivation> kept_;
  std::vector<Instruction> list_, out_;
  Emitter emit_;
  std::vector<BufferId> fresh_;  // by buffer: what its copy back makes
  std::vector<Turn> turns_;
  std::vector<uint32_t> turn_of_;  // by instruction
  std::vector<Moved> moved_;
};

}  // namespace

Program OffloadActivations(Program p) {
  if (p.setup.recompute.offload.device == OffloadDevice::kNone) return p;
  if (p.section(Section::kMicroStep).empty()) return p;
  ActivationOffloader(p).Run();
  return p;
}

}  // namespace zeroplan
