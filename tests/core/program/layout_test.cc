// Hand-computed layouts of small tables.
#include "core/program/layout.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>
#include <string>

#include "core/base/error.h"

namespace zeroplan {
namespace {

struct Shape {
  int layer;
  int64_t rows, cols;
};

std::shared_ptr<const std::vector<ParamTensor>> Table(std::initializer_list<Shape> shapes) {
  auto table = std::make_shared<std::vector<ParamTensor>>();
  for (const Shape& shape : shapes) {
    ParamTensor tensor{};
    tensor.name = "t" + std::to_string(table->size());
    tensor.layer = shape.layer;
    tensor.shape = {shape.rows, shape.cols};
    table->push_back(tensor);
  }
  return table;
}

// Embeddings, one layer with a matrix and two vectors, a final norm. Odd sizes on purpose.
std::shared_ptr<const std::vector<ParamTensor>> SmallTable() {
  return Table({{-1, 10, 7}, {-1, 3, 7}, {0, 7, 1}, {0, 7, 21}, {0, 21, 1}, {1, 7, 1}, {1, 7, 1}});
}

ZeroConfig Stage(int stage) {
  ZeroConfig zero;
  zero.stage = stage;
  zero.param_persistence_threshold = 0;
  return zero;
}

TEST_CASE("layout: what is kept in NF4 is a unit of its own, cut between blocks") {
  auto table = std::make_shared<std::vector<ParamTensor>>(*Table({{0, 7, 1}, {0, 300, 70}}));
  (*table)[0].is_vector = true;
  (*table)[0].trainable = false;
  table->push_back(table->back());
  for (size_t i : {size_t{1}, size_t{2}}) {
    (*table)[i].trainable = (*table)[i].saved = false;
    (*table)[i].quantized = true;
  }
  ZeroConfig zero = Stage(3);
  for (const int ranks : {1, 3}) {
    const ParamLayout layout = BuildParamLayout(table, zero, ranks);
    REQUIRE(layout.units.size() == 2);
    CHECK(layout.units[0].persistent);  // whatever the threshold: a product's bias
    const Unit& unit = layout.units[1];
    CHECK(unit.quantized);
    CHECK_FALSE(unit.persistent);
    CHECK(unit.ParamDtype(Dtype::kBF16) == Dtype::kNf4);
    CHECK(layout.units[0].ParamDtype(Dtype::kBF16) == Dtype::kBF16);
    CHECK(unit.slots[1].offset == 2 * 16384);
    CHECK(unit.elements == 2 * 16384 + 21000);
    CHECK(unit.shard_elements == (ranks == 1 ? 4u : 8u) * 16384);
    CHECK(StoredBytes(Dtype::kNf4, unit.shard_elements) % (ranks == 1 ? 16 : 128) == 0);
  }
}

TEST_CASE("layout: what is sent in blocks of integers is cut between blocks") {
  ZeroConfig zero = Stage(3);
  zero.param_persistence_threshold = 7;  // of a layer the vectors
  for (const bool weights : {false, true}) {
    zero.quantized_weights = weights;
    zero.quantized_gradients = !weights;
    for (const int group : {0, 2}) {
      zero.shard_group = group;
      zero.across_stage = group == 0 ? 0 : 2;
      for (const Unit& unit : BuildParamLayout(SmallTable(), zero, 4).units) {
        CHECK(unit.owned_elements() == (unit.persistent ? 64 : 1024));
        CHECK(unit.padded_elements == 4 * unit.owned_elements());
      }
    }
    zero.shard_group = zero.across_stage = 0;
    for (const Unit& unit : BuildParamLayout(SmallTable(), zero, 1).units) {
      CHECK(unit.padded_elements < 1024);
    }
  }
}

TEST_CASE("layout: stage 0 has one shard a unit, tensors at multiples of 64") {
  const ParamLayout layout = BuildParamLayout(SmallTable(), Stage(0), 8);
  CHECK(layout.shards == 1);
  REQUIRE(layout.units.size() == 3);
  const Unit& embeddings = layout.units[0];
  CHECK(embeddings.layer == kEmbeddingLayer);
  REQUIRE(embeddings.slots.size() == 2);
  CHECK(embeddings.slots[0].offset == 0);
  CHECK(embeddings.slots[1].offset == 128);  // 70 -> 128
  CHECK(embeddings.elements == 149);         // 128 + 21
  CHECK(embeddings.param_elements == 91);
  CHECK(embeddings.shard_elements == 192);
  CHECK(embeddings.padded_elements == 192);
  const Unit& layer = layout.units[1];
  CHECK(layer.slots[1].offset == 64);
  CHECK(layer.slots[2].offset == 256);  // 64 + 147 = 211 -> 256
  CHECK(layer.elements == 277);
  CHECK(layer.padded_elements == 320);
  CHECK(layout.units[2].layer == 1);
  CHECK(layout.param_elements() == 70 + 21 + 7 + 147 + 21 + 7 + 7);
  CHECK(layout.persistent_elements() == 0);
}

TEST_CASE("layout: shards are equal, aligned and cover") {
  const struct {
    int world;
    uint64_t shards[3];               // of units with 149, 277 and 71 elements
  } cases[] = {{1, {192, 320, 128}},  // ceil(149/1) -> 192
               {2, {128, 192, 64}},   // 75 -> 128, 139 -> 192, 36 -> 64
               {3, {64, 128, 64}},    // 50, 93, 24
               {8, {64, 64, 64}}};    // 19, 35, 9: most of the last ranks' shards is padding
  for (const auto& expected : cases) {
    for (int stage : {1, 2, 3}) {
      CAPTURE(expected.world);
      const ParamLayout layout = BuildParamLayout(SmallTable(), Stage(stage), expected.world);
      CHECK(layout.shards == static_cast<uint64_t>(expected.world));
      REQUIRE(layout.units.size() == 3);
      for (size_t u = 0; u < 3; ++u) {
        CHECK(layout.units[u].shard_elements == expected.shards[u]);
        CHECK(layout.units[u].padded_elements == expected.shards[u] * layout.shards);
        CHECK(layout.units[u].padded_elements >= layout.units[u].elements);
      }
    }
  }
}

TEST_CASE("layout: place finds every tensor") {
  ZeroConfig zero = Stage(3);
  zero.param_persistence_threshold = 21;
  const ParamLayout layout = BuildParamLayout(SmallTable(), zero, 3);
  for (size_t t = 0; t < layout.tensors->size(); ++t) {
    const ParamLayout::Place place = layout.place[t];
    const TensorSlot& slot =
        layout.units[static_cast<size_t>(place.unit)].slots[static_cast<size_t>(place.slot)];
    CHECK(slot.tensor == static_cast<int>(t));
    CHECK(slot.elements == (*layout.tensors)[t].elements());
  }
}

TEST_CASE("layout: persistent tensors of a layer come in a unit before the others") {
  ZeroConfig zero = Stage(3);
  zero.param_persistence_threshold = 21;
  const ParamLayout layout = BuildParamLayout(SmallTable(), zero, 2);
  // wpe (21) | wte; the layer's vectors | its matrix; the final norm has nothing else.
  REQUIRE(layout.units.size() == 5);
  const bool persistent[] = {true, false, true, false, true};
  const int layers[] = {-1, -1, 0, 0, 1};
  for (size_t u = 0; u < 5; ++u) {
    CHECK(layout.units[u].persistent == persistent[u]);
    CHECK(layout.units[u].layer == layers[u]);
  }
  CHECK(layout.units[2].slots.size() == 2);
  CHECK(layout.units[2].slots[1].tensor == 4);
  CHECK(layout.units[2].slots[1].offset == 64);
  CHECK(layout.units[2].elements == 85);
  CHECK(layout.units[2].shard_elements == 64);
  CHECK(layout.persistent_elements() == 21 + 7 + 21 + 7 + 7);
  for (int stage : {0, 1, 2}) {
    zero.stage = stage;
    CHECK(BuildParamLayout(SmallTable(), zero, 2).persistent_elements() == 0);
  }
}

TEST_CASE("layout: the model's persistence limit is spent in table order") {
  ZeroConfig zero = Stage(3);
  zero.param_persistence_threshold = 21;
  zero.model_persistence_threshold = 30;  // wpe 21, ln 7; then 21 and 7 more no longer fit
  const ParamLayout layout = BuildParamLayout(SmallTable(), zero, 2);
  CHECK(layout.persistent_elements() == 28);
  zero.model_persistence_threshold = 20;  // wpe does not fit; smaller ones after it do: 7 + 7
  CHECK(BuildParamLayout(SmallTable(), zero, 2).persistent_elements() == 14);
  zero.model_persistence_threshold = 0;
  CHECK(BuildParamLayout(SmallTable(), zero, 2).persistent_elements() == 0);
}

TEST_CASE("layout: sizes past 64 bits are refused") {
  const int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  CHECK_THROWS_AS(BuildParamLayout(Table({{0, huge, 8}}), Stage(1), 2), Error);
  CHECK_THROWS_AS(BuildParamLayout(Table({{0, huge, 1}}), Stage(1), 2), Error);
  const int64_t large = int64_t{1} << 58;
  CHECK_NOTHROW(BuildParamLayout(Table({{0, large, 1}}), Stage(1), 2));
  CHECK_THROWS_AS(
      BuildParamLayout(Table({{0, large, 1}, {1, large, 1}, {2, large, 1}}), Stage(1), 2), Error);
}

}  // namespace
}  // namespace zeroplan
