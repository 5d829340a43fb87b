#include "cli/train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/base/log.h"
#include "core/base/units.h"
#include "executor/train/bad_steps.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

constexpr int kBarWidth = 24;
constexpr int64_t kLinesOfARun = 20;  // where stderr is no terminal

std::string Duration(double seconds) {
  const auto s = std::llround(seconds);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}m{:02}s", s / 60, s % 60);
}

// "+1.5%": how far `measured` lies from what was predicted.
std::string Difference(double measured, double predicted) {
  return fmt::format("{:+.1f}%", 100 * (measured / predicted - 1));
}

}  // namespace

std::string StepText(const StepReport& report, int64_t steps,
                     const std::optional<uint64_t>& planned_gpu_bytes) {
  const StepState& state = report.state;
  std::string text =
      fmt::format("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tok/s", report.step,
                  steps, state.loss_sum, state.grad_norm, state.lr, report.tokens_per_second);
  if (report.mfu) text += fmt::format("  MFU {:.1f}%", 100 * *report.mfu);
  if (const auto& waits = report.times.exposed_comm_seconds) {
    text += fmt::format("  comm {:.1f} ms", 1e3 * *waits);
  }
  if (const auto& used = report.device_used_bytes) {
    text += fmt::format("  GPU {}", FormatBytes(*used));
    if (planned_gpu_bytes) text += fmt::format(" of {}", FormatBytes(*planned_gpu_bytes));
  }
  if (state.skip != kTaken) {
    text += fmt::format("  skipped: {}", SkipReasonText(state.skip));
    if (state.loss_scale != 1) text += fmt::format(" (loss scale now {:g})", state.loss_scale);
  }
  return text;
}

Progress::Progress(const RunFacts& facts, MetricsFile* metrics)
    : facts_(facts), metrics_(metrics), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::Line(const std::string& text) {
  if (bar_shown_) std::fputs("\r\033[K", stderr);
  bar_shown_ = false;
  WriteStderr(text + "\n");
}

std::string Progress::TextOf(const StepReport& report) const {
  return StepText(
      report, steps_,
      facts_.prediction ? std::optional(facts_.prediction->footprint.gpu_total()) : std::nullopt);
}

void Progress::OnStart(const StartReport& report) {
  steps_ = report.steps;
  if (metrics_ != nullptr) metrics_->Start(facts_, report.done);
  const BatchSpec& batch = facts_.program.setup.batch;
  Line(fmt::format(
      "training {} ({} parameters) on {} rank{}: {} sequences of {} tokens a step, {} samples "
      "an epoch",
      facts_.program.model.name, FormatCount(facts_.program.model.ParamCount()), batch.world_size,
      batch.world_size == 1 ? "" : "s", batch.global_batch(), batch.seq_len, report.train_samples));
  Line(fmt::format("planned memory a rank: device {}, pinned {}, pageable {}, disk {}",
                   FormatBytes(facts_.memory.arena(Space::kDevice)),
                   FormatBytes(facts_.memory.arena(Space::kPinned)),
                   FormatBytes(facts_.memory.arena(Space::kPageable)),
                   FormatBytes(facts_.memory.arena(Space::kFile))));
  first_step_ = report.done;
  begin_ = std::chrono::steady_clock::now();
}

void Progress::Draw(const StepReport& report) {
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  const double left = elapsed / static_cast<double>(report.step - first_step_) *
                      static_cast<double>(steps_ - report.step);
  const auto filled = static_cast<int>(kBarWidth * report.step / std::max<int64_t>(steps_, 1));
  std::string bar(static_cast<size_t>(std::clamp(filled, 0, kBarWidth)), '#');
  bar.resize(kBarWidth, '.');
  WriteStderr(fmt::format("\r\033[K[{}] {}  ETA {}", bar, TextOf(report), Duration(left)));
  bar_shown_ = true;
}

void Progress::OnStep(const StepReport& report) {
  if (metrics_ != nullptr) metrics_->Step(report);
  if (terminal_) {
    Draw(report);
    return;
  }
  const int64_t every = std::max<int64_t>(1, steps_ / kLinesOfARun);
  const bool worth_a_line = report.step == first_step_ + 1 || report.step % every == 0 ||
                            report.step == steps_ || report.state.skip != kTaken;
  if (worth_a_line) Line(TextOf(report));
}

void Progress::OnValidation(int64_t step, double loss) {
  if (metrics_ != nullptr) metrics_->Validation(step, loss);
  std::string text = fmt::format("step {}  validation loss {:.4f}", step, loss);
  if (const double perplexity = std::exp(loss); std::isfinite(perplexity)) {
    text += fmt::format("  perplexity {:.4g}", perplexity);
  }
  Line(text);
}

void Progress::OnSaved(const SaveReport& report) {
  if (metrics_ != nullptr) metrics_->Saved(report);
  std::string text = fmt::format("step {}  saved {}", report.step, report.folder.string());
  if (report.beside) {
    text += fmt::format("  (written in {} beside the steps, which stood still for {})",
                        FormatSeconds(report.write_seconds), FormatSeconds(report.stall_seconds));
  }
  Line(text);
}

void Progress::OnEnd(const RunReport& report) {
  if (metrics_ != nullptr) metrics_->End(report, facts_.program);
  Line(fmt::format("{:<10} {:>16} {:>16}", "memory", "planned bytes", "touched bytes"));
  const char* names[] = {"device", "pinned", "pageable", "disk"};
  for (size_t s = 0; s < kSpaces; ++s) {
    Line(fmt::format(
        "{:<10} {:>16} {:>16}{}", names[s], facts_.program.arena_bytes[s],
        report.high_water.touched_bytes[s],
        facts_.program.arena_bytes[s] == report.high_water.touched_bytes[s] ? "" : "  differs"));
  }
  if (facts_.prediction) HoldAgainstPrediction(report);
  if (report.skipped_steps > 0) {
    Line(fmt::format("{} of {} steps were skipped and changed nothing", report.skipped_steps,
                     report.steps));
  }
  Line(fmt::format("{} steps, median {:.3f} s a step, last loss {:.4f}", report.steps,
                   report.step_seconds_median, report.last_loss));
}

void Progress::HoldAgainstPrediction(const RunReport& report) {
  const RunPrediction& prediction = *facts_.prediction;
  Line(fmt::format("{:<10} {:>16} {:>16} {:>16}  (with {}'s figures)", "", "predicted", "measured",
                   "difference", prediction.hardware));
  if (const auto used = report.device_used_bytes) {
    // Bytes of other programs on the GPU count as used, too.
    const auto difference =
        static_cast<int64_t>(*used) - static_cast<int64_t>(prediction.footprint.gpu_total());
    Line(fmt::format("{:<10} {:>16} {:>16} {:>+16}  {}", "GPU bytes",
                     prediction.footprint.gpu_total(), *used, difference,
                     Difference(static_cast<double>(*used),
                                static_cast<double>(prediction.footprint.gpu_total()))));
  }
  if (prediction.step_seconds && report.step_seconds_median > 0) {
    const double predicted = *prediction.step_seconds, measured = report.step_seconds_median;
    Line(fmt::format("{:<10} {:>14.3f} s {:>14.3f} s {:>+14.3f} s  {}", "step", predicted, measured,
                     measured - predicted, Difference(measured, predicted)));
  }
}

}  // namespace zeroplan
