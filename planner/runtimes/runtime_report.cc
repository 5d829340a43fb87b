#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/terminal.h"
#include "core/base/units.h"
#include "planner/estimate/choices.h"
#include "planner/report/choice_columns.h"
#include "planner/report/report_columns.h"
#include "planner/report/report_text.h"
#include "planner/runtimes/runtime_estimate.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr TorchPhase kPhases[] = {TorchPhase::kInit, TorchPhase::kForwardBackward,
                                  TorchPhase::kStep};

std::string Gigabytes(uint64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e9);
}

double TokensPerSecond(const RuntimeChoice& choice) {
  const BatchSpec& batch = choice.setup.batch;
  return static_cast<double>(batch.micro_batch * batch.grad_accum * batch.seq_len) /
         choice.time->step_seconds;
}
std::string StepText(const RuntimeChoice& choice) {
  return choice.time ? fmt::format("{:#.3g}", choice.time->step_seconds) : "-";
}
std::string TokensText(const RuntimeChoice& choice) {
  return choice.time ? fmt::format("{:.0f}", TokensPerSecond(choice)) : "-";
}

// Every choice in a row.
std::string ChoiceTable(const RuntimeEstimate& estimate) {
  ReportColumns columns;
  AddChoiceColumns(columns);
  columns.BeginGroup("GB allocated in");
  const size_t init = columns.Add("init", 8);
  columns.Add("fwd+bwd", 8);
  const size_t step = columns.Add("step", 8);
  columns.BeginGroup("GB of one GPU");
  columns.Add("reserved", 8);
  columns.Add("total", 8);
  columns.BeginGroup("GB a host");
  const size_t processes = columns.Add("processes", 9);
  columns.BeginGroup("a step");
  columns.Add("seconds", 7);
  columns.Add("tok/s", 8);
  columns.BeginGroup("");
  columns.Add(" fits", 5, true);
  const std::string left_out = columns.LeaveOut({init, step, processes}, PageColumns());
  std::string text = columns.Header(Paints(false));
  for (const RuntimeChoice& choice : estimate.choices) {
    const RuntimeFootprint& footprint = choice.footprint;
    const uint64_t host =
        footprint.HostBytes() * static_cast<uint64_t>(estimate.cluster.ranks_per_node());
    std::vector<std::string> cells = ChoiceCells(choice.setup);
    cells.insert(
        cells.end(),
        {Gigabytes(footprint.peaks[0].allocated_bytes),
         Gigabytes(footprint.peaks[1].allocated_bytes),
         Gigabytes(footprint.peaks[2].allocated_bytes), Gigabytes(footprint.ReservedBytes()),
         Gigabytes(footprint.DeviceBytes()), Gigabytes(host), StepText(choice), TokensText(choice),
         !choice.fits()         ? " no"
         : choice.empties_cache ? " yes*"
         : choice.tight         ? "tight"
                                : " yes"});
    std::string row = columns.Row(cells);
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + '\n';
  }
  return text + LeftOutText(left_out, "json");
}

std::string ClassTable(const RuntimeFootprint& footprint) {
  ReportColumns columns;
  columns.BeginGroup("");
  columns.Add("GB at the peak of", 17, true);
  for (size_t i = 0; i < kTorchClasses; ++i) {
    const std::string_view name = TorchClassName(static_cast<TorchClass>(i));
    columns.Add(name, PageColumns() < kPlainColumns ? std::max<size_t>(name.size(), 8) : 11);
  }
  std::string text = columns.Header(Paints(false));
  for (const TorchPhase phase : kPhases) {
    std::vector<std::string> cells = {std::string(TorchPhaseName(phase))};
    for (const uint64_t bytes : footprint.peaks[static_cast<size_t>(phase)].class_bytes) {
      cells.push_back(Gigabytes(bytes));
    }
    text += columns.Row(cells) + '\n';
  }
  return text +
         Wrap(fmt::format(
                  "Of reserved memory the phase '{}' decides. Host: {} GB page-locked, "
                  "{} pageable, {} Python and libraries, of one process.",
                  TorchPhaseName(footprint.DecidingPhase()), Gigabytes(footprint.host.pinned_bytes),
                  Gigabytes(footprint.host.pageable_bytes), Gigabytes(footprint.host_base_bytes)),
              2);
}

std::string StepPartsText(const RuntimeChoice& choice) {
  if (!choice.time) return "";
  const RuntimeTime& time = *choice.time;
  return Wrap(
      fmt::format(
          "Step, {:#.3g} s: compute {:.3f}, and waiting for communication {:.3f}, for copies "
          "{:.3f}, for the update on the host {:.3f}, for Python {:.3f}.",
          time.step_seconds, time.compute, time.exposed_communication, time.transfers,
          time.host_update, time.host_overhead),
      2);
}

Json TimeJson(const RuntimeChoice& choice) {
  if (!choice.time) return nullptr;
  const RuntimeTime& time = *choice.time;
  return {{"compute", time.compute},
          {"exposed_communication", time.exposed_communication},
          {"transfers", time.transfers},
          {"host_update", time.host_update},
          {"host_overhead", time.host_overhead}};
}

Json PeakJson(const TorchPeak& peak) {
  Json json = {{"allocated", peak.allocated_bytes}, {"reserved", peak.reserved_bytes}};
  for (size_t i = 0; i < kTorchClasses; ++i) {
    json["classes"][std::string(TorchClassName(static_cast<TorchClass>(i)))] = peak.class_bytes[i];
  }
  return json;
}

Json ChoiceJson(const RuntimeChoice& choice, const RuntimeEstimate& estimate) {
  const TrainSetup& setup = choice.setup;
  const RuntimeFootprint& footprint = choice.footprint;
  Json phases;
  for (const TorchPhase phase : kPhases) {
    phases[std::string(TorchPhaseName(phase))] =
        PeakJson(footprint.peaks[static_cast<size_t>(phase)]);
  }
  return {{"stage", setup.zero.stage},
          {"offload_optimizer", OffloadDeviceName(setup.zero.offload_optimizer.device)},
          {"offload_ratio", setup.zero.offload_optimizer.ratio},
          {"offload_param", OffloadDeviceName(setup.zero.offload_param.device)},
          {"checkpointing", RecomputeName(setup.recompute)},
          {"micro_batch", setup.batch.micro_batch},
          {"grad_accum", setup.batch.grad_accum},
          {"gpus", setup.batch.world_size},
          {"dtype", DtypeName(setup.precision.dtype)},
          {"settings",
           {{"reduce_bucket", setup.zero.reduce_bucket_elements},
            {"overlap_comm", setup.zero.overlap_comm}}},
          {"gpu_bytes",
           {{"phases", phases},
            {"deciding_phase", TorchPhaseName(footprint.DecidingPhase())},
            {"after_init", footprint.after_init_bytes},
            {"reserved", footprint.ReservedBytes()},
            {"context", footprint.context_bytes},
            {"total", footprint.DeviceBytes()},
            {"capacity", estimate.cluster.gpu_capacity_bytes},
            {"reserve", estimate.cluster.gpu_reserve_bytes}}},
          {"process_host_bytes",
           {{"pinned", footprint.host.pinned_bytes},
            {"pageable", footprint.host.pageable_bytes},
            {"base", footprint.host_base_bytes},
            {"total", footprint.HostBytes()}}},
          {"step_seconds", choice.time ? Json(choice.time->step_seconds) : Json(nullptr)},
          {"step_parts", TimeJson(choice)},
          {"tokens_per_second_of_gpu", choice.time ? Json(TokensPerSecond(choice)) : Json(nullptr)},
          {"fits", choice.fits()},
          {"tight", choice.tight},
          {"empties_cache", choice.empties_cache},
          {"why_not", choice.fits() ? Json(nullptr) : Json(choice.why_not)}};
}

}  // namespace

std::string RuntimeMarginText(OtherRuntime runtime) {
  const RuntimeMargins& margins = MarginsOf(runtime);
  const std::string recompute =
      margins.recompute_runs == 0
          ? ""
          : fmt::format(", of stage 3 with recompute {:.0f} %", 100 * margins.recompute_worst);
  return fmt::format(
      "Beside {} runs of {} on H200s allocated memory was off by at most {:.1f} %, reserved by "
      "{:.1f} %, the device's by {:.1f} %, host by {:.1f} %; step times, with constants "
      "fitted to other models, by {:.0f} % in the median, {:.0f} % at most{}; of {} choices of "
      "plan, run afterwards, by {:.0f} % and {:.0f} %. docs/runtimes.md has them.",
      margins.runs, OtherRuntimeName(runtime), 100 * margins.allocated, 100 * margins.reserved,
      100 * margins.device, 100 * margins.host, 100 * margins.time_median, 100 * margins.time_worst,
      recompute, margins.chosen_runs, 100 * margins.chosen_median, 100 * margins.chosen_worst);
}

std::string RuntimeText(const RuntimeEstimate& estimate) {
  const Cluster& cluster = estimate.cluster;
  const BatchSpec& batch = estimate.choices.front().setup.batch;
  const std::string compiled =
      estimate.compile.layers ? fmt::format(", {}", CompiledText(estimate.compile)) : "";
  std::string text =
      Wrap(fmt::format("{} under {}{}: {} x {}, {} a GPU, micro-batch {}, {} micro-step{} of {} "
                       "tokens a sequence",
                       estimate.model.name, estimate.choices.front().footprint.runtime, compiled,
                       cluster.gpus, cluster.gpu_name, FormatBytes(cluster.gpu_capacity_bytes),
                       batch.micro_batch, batch.grad_accum, batch.grad_accum == 1 ? "" : "s",
                       batch.seq_len),
           2);
  text += '\n' + ChoiceTable(estimate);
  if (estimate.choices.size() == 1) {
    text += ClassTable(estimate.choices.front().footprint);
    text += StepPartsText(estimate.choices.front());
  }
  text += '\n';
  bool empties = false, tight = false;
  for (const RuntimeChoice& choice : estimate.choices) {
    if (!choice.fits())
      text += Wrap(fmt::format("{}: {}.", SetupLabel(choice.setup), choice.why_not), 2);
    empties = empties || (choice.fits() && choice.empties_cache);
    tight = tight || (choice.fits() && choice.tight);
  }
  if (empties) {
    text += Wrap(
        "* fits because PyTorch gives cached memory back and asks again, which costs time in every "
        "step.",
        2);
  }
  if (tight) {
    text += Wrap(
        "tight: it fits as predicted, but not with the margin of error of reserved memory.", 2);
  }
  text += Wrap(RuntimeMarginText(estimate.runtime), 2);
  return text;
}

std::string RuntimeJson(const RuntimeEstimate& estimate) {
  Json json = {{"schema", "zeroplan.runtime-estimate/1"},
               {"runtime", estimate.choices.front().footprint.runtime},
               {"compiled", {{"layers", estimate.compile.layers}, {"loss", estimate.compile.loss}}},
               {"model", {{"name", estimate.model.name}, {"params", estimate.model.ParamCount()}}},
               {"cluster",
                {{"hw", estimate.cluster.hardware},
                 {"gpus", estimate.cluster.gpus},
                 {"gpus_per_node", estimate.cluster.gpus_per_node}}}};
  for (const RuntimeChoice& choice : estimate.choices) {
    json["choices"].push_back(ChoiceJson(choice, estimate));
  }
  return json.dump(2) + '\n';
}

}  // namespace zeroplan
