// Where the answer changes, on axes of memory and bandwidth.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/page/charts.h"
#include "planner/page/plan_page.h"

namespace zeroplan {
namespace {

// One thing that could be different, and what searches say of it.
struct FlipAxis {
  std::string name;
  Quantity quantity;
  double now;
  std::vector<const Claim*> claims;  // but those of the present answer, rising
  double least = 0, most = 0;        // where the present answer holds
};

std::vector<FlipAxis> AxesOf(const PlanPageInputs& inputs) {
  const BatchSpec& own = inputs.plan.setup.batch;
  FlipAxis memory{"memory of one GPU",
                  Quantity::kBytes,
                  static_cast<double>(inputs.plan.cluster.gpu_capacity_bytes),
                  {}};
  FlipAxis link{"", Quantity::kLinkRate, 0, {}};
  if (inputs.link) {
    link.name = fmt::format("bandwidth {}", inputs.link->Name());
    link.quantity = inputs.link->network ? Quantity::kNetworkRate : Quantity::kLinkRate;
    link.now = inputs.link->bytes_per_second;
  }
  FlipAxis batch{"sequences a step", Quantity::kCount, static_cast<double>(own.global_batch()), {}};
  for (FlipAxis* axis : {&memory, &link, &batch}) axis->least = axis->most = axis->now;
  for (const AdviceLine& line : inputs.report.advice) {
    for (const Claim& claim : line.claims) {
      if (!claim.holds_from || !claim.stages.empty()) continue;
      FlipAxis* axis = claim.gpu_memory_bytes                 ? &memory
                       : claim.bandwidth_scale && inputs.link ? &link
                       : claim.global_batch                   ? &batch
                                                              : nullptr;
      if (axis == nullptr) continue;
      if (claim.flips_at || *claim.holds_from == *claim.holds_to) {
        if (claim.flips_at) axis->claims.push_back(&claim);
      } else if (*claim.holds_from <= axis->now && axis->now <= *claim.holds_to) {
        axis->least = *claim.holds_from;
        axis->most = *claim.holds_to;
      }
    }
  }
  std::vector<FlipAxis> axes;
  for (FlipAxis* axis : {&memory, &link, &batch}) {
    if (!axis->claims.empty()) axes.push_back(std::move(*axis));
  }
  for (FlipAxis& axis : axes) {
    std::sort(axis.claims.begin(), axis.claims.end(),
              [](const Claim* a, const Claim* b) { return *a->holds_from < *b->holds_from; });
  }
  return axes;
}

std::string AnswerText(const PlanPageInputs& inputs, const Claim& claim) {
  if (!claim.found) return claim.gap == 0 ? "nothing fits" : "nothing was found that fits";
  std::string text =
      inputs.plan.runtime->ChoiceText(SetupOf(claim.found->candidate, inputs.plan.setup));
  for (const Found& other : claim.or_else) {
    text += " or " + inputs.plan.runtime->ChoiceText(SetupOf(other.candidate, inputs.plan.setup));
  }
  return text;
}

std::string ProofText(double gap) {
  return gap == 0 ? "yes" : fmt::format("within {} %", FormatPercent(gap));
}

// The bands and rows of all axes; a row's letter is its band's.
class Flips {
 public:
  Flips(const PlanPageInputs& inputs, PageTable& table) : inputs_(inputs), table_(table) {
    const Plan& plan = inputs.plan;
    table.heads = {"", "where", "answer", "tokens/s", "proven"};
    table.text_columns = 3;
    table.rows.push_back({"A", "now", plan.runtime->ChoiceText(plan.setup),
                          FormatRate(*plan.choice.time.tokens_per_second),
                          ProofText(inputs.report.gap)});
    table.marked = {0};
  }

  // Rows for all claims of an axis, and bands for those of more than a single value, which says
  // nothing of what lies beside it. None: there is none.
  std::optional<BandChart> Bands(const FlipAxis& axis) {
    const auto figure = [&](double value) { return FormatQuantity(value, axis.quantity); };
    const std::string of = axis.quantity == Quantity::kCount   ? axis.name
                           : axis.quantity == Quantity::kBytes ? "a GPU"
                                                               : std::string(inputs_.link->Name());
    BandChart chart{.name = axis.name,
                    .quantity = axis.quantity,
                    .now = axis.now,
                    .now_label = fmt::format("now {}", figure(axis.now))};
    bool present = false;
    const auto add = [&](double from, double to, const std::string& letter,
                         const std::string& title) {
      if (!chart.bands.empty()) from = chart.bands.back().end;
      if (from < to) chart.bands.push_back({from, to, letter, title, letter == "A"});
    };
    const auto add_present = [&](double to) {
      present = true;
      add(axis.least, to, "A",
          fmt::format("now: {}", inputs_.plan.runtime->ChoiceText(inputs_.plan.setup)));
    };
    for (const Claim* claim : axis.claims) {
      const double from = *claim->holds_from, to = *claim->holds_to;
      if (from == to) {
        AddRow(fmt::format("with {} {}", figure(from), of), *claim);
        continue;
      }
      const std::string where = fmt::format(
          "{} {} {}", from > 0 ? fmt::format("{} to", figure(from)) : "up to", figure(to), of);
      if (!present && from > axis.now) add_present(from);
      add(from > 0 ? from : to / 2, to, AddRow(where, *claim),
          fmt::format("{}: {}", where, AnswerText(inputs_, *claim)));
    }
    if (chart.bands.empty()) return std::nullopt;
    if (!present) add_present(std::max(axis.most, axis.now));
    return chart;
  }

 private:
  // Returns the row's letter.
  std::string AddRow(const std::string& where, const Claim& claim) {
    std::string letter(1, ++letter_);
    table_.rows.push_back({letter, where, AnswerText(inputs_, claim),
                           claim.found ? FormatRate(claim.found->tokens_per_second) : "-",
                           ProofText(claim.gap)});
    return letter;
  }

  const PlanPageInputs& inputs_;
  PageTable& table_;
  char letter_ = 'A';
};

}  // namespace

Picture FlipPicture(const PlanPageInputs& inputs) {
  Picture picture{.id = "flips", .title = "Where the answer changes"};
  const std::vector<FlipAxis> axes = AxesOf(inputs);
  if (axes.empty()) {
    picture.about = inputs.quick
                        ? "Not looked for (⟦quick⟧)."
                        : "Nowhere that was found: see what stands above on memory, batch and "
                          "bandwidth.";
    return picture;
  }
  Flips flips(inputs, picture.table);
  std::vector<BandChart> charts;
  for (const FlipAxis& axis : axes) {
    if (std::optional<BandChart> chart = flips.Bands(axis)) charts.push_back(std::move(*chart));
  }
  picture.about =
      "The answer by one thing that is different, all else as it is; letters are the table's rows. "
      "What lies further out was not looked at, or not settled.";
  picture.legend = {{"present", "the present answer"},
                    {"band", "another one"},
                    {"limit", "now", LegendEntry::Shape::kLine}};
  if (charts.empty()) {
    picture.about = "Of single values alone it is known what they change.";
    picture.legend.clear();
    return picture;
  }
  picture.needs_table = true;
  picture.Draw(DrawBands, charts);
  return picture;
}

}  // namespace zeroplan
