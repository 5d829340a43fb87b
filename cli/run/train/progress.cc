#include "cli/run/train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include "cli/common/output.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/stop_signals.h"
#include "core/base/terminal.h"
#include "core/base/thread.h"
#include "core/base/units.h"
#include "executor/train/run_end.h"
#include "planner/report/report_text.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// Often enough to see a run, too seldom to be felt in it.
constexpr std::chrono::milliseconds kLookEvery{500};

// Looks at the machine beside a run, in a thread of its own.
class LoadSampler {
 public:
  // Calls `seen` in its thread with each look until it is destroyed; `gpus` as of MachineMeter.
  // `seen` throws nothing.
  LoadSampler(int gpus, std::function<void(const MachineLoad&)> seen)
      : meter_(gpus), seen_(std::move(seen)) {
    const StopSignalsBlocked blocked;  // they are the run's thread's
    thread_ = StartThread("looks at the machine (--monitor, --watch)", [this] { Serve(); });
  }
  ~LoadSampler() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  LoadSampler(const LoadSampler&) = delete;
  LoadSampler& operator=(const LoadSampler&) = delete;

 private:
  void Serve() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      lock.unlock();
      seen_(meter_.Look());
      lock.lock();
      changed_.wait_for(lock, kLookEvery, [this] { return stopping_; });
    }
  }

  MachineMeter meter_;
  const std::function<void(const MachineLoad&)> seen_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::jthread thread_;  // the last: it uses the others
};

namespace {

constexpr int kBarWidth = 24;
constexpr std::chrono::milliseconds kRedrawEvery(100);
constexpr int64_t kLinesOfARun = 20;  // where there is no progress line

// "+1.5%": how far `measured` lies from what was predicted.
std::string Difference(double measured, double predicted) {
  return fmt::format("{:+.1f}%", 100 * (measured / predicted - 1));
}

std::vector<LinePart> StepLine(const StepReport& report, int64_t steps,
                               const std::optional<uint64_t>& planned_gpu_bytes) {
  const StepState& state = report.state;
  std::vector<LinePart> parts = {
      {fmt::format("step {}/{}", report.step, steps), 0},
      {fmt::format("loss {:.4f}", state.loss_sum), 0},
      {fmt::format("norm {:.3f}", state.grad_norm), 7},
      {fmt::format("lr {:.2e}", state.lr), 8},
      {fmt::format("{:.0f} tok/s", report.tokens_per_second), 2},
  };
  if (report.mfu) parts.push_back({fmt::format("MFU {:.1f}%", 100 * *report.mfu), 4});
  if (const auto& router = report.router) {
    std::string text = fmt::format("experts: most {:.1f} x mean", router->most);
    if (router->without > 0) {
      text += fmt::format(", {} of {} none", router->without, router->experts);
    }
    parts.push_back({std::move(text), 3});
  }
  if (const auto& waits = report.times.exposed_comm_seconds) {
    parts.push_back({fmt::format("comm {:.1f} ms", 1e3 * *waits), 9});
  }
  if (const auto& used = report.device_used_bytes) {
    std::string text = fmt::format("GPU {}", FormatBytes(*used));
    if (planned_gpu_bytes) text += fmt::format(" of {}", FormatBytes(*planned_gpu_bytes));
    parts.push_back({std::move(text), 5});
  }
  if (state.skip != kTaken) {
    std::string text = fmt::format("skipped: {}", NameFields(SkipReasonText(state.skip)));
    if (state.loss_scale != 1) text += fmt::format(" (loss scale now {:g})", state.loss_scale);
    parts.push_back({std::move(text), 1});
  }
  return parts;
}

}  // namespace

std::string StepText(const StepReport& report, int64_t steps,
                     const std::optional<uint64_t>& planned_gpu_bytes) {
  return JoinParts(StepLine(report, steps, planned_gpu_bytes), SIZE_MAX);
}

Progress::Progress(const RunFacts& facts, MetricsFile* metrics, const ProgressOptions& options)
    : facts_(facts), metrics_(metrics), terminal_(ProgressColumns() > 0), options_(options) {}

Progress::~Progress() { EndWatching(); }

void Progress::Line(const std::string& text) { WriteStderr(text + "\n"); }

std::optional<uint64_t> Progress::PlannedGpuBytes() const {
  if (!facts_.prediction) return std::nullopt;
  return facts_.prediction->footprint.gpu_total();
}

void Progress::OnStart(const StartReport& report) {
  steps_ = report.steps;
  if (metrics_ != nullptr) metrics_->Start(facts_, report.done);
  const BatchSpec& batch = facts_.program.setup.batch;
  Line(fmt::format(
      "training {} ({}) on {} rank{}: {} sequence{} of {} tokens a step, {} sample{} "
      "an epoch",
      facts_.program.model.name, facts_.program.model.CountsText(), batch.world_size,
      batch.world_size == 1 ? "" : "s", batch.global_batch(), batch.global_batch() == 1 ? "" : "s",
      batch.seq_len, report.train_samples, report.train_samples == 1 ? "" : "s"));
  const std::string products = Fp8Text(facts_.program.model, facts_.program.setup);
  if (!products.empty()) Line(NameFields(products));
  Line(fmt::format("planned memory a rank: device {}, pinned {}, pageable {}, disk {}",
                   FormatBytes(facts_.memory.arena(Space::kDevice)),
                   FormatBytes(facts_.memory.arena(Space::kPinned)),
                   FormatBytes(facts_.memory.arena(Space::kPageable)),
                   FormatBytes(facts_.memory.arena(Space::kFile))));
  if (report.done >= report.steps) {
    Line(fmt::format(
        "nothing is left to train: step {} is done, and the run ends with step {}; a larger "
        "--steps, or --epochs, goes on",
        report.done, report.steps));
  }
  first_step_ = report.done;
  begin_ = std::chrono::steady_clock::now();
  watched_.model = facts_.program.model.name;
  watched_.ranks = batch.world_size;
  watched_.first_step = watched_.step = report.done;
  watched_.steps = steps_;
  watched_.planned_gpu_bytes = PlannedGpuBytes();
  watched_.planned_host_bytes = PlannedHostBytes();
  if (options_.watch) screen_ = std::make_unique<FullScreen>();
  const double predicted = facts_.prediction ? facts_.prediction->step_seconds.value_or(0) : 0;
  AnswerStops(predicted);
  if (report.done < report.steps) {
    SayLength(static_cast<double>(report.steps - report.done) * predicted);
  }
  if (!options_.monitor && !options_.watch) return;
  const int gpus = facts_.prediction ? facts_.ranks_per_host : 0;
  sampler_ = std::make_unique<LoadSampler>(gpus, [this](const MachineLoad& load) {
    std::vector<std::string> lines;
    {
      const std::lock_guard lock(mutex_);
      watched_.load = load;
      if (!screen_) return;
      watched_.elapsed_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
      watched_.left_seconds = SecondsLeft(watched_.step, watched_.elapsed_seconds);
      for (const std::string& line : rank_messages_.Take()) ShowMessage(line);
      const FullScreen::Size size = screen_->size();
      lines = WatchLines(watched_, size.columns - 1, size.rows, FullScreen::Messages(4));
    }
    screen_->Draw(lines);
  });
}

uint64_t Progress::PlannedHostBytes() const {
  if (facts_.prediction) return facts_.prediction->footprint.host.total();
  // On the CPU what stands for a GPU's memory is the host's, too.
  uint64_t of_rank = 0;
  for (const Space space : {Space::kDevice, Space::kPinned, Space::kPageable}) {
    of_rank += facts_.memory.arena(space);
  }
  return of_rank * static_cast<uint64_t>(facts_.ranks_per_host);
}

double Progress::SecondsLeft(int64_t step, double elapsed) const {
  if (step <= first_step_) return 0;
  return elapsed / static_cast<double>(step - first_step_) * static_cast<double>(steps_ - step);
}

void Progress::AnswerStops(double step_seconds) const {
  if (screen_) return;
  // After what the progress line shows.
  AnswerStopsWith(fmt::format(
      "{}stops after this step{}{}; Ctrl-C again ends it at once\n", terminal_ ? "\r\x1b[K" : "",
      step_seconds > 1 ? fmt::format(", {} at most,", FormatSeconds(step_seconds)) : "",
      options_.saves ? ", and saves" : ""));
}

void Progress::SayLength(double seconds) {
  const std::time_t now = std::time(nullptr);
  const auto clock = [](std::time_t at) {
    std::tm local{};
    localtime_r(&at, &local);
    return fmt::format("{:02}:{:02}", local.tm_hour, local.tm_min);
  };
  const int64_t left = steps_ - first_step_;
  std::string text = fmt::format("{} step{}, from {} on", left, left == 1 ? "" : "s", clock(now));
  if (seconds > 0) {
    text += fmt::format("; about {} predicted, until {}{}", TimeText(seconds),
                        clock(now + static_cast<std::time_t>(seconds)),
                        seconds < 86400 ? "" : fmt::format(" in {:.0f} days", seconds / 86400));
  }
  Line(text);
  if (terminal_ && !screen_)
    ShowProgress(fmt::format("[{}] step {}/{}", std::string(kBarWidth, '.'), first_step_, steps_));
}

std::vector<LinePart> Progress::PartsOf(const StepReport& report) {
  std::vector<LinePart> parts = StepLine(report, steps_, PlannedGpuBytes());
  if (!options_.monitor) return parts;
  const std::lock_guard lock(mutex_);
  for (LinePart& part : LoadParts(watched_.load)) parts.push_back(std::move(part));
  return parts;
}

void Progress::Draw(const StepReport& report) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_draw_ && report.step != steps_) return;
  next_draw_ = now + kRedrawEvery;
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const auto filled = static_cast<int>(kBarWidth * report.step / std::max<int64_t>(steps_, 1));
  std::string bar(static_cast<size_t>(std::clamp(filled, 0, kBarWidth)), '#');
  bar.resize(kBarWidth, '.');
  std::vector<LinePart> parts = PartsOf(report);
  parts.insert(parts.begin(), {fmt::format("[{}]", bar), options_.monitor ? 16 : 6});
  parts.push_back({fmt::format("ETA {}", DurationText(SecondsLeft(report.step, elapsed))), 3});
  ShowProgress(JoinParts(parts, ProgressColumns()));
}

void Progress::Watch(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  watched_.step = report.step;
  watched_.parts = StepLine(report, steps_, PlannedGpuBytes());
  watched_.losses.Add(report.state.loss_sum);
  watched_.speeds.Add(report.tokens_per_second);
}

void Progress::EndWatching() {
  sampler_.reset();
  screen_.reset();
}

void Progress::OnStep(const StepReport& report) {
  if (metrics_ != nullptr) metrics_->Step(report);
  AnswerStops(report.step_seconds);
  if (screen_) return Watch(report);
  const int64_t every = std::max<int64_t>(1, steps_ / kLinesOfARun);
  const bool worth_a_line = report.step == first_step_ + 1 || report.step % every == 0 ||
                            report.step == steps_ || report.state.skip != kTaken;
  if (worth_a_line) Line(JoinParts(PartsOf(report), terminal_ ? ProgressColumns() : SIZE_MAX));
  if (terminal_) Draw(report);
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
  if (report.chosen && report.step < steps_) SayInterval(*report.chosen);
}

void Progress::SayInterval(const ChosenInterval& chosen) {
  // What changes little is not said again.
  constexpr double kChange = 0.2;
  const auto steps = static_cast<double>(chosen.steps), said = static_cast<double>(said_interval_);
  if (said > 0 && std::abs(steps - said) <= kChange * said) return;
  said_interval_ = chosen.steps;
  const std::string beside =
      chosen.write_seconds > 0
          ? fmt::format(", {} after which one is complete", FormatSeconds(chosen.write_seconds))
          : "";
  Line(
      fmt::format("saves from here on: every {} step{} ({}), as steps stand still {} for one{}, "
                  "and an interruption is expected once in {} (--save-every auto)",
                  chosen.steps, chosen.steps == 1 ? "" : "s", TimeText(steps * chosen.step_seconds),
                  FormatSeconds(chosen.save_seconds), beside, TimeText(1 / chosen.rate)));
}

void Progress::OnEnd(const RunReport& report) {
  EndWatching();
  AnswerStopsWith("");
  if (metrics_ != nullptr) metrics_->End(report, facts_.program);
  if (report.steps == first_step_) {
    // What only steps touch was not touched: there is nothing to hold against the plan.
    return Line(first_step_ == 0 ? "no step ran"
                                 : fmt::format("no step ran; {} before", first_step_));
  }
  SayMemory(report);
  if (facts_.prediction) HoldAgainstPrediction(report);
  if (report.skipped_steps > 0) {
    Line(fmt::format("{} of {} steps were skipped and changed nothing", report.skipped_steps,
                     report.steps));
  }
  Line(fmt::format("{} step{}, median {:.3f} s a step, last loss {:.4f}", report.steps,
                   report.steps == 1 ? "" : "s", report.step_seconds_median, report.last_loss));
}

void Progress::SayMemory(const RunReport& report) {
  const char* names[] = {"device", "pinned", "pageable", "disk"};
  const std::array<uint64_t, kSpaces>& planned = facts_.program.arena_bytes;
  const std::array<uint64_t, kSpaces>& touched = report.high_water.touched_bytes;
  if (planned == touched) {
    std::string spaces;
    for (size_t s = 0; s < kSpaces; ++s) {
      if (planned[s] == 0) continue;
      spaces += fmt::format("{}{} {}", spaces.empty() ? "" : ", ", names[s], planned[s]);
    }
    return Line(fmt::format("memory     the bytes that were planned: {}", spaces));
  }
  Line(fmt::format("{:<10} {:>16} {:>16}", "memory", "planned bytes", "touched bytes"));
  // A plan has room for saves, whether or not its run makes any.
  const bool unsaved = report.saves == 0 && !facts_.program.section(Section::kSave).empty();
  for (size_t s = 0; s < kSpaces; ++s) {
    const bool more = planned[s] > touched[s];
    Line(fmt::format("{:<10} {:>16} {:>16}{}", names[s], planned[s], touched[s],
                     planned[s] == touched[s] ? ""
                     : more && unsaved        ? "  differs: saves were planned, none was made"
                                              : "  differs"));
  }
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

namespace {

// An observer that keeps what a run reports, and passes all on to another one first.
class RunRecorder : public TrainObserver {
 public:
  RunRecorder(const RunFacts& facts, const CostModel* costs, Backend backend, PageOrigin origin,
              TrainObserver& next)
      : record_{.program = facts.program,
                .memory = facts.memory,
                .costs = costs,
                .prediction = facts.prediction,
                .backend = backend == Backend::kCpu ? "CPU" : "CUDA"},
        origin_(std::move(origin)),
        next_(next) {}

  void OnStart(const StartReport& report) override {
    next_.OnStart(report);
    record_.done = report.done;
    record_.planned_steps = report.steps;
    if (!record_.prediction) return;
    sampler_ = std::make_unique<LoadSampler>(1, [this](const MachineLoad& load) { See(load); });
  }

  void OnStep(const StepReport& report) override {
    next_.OnStep(report);
    RunStep step;
    step.step = report.step;
    if (std::isfinite(report.state.loss_sum)) step.loss = report.state.loss_sum;
    step.step_seconds = report.step_seconds;
    step.tokens_per_second = report.tokens_per_second;
    step.exposed_comm_seconds = report.times.exposed_comm_seconds;
    step.exposed_offload_seconds = report.times.exposed_offload_seconds;
    step.device_used_bytes = report.device_used_bytes;
    step.watts = WattsSinceLastStep();
    record_.steps.push_back(step);
  }

  void OnValidation(int64_t step, double loss) override {
    next_.OnValidation(step, loss);
    if (std::isfinite(loss)) record_.validations.emplace_back(step, loss);
  }

  void OnSaved(const SaveReport& report) override {
    next_.OnSaved(report);
    record_.saves.push_back(report.step);
  }

  void OnEnd(const RunReport& report) override {
    next_.OnEnd(report);
    RunEnd end;
    end.steps = report.steps;
    end.skipped_steps = report.skipped_steps;
    end.touched_bytes = report.high_water.touched_bytes;
    end.device_used_bytes = report.device_used_bytes;
    end.step_seconds_median = report.step_seconds_median;
    end.interrupted = report.interrupted;
    end.out_of_patience = report.out_of_patience;
    record_.end = end;
  }

  // The page, of what was seen so far. `failure`: what ended the run; "": nothing did.
  std::string Page(const std::string& failure = "") {
    record_.failure = failure;
    const std::lock_guard lock(mutex_);
    record_.limit_watts = limit_watts_;
    return RenderPage(RunPage(record_, origin_));
  }

 private:
  // In the sampler's thread.
  void See(const MachineLoad& load) {
    if (load.gpus.empty() || !load.gpus.front().watts) return;
    const std::lock_guard lock(mutex_);
    last_watts_ = load.gpus.front().watts;
    limit_watts_ = load.gpus.front().limit_watts;
    watts_sum_ += *last_watts_;
    ++looks_;
  }

  std::optional<double> WattsSinceLastStep() {
    const std::lock_guard lock(mutex_);
    if (looks_ == 0) return last_watts_;
    const double mean = watts_sum_ / looks_;
    watts_sum_ = 0;
    looks_ = 0;
    return mean;
  }

  RunRecord record_;
  const PageOrigin origin_;
  TrainObserver& next_;
  std::mutex mutex_;  // of what follows
  double watts_sum_ = 0;
  int looks_ = 0;  // since the last step
  std::optional<double> last_watts_, limit_watts_;
  std::unique_ptr<LoadSampler> sampler_;  // the last: its thread uses the others
};

}  // namespace

RunReport RunWithReport(const std::string& file, const PageOrigin& origin, const RunFacts& facts,
                        const CostModel* costs, Backend backend, TrainObserver& next,
                        const std::function<RunReport(TrainObserver&)>& run) {
  RunRecorder recorder(facts, costs, backend, origin, next);
  RunReport report;
  try {
    report = run(recorder);
  } catch (const Error& error) {
    try {
      WriteOutput(file, recorder.Page(error.what()));
    } catch (const Error& second) {
      LogWarning("--report {}: {}", file, second.what());
    }
    throw;
  }
  WriteOutput(file, recorder.Page());
  return report;
}

}  // namespace zeroplan
