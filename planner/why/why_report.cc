// Why a run died or was slow, as text and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/strings.h"
#include "core/base/units.h"
#include "planner/report/choice_json.h"
#include "planner/report/report_text.h"
#include "planner/why/log_text.h"
#include "planner/why/why_parts.h"

namespace zeroplan {
namespace {

using WhyJsonValue = nlohmann::ordered_json;

std::string NameOfLog(const RunLog& log) { return log.source == "-" ? "stdin" : log.source; }

std::string RankText(const RunFailure& failure) {
  return failure.rank ? fmt::format(", rank {}", *failure.rank) : "";
}

// Where it died, as far as that is known.
std::string WhereText(const RunFailure& failure, const RunLog& log) {
  if (failure.phase == RunPhase::kUnknown) {
    if (log.last_seen.empty()) return "; the log does not tell where";
    return fmt::format("; last seen: {}", log.last_seen);
  }
  return fmt::format(" in {}{}", RunPhaseText(failure.phase),
                     failure.recomputing ? ", where a checkpointed layer was made again" : "");
}

std::string Verdict(const RunLog& log) {
  const RunFailure* cause = log.Cause();
  if (cause == nullptr) {
    if (log.finished) return "The run ended as it should.";
    std::string text = log.steps_seen > 0 ? fmt::format("The log ends at step {}.", log.steps_seen)
                       : log.last_seen.empty()
                           ? "The log tells of no step."
                           : fmt::format("The log ends here: {}.", log.last_seen);
    text += " It names no failure that is known, and no end of the training.";
    if (log.last_error.empty()) return text;
    return text + fmt::format(" The last line there that speaks of an error (line {}): {}",
                              log.last_error_line, log.last_error);
  }
  const std::string at = fmt::format("(line {}{})", cause->line, RankText(*cause));
  const std::string where = WhereText(*cause, log);
  switch (cause->kind) {
    case FailureKind::kGpuMemory: {
      const OomMessage& gpu = cause->gpu;
      std::string text = fmt::format("It ran out of GPU memory{} {}", where, at);
      if (!gpu.wanted) return text + ": " + cause->message + ".";
      text += fmt::format(": {} were wanted", GiBText(*gpu.wanted));
      if (gpu.free) text += fmt::format(", {} free", GiBText(*gpu.free));
      if (gpu.total) {
        text += fmt::format(" of {}{}", gpu.gpu ? fmt::format("GPU {}'s ", *gpu.gpu) : "",
                            GiBText(*gpu.total));
      }
      if (gpu.allowed) {
        text += fmt::format(", of which its allocator was allowed {}", GiBText(*gpu.allowed));
      }
      return text + ".";
    }
    case FailureKind::kHostMemory:
      return fmt::format(
          "It ran out of host memory{} {}{}.", where, at,
          cause->host_wanted ? fmt::format(": {} were wanted", GiBText(*cause->host_wanted)) : "");
    case FailureKind::kKilled:
      return fmt::format(
          "{}{} {}, as the kernel does where a host has no more memory, and as "
          "launchers do to the others.",
          cause->what.empty() ? "A process was killed (SIGKILL)" : cause->what, where, at);
    case FailureKind::kTimeout:
      return fmt::format(
          "A collective timed out {}: not all ranks came to it. A rank that died, stands still or "
          "went another way is the cause; its own output says why. {}",
          at, cause->message);
    case FailureKind::kInterrupted:
      return fmt::format("It was interrupted{} {}{}.", where, at,
                         cause->what.empty() ? "" : ": " + cause->what);
    case FailureKind::kCrashed:
    case FailureKind::kAborted:
      return fmt::format("It crashed{} {}: {}.", where, at, cause->what);
    case FailureKind::kHardware:
      return fmt::format("Hardware failed{} {}: {}.", where, at, cause->what);
    case FailureKind::kScheduler:
      return fmt::format("It was ended{} {}: {}.", where, at, cause->what);
    case FailureKind::kExited:
      return fmt::format("A process ended with {}{} {}.", cause->what, where, at);
    case FailureKind::kError:
      return fmt::format("It died of an error{} {}: {}", where, at, cause->message);
  }
  return "";
}

// The speed of a run that is not predicted: its step, and tokens/s if the log has the batch, the
// sequences and the GPUs; "": the log has no time.
std::string MeasuredText(const RunLog& log) {
  const auto count = [&](const char* field) {
    const LogFact* fact = log.Fact(field);
    return fact == nullptr ? int64_t{0} : CountAfter(fact->text, "").value_or(0);
  };
  const int64_t gpus = count("⟦gpus⟧"), length = count("⟦seq_len⟧");
  const int64_t accum = count("⟦grad_accum⟧");
  const double whole = static_cast<double>(count("⟦global_batch⟧"));
  const double product = static_cast<double>(count("⟦micro_batch⟧")) * static_cast<double>(accum) *
                         static_cast<double>(gpus);
  const double sequences = whole > 0 ? whole : product;
  double seconds = log.step_seconds ? log.step_seconds->value : 0;
  if (log.samples_per_second && sequences > 0) seconds = sequences / log.samples_per_second->value;
  if (seconds <= 0) {
    if (!log.tokens_per_second_of_gpu) return "";
    return fmt::format("Measured: {:.0f} tokens/s of a GPU ({}, line {}).",
                       log.tokens_per_second_of_gpu->value, log.tokens_per_second_of_gpu->from,
                       log.tokens_per_second_of_gpu->line);
  }
  std::string text = fmt::format("Measured: {} a step", FormatSeconds(seconds));
  if (sequences > 0) text += fmt::format(", {:.0f} sequences", sequences);
  if (sequences > 0 && length > 0 && gpus > 0) {
    text += fmt::format(
        " of {} tokens on {} GPU{}, which is {:.0f} tokens/s of a GPU", length, gpus,
        gpus == 1 ? "" : "s",
        sequences * static_cast<double>(length) / (seconds * static_cast<double>(gpus)));
  }
  return text + ".";
}

struct ComparedRow {
  std::string name, of_log, of_prediction;
};

// How much more the log has than is predicted, as a share of the prediction.
std::string More(double log, double predicted) {
  return fmt::format("{:+.1f} %", 100 * (log / predicted - 1));
}

std::vector<ComparedRow> ComparedRows(const WhyAnswer& answer) {
  std::vector<ComparedRow> rows;
  const RunLog& log = answer.log;
  const TorchFootprint& torch = *answer.prediction->choice.footprint.torch;
  const auto bytes = [&](const char* name, std::optional<uint64_t> of_log, uint64_t predicted,
                         bool off) {
    if (!of_log) return;
    std::string value = GiBText(predicted);
    if (off && *of_log > 0) {
      value += fmt::format(" ({} in the log)",
                           More(static_cast<double>(*of_log), static_cast<double>(predicted)));
    }
    rows.push_back({name, GiBText(*of_log), std::move(value)});
  };
  const auto figure = [](const std::optional<LogFigure>& of) -> std::optional<uint64_t> {
    if (!of) return std::nullopt;
    return static_cast<uint64_t>(of->value);
  };
  if (const RunFailure* cause = log.Cause()) {
    const OomMessage& gpu = cause->gpu;
    const std::optional<TorchPhase> phase = PredictedPhase(cause->phase);
    if (!phase && cause->phase != RunPhase::kUnknown) return rows;
    const TorchPeak& peak = torch.peak(phase.value_or(torch.DecidingPhase()));
    if (answer.prediction->needed) {
      bytes("tensors, with what was wanted", answer.prediction->needed, peak.allocated_bytes,
            false);
    } else {
      bytes("allocated", gpu.allocated, peak.allocated_bytes, false);
    }
    bytes("reserved", gpu.reserved, peak.reserved_bytes, false);
    if (gpu.in_use && gpu.reserved && *gpu.in_use > *gpu.reserved) {
      bytes("outside the allocator", *gpu.in_use - *gpu.reserved, torch.context_bytes, false);
    }
    for (const MemoryLine& line : log.memory_lines) {
      if (line.label != "After initializing ZeRO optimizer") continue;
      bytes("allocated after initialisation", line.allocated, torch.after_init_bytes, true);
      break;
    }
    return rows;
  }
  const std::optional<double> step = StepSecondsOf(log, answer.prediction->choice.setup);
  const TimeEstimate& time = answer.prediction->choice.time;
  if (step && answer.times_known && time.total_seconds) {
    rows.push_back({"an optimizer step", FormatSeconds(*step),
                    fmt::format("{} ({} in the log)", FormatSeconds(*time.total_seconds),
                                More(*step, *time.total_seconds))});
    const TrainSetup& setup = answer.prediction->choice.setup;
    const double tokens = static_cast<double>(setup.batch.global_batch()) *
                          static_cast<double>(setup.batch.seq_len) / setup.batch.world_size;
    rows.push_back({"tokens/s of a GPU", fmt::format("{:.0f}", tokens / *step),
                    fmt::format("{:.0f}", tokens / *time.total_seconds)});
  }
  bytes("allocated at most", figure(log.allocated), torch.TensorBytes(), true);
  bytes("reserved at most", figure(log.reserved), torch.ReservedBytes(), true);
  bytes("of the device at most", figure(log.device), torch.DeviceBytes(), true);
  return rows;
}

std::string ComparedText(const WhyAnswer& answer) {
  const std::vector<ComparedRow> rows = ComparedRows(answer);
  if (rows.empty()) return "";
  const bool died = answer.log.Cause() != nullptr;
  const std::string heads[] = {died ? "log, when it died" : "log",
                               died ? "predicted peak" : "predicted"};
  size_t name = 0, log = heads[0].size();
  for (const ComparedRow& row : rows) {
    name = std::max(name, row.name.size());
    log = std::max(log, row.of_log.size());
  }
  std::string text = fmt::format("\n  {:<{}}  {:>{}}  {}\n", "", name, heads[0], log, heads[1]);
  for (const ComparedRow& row : rows) {
    text +=
        fmt::format("  {:<{}}  {:>{}}  {}\n", row.name, name, row.of_log, log, row.of_prediction);
  }
  return text;
}

// The tensors at the predicted peak, the largest first.
std::string PeakText(const WhyAnswer& answer) {
  const WhyPrediction& predicted = *answer.prediction;
  const TorchFootprint& torch = *predicted.choice.footprint.torch;
  const RunFailure* cause = answer.log.Cause();
  const std::optional<TorchPhase> phase =
      cause == nullptr ? std::nullopt : PredictedPhase(cause->phase);
  if (cause != nullptr && cause->phase != RunPhase::kUnknown && !phase) return "";
  const TorchPhase shown = phase.value_or(torch.DecidingPhase());
  const TorchPeak& peak = torch.peak(shown);
  std::vector<std::pair<uint64_t, std::string_view>> classes;
  for (size_t i = 0; i < kTorchClasses; ++i) {
    if (peak.class_bytes[i] >= (uint64_t{1} << 20)) {
      classes.emplace_back(peak.class_bytes[i], TorchClassName(static_cast<TorchClass>(i)));
    }
  }
  std::stable_sort(classes.begin(), classes.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> parts;
  parts.reserve(classes.size());
  for (const auto& [bytes, name] : classes)
    parts.push_back(fmt::format("{} {}", name, GiBText(bytes)));
  const std::string_view where = shown == TorchPhase::kInit              ? "initialisation"
                                 : shown == TorchPhase::kForwardBackward ? "forward and backward"
                                                                         : "the optimizer step";
  return fmt::format("Predicted at the peak of {}: {} in tensors: {}.", where,
                     GiBText(peak.allocated_bytes), fmt::join(parts, ", "));
}

std::string StepText(const WhyAnswer& answer) {
  const TimeEstimate& time = answer.prediction->choice.time;
  if (!answer.times_known || !time.total_seconds || !time.host_update_seconds) return "";
  const double total = *time.total_seconds;
  const std::pair<const char*, double> parts[] = {
      {"the GPU computes", *time.compute_seconds},
      {"it waits for communication", *time.exposed_comm_seconds},
      {"for copies", *time.exposed_offload_seconds - *time.host_update_seconds},
      {"for the update on the host", *time.host_update_seconds},
      {"for Python", *time.host_overhead_seconds}};
  std::vector<std::string> texts;
  for (const auto& [name, seconds] : parts) {
    if (seconds < 0.005 * total) continue;
    texts.push_back(fmt::format("{} {:.0f} %", name, 100 * seconds / total));
  }
  return fmt::format("Of a step as predicted {}.", fmt::join(texts, ", "));
}

std::string ChangesText(const WhyAnswer& answer, size_t columns, size_t most = SIZE_MAX) {
  const RunFailure* cause = answer.log.Cause();
  const bool of_host = cause != nullptr && cause->of_host();
  if (answer.changes.empty() && !answer.changes_sought) return "";
  if (answer.changes.empty()) {
    const bool fits = answer.prediction->choice.fits && answer.prediction->beyond == 0;
    const bool gpu = cause != nullptr && cause->kind == FailureKind::kGpuMemory &&
                     (PredictedPhase(cause->phase) || cause->phase == RunPhase::kUnknown);
    const bool host = of_host && HostIsShort(*answer.prediction);
    if (fits || (!gpu && !host)) return "";
    return Wrap(fmt::format("No change was found after which it fits, more GPUs included; a "
                            "smaller model or {} with more memory do.",
                            host ? "hosts" : "GPUs"),
                2, columns);
  }
  std::string text =
      answer.single_changes
          ? "\nChanges after which it fits, by prediction, each alone, the fastest first:\n"
          : "\nNo change alone makes it fit; the fewest together that do, by prediction:\n";
  size_t shown = 0;
  for (const WhyChange& change : answer.changes) {
    if (answer.single_changes && shown++ == most) break;
    const ChoiceEstimate& estimate = change.estimate;
    const TorchFootprint& torch = *estimate.footprint.torch;
    std::string line = fmt::format("  {}", change.options);
    if (!change.elsewhere.empty()) line += fmt::format(" [{}]", change.elsewhere);
    line += fmt::format(": {} in tensors, {} reserved", GiBText(torch.TensorBytes()),
                        GiBText(torch.ReservedBytes()));
    if (answer.times_known && estimate.time.tokens_per_second) {
      line += fmt::format(", {:.0f} tokens/s of a GPU",
                          *estimate.time.tokens_per_second / estimate.setup.batch.world_size);
    }
    if (of_host) {
      line += fmt::format(", {} of a host", GiBText(estimate.footprint.host.total()));
    }
    if (const uint64_t host = estimate.footprint.host.pinned; host > 0) {
      line += fmt::format(", {} page-locked on a host", GiBText(host));
    }
    if (estimate.room == MemoryRoom::kAtRisk) line += "; at risk, with the margin of error on top";
    if (estimate.room == MemoryRoom::kEmptiesCache) {
      const bool joins = answer.prediction->resolved->inputs().recipe.expandable_segments ||
                         change.options.find("⟦expandable_segments⟧") != std::string::npos;
      line += "; the allocator has to empty its cache";
      if (!joins) line += ", which ⟦expandable_segments⟧ may spare it";
    }
    text += Wrap(line + ".", 4, columns);
  }
  if (!answer.times_known && answer.changes.size() > 1) {
    text += Wrap(
        "  Their order is by the figures of the default ⟦hw⟧; ⟦hw⟧ NAME of the run's GPUs "
        "gives their speeds.",
        2, columns);
  }
  return text;
}

WhyJsonValue FailureJson(const RunFailure& failure) {
  const OomMessage& gpu = failure.gpu;
  WhyJsonValue json = {{"kind", FailureKindName(failure.kind)},
                       {"phase", nullptr},
                       {"recomputing", failure.recomputing},
                       {"line", failure.line},
                       {"rank", Nullable(failure.rank)},
                       {"message", failure.message},
                       {"frames", failure.frames},
                       {"host_bytes_wanted", Nullable(failure.host_wanted)},
                       {"what", failure.what.empty() ? WhyJsonValue() : WhyJsonValue(failure.what)},
                       {"gpu", nullptr}};
  if (failure.phase != RunPhase::kUnknown) json["phase"] = RunPhaseName(failure.phase);
  if (failure.kind == FailureKind::kGpuMemory) {
    json["gpu"] = {{"index", Nullable(gpu.gpu)},           {"wanted", Nullable(gpu.wanted)},
                   {"total", Nullable(gpu.total)},         {"free", Nullable(gpu.free)},
                   {"allocated", Nullable(gpu.allocated)}, {"reserved", Nullable(gpu.reserved)},
                   {"in_use", Nullable(gpu.in_use)},       {"allowed", Nullable(gpu.allowed)}};
  }
  return json;
}

WhyJsonValue FigureJson(const std::optional<LogFigure>& figure) {
  if (!figure) return nullptr;
  return {{"value", figure->value}, {"from", figure->from}, {"line", figure->line}};
}

std::string Plain(std::string field) {
  for (const std::string_view bracket : {"⟦", "⟧"}) {
    for (size_t at; (at = field.find(bracket)) != std::string::npos;) {
      field.erase(at, bracket.size());
    }
  }
  return field;
}

WhyJsonValue PredictionJson(const WhyAnswer& answer) {
  if (!answer.prediction) return nullptr;
  const WhyPrediction& predicted = *answer.prediction;
  const EstimateInputs& inputs = predicted.resolved->inputs();
  const TorchFootprint& torch = *predicted.choice.footprint.torch;
  const RunFailure* cause = answer.log.Cause();
  const std::optional<TorchPhase> phase =
      cause == nullptr ? std::nullopt : PredictedPhase(cause->phase);
  WhyJsonValue json = {
      {"runtime", inputs.runtime->version()},
      {"model", inputs.model.name},
      {"hw", answer.times_known ? WhyJsonValue(inputs.cluster.hardware) : WhyJsonValue(nullptr)},
      {"seq_len", predicted.choice.setup.batch.seq_len},
      {"gpu_bytes_usable", predicted.gpu_bytes},
      {"host_bytes_usable", Nullable(predicted.host_bytes)},
      {"phase", phase ? WhyJsonValue(TorchPhaseName(*phase)) : WhyJsonValue()},
      {"needed", Nullable(predicted.needed)},
      {"beyond", predicted.beyond},
      {"phases", TorchPhasesJson(torch)},
      {"choice", RuntimeChoiceJson(predicted.choice, RecipeOf(inputs))}};
  if (!answer.times_known) {
    json["choice"]["step_seconds"] = nullptr;
    json["choice"]["tokens_per_second"] = nullptr;
  }
  return json;
}

}  // namespace

std::string WhyScreen(const WhyAnswer& answer, const std::string& next, size_t columns,
                      bool colour) {
  constexpr size_t kFindings = 2, kChanges = 2;
  if (!answer.prediction) return WhyText(answer, columns);
  std::string text =
      Wrap(fmt::format("{}: {}", NameOfLog(answer.log), Verdict(answer.log)), 2, columns);
  const bool died = answer.log.Cause() != nullptr;
  if (!died) text += ComparedText(answer);
  for (size_t i = 0; i < std::min(kFindings, answer.findings.size()); ++i) {
    text += Wrap(answer.findings[i], 2, columns);
  }
  std::string changes = ChangesText(answer, columns, kChanges);
  text += changes.substr(changes.starts_with('\n') ? 1 : 0);
  if (answer.single_changes && answer.changes.size() > kChanges) {
    text += fmt::format("  {} more.\n", answer.changes.size() - kChanges);
  }
  ScreenNotes notes;
  std::vector<std::string> used;
  for (const UsedFact& fact : answer.used) {
    used.push_back(fact.field + (fact.text.size() > 20 ? "" : " " + fact.text));
  }
  if (!used.empty()) {
    notes.taken.push_back(fmt::format("From the log: {}.", fmt::join(used, ", ")));
  }
  if (!answer.assumed.empty()) {
    notes.taken.push_back(fmt::format("Assumed: {}.", fmt::join(answer.assumed, ", ")));
  }
  for (const std::string& conflict : answer.conflicts) {
    notes.taken.push_back(fmt::format("Options win: {}.", conflict));
  }
  for (const std::string& note : answer.notes) {
    if (note.starts_with("Hardware: ")) notes.taken.push_back(note);
  }
  if (answer.prediction->largest_time_error > 0 && answer.times_known) {
    notes.doubts.push_back(TimeDoubt(answer.prediction->largest_time_error));
  }
  notes.next = next;
  return text + ScreenEnd(notes, columns, colour);
}

std::string WhyText(const WhyAnswer& answer, size_t columns) {
  const RunLog& log = answer.log;
  std::string text = Wrap(fmt::format("{}: {}", NameOfLog(log), Verdict(log)), 2, columns);
  const auto paragraph = [&](const std::string& line) {
    if (!line.empty()) text += Wrap(line, 2, columns);
  };
  if (const RunFailure* cause = log.Cause(); cause != nullptr && !cause->frames.empty()) {
    constexpr size_t kShown = 4;
    const size_t first = cause->frames.size() > kShown ? cause->frames.size() - kShown : 0;
    paragraph(fmt::format("Frames: {}.",
                          fmt::join(cause->frames.begin() + static_cast<std::ptrdiff_t>(first),
                                    cause->frames.end(), " > ")));
  }
  if (answer.prediction) {
    text += ComparedText(answer) + "\n";
    const RunFailure* cause = log.Cause();
    const bool host = cause != nullptr && cause->kind != FailureKind::kGpuMemory;
    if (!host) paragraph(PeakText(answer));
    if (cause == nullptr) paragraph(StepText(answer));
  }
  if (!answer.prediction && log.Cause() == nullptr) paragraph(MeasuredText(log));
  for (const std::string& finding : answer.findings) paragraph(finding);
  if (answer.prediction) text += ChangesText(answer, columns);
  text += "\n";
  std::vector<std::string> used;
  for (const UsedFact& fact : answer.used) {
    used.push_back(fmt::format("{} {} ({}{})", fact.field, fact.text, fact.from,
                               fact.line > 0 ? fmt::format(", line {}", fact.line) : ""));
  }
  if (!used.empty()) paragraph(fmt::format("From the log: {}.", fmt::join(used, "; ")));
  for (const std::string& conflict : answer.conflicts) {
    paragraph(fmt::format("Options win: {}.", conflict));
  }
  if (answer.prediction && !answer.assumed.empty()) {
    paragraph(fmt::format("Assumed: {}.", fmt::join(answer.assumed, ", ")));
  }
  if (answer.prediction) {
    for (const std::string& note : answer.notes) paragraph(note);
    if (answer.times_known) paragraph(answer.prediction->margin);
  }
  if (!answer.added.empty()) paragraph(fmt::format("Added to {}.", answer.added));
  return text;
}

std::string WhyJson(const WhyAnswer& answer) {
  const RunLog& log = answer.log;
  const RunFailure* cause = log.Cause();
  WhyJsonValue used = WhyJsonValue::array(), missing = WhyJsonValue::array(),
               changes = WhyJsonValue::array();
  for (const UsedFact& fact : answer.used) {
    used.push_back({{"field", Plain(fact.field)},
                    {"value", fact.text},
                    {"from", fact.from},
                    {"line", fact.line > 0 ? WhyJsonValue(fact.line) : WhyJsonValue(nullptr)}});
  }
  for (const MissingField& field : answer.missing) {
    missing.push_back({{"field", Plain(field.field)},
                       {"what", field.what},
                       {"hint", field.hint.empty() ? WhyJsonValue() : WhyJsonValue(field.hint)}});
  }
  for (const WhyChange& change : answer.changes) {
    WhyJsonValue choice =
        RuntimeChoiceJson(change.estimate, RecipeOf(answer.prediction->resolved->inputs()));
    if (!answer.times_known) choice["step_seconds"] = choice["tokens_per_second"] = nullptr;
    changes.push_back({{"options", change.options},
                       {"elsewhere", change.elsewhere},
                       {"choice", std::move(choice)}});
  }
  const WhyJsonValue json = {
      {"schema", "zeroplan.why/1"},
      {"log",
       {{"source", log.source},
        {"lines", log.lines},
        {"programs", log.programs},
        {"task", log.task.empty() ? WhyJsonValue() : WhyJsonValue(log.task)},
        {"finished", log.finished},
        {"steps_seen", log.steps_seen},
        {"last_seen", log.last_seen.empty() ? WhyJsonValue() : WhyJsonValue(log.last_seen)},
        {"failure", cause == nullptr ? WhyJsonValue() : FailureJson(*cause)},
        {"measured",
         {{"step_seconds", FigureJson(log.step_seconds)},
          {"samples_per_second", FigureJson(log.samples_per_second)},
          {"run_samples_per_second", FigureJson(log.run_samples_per_second)},
          {"tokens_per_second_of_gpu", FigureJson(log.tokens_per_second_of_gpu)},
          {"allocated", FigureJson(log.allocated)},
          {"reserved", FigureJson(log.reserved)},
          {"host_used", FigureJson(log.host_used)},
          {"host_total", FigureJson(log.host_total)},
          {"cache_flushes", log.cache_flushes}}}}},
      {"used", std::move(used)},
      {"conflicts", answer.conflicts},
      {"missing", std::move(missing)},
      {"assumed", answer.assumed},
      {"prediction", PredictionJson(answer)},
      {"why_no_prediction",
       answer.why_no_prediction.empty() ? WhyJsonValue() : WhyJsonValue(answer.why_no_prediction)},
      {"findings", answer.findings},
      {"changes", std::move(changes)},
      {"notes", answer.notes}};
  return json.dump(2, ' ', false, WhyJsonValue::error_handler_t::replace) + '\n';
}

}  // namespace zeroplan
