// Predicted beside measured for every run of DeepSpeed that there is.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "planner/runtimes/fitted.h"
#include "tests/planner/runtimes/runtime_rows.h"

namespace zeroplan {
namespace {

// deepspeed-memory of tests/data/runtimes/predicted.txt.
std::string ValidationTable(const std::vector<DeepSpeedRow>& rows) {
  std::string table =
      "| run: micro-batch x micro-steps x sequence | initialisation | allocated | reserved | "
      "device "
      "| host |\n| --- | --- | --- | --- | --- | --- |\n";
  const auto cell = [](double predicted, double measured) {
    if (measured == 0) return fmt::format("{:.2f} / not known", predicted);
    return fmt::format("{:.2f} / {:.2f}, {:+.1f} %", predicted, measured,
                       100 * ShareOff(predicted, measured));
  };
  for (const DeepSpeedRow& row : rows) {
    const TorchFootprint& predicted = row.predicted;
    if (row.out_of_memory) {
      table += fmt::format(
          "| {} | predicted {:.2f}, out of memory in {} | | | | |\n", row.label,
          Gib(predicted.peaks[0].allocated_bytes),
          predicted.out_of_memory ? TorchPhaseName(*predicted.out_of_memory) : "no phase");
      continue;
    }
    const double device = Gib(predicted.StepReservedBytes() + predicted.context_bytes);
    table += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.label,
                         cell(Gib(predicted.peaks[0].allocated_bytes), row.init_peak),
                         cell(Gib(predicted.StepAllocatedBytes()), row.allocated),
                         cell(Gib(predicted.StepReservedBytes()), row.reserved),
                         row.gave_back() ? fmt::format("{:.2f} / given back", device)
                                         : cell(device, row.device_used),
                         cell(Gib(predicted.HostBytes()), row.host_rss));
  }
  return table;
}

TEST_CASE("DeepSpeedFootprint: each measured run's memory") {
  Errors after_init, init, allocated, reserved, device, host;
  int ran = 0;
  for (const DeepSpeedRow& row : LoadDeepSpeedRows()) {
    if (row.out_of_memory) continue;
    ++ran;
    CAPTURE(row.label);
    const TorchFootprint& predicted = row.predicted;
    CHECK(after_init.Add(Gib(predicted.after_init_bytes), row.after_init) < 0.02);
    CHECK(init.Add(Gib(predicted.peaks[0].allocated_bytes), row.init_peak) < 0.10);
    CHECK(allocated.Add(Gib(predicted.StepAllocatedBytes()), row.allocated) < 0.10);
    CHECK(reserved.Add(Gib(predicted.StepReservedBytes()), row.reserved) < 0.12);
    CHECK(host.Add(Gib(predicted.HostBytes()), row.host_rss) < 0.15);
    if (row.gave_back()) continue;
    const double used = Gib(predicted.StepReservedBytes() + predicted.context_bytes);
    CHECK(device.Add(used, row.device_used) < 0.12);
  }
  CHECK(ran == kDeepSpeedMargins.runs);
  CHECK(allocated.count == 79);
  CHECK(allocated.mean() < 0.04);
  // What estimate says of itself.
  CHECK(allocated.worst == doctest::Approx(kDeepSpeedMargins.allocated).epsilon(0.01).scale(0));
  CHECK(reserved.worst == doctest::Approx(kDeepSpeedMargins.reserved).epsilon(0.01).scale(0));
  CHECK(device.worst == doctest::Approx(kDeepSpeedMargins.device).epsilon(0.01).scale(0));
  CHECK(host.worst == doctest::Approx(kDeepSpeedMargins.host).epsilon(0.01).scale(0));
}

TEST_CASE("DeepSpeedFootprint: what ran fits its limit, what ran out of memory does not") {
  int limited = 0, failed = 0;
  for (const DeepSpeedRow& row : LoadDeepSpeedRows()) {
    CAPTURE(row.label);
    CHECK(row.predicted.out_of_memory.has_value() == row.out_of_memory);
    limited += row.run.limit_bytes.has_value() ? 1 : 0;
    failed += row.out_of_memory ? 1 : 0;
    if (row.run.limit_bytes && !row.out_of_memory) {
      CHECK(row.predicted.ReservedBytes() <= *row.run.limit_bytes);
    }
  }
  CHECK(limited == 44);
  CHECK(failed == 2);
}

// The tutorial's 10B on one GPU of 32 GB by stage 2 with the optimizer on the CPU.
TEST_CASE("DeepSpeedFootprint: the tutorial's 10B does not initialise in 32 GB") {
  for (const DeepSpeedRow& row : LoadDeepSpeedRows()) {
    if (!row.out_of_memory || row.run.model.name != "gpt2-10b") continue;
    CHECK(row.predicted.out_of_memory == TorchPhase::kInit);
    // Parameters and their flat copy.
    CHECK(row.predicted.peaks[0].allocated_bytes >= 4 * row.run.model.ParamCount());
  }
}

// Context and NCCL are three fitted numbers, each about the mean of a group of runs: without a run
// it would be that of the group's others.
TEST_CASE("DeepSpeedFootprint: device memory with each run left out of the fit") {
  const std::vector<DeepSpeedRow> rows = LoadDeepSpeedRows();
  const auto fitted = [](const DeepSpeedRow& row) {
    return !row.out_of_memory && row.reserved > 0 && !row.gave_back();
  };
  Errors errors;
  for (const DeepSpeedRow& left_out : rows) {
    if (!fitted(left_out)) continue;
    CAPTURE(left_out.label);
    double context = 0;
    int others = 0;
    for (const DeepSpeedRow& row : rows) {
      if (&row == &left_out || !fitted(row) || row.group != left_out.group) continue;
      context += row.device_used - row.reserved;
      ++others;
    }
    REQUIRE(others > 0);
    context /= others;
    errors.Add(Gib(left_out.predicted.StepReservedBytes()) + context, left_out.device_used);
    CHECK(std::abs(context - Gib(left_out.predicted.context_bytes)) < 0.1);
  }
  CHECK(errors.count == 67);
  CHECK(errors.worst < 0.098);
}

TEST_CASE("predicted.txt holds DeepSpeed's memory as it is predicted") {
  CheckDataHolds(ValidationTable(LoadDeepSpeedRows()));
}

TEST_CASE("print predicted beside measured of other runtimes" * doctest::skip()) {
  std::fputs(ValidationTable(LoadDeepSpeedRows()).c_str(), stdout);
}

}  // namespace
}  // namespace zeroplan
