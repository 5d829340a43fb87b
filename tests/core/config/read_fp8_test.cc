// How configs and options say products of eight bits, and how they are written.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/effective_values.h"
#include "core/settings/setup_facts.h"
#include "tests/core/config/read_config.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/core.h"

namespace zeroplan {
namespace {

using testing::OfDeepSpeed;
using testing::Read;

std::string WithFp8(const std::string& keys) {
  return fmt::format(R"({{"bf16": {{"enabled": true}}, "_zeroplan": {{"fp8": {{{}}}}}}})", keys);
}

std::string Fp8Problem(const std::string& text, const ReadContext& context = {}) {
  return ErrorOf(ExitCode::kUsage, [&] { Read(text, context); });
}

TEST_CASE("reader: products of eight bits, off unless they are asked for") {
  CHECK(Read(R"({"bf16": {"enabled": true}})").setup.precision.fp8 == Fp8Config{});
  CHECK(Read(R"({"_zeroplan": {"fp8": "auto"}})").setup.precision.fp8 == Fp8Config{});
  const ReadResult plain = Read(WithFp8(R"("enabled": true)"));
  CHECK(plain.setup.precision.fp8 == Fp8Config{.enabled = true});
  CHECK(Has(plain.warnings.at(0), wording::kDeepspeedItselfDoesNotProducts));
  const Fp8Config all = {true, Fp8Recipe::kBlocks, Dtype::kE5M2, false, 2048};
  const std::string keys =
      R"("enabled": true, "recipe": "blocks", "gradients": "e5m2", "fast_gradients": false,
          "least_side": 2048)";
  CHECK(Read(WithFp8(keys)).setup.precision.fp8 == all);
  const ReadResult off = Read(WithFp8(R"("enabled": false, "recipe": "blocks")"));
  CHECK_FALSE(off.setup.precision.fp8.enabled);
  CHECK(off.warnings.empty());
}

TEST_CASE("reader: the command line says what of FP8 the config leaves open") {
  ReadContext context;
  context.fp8 = true;
  context.fp8_recipe = Fp8Recipe::kBlocks;
  context.fp8_gradients = Dtype::kE5M2;
  const Fp8Config all = {true, Fp8Recipe::kBlocks, Dtype::kE5M2, true, 0};
  CHECK(Read(R"({"bf16": {"enabled": true}})", context).setup.precision.fp8 == all);
  CHECK(Read(WithFp8(R"("enabled": "auto")"), context).setup.precision.fp8 == all);
  CHECK(Read(WithFp8(R"("enabled": true, "recipe": "blocks")"), context).setup.precision.fp8 ==
        all);
  CHECK(Fp8Problem(WithFp8(R"("enabled": false)"), {.fp8 = true}) ==
        "ds.json:1: _zeroplan.fp8.enabled: false contradicts ⟦matmul_dtype⟧ fp8; use "
        "⟦matmul_dtype⟧ bf16 or change the config");
  CHECK(Fp8Problem(WithFp8(R"("enabled": true)"), {.fp8 = false}) ==
        "ds.json:1: _zeroplan.fp8.enabled: true contradicts ⟦matmul_dtype⟧ bf16; use "
        "⟦matmul_dtype⟧ fp8 or change the config");
  CHECK(Fp8Problem(WithFp8(R"("enabled": true, "recipe": "tensor")"), context) ==
        "ds.json:1: _zeroplan.fp8.recipe: tensor contradicts ⟦fp8_recipe⟧ blocks; use "
        "⟦fp8_recipe⟧ tensor or change the config");
  CHECK(Has(Fp8Problem(WithFp8(R"("enabled": true, "gradients": "e4m3")"), context),
            "_zeroplan.fp8.gradients: e4m3 contradicts ⟦fp8_gradients⟧ e5m2"));
  context.fp8.reset();
  CHECK(Has(Fp8Problem("{}", context),
            "⟦fp8_recipe⟧: blocks has no effect without ⟦matmul_dtype⟧ fp8; add that, or leave it "
            "out\n⟦fp8_gradients⟧: e5m2 has no effect"));
}

TEST_CASE("reader: FP8 that is spelled wrongly, and FP8 of DeepSpeed") {
  struct Case {
    const char* keys;
    const char* problem;
  };
  for (const Case& c :
       {Case{"", "fp8.enabled: is not given; use true or false"},
        Case{R"("recipe": "blocks")", "fp8.enabled: is not given; use true or false"},
        Case{R"("enabled": "yes")", R"(fp8.enabled: "yes" is not allowed; use true or false)"},
        Case{R"("enabled": true, "recipe": "mx")",
             R"(fp8.recipe: "mx" is not allowed; use "tensor" or "blocks")"},
        Case{R"("enabled": true, "gradients": "fp8")",
             R"(fp8.gradients: "fp8" is not allowed; use "e4m3" or "e5m2")"},
        Case{R"("enabled": true, "fast_gradients": 2)", "fp8.fast_gradients: 2 is not allowed"},
        Case{R"("enabled": true, "least_side": -1)", "fp8.least_side: -1 is not allowed"},
        Case{R"("enabled": true, "receipe": "blocks")",
             "fp8.receipe: is not a known key; did you mean 'recipe'?"}}) {
    CAPTURE(c.keys);
    CHECK(Has(Fp8Problem(WithFp8(c.keys)), c.problem));
  }
  CHECK(Has(Fp8Problem(R"({"_zeroplan": {"fp8": true}})"), "_zeroplan.fp8: true"));
  CHECK(Has(Fp8Problem(R"({"fp8": {"enabled": true}})"), "move it to '_zeroplan'"));
  CHECK(Has(Read(R"({"recipe": "mine"})").warnings.at(0), "recipe: is not a known key and is ign"));
  CHECK(Has(Fp8Problem(WithFp8(R"("enabled": true)"), OfDeepSpeed()),
            "_zeroplan.fp8.enabled: true is not allowed: DeepSpeed multiplies in bf16"));
  CHECK(Has(Fp8Problem(R"({"_zeroplan": {"runtime": "deepspeed", "fp8": {"enabled": true}}})"),
            "DeepSpeed multiplies in fp32"));
  CHECK_FALSE(Read(WithFp8(R"("enabled": false)"), OfDeepSpeed()).setup.precision.fp8.enabled);
}

TEST_CASE("writer: FP8 is read back as it was, and named among the values in effect") {
  TrainSetup setup;
  setup.batch = {1, 2, 4, 1024};
  setup.zero.reduce_bucket_elements = setup.zero.prefetch_bucket_elements = 1000;
  setup.zero.max_live_parameters = 1000;
  ReadContext context;
  context.world_size = 4;
  for (const Fp8Config& fp8 : {Fp8Config{.enabled = true}, Fp8Config{.least_side = 64},
                               Fp8Config{true, Fp8Recipe::kBlocks, Dtype::kE5M2, false, 1 << 20}}) {
    setup.precision.fp8 = fp8;
    const TrainSetup canonical = CanonicalSetup(setup, 4);
    CHECK(canonical.precision.fp8 == (fp8.enabled ? fp8 : Fp8Config{}));
    const std::string text = WriteConfig(setup, 4);
    CHECK(ReadDeepSpeedConfig(text, "written", context).setup == canonical);
    CHECK(DeepSpeedCannot(canonical) == (fp8.enabled ? "products in FP8" : ""));
    std::string values;
    for (const EffectiveValue& row : EffectiveValues(canonical, ParseJsonText(text, "written"))) {
      if (row.key.starts_with("_zeroplan.fp8."))
        values += row.key.substr(14) + " " + row.value + ";";
    }
    CHECK(
        values ==
        (fp8.recipe == Fp8Recipe::kBlocks
             ? "enabled true;recipe blocks;gradients e5m2;fast_gradients false;least_side 1048576;"
         : fp8.enabled
             ? "enabled true;recipe tensor;gradients e4m3;fast_gradients true;least_side 0;"
             : "enabled false;"));
  }
  setup.precision.fp8 = {};
  CHECK_FALSE(Has(WriteConfig(setup, 4), "fp8"));
}

TEST_CASE("FP8: which products, which GPUs, which numbers") {
  const Fp8Config tensor = {.enabled = true}, blocks = {true, Fp8Recipe::kBlocks};
  CHECK(IsFp8Product(tensor, 16, 32, 48));
  CHECK_FALSE(IsFp8Product({}, 16, 32, 48));
  for (const auto& [M, K, N] :
       {std::array{8, 32, 48}, std::array{16, 40, 48}, std::array{16, 32, 4}}) {
    CHECK_FALSE(IsFp8Product(tensor, M, K, N));
  }
  CHECK(IsFp8Product(blocks, 128, 256, 384));
  CHECK_FALSE(IsFp8Product(blocks, 128, 256, 64));
  const Fp8Config large = {.enabled = true, .least_side = 64};
  CHECK(IsFp8Product(large, 16, 64, 64));
  CHECK_FALSE(IsFp8Product(large, 16, 4096, 48));
  for (const int capability : {89, 90, 100, 120}) CHECK(Fp8GpuLacks(tensor, capability).empty());
  CHECK(Fp8GpuLacks(tensor, 86) ==
        "products in FP8 start at compute capability 8.9, and it has 8.6");
  CHECK(Fp8GpuLacks(blocks, 90).empty());
  CHECK(Has(Fp8GpuLacks(blocks, 100), wording::kAtComputeCapabilityAloneAnd));
  PrecisionConfig precision;
  CHECK(MatmulDtypeName(precision) == "bf16");
  precision.fp8 = tensor;
  CHECK(MatmulDtypeName(precision) == "fp8");
  CHECK_FALSE(FindPrecisionProblem(precision));
  precision.fp8.gradients = Dtype::kBF16;
  CHECK(FindPrecisionProblem(precision)->message == "bf16 is not allowed; use e4m3 or e5m2");
  precision.fp8 = {.enabled = true, .least_side = -2};
  CHECK(FindPrecisionProblem(precision)->key == "_zeroplan.fp8.least_side");
}

}  // namespace
}  // namespace zeroplan
