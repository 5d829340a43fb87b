#include "planner/estimate/estimate.h"

#include <doctest/doctest.h>

#include <set>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "planner/estimate/choices.h"
#include "planner/report/report.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

EstimateInputs Inputs(const std::string& model, int gpus, const ChoiceSpace& space) {
  EstimateInputs inputs;
  inputs.model = LoadModel(model);
  inputs.cluster.gpus = gpus;
  inputs.cluster.gpus_per_node = std::min(gpus, 8);
  inputs.cluster.gpu_capacity_bytes = 80'000'000'000;
  inputs.cluster.runtime_bytes = 1'000'000'000;
  TrainSetup base;
  base.batch.world_size = gpus;
  base.batch.seq_len = 256;
  inputs.setups = EnumerateSetups(base, space);
  inputs.lower.backend = Backend::kCuda;
  return inputs;
}

TEST_CASE("choices: one at stage 0, three at 1 and 2, nine at 3; each once") {
  const std::vector<TrainSetup> setups = EnumerateSetups({}, {});
  CHECK(setups.size() == 16);
  std::set<std::string> labels;
  for (const TrainSetup& setup : setups) labels.insert(SetupLabel(setup));
  CHECK(labels.size() == 16);
  CHECK(labels.contains("stage 0"));
  CHECK(labels.contains("stage 2, optimizer on cpu"));
  CHECK(labels.contains("stage 3, optimizer on nvme, parameters on cpu"));
  CHECK(labels.contains("stage 3, optimizer and parameters on cpu"));
}

TEST_CASE("choices: a ratio below 1 leaves NVMe out; what cannot run at all is an error") {
  TrainSetup base;
  base.zero.offload_optimizer.ratio = 0.5;
  for (const TrainSetup& setup : EnumerateSetups(base, {})) {
    CHECK(setup.zero.offload_optimizer.device != OffloadDevice::kNvme);
  }
  ChoiceSpace space;
  space.stages = {1};
  space.offload_param = {OffloadDevice::kCpu};
  CHECK_THROWS_WITH_AS(EnumerateSetups({}, space), doctest::Contains("offload_param"), Error);
}

TEST_CASE("totals are classes, hosts are ranks, and more sharding never takes more states") {
  const EstimateInputs inputs = Inputs("gpt2-xl", 16, {});
  const Estimate estimate = EstimateChoices(inputs);
  REQUIRE(estimate.choices.size() == 16);
  for (const ChoiceEstimate& choice : estimate.choices) {
    INFO(SetupLabel(choice.setup));
    uint64_t sum = choice.footprint.runtime_bytes;
    for (uint64_t bytes : choice.memory.class_bytes) sum += bytes;
    CHECK(sum == choice.footprint.gpu_total());
    CHECK(choice.footprint.gpu_total() == choice.memory.arena(Space::kDevice) +
                                              RuntimeBytes(inputs.cluster, choice.memory.outside));
    CHECK(choice.footprint.host.pinned == 8 * choice.memory.arena(Space::kPinned));
    CHECK(choice.footprint.nvme_bytes == 8 * choice.memory.arena(Space::kFile));
    const bool nvme = choice.setup.zero.offload_optimizer.device == OffloadDevice::kNvme ||
                      choice.setup.zero.offload_param.device == OffloadDevice::kNvme;
    CHECK((choice.footprint.nvme_bytes > 0) == nvme);
    CHECK(choice.fits);
    CHECK(choice.traffic->pcie_bytes() > 0);  // tokens, at least
  }
  auto states = [&](size_t i) {
    const MemoryReport& memory = estimate.choices[i].memory;
    return memory.of(MemoryClass::kParams) + memory.of(MemoryClass::kGrads) +
           memory.of(MemoryClass::kOptimizer);
  };
  CHECK(states(1) < states(0));  // stage 1
  CHECK(states(4) < states(1));  // stage 2
  CHECK(states(7) < states(4));  // stage 3
}

TEST_CASE("what does not fit says by how much and what is largest") {
  EstimateInputs inputs = Inputs("gpt2", 1, {.stages = {0}});
  inputs.cluster.gpu_capacity_bytes = 1'500'000'000;
  const ChoiceEstimate choice = EstimateChoices(inputs).choices.front();
  CHECK_FALSE(choice.fits);
  CHECK(choice.why_not.starts_with("GPU memory short by "));
  CHECK(choice.why_not.find("has 1.50 GB; largest: optimizer 1.49 GB") != std::string::npos);
}

TEST_CASE("cells have at most five characters") {
  const ByteUnit gb{"GB", 1e9};
  CHECK(ByteCell(0, gb) == "-");
  CHECK(ByteCell(1, gb) == "0.00");
  CHECK(ByteCell(9'994'000'000, gb) == "9.99");
  CHECK(ByteCell(9'996'000'000, gb) == "10.0");
  CHECK(ByteCell(99'960'000'000, gb) == "100");
  CHECK(ByteCell(123'456'000'000, gb) == "123");
  for (uint64_t bytes = 1; bytes < (uint64_t{1} << 62); bytes = bytes * 7 / 3 + 1) {
    CHECK(ByteCell(bytes, gb).size() <= 5);
  }
}

TEST_CASE("wrapped lines keep words, leading spaces and the width") {
  CHECK(Wrap("  a b", 4, 100) == "  a b\n");
  const std::string word(60, 'x');
  CHECK(Wrap(word + " " + word, 4, 100) == word + "\n    " + word + "\n");
  CHECK(Wrap("", 2, 100) == "\n");
}

TEST_CASE("colour only where asked for; one choice alone shows its phases") {
  const Estimate one = EstimateChoices(Inputs("gpt2", 2, {.stages = {0}}));
  const std::string plain = ReportTable(one, {});
  CHECK(plain.find('\x1b') == std::string::npos);
  CHECK(plain.find("forward") != std::string::npos);
  CHECK(plain.find("backward") != std::string::npos);
  TableStyle colour;
  colour.colour = true;
  CHECK(ReportTable(one, colour).find("\x1b[32m yes\x1b[0m") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
