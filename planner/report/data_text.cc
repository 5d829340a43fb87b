// The effect of training data on a run: the recommended sequence length, steps, the longest batch.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::string CutText(const SeqLenProposal& of) {
  if (of.cut_documents == 0) return "no document";
  return fmt::format("{} % of the documents and {} % of all tokens",
                     FormatPercent(of.cut_documents), FormatPercent(of.cut_tokens));
}

// Recommends another sequence length than the plan's if one within the model's positions is better.
std::string ProposalText(const DataFacts& facts, int64_t positions) {
  if (facts.packing == Packing::kStream) return "";  // the text can be cut anywhere
  const SeqLenProposal now = CutsOf(facts.lengths, facts.fixed_rows, facts.seq_len);
  const SeqLenProposal better = ProposeSeqLen(facts.lengths, facts.fixed_rows);
  // A shorter length saves padding only if every row has the full length. Even then it must be at
  // most half as long.
  const bool padded = facts.packing == Packing::kOff && facts.fixed_rows;
  const bool shorter = padded && 2 * better.seq_len <= facts.seq_len;
  if (now.cut_documents <= kMostCut && !shorter) return "";
  if (better.seq_len > positions) {
    if (facts.seq_len >= positions) return "";
    return fmt::format(
        "⟦seq_len⟧ {}, the longest that the model was made for, cuts {}; {} cuts {}.", positions,
        CutText(CutsOf(facts.lengths, facts.fixed_rows, positions)), facts.seq_len, CutText(now));
  }
  return fmt::format("⟦seq_len⟧ {} would cut {}; {} cuts {}{}.", better.seq_len, CutText(better),
                     facts.seq_len, CutText(now), shorter ? ", and pads more" : "");
}

// The memory and time of batches that depend on their documents.
std::string LongestBatchText(const DataFacts& facts, const BatchSpec& batch) {
  if (facts.fixed_rows) {
    return "All batches need the same memory and time, because all sequences have one length.";
  }
  const int64_t rows = batch.micro_batch;
  if (facts.packing == Packing::kStream) {
    return fmt::format("Every micro-batch is {} x {} tokens, where the texts are joined and cut.",
                       rows, facts.seq_len);
  }
  const MicroBatchTokens tokens = MicroBatchOf(facts, rows);
  return fmt::format(
      "Padded to its longest document, a micro-batch has at most {} x {} tokens, and {} x {:.0f} "
      "on average, {:.0f} % of it padding; memory is planned for {} x {}. Steps are timed at that "
      "length too: shorter ones take less.",
      rows, tokens.largest / static_cast<uint64_t>(rows), rows,
      tokens.mean / static_cast<double>(rows), 100 * tokens.padding, rows, facts.seq_len);
}

}  // namespace

std::string DataScreen(const DataFacts& facts, double tokens_per_second) {
  std::string text = "Data: " + DataLine(facts);
  const double padding = facts.fixed_rows ? facts.epoch.PaddingShare(facts.seq_len) : 0;
  if (!facts.fixed_rows && facts.packing == Packing::kOff) {
    text += " Steps are timed at that length; shorter batches take less.";
  }
  if (padding < 0.01) return text;
  return text + fmt::format(" Without padding that is {} tokens/s.",
                            FormatRate((1 - padding) * tokens_per_second));
}

std::vector<std::string> DataParagraphs(const RunGoal& goal, const BatchSpec& batch,
                                        const ModelSpec& model) {
  ZEROPLAN_CHECK(goal.data.has_value(), "no data");
  const DataFacts& facts = *goal.data;
  const int64_t steps = CostOf(goal, batch, 0).steps;
  std::vector<std::string> paragraphs = {"Data: " + DataText(facts)};
  if (std::string better = ProposalText(facts, model.positions); !better.empty()) {
    paragraphs.push_back(std::move(better));
  }
  paragraphs.push_back(fmt::format("{} {}", EpochText(facts, batch.global_batch(), steps),
                                   LongestBatchText(facts, batch)));
  return paragraphs;
}

}  // namespace zeroplan
