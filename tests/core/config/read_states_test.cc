// How configs and options say the optimizer's states.
#include <doctest/doctest.h>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"
#include "tests/core/config/read_config.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/core.h"

namespace zeroplan {
namespace {

using testing::HasNote;
using testing::OfDeepSpeed;
using testing::Read;

TEST_CASE("reader: light states are read for a run of DeepSpeed, as it has them") {
  const auto precision = [](const char* text) { return Read(text, OfDeepSpeed()).setup.precision; };
  const PrecisionConfig both = precision(
      R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
          "bf16_optimizer_states": true}, "zero_optimization": {"stage": 2}})");
  CHECK(both.master_weights == MasterWeights::kParam);
  CHECK(both.moment_dtype == Dtype::kBF16);
  const PrecisionConfig masters = precision(
      R"({"fp16": {"enabled": true, "fp16_master_weights_and_grads": true},
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})");
  CHECK(masters.master_weights == MasterWeights::kParam);
  CHECK(masters.moment_dtype == Dtype::kF32);
  // Of the section that is not the run's.
  const ReadResult other =
      Read(R"({"bf16": {"enabled": true}, "fp16": {"fp16_master_weights_and_grads": true}})",
           OfDeepSpeed());
  CHECK(other.setup.precision.master_weights == MasterWeights::kFp32);
  CHECK(HasNote(other, "fp16_master_weights_and_grads: has no effect: the run is in bf16"));
}

TEST_CASE("reader: zeroplan's own run takes DeepSpeed's keys of light states, and has its own") {
  const ReadResult both = Read(
      R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
          "bf16_optimizer_states": true}, "zero_optimization": {"stage": 2}})");
  CHECK(both.setup.precision.master_weights == MasterWeights::kParam);
  CHECK(both.setup.precision.moment_dtype == Dtype::kBF16);
  CHECK(both.setup.precision.grad_accum_dtype == Dtype::kBF16);
  CHECK(HasNote(both, "bf16_master_weights_and_grads: zeroplan rounds master weights in 16 bit"));
  CHECK(HasNote(both, "bf16_optimizer_states: zeroplan rounds second moments in bf16"));
  CHECK(both.warnings.empty());
  // What DeepSpeed asserts against runs here.
  const ReadResult replicated =
      Read(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})");
  CHECK(replicated.setup.precision.master_weights == MasterWeights::kParam);
  REQUIRE(replicated.warnings.size() == 1);
  CHECK(Has(replicated.warnings[0], wording::kDeepspeedItselfDoesNotMaster));
  const auto own = [](const std::string& keys, const char* section = "bf16") {
    return Read(
        fmt::format(R"({{"{}": {{"enabled": true}}, "_zeroplan": {{{}}}}})", section, keys));
  };
  const PrecisionConfig split =
      own(R"("master_weights": "split", "optimizer_states": "8bit")").setup.precision;
  CHECK(split.master_weights == MasterWeights::kSplit);
  CHECK(split.moment_dtype == Dtype::kDynamic8);
  CHECK(Has(own(R"("master_weights": "split", "optimizer_states": "8bit")").warnings.at(0),
            "master weights in two halves and optimizer states in 8 bit"));
  for (const char* name : {"16bit", "bf16"}) {
    CHECK(own(fmt::format(R"("master_weights": "{}")", name)).setup.precision.master_weights ==
          MasterWeights::kParam);
  }
  CHECK(own(R"("master_weights": "fp16")", "fp16").setup.precision.master_weights ==
        MasterWeights::kParam);
  CHECK(Has(own(R"("optimizer_states": "8bit")").warnings.at(0), "optimizer states in 8 bit"));
}

TEST_CASE("reader: the command line says what of the states the config leaves open") {
  ReadContext context;
  context.master_weights = MasterWeights::kSplit;
  context.moment_dtype = Dtype::kDynamic8;
  const PrecisionConfig open = Read(R"({"bf16": {"enabled": true}})", context).setup.precision;
  CHECK(open.master_weights == MasterWeights::kSplit);
  CHECK(open.moment_dtype == Dtype::kDynamic8);
  const auto problem = [&](const char* text) {
    return ErrorOf(ExitCode::kUsage, [&] { Read(text, context); });
  };
  CHECK(Has(problem(R"({"bf16": {"enabled": true}, "_zeroplan": {"master_weights": "16bit"}})"),
            "_zeroplan.master_weights: 16bit contradicts ⟦master_weights⟧ split"));
  CHECK(Has(problem(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})"),
            "bf16.bf16_optimizer_states: true contradicts ⟦optimizer_states⟧ 8bit; use "
            "⟦optimizer_states⟧ bf16"));
  CHECK(Has(problem(R"({"bf16": {"enabled": true, "bf16_optimizer_states": false}})"),
            "bf16.bf16_optimizer_states: false contradicts ⟦optimizer_states⟧ 8bit; use "
            "⟦optimizer_states⟧ fp32"));
  CHECK(Has(problem(R"({"bf16": {"enabled": true, "fp32_optimizer_states": true}})"),
            "bf16.fp32_optimizer_states: true contradicts ⟦optimizer_states⟧ 8bit"));
  CHECK(Has(problem(R"({"fp16": {"enabled": true}})"),
            "⟦master_weights⟧: split is not allowed in fp16; use fp32 or 16bit"));
  // Masters in two halves are fp32 ones.
  constexpr const char* kNotLight =
      R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": false}})";
  CHECK(Read(kNotLight, context).setup.precision.master_weights == MasterWeights::kSplit);
  context.master_weights = MasterWeights::kParam;
  CHECK(Has(problem(kNotLight), wording::kBfMasterWeightsAndGrads));
}

TEST_CASE("reader: whether a config says how states are kept, fp32 too") {
  const auto says = [](const char* text) { return Read(text).says_states; };
  CHECK_FALSE(says("{}"));
  CHECK_FALSE(says(R"({"bf16": {"enabled": true, "bf16_optimizer_states": "auto"}})"));
  CHECK_FALSE(says(R"({"bf16": {"enabled": false, "fp32_optimizer_states": true}})"));
  CHECK_FALSE(says(R"({"_zeroplan": {"master_weights": "auto"}})"));
  CHECK(says(R"({"bf16": {"enabled": true, "fp32_optimizer_states": true}})"));
  CHECK(says(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": false}})"));
  CHECK(says(R"({"fp16": {"enabled": true, "fp16_master_weights_and_grads": false}})"));
  CHECK(says(R"({"_zeroplan": {"master_weights": "fp32"}})"));
  CHECK(says(R"({"_zeroplan": {"optimizer_states": "fp32"}})"));
}

TEST_CASE("reader: light states that DeepSpeed asserts against") {
  const auto problem = [](const char* bf16, const char* zero) {
    const std::string text =
        fmt::format(R"({{"bf16": {{"enabled": true, {}}}, "zero_optimization": {}}})", bf16, zero);
    try {
      Read(text, OfDeepSpeed());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  constexpr const char* kMasters = R"("bf16_master_weights_and_grads": true)";
  CHECK(Has(problem(kMasters, R"({"stage": 2})"),
            "bf16_optimizer_states true or zero_optimization.offload"));
  CHECK(problem(kMasters, R"({"stage": 2, "offload_optimizer": {"device": "cpu"}})").empty());
  CHECK(Has(problem(R"("bf16_optimizer_states": true)", R"({"stage": 2})"),
            "needs bf16_master_weights_and_grads true"));
  CHECK(Has(problem(R"("bf16_master_weights_and_grads": true, "bf16_optimizer_states": true)",
                    R"({"stage": 0})"),
            "use stage 1, 2 or 3"));
}

TEST_CASE("reader: states that DeepSpeed has not are refused at who asks for them") {
  ReadContext context = OfDeepSpeed();
  const auto problem = [&](const std::string& own, int stage) {
    const std::string text = fmt::format(
        R"({{"bf16": {{"enabled": true}}, "zero_optimization": {{"stage": {}}},
            "_zeroplan": {{{}}}}})",
        stage, own);
    return ErrorOf(ExitCode::kUsage, [&] { Read(text, context); });
  };
  const std::string both = problem(R"("master_weights": "split", "optimizer_states": "8bit")", 2);
  CHECK(Has(both, wording::kZeroplanMasterWeightsSplitIs));
  CHECK(Has(both, wording::kZeroplanOptimizerStatesBitIs));
  CHECK(Has(problem(R"("master_weights": "16bit")", 2),
            "_zeroplan.master_weights: 16bit is not allowed with fp32 states on the GPU; set "
            "_zeroplan.optimizer_states bf16 or"));
  context.moment_dtype = Dtype::kBF16;
  CHECK(problem("", 2) ==
        "⟦optimizer_states⟧: bf16 needs ⟦master_weights⟧ 16bit; use that, or fp32");
  context.master_weights = MasterWeights::kParam;
  CHECK(problem("", 0) ==
        "⟦master_weights⟧: 16bit is not allowed at stage 0; use stage 1, 2 or 3, or leave it out");
  context.moment_dtype = Dtype::kDynamic8;
  CHECK(problem("", 2) ==
        "⟦optimizer_states⟧: 8bit is not allowed: DeepSpeed has no optimizer "
        "states in 8 bit; use fp32, or bf16 with ⟦master_weights⟧ 16bit");
}

}  // namespace
}  // namespace zeroplan
