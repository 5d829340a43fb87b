// A micro-step that waits for activations on their way to the host and back, by hand.
#include <doctest/doctest.h>

#include <vector>

#include "core/families/load_model.h"
#include "planner/search/time_bound.h"
#include "tests/planner/search/bounds_hold.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

// So many layers of 10 s forward and 20 s backward, 15 of them from where what comes back last is
// read; each but the last moves `bytes`, at a byte a second.
std::vector<MovedLayer> Layers(size_t count, double bytes) {
  std::vector<MovedLayer> layers(count, {10, 20, 15, bytes, bytes});
  layers.back().bytes = 0;
  return layers;
}

KernelTime Seconds(const std::vector<MovedLayer>& layers) {
  return SecondsWithMoves(layers, {7, 0, 3}, 1);
}

TEST_CASE("moves: copies that kernels hide cost nothing") {
  const KernelTime time = Seconds(Layers(6, 10));
  CHECK(time.forward_seconds == 6 * 10 + 7);
  CHECK(time.backward_seconds == 3 + 6 * 20);
}

TEST_CASE("moves: copies that take longer than kernels set the pace") {
  // The head waits for five copies out. The first one back begins behind the loss, and a layer's
  // backward pass has 15 s left when the last one is there.
  const KernelTime time = Seconds(Layers(6, 40));
  CHECK(time.forward_seconds == 5 * 40 + 7);
  CHECK(time.backward_seconds == 5 * 40 + 15);
}

TEST_CASE("moves: a layer alone has the turns up to the next one, and two on its way back") {
  std::vector<MovedLayer> layers = Layers(6, 0);
  layers[1].bytes = layers[1].room_bytes = 60;
  // Layer 1 is there after 10 s, has left after 70, and the head begins at 60.
  CHECK(Seconds(layers).forward_seconds == 70 + 7);
  // It comes back from layer 3's turn on, at 43, until 103, and layer 1 begins at 83.
  CHECK(Seconds(layers).backward_seconds == 103 + 15 + 20);
  layers[1].bytes = layers[1].room_bytes = 40;
  CHECK(Seconds(layers).forward_seconds == 6 * 10 + 7);
  CHECK(Seconds(layers).backward_seconds == 3 + 6 * 20);
  // What another layer uses, too, has room for longer: nothing waits for it.
  layers[1].bytes = 60;
  layers[1].room_bytes = 0;
  CHECK(Seconds(layers).forward_seconds == 6 * 10 + 7);
}

TEST_CASE("moves: a bound is near its program where PCIe sets the pace, and not above it") {
  SearchFixture fixture(LoadModel("llama3.2-1b"), 1);
  SearchInputs& in = fixture.inputs;
  in.base.batch.seq_len = 16'384;
  // Moves are bounded at the top clock, which the power limit does not leave a whole step.
  HardwareProfile hardware = fixture.profile;
  hardware.gpu.power.reset();
  const CostModel costs(hardware, in.clusters[0].cluster.shape());
  in.clusters[0].costs = &costs;
  const SearchCluster& at = in.clusters[0];
  Bounds bounds = BoundsOf(in);
  for (const int layers : {0, 12, 7, 3}) {
    Candidate candidate;
    candidate.grad_accum = 2;
    candidate.recompute = kSelectiveRecompute;
    candidate.recompute.offload = {OffloadDevice::kCpu, layers};
    CAPTURE(layers);
    CheckHolds(bounds, in, candidate);
    const ComputeBound& compute = bounds.Compute(1, candidate.recompute, *at.costs);
    const GroupBound group = bounds.Group(candidate, at.cluster, *at.costs);
    const Program program = Lower(in.model, SetupOf(candidate, in.base), in.lower);
    const StepTime time = StepTimer(*at.costs).Time(program);
    CHECK(Bounds::StepSeconds(group, compute, 2) >= 0.99 * time.total_seconds);
    if (layers == 0) CHECK(time.exposed_offload_seconds > 0.02 * time.total_seconds);
  }
}

}  // namespace
}  // namespace zeroplan
