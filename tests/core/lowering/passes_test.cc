// The passes together: every one of them leaves a sound program, and the docs list them.
#include "core/lowering/passes.h"

#include <doctest/doctest.h>

#include <array>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/program/fingerprint.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/model/with_lora.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

void CheckEveryPass(const std::vector<testing::Cell>& cells, const LowerOptions& options,
                    const ModelSpec& model = testing::TinyModel()) {
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
  for (const testing::Cell& cell : cells) {
    CAPTURE(cell.name);
    const PassRunner verified{.input = {options}, .verify = true};
    REQUIRE_NOTHROW(verified.Run(EmptyProgram(model, tensors, cell.setup, options)));
  }
}

LowerOptions SmallChunks(Backend backend, bool flash_attention) {
  LowerOptions options;
  options.backend = backend;
  options.flash_attention = flash_attention;
  options.logits_chunk_bytes = 400;
  options.checkpoint_chunk_elements = 700;
  return options;
}

TEST_CASE("every pass leaves a sound program") {
  CheckEveryPass(testing::AllCells({1, 3}, {Dtype::kBF16, Dtype::kF32}, {1, 3}),
                 SmallChunks(Backend::kCuda, true));
}
TEST_CASE("every pass leaves a sound program where activations have homes") {
  for (const Backend backend : {Backend::kCuda, Backend::kCpu}) {
    CheckEveryPass(testing::HomesCells(testing::AllCells({1, 3}, {Dtype::kBF16}, {1, 3})),
                   SmallChunks(backend, backend == Backend::kCuda), testing::TinyModel(5));
  }
}
TEST_CASE("every pass leaves a sound program where rows are tiled") {
  LowerOptions options = SmallChunks(Backend::kCuda, true);
  options.tile_rows = 6;  // of 16: two tiles and a smaller one
  const std::vector<testing::Cell> cells = testing::AllCells({1, 3}, {Dtype::kBF16}, {1, 3});
  CheckEveryPass(cells, options);
  CheckEveryPass(testing::HomesCells(cells), options, testing::TinyModel(5));
}
TEST_CASE("every pass leaves a sound program for the CPU, without fused attention") {
  CheckEveryPass(testing::AllCells({2}, {Dtype::kF16}, {2}), SmallChunks(Backend::kCpu, false));
}

TEST_CASE("every pass leaves a sound program where collectives are unlike the defaults") {
  std::vector<testing::Cell> cells;
  for (const testing::Cell& cell : testing::AllCells({2}, {Dtype::kBF16}, {1, 3})) {
    for (const int variant : {0, 1, 2, 3, 4}) {
      testing::Cell other = cell;
      other.name += " variant " + std::to_string(variant);
      if (variant == 0) other.setup.zero.reduce_scatter = false;
      if (variant == 1) other.setup.zero.overlap_comm = false;
      if (variant == 2) other.setup.zero.contiguous_gradients = false;
      if (variant == 3) other.setup.zero.allgather_partitions = false;
      if (variant == 3) other.setup.precision.grad_accum_dtype = Dtype::kF32;
      if (variant == 4) other.setup.precision.fp32_reduction = true;
      cells.push_back(std::move(other));
    }
  }
  CheckEveryPass(cells, SmallChunks(Backend::kCuda, true));
}

TEST_CASE("every pass leaves a sound program where collectives send blocks of integers") {
  using testing::QuantizedCells;
  CheckEveryPass(QuantizedCells(testing::AllCells({3}, {Dtype::kBF16}, {1, 3})),
                 SmallChunks(Backend::kCuda, true));
  std::vector<testing::Cell> hybrid =
      QuantizedCells(testing::HybridCells({{4, 2}}, Dtype::kF16, {1, 3}));
  CheckEveryPass(hybrid, SmallChunks(Backend::kCuda, true));
  for (testing::Cell& cell : hybrid) cell.setup.zero.overlap_comm = false;
  CheckEveryPass(hybrid, SmallChunks(Backend::kCuda, true));
}

TEST_CASE("every pass leaves a sound program where ranks share sequences") {
  using testing::SequenceCells;
  ModelSpec llama = testing::TinyLlama(Llama());
  llama.layers = 5;
  const ModelSpec lora = testing::WithDropout(testing::WithLora(llama, "all-linear"));
  for (const Backend backend : {Backend::kCuda, Backend::kCpu}) {
    LowerOptions options = SmallChunks(backend, backend == Backend::kCuda);
    for (const bool documents : {false, true}) {
      options.document_borders = documents;
      const auto cells = SequenceCells(testing::AllCells({2, 4, 6}, {Dtype::kBF16}, {1, 3}), 2);
      CheckEveryPass(documents ? SequenceCells(testing::SomeCells({Dtype::kF32}), 2) : cells,
                     options, documents ? lora : llama);
      CheckEveryPass(testing::HomesCells(SequenceCells(testing::AllCells({2}, {Dtype::kBF16}), 2)),
                     options, llama);
    }
    options.document_borders = false;
    options.tile_rows = 5;
    CheckEveryPass(SequenceCells(testing::HybridCells({{4, 2}, {8, 4}}, Dtype::kBF16), 2), options,
                   llama);
    CheckEveryPass(SequenceCells(testing::AllCells({6}, {Dtype::kF32}, {2}), 6), options, llama);
  }
}

TEST_CASE("every pass leaves a sound program for generation") {
  LowerOptions options;
  options.purpose = Purpose::kGenerate;
  for (const bool keep : {false, true}) {
    options.keep_keys_values = keep;
    CheckEveryPass({{"generate", testing::BaseSetup(0, 1, Dtype::kF32, 1, kNoRecompute)}}, options);
  }
}

TEST_CASE("the runner times passes, stops after one, leaves some out and names a faulty one") {
  const ModelSpec model = testing::TinyModel();
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
  const TrainSetup setup = testing::BaseSetup(2, 2, Dtype::kBF16, 1, kNoRecompute);
  const LowerOptions options;
  const Program empty = EmptyProgram(model, tensors, setup, options);
  std::array<double, kPasses.size()> seconds{};
  const Program whole = PassRunner{.input = {options}, .seconds = &seconds}.Run(empty);
  CHECK(Fingerprint(whole) == Fingerprint(Lower(model, setup)));
  for (const double taken : seconds) CHECK(taken > 0);

  const Program computed = PassRunner{.input = {options}, .until = "BuildCompute"}.Run(empty);
  CHECK(computed.section(Section::kOptimizerStep).empty());
  constexpr std::array<std::string_view, 2> kTwo = {"BuildCompute", "InsertLifetimes"};
  const Program placeless = PassRunner{.input = {options}, .only = kTwo}.Run(empty);
  CHECK(placeless.section(Section::kInit).size() > 0);
  CHECK(placeless.event_count == 0);

  Program faulty = empty;
  faulty.layout.units[0].elements += 1;
  CHECK_THROWS_WITH_AS(
      (PassRunner{.input = {options}, .until = "BuildCompute", .verify = true}.Run(faulty)),
      doctest::Contains("pass BuildCompute leaves shard_cover"), CheckFailure);
}

TEST_CASE("docs/architecture.md lists the passes in order") {
  std::ifstream docs(SourcePath("docs/architecture.md"));
  REQUIRE(docs.good());
  std::vector<std::string> listed;  // lines such as "4. **InsertStates** (...): ..."
  for (std::string line; std::getline(docs, line);) {
    const std::string begin = std::to_string(listed.size() + 1) + ". **";
    if (!line.starts_with(begin)) continue;
    listed.push_back(line.substr(begin.size(), line.find("**", begin.size()) - begin.size()));
  }
  std::vector<std::string> run;
  for (const Pass& pass : kPasses) run.emplace_back(pass.name);
  CHECK(listed == run);
}

}  // namespace
}  // namespace zeroplan
