#include "planner/why/run_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/strings.h"
#include "planner/why/known_ends.h"
#include "planner/why/log_facts.h"
#include "planner/why/log_rates.h"
#include "planner/why/log_text.h"
#include "planner/why/run_tasks.h"
#include "planner/why/traceback.h"

namespace zeroplan {
namespace {

constexpr size_t kLongestLine = 1 << 16;  // what is beyond is passed over
constexpr size_t kLongestMessage = 600;
constexpr size_t kMostFailures = 64, kMostFrames = 400, kMostMemoryLines = 64;

struct PhaseNames {
  std::string_view name, text;
};
constexpr auto kPhaseNames = std::to_array<PhaseNames>({{"", ""},
                                                        {"loading", "loading the model"},
                                                        {"resume", "loading a checkpoint"},
                                                        {"init", "initialisation"},
                                                        {"forward", "the forward pass"},
                                                        {"loss", "logits and loss"},
                                                        {"backward", "the backward pass"},
                                                        {"step", "the optimizer step"},
                                                        {"evaluation", "evaluation"},
                                                        {"saving", "saving"},
                                                        {"gather", "gathering all parameters"}});

void Most(std::optional<LogFigure>& figure, double value, int64_t line, std::string_view from) {
  if (figure && figure->value >= value) return;
  figure = {value, line, std::string(from)};
}

}  // namespace

std::string_view RunPhaseName(RunPhase phase) {
  return kPhaseNames[static_cast<size_t>(phase)].name;
}
std::string_view RunPhaseText(RunPhase phase) {
  return kPhaseNames[static_cast<size_t>(phase)].text;
}

std::optional<uint64_t> OomMessage::Unallocated() const {
  if (!reserved || !allocated || *reserved < *allocated) return std::nullopt;
  return *reserved - *allocated;
}

const LogFact* RunLog::Fact(std::string_view field) const {
  const auto found = facts.find(std::string(field));
  return found == facts.end() ? nullptr : &found->second;
}

bool RunLog::WentOn(const RunFailure& failure) const {
  // Other ranks may still tell of steps that they had begun.
  constexpr int64_t kOnTheWay = 2;
  return steps_told > failure.steps_before + kOnTheWay;
}

const RunFailure* RunLog::Cause() const {
  if (finished) return nullptr;
  // Memory first, whoever noticed what before; a timeout follows from a rank that died, and what
  // launchers kill from either.
  for (const FailureKind kind :
       {FailureKind::kGpuMemory, FailureKind::kHostMemory, FailureKind::kHardware,
        FailureKind::kScheduler, FailureKind::kError, FailureKind::kCrashed, FailureKind::kKilled,
        FailureKind::kTimeout, FailureKind::kAborted, FailureKind::kInterrupted,
        FailureKind::kExited}) {
    for (const RunFailure& failure : failures) {
      if (failure.kind == kind && !WentOn(failure)) return &failure;
    }
  }
  return nullptr;
}

bool RunLog::HasAnything() const {
  return !facts.empty() || !config.empty() || !model_config.empty() || !failures.empty() ||
         !programs.empty() || !memory_lines.empty() || step_seconds || samples_per_second ||
         run_samples_per_second || tokens_per_second_of_gpu || allocated || reserved ||
         cache_flushes > 0 || steps_seen > 0 || all_params > 0;
}

struct LogReader::State {
  explicit State(std::string source) : facts(&log) { log.source = std::move(source); }

  void Piece(std::string_view raw);
  void Frames(const std::string& line);
  void Frame(PythonFrame frame);
  void Failures(const std::string& line);
  void Progress(const std::string& line, bool nested);
  void Figures(const std::string& line);
  void Parameters(const std::string& line);
  void Memory(const std::string& line);
  void Fail(FailureKind kind, std::string_view message, std::optional<int> rank,
            const KnownEnd& end = {});
  void Shortage(RunFailure& failure, std::string_view message);
  void Step(int64_t done);
  void LastError(const std::string& line);

  RunLog log;
  FactReader facts;
  std::string pending;
  bool line_open = false;  // what comes stands on the line that log.lines counts last
  std::vector<PythonFrame> frames;
  std::vector<std::string> codes;
  std::string broken_file;  // of a frame whose function stands on the next line
  bool in_traceback = false;
  bool evaluating = false;
  int64_t last_step = 0;
  int64_t ignored_line = -1;          // of "Exception ignored in", whose traceback follows
  bool ignored = false;               // the traceback that is read is of one
  std::map<int64_t, StepRates> bars;  // of each total
  StepRates titan_tps, tune_tps, samples, iterations, swift_seconds;
  std::string memory_label, last_label;
};

LogReader::LogReader(std::string source) : state_(std::make_unique<State>(std::move(source))) {}
LogReader::~LogReader() = default;

void LogReader::Take(std::string_view bytes) {
  State& state = *state_;
  state.log.bytes += bytes.size();
  while (!bytes.empty()) {
    // A progress bar draws itself anew behind carriage returns.
    const size_t end = bytes.find_first_of("\n\r");
    const std::string_view part = bytes.substr(0, end);
    if (state.pending.size() < kLongestLine) {
      state.pending.append(part.substr(0, kLongestLine - state.pending.size()));
    }
    if (end == std::string_view::npos) return;
    if (!state.line_open) ++state.log.lines;
    state.line_open = bytes[end] == '\r';
    state.Piece(state.pending);
    state.pending.clear();
    bytes.remove_prefix(end + 1);
  }
}

RunLog LogReader::Finish() {
  State& state = *state_;
  if (!state.pending.empty()) {
    if (!state.line_open) ++state.log.lines;
    state.Piece(state.pending);
  }
  RunLog& log = state.log;
  state.facts.Finish();
  // Trainer's bar counts optimizer steps; a bar of other code may count micro-steps.
  const bool trainer = std::find(log.programs.begin(), log.programs.end(),
                                 "transformers Trainer") != log.programs.end();
  if (trainer && !state.bars.empty()) {
    const auto longest = state.bars.rbegin();
    log.step_seconds = longest->second.Settled("the progress bar");
  }
  if (!log.step_seconds) log.step_seconds = state.swift_seconds.Settled("train_speed");
  if (!log.step_seconds) {
    log.step_seconds = state.iterations.Settled("elapsed time per iteration");
  }
  if (auto rate = state.titan_tps.Settled("tps")) log.tokens_per_second_of_gpu = std::move(rate);
  if (auto rate = state.tune_tps.Settled("tokens_per_second_per_gpu")) {
    log.tokens_per_second_of_gpu = std::move(rate);
  }
  if (!log.samples_per_second) log.samples_per_second = state.samples.Settled("SamplesPerSec");
  const RunFailure* cause = log.Cause();
  if (cause == nullptr ? !log.finished : cause->frames.empty()) log.last_seen = state.last_label;
  return std::move(log);
}

void LogReader::State::Piece(std::string_view raw) {
  if (raw.empty()) return;
  if (raw.find('\0') != std::string_view::npos) log.has_nul = true;
  // tqdm draws a bar below another one and moves back up.
  const bool nested = HasPart(raw, "\x1b[A");
  const std::string line = WithoutControls(raw);
  if (line.empty()) return;
  if (const std::optional<int> rank = RankOf(line)) {
    log.highest_rank = std::max(log.highest_rank, *rank);
  }
  Progress(line, nested);
  Frames(line);
  const size_t failures = log.failures.size();
  Failures(line);
  if (log.failures.size() == failures) LastError(line);
  Figures(line);
  Memory(line);
  facts.Line(line, log.lines);
}

void LogReader::State::Frames(const std::string& line) {
  if (HasPart(line, "Exception ignored in")) ignored_line = log.lines;
  if (HasPart(line, "Traceback (most recent call last)")) {
    in_traceback = true;
    ignored = log.lines == ignored_line + 1;
  }
  const std::string broken = std::exchange(broken_file, {});
  if (!broken.empty()) {
    if (std::optional<PythonFrame> frame = BrokenFrame(line, broken)) Frame(*std::move(frame));
  }
  if (HasPart(line, ".py")) {
    std::vector<PythonFrame> found = FramesIn(line);
    if (found.empty()) broken_file = BrokenFrameFile(line);
    for (PythonFrame& frame : found) Frame(std::move(frame));
  } else if (in_traceback && HasPart(line, "  ") && codes.size() < kMostFrames) {
    codes.emplace_back(Trimmed(line));
  }
}

void LogReader::State::Frame(PythonFrame frame) {
  if (frames.size() >= kMostFrames) return;
  for (const FrameFact* fact : FactsOf(frame)) {
    facts.Add(fact->field, std::string(fact->text), log.lines,
              fmt::format("frames of {}", fact->path.empty() ? fact->function : fact->path),
              fact->text == "liger" ? kFollows : kFromFrames);
  }
  if (HasPart(frame.file, "fully_sharded_data_parallel.py")) log.fsdp1 = true;
  if (HasPart(frame.file, "/peft/")) log.adapters = true;
  if (HasPart(frame.file, "transformers/trainer.py")) facts.Program("transformers Trainer");
  facts.Task(TaskOfFile(frame.file));
  const bool tensor = frame.function == "backward" && HasPart(frame.file, "torch/_tensor.py");
  const bool engine = std::any_of(frames.begin(), frames.end(), [](const PythonFrame& above) {
    return HasPart(above.file, "deepspeed/");
  });
  if (tensor && !engine && log.plain_backward_line == 0) log.plain_backward_line = log.lines;
  frames.push_back(std::move(frame));
}

// Reads the sizes of a shortage's message, and what its traceback tells.
void LogReader::State::Shortage(RunFailure& failure, std::string_view message) {
  failure.gpu = ShortageIn(message);
  failure.of_list = ListOperation(frames, codes);
  if (ForwardWithoutWrapper(frames) && log.plain_forward_line == 0) {
    log.plain_forward_line = log.lines;
  }
}

void LogReader::State::Fail(FailureKind kind, std::string_view message, std::optional<int> rank,
                            const KnownEnd& end) {
  const bool of_traceback = kind == FailureKind::kGpuMemory || kind == FailureKind::kHostMemory ||
                            kind == FailureKind::kError || kind == FailureKind::kInterrupted;
  if (of_traceback && std::exchange(ignored, false)) {
    frames.clear();
    codes.clear();
    in_traceback = false;
    return;
  }
  RunFailure failure;
  failure.kind = kind;
  failure.steps_before = log.steps_told;
  failure.line = log.lines;
  failure.rank = rank;
  failure.message = PrintableText(message, kLongestMessage);
  failure.phase = PhaseOfFrames(frames, codes);
  failure.recomputing = failure.phase == RunPhase::kBackward && Recomputes(frames);
  for (const PythonFrame& frame : frames) {
    if (!OnlyCallsOn(frame.function)) failure.frames.push_back(FrameText(frame));
  }
  constexpr size_t kShown = 12;
  if (failure.frames.size() > kShown) {
    failure.frames.erase(failure.frames.begin(), failure.frames.end() - kShown);
  }
  failure.what = end.what;
  failure.way_out = kind == FailureKind::kError ? WayOutOfError(message) : end.way_out;
  // A process that ended without a traceback was at what it printed last.
  if (failure.phase == RunPhase::kUnknown && frames.empty()) {
    failure.phase = PhaseOfLabel(last_label);
  }
  if (kind == FailureKind::kGpuMemory) Shortage(failure, message);
  if (kind == FailureKind::kHostMemory) {
    failure.host_wanted = SizeAfter(message, "tried to allocate ");
  }
  frames.clear();
  codes.clear();
  in_traceback = false;
  log.finished = false;
  const bool known =
      std::any_of(log.failures.begin(), log.failures.end(), [&](const RunFailure& f) {
        return f.kind == kind && f.rank == rank && f.steps_before == log.steps_told;
      });
  if (log.failures.size() == kMostFailures && log.WentOn(log.failures.front())) {
    log.failures.erase(log.failures.begin());
  }
  if (!known && log.failures.size() < kMostFailures) log.failures.push_back(std::move(failure));
}

void LogReader::State::Failures(const std::string& line) {
  const auto has = [&](std::string_view part) { return HasPart(line, part); };
  const auto from = [&](std::string_view part) {
    return std::string_view(line).substr(line.find(part));
  };
  const std::optional<int> rank = RankOf(line);
  for (const std::string_view shortage :
       {"CUDA out of memory. Tried to allocate", "HIP out of memory. Tried to allocate",
        "XPU out of memory. Tried to allocate"}) {
    if (!has(shortage)) continue;
    // A line of source that raises it is no message.
    if (has("raise ") || has("(\"" + std::string(shortage.substr(0, 8)))) return;
    Fail(FailureKind::kGpuMemory, from(shortage), rank);
    return;
  }
  for (const std::string_view driver :
       {"CUDA error: out of memory", "HIP error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
        "Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'"}) {
    if (!has(driver)) continue;
    // The driver says the same where a host has no more memory to page-lock.
    const bool pins = std::any_of(codes.begin(), codes.end(), [](const std::string& code) {
      return HasPart(code, "pin_memory");
    });
    Fail(pins ? FailureKind::kHostMemory : FailureKind::kGpuMemory, Trimmed(line), rank);
    return;
  }
  if (has("DefaultCPUAllocator: ") && has("tried to allocate")) {
    Fail(FailureKind::kHostMemory, from("DefaultCPUAllocator"), rank);
    return;
  }
  if (has("[Errno 12] Cannot allocate memory") && !has("raise ")) {
    Fail(FailureKind::kHostMemory, from("[Errno 12]"), rank);
    return;
  }
  if (has("Watchdog caught collective operation timeout")) {
    Fail(FailureKind::kTimeout, from("Watchdog caught"), rank);
    return;
  }
  const std::string_view text = Trimmed(line);
  if (const std::optional<KnownEnd> end = EndIn(line)) {
    // An exit code alone adds nothing to a failure that is known.
    const bool known = end->kind == FailureKind::kExited && log.Cause() != nullptr;
    if (!known) Fail(end->kind, text, rank, *end);
    return;
  }
  // "[rank0]: RuntimeError: ..." and "gpu-q-49: RuntimeError: ..." too.
  std::string_view message = text;
  size_t name = ExceptionName(message);
  const size_t prefix = message.find(": ");
  if (name == 0 && prefix < 48) {
    message = Trimmed(message.substr(prefix + 2));
    name = ExceptionName(message);
  }
  if (name == 0 || !(in_traceback || !frames.empty())) return;
  if (IsConsequence(message)) {
    frames.clear();
    codes.clear();
    in_traceback = false;
    return;
  }
  const bool interrupted = HasPart(message.substr(0, name), "Interrupt");
  const bool memory = message.substr(0, name) == "MemoryError";
  Fail(interrupted ? FailureKind::kInterrupted
       : memory    ? FailureKind::kHostMemory
                   : FailureKind::kError,
       message, rank);
}

void LogReader::State::LastError(const std::string& line) {
  const std::string low = LowerAscii(std::string_view(line).substr(0, kLongestMessage));
  for (const std::string_view word : {"error", "fatal", "failed", "abort", "exception"}) {
    if (!HasPart(low, word)) continue;
    log.last_error = PrintableText(Trimmed(line), 160);
    log.last_error_line = log.lines;
    return;
  }
}

void LogReader::State::Step(int64_t done) {
  if (done > last_step) ++log.steps_told;
  last_step = done;
  log.steps_seen = std::max(log.steps_seen, done);
}

void LogReader::State::Progress(const std::string& line, bool nested) {
  if (HasPart(line, "***** Running Evaluation")) {
    evaluating = true;
    last_label = "evaluation";
  }
  if (HasPart(line, "eval_runtime")) {
    evaluating = false;
    last_label = "training";
  }
  if (HasPart(line, "***** Running training")) last_label = "training";
  if (HasPart(line, "init_distributed] ")) last_label = "initializing torch.distributed";
  if (HasPart(line, "Instantiating model and loading checkpoint")) {
    last_label = HasPart(line, " took ") ? "the end of loading" : "loading the model";
  }
  for (const std::string_view saving :
       {"Saving model checkpoint to", "is about to be saved", "] Saving ", "Saving checkpoint"}) {
    if (HasPart(line, saving)) last_label = "saving a checkpoint";
  }
  const std::optional<ProgressBar> bar = BarIn(line);
  if (!bar) return;
  if (!bar->label.empty() && bar->label.size() < 80) {
    last_label = fmt::format("{} {}/{}", PrintableText(bar->label, 80), bar->done, bar->total);
    return;
  }
  if (nested || evaluating) return;
  last_label = fmt::format("step {}/{}", bar->done, bar->total);
  Step(bar->done);
  if (bar->seconds && bar->done > 1) bars[bar->total].Add(*bar->seconds, log.lines);
}

// Counts of a model's parameters, by PEFT, llama-recipes and torchtitan.
void LogReader::State::Parameters(const std::string& line) {
  const auto count = [&](std::optional<int64_t> value) {
    if (!value || *value <= 0 || log.all_params > 0) return;
    log.all_params = *value;
    log.params_line = log.lines;
  };
  if (HasPart(line, "trainable params: ")) {
    const std::optional<int64_t> trained = CountAfter(line, "trainable params: ");
    const std::optional<int64_t> all = CountAfter(line, "all params: ");
    if (trained && all && *trained < *all) count(*all - *trained);
  }
  if (HasPart(line, " Million params")) {
    if (const auto millions = NumberAfter(line, " has "); millions && *millions < 1e7) {
      count(std::llround(*millions * 1e6));
    }
  }
  if (HasPart(line, " total parameters")) count(CountAfter(line, " size: "));
}

void LogReader::State::Figures(const std::string& line) {
  for (const std::string_view count : {"Number of trainable parameters = ", "trainable params: "}) {
    if (const auto value = CountAfter(line, count)) log.trained_params = *value;
  }
  Parameters(line);
  const auto has = [&](std::string_view part) { return HasPart(line, part); };
  const auto set = [&](std::optional<LogFigure>& figure, std::string_view key) {
    if (!has(key)) return;
    if (const auto value = NumberAfter(line, key); value && *value > 0) {
      if (key.ends_with('=')) key.remove_suffix(1);
      figure = {*value, log.lines, std::string(Trimmed(key))};
    }
  };
  if (has("SamplesPerSec=")) {
    if (has("RunningAvgSamplesPerSec=")) {
      set(log.samples_per_second, "RunningAvgSamplesPerSec=");
    } else if (const auto rate = NumberAfter(line, "SamplesPerSec="); rate && *rate > 0) {
      samples.Add(*rate, log.lines);
    }
    if (const auto step = CountAfter(line, "global_step=")) Step(*step);
    if (const auto most = GibibytesAfter(line, "MaxMemAllocated=")) {
      Most(log.allocated, static_cast<double>(*most), log.lines, "MaxMemAllocated");
    }
  }
  if (has("train_samples_per_second'") || has("train_samples_per_second\"")) {
    const size_t at = line.find("train_samples_per_second");
    set(log.run_samples_per_second, std::string_view(line).substr(at, 25));
    log.finished = true;
    facts.Program("transformers Trainer");
  }
  if (has("{'loss': ") && has("'learning_rate': ")) facts.Program("transformers Trainer");
  if (has("elapsed time per iteration (ms): ")) {
    if (const auto ms = NumberAfter(line, "elapsed time per iteration (ms): ")) {
      iterations.Add(*ms / 1e3, log.lines);
    }
    if (const auto step = CountAfter(line, "iteration ")) Step(*step);
  }
  // ms-swift's, in the Trainer's dictionary.
  if (const auto rate = NumberAfter(line, "train_speed(iter/s)"); rate && *rate > 0) {
    swift_seconds.Add(1 / *rate, log.lines);
  }
  if (const auto rate = NumberAfter(line, "train_speed(s/it)"); rate && *rate > 0) {
    swift_seconds.Add(*rate, log.lines);
  }
  if (has("memory(GiB)")) {
    facts.Program("ms-swift");
    if (const auto memory = NumberAfter(line, "memory(GiB)"); memory && *memory < 1e6) {
      Most(log.reserved, *memory * (1ull << 30), log.lines, "memory(GiB)");
    }
    if (const auto step = CountAfter(line, "global_step/max_steps")) Step(*step);
  }
  if (has("tps: ") && has("step: ") && has("memory: ")) {
    if (const auto tps = NumberAfter(line, "tps: ")) titan_tps.Add(*tps, log.lines);
    if (const auto memory = SizeAfter(line, "memory: ")) {
      Most(log.reserved, static_cast<double>(*memory), log.lines, "memory");
    }
    if (const auto step = CountAfter(line, "step: ")) Step(*step);
    facts.Add("⟦code⟧", "torchtitan", log.lines, "torchtitan's lines of steps", kStated);
  }
  if (has("tokens_per_second_per_gpu:")) {
    if (const auto tps = NumberAfter(line, "tokens_per_second_per_gpu:")) {
      tune_tps.Add(*tps, log.lines);
    }
    constexpr double kGiB = 1ull << 30;
    if (const auto memory = NumberAfter(line, "peak_memory_active:")) {
      Most(log.allocated, *memory * kGiB, log.lines, "peak_memory_active");
    }
    if (const auto memory = NumberAfter(line, "peak_memory_reserved:")) {
      Most(log.reserved, *memory * kGiB, log.lines, "peak_memory_reserved");
    }
  }
  if (has("allocator cache flushes since last step")) {
    if (log.cache_flushes++ == 0) log.cache_flush_line = log.lines;
  }
  if (has("Setting OMP_NUM_THREADS environment variable for each process to be 1")) {
    log.one_thread_line = log.lines;
  }
  if (has("Training completed. Do not forget to share your model")) log.finished = true;
}

void LogReader::State::Memory(const std::string& line) {
  if (const size_t at = line.find("see_memory_usage]"); at != std::string::npos) {
    const std::string_view text = Trimmed(std::string_view(line).substr(at + 17));
    if (text.starts_with("CPU Virtual Memory")) {
      const auto used = GibibytesAfter(text, "used = ");
      const auto percent = NumberAfter(text, "percent = ");
      if (!used || !percent || !(*percent >= 1 && *percent <= 100)) return;
      const auto bytes = static_cast<double>(*used);
      if (log.host_used && log.host_used->value >= bytes) return;
      log.host_used = {bytes, log.lines, "CPU Virtual Memory"};
      log.host_total = {bytes / (*percent / 100), log.lines, "CPU Virtual Memory"};
      return;
    }
    if (!text.starts_with("MA ")) {
      memory_label = PrintableText(text, 80);
      last_label = memory_label;
      return;
    }
    const auto now = GibibytesAfter(text, "MA "), most = GibibytesAfter(text, "Max_MA ");
    const auto cached = GibibytesAfter(text, "CA ");
    if (!now || !most || !cached) return;
    Most(log.allocated, static_cast<double>(*most), log.lines, "Max_MA");
    Most(log.reserved, static_cast<double>(*cached), log.lines, "CA");
    if (log.memory_lines.size() < kMostMemoryLines) {
      log.memory_lines.push_back({log.lines, memory_label, *now, *most, *cached});
    }
    return;
  }
  // torch.cuda.memory_summary(): current and peak.
  const auto peak_of = [&](std::string_view name) -> std::optional<uint64_t> {
    const std::string_view text = Trimmed(line);
    if (!text.starts_with("|") || !Trimmed(text.substr(1)).starts_with(name)) return std::nullopt;
    const size_t current = text.find('|', 1);
    const size_t peak = current == text.npos ? text.npos : text.find('|', current + 1);
    if (peak == text.npos) return std::nullopt;
    const std::string_view cell = text.substr(peak + 1, text.find('|', peak + 1) - peak - 1);
    const auto value = NumberAfter(cell, "");
    constexpr double kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024;
    if (!value) return std::nullopt;
    const double unit = HasPart(cell, "GiB")                           ? kGiB
                        : HasPart(cell, "MiB") || HasPart(cell, " MB") ? kMiB
                        : HasPart(cell, "KiB") || HasPart(cell, " KB") ? kKiB
                                                                       : 1;
    return static_cast<uint64_t>(*value * unit);
  };
  if (const auto peak = peak_of("Allocated memory")) {
    Most(log.allocated, static_cast<double>(*peak), log.lines, "memory_summary");
  }
  if (const auto peak = peak_of("GPU reserved memory")) {
    Most(log.reserved, static_cast<double>(*peak), log.lines, "memory_summary");
  }
  if (HasPart(line, "cudaMalloc retries: ")) {
    if (const auto retries = CountAfter(line, "cudaMalloc retries: "); retries && *retries > 0) {
      log.cache_flushes += *retries;
      log.cache_flush_line = log.lines;
    }
  }
}

RunLog ParseLog(std::string_view text, std::string source) {
  LogReader reader(std::move(source));
  reader.Take(text);
  return reader.Finish();
}

RunLog ReadRunLog(const std::string& file) {
  const std::string path = file == "-" ? "/dev/stdin" : file;
  const auto fail = [&](int error) {
    ThrowUsage("{}: cannot be read ({}); name a readable log, or - for stdin", file,
               std::strerror(error));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail(errno);
  LogReader reader(file);
  std::string chunk(1 << 20, '\0');
  for (;;) {
    const ssize_t got = ::read(fd.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno);
    if (got == 0) break;
    reader.Take(std::string_view(chunk).substr(0, static_cast<size_t>(got)));
  }
  return reader.Finish();
}

}  // namespace zeroplan
