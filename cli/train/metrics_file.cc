#include "cli/train/metrics_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/config/setup_facts.h"
#include "planner/plan/program_record.h"
#include "planner/runs/metrics_reader.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinities: what is no number is null.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json SkipReasonName(int32_t reason) {
  switch (reason) {
    case kGradientsNotFinite:
      return "gradients";
    case kLossNotFinite:
      return "loss";
    case kLossSpike:
      return "loss_spike";
    case kGradientSpike:
      return "gradient_spike";
    case kNothingCounts:
      return "nothing_counts";
    default:
      return nullptr;
  }
}

Json BySpace(const std::array<uint64_t, kSpaces>& bytes) {
  return {{"device", bytes[0]}, {"pinned", bytes[1]}, {"pageable", bytes[2]}, {"file", bytes[3]}};
}

Json GpuBytes(const MemoryReport& memory, const std::optional<RunPrediction>& prediction) {
  Json bytes = Json::object();
  for (int c = 0; c < kMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    bytes[std::string(MemoryClassName(memory_class))] = memory.of(memory_class);
  }
  bytes["runtime"] = prediction ? Json(prediction->footprint.runtime_bytes) : Json(nullptr);
  bytes["total"] = prediction ? prediction->footprint.gpu_total() : memory.arena(Space::kDevice);
  return bytes;
}

Json PlanOf(const Program& program, int ranks_per_host) {
  const TrainSetup& setup = program.setup;
  return {{"model", program.model.name},
          {"params", program.model.ParamCount()},
          {"stage", setup.zero.stage},
          {"offload_optimizer", OffloadDeviceName(setup.zero.offload_optimizer.device)},
          {"offload_ratio", setup.zero.offload_optimizer.ratio},
          {"offload_param", OffloadDeviceName(setup.zero.offload_param.device)},
          {"checkpointing", RecomputeName(setup.recompute)},
          {"checkpoint_every", setup.recompute.every},
          {"micro_batch", setup.batch.micro_batch},
          {"grad_accum", setup.batch.grad_accum},
          {"gpus", setup.batch.world_size},
          {"gpus_per_node", ranks_per_host},
          {"seq_len", setup.batch.seq_len},
          {"dtype", DtypeName(setup.precision.dtype)},
          {"grad_accum_dtype", DtypeName(setup.precision.grad_accum_dtype)},
          {"communication_dtype", DtypeName(SentGradDtype(setup))},
          {"backend", program.backend == Backend::kCpu ? "cpu" : "cuda"}};
}

// A run that was killed may have left half a line, to which the next one would be glued.
void DropTornLine(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty() || text.back() == '\n') return;
  const size_t line = text.rfind('\n');
  std::filesystem::resize_file(path, line == std::string::npos ? 0 : line + 1, error);
  if (error) ThrowRuntime("--metrics {}: {}", path, error.message());
  LogWarning("--metrics {}: half a line at its end, of a run that was cut off, is dropped", path);
}

}  // namespace

void MetricsFile::Open() {
  if (resume_) DropTornLine(path_);
  file_.reset(std::fopen(path_.c_str(), resume_ ? "a" : "w"));
  if (!file_) ThrowRuntime("--metrics {}: {}", path_, std::strerror(errno));
}

void MetricsFile::WriteLine(const std::string& line) {
  if (!file_) return;
  const bool written = std::fputs(line.c_str(), file_.get()) >= 0 &&
                       std::fputc('\n', file_.get()) != EOF && std::fflush(file_.get()) == 0;
  if (written) return;
  LogWarning("--metrics {}: {}; the run goes on without it", path_, std::strerror(errno));
  file_.reset();
}

void MetricsFile::Start(const RunFacts& facts) {
  Open();
  const MemoryReport& memory = facts.memory;
  const std::optional<RunPrediction>& prediction = facts.prediction;
  const uint64_t pinned = memory.arena(Space::kPinned), pageable = memory.arena(Space::kPageable);
  const Json line = {
      {"event", "start"},
      {"schema", kMetricsSchema},
      {"plan", PlanOf(facts.program, facts.ranks_per_host)},
      {"planned_bytes",
       {{"gpu", GpuBytes(memory, prediction)},
        {"host", {{"pinned", pinned}, {"pageable", pageable}, {"total", pinned + pageable}}},
        {"nvme", memory.arena(Space::kFile)}}},
      {"predicted",
       {{"hardware", prediction ? Json(prediction->hardware) : Json(nullptr)},
        {"step_seconds", prediction ? OrNull(prediction->step_seconds) : Json(nullptr)}}},
      {"program", Json::parse(WriteProgramRecord(facts.program, facts.lower))}};
  WriteLine(line.dump());
}

void MetricsFile::Step(const StepReport& report) {
  const StepState& state = report.state;
  const std::optional<SlowRank>& slow = report.slowest;
  const Json line = {{"event", "step"},
                     {"step", report.step},
                     {"loss", Number(state.loss_sum)},
                     {"grad_norm", Number(static_cast<double>(state.grad_norm))},
                     {"lr", Number(static_cast<double>(state.lr))},
                     {"loss_scale", Number(static_cast<double>(state.loss_scale))},
                     {"skipped", state.skip != kTaken},
                     {"skip_reason", SkipReasonName(state.skip)},
                     {"tokens", report.tokens},
                     {"step_seconds", report.step_seconds},
                     {"tokens_per_second", report.tokens_per_second},
                     {"mfu", OrNull(report.mfu)},
                     {"exposed_comm_seconds", OrNull(report.times.exposed_comm_seconds)},
                     {"exposed_offload_seconds", OrNull(report.times.exposed_offload_seconds)},
                     {"slowest_rank", slow ? Json(slow->rank) : Json(nullptr)},
                     {"slowest_rank_seconds", slow ? Json(slow->seconds) : Json(nullptr)},
                     {"slowest_rank_share", slow ? Json(slow->share) : Json(nullptr)}};
  WriteLine(line.dump());
}

void MetricsFile::Validation(int64_t step, double loss) {
  WriteLine(Json{{"event", "validation"},
                 {"step", step},
                 {"loss", Number(loss)},
                 {"perplexity", Number(std::exp(loss))}}
                .dump());
}

void MetricsFile::Saved(const SaveReport& report) {
  WriteLine(Json{{"event", "saved"},
                 {"step", report.step},
                 {"folder", report.folder.filename().string()},
                 {"beside", report.beside},
                 {"stall_seconds", report.stall_seconds},
                 {"waited_seconds", report.waited_seconds},
                 {"write_seconds", report.write_seconds}}
                .dump());
}

void MetricsFile::End(const RunReport& report, const Program& program) {
  const Json line = {{"event", "end"},
                     {"steps", report.steps},
                     {"skipped_steps", report.skipped_steps},
                     {"saves", report.saves},
                     {"saves_waited_for", report.saves_waited_for},
                     {"high_water_bytes", BySpace(report.high_water.touched_bytes)},
                     {"planned_arena_bytes", BySpace(program.arena_bytes)},
                     {"device_used_bytes", OrNull(report.device_used_bytes)},
                     {"step_seconds_median", report.step_seconds_median}};
  WriteLine(line.dump());
}

}  // namespace zeroplan
