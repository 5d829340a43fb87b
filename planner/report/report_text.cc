#include "planner/report/report_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "core/base/units.h"
#include "core/settings/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/fp8_products.h"
#include "planner/report/report_columns.h"

namespace zeroplan {

ByteUnit CommonUnit(const Estimate& estimate) {
  uint64_t largest = 0;
  for (const ChoiceEstimate& choice : estimate.choices) {
    largest = std::max(largest, choice.footprint.gpu_arena_bytes());
  }
  // In GB most columns would read 0.00 for totals below 1 GB.
  if (largest < 1'000'000'000) return {"MB", 1e6};
  return {"GB", 1e9};
}

TimeUnit CommonTimeUnit(const Estimate& estimate) {
  for (const ChoiceEstimate& choice : estimate.choices) {
    if (choice.time.total_seconds.value_or(0) >= 0.9995) return {"s", 1};
  }
  return {"ms", 1e-3};
}

std::string NumberCell(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  if (value < 99999.5) return fmt::format("{:.0f}", value);
  return FormatCount(static_cast<uint64_t>(std::llround(value)));
}

std::string FineCell(double value) {
  if (value <= 0 || value >= 0.1) return NumberCell(value);
  return value < 0.001 ? fmt::format("{:.1g}", value) : fmt::format("{:.2g}", value);
}

std::string ByteCell(uint64_t bytes, const ByteUnit& unit) {
  return bytes == 0 ? "-" : NumberCell(static_cast<double>(bytes) / unit.bytes);
}

std::string SecondsCell(const std::optional<double>& seconds, const TimeUnit& unit) {
  if (!seconds) return "?";
  const double value = *seconds / unit.seconds;
  if (value == 0) return "-";
  return value < 0.9995 ? fmt::format("{:.3f}", value) : NumberCell(value);
}

std::string GigabyteCell(uint64_t bytes) { return NumberCell(static_cast<double>(bytes) / 1e9); }

std::string FormatSeconds(double seconds) {
  if (seconds == 0) return "0 s";
  const struct {
    double seconds;
    const char* name;
  } units[] = {{3600, "h"}, {1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
  for (const auto& unit : units) {
    const double value = seconds / unit.seconds;
    // Uses hours from ten on, and other units from the value at which three digits round to 1.
    if (value >= (unit.seconds == 3600 ? 9.995 : 0.9995)) {
      return fmt::format("{} {}", NumberCell(value), unit.name);
    }
  }
  return fmt::format("{:.2f} us", seconds * 1e6);
}

std::string Wrap(const std::string& written, size_t indent, size_t page) {
  const size_t columns = std::min(page, kPlainColumns);
  const std::string text = Escaped(written);
  const size_t lead = std::min(text.find_first_not_of(' '), text.size());
  std::string out(lead, ' ');
  size_t column = lead;
  for (size_t begin = lead; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const size_t word = ColumnsOf(std::string_view(text).substr(begin, end - begin));
    if (begin > lead && column + 1 + word > columns) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (begin > lead) {
      out += ' ';
      ++column;
    }
    out.append(text, begin, end - begin);
    column += word;
    begin = end + 1;
  }
  return out + '\n';
}

std::string PhasePeaks(const ChoiceEstimate& choice, size_t columns) {
  std::string text = "Peak of each phase on one GPU (without runtime), largest buffers first:\n";
  for (int p = 0; p < kPhases; ++p) {
    const PhasePeak& peak = choice.memory.phases[static_cast<size_t>(p)];
    if (peak.bytes == 0) continue;
    std::vector<std::string> parts;
    for (const Culprit& culprit : peak.culprits) {
      parts.push_back(fmt::format("{} {}", CulpritName(culprit), FormatBytes(culprit.bytes)));
    }
    text += Wrap(fmt::format("  {:<9}{:>9}:  {}", PhaseName(static_cast<Phase>(p)),
                             FormatBytes(peak.bytes), fmt::join(parts, ", ")),
                 22, columns);
  }
  return text;
}

std::string StreamTimes(const SectionTime& time) {
  std::string text = "Each stream in one step; what compute waits for it is the exposed part:\n";
  for (int s = 0; s < kStreams; ++s) {
    const auto stream = static_cast<Stream>(s);
    const double busy = time.busy(stream);
    if (busy == 0) continue;
    text += fmt::format("  {:<15}busy {:>9} ({:>5.1f} %)", StreamName(stream), FormatSeconds(busy),
                        100 * busy / time.total_seconds);
    if (stream != Stream::kCompute) {
      text += fmt::format("   exposed {:>9}", FormatSeconds(time.exposed(stream)));
    }
    text += '\n';
  }
  return text;
}

std::string ModelLine(const ModelSpec& model, int64_t seq_len) {
  return fmt::format("{}: {}, {} layers, hidden {}, {} heads, vocabulary {}, sequence {}",
                     model.name, model.CountsText(), model.layers, model.hidden, model.heads,
                     model.vocab, seq_len);
}

std::string ClusterLine(const Cluster& cluster) {
  const std::string host =
      cluster.host_capacity_bytes
          ? fmt::format(", {} of host memory a node", FormatBytes(*cluster.host_capacity_bytes))
          : "";
  const std::string nodes =
      cluster.nodes() == 1 ? "one node"
                           : fmt::format("{} nodes of {}", cluster.nodes(), cluster.gpus_per_node);
  return fmt::format("{} x {}, {}, {} ({:.3g} GiB) a GPU{}{}{}", cluster.gpus, cluster.gpu_name,
                     nodes, FormatBytes(cluster.gpu_capacity_bytes),
                     static_cast<double>(cluster.gpu_capacity_bytes) / (1 << 30),
                     cluster.links.empty() ? "" : ", ", cluster.links, host);
}

std::string RunLengthText(const RunGoal& goal) {
  std::string tokens = FormatCount(static_cast<uint64_t>(*goal.tokens)) + " tokens";
  if (!goal.data) return tokens;
  return fmt::format("{:.6g} epoch{} ({}, padding too)", goal.epochs, goal.epochs == 1 ? "" : "s",
                     tokens);
}

std::string RunCostLine(const RunGoal& goal, const BatchSpec& batch, double step_seconds) {
  const RunCost cost = CostOf(goal, batch, step_seconds);
  const double hours = cost.seconds / 3600;
  const std::string days = hours >= 48 ? fmt::format(" ({} days)", NumberCell(hours / 24)) : "";
  const std::string price =
      cost.price ? fmt::format(", {} at {} a GPU-hour", FineCell(*cost.price), *goal.gpu_hour_price)
                 : "";
  return fmt::format("Training on {}: {} step{}, {} h{} on {} GPU{}, {} GPU-hours{}.",
                     RunLengthText(goal), cost.steps, cost.steps == 1 ? "" : "s", FineCell(hours),
                     days, batch.world_size, batch.world_size == 1 ? "" : "s",
                     FineCell(cost.gpu_hours), price);
}

std::string RunCostText(const RunGoal& goal, const BatchSpec& batch, double step_seconds) {
  const RunCost cost = CostOf(goal, batch, step_seconds);
  const std::string energy =
      cost.gpu_kwh ? fmt::format(
                         " At their power limit of {:.0f} W the GPUs take {} kWh at most, "
                         "hosts and cooling apart.",
                         *goal.gpu_watts, FineCell(*cost.gpu_kwh))
                   : "";
  std::string line = RunCostLine(goal, batch, step_seconds);
  line.pop_back();
  return fmt::format("{}; steps alone, without saving, validation and interruptions.{}", line,
                     energy);
}

std::string TimeText(double seconds) {
  constexpr double kMostSeconds = 120, kMostMinutes = 120;
  if (seconds < kMostSeconds) return FormatSeconds(seconds);
  if (seconds < 60 * kMostMinutes) return fmt::format("{} min", NumberCell(seconds / 60));
  return fmt::format("{} h", NumberCell(seconds / 3600));
}

std::string InterruptedText(const RunGoal& goal, const InterruptedCost& cost) {
  const Interruptions& asked = *goal.interruptions;
  std::string text = fmt::format("Interrupted once in {} on average, all machines together: ",
                                 TimeText(1 / asked.rate));
  if (!cost.known) {
    return text +
           "what a save takes is not known, as the profile has no rates of a disk, and so is how "
           "often to save; 'train' with ⟦save_every⟧ auto measures it.";
  }
  if (cost.hopeless()) {
    return text +
           fmt::format("such a run hardly gets on: a restart takes {}, a step {}, a save {}.",
                       TimeText(cost.restart_seconds),
                       TimeText(cost.interval_seconds / static_cast<double>(cost.interval_steps)),
                       TimeText(cost.whole_save_seconds));
  }
  const bool beside = cost.whole_save_seconds > cost.save_seconds;
  text += fmt::format(
      "save every {} step{} ({}), for which steps wait {}{}. Of the time {} % is lost to "
      "saves, "
      "to steps that are made again, and to restarts of {}, loading included",
      cost.interval_steps, cost.interval_steps == 1 ? "" : "s", TimeText(cost.interval_seconds),
      TimeText(cost.save_seconds),
      beside ? fmt::format(" and which is complete after {}", TimeText(cost.whole_save_seconds))
             : "",
      FormatPercent(cost.lost_share), TimeText(cost.restart_seconds));
  if (cost.expected_seconds) {
    text += fmt::format(": the run takes {} on average, {} GPU-hours{}",
                        TimeText(*cost.expected_seconds), FineCell(*cost.expected_gpu_hours),
                        cost.expected_price
                            ? fmt::format(", {} at {} a GPU-hour", FineCell(*cost.expected_price),
                                          *goal.gpu_hour_price)
                            : "");
  }
  text += " (docs/checkpoints.md#interrupted-runs).";
  if (!cost.fits_notice) return text;
  const std::string needs = fmt::format(
      "the step that runs{} and a save of its own take {}, by prediction",
      beside ? ", a save that is being written" : "", TimeText(cost.notice_needs_seconds));
  return text + (*cost.fits_notice
                     ? fmt::format(" A notice of {} is enough: {}. Then no step is made again.",
                                   TimeText(*asked.notice_seconds), needs)
                     : fmt::format(" A notice of {} may be too short: {}. Then steps since the "
                                   "last complete save are made again.",
                                   TimeText(*asked.notice_seconds), needs));
}

std::string PrecisionText(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  const bool summed = precision.grad_accum_dtype != precision.dtype;
  const bool reduced = ReducesInFp32(setup);
  std::string dtype(DtypeName(precision.dtype));
  const bool fits = HasFp8Tokens(setup);
  for (const std::string& label : {StatesLabel(StatesOf(precision)),
                                   fits ? ProductsLabel(ProductsOf(precision)) : std::string()}) {
    if (!label.empty()) dtype += ", " + label;
  }
  if (!summed && !reduced) return dtype;
  return fmt::format("{}, gradients {}{}{} in fp32", dtype, summed ? "summed" : "",
                     summed && reduced ? " and " : "", reduced ? "reduced" : "");
}

std::string BatchLine(const TrainSetup& setup) {
  const BatchSpec& batch = setup.batch;
  const auto tokens = static_cast<uint64_t>(batch.global_batch() * batch.seq_len);
  const std::string shared =
      batch.sequence_ranks > 1 ? fmt::format(" over {} GPUs each", batch.sequence_ranks) : "";
  return fmt::format("{}, micro-batch {}{}, {} micro-step{} a step: {} sequence{}, {} tokens",
                     PrecisionText(setup), batch.micro_batch, shared, batch.grad_accum,
                     batch.grad_accum == 1 ? "" : "s", batch.global_batch(),
                     batch.global_batch() == 1 ? "" : "s", FormatCount(tokens));
}

std::string OfCapacity(const std::optional<uint64_t>& bytes) {
  return bytes ? "of " + GigabyteCell(*bytes) : "-";
}

std::string TimeDoubt(double largest_error) {
  if (largest_error == 0) return "no step like this was measured on such GPUs";
  return fmt::format("steps like this took up to {:.0f} % more or less than predicted",
                     100 * largest_error);
}

std::string ScreenEnd(const ScreenNotes& notes, size_t columns, bool colour) {
  const Paints paints(colour);
  std::string text;
  for (const std::string& taken : notes.taken) text += Wrap(taken, 2, columns);
  const std::string doubt =
      notes.doubts.empty() ? "" : fmt::format("Doubt: {}. ", fmt::join(notes.doubts, "; "));
  text += Wrap(doubt + "Why, and what would change it: --explain", 2, columns);
  if (notes.next.empty()) return text;
  // A line that is broken goes on in a shell.
  std::string command = Wrap("Next: " + notes.next, 2, columns - 2);
  command.pop_back();
  for (size_t at = 0; (at = command.find('\n', at)) != std::string::npos; at += 3) {
    command.replace(at, 1, " \\\n");
  }
  return text + fmt::format("{}{}{}\n", paints.bold, command, paints.reset);
}

}  // namespace zeroplan
