// Cells, lines and paragraphs that reports are made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"

namespace zeroplan {

// The unit that all byte columns of a table share, so that a column reads as one scale.
struct ByteUnit {
  const char* name;
  double bytes;
};
ByteUnit CommonUnit(const Estimate& estimate);
// The same of all seconds: "s" if any step takes a second, else "ms".
struct TimeUnit {
  const char* name;
  double seconds;
};
TimeUnit CommonTimeUnit(const Estimate& estimate);

// Bytes in at most 5 characters, three significant digits: "12.3", "0.41", "1034", "18.0M"; "-" for
// zero.
std::string ByteCell(uint64_t bytes, const ByteUnit& unit);
// The same of seconds, with "0.123" below 1; what is not known reads "?".
std::string SecondsCell(const std::optional<double>& seconds, const TimeUnit& unit);

// The same of any number: "0.41", "18.0M".
std::string NumberCell(double value);
// The same of what may be far below 1, as hours of a short run: "0.0021".
std::string FineCell(double value);
// The same of bytes, in GB whatever else a table has.
std::string GigabyteCell(uint64_t bytes);

// "12.3 ms", "1.20 s", "4.10 us", "75 h": three significant digits, the unit that suits.
std::string FormatSeconds(double seconds);

// `text` broken at spaces into lines of at most `columns`, all but the first indented; spaces it
// starts with stay. What others named in it is escaped.
std::string Wrap(const std::string& text, size_t indent, size_t columns);

// ---- about one choice alone ----

// Device peaks by phase, with the buffers that make them; a line a phase.
std::string PhasePeaks(const ChoiceEstimate& choice, size_t columns);

// For each stream that does anything: seconds busy in one step, and seconds that the compute stream
// waits for it. REQUIRES: times are known.
std::string StreamTimes(const SectionTime& time);

// "gpt2-xl: 1.56B parameters, ..." and "8 x NVIDIA H200 SXM, ...".
std::string ModelLine(const ModelSpec& model, int64_t seq_len);
std::string ClusterLine(const Cluster& cluster);
// "Training on 300B tokens: ...", hours, GPU-hours and, where its price is known, what it costs.
// REQUIRES: goal.tokens.
std::string RunCostText(const RunGoal& goal, const BatchSpec& batch, double step_seconds);
// "3 epochs (123M tokens, padding too)", "300B tokens". REQUIRES: goal.tokens.
std::string RunLengthText(const RunGoal& goal);
// The data's facts, and what they mean for a run in such batches: how long sequences had better be,
// how many steps it takes, what its longest batch is. A paragraph each. REQUIRES: goal.data.
std::vector<std::string> DataParagraphs(const RunGoal& goal, const BatchSpec& batch,
                                        const ModelSpec& model);
// How often to save, what is lost, and whether a save fits the notice. REQUIRES:
// goal.interruptions.
std::string InterruptedText(const RunGoal& goal, const InterruptedCost& cost);
// "45 s", "23.1 min", "5.2 h": a time for people.
std::string TimeText(double seconds);
// "bf16", and what gradients are summed and reduced in where that is another dtype.
std::string PrecisionText(const TrainSetup& setup);
// "bf16, micro-batch 4, 2 micro-steps a step: 64 sequences, 65.5k tokens".
std::string BatchLine(const TrainSetup& setup);

}  // namespace zeroplan
