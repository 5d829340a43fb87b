// Pictures of a run: what its data is, and what it takes.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/page/charts.h"
#include "planner/page/choice_pictures.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::string PercentText(uint64_t part, uint64_t all) {
  return fmt::format("{:.1f} %",
                     all == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(all));
}

// "Sequences of 512 tokens cut 12 % of the documents and 18 % of all tokens; ...".
std::string CutsText(const DataFacts& facts) {
  const SeqLenProposal now = CutsOf(facts.lengths, facts.fixed_rows, facts.seq_len);
  const SeqLenProposal least = ProposeSeqLen(facts.lengths, facts.fixed_rows);
  std::string text =
      fmt::format("Sequences of {} tokens cut {} % of the documents and {} % of all tokens",
                  now.seq_len, FormatPercent(now.cut_documents), FormatPercent(now.cut_tokens));
  if (least.seq_len != now.seq_len) {
    text += fmt::format(
        "; of {}, the least multiple of {} that cuts at most {:.0f} % of the documents, {} % and "
        "{} %",
        least.seq_len, kSeqLenStep, 100 * kMostCut, FormatPercent(least.cut_documents),
        FormatPercent(least.cut_tokens));
  }
  return text + '.';
}

std::string_view PackingWords(Packing packing) {
  switch (packing) {
    case Packing::kStream:
      return "stream: joined and cut";
    case Packing::kDocuments:
      return "documents: several a sequence";
    case Packing::kOff:
      return "off: one a sequence, padded";
  }
  return "";
}

}  // namespace

Picture LengthsPicture(const RunGoal& goal) {
  ZEROPLAN_CHECK(goal.data.has_value(), "no data");
  const DataFacts& facts = *goal.data;
  const DocumentLengths& lengths = facts.lengths;
  const bool stream = facts.packing == Packing::kStream;
  const uint64_t whole = LongestWhole(facts.fixed_rows, facts.seq_len);
  BarChart chart{.name = "Documents of the data by how many tokens they have",
                 .quantity = Quantity::kCount};
  if (stream) {
    chart.parts = {"documents"};
  } else {
    chart.parts = {fmt::format("fit a sequence of {}", facts.seq_len), "longer"};
  }
  Picture picture{.id = "data", .title = "Documents by length"};
  picture.about = fmt::format(
      "How many documents of the data have so many tokens: half have at most {}, 95 % at most {}, "
      "99 % at most {}, the longest {}. {}",
      lengths.AtShare(0.5), lengths.AtShare(0.95), lengths.AtShare(0.99), lengths.AtShare(1),
      stream               ? "They are joined and cut anywhere, so none is too long."
      : facts.longer == 0  ? "None is longer than a sequence."
      : facts.left_out > 0 ? "What is longer than a sequence is cut off there."
                           : "What is longer than a sequence goes on in another one.");
  picture.table.heads = {"tokens of a document", "documents", "of all", "tokens", "of all"};
  // By doubling.
  const uint64_t last = std::bit_ceil(std::max<uint64_t>(lengths.AtShare(1), 1));
  for (uint64_t to = std::bit_ceil(std::max<uint64_t>(lengths.AtShare(0), 1)); to <= last;
       to *= 2) {
    const uint64_t above = to / 2;
    const auto [documents, tokens] = lengths.Between(above, to);
    const uint64_t longer = stream ? 0 : lengths.Between(std::clamp(whole, above, to), to).first;
    const std::string label =
        above + 1 >= to ? std::to_string(to) : fmt::format("{} to {}", above + 1, to);
    std::vector<double> parts = {static_cast<double>(documents - longer)};
    if (!stream) parts.push_back(static_cast<double>(longer));
    chart.bars.push_back({label, std::move(parts), false, std::to_string(documents)});
    picture.table.rows.push_back({label, std::to_string(documents),
                                  PercentText(documents, lengths.documents()),
                                  std::to_string(tokens), PercentText(tokens, lengths.tokens())});
  }
  if (!stream) {
    picture.table.note = CutsText(facts);
    picture.legend = LegendOf(chart.parts);
  }
  picture.Draw(DrawBars, chart);
  return picture;
}

Picture SequencesPicture(const RunGoal& goal, const BatchSpec& batch,
                         std::optional<double> step_seconds) {
  ZEROPLAN_CHECK(goal.data.has_value(), "no data");
  const DataFacts& facts = *goal.data;
  const MicroBatchTokens micro_batch = MicroBatchOf(facts, batch.micro_batch);
  Picture picture{.id = "data-sequences", .title = "Documents as sequences"};
  picture.about = fmt::format(
      "Sequences of {} tokens, {} a step. A GPU's micro-batch of {} has {} tokens, for which "
      "memory "
      "and time are planned{}. Hours are of this choice's step.",
      facts.seq_len, batch.global_batch(), batch.micro_batch, micro_batch.planned,
      facts.fixed_rows || facts.packing == Packing::kStream
          ? ""
          : fmt::format("; padded to its longest document alone, it has {} at most and {:.0f} on "
                        "average",
                        micro_batch.largest, micro_batch.mean));
  picture.table.heads = {"packing", "sequences an epoch", "padding", "steps of the run"};
  if (step_seconds) picture.table.heads.emplace_back("hours");
  const auto add = [&](Packing packing, const EpochRows& epoch, double padding) {
    const double sequences = SequencesOfEpochs(goal.epochs, epoch.sequences);
    const int64_t steps = CostOf({.tokens = static_cast<int64_t>(sequences) * batch.seq_len}, batch,
                                 step_seconds.value_or(0))
                              .steps;
    const bool present = packing == facts.packing;
    std::vector<std::string> cells = {
        std::string(PackingWords(packing)), std::to_string(epoch.sequences),
        fmt::format("{:.1f} %", 100 * padding), std::to_string(steps)};
    if (step_seconds) {
      cells.push_back(FineCell(static_cast<double>(steps) * *step_seconds / 3600));
    }
    if (present) picture.table.marked.push_back(picture.table.rows.size());
    picture.table.rows.push_back(std::move(cells));
  };
  add(facts.packing, facts.epoch, micro_batch.padding);
  const auto other = [&](Packing packing, const std::optional<EpochRows>& epoch) {
    if (epoch && packing != facts.packing) add(packing, *epoch, epoch->PaddingShare(facts.seq_len));
  };
  other(Packing::kDocuments, facts.packed);
  other(Packing::kOff, facts.padded);
  return picture;
}

void AddData(const RunGoal& goal, const ChoiceEstimate& choice, const ModelSpec& model,
             Page& page) {
  const BatchSpec& batch = choice.setup.batch;
  for (std::string& text : DataParagraphs(goal, batch, model)) {
    page.findings.push_back(std::move(text));
  }
  page.Add(LengthsPicture(goal));
  page.Add(SequencesPicture(goal, batch, choice.time.total_seconds));
}

std::optional<Picture> RunCostPicture(const std::vector<ShownChoice>& choices,
                                      const RunGoal& goal) {
  if (!goal.tokens) return std::nullopt;
  Picture picture{.id = "run-cost", .title = "Training on " + RunLengthText(goal)};
  picture.about = "Steps alone, without saving, validation and interruptions.";
  PageTable& table = picture.table;
  table.heads = {"choice", "steps", "hours", "GPU-hours"};
  if (goal.gpu_hour_price) table.heads.emplace_back("price");
  table.heads.emplace_back("fits");
  for (const ShownChoice& choice : choices) {
    if (!choice.estimate->time.total_seconds) continue;
    const RunCost cost =
        CostOf(goal, choice.estimate->setup.batch, *choice.estimate->time.total_seconds);
    std::vector<std::string> cells = {choice.label, std::to_string(cost.steps),
                                      FineCell(cost.seconds / 3600), FineCell(cost.gpu_hours)};
    if (cost.price) cells.push_back(FineCell(*cost.price));
    cells.emplace_back(choice.estimate->fits ? "yes" : "no");
    if (choice.marked) table.marked.push_back(table.rows.size());
    table.rows.push_back(std::move(cells));
  }
  if (table.rows.empty()) return std::nullopt;
  return picture;
}

}  // namespace zeroplan
