// What is predicted of transformers' Trainer beside runs of it on one H200: those that times were
// fitted to (tests/data/runtimes/trainer_runs.jsonl), and those that nothing was fitted to, under
// memory limits too (trainer_later_runs.jsonl).
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
#include "tests/paths.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

// Goals are shares of what was measured.
constexpr double kAllocatedOff = MostOff(0.05), kReservedOff = MostOff(0.10);
constexpr double kTimeMedianOff = MostOff(0.08), kTimeOff = MostOff(0.25);
constexpr const char* kFittedRuns = "tests/data/runtimes/trainer_runs.jsonl";
constexpr const char* kLaterRuns = "tests/data/runtimes/trainer_later_runs.jsonl";

struct TrainerRow {
  std::string name, message;  // `message`: why it is not predicted
  bool died = false, dies = false;
  double allocated = 0, reserved = 0, seconds = 0;  // measured; GiB
  double gib = 0, reserved_gib = 0, predicted_seconds = 0;

  double allocated_off() const { return ShareOff(gib, allocated); }
  double reserved_off() const { return ShareOff(reserved_gib, reserved); }
  double time_off() const { return seconds > 0 ? ShareOff(predicted_seconds, seconds) : 0; }
};

ModelSpec TrainerModel(const nlohmann::json& json) {
  ModelSpec model = LoadModel(json.at("model").get<std::string>());
  model.layers = json.value("layers", model.layers);
  model.lora_rank = json.value("lora", int64_t{0});
  if (model.lora_rank > 0) {
    model.lora_alpha = static_cast<float>(2 * model.lora_rank);
    model.lora_targets = "all-linear";
    model.lora_dropout = json.value("lora_dropout", 0.0F);
    model.lora_quantized = json.value("nf4", false);
  }
  return model;
}

TorchPlay TrainerPlay(const nlohmann::json& json) {
  TorchPlay play;
  play.model = TrainerModel(json);
  TrainSetup& setup = play.setup;
  setup.batch = {json.at("micro_batch"), json.at("grad_accum"), 1, json.at("seq_len")};
  if (play.model.family->name() == "gpt2") play.model.positions = setup.batch.seq_len;
  setup.zero = ReaderZeroDefaults(json.at("stage"));
  setup.zero.overlap_comm = true;
  if (json.contains("offload_optimizer")) setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  if (json.contains("offload_param")) setup.zero.offload_param.device = OffloadDevice::kCpu;
  if (json.at("recompute").get<bool>()) setup.recompute = FullRecompute();
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kBF16;
  setup.zero.reduce_bucket_elements =
      json.value("reduce_bucket_size", setup.zero.reduce_bucket_elements);
  if (json.value("light_states", false)) {
    setup.precision.master_weights = MasterWeights::kParam;
    setup.precision.moment_dtype = Dtype::kBF16;
  }
  TorchRecipe& recipe = play.recipe;
  recipe.expandable_segments = json.value("expandable_segments", false);
  recipe.kbit = json.value("kbit", false);
  recipe.code = json.at("code") == "liger" ? CodeStyle::kLiger : CodeStyle::kHf;
  if (json.value("attention", "sdpa") == "eager") recipe.attention = TorchAttention::kEager;
  if (json.at("runtime") != "deepspeed") {
    // FSDP2 by accelerate makes fp32 of what was loaded.
    const bool fp32 = json.at("weights") == "fp32" || json.at("runtime") == "fsdp2";
    recipe.param_dtype = fp32 ? Dtype::kF32 : Dtype::kBF16;
    // PEFT's adapters are in fp32 unless that is said.
    if (json.contains("lora") && !json.contains("adapters")) recipe.param_dtype.reset();
    recipe.optimizer = ValueIn(kWords<TorchOptimizer>, json.at("optim").get<std::string>());
    REQUIRE(recipe.optimizer);
  }
  constexpr double kH200 = 139.8;
  play.limit_bytes = static_cast<uint64_t>(json.value("limit", kH200 - 1) * (1 << 30));
  return play;
}

TrainerRow TrainerRowOf(const nlohmann::json& json, const HardwareProfile& profile) {
  static TorchMachine machine(profile, ClusterShape{1, 8});
  TrainerRow row;
  row.name = json.at("name");
  row.died = json.contains("out_of_memory");
  row.allocated = json.value("allocated", 0.0);
  row.reserved = json.value("reserved", 0.0);
  row.seconds = json.value("step_ms", 0.0) / 1e3;
  const auto& runtime =
      dynamic_cast<const TorchBased&>(*FindRuntime(json.at("runtime").get<std::string>()));
  try {
    TorchPlay play = TrainerPlay(json);
    play.hardware = &profile;
    const TorchFootprint footprint = runtime.Play(play);
    row.dies = footprint.out_of_memory.has_value();
    for (const TorchPhase phase : {TorchPhase::kForwardBackward, TorchPhase::kStep}) {
      row.gib = std::max(row.gib, Gib(footprint.peak(phase).allocated_bytes));
      row.reserved_gib = std::max(row.reserved_gib, Gib(footprint.peak(phase).reserved_bytes));
    }
    if (row.seconds == 0) return row;
    play.limit_bytes.reset();
    TorchTimer timer(&machine, TimeConstants{});
    runtime.Play(play, &timer);
    row.predicted_seconds = timer.Time(play.setup.batch.grad_accum)->step_seconds;
  } catch (const Error& error) {
    row.message = error.what();
  }
  return row;
}

// Those of `file` of which `wanted` is true.
void AddTrainerRows(const char* file, bool (*wanted)(const nlohmann::json&),
                    std::vector<TrainerRow>& rows) {
  const HardwareProfile profile = LoadProfile(MeasuredH200());
  std::ifstream in(SourcePath(file));
  std::string line;
  std::getline(in, line);  // how they were measured
  while (std::getline(in, line)) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (wanted(row)) rows.push_back(TrainerRowOf(row, profile));
  }
}

// Rows that are further off, by name, which docs/runtimes.md has too: micro-batch 1 with recompute
// waits for Python, and keeps 1.7 GiB more in reserve.
constexpr std::string_view kFurtherOff = "C-mb1-rc";

TEST_CASE("transformers' Trainer: runs that nothing was fitted to") {
  std::vector<TrainerRow> rows;
  AddTrainerRows(kLaterRuns, [](const nlohmann::json&) { return true; }, rows);
  // What no test of code styles and adapters holds.
  AddTrainerRows(
      kFittedRuns,
      [](const nlohmann::json& row) {
        return row.contains("light_states") || row.contains("offload_optimizer") ||
               row.contains("limit") || row.contains("out_of_memory");
      },
      rows);
  std::vector<double> times;
  int died = 0;
  for (const TrainerRow& row : rows) {
    CAPTURE(row.name);
    CAPTURE(row.allocated_off());
    CAPTURE(row.reserved_off());
    CAPTURE(row.time_off());
    CHECK(row.message == "");
    CHECK(row.dies == row.died);
    died += row.died;
    if (row.died) continue;
    CHECK(std::abs(row.allocated_off()) <= kAllocatedOff);
    if (row.seconds > 0) times.push_back(std::abs(row.time_off()));
    if (row.name == kFurtherOff) continue;
    CHECK(std::abs(row.reserved_off()) <= kReservedOff);
    CHECK(std::abs(row.time_off()) <= kTimeOff);
  }
  CHECK(died >= 10);
  REQUIRE(times.size() >= 20);
  std::sort(times.begin(), times.end());
  CHECK(times[times.size() / 2] <= kTimeMedianOff);
}

// Choices of one question do as many sequences a step; zeroplan's is the one that plan wrote, which
// keeps a margin of memory.
TEST_CASE("transformers' Trainer: the written choice beside a grid, in four scenarios") {
  std::vector<TrainerRow> rows;
  AddTrainerRows(
      kLaterRuns, [](const nlohmann::json& row) { return row.contains("scenario"); }, rows);
  for (const char scenario : {'A', 'B', 'C', 'D'}) {
    CAPTURE(scenario);
    const TrainerRow *chosen = nullptr, *best = nullptr, *said = nullptr;
    int choices = 0;
    for (const TrainerRow& row : rows) {
      if (row.name.front() != scenario) continue;
      ++choices;
      if (row.name.ends_with("-zeroplan")) chosen = &row;
      if (!row.died && (!best || row.seconds < best->seconds)) best = &row;
      if (!row.dies && (!said || row.predicted_seconds < said->predicted_seconds)) said = &row;
    }
    CHECK(choices == 6);
    REQUIRE(chosen);
    CHECK_FALSE(chosen->died);
    CHECK(best->seconds >= 0.97 * chosen->seconds);
    CHECK(said->predicted_seconds >= 0.97 * chosen->predicted_seconds);
  }
}

// Without adapters, which have tests of their own, and what is too small to tell.
bool IsOfCode(const nlohmann::json& row) {
  return !row.contains("lora") && !row.contains("out_of_memory") && row.contains("allocated") &&
         !row.at("name").get<std::string>().starts_with("tiny");
}

TEST_CASE("transformers' Trainer: memory is counted, and times were fitted") {
  std::vector<TrainerRow> rows;
  AddTrainerRows(
      kFittedRuns,
      [](const nlohmann::json& row) {
        return IsOfCode(row) && !row.contains("light_states") && !row.contains("offload_optimizer");
      },
      rows);
  std::vector<double> times;
  for (const TrainerRow& row : rows) {
    CAPTURE(row.name);
    // A parameter's rounding, and tensors of a few values, are all that is not counted.
    CHECK(std::abs(row.allocated_off()) <= 0.0015);
    CHECK(std::abs(row.reserved_off()) <= 0.06);
    if (row.seconds > 0) times.push_back(std::abs(row.time_off()));
  }
  REQUIRE(times.size() >= 20);
  std::sort(times.begin(), times.end());
  CHECK(times[times.size() / 2] < 0.05);
  CHECK(times.back() < kTimeOff);
}

TEST_CASE("transformers' Trainer: the errors that answers name") {
  std::vector<TrainerRow> rows, later;
  AddTrainerRows(kFittedRuns, IsOfCode, rows);
  AddTrainerRows(kLaterRuns, IsOfCode, later);
  std::vector<double> times;
  for (const TrainerRow& row : later) {
    if (row.seconds > 0) times.push_back(std::abs(row.time_off()));
  }
  std::sort(times.begin(), times.end());
  rows.insert(rows.end(), later.begin(), later.end());
  double allocated = 0, reserved = 0;
  for (const TrainerRow& row : rows) {
    allocated = std::max(allocated, std::abs(row.allocated_off()));
    reserved = std::max(reserved, std::abs(row.reserved_off()));
  }
  const auto near = [](double value) { return doctest::Approx(value).epsilon(0.02).scale(0); };
  CHECK(static_cast<int>(rows.size()) == kDdpMargins.runs);
  CHECK(allocated == near(kDdpMargins.allocated));
  CHECK(reserved == near(kDdpMargins.reserved));
  CHECK(static_cast<int>(times.size()) == kDdpMargins.timed_runs);
  CHECK(times[times.size() / 2] == near(kDdpMargins.time_median));
  CHECK(times.back() == near(kDdpMargins.time_worst));
}

TEST_CASE("print the Trainer's runs beside what is predicted" * doctest::skip()) {
  for (const char* file : {kFittedRuns, kLaterRuns}) {
    std::vector<TrainerRow> rows;
    AddTrainerRows(file, [](const nlohmann::json& row) { return row.contains("allocated"); }, rows);
    for (const TrainerRow& row : rows) {
      fmt::print("{}: allocated {:+.2f} %, reserved {:+.1f} %, time {:+.1f} %\n", row.name,
                 100 * row.allocated_off(), 100 * row.reserved_off(), 100 * row.time_off());
    }
  }
}

}  // namespace
}  // namespace zeroplan
