// Cells, lines and paragraphs for reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"

namespace zeroplan {

// The unit that all byte columns of a table share, so that their numbers can be compared.
struct ByteUnit {
  const char* name;
  double bytes;
};
ByteUnit CommonUnit(const Estimate& estimate);
// The unit that all columns of seconds share: "s" if any step lasts a second, else "ms".
struct TimeUnit {
  const char* name;
  double seconds;
};
TimeUnit CommonTimeUnit(const Estimate& estimate);

// Bytes in at most 5 characters with three significant digits: "12.3", "0.41", "1034", "18.0M"; "-"
// for zero.
std::string ByteCell(uint64_t bytes, const ByteUnit& unit);
// Seconds in the same form, with "0.123" below 1; "?" if unknown.
std::string SecondsCell(const std::optional<double>& seconds, const TimeUnit& unit);

// Any number in the same form: "0.41", "18.0M".
std::string NumberCell(double value);
// The same for numbers that may be far below 1, such as the hours of a short run: "0.0021".
std::string FineCell(double value);
// Bytes in the same form, in GB regardless of the table's unit.
std::string GigabyteCell(uint64_t bytes);

// "12.3 ms", "1.20 s", "4.10 us", "75 h": three significant digits and a suitable unit.
std::string FormatSeconds(double seconds);

// Breaks `text` at spaces into lines of at most `page` columns, and of kPlainColumns
// (core/base/terminal.h). Indents all lines but the first, and keeps leading spaces. Escapes
// unprintable bytes, because the text may contain names from users.
std::string Wrap(const std::string& text, size_t indent, size_t page);

// ---- for a single choice ----

// Peaks of device memory by phase, one line each, with the buffers that cause them.
std::string PhasePeaks(const ChoiceEstimate& choice, size_t columns);

// For each active stream: its busy seconds in one step, and the seconds that the compute stream
// waits for it. REQUIRES: times are known.
std::string StreamTimes(const SectionTime& time);

// "gpt2-xl: 1.56B parameters, ..." and "8 x NVIDIA H200 SXM, ...".
std::string ModelLine(const ModelSpec& model, int64_t seq_len);
std::string ClusterLine(const Cluster& cluster);
// "Training on 300B tokens: ...": hours, GPU-hours and, if its price is known, the cost. REQUIRES:
// goal.tokens.
std::string RunCostText(const RunGoal& goal, const BatchSpec& batch, double step_seconds);
// The same without what it leaves out: "Training on 300B tokens: 191 steps, 0.3 h on 8 GPUs.".
std::string RunCostLine(const RunGoal& goal, const BatchSpec& batch, double step_seconds);
// "3 epochs (123M tokens, padding too)", "300B tokens". REQUIRES: goal.tokens.
std::string RunLengthText(const RunGoal& goal);
// "Data: " and DataLine, and the rate without padding where 1 % of the tokens or more is padding.
std::string DataScreen(const DataFacts& facts, double tokens_per_second);
// The data's facts, and their effect on a run in such batches: a recommended sequence length, the
// number of steps, the longest batch. One paragraph each. REQUIRES: goal.data.
std::vector<std::string> DataParagraphs(const RunGoal& goal, const BatchSpec& batch,
                                        const ModelSpec& model);
// The interval between saves, the expected loss, and whether a save fits the notice. REQUIRES:
// goal.interruptions.
std::string InterruptedText(const RunGoal& goal, const InterruptedCost& cost);
// "45 s", "23.1 min", "5.2 h": a time for readers.
std::string TimeText(double seconds);
// "bf16", and the dtype in which gradients are summed and reduced if it differs.
std::string PrecisionText(const TrainSetup& setup);
// "bf16, micro-batch 4, 2 micro-steps a step: 64 sequences, 65.5k tokens".
std::string BatchLine(const TrainSetup& setup);

// "of 25.3", the heading of a column of GB; "-" if the capacity is not known.
std::string OfCapacity(const std::optional<uint64_t>& bytes);
// A clause on the largest error of a step's time, a share of the prediction; 0: none is known.
std::string TimeDoubt(double largest_error);

// The end of an answer on one screen.
struct ScreenNotes {
  std::vector<std::string> taken;   // how names of models and machines were read, a sentence each
  std::vector<std::string> doubts;  // uncertainties, a clause each
  std::string next;                 // the command to run next; "" if there is none
};
// Prints the notes and the option with the details. The command is last and can be pasted.
std::string ScreenEnd(const ScreenNotes& notes, size_t columns, bool colour);

}  // namespace zeroplan
