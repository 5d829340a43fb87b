// What train says where a run does not fit this machine's host memory.
#include "cli/run/train/host_fit.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/footprint.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/tiny_model.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

ModelSpec FittedModel() {
  return testing::TinyModel({.name = "small",
                             .layers = 4,
                             .hidden = 128,
                             .heads = 4,
                             .ffn = 512,
                             .vocab = 1000,
                             .padded_vocab = 1024,
                             .positions = 128});
}

TrainSetup SmallSetup() {
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  setup.batch = {8, 2, 2, 128};
  return setup;
}

// Unlike the default in every field that changes bytes.
LowerOptions RunOptions() {
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.logits_chunk_bytes = 1 << 20;
  lower.flash_attention = false;
  lower.checkpoint_chunk_elements = 1 << 12;
  return lower;
}

// All ranks' arenas but the files'.
uint64_t HostBytes(const TrainSetup& setup, const LowerOptions& lower) {
  const Program program = Lower(FittedModel(), setup, lower);
  const auto ranks = static_cast<uint64_t>(setup.batch.world_size);
  return ranks * (program.arena_bytes[0] + program.arena_bytes[1] + program.arena_bytes[2]);
}

const ChoiceOrigin kOptions;
const ChoiceOrigin kConfig{ChoiceOrigin::Kind::kConfig, "ds.json"};
const ChoiceOrigin kPlanOrigin{ChoiceOrigin::Kind::kPlan, "plan.json"};

// What CheckFitsHost says where `available` bytes are free on the host of all ranks; empty if
// nothing.
std::string Says(const TrainSetup& setup, const LowerOptions& lower, const ChoiceOrigin& origin,
                 uint64_t available) {
  const Program program = Lower(FittedModel(), setup, lower);
  return ErrorOf(ExitCode::kNothingFits, [&] {
    CheckFitsHost(program, lower, origin, setup.batch.world_size, {available});
  });
}

TEST_CASE("host fit: exactly full fits; a byte less does not, and the message says by how much") {
  const TrainSetup setup = SmallSetup();
  const uint64_t needs = HostBytes(setup, RunOptions());
  const Program program = Lower(FittedModel(), setup, RunOptions());
  CHECK_NOTHROW(CheckFitsHost(program, RunOptions(), kOptions, 2, {needs}));
  CHECK_NOTHROW(CheckFitsHost(program, RunOptions(), kOptions, 1, {needs / 2}));
  const std::string message = Says(setup, RunOptions(), kOptions, needs - 1);
  CHECK(message.starts_with("host memory short by 1 B: 2 ranks of this plan need " +
                            FormatBytes(needs)));
  CHECK(Has(message, wording::kSelectiveFitsWith));
}

TEST_CASE("host fit: proposals are lowered with the run's own options") {
  TrainSetup selective = SmallSetup(), products = SmallSetup(), full = SmallSetup();
  selective.recompute = kSelectiveRecompute;
  products.recompute = kProductsRecompute;
  full.recompute = FullRecompute();
  const uint64_t needs = HostBytes(selective, RunOptions());
  // The default options would have it fit, or not, elsewhere.
  CHECK(HostBytes(selective, LowerOptions{}) != needs);
  CHECK(Has(Says(SmallSetup(), RunOptions(), kOptions, needs),
            "; --checkpointing selective fits with " + FormatBytes(needs)));
  CHECK(Has(
      Says(SmallSetup(), RunOptions(), kOptions, needs - 1),
      "; --checkpointing products fits with " + FormatBytes(HostBytes(products, RunOptions()))));
  CHECK(Has(Says(SmallSetup(), RunOptions(), kOptions, HostBytes(products, RunOptions()) - 1),
            "; --checkpointing full fits with " + FormatBytes(HostBytes(full, RunOptions()))));
}

TEST_CASE("host fit: beside a plan or a config no option is proposed that they refuse") {
  const uint64_t needs = HostBytes(SmallSetup(), RunOptions());
  const std::string plan = Says(SmallSetup(), RunOptions(), kPlanOrigin, needs - 1);
  CHECK(Has(plan, wording::kPlanAgainWithSelectiveWhich));
  const std::string config = Says(SmallSetup(), RunOptions(), kConfig, needs - 1);
  CHECK(Has(config, wording::kDsJsonFitsWith));
  CHECK(Has(config, wording::kIfChangedToStageSelective));
  CHECK(Lacks(config, "--"));
  CHECK(
      Has(Says(SmallSetup(), RunOptions(), kPlanOrigin, 1000), wording::kNoSmallerChoiceFitsPlan));
  CHECK(Has(Says(SmallSetup(), RunOptions(), kOptions, 1000), wording::kNoSmallerChoiceFitsFewer));
}

TEST_CASE("host fit: what goes to disk is given as options that train takes") {
  TrainSetup setup = SmallSetup();
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.zero.offload_optimizer.ratio = 0.5;
  setup.zero.sub_group_elements = 1 << 12;
  TrainSetup on_disk = setup;
  on_disk.zero.stage = 3;
  on_disk.zero.offload_optimizer.device = on_disk.zero.offload_param.device = OffloadDevice::kNvme;
  on_disk.zero.offload_optimizer.ratio = 1;
  on_disk.recompute = FullRecompute();
  on_disk.batch.micro_batch = 1;
  CHECK_NOTHROW(ValidateSetup(on_disk, "command line"));
  const uint64_t needs = HostBytes(on_disk, RunOptions());
  const std::string message = Says(setup, RunOptions(), kOptions, needs);
  CHECK(Has(message, "--offload-optimizer nvme"));
  CHECK(Has(message, "--offload-ratio 1 --nvme-path DIR fits with " + FormatBytes(needs)));
  CHECK(Lacks(Says(setup, RunOptions(), kPlanOrigin, needs), "--nvme-path"));
}

TEST_CASE("host fit: of a run on GPUs the host holds what is offloaded, of its own ranks") {
  TrainSetup setup = SmallSetup();
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.batch.world_size = 4;
  const Program program = Lower(FittedModel(), setup, RunOptions());
  const uint64_t needs = 3 * (program.arena_bytes[1] + program.arena_bytes[2]);
  CHECK_NOTHROW(CheckOffloadFitsHost(program, kOptions, 3, {needs}));
  const auto says = [&](const ChoiceOrigin& origin) {
    return ErrorOf(ExitCode::kNothingFits,
                   [&] { CheckOffloadFitsHost(program, origin, 3, {needs - 1}); });
  };
  CHECK(says(kOptions).starts_with("host memory short by 1 B: 3 ranks here need " +
                                   FormatBytes(needs)));
  const HostRoom group{needs - 1, "the control group's limit of 9 GB (memory.max) leaves"};
  CHECK(Has(
      ErrorOf(ExitCode::kNothingFits, [&] { CheckOffloadFitsHost(program, kOptions, 3, group); }),
      ", the control group's limit of 9 GB (memory.max) leaves " + FormatBytes(needs - 1) +
          " free; "));
  CHECK(Has(says(kOptions), "; offload less (--offload-ratio)"));
  CHECK(Has(says(kPlanOrigin), wording::kPlanAgainWith));
  CHECK(Lacks(says(kConfig), "--"));

  setup.recompute.offload = {OffloadDevice::kCpu};
  const Program more = Lower(FittedModel(), setup, RunOptions());
  const auto fix = [&](const ChoiceOrigin& origin) {
    return ErrorOf(ExitCode::kNothingFits, [&] { CheckOffloadFitsHost(more, origin, 3, {1}); });
  };
  CHECK(Has(fix(kOptions), wording::kOffloadActivationsOfFewerLayers));
  CHECK(Has(fix(kConfig), wording::kZeroplanOffloadActivationLayers));
  CHECK(Lacks(fix(kConfig), "--"));
}

}  // namespace
}  // namespace zeroplan
