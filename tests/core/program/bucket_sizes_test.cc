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

}  // namespace
}  // namespace zeroplan
