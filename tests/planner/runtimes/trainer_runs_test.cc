// Runs of transformers' Trainer on one H200 beside what the rows of its code predict.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_timer.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

const Runtime& RuntimeNamed(const std::string& key) {
  return key == "ddp" ? DdpRuntime() : key == "fsdp2" ? Fsdp2Runtime() : DeepSpeedRuntime();
}

template <size_t kNames>
size_t IndexOf(const std::array<std::string_view, kNames>& names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

// What has rows of its own elsewhere is left out: adapters.
bool IsOfCode(const nlohmann::json& row) {
  return !row.contains("lora") && !row.contains("nf4") && !row.contains("out_of_memory") &&
         row.contains("allocated") && !row.at("name").get<std::string>().starts_with("tiny");
}

struct Predicted {
  double allocated, reserved, seconds;
};

Predicted PredictRow(const nlohmann::json& row, const HardwareProfile& hardware) {
  TorchPlay play;
  play.model = LoadModel(row.at("model").get<std::string>());
  if (row.contains("layers")) play.model.layers = row.at("layers");
  TrainSetup& setup = play.setup;
  const int stage = row.at("stage");
  setup.zero = ReaderZeroDefaults(stage);
  setup.batch = {row.at("micro_batch"), row.value("grad_accum", 1), 1, row.at("seq_len")};
  setup.precision.dtype = Dtype::kBF16;
  setup.optimizer.gradient_clipping = 1;
  if (row.at("recompute")) setup.recompute = FullRecompute();
  setup.precision.light_masters = setup.precision.light_states = row.contains("light_states");
  if (row.contains("offload_optimizer")) {
    setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
    setup.zero.overlap_comm = true;
  }
  TorchRecipe& recipe = play.recipe;
  recipe.code = static_cast<CodeStyle>(IndexOf(kCodeStyleNames, row.at("code")));
  if (row.value("attention", "sdpa") == "eager") recipe.attention = TorchAttention::kEager;
  const std::string runtime = row.at("runtime");
  if (runtime == "ddp") {
    recipe.param_dtype = row.at("weights") == "fp32" ? Dtype::kF32 : Dtype::kBF16;
    recipe.optimizer = static_cast<TorchOptimizer>(IndexOf(kTorchOptimizerNames, row.at("optim")));
  }
  play.hardware = &hardware;
  recipe.expandable_segments = row.value("expandable_segments", false);
  if (row.contains("reduce_bucket_size")) {
    setup.zero.reduce_bucket_elements = row.at("reduce_bucket_size");
    setup.zero.overlap_comm = true;
  }
  if (row.contains("limit")) {
    play.limit_bytes = static_cast<uint64_t>(row.at("limit").get<double>() * (1 << 30));
  }
  const TorchMachine machine(hardware, ClusterShape{1, 8});
  TorchTimer timer(&machine, {});
  const TorchFootprint footprint =
      dynamic_cast<const TorchBased&>(RuntimeNamed(runtime)).Play(play, &timer);
  Predicted predicted{};
  for (const TorchPhase phase : {TorchPhase::kForwardBackward, TorchPhase::kStep}) {
    const TorchPeak& peak = footprint.peaks[static_cast<size_t>(phase)];
    predicted.allocated =
        std::max(predicted.allocated, static_cast<double>(peak.allocated_bytes) / (1 << 30));
  }
  predicted.reserved = static_cast<double>(footprint.ReservedBytes()) / (1 << 30);
  predicted.seconds = timer.Time(setup.batch.grad_accum)->step_seconds;
  return predicted;
}

// Errors of a file's runs, as shares.
struct TrainerErrors {
  int runs = 0;
  double allocated = 0, reserved = 0;  // the largest
  std::vector<double> times;           // |ln(predicted / measured)|, rising
  std::string table;
};

TrainerErrors ErrorsOf(const char* file) {
  const HardwareProfile hardware = LoadProfile(MeasuredH200());
  std::ifstream in(SourcePath(file));
  TrainerErrors errors;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (!row.contains("name") || !IsOfCode(row)) continue;
    const Predicted predicted = PredictRow(row, hardware);
    const auto off = [](double value, double measured) { return value / measured - 1; };
    const double allocated = off(predicted.allocated, row.at("allocated"));
    const double reserved = off(predicted.reserved, row.at("reserved"));
    ++errors.runs;
    errors.allocated = std::max(errors.allocated, std::abs(allocated));
    errors.reserved = std::max(errors.reserved, std::abs(reserved));
    std::string time = "not timed";
    // One run's steps took from 257 to 366 ms.
    if (row.contains("step_ms") && row.at("name") != "l1b-ds3-light") {
      const double late = std::log(1000 * predicted.seconds / row.at("step_ms").get<double>());
      errors.times.push_back(std::abs(late));
      time = fmt::format("time {:+.1f} %", 100 * std::expm1(late));
    }
    errors.table +=
        fmt::format("{}: allocated {:+.2f} %, reserved {:+.1f} %, {}\n",
                    row.at("name").get<std::string>(), 100 * allocated, 100 * reserved, time);
  }
  std::sort(errors.times.begin(), errors.times.end());
  return errors;
}

constexpr const char* kLaterRuns = "tests/data/runtimes/trainer_later_runs.jsonl";

TEST_CASE("Trainer: what is said of runs that nothing was fitted to") {
  const TrainerErrors fitted = ErrorsOf("tests/data/runtimes/trainer_runs.jsonl");
  const TrainerErrors later = ErrorsOf(kLaterRuns);
  CAPTURE(later.table);
  const auto near = [](double value) { return doctest::Approx(value).epsilon(0.02).scale(0); };
  CHECK(fitted.runs + later.runs == kTrainerMargins.runs);
  CHECK(std::max(fitted.allocated, later.allocated) == near(kTrainerMargins.allocated));
  CHECK(std::max(fitted.reserved, later.reserved) == near(kTrainerMargins.reserved));
  CHECK(static_cast<int>(later.times.size()) == kTrainerMargins.timed_runs);
  CHECK(std::expm1(later.times[later.times.size() / 2]) == near(kTrainerMargins.time_median));
  CHECK(std::expm1(later.times.back()) == near(kTrainerMargins.time_worst));
}

TEST_CASE("print the Trainer's runs beside what is predicted" * doctest::skip()) {
  for (const char* file : {"tests/data/runtimes/trainer_runs.jsonl", kLaterRuns}) {
    std::fputs(ErrorsOf(file).table.c_str(), stdout);
  }
}

TEST_CASE("Trainer: memory and time of transformers' code, with and without Liger") {
  const HardwareProfile hardware = LoadProfile(MeasuredH200());
  std::ifstream in(SourcePath("tests/data/runtimes/trainer_runs.jsonl"));
  std::vector<double> times;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (!row.contains("name") || !IsOfCode(row)) continue;
    const Predicted predicted = PredictRow(row, hardware);
    const double allocated = row.at("allocated"), reserved = row.at("reserved");
    CAPTURE(row.at("name"));
    // A parameter's rounding, and tensors of a few values, are all that is not counted.
    CHECK(predicted.allocated == doctest::Approx(allocated).epsilon(0.0015));
    CHECK(predicted.reserved == doctest::Approx(reserved).epsilon(0.06));
    // Not timed, or its steps took from 257 to 366 ms.
    if (!row.contains("step_ms") || row.at("name") == "l1b-ds3-light") continue;
    times.push_back(std::abs(std::log(1000 * predicted.seconds / row.at("step_ms").get<double>())));
  }
  REQUIRE(times.size() >= 20);
  std::sort(times.begin(), times.end());
  CHECK(times[times.size() / 2] < std::log(1.05));
  CHECK(times.back() < std::log(1.25));
}

}  // namespace
}  // namespace zeroplan
