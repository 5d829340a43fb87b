// What each DeepSpeed key of sharding and communication does to the program: two configs that
// differ in that key alone, and which instructions change. Stage 3's own, offload, and batch
// and precision have files beside this one.
//
// The model has 4 units: embeddings (960 elements), two layers (4292 each; 4352 with alignment,
// 12 tensors) and the final norm (40). Two ranks.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/core/lowering/config_program.h"

namespace zeroplan::testing {
namespace {

constexpr auto kAllReduce = CollectiveKind::kAllReduce;
constexpr auto kAllGather = CollectiveKind::kAllGather;
constexpr auto kReduceScatter = CollectiveKind::kReduceScatter;
constexpr auto kToOwners = CollectiveKind::kReduceToOwners;

uint64_t PaddedElements(const Program& p) {
  uint64_t sum = 0;
  for (const Unit& unit : p.layout.units) sum += unit.padded_elements;
  return sum;
}

TEST_CASE("key stage: 0 to 1 shards the optimizer") {
  const Program a = LowerConfig(BaseConfig(0)), b = LowerConfig(BaseConfig(1));
  CheckChanges(a, b,
               {{"micro_step reduce all_reduce", -3},
                {"micro_step reduce reduce_scatter", 3},
                {"optimizer_step gather all_gather", 3},
                {"init gather all_gather", 3},
                {"load gather all_gather", 3}});
  CHECK(SameCompute(a, b));
  // Both reduce every gradient once, and only in the last micro-step.
  CHECK(Sum(SegmentElements(a, Section::kMicroStep, kAllReduce)) == PaddedElements(a));
  CHECK(Sum(SegmentElements(b, Section::kMicroStep, kReduceScatter)) == PaddedElements(b));
  for (const Program* p : {&a, &b}) {
    for (const Instruction& i : p->section(Section::kMicroStep)) {
      if (std::holds_alternative<Collective>(i.op)) CHECK(i.when == kReduces);
    }
  }
  // Master, m and v: 12 bytes an element of which half goes.
  CHECK(Persistent(a, Space::kDevice) - Persistent(b, Space::kDevice) ==
        PaddedElements(b) / 2 * 12);
}

TEST_CASE("key stage: 1 to 2 shards gradients, reduced in every micro-step") {
  const Program a = LowerConfig(BaseConfig(1)), b = LowerConfig(BaseConfig(2));
  // Transient gradients have their alignment zeroed in each micro-step, not once and for all.
  CheckChanges(a, b, {{"init compute fill", -4}, {"micro_step compute fill", 28}});
  CHECK(SameCompute(a, b));
  for (const Instruction& i : b.section(Section::kMicroStep)) {
    if (std::holds_alternative<Collective>(i.op)) CHECK(i.when == kEvery);
  }
  CHECK(Persistent(a, Space::kDevice) - Persistent(b, Space::kDevice) == PaddedElements(b) / 2 * 2);
}

TEST_CASE("key stage: 2 to 3 shards parameters, gathered for forward and for backward") {
  const Program a = LowerConfig(BaseConfig(2)), b = LowerConfig(BaseConfig(3));
  // The embeddings serve embedding and head, the final norm forward and backward, each layer too.
  CheckChanges(a, b,
               {{"micro_step gather all_gather", 8},
                {"eval gather all_gather", 5},
                {"optimizer_step gather all_gather", -3},
                {"init gather all_gather", -3},
                {"load gather all_gather", -3}});
  CHECK(SameCompute(a, b));
  CHECK(Sum(SegmentElements(b, Section::kMicroStep, kAllGather)) * 2 == 2 * PaddedElements(b));
  CHECK(Persistent(a, Space::kDevice) - Persistent(b, Space::kDevice) == PaddedElements(b) / 2 * 2);
}

TEST_CASE("key reduce_bucket_size: smaller buckets are more and smaller reductions") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const json config = BaseConfig(stage);
    const Program a = LowerConfig(config);
    const Program b = LowerConfig(WithZero(config, "reduce_bucket_size", 900));
    const Program one = LowerConfig(WithZero(config, "reduce_bucket_size", 100'000));
    const CollectiveKind whole = stage == 0 ? kAllReduce : kReduceScatter;
    const CollectiveKind parts = stage == 0 ? kAllReduce : kToOwners;
    if (stage == 0) {
      CheckChanges(a, b, {{"micro_step reduce all_reduce", 11}});
    } else {
      // Parts of a unit do not divide into equal shards.
      CheckChanges(
          a, b,
          {{"micro_step reduce reduce_scatter", -2}, {"micro_step reduce reduce_to_owners", 14}});
    }
    CHECK(SameCompute(a, b));
    CHECK(SameSections(
        a, b,
        {Section::kInit, Section::kOptimizerStep, Section::kEval, Section::kSave, Section::kLoad}));
    // The last layer's unit and the final norm's are complete long before the embeddings'.
    CHECK(SegmentElements(one, Section::kMicroStep, whole).size() == 2);
    for (const auto& bucket : SegmentElements(a, Section::kMicroStep, whole)) {
      CHECK(Sum(bucket) <= 5000);
    }
    for (const auto& bucket : SegmentElements(b, Section::kMicroStep, parts)) {
      CHECK((Sum(bucket) <= 900 || bucket.size() == 1));  // a large tensor goes alone
    }
    uint64_t reduced = Sum(SegmentElements(b, Section::kMicroStep, parts));
    if (stage > 0) reduced += Sum(SegmentElements(b, Section::kMicroStep, whole));
    CHECK(reduced == PaddedElements(b));
    // Where whole gradients persist, buckets are only views of them.
    if (stage <= 1) {
      CHECK(a.arena_bytes == b.arena_bytes);
    } else {
      CHECK(Arena(b, Space::kDevice) < Arena(a, Space::kDevice));
      CHECK(Arena(a, Space::kDevice) < Arena(one, Space::kDevice));
    }
  }
}

TEST_CASE("key allgather_bucket_size: how many gathers follow the step at stages 1 and 2") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const json config = BaseConfig(stage);
    const Program a = LowerConfig(config);
    const Program b = LowerConfig(WithZero(config, "allgather_bucket_size", 100'000));
    if (stage == 0 || stage == 3) {
      CHECK(SameProgram(a, b));
      continue;
    }
    CheckChanges(a, b,
                 {{"optimizer_step gather all_gather", -2},
                  {"init gather all_gather", -2},
                  {"load gather all_gather", -2}});
    CHECK(SameSections(a, b, {Section::kMicroStep, Section::kEval, Section::kSave}));
    CHECK(a.arena_bytes == b.arena_bytes);
    const auto gathers = SegmentElements(a, Section::kOptimizerStep, kAllGather);
    for (const auto& bucket : gathers) CHECK(2 * Sum(bucket) <= 5000);
    CHECK(Sum(gathers) == Sum(SegmentElements(b, Section::kOptimizerStep, kAllGather)));
  }
}

TEST_CASE("key allgather_partitions: false broadcasts from each owner at stages 1 and 2") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program a = LowerConfig(BaseConfig(stage));
    const Program b = LowerConfig(WithZero(BaseConfig(stage), "allgather_partitions", false));
    if (stage == 0 || stage == 3) {
      CHECK(SameProgram(a, b));
      continue;
    }
    Changes changes;
    for (const char* section : {"init", "load", "optimizer_step"}) {
      changes[fmt::format("{} gather all_gather", section)] = -3;
      changes[fmt::format("{} gather broadcast", section)] = 3;
    }
    CheckChanges(a, b, changes);
    CHECK(SameSections(a, b, {Section::kMicroStep, Section::kEval, Section::kSave}));
    CHECK(a.arena_bytes == b.arena_bytes);
  }
}

TEST_CASE(
    "key contiguous_gradients: false reduces tensor by tensor where gradients are transient") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program a = LowerConfig(BaseConfig(stage));
    const Program b = LowerConfig(WithZero(BaseConfig(stage), "contiguous_gradients", false));
    if (stage <= 1) {
      CHECK(SameProgram(a, b));
      continue;
    }
    // 2 embeddings, 12 tensors a layer, 2 of the final norm.
    CheckChanges(a, b,
                 {{"micro_step reduce reduce_scatter", -3},
                  {"micro_step reduce reduce_to_owners", 2 + 2 * 12 + 2}});
    CHECK(SameCompute(a, b));
    for (const auto& bucket : SegmentElements(b, Section::kMicroStep, kToOwners)) {
      CHECK(bucket.size() == 1);
    }
    CHECK(Arena(b, Space::kDevice) < Arena(a, Space::kDevice));
  }
}

TEST_CASE("key reduce_scatter: false sums everywhere and keeps the own shard") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program a = LowerConfig(BaseConfig(stage));
    const Program b = LowerConfig(WithZero(BaseConfig(stage), "reduce_scatter", false));
    if (stage == 0) {
      CHECK(SameProgram(a, b));
      continue;
    }
    Changes changes{{"micro_step reduce reduce_scatter", -3}, {"micro_step reduce all_reduce", 3}};
    if (stage >= 2) changes["micro_step reduce convert"] = 4;  // the shard of each unit
    CheckChanges(a, b, changes);
    CHECK(SameCompute(a, b));
    CHECK(SameSections(a, b, {Section::kInit, Section::kOptimizerStep, Section::kEval}));
    CHECK(Sum(SegmentElements(b, Section::kMicroStep, kAllReduce)) == PaddedElements(b));
  }
}

// Collectives of the micro-step that the compute stream waits for before its next kernel.
struct Waited {
  int at_once = 0, all = 0;
};
Waited CollectivesWaitedFor(const Program& p) {
  const auto& list = p.section(Section::kMicroStep);
  Waited waited;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!std::holds_alternative<Collective>(list[i].op)) continue;
    ++waited.all;
    EventId done = UINT32_MAX;
    for (size_t j = i + 1; j < list.size(); ++j) {
      const auto* record = std::get_if<RecordEvent>(&list[j].op);
      const auto* wait = std::get_if<WaitEvent>(&list[j].op);
      if (record != nullptr && list[j].stream == list[i].stream) {
        done = std::min(done, record->event);
      }
      const bool computes = list[j].stream == Stream::kCompute;
      if (computes && std::holds_alternative<LaunchKernel>(list[j].op)) break;
      if (computes && wait != nullptr && wait->event == done) {
        ++waited.at_once;
        break;
      }
    }
  }
  return waited;
}

TEST_CASE("key overlap_comm: false waits for each collective where it is issued") {
  for (int stage = 0; stage <= 3; ++stage) {
    CAPTURE(stage);
    const Program a = LowerConfig(BaseConfig(stage));
    const Program b = LowerConfig(WithZero(BaseConfig(stage), "overlap_comm", false));
    CheckChanges(a, b, {});
    CHECK(SameCompute(a, b));
    const Waited overlapped = CollectivesWaitedFor(a), blocking = CollectivesWaitedFor(b);
    CHECK(blocking.all == overlapped.all);
    CHECK(blocking.at_once == blocking.all);
    CHECK(overlapped.at_once < overlapped.all);
    // A second bucket, and units gathered ahead, are what overlap costs.
    if (stage <= 1) CHECK(a.arena_bytes == b.arena_bytes);
    if (stage >= 2) CHECK(Arena(b, Space::kDevice) < Arena(a, Space::kDevice));
  }
}

}  // namespace
}  // namespace zeroplan::testing
