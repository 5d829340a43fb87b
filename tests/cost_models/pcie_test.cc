// Bytes over PCIe: hand-computed, and the closed form against lowered programs.
#include <doctest/doctest.h>

#include "core/lowering/lower.h"
#include "core/program/step_state.h"
#include "core/settings/setup_facts.h"
#include "cost_models/closed_form.h"
#include "cost_models/traffic.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

TEST_CASE("1000 parameters in 16 bit on 4 ranks, 3 micro-steps") {
  PcieTerms t{.stage = 2, .psi = 1000, .grad_accum = 3, .ranks = 4, .optimizer_on_host = 1};
  CHECK(PcieBytesPerStep(t) ==
        3 * 250 * 2 + 250 * 2);  // gradients out three times, parameters in once
  t.stage = 1;
  CHECK(PcieBytesPerStep(t) == 250 * 2 + 250 * 2);
  t.optimizer_on_host = 0.4;
  CHECK(PcieBytesPerStep(t) == doctest::Approx(400));
  t = {.stage = 3,
       .psi = 1000,
       .psi_persistent = 200,
       .grad_accum = 1,
       .ranks = 4,
       .params_away = true};
  CHECK(PcieBytesPerStep(t) ==
        2 * 200 * 2 + 200 * 2);  // in twice, out once as the GPU updated them
  t.optimizer_on_host = 1;
  CHECK(PcieBytesPerStep(t) == 250 * 2 + (2 * 200 + 50) * 2);
}

// What each program copies besides: tokens every micro-step, the step state and its parts.
uint64_t SmallCopies(const Program& p) {
  const uint64_t tokens =
      p.buffers[p.tokens_buffer].bytes * static_cast<uint64_t>(p.setup.batch.grad_accum);
  const bool host = p.setup.zero.offload_optimizer.device != OffloadDevice::kNone;
  // The stop flag in, the whole state out; where gradients were summed on the host the norm in.
  return tokens + 8 + sizeof(StepState) + (host && !GradsInPlace(p.setup) ? 8 : 0);
}

TEST_CASE("lowered programs copy what the closed form says") {
  for (const testing::Cell& cell : testing::AllCells({1, 2, 4}, {Dtype::kBF16, Dtype::kF32})) {
    CAPTURE(cell.name);
    const Program p = Lower(testing::TinyModel(), cell.setup);
    const ZeroConfig& zero = cell.setup.zero;
    if (zero.stage == 0) continue;
    if (zero.stage == 3 && zero.max_reuse_distance != 0)
      continue;  // what is reused depends on the order
    PcieTerms t;
    t.stage = zero.stage;
    t.grad_accum = cell.setup.batch.grad_accum;
    t.ranks = cell.setup.batch.world_size;
    for (const Unit& unit : p.layout.units) {
      t.psi += static_cast<double>(unit.padded_elements);
      if (unit.persistent) t.psi_persistent += static_cast<double>(unit.padded_elements);
    }
    // The ratio counts whole 64-element groups.
    double offloaded = 0;
    for (const Buffer& buffer : p.buffers) {
      const bool away = HomeOf(buffer.space) != Home::kDevice;
      if (away && buffer.holds(StateKind::kMaster))
        offloaded += static_cast<double>(buffer.bytes / 4);
    }
    t.optimizer_on_host = offloaded * t.ranks / t.psi;
    t.params_away = zero.offload_param.device != OffloadDevice::kNone;
    t.param_bytes = t.stage1_grad_bytes = DtypeBytes(cell.setup.precision.dtype);
    CHECK(
        static_cast<double>(WalkTraffic(p).pcie_bytes()) ==
        doctest::Approx(PcieBytesPerStep(t) + static_cast<double>(SmallCopies(p))).epsilon(1e-12));
  }
}

}  // namespace
}  // namespace zeroplan
