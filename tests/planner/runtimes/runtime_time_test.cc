// Predicted beside measured step times of DeepSpeed and FSDP2.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtimes.h"
#include "tests/paths.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

// What is fitted of TimeConstants.
constexpr double TimeConstants::*kFitted[] = {&TimeConstants::launch,
                                              &TimeConstants::graph,
                                              &TimeConstants::checkpoint,
                                              &TimeConstants::gradient_hook,
                                              &TimeConstants::offloaded_gradient,
                                              &TimeConstants::module_hooks,
                                              &TimeConstants::module_graph,
                                              &TimeConstants::gathered_param,
                                              &TimeConstants::partitioned_gradient,
                                              &TimeConstants::offloaded_shard,
                                              &TimeConstants::eager_memory,
                                              &TimeConstants::compiled_memory,
                                              &TimeConstants::beside_collective,
                                              &TimeConstants::cpu_adam,
                                              &TimeConstants::cpu_clip};
constexpr size_t kCount = std::size(kFitted);

// Ratios of measured to predicted.
struct Ratios {
  std::vector<double> logs;

  void Add(double predicted, double measured) { logs.push_back(std::log(measured / predicted)); }
  double Median() const {
    std::vector<double> errors = Errors();
    std::nth_element(errors.begin(), errors.begin() + static_cast<ptrdiff_t>(errors.size() / 2),
                     errors.end());
    return errors[errors.size() / 2];
  }
  double Worst() const {
    const std::vector<double> errors = Errors();
    return *std::max_element(errors.begin(), errors.end());
  }
  double Spread() const {  // standard deviation
    double mean = 0, sum = 0;
    for (const double log : logs) mean += log / static_cast<double>(logs.size());
    for (const double log : logs) sum += (log - mean) * (log - mean);
    return std::sqrt(sum / static_cast<double>(logs.size()));
  }

 private:
  std::vector<double> Errors() const {
    std::vector<double> errors;
    for (const double log : logs) errors.push_back(std::abs(std::exp(log) - 1));
    return errors;
  }
};

std::string TimeTable(const std::vector<TimedRow>& rows) {
  std::string table =
      "| run: micro-batch x micro-steps x sequence | step, ms: predicted / measured | compute | "
      "communication | copies | host update | Python |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const TimedRow& row : rows) {
    const RuntimeTime time = row.predict({});
    table += fmt::format(
        "| {}{} | {:.0f} / {:.0f}, {:+.1f} % | {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} |\n",
        row.group.starts_with("FSDP2") ? "FSDP2, " : "", row.label, 1e3 * time.step_seconds,
        1e3 * row.measured, 100 * ShareOff(time.step_seconds, row.measured), 1e3 * time.compute,
        1e3 * time.exposed_communication, 1e3 * time.transfers, 1e3 * time.host_update,
        1e3 * time.host_overhead);
  }
  return table;
}

std::map<std::string, Ratios> ByGroup(const std::vector<TimedRow>& rows,
                                      const TimeConstants& constants) {
  std::map<std::string, Ratios> groups;
  for (const TimedRow& row : rows) {
    groups[row.group].Add(row.predict(constants).step_seconds, row.measured);
  }
  return groups;
}

std::string GroupTable(const std::map<std::string, Ratios>& groups) {
  std::string table =
      "| group | runs | median | worst | spread |\n| --- | --- | --- | --- | --- |\n";
  for (const auto& [name, ratios] : groups) {
    table += fmt::format("| {} | {} | {:.1f} % | {:.1f} % | {:.3f} |\n", name, ratios.logs.size(),
                         100 * ratios.Median(), 100 * ratios.Worst(), ratios.Spread());
  }
  return table;
}

using Vector = std::array<double, kCount>;
using Matrix = std::array<Vector, kCount>;

// matrix * x = right, of a positive definite matrix (Gauss, without pivots).
Vector Solve(Matrix matrix, Vector right) {
  for (size_t k = 0; k < kCount; ++k) {
    for (size_t i = k + 1; i < kCount; ++i) {
      const double factor = matrix[i][k] / matrix[k][k];
      for (size_t j = k; j < kCount; ++j) matrix[i][j] -= factor * matrix[k][j];
      right[i] -= factor * right[k];
    }
  }
  for (size_t k = kCount; k-- > 0;) {
    for (size_t j = k + 1; j < kCount; ++j) right[k] -= matrix[k][j] * right[j];
    right[k] /= matrix[k][k];
  }
  return right;
}

// One step of least squares of the rows' logarithms, held back a little where these say nothing.
// Runs that are predicted the same, measured on hosts of different speed, count as one in all.
class Fit {
 public:
  Fit(const std::vector<TimedRow>& rows, const TimeConstants& from)
      : from_(from), slopes_(rows.size()), errors_(rows.size()), weights_(rows.size()) {
    constexpr double kStep = 0.1;
    std::vector<double> predicted;
    const auto log_of = [&](const TimedRow& row, const TimeConstants& constants) {
      return std::log(row.predict(constants).step_seconds / row.measured);
    };
    for (size_t row = 0; row < rows.size(); ++row) {
      predicted.push_back(rows[row].predict(from).step_seconds);
      errors_[row] = std::log(predicted[row] / rows[row].measured);
      for (size_t k = 0; k < kCount; ++k) {
        TimeConstants more = from;
        more.*kFitted[k] *= std::exp(kStep);
        slopes_[row][k] = (log_of(rows[row], more) - errors_[row]) / kStep;
      }
    }
    for (size_t row = 0; row < rows.size(); ++row) {
      weights_[row] =
          1.0 / static_cast<double>(std::count(predicted.begin(), predicted.end(), predicted[row]));
    }
  }

  // With the rows alone for which counts(row) holds.
  template <typename Counts>
  TimeConstants Constants(Counts&& counts) const {
    constexpr double kRidge = 0.02;
    Matrix normal{};
    Vector right{};
    for (size_t k = 0; k < kCount; ++k) normal[k][k] = kRidge;
    for (size_t row = 0; row < errors_.size(); ++row) {
      if (!counts(row)) continue;
      for (size_t i = 0; i < kCount; ++i) {
        const double slope = weights_[row] * slopes_[row][i];
        for (size_t j = 0; j < kCount; ++j) normal[i][j] += slope * slopes_[row][j];
        right[i] -= slope * errors_[row];
      }
    }
    const Vector step = Solve(normal, right);
    TimeConstants constants = from_;
    for (size_t k = 0; k < kCount; ++k) constants.*kFitted[k] *= std::exp(step[k]);
    return constants;
  }

 private:
  TimeConstants from_;
  std::vector<Vector> slopes_;
  std::vector<double> errors_, weights_;
};

// Each row's prediction with constants that its fold had no part in.
std::map<std::string, Ratios> CrossValidate(const std::vector<TimedRow>& rows,
                                            const std::vector<std::string>& folds) {
  const Fit fit(rows, {});
  std::map<std::string, Ratios> left_out;
  for (const std::string& fold : std::set<std::string>(folds.begin(), folds.end())) {
    const TimeConstants constants = fit.Constants([&](size_t row) { return folds[row] != fold; });
    for (size_t row = 0; row < rows.size(); ++row) {
      if (folds[row] != fold) continue;
      left_out[rows[row].group].Add(rows[row].predict(constants).step_seconds, rows[row].measured);
    }
  }
  return left_out;
}

std::vector<std::string> Labels(const std::vector<TimedRow>& rows) {
  std::vector<std::string> labels;
  for (const TimedRow& row : rows) labels.push_back(row.label);
  return labels;
}
// Up to the first comma of the label.
std::vector<std::string> Models(const std::vector<TimedRow>& rows) {
  std::vector<std::string> models;
  for (const TimedRow& row : rows) models.push_back(row.label.substr(0, row.label.find(',')));
  return models;
}

TEST_CASE("RuntimeTime: measured steps on H200s, by group") {
  const std::vector<TimedRow> rows = LoadTimedRows();
  Ratios deepspeed;
  for (const auto& [group, ratios] : ByGroup(rows, {})) {
    CAPTURE(group);
    if (group != kStage3RecomputeGroup) CHECK(ratios.Median() <= MostOff(0.12));
    CHECK(ratios.Worst() <= MostOff(0.35));
    if (group.starts_with("FSDP2")) continue;
    deepspeed.logs.insert(deepspeed.logs.end(), ratios.logs.begin(), ratios.logs.end());
  }
  CHECK(deepspeed.Median() <= MostOff(0.12));
  const std::vector<double> recompute = ByGroup(rows, {})[kStage3RecomputeGroup].logs;
  const auto [fastest, slowest] = std::minmax_element(recompute.begin(), recompute.end());
  CHECK(static_cast<int>(recompute.size()) == kDeepSpeedMargins.recompute_runs);
  CHECK(std::exp(*fastest) ==
        doctest::Approx(kDeepSpeedMargins.recompute_fastest).epsilon(0.01).scale(0));
  CHECK(std::exp(*slowest) ==
        doctest::Approx(kDeepSpeedMargins.recompute_slowest).epsilon(0.01).scale(0));
  for (const TimedRow& row : rows) {
    const RuntimeTime time = row.predict({});
    const double sum = time.compute + time.exposed_communication + time.transfers +
                       time.host_update + time.host_overhead;
    CHECK(sum == doctest::Approx(time.step_seconds));
  }
}

TEST_CASE("RuntimeTime: what plan --runtime chose, and what it was compared with") {
  Ratios deepspeed, fsdp2;
  for (const auto& [group, ratios] : ByGroup(LoadChosenRows(), {})) {
    CAPTURE(group);
    CHECK(ratios.Median() <= MostOff(0.12));
    CHECK(ratios.Worst() <= MostOff(0.35));
    std::vector<double>& logs = (group.starts_with("FSDP2") ? fsdp2 : deepspeed).logs;
    logs.insert(logs.end(), ratios.logs.begin(), ratios.logs.end());
  }
  const auto near = [](double value) { return doctest::Approx(value).epsilon(0.01).scale(0); };
  CHECK(static_cast<int>(deepspeed.logs.size()) == kDeepSpeedMargins.chosen_runs);
  CHECK(deepspeed.Median() == near(kDeepSpeedMargins.chosen_median));
  CHECK(deepspeed.Worst() == near(kDeepSpeedMargins.chosen_worst));
  CHECK(static_cast<int>(fsdp2.logs.size()) == kFsdp2Margins.chosen_runs);
  CHECK(fsdp2.Median() == near(kFsdp2Margins.chosen_median));
  CHECK(fsdp2.Worst() == near(kFsdp2Margins.chosen_worst));
}

TEST_CASE("RuntimeTime: PyTorch alone, which nothing was fitted to") {
  for (const auto& [group, ratios] : ByGroup(LoadOtherRows(), {})) {
    CAPTURE(group);
    CHECK(ratios.logs.size() == 5);
    CHECK(ratios.Median() <= 0.05);
    CHECK(ratios.Worst() <= 0.2);
  }
}

TEST_CASE("RuntimeTime: each run, and each model, left out of the fit") {
  const std::vector<TimedRow> rows = LoadTimedRows();
  const auto near = [](double value) { return doctest::Approx(value).epsilon(0.01).scale(0); };
  Ratios deepspeed, fsdp2;  // with each model left out
  for (const bool models : {false, true}) {
    for (const auto& [group, ratios] : CrossValidate(rows, models ? Models(rows) : Labels(rows))) {
      CAPTURE(group);
      // Left out, the runs of one host are predicted by the other host's alone.
      const bool hosts_differ = group == kStage3RecomputeGroup;
      if (!hosts_differ) CHECK(ratios.Median() <= MostOff(0.12));
      CHECK(ratios.Worst() <= (hosts_differ ? 0.6 : MostOff(0.35)));
      if (!models) continue;
      if (hosts_differ) {
        CHECK(ratios.Worst() == near(kDeepSpeedMargins.recompute_worst));
        continue;
      }
      std::vector<double>& logs = (group.starts_with("FSDP2") ? fsdp2 : deepspeed).logs;
      logs.insert(logs.end(), ratios.logs.begin(), ratios.logs.end());
    }
  }
  // What estimate says of itself.
  CHECK(static_cast<int>(deepspeed.logs.size()) == kDeepSpeedMargins.timed_runs);
  CHECK(deepspeed.Median() == near(kDeepSpeedMargins.time_median));
  CHECK(deepspeed.Worst() == near(kDeepSpeedMargins.time_worst));
  CHECK(static_cast<int>(fsdp2.logs.size()) == kFsdp2Margins.timed_runs);
  CHECK(fsdp2.Median() == near(kFsdp2Margins.time_median));
  CHECK(fsdp2.Worst() == near(kFsdp2Margins.time_worst));
}

// Of gpt2-medium on two H200.
TimeEstimate StepOn(const Runtime& runtime, const TrainSetup& setup, double link_scale = 1,
                    const TorchRecipe& recipe = {}) {
  HardwareProfile hardware = LoadProfile("hgx-h200");
  if (link_scale != 1) ApplyGpuLink(hardware, fmt::format("{:.1f}GB/s", 450 * link_scale));
  Cluster cluster;
  cluster.gpus = 2;
  cluster.gpus_per_node = 8;
  return runtime.Judge({LoadModel("gpt2-medium"), {}, recipe, &hardware, nullptr})
      ->Estimate(setup, cluster)
      .time;
}

double StepSeconds(const Runtime& runtime, const TrainSetup& setup, double link_scale = 1) {
  return *StepOn(runtime, setup, link_scale).total_seconds;
}

TrainSetup Setup(int stage) {
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(stage);
  setup.zero.overlap_comm = true;
  setup.batch.world_size = 2;
  setup.batch.micro_batch = 8;
  setup.batch.seq_len = 1024;
  return setup;
}

TEST_CASE("RuntimeTime: what makes a step longer") {
  for (const int stage : {1, 2, 3}) {
    for (const Runtime* of : {&DeepSpeedRuntime(), &Fsdp2Runtime()}) {
      const Runtime& runtime = *of;
      if (of == &Fsdp2Runtime() && stage == 1) continue;
      CAPTURE(stage);
      const TrainSetup setup = Setup(stage);
      const double step = StepSeconds(runtime, setup);
      double before = step;
      for (const int64_t micro_steps : {2, 3, 4, 9}) {
        TrainSetup more = setup;
        more.batch.grad_accum = micro_steps;
        const double seconds = StepSeconds(runtime, more);
        CHECK(seconds > before * 1.05);
        CHECK(seconds < static_cast<double>(micro_steps) * step * 1.2);
        before = seconds;
      }
      TrainSetup recompute = setup;
      recompute.recompute = FullRecompute();
      CHECK(StepSeconds(runtime, recompute) > 1.1 * step);
      CHECK(StepSeconds(runtime, setup, 0.01) > step);
    }
  }
}

// At stages 1 and 2 overlap_comm also ends each backward pass with a synchronisation of the device
// (independent_gradient_partition_epilogue), after which this small model waits for Python: on a
// fast link about as long as what is hidden.
TEST_CASE("RuntimeTime: overlap_comm hides reductions") {
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    TrainSetup setup = Setup(stage);
    setup.zero.reduce_bucket_elements = 50'000'000;
    TrainSetup in_turn = setup;
    in_turn.zero.overlap_comm = false;
    for (const double link : {1.0, 0.2, 0.1, 0.02}) {
      CAPTURE(link);
      const TimeEstimate beside = StepOn(DeepSpeedRuntime(), setup, link, {true, true});
      const TimeEstimate before = StepOn(DeepSpeedRuntime(), in_turn, link, {true, true});
      // On the slowest a pass is too short to hide them.
      CHECK(*beside.exposed_comm_seconds <
            (link > 0.02 ? 0.65 : 0.9) * *before.exposed_comm_seconds);
      CHECK(*beside.total_seconds < (link > 0.1 ? 1.03 : 1.01) * *before.total_seconds);
      // At stage 3 of a model as small as this the step waits for Python alone.
      if (link < 0.2 && stage < 3) {
        CHECK(*beside.total_seconds < (link > 0.02 ? 0.96 : 0.95) * *before.total_seconds);
      }
    }
  }
}

TEST_CASE("RuntimeTime: the host's update, and none where its memory is not known") {
  TrainSetup setup = Setup(2);
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  HardwareProfile hardware = LoadProfile(MeasuredH200());
  Cluster cluster;
  cluster.gpus = 2;
  cluster.gpus_per_node = 8;
  const ModelSpec model = LoadModel("gpt2-medium");
  const auto time = [&] {
    return DeepSpeedRuntime().Judge({model, {}, {}, &hardware})->Estimate(setup, cluster).time;
  };
  // Half the parameters, 8 + 28 / cpu_adam + 6 bytes each, at half of 184 GB/s.
  const double bytes = 14 + 28 / TimeConstants{}.cpu_adam;
  const double elements = static_cast<double>(model.ParamCount()) / 2;
  CHECK(*time().host_update_seconds == doctest::Approx(elements * bytes / 92e9).epsilon(0.01));
  hardware.node.adam_bandwidth.reset();
  hardware.node.triad_bandwidth.reset();
  CHECK_FALSE(time().total_seconds.has_value());
  setup.zero.offload_optimizer.device = OffloadDevice::kNone;
  CHECK(time().total_seconds.has_value());
}

TEST_CASE("TorchMachineLacks: a network for several nodes") {
  HardwareProfile hardware = LoadProfile("hgx-h200");
  CHECK(TorchMachineLacks(hardware, {16, 8}).empty());
  hardware.network.reset();
  CHECK(TorchMachineLacks(hardware, {8, 8}).empty());
  CHECK(TorchMachineLacks(hardware, {16, 8}) == "network.bandwidth_per_node");
}

// LLaMA-Factory's issue 5014: LoRA of Llama 3 8B at stage 3 (examples/train_lora/
// llama3_lora_sft_ds3.yaml of 0.8.3: rank 8, one sequence a GPU, two micro-steps) on two nodes of
// eight A800, NCCL over sockets in containers with a swarm overlay network on 10 Gb/s: 90 s a step.
TEST_CASE("a published run over sockets took as much longer as kSocketsWorst says") {
  HardwareProfile hardware = LoadProfile("dgx-a100-80gb");
  ApplyNetwork(hardware, "eth-10");
  TorchPlay play;
  play.model = LoadModel("llama3.1-8b");
  play.model.lora_rank = 8;
  play.model.lora_alpha = 16;
  play.model.lora_targets = "all-linear";
  play.setup.zero = ReaderZeroDefaults(3);
  play.setup.batch = {.micro_batch = 1, .grad_accum = 2, .world_size = 16, .seq_len = 1024};
  play.setup.recompute = FullRecompute();
  play.recipe.code = CodeStyle::kHf;
  play.hardware = &hardware;
  play.gpus_per_node = 8;
  const TorchMachine machine(hardware, {16, 8});
  TorchTimer timer(&machine, {});
  dynamic_cast<const TorchBased&>(DeepSpeedRuntime()).Play(play, &timer);
  CHECK(ShareOff(timer.Time(2)->step_seconds, 90) == doctest::Approx(kSocketsWorst).epsilon(0.02));

  CHECK(MayUseSockets(hardware));
  CHECK(NetworkNote(hardware).find("took 1.8 times as long") != std::string::npos);
  Figure reached;
  reached.value = reached.written = 0.5;
  reached.unit = "ratio";
  hardware.network->reached = reached;
  CHECK_FALSE(MayUseSockets(hardware));
  for (const char* network : {"eth-25", "10Gb", "2x25Gb"}) {
    ApplyNetwork(hardware, network);
    CAPTURE(network);
    CHECK(MayUseSockets(hardware));
  }
  for (const char* network : {"eth-100", "ib-100", "efa-100", "4x100Gb"}) {
    ApplyNetwork(hardware, network);
    CAPTURE(network);
    CHECK_FALSE(MayUseSockets(hardware));
    CHECK(NetworkNote(hardware).find("sockets") == std::string::npos);
  }
}

TEST_CASE("predicted.txt holds the step times as they are predicted") {
  const std::vector<TimedRow> rows = LoadTimedRows();
  CheckDataHolds(TimeTable(rows));
  CheckDataHolds(TimeTable(LoadChosenRows()));
  CheckDataHolds(TimeTable(LoadOtherRows()));
  CheckDataHolds(GroupTable(ByGroup(rows, {})));
  CheckDataHolds(GroupTable(ByGroup(LoadOtherRows(), {})));
  CheckDataHolds(GroupTable(CrossValidate(rows, Labels(rows))));
  CheckDataHolds(GroupTable(CrossValidate(rows, Models(rows))));
}

TEST_CASE("print constants fitted to the measured step times" * doctest::skip()) {
  const std::vector<TimedRow> rows = LoadTimedRows();
  TimeConstants constants;
  for (int step = 0; step < 4; ++step) {
    constants = Fit(rows, constants).Constants([](size_t) { return true; });
    for (double TimeConstants::*fitted : kFitted) std::printf(" %.4g", constants.*fitted);
    std::printf("\n%s", GroupTable(ByGroup(rows, constants)).c_str());
  }
}

TEST_CASE("print predicted beside measured step times" * doctest::skip()) {
  const std::vector<TimedRow> rows = LoadTimedRows();
  std::fputs(TimeTable(rows).c_str(), stdout);
  std::printf("\nChosen:\n%s", TimeTable(LoadChosenRows()).c_str());
  std::printf("\n%s", TimeTable(LoadOtherRows()).c_str());
  std::printf("\n%s\nOther:\n%s", GroupTable(ByGroup(rows, {})).c_str(),
              GroupTable(ByGroup(LoadOtherRows(), {})).c_str());
  std::printf("\nEach run left out:\n%s", GroupTable(CrossValidate(rows, Labels(rows))).c_str());
  std::printf("\nEach model left out:\n%s", GroupTable(CrossValidate(rows, Models(rows))).c_str());
}

}  // namespace
}  // namespace zeroplan
