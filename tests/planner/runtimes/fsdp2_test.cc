#include "planner/runtimes/fsdp2.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "core/families/load_model.h"
#include "planner/runtimes/fitted.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

struct Row {
  Fsdp2Run run;
  std::string label;
  double device_used = 0;  // GiB
  RuntimeFootprint predicted;
};

double Gib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::vector<Row> LoadRows() {
  std::ifstream in(SourcePath("tests/data/runtimes/fsdp2_runs.jsonl"));
  std::vector<Row> rows;
  std::string line;
  std::getline(in, line);  // where they were measured
  while (std::getline(in, line)) {
    const nlohmann::json json = nlohmann::json::parse(line);
    Row row;
    row.run.model = LoadModel(json.at("model").get<std::string>());
    TrainSetup& setup = row.run.setup;
    setup.zero.stage = json.at("stage");
    setup.batch.world_size = json.at("gpus");
    setup.batch.micro_batch = json.at("micro_batch");
    setup.batch.seq_len = json.at("seq_len");
    if (row.run.model.family->name() == "gpt2") row.run.model.positions = setup.batch.seq_len;
    if (json.at("recompute").get<bool>()) setup.recompute = FullRecompute();
    const bool offload = json.at("offload");
    if (offload) {
      setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
      setup.zero.offload_param.device = OffloadDevice::kCpu;
    }
    row.run.compiled = true;
    row.run.compiled_loss = json.at("compiled_loss");
    row.device_used = json.at("device_used");
    row.predicted = Fsdp2Footprint(row.run);
    row.label = fmt::format("{}, {} GPU{}, {}{}{}, compiled{}, {} x {}", row.run.model.name,
                            setup.batch.world_size, setup.batch.world_size > 1 ? "s" : "",
                            setup.zero.stage == 3 ? "resharded" : "not resharded",
                            offload ? ", all on CPU" : "",
                            setup.recompute == kNoRecompute ? "" : ", recompute",
                            row.run.compiled_loss ? " with its loss" : "", setup.batch.micro_batch,
                            setup.batch.seq_len);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Table(const std::vector<Row>& rows) {
  std::string table =
      "| run: micro-batch x sequence | allocated | reserved | device |\n| --- | --- | --- | --- "
      "|\n";
  for (const Row& row : rows) {
    const double device = Gib(row.predicted.DeviceBytes());
    table +=
        fmt::format("| {} | {:.2f} | {:.2f} | {:.2f} / {:.1f}, {:+.1f} % |\n", row.label,
                    Gib(row.predicted.StepAllocatedBytes()), Gib(row.predicted.StepReservedBytes()),
                    device, row.device_used, 100 * (device / row.device_used - 1));
  }
  return table;
}

TEST_CASE("Fsdp2Footprint: each measured run's device memory") {
  double worst = 0;
  const std::vector<Row> rows = LoadRows();
  for (const Row& row : rows) {
    CAPTURE(row.label);
    const double error = std::abs(Gib(row.predicted.DeviceBytes()) / row.device_used - 1);
    CHECK(error < 0.12);
    worst = std::max(worst, error);
    for (const TorchPeak& peak : row.predicted.peaks) {
      CHECK(std::accumulate(peak.class_bytes.begin(), peak.class_bytes.end(), uint64_t{0}) ==
            peak.allocated_bytes);
    }
  }
  CHECK(static_cast<int>(rows.size()) == kFsdp2Margins.runs);
  CHECK(worst == doctest::Approx(kFsdp2Margins.device).epsilon(0.02));
}

TEST_CASE("Fsdp2Footprint: fp32 shards, states after the first step, whole parameters") {
  Fsdp2Run run;
  run.model = LoadModel("gpt3-1.3b");  // sizes that the allocator rounds little
  run.setup.batch.world_size = 4;
  run.setup.batch.micro_batch = 8;  // logits decide
  run.setup.zero.stage = 3;
  const auto psi = static_cast<double>(run.model.ParamCount());
  const auto bytes = [psi](uint64_t value) { return static_cast<double>(value) / psi; };
  const auto optimizer = [](const RuntimeFootprint& footprint, TorchPhase phase) {
    return footprint.peaks[static_cast<size_t>(phase)]
        .class_bytes[static_cast<size_t>(TorchClass::kOptimizer)];
  };
  const RuntimeFootprint sharded = Fsdp2Footprint(run);
  CHECK(bytes(sharded.after_init_bytes) == doctest::Approx(4 / 4.0).epsilon(0.02));
  CHECK(bytes(optimizer(sharded, TorchPhase::kStep)) == doctest::Approx(12 / 4.0).epsilon(0.02));
  run.setup.zero.stage = 2;
  const RuntimeFootprint whole = Fsdp2Footprint(run);
  // All 16-bit parameters, in place of the root group's and a layer that is gathered ahead.
  const double layer = 12.0 * 2048 * 2048 + 13.0 * 2048;
  const double rest = psi - 24 * layer;
  CHECK(bytes(whole.StepAllocatedBytes()) - bytes(sharded.StepAllocatedBytes()) ==
        doctest::Approx(2 * (psi - rest - layer) / psi).epsilon(0.01));
  run.setup.batch.micro_batch = 1;
  run.setup.batch.seq_len = 64;  // reductions decide
  const uint64_t reduced = Fsdp2Footprint(run).StepAllocatedBytes();
  run.setup.precision.fp32_reduction = true;
  CHECK(Fsdp2Footprint(run).StepAllocatedBytes() > reduced);
}

TEST_CASE("docs/runtimes.md holds the FSDP2 table as it is predicted now") {
  std::ifstream in(SourcePath("docs/runtimes.md"));
  std::stringstream text;
  text << in.rdbuf();
  std::istringstream table(Table(LoadRows()));
  std::string line;
  while (std::getline(table, line)) CHECK_MESSAGE(text.str().find(line) != std::string::npos, line);
}

TEST_CASE("print predicted beside measured of FSDP2" * doctest::skip()) {
  std::fputs(Table(LoadRows()).c_str(), stdout);
}

}  // namespace
}  // namespace zeroplan
