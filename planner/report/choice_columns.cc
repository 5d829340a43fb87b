#include "planner/report/choice_columns.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/settings/setup_facts.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// "full", "full/4" for segments of 4 layers, "prod:12+sel" for the first 12, selective above.
std::string RecomputeCell(const RecomputeConfig& recompute) {
  constexpr const char* kKinds[] = {"none", "select", "prod", "full"};
  std::string cell = kKinds[static_cast<size_t>(recompute.kind)];
  if (recompute.every > 1) cell += fmt::format("/{}", recompute.every);
  if (recompute.layers > 0) cell += fmt::format(":{}", recompute.layers);
  if (recompute.above == RecomputeKind::kSelective) cell += "+sel";
  return cell;
}

// "cpu", "cpu:20" for 20 layers.
std::string ActivationsCell(const ActivationHome& home) {
  std::string cell(OffloadDeviceName(home.device));
  if (home.layers > 0) cell += fmt::format(":{}", home.layers);
  return cell;
}

// "8", "8 opt" if the groups share optimizer states, "8 grad" if they share gradients too.
std::string GroupCell(const TrainSetup& setup) {
  if (setup.zero.stage == 0) return "-";
  if (!Hybrid(setup)) return "all";
  constexpr const char* kShared[] = {"", " opt", " grad"};
  return fmt::format("{}{}", setup.zero.shard_group, kShared[setup.zero.across_stage]);
}

// A GPU's share of a sequence: "1", "1/4".
std::string SequenceCell(const TrainSetup& setup) {
  const int shared = setup.batch.sequence_ranks;
  return shared == 1 ? "1" : fmt::format("1/{}", shared);
}

}  // namespace

void ChoiceWidths::Fit(const TrainSetup& setup) {
  const RecomputeConfig& of = setup.recompute;
  if (Hybrid(setup)) group = std::max({group, size_t{7}, GroupCell(setup).size()});
  if (of.offload.device != OffloadDevice::kNone) {
    activations = std::max({activations, size_t{5}, ActivationsCell(of.offload).size()});
  }
  recompute = std::max(recompute, RecomputeCell(of).size());
  if (setup.batch.sequence_ranks > 1) sequence = std::max(sequence, SequenceCell(setup).size());
}

void AddChoiceColumns(ReportColumns& columns, const ChoiceWidths& widths) {
  columns.BeginGroup("");
  columns.Add("ZeRO", 4, true);
  if (widths.group > 0) columns.Add("group", widths.group, true);
  if (widths.sequence > 0) columns.Add("seq", widths.sequence, true);
  columns.BeginGroup("offload to");
  columns.Add("opt", 4, true);
  columns.Add("param", 5, true);
  if (widths.activations > 0) columns.Add("activ", widths.activations, true);
  columns.BeginGroup("");
  columns.Add("recomp", widths.recompute, true);
}

std::vector<std::string> ChoiceCells(const TrainSetup& setup, const ChoiceWidths& widths) {
  std::vector<std::string> cells = {std::to_string(setup.zero.stage)};
  if (widths.group > 0) cells.push_back(GroupCell(setup));
  if (widths.sequence > 0) cells.push_back(SequenceCell(setup));
  cells.emplace_back(OffloadDeviceName(setup.zero.offload_optimizer.device));
  cells.emplace_back(OffloadDeviceName(setup.zero.offload_param.device));
  if (widths.activations > 0) cells.push_back(ActivationsCell(setup.recompute.offload));
  cells.push_back(RecomputeCell(setup.recompute));
  return cells;
}

std::string LeftOutText(const std::string& left_out, const char* elsewhere, size_t columns) {
  if (left_out.empty()) return "";
  return Wrap(fmt::format("Left out for want of room: {}; {} have all.", left_out, elsewhere), 2,
              columns);
}

}  // namespace zeroplan
