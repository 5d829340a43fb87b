// What each DeepSpeed key of stage 3 does to the program. Model and method as in
// config_keys_test.cc; on two ranks each of the 4 units is a shard that is gathered for forward and
// for backward.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/core/lowering/config_program.h"

namespace zeroplan::testing {
namespace {

// A gather of parameters: which unit, and how many kernels of the compute stream lie between it and
// the first that reads what it brings.
struct Gather {
  int unit;
  int lead;
};
std::vector<Gather> Gathers(const Program& p, Section section = Section::kMicroStep) {
  const auto& list = p.section(section);
  std::vector<Gather> gathers;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto* collective = std::get_if<Collective>(&list[i].op);
    if (collective == nullptr || collective->kind != CollectiveKind::kAllGather) continue;
    const BufferId whole = p.segs(*collective)[0].dst.buffer;
    int lead = 0;
    for (size_t j = i + 1; j < list.size(); ++j) {
      const auto* launch = std::get_if<LaunchKernel>(&list[j].op);
      if (launch == nullptr || launch->kernel == KernelId::kFill) continue;
      const auto args = p.args(*launch);
      if (std::any_of(args.begin(), args.end(), [&](const Ref& r) { return r.buffer == whole; })) {
        break;
      }
      ++lead;
    }
    gathers.push_back({p.buffers[whole].unit, lead});
  }
  return gathers;
}
std::vector<int> Units(const Program& p, Section section = Section::kMicroStep) {
  std::vector<int> units;
  for (const Gather& gather : Gathers(p, section)) units.push_back(gather.unit);
  return units;
}
int SumOfLeads(const Program& p) {
  int sum = 0;
  for (const Gather& gather : Gathers(p)) sum += gather.lead;
  return sum;
}

json Stage3(const std::string& key, json value) {
  return WithZero(BaseConfig(3), key, std::move(value));
}

TEST_CASE("key stage3_prefetch_bucket_size: how early gathers are issued") {
  const Program ahead = LowerConfig(BaseConfig(3));  // 1: the next unit at least
  const Program none = LowerConfig(Stage3("stage3_prefetch_bucket_size", 0));
  const Program more = LowerConfig(Stage3("stage3_prefetch_bucket_size", 100'000));
  for (const Program* other : {&none, &more}) {
    CheckChanges(ahead, *other, {});
    CHECK(SameCompute(ahead, *other));
    // In the order of use: the gather stream runs them one after the other, so a unit needed later
    // must not go before one needed sooner.
    CHECK(Units(ahead) == Units(*other));
    CHECK(SameSections(ahead, *other,
                       {Section::kInit, Section::kOptimizerStep, Section::kSave, Section::kLoad}));
  }
  CHECK(SumOfLeads(none) == 0);
  int issued_early = 0;
  for (const Gather& gather : Gathers(ahead)) issued_early += gather.lead > 0;
  CHECK(issued_early == 7);  // all but the first
  CHECK(SumOfLeads(more) > SumOfLeads(ahead));
  CHECK(Arena(none, Space::kDevice) < Arena(ahead, Space::kDevice));
  CHECK(Arena(ahead, Space::kDevice) < Arena(more, Space::kDevice));
}

TEST_CASE("key stage3_param_persistence_threshold: small tensors stay whole") {
  const Program a = LowerConfig(BaseConfig(3));
  const Program b = LowerConfig(Stage3("stage3_param_persistence_threshold", 104));
  // All 8 vectors of each layer and the final norm's two; the norm's unit is gathered no more. Two
  // units more than before, so their states are handled apart.
  CHECK(a.layout.persistent_elements() == 0);
  CHECK(b.layout.persistent_elements() == 2 * (4 * 20 + 60 + 20 + 52 + 20) + 2 * 20);
  CHECK(Units(a) == std::vector<int>{0, 1, 2, 3, 0, 3, 2, 1});
  CHECK(Units(b) == std::vector<int>{0, 2, 4, 0, 4, 2});
  CheckChanges(a, b,
               {{"micro_step gather all_gather", -2},
                {"eval gather all_gather", -1},
                // What is kept whole is gathered once, after the step.
                {"optimizer_step gather all_gather", 1},
                {"init gather all_gather", 1},
                {"load gather all_gather", 1},
                {"init compute param_init", 2},
                {"init compute convert", 2},
                {"init compute fill", 4},
                {"optimizer_step compute adamw", 2},
                {"optimizer_step compute norm_sq", 2},
                {"save device_to_host copy", 6},
                {"save storage file_write", 6},
                {"load storage file_read", 6},
                {"load host_to_device copy", 6},
                {"load compute convert", 2}});
  CHECK(SameCompute(a, b));
  CHECK(SegmentElements(b, Section::kOptimizerStep, CollectiveKind::kAllGather).size() == 1);
}

TEST_CASE("key stage3_model_persistence_threshold: at most so many elements stay whole") {
  const json config = Stage3("stage3_param_persistence_threshold", 104);
  const Program all = LowerConfig(config);
  const Program some = LowerConfig(WithZero(config, "stage3_model_persistence_threshold", 100));
  const Program none = LowerConfig(WithZero(config, "stage3_model_persistence_threshold", 0));
  // In table order: ln_1 (20 and 20), c_attn's bias (60) fills it up.
  CHECK(some.layout.persistent_elements() == 100);
  CHECK(Units(some) == std::vector<int>{0, 2, 3, 4, 0, 4, 3, 2});
  CHECK(CountChanges(all, some).at("micro_step gather all_gather") == 2);
  CHECK(CountChanges(all, some).at("eval gather all_gather") == 1);
  CHECK(CountChanges(all, some).count("optimizer_step gather all_gather") == 0);
  CHECK(SameCompute(all, some));
  CHECK(SameProgram(none, LowerConfig(BaseConfig(3))));
}

TEST_CASE("key stage3_max_reuse_distance: what is kept from forward to backward") {
  const auto with = [](int elements) {
    return LowerConfig(Stage3("stage3_max_reuse_distance", elements));
  };
  const Program none = with(0);
  // Between uses: of the final norm the embeddings (960); of layer 1 these and the norm twice
  // (1040); of the embeddings layers and norm (8624); of layer 0 also layer 1 twice (9624).
  struct Case {
    int elements;
    std::vector<int> units;
  };
  for (const auto& [elements, units] :
       {Case{959, {0, 1, 2, 3, 0, 3, 2, 1}}, Case{960, {0, 1, 2, 3, 0, 2, 1}},
        Case{1040, {0, 1, 2, 3, 0, 1}}, Case{8624, {0, 1, 2, 3, 1}}, Case{9624, {0, 1, 2, 3}}}) {
    CAPTURE(elements);
    const Program p = with(elements);
    CHECK(Units(p) == units);
    const int fewer = static_cast<int>(units.size()) - 8;
    // The head of an evaluation is the embeddings' second use there.
    Changes changes;
    if (fewer != 0) changes["micro_step gather all_gather"] = fewer;
    if (elements >= 8624) changes["eval gather all_gather"] = -1;
    CheckChanges(none, p, changes);
    CHECK(SameCompute(none, p));
    CHECK(SameSections(none, p, {Section::kInit, Section::kOptimizerStep, Section::kSave}));
  }
  CHECK(Arena(with(9624), Space::kDevice) > Arena(none, Space::kDevice));
}

TEST_CASE("key stage3_max_live_parameters: limits what is kept and what is gathered ahead") {
  const json reuse = Stage3("stage3_max_reuse_distance", 100'000);
  const Program unlimited = LowerConfig(reuse);
  const Program limited = LowerConfig(WithZero(reuse, "stage3_max_live_parameters", 6000));
  // Nearest first: final norm (40) and embeddings (960) fit beside a layer, a second layer (4292)
  // beside the one in use does not; layer 1 is over when layer 0 runs backward, but not forward.
  CHECK(Units(unlimited) == std::vector<int>{0, 1, 2, 3});
  CHECK(SameCompute(unlimited, limited));
  CHECK(Units(limited).size() > Units(unlimited).size());
  CHECK(Arena(limited, Space::kDevice) < Arena(unlimited, Space::kDevice));
  // No room for anything but the unit in use: nothing is kept, nothing comes early.
  const Program tight = LowerConfig(WithZero(reuse, "stage3_max_live_parameters", 100));
  CHECK(SameProgram(tight, LowerConfig(Stage3("stage3_prefetch_bucket_size", 0))));
}

TEST_CASE("keys of stage 3 do nothing below it") {
  for (int stage = 0; stage <= 2; ++stage) {
    const Program a = LowerConfig(BaseConfig(stage));
    for (const char* key : {"stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
                            "stage3_model_persistence_threshold", "stage3_max_reuse_distance",
                            "stage3_max_live_parameters"}) {
      CAPTURE(key);
      CHECK(SameProgram(a, LowerConfig(WithZero(BaseConfig(stage), key, 4000))));
    }
  }
}

}  // namespace
}  // namespace zeroplan::testing
