#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "core/settings/settings.h"
#include "planner/estimate/choices.h"
#include "planner/report/choice_json.h"
#include "planner/report/csv.h"
#include "planner/report/report.h"

namespace zeroplan {
namespace {

// Settings that the first columns, which describe the request, already contain.
constexpr const SettingRow* kOfQuestion[] = {&setting::gpus, &setting::seq_len};

template <typename List>
bool IsIn(const List& list, const SettingRow* row) {
  return std::find(std::begin(list), std::end(list), row) != std::end(list);
}

// The settings whose columns are next to the figures, in the order of the JSON.
std::vector<const SettingRow*> FirstColumns() {
  std::vector<const SettingRow*> rows;
  for (const SettingRow* row : kEstimateSettings) {
    if (!IsIn(kOfQuestion, row)) rows.push_back(row);
  }
  return rows;
}

// The other settings, whose columns are the last.
std::vector<const SettingRow*> LastColumns() {
  std::vector<const SettingRow*> rows;
  for (const SettingRow* row : kSettingRows) {
    const bool has =
        IsIn(kEstimateSettings, row) || IsIn(kGroupSettings, row) || IsIn(kOfQuestion, row);
    if (row->record != RecordType::kNone && !has) rows.push_back(row);
  }
  return rows;
}

std::string Names(std::span<const SettingRow* const> rows, const char* prefix) {
  std::string text;
  for (const SettingRow* row : rows) text += fmt::format("{}{},", prefix, row->name);
  return text;
}

std::string Header() {
  return "model,params,seq_len,hw,gpus,gpus_per_node," + Names(FirstColumns(), "") +
         "settings.reduce_bucket,settings.prefetch_bucket,settings.persistence_threshold,"
         "settings.reuse_distance,settings.overlap," +
         Names(kGroupSettings, "settings.") +
         "gpu_bytes.params,gpu_bytes.grads,gpu_bytes.optimizer,gpu_bytes.activations,gpu_bytes."
         "buffers,gpu_bytes.runtime,gpu_bytes.total,gpu_bytes.capacity,gpu_bytes.reserve,"
         "host_bytes.pinned,host_bytes.pageable,host_bytes.total,host_bytes.capacity,host_bytes."
         "reserve,nvme_bytes,comm_bytes_per_step,pcie_bytes_per_step,"
         "step_seconds.compute,step_seconds.exposed_comm,step_seconds.exposed_offload,"
         "step_seconds.optimizer,step_seconds.total,tokens_per_second,mfu,"
         "training.tokens,training.steps,training.seconds,training.gpu_hours,training.price,"
         "training.gpu_kwh,fits,why_not";
}
// Columns for runtimes other than zeroplan's own executor.
constexpr const char* kRuntimeHeader =
    ",runtime,room,gpu_bytes.reserved,step_seconds.host_overhead";

// Columns for runs with interruptions.
constexpr const char* kInterruptedHeader =
    ",interruptions.interval_steps,interruptions.interval_seconds,interruptions.save_seconds,"
    "interruptions.restart_seconds,interruptions.lost_share,interruptions.expected_seconds,"
    "interruptions.expected_price,interruptions.fits_notice";

template <typename T>
std::string OrEmpty(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "";
}

std::string Row(const Estimate& estimate, const ChoiceEstimate& choice) {
  const Cluster& cluster = estimate.cluster;
  const TrainSetup& setup = choice.setup;
  const TimeEstimate& time = choice.time;
  const EffectiveSettings& settings = choice.settings;
  std::vector<std::string> cells;
  auto add = [&](const auto&... values) { (cells.push_back(fmt::format("{}", values)), ...); };
  add(CsvCell(estimate.model.name), estimate.model.ParamCount(), estimate.seq_len,
      CsvCell(cluster.hardware), cluster.gpus, cluster.gpus_per_node);
  const auto add_rows = [&](std::span<const SettingRow* const> rows) {
    for (const SettingRow* row : rows) {
      cells.push_back(SettingText(RecordValue(*row, setup, RecipeOf(estimate))));
    }
  };
  add_rows(FirstColumns());
  for (const uint64_t bucket :
       {settings.reduce_bucket_elements, settings.prefetch_bucket_elements}) {
    add(bucket == kAuto ? "" : fmt::format("{}", bucket));
  }
  add(settings.persistence_threshold, settings.reuse_distance, settings.overlap);
  add_rows(kGroupSettings);
  const Footprint& footprint = choice.footprint;
  for (const NamedBytes& part : GpuClasses(footprint)) add(part.bytes);
  add(footprint.gpu_total(), cluster.gpu_capacity_bytes, cluster.gpu_reserve_bytes);
  add(footprint.host.pinned, footprint.host.pageable, footprint.host.total(),
      OrEmpty(cluster.host_capacity_bytes), cluster.host_reserve_bytes, footprint.nvme_bytes,
      choice.traffic ? fmt::format("{}", choice.traffic->collective_bytes) : "",
      choice.traffic ? fmt::format("{}", choice.traffic->pcie_bytes()) : "");
  for (const auto& seconds :
       {time.compute_seconds, time.exposed_comm_seconds, time.exposed_offload_seconds,
        time.optimizer_seconds, time.total_seconds, time.tokens_per_second, time.mfu}) {
    add(OrEmpty(seconds));
  }
  if (estimate.goal.tokens && time.total_seconds) {
    const RunCost cost = CostOf(estimate.goal, setup.batch, *time.total_seconds);
    add(*estimate.goal.tokens, cost.steps, cost.seconds, cost.gpu_hours, OrEmpty(cost.price),
        OrEmpty(cost.gpu_kwh));
  } else {
    add("", "", "", "", "", "");
  }
  add(choice.fits, CsvCell(choice.why_not));
  if (estimate.runtime->facts().has_recipe) {
    add(CsvCell(estimate.runtime->version()), MemoryRoomName(choice.room),
        footprint.torch ? fmt::format("{}", footprint.torch->ReservedBytes()) : "",
        OrEmpty(time.host_overhead_seconds));
  }
  if (estimate.goal.interruptions) {
    const InterruptedCost cost = choice.interrupted.value_or(InterruptedCost{});
    if (cost.known) {
      add(cost.interval_steps, cost.interval_seconds, cost.save_seconds, cost.restart_seconds,
          cost.lost_share);
    } else {
      add("", "", "", "", "");
    }
    add(OrEmpty(cost.expected_seconds), OrEmpty(cost.expected_price), OrEmpty(cost.fits_notice));
  }
  add_rows(LastColumns());
  return fmt::format("{}\n", fmt::join(cells, ","));
}

}  // namespace

std::string ReportCsv(const Estimate& estimate) {
  std::string text = Header();
  if (estimate.runtime->facts().has_recipe) text += kRuntimeHeader;
  if (estimate.goal.interruptions) text += kInterruptedHeader;
  for (const SettingRow* row : LastColumns()) text += fmt::format(",{}", row->name);
  text += '\n';
  for (const ChoiceEstimate& choice : estimate.choices) text += Row(estimate, choice);
  return text;
}

}  // namespace zeroplan
