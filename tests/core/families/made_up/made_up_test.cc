// A family of its own, by public interfaces alone: read from a config.json, counted, lowered.
// tests/agreement/made_up_family_test.cc trains it.
#include "tests/core/families/made_up/made_up.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "core/program/verify.h"
#include "tests/core/lowering/matrix.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using testing::MadeUp;

ModelSpec ReadMadeUp(const std::string& text) {
  const TempDir folder;
  const std::filesystem::path file = std::filesystem::path(folder.path()) / "config.json";
  std::ofstream(file) << text;
  const ModelFamily* const families[] = {&MadeUp()};
  return ReadHuggingFaceConfig(file, nullptr, families);
}

TEST_CASE("made-up family: read from a config.json, and written") {
  const ModelSpec spec = ReadMadeUp(testing::kMadeUpConfig);
  CHECK(spec.family == &MadeUp());
  CHECK(spec.layers == 2);
  CHECK(spec.ffn == 52);
  CHECK(spec.padded_vocab == 37);
  const ModelSpec back = ReadMadeUp(WriteHuggingFaceConfig(spec));
  CHECK(back.hidden == spec.hidden);
  CHECK(back.init_std == spec.init_std);
  CHECK_THROWS_WITH_AS(ReadMadeUp(R"({"model_type": "gpt2"})"),
                       doctest::Contains("\"made_up\", the only architecture"), Error);
  // Validation speaks of the family's own keys.
  std::string odd = testing::kMadeUpConfig;
  odd.replace(odd.find("\"num_attention_heads\": 2"), 24, "\"num_attention_heads\": 3");
  CHECK_THROWS_WITH_AS(ReadMadeUp(odd),
                       doctest::Contains("num_attention_heads: 3 does not divide hidden_size 20"),
                       Error);
}

TEST_CASE("made-up family: parameters and FLOPs by hand") {
  ModelSpec spec = ReadMadeUp(testing::kMadeUpConfig);
  spec.padded_vocab = 40;
  // A layer: norm 2*20, qkv 60*20, out 20*20, up and down 52*20 each. Outside: positions 8*20,
  // final norm 2*20, and tokens and head, 37 rows of 20 each, 40 padded.
  CHECK(spec.UnpaddedParamCount() == 2 * (40 + 1200 + 400 + 2 * 1040) + 160 + 40 + 2 * 740);
  CHECK(spec.ParamCount() == spec.UnpaddedParamCount() + 2 * 3 * 20);
  CHECK(MatmulWeights(spec) == 2 * (1200 + 400 + 2 * 1040) + 740);
  // Attention: 6 * 2 * 20 * 8.
  CHECK(TrainFlopsPerToken(spec, 8) == 6 * (7360 + 740) + 1920);
  CHECK(HardwareFlopsPerToken(spec, 8, true) == 4 * (2 * 7360 + 4 * 320) + 6 * 800);

  std::set<std::string> names;
  for (const ParamTensor& tensor : BuildParamTable(spec)) names.insert(tensor.name);
  CHECK(names.size() == 2 + 2 * 6 + 3);
  CHECK(names.contains("model.layers.1.mlp.down.weight"));
  CHECK(names.contains("lm_head.weight"));
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    const std::vector<PublishedTensor> published = PublishedTensors(tensor);
    if (tensor.name == "model.layers.1.attn.qkv.weight") {
      REQUIRE(published.size() == 3);
      CHECK(published[1].name == "model.layers.1.attn.k.weight");
      CHECK(published[1].begin == 20);
      CHECK(published[1].end == 40);
    } else if (tensor.id != testing::kQkv) {
      REQUIRE(published.size() == 1);
      CHECK(published[0].name == tensor.name);
      CHECK(published[0].end == tensor.unpadded_rows);
    }
  }

  const ModelSpec shape = ModelFromParams(1'000'000'000, 2048, MadeUp());
  CHECK(shape.family == &MadeUp());
  CHECK(shape.name == "made_up-shape-1.00B");
  CHECK(std::abs(static_cast<double>(shape.ParamCount()) / 1e9 - 1) < 0.03);
}

TEST_CASE("made-up family: every setup lowers to a valid program") {
  ModelSpec spec = ReadMadeUp(testing::kMadeUpConfig);
  spec.padded_vocab = 40;
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    for (bool flash_attention : {true, false}) {
      for (const testing::Cell& cell : testing::AllCells({1, 2}, {Dtype::kBF16}, {1, 3})) {
        CAPTURE(cell.name);
        LowerOptions options;
        options.backend = backend;
        options.flash_attention = flash_attention;
        options.logits_chunk_bytes = 400;
        options.checkpoint_chunk_elements = 700;
        const std::vector<Violation> violations = Verify(Lower(spec, cell.setup, options), 1);
        if (!violations.empty()) {
          FAIL(violations[0].rule << " in " << SectionName(violations[0].section) << ":\n"
                                  << violations[0].message);
        }
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
