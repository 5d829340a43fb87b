#include "core/program/bucket_sizes.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

ParamLayout LayoutOf(std::initializer_list<std::pair<int, uint64_t>> units) {
  ParamLayout layout;
  for (const auto& [layer, elements] : units) {
    layout.units.push_back({.layer = layer, .persistent = false, .slots = {}});
    layout.units.back().padded_elements = elements;
  }
  return layout;
}

TEST_CASE("bucket sizes: auto is the largest layer, its persistent units too") {
  const ParamLayout layout = LayoutOf({{kEmbeddingLayer, 50'000'000},
                                       {0, 6'000'000},
                                       {0, 3'000'000},
                                       {1, 4'000'000},
                                       {2, 20'000'000}});
  ZeroConfig zero;
  CHECK(ReduceBucketElements(zero, layout, 2) == 9'000'000);
  CHECK(ReduceBucketElements(zero, LayoutOf({{0, 100}}), 1) == kLeastAutoBucket);
  zero.reduce_bucket_elements = 77;
  CHECK(ReduceBucketElements(zero, layout, 2) == 77);
}

TEST_CASE("bucket sizes: the gathers' default is the reductions' where the two overlap compute") {
  ZeroConfig zero;
  CHECK(GatherBucketElements(zero, 1000) == 1000);
  zero.overlap_comm = false;
  CHECK(GatherBucketElements(zero, 1000) == ZeroConfig{}.allgather_bucket_elements);
  zero.overlap_comm = true;
  zero.allgather_bucket_elements = 4000;
  CHECK(GatherBucketElements(zero, 1000) == 4000);
}

TEST_CASE("bucket sizes: a limit below two layers is warned of, with one that is enough") {
  ParamLayout layout = LayoutOf({{kEmbeddingLayer, 0}, {0, 0}, {1, 0}, {1, 0}, {2, 0}, {3, 0}});
  // The last one is the head.
  const uint64_t elements[] = {900'000'000, 400'000'000, 1'000'000,
                               599'000'000, 401'000'000, 800'000'000};
  for (size_t u = 0; u < 6; ++u) layout.units[u].param_elements = elements[u];
  layout.units[2].persistent = true;  // it stays on every rank: 400 + 599 and 599 + 401 million
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.zero.prefetch_bucket_elements = 0;
  setup.batch.world_size = 2;
  setup.zero.max_live_parameters = 1'000'000'000;
  CHECK(LiveLimitWarning(setup, layout, 3) == "");
  setup.zero.max_live_parameters = 999'999'999;
  // The embeddings beside a layer are gathered ahead too: 2 x 900 million.
  CHECK(LiveLimitWarning(setup, layout, 3) ==
        "zero_optimization.stage3_max_live_parameters: 999999999 is less than two layers of this "
        "model (1000000000 parameters): each layer is gathered only when the one before it is "
        "done, and is waited for; use 1800000000 or more");
  setup.zero.max_live_parameters = kAuto;
  CHECK(LiveLimitWarning(setup, layout, 3) == "");
  setup.zero.max_live_parameters = 1;
  setup.batch.world_size = 1;
  CHECK(LiveLimitWarning(setup, layout, 3) == "");
  setup.zero.offload_param.device = OffloadDevice::kCpu;
  CHECK(LiveLimitWarning(setup, layout, 3) != "");
  setup.zero.stage = 2;
  CHECK(LiveLimitWarning(setup, layout, 3) == "");
}

}  // namespace
}  // namespace zeroplan
