// Which optimizer states are allowed by name, and what is said of them.
#include "planner/estimate/light_states.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "core/settings/setup_facts.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

using Masters = MasterWeights;

TEST_CASE("states: what is allowed adds up, in the dtypes that have it") {
  const auto kinds = [](std::vector<LightStates> allowed, Dtype dtype = Dtype::kBF16) {
    return KindsOf(allowed, dtype);
  };
  const StatesKind fp32, split{Masters::kSplit, Dtype::kF32},
      eight{Masters::kFp32, Dtype::kDynamic8};
  const StatesKind sixteen{Masters::kParam, Dtype::kBF16};
  CHECK(kinds({}) == std::vector{fp32});
  CHECK(kinds({LightStates::kSplitMasters}) == std::vector{fp32, split});
  CHECK(kinds({LightStates::kBF16}) == std::vector{fp32, sixteen});
  CHECK(kinds({LightStates::k8Bit}) == std::vector{fp32, eight});
  CHECK(kinds({LightStates::k8Bit, LightStates::kBF16}) ==
        std::vector{fp32, sixteen, eight, {Masters::kParam, Dtype::kDynamic8}});
  const std::vector<LightStates> all(std::begin(kLightStates), std::end(kLightStates));
  CHECK(kinds(all).size() == 6);
  CHECK(kinds(all, Dtype::kF16).size() == 4);
  CHECK(kinds(all, Dtype::kF32) == std::vector{fp32, eight});
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    for (const StatesKind& kind : kinds(all, dtype)) {
      PrecisionConfig precision;
      precision.dtype = precision.grad_accum_dtype = dtype;
      precision.master_weights = kind.masters;
      precision.moment_dtype = kind.moments;
      CHECK_FALSE(FindPrecisionProblem(precision));
    }
  }
}

TEST_CASE("states: kinds differ in how exact they are, and fp32 is the most exact") {
  std::set<int> seen;
  for (const Masters masters : {Masters::kFp32, Masters::kSplit, Masters::kParam}) {
    for (const Dtype moments : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
      CHECK(seen.insert(Inexactness({masters, moments})).second);
    }
  }
  CHECK(Inexactness(StatesKind{}) == 0);
  CHECK(Inexactness({Masters::kSplit, Dtype::kF32}) == 1);
}

TEST_CASE("states: labels, and no figure of accuracy that was not measured") {
  CHECK(StatesLabel(StatesKind{}).empty());
  CHECK(StatesLabel({Masters::kSplit, Dtype::kDynamic8}) == "split masters, 8-bit states");
  CHECK(StatesLabel({Masters::kParam, Dtype::kBF16}) == "16-bit masters, bf16 states");
  const auto text = [](Masters masters, Dtype moments, Dtype dtype = Dtype::kBF16) {
    return AccuracyText({masters, moments}, dtype);
  };
  CHECK(Has(text(Masters::kSplit, Dtype::kF32), "bit for bit"));
  CHECK(Has(text(Masters::kParam, Dtype::kBF16), "validation loss +0.79 %"));
  CHECK(Has(text(Masters::kFp32, Dtype::kBF16), wording::kIsNotMeasuredHere));
  // Masters in two halves are those of fp32.
  CHECK(text(Masters::kSplit, Dtype::kDynamic8) == text(Masters::kFp32, Dtype::kDynamic8));
  CHECK(Has(text(Masters::kSplit, Dtype::kDynamic8), "validation loss"));
  // What was measured ran in bf16.
  for (const Dtype dtype : {Dtype::kF16, Dtype::kF32}) {
    CHECK(Has(text(Masters::kFp32, Dtype::kDynamic8, dtype), wording::kIsNotMeasuredHere));
  }
  CHECK(Has(text(Masters::kParam, Dtype::kBF16, Dtype::kF16), wording::kIsNotMeasuredHere));
}

}  // namespace
}  // namespace zeroplan
