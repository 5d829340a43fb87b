#include "planner/page/choice_pictures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/units.h"
#include "planner/estimate/estimate.h"
#include "planner/page/charts.h"
#include "planner/page/svg.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// Its spaces do not break.
constexpr const char* kDoesNotFit = " (does\u00A0not\u00A0fit)";

std::string SecondsText(double seconds) { return seconds == 0 ? "-" : FormatSeconds(seconds); }

std::string BytesCell(uint64_t bytes) { return bytes == 0 ? "-" : FormatBytes(bytes); }

// What is left of a capacity for a run; "": nothing stays free.
std::string ReserveText(uint64_t capacity, uint64_t reserve) {
  return reserve == 0
             ? ""
             : fmt::format(" ({} less {} kept free)", FormatBytes(capacity), FormatBytes(reserve));
}

Bar BarOf(const ShownChoice& choice, std::vector<double> parts, std::string tail) {
  const bool fits = choice.estimate->fits;
  return {choice.label + (fits ? "" : kDoesNotFit), std::move(parts), !fits, std::move(tail)};
}

Limit MayBeTaken(uint64_t bytes) {
  return {static_cast<double>(bytes), FormatBytes(bytes) + " may be taken"};
}

void AddRow(PageTable& table, const ShownChoice& choice, std::vector<std::string> cells) {
  cells.insert(cells.begin(), choice.label);
  cells.emplace_back(choice.estimate->fits ? "yes" : "no");
  if (choice.marked) table.marked.push_back(table.rows.size());
  table.rows.push_back(std::move(cells));
}

std::string MisfitNote(const std::vector<ShownChoice>& choices) {
  std::vector<std::string> why;
  for (const ShownChoice& choice : choices) {
    if (choice.estimate->why_not.empty()) continue;
    why.push_back(fmt::format("{}: {}", choice.label, choice.estimate->why_not));
  }
  return why.empty() ? "" : fmt::format("Why not: {}.", fmt::join(why, ". "));
}

}  // namespace

Picture GpuMemoryPicture(const std::vector<ShownChoice>& choices, const Cluster& cluster) {
  const uint64_t limit = *CapacityOf(cluster).gpu_bytes;
  const std::string reserve = ReserveText(cluster.gpu_capacity_bytes, cluster.gpu_reserve_bytes);
  BarChart chart{.name = "Memory of one GPU at its peak, by class, of each choice",
                 .limit = MayBeTaken(limit)};
  Picture picture{.id = "gpu-memory", .title = "Memory of one GPU at its peak"};
  picture.about = fmt::format(
      "What each choice holds by class when it holds most. The line is what a run may take of {}: "
      "{}{}. Pale bars do not fit. Host and disk, in the table, are a node's.",
      cluster.gpu_name, FormatBytes(limit), reserve);
  picture.table.heads = {"choice"};
  for (const ShownChoice& choice : choices) {
    const Footprint& footprint = choice.estimate->footprint;
    std::vector<double> parts;
    std::vector<std::string> cells;
    for (const NamedBytes& part : GpuClasses(footprint)) {
      if (chart.bars.empty()) {
        chart.parts.emplace_back(part.name);
        picture.table.heads.emplace_back(part.name);
      }
      parts.push_back(static_cast<double>(part.bytes));
      cells.push_back(BytesCell(part.bytes));
    }
    chart.bars.push_back(BarOf(choice, std::move(parts), FormatBytes(footprint.gpu_total())));
    for (const uint64_t bytes :
         {footprint.gpu_total(), footprint.host.total(), footprint.nvme_bytes}) {
      cells.push_back(BytesCell(bytes));
    }
    AddRow(picture.table, choice, std::move(cells));
  }
  picture.table.heads.insert(picture.table.heads.end(), {"total", "host", "disk", "fits"});
  picture.table.note = MisfitNote(choices);
  picture.legend = LegendOf(chart.parts);
  picture.Draw(DrawBars, chart);
  return picture;
}

std::optional<Picture> HostMemoryPicture(const std::vector<ShownChoice>& choices,
                                         const Cluster& cluster) {
  const std::optional<uint64_t> limit = CapacityOf(cluster).host_bytes;
  uint64_t most = 0;
  for (const ShownChoice& choice : choices) {
    most = std::max(most, choice.estimate->footprint.host.total());
  }
  if (!limit || most < *limit / 100) return std::nullopt;
  BarChart chart{.name = "Memory of one host of each choice",
                 .parts = {"pinned", "pageable"},
                 .limit = MayBeTaken(*limit)};
  Picture picture{.id = "host-memory", .title = "Memory of one host"};
  picture.about = fmt::format(
      "All ranks of a node together. The line is what they may take: {}{}.", FormatBytes(*limit),
      ReserveText(*cluster.host_capacity_bytes, cluster.host_reserve_bytes));
  picture.table.heads = {"choice", "pinned", "pageable", "total", "fits"};
  for (const ShownChoice& choice : choices) {
    const HostBytes& host = choice.estimate->footprint.host;
    chart.bars.push_back(
        BarOf(choice, {static_cast<double>(host.pinned), static_cast<double>(host.pageable)},
              FormatBytes(host.total())));
    AddRow(picture.table, choice,
           {BytesCell(host.pinned), BytesCell(host.pageable), BytesCell(host.total())});
  }
  picture.legend = LegendOf(chart.parts);
  picture.Draw(DrawBars, chart);
  return picture;
}

std::optional<Picture> AroundPicture(const ChoiceEstimate& choice, const Cluster& cluster) {
  const std::optional<TorchFootprint>& torch = choice.footprint.torch;
  if (!torch || torch->around.empty()) return std::nullopt;
  Picture picture{.id = "around", .title = "Around the steps"};
  picture.about =
      "Tensors on one GPU with what lies outside the allocator, and all processes of the node of "
      "rank 0, at most.";
  picture.table.heads = {"phase", "one GPU", "one host", "fits", "because"};
  picture.table.last_is_text = true;
  const int ranks = cluster.ranks_per_node();
  for (const AroundPeak& peak : torch->around) {
    std::string why = peak.why;
    if (!peak.setting.empty()) why += fmt::format(" ({})", peak.setting);
    if (!peak.instead.empty()) {
      why += fmt::format("; with {}: {} and {}", peak.instead, FormatBytes(peak.instead_bytes.gpu),
                         FormatBytes(peak.instead_bytes.NodeHost(ranks)));
    }
    picture.table.rows.push_back({std::string(AroundPhaseName(peak.phase)),
                                  BytesCell(peak.bytes.gpu), BytesCell(peak.bytes.NodeHost(ranks)),
                                  peak.why_not.empty() ? "yes" : "no", why});
  }
  return picture;
}

std::optional<Picture> StepTimePicture(const std::vector<ShownChoice>& choices,
                                       const std::optional<double>& tokens) {
  BarChart chart{.name = "Seconds of a step by cause, of each choice",
                 .quantity = Quantity::kSeconds,
                 .parts = {"compute", "exposed communication", "exposed offload", "optimizer"},
                 .cut_long = true};
  Picture picture{.id = "step-time", .title = "Time of a step by cause"};
  picture.table.heads = {"choice",          "compute",   "exposed comm.",
                         "exposed offload", "optimizer", "total",
                         "tokens/s",        "MFU",       "fits"};
  for (const ShownChoice& choice : choices) {
    const TimeEstimate& time = choice.estimate->time;
    if (!time.total_seconds || !time.tokens_per_second) continue;
    const double own_tokens = *time.tokens_per_second * *time.total_seconds;
    const CauseSeconds spent = SecondsForTokens(time, tokens.value_or(own_tokens));
    chart.bars.push_back(
        BarOf(choice, {spent.compute, spent.exposed_comm, spent.exposed_offload, spent.optimizer},
              FormatSeconds(spent.total)));
    AddRow(picture.table, choice,
           {SecondsText(spent.compute), SecondsText(spent.exposed_comm),
            SecondsText(spent.exposed_offload), SecondsText(spent.optimizer),
            SecondsText(spent.total), FormatRate(*time.tokens_per_second),
            time.mfu ? fmt::format("{:.1f} %", 100 * *time.mfu) : "?"});
  }
  if (chart.bars.empty()) return std::nullopt;
  picture.about =
      tokens ? fmt::format("Each choice's time for as many tokens as a step of the answer has, {}.",
                           FormatCount(static_cast<uint64_t>(*tokens)))
             : "One optimizer step.";
  picture.about +=
      " Exposed is what the compute stream waits for; what hides beside compute costs nothing.";
  if (CutsBars(chart)) {
    picture.about += " Bars with an arrow go on beyond the picture: their figure says how far.";
  }
  picture.legend = LegendOf(chart.parts);
  picture.Draw(DrawBars, chart);
  return picture;
}

std::vector<bool> OnFront(const std::vector<JudgedDot>& dots) {
  std::vector<size_t> order;
  for (size_t i = 0; i < dots.size(); ++i) {
    if (dots[i].fits) order.push_back(i);
  }
  // By rising memory, of as much the fastest first: on the front is what is faster than all before.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (dots[a].gpu_bytes != dots[b].gpu_bytes) return dots[a].gpu_bytes < dots[b].gpu_bytes;
    return dots[a].tokens_per_second > dots[b].tokens_per_second;
  });
  std::vector<bool> front(dots.size(), false);
  double fastest = -1;
  for (const size_t i : order) {
    if (dots[i].tokens_per_second <= fastest) continue;
    fastest = dots[i].tokens_per_second;
    front[i] = true;
  }
  return front;
}

Picture FrontPicture(const std::vector<JudgedDot>& dots, const Cluster& cluster) {
  constexpr size_t kMostRows = 40;
  // The picture shows at most this many times the memory that may be taken.
  constexpr double kMostMemory = 1.6;
  const std::vector<bool> front = OnFront(dots);
  const uint64_t limit = *CapacityOf(cluster).gpu_bytes;
  DotChart chart{.name = "Tokens a second of each choice against its memory on one GPU",
                 .x_name = "memory of one GPU",
                 .y_name = "tokens a second, all GPUs together",
                 .limit = MayBeTaken(limit)};
  std::vector<size_t> order;
  size_t beyond = 0;
  for (size_t i = 0; i < dots.size(); ++i) {
    const JudgedDot& dot = dots[i];
    order.push_back(i);
    if (static_cast<double>(dot.gpu_bytes) > kMostMemory * static_cast<double>(limit)) {
      ++beyond;
      continue;
    }
    chart.dots.push_back({static_cast<double>(dot.gpu_bytes), dot.tokens_per_second,
                          fmt::format("{}: {}, {}{}", dot.label, FormatBytes(dot.gpu_bytes),
                                      FormatQuantity(dot.tokens_per_second, Quantity::kTokenRate),
                                      dot.fits ? "" : ", does not fit"),
                          dot.chosen  ? Dot::Kind::kChosen
                          : !dot.fits ? Dot::Kind::kNoFit
                          : front[i]  ? Dot::Kind::kFront
                                      : Dot::Kind::kOther});
  }
  // What fits first, the front first of it, then by speed.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto rank = [&](size_t i) {
      return std::tuple(!dots[i].chosen, !front[i], !dots[i].fits, -dots[i].tokens_per_second);
    };
    return rank(a) < rank(b);
  });
  Picture picture{.id = "front", .title = "Throughput against memory"};
  picture.about =
      "Every choice whose program was judged. One that fits is on the front if no other one that "
      "fits is as fast with less memory, or faster with as much.";
  if (beyond > 0) {
    picture.about +=
        fmt::format(" {} that take more than {:.1f} times what may be taken are left out.", beyond,
                    kMostMemory);
  }
  picture.legend = {{"c0", "on the front", LegendEntry::Shape::kDot},
                    {"c4", "fits", LegendEntry::Shape::kDot},
                    {"dim", "does not fit", LegendEntry::Shape::kRing},
                    {"limit", "what a GPU may hold", LegendEntry::Shape::kLine}};
  if (std::any_of(dots.begin(), dots.end(), [](const JudgedDot& dot) { return dot.chosen; })) {
    picture.legend.insert(picture.legend.begin(), {"ink", "chosen", LegendEntry::Shape::kRing});
  }
  picture.table.heads = {"choice", "GPU memory", "tokens/s", "on the front", "fits"};
  // Choices that differ in buckets alone are called the same: the best of them stands for all.
  std::set<std::string_view> seen;
  for (const size_t i : order) {
    const JudgedDot& dot = dots[i];
    if (!seen.insert(dot.label).second || seen.size() > kMostRows) continue;
    if (dot.chosen) picture.table.marked.push_back(picture.table.rows.size());
    picture.table.rows.push_back({dot.label, FormatBytes(dot.gpu_bytes),
                                  FormatRate(dot.tokens_per_second), front[i] ? "yes" : "",
                                  dot.fits ? "yes" : "no"});
  }
  if (picture.table.rows.size() < dots.size()) {
    picture.table.note = fmt::format(
        "{} of {}: the front, then the fastest that fit; of those that differ in buckets alone the "
        "first of these.",
        picture.table.rows.size(), dots.size());
  }
  picture.Draw(DrawDots, chart);
  return picture;
}

}  // namespace zeroplan
