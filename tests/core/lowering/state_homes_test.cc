// Pieces of optimizer states, where they live, and the view that passes get at them through.
#include "core/lowering/state_homes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/lowering/passes.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

Program WithStates(const TrainSetup& setup) {
  const ModelSpec model = testing::TinyModel(1);
  const LowerOptions options;
  return PassRunner{.input = {options}, .until = "InsertStates"}.Run(
      EmptyProgram(model, std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model)),
                   setup, options));
}

TrainSetup Offloaded(int stage, testing::Offload offload) {
  TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, 1, kNoRecompute);
  testing::SetOffload(setup, offload);
  return setup;
}

TEST_CASE("state pieces: the last units are offloaded first, in sub-groups") {
  TrainSetup setup = Offloaded(2, testing::Offload::kRatio);
  setup.zero.sub_group_elements = 1000;
  const Program program = WithStates(setup);
  const std::vector<uint64_t> offloaded = OffloadedElements(program);
  const std::vector<Unit>& units = program.layout.units;
  uint64_t all = 0, away = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    all += units[u].shard_elements;
    away += offloaded[u];
    const bool later_is_away =
        u + 1 == units.size() || offloaded[u + 1] == units[u + 1].shard_elements;
    CHECK((offloaded[u] == 0 || later_is_away));
  }
  CHECK(static_cast<double>(away) >= 0.4 * static_cast<double>(all));
  CHECK(static_cast<double>(away) <
        0.4 * static_cast<double>(all) + static_cast<double>(kShardAlignElements));

  // Pieces cover each shard, the part away first.
  std::vector<uint64_t> covered(units.size(), 0);
  for (const StatePiece& piece : StatePieces(program, offloaded)) {
    const auto u = static_cast<size_t>(piece.unit);
    CHECK(piece.begin == covered[u]);
    CHECK(piece.on_device() == (piece.begin >= offloaded[u]));
    if (!piece.on_device()) CHECK(piece.count <= 1000);
    covered[u] += piece.count;
  }
  for (size_t u = 0; u < units.size(); ++u) CHECK(covered[u] == units[u].shard_elements);
}

TEST_CASE("state homes: a range of gradients is cut where its states are") {
  const Program program = WithStates(Offloaded(2, testing::Offload::kRatio));
  const StateHomes homes(program);
  const std::vector<uint64_t> offloaded = OffloadedElements(program);
  const auto cut = static_cast<int>(
      std::find_if(offloaded.begin(), offloaded.end(), [](uint64_t h) { return h > 0; }) -
      offloaded.begin());
  const uint64_t h = offloaded[static_cast<size_t>(cut)];
  const uint64_t shard = program.layout.units[static_cast<size_t>(cut)].shard_elements;
  REQUIRE(h < shard);
  const auto [host, device] = homes.GradHomes(cut, h - 10, h + 20);
  CHECK(host.begin == h - 10);
  CHECK(host.end == h);
  CHECK(program.buffers[host.home.buffer].role == Role::kGradHost);
  CHECK(host.home.offset == (h - 10) * 2);
  CHECK(host.home.bytes == 20);
  CHECK(device.begin == h);
  CHECK(device.end == h + 20);
  CHECK(program.buffers[device.home.buffer].role == Role::kGradShard);
  CHECK(device.home.offset == 0);
  CHECK(device.home.bytes == 40);
  CHECK(program.buffers[device.home.buffer].bytes == (shard - h) * 2);

  CHECK(homes.GradHomes(cut, 0, h)[1].home.null());
  CHECK(homes.GradHomes(cut, h, shard)[0].home.null());
}

TEST_CASE("state homes: where gradients are in place, the update on the host reads a copy") {
  const Program program = WithStates(Offloaded(1, testing::Offload::kOptimizer));
  const StateHomes homes(program);
  for (const StatePiece& piece : homes.pieces()) {
    REQUIRE_FALSE(piece.on_device());
    CHECK(program.buffers[homes.Grad(piece).buffer].role == Role::kGradHost);
    const Ref device = homes.GradOnDevice(piece);
    CHECK(program.buffers[device.buffer].role == Role::kGradFull);
    const uint64_t shard = program.layout.units[static_cast<size_t>(piece.unit)].shard_elements;
    CHECK(device.shard_stride == shard * 2);
    CHECK(homes.StepStateOf(piece).buffer == program.state_host_buffer);
  }
}

TEST_CASE("state homes: states on disk take their slots in turn") {
  TrainSetup setup = Offloaded(2, testing::Offload::kNvme);
  setup.zero.offload_optimizer.buffer_count = 2;
  const Program program = WithStates(setup);
  const StateHomes homes(program);
  REQUIRE(homes.pieces().size() > 2);
  for (size_t i = 0; i + 2 < homes.pieces().size(); ++i) {
    const Ref slot = homes.StateRef(i, StateKind::kMaster);
    CHECK(program.buffers[slot.buffer].role == Role::kStateSlot);
    CHECK(slot.buffer == homes.StateRef(i + 2, StateKind::kMaster).buffer);
    CHECK(slot.buffer != homes.StateRef(i + 1, StateKind::kMaster).buffer);
    CHECK(program.buffers[slot.buffer].bytes >= homes.pieces()[i].count * 4);
    CHECK(slot.buffer != homes.StateRef(i, StateKind::kFirst).buffer);
  }
}

TEST_CASE("state homes: in fp32 on the device the parameters are the masters") {
  TrainSetup setup = testing::BaseSetup(1, 2, Dtype::kF32, 1, kNoRecompute);
  const Program program = WithStates(setup);
  const StateHomes homes(program);
  for (size_t i = 0; i < homes.pieces().size(); ++i) {
    CHECK(homes.MasterIsParam(homes.pieces()[i]));
    CHECK(program.buffers[homes.StateRef(i, StateKind::kMaster).buffer].role == Role::kParamFull);
  }
  for (const Buffer& buffer : program.buffers) CHECK_FALSE(buffer.holds(StateKind::kMaster));
}

}  // namespace
}  // namespace zeroplan
