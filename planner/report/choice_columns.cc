#include "planner/report/choice_columns.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/setup_facts.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::string RecomputeCell(const RecomputeConfig& recompute) {
  if (recompute.kind == RecomputeKind::kSelective) return "select";  // as wide as its column
  const std::string_view name = RecomputeName(recompute);
  return recompute.every > 1 ? fmt::format("{}/{}", name, recompute.every) : std::string(name);
}

// "8", "8 opt" where the groups share optimizer states, "8 grad" where they share gradients too.
std::string GroupCell(const TrainSetup& setup) {
  if (setup.zero.stage == 0) return "-";
  if (!Hybrid(setup)) return "all";
  constexpr const char* kShared[] = {"", " opt", " grad"};
  return fmt::format("{}{}", setup.zero.shard_group, kShared[setup.zero.across_stage]);
}

}  // namespace

int GroupWidth(const TrainSetup& setup) {
  return Hybrid(setup) ? std::max(7, static_cast<int>(GroupCell(setup).size())) : 0;
}

void AddChoiceColumns(ReportColumns& columns, int group_width) {
  columns.BeginGroup("");
  columns.Add("ZeRO", 4, true);
  if (group_width > 0) columns.Add("group", group_width, true);
  columns.BeginGroup("offload to");
  columns.Add("opt", 4, true);
  columns.Add("param", 5, true);
  columns.BeginGroup("");
  columns.Add("recomp", 6, true);
}

std::vector<std::string> ChoiceCells(const TrainSetup& setup, bool groups) {
  std::vector<std::string> cells = {std::to_string(setup.zero.stage)};
  if (groups) cells.push_back(GroupCell(setup));
  cells.insert(cells.end(), {std::string(OffloadDeviceName(setup.zero.offload_optimizer.device)),
                             std::string(OffloadDeviceName(setup.zero.offload_param.device)),
                             RecomputeCell(setup.recompute)});
  return cells;
}

std::string LeftOutText(const std::string& left_out, const char* format, size_t columns) {
  if (left_out.empty()) return "";
  return Wrap(fmt::format("Left out for want of room: {}; a wider terminal, -o FILE and --format "
                          "{} have all.",
                          left_out, format),
              2, columns);
}

}  // namespace zeroplan
