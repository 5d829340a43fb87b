// Where the answer changes, on axes of memory and bandwidth.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/units.h"
#include "planner/page/charts.h"
#include "planner/page/plan_page.h"

namespace zeroplan {
namespace {

// An axis that searches found changes on.
struct FlipAxis {
  std::string name;
  Quantity quantity;
  double now;
  double unit = 1;  // times what Claim::flips_at says
  std::vector<const Claim*> claims;
};

std::vector<FlipAxis> AxesOf(const PlanPageInputs& inputs) {
  FlipAxis memory{"memory of one GPU",
                  Quantity::kBytes,
                  static_cast<double>(inputs.plan.cluster.gpu_capacity_bytes),
                  1,
                  {}};
  FlipAxis link{"", Quantity::kLinkRate, 0, 1, {}};
  if (inputs.link) {
    link.name = fmt::format("bandwidth {}", inputs.link->Name());
    link.quantity = inputs.link->network ? Quantity::kNetworkRate : Quantity::kLinkRate;
    link.now = link.unit = inputs.link->bytes_per_second;
  }
  const BatchSpec& own = inputs.plan.setup.batch;
  FlipAxis batch{
      "sequences a step", Quantity::kCount, static_cast<double>(own.global_batch()), 1, {}};
  for (const AdviceLine& line : inputs.report.advice) {
    for (const Claim& claim : line.claims) {
      if (!claim.flips_at || !claim.stages.empty()) continue;
      if (claim.gpu_memory_bytes) memory.claims.push_back(&claim);
      if (claim.bandwidth_scale && inputs.link) link.claims.push_back(&claim);
      if (claim.global_batch) batch.claims.push_back(&claim);
    }
  }
  std::vector<FlipAxis> axes;
  for (FlipAxis* axis : {&memory, &link, &batch}) {
    if (!axis->claims.empty()) axes.push_back(std::move(*axis));
  }
  for (FlipAxis& axis : axes) {
    std::sort(axis.claims.begin(), axis.claims.end(),
              [](const Claim* a, const Claim* b) { return *a->flips_at < *b->flips_at; });
  }
  return axes;
}

std::string AnswerText(const PlanPageInputs& inputs, const Claim& claim) {
  if (!claim.found) return claim.gap == 0 ? "nothing fits" : "nothing was found that fits";
  return inputs.plan.runtime->ChoiceText(SetupOf(claim.found->candidate, inputs.plan.setup));
}

std::string ProofText(const Claim& claim) {
  return claim.gap == 0 ? "yes" : fmt::format("within {:.2g} %", 100 * claim.gap);
}

void AddRow(PageTable& table, const PlanPageInputs& inputs, const std::string& letter,
            const std::string& where, const Claim& claim) {
  table.rows.push_back(
      {letter, where, AnswerText(inputs, claim),
       claim.found ? FormatCount(static_cast<uint64_t>(claim.found->tokens_per_second)) : "-",
       ProofText(claim)});
}

}  // namespace

Picture FlipPicture(const PlanPageInputs& inputs) {
  Picture picture;
  picture.id = "flips";
  picture.title = "Where the answer changes";
  const std::vector<FlipAxis> axes = AxesOf(inputs);
  if (axes.empty()) {
    picture.about = inputs.quick
                        ? "Not looked for (@@quick)."
                        : "Nowhere that was found: see what stands above on memory, batch and "
                          "bandwidth.";
    return picture;
  }
  picture.table.heads = {"", "where", "answer", "tokens/s", "proven"};
  picture.table.text_columns = 3;
  const Plan& plan = inputs.plan;
  picture.table.rows.push_back(
      {"A", "now", plan.runtime->ChoiceText(plan.setup),
       FormatCount(static_cast<uint64_t>(*plan.choice.time.tokens_per_second)),
       inputs.report.gap == 0 ? "yes" : fmt::format("within {:.2g} %", 100 * inputs.report.gap)});
  picture.table.marked = {0};
  std::vector<BandChart> charts;
  char letter = 'A';
  for (const FlipAxis& axis : axes) {
    std::vector<const Claim*> below, above;
    for (const Claim* claim : axis.claims) {
      (*claim->flips_at * axis.unit < axis.now ? below : above).push_back(claim);
    }
    const auto at = [&](const Claim* claim) { return *claim->flips_at * axis.unit; };
    // A batch was looked at by doubling alone: where between two of them it changes, nobody knows.
    if (axis.quantity == Quantity::kCount) {
      for (const Claim* claim : axis.claims) {
        AddRow(picture.table, inputs, std::string(1, ++letter),
               fmt::format("with {} {}", FormatQuantity(at(claim), axis.quantity), axis.name),
               *claim);
      }
      continue;
    }
    BandChart chart;
    chart.name = axis.name;
    chart.quantity = axis.quantity;
    chart.now = axis.now;
    chart.now_label = fmt::format("now {}", FormatQuantity(axis.now, axis.quantity));
    const double least = below.empty() ? axis.now : at(below.front());
    const double most = above.empty() ? axis.now : at(above.back());
    // What holds at the ends was looked at there; how far on it holds was not.
    const double room = std::max(2.0, std::sqrt(most / least));
    const double begin = least / room, end = most * room;
    double last = begin;
    const auto add = [&](double to, const std::string& name, const std::string& title,
                         bool present) {
      chart.bands.push_back({last, to, name, title, present});
      last = to;
    };
    for (const Claim* claim : below) {
      const std::string name(1, ++letter);
      const std::string where =
          fmt::format("below {} {}", FormatQuantity(at(claim), axis.quantity),
                      axis.quantity == Quantity::kBytes ? "a GPU" : inputs.link->Name());
      add(at(claim), name, fmt::format("{}: {}", where, AnswerText(inputs, *claim)), false);
      AddRow(picture.table, inputs, name, where, *claim);
    }
    add(above.empty() ? end : at(above.front()), "A",
        fmt::format("now: {}", plan.runtime->ChoiceText(plan.setup)), true);
    for (size_t i = 0; i < above.size(); ++i) {
      const std::string name(1, ++letter);
      const std::string where =
          fmt::format("{} {} {}", axis.quantity == Quantity::kBytes ? "from" : "above",
                      FormatQuantity(at(above[i]), axis.quantity),
                      axis.quantity == Quantity::kBytes ? "a GPU on" : inputs.link->Name());
      add(i + 1 < above.size() ? at(above[i + 1]) : end, name,
          fmt::format("{}: {}", where, AnswerText(inputs, *above[i])), false);
      AddRow(picture.table, inputs, name, where, *above[i]);
    }
    charts.push_back(std::move(chart));
  }
  picture.about =
      "The answer by one thing that is different, all else as it is; letters are the table's rows. "
      "Outer bands say what holds right beyond the change; further out it may change again.";
  picture.legend = {{"present", "the present answer"},
                    {"band", "another one"},
                    {"limit", "now", LegendEntry::Shape::kLine}};
  if (charts.empty()) {
    picture.about = "No memory or bandwidth was found that changes the answer; another batch does.";
    picture.legend.clear();
    return picture;
  }
  picture.needs_table = true;
  picture.wide = DrawBands(charts, kWidePicture);
  picture.narrow = DrawBands(charts, kNarrowPicture);
  return picture;
}

}  // namespace zeroplan
