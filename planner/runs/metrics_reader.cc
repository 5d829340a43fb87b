#include "planner/runs/metrics_reader.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/limits.h"
#include "core/base/log.h"
#include "core/base/timing.h"
#include "planner/runs/metric_fields.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// The first steps tune kernels, touch pages and connect ranks.
constexpr int64_t kWarmUpSteps = 5;

OffloadDevice DeviceNamed(const std::string& name) {
  for (const OffloadDevice device :
       {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    if (OffloadDeviceName(device) == name) return device;
  }
  ThrowUsage("\"{}\" is no device; use none, cpu or nvme", name);
}

Json ParseEvent(std::string_view line) {
  return Json::parse(line, [](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMostJsonDepth) ThrowUsage("values are nested more than {} deep", kMostJsonDepth);
    return true;
  });
}

// Refuses numbers that a conversion would truncate or wrap around.
template <typename T>
T Whole(const Json& object, const char* key) {
  const Json& value = object.at(key);
  const bool fits = value.is_number_unsigned()  ? std::in_range<T>(value.get<uint64_t>())
                    : value.is_number_integer() ? std::in_range<T>(value.get<int64_t>())
                                                : false;
  if (!fits) {
    ThrowUsage("{}: {} is not allowed; use a whole number from {} to {}", key, value.dump(),
               std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  }
  return value.get<T>();
}

// Seconds, bytes, tokens.
double Amount(const Json& event, const char* key) {
  const double value = event.at(key);
  if (!(value >= 0)) ThrowUsage("{}: {} is not allowed; at least 0", key, value);
  return value;
}

RecomputeKind KindNamed(const std::string& name, const char* key) {
  for (const RecomputeKind kind : {RecomputeKind::kNone, RecomputeKind::kSelective,
                                   RecomputeKind::kProducts, RecomputeKind::kFull}) {
    if (name == RecomputeName(kind)) return kind;
  }
  ThrowUsage("plan.{}: \"{}\" is not allowed; use none, selective, products or full", key, name);
}

// Older files lack some keys. Their defaults are the only values that those versions supported.
RecomputeConfig RecomputeOf(const Json& plan) {
  RecomputeConfig recompute;
  recompute.every = Whole<int>(plan, "checkpoint_every");
  const char* otherwise = recompute.every > 0 ? "full" : "none";
  recompute.kind = KindNamed(plan.value("checkpointing", otherwise), "checkpointing");
  recompute.above = KindNamed(plan.value("checkpointing_above", "none"), "checkpointing_above");
  recompute.offload.device = DeviceNamed(plan.value("offload_activations", "none"));
  const auto layers = [&plan](const char* key) {
    return plan.contains(key) ? Whole<int>(plan, key) : 0;
  };
  recompute.layers = layers("checkpoint_layers");
  recompute.offload.layers = layers("offload_activation_layers");
  return recompute;
}

void TakeStart(const Json& event, MeasuredRun& run) {
  const std::string schema = event.at("schema");
  if (schema != kMetricsSchema) {
    ThrowUsage("schema: \"{}\" is not allowed; use \"{}\"", schema, kMetricsSchema);
  }
  const Json& plan = event.at("plan");
  if (plan.at("backend") != "cuda") {
    ThrowUsage("plan.backend: {} is not predicted; give the metrics of runs on GPUs",
               plan.at("backend").dump());
  }
  run.model = plan.at("model");
  run.params = Whole<decltype(run.params)>(plan, "params");
  TrainSetup& setup = run.setup;
  setup.zero.stage = Whole<int>(plan, "stage");
  setup.zero.offload_optimizer.device = DeviceNamed(plan.at("offload_optimizer"));
  setup.zero.offload_optimizer.ratio = plan.at("offload_ratio");
  setup.zero.offload_param.device = DeviceNamed(plan.at("offload_param"));
  setup.recompute = RecomputeOf(plan);
  setup.batch.micro_batch = Whole<int64_t>(plan, "micro_batch");
  setup.batch.grad_accum = Whole<int64_t>(plan, "grad_accum");
  setup.batch.world_size = Whole<int>(plan, "gpus");
  setup.batch.seq_len = Whole<int64_t>(plan, "seq_len");
  if (plan.contains("sequence_ranks")) {
    setup.batch.sequence_ranks = Whole<int>(plan, "sequence_ranks");
  }
  setup.precision.dtype = ParseDtype(plan.at("dtype").get<std::string>(), "plan.dtype");
  setup.precision.grad_accum_dtype = setup.precision.dtype;
  ValidateSetup(setup, "plan");
  if (plan.contains("gpus_per_node")) {
    run.gpus_per_node = Whole<int>(plan, "gpus_per_node");
    if (*run.gpus_per_node < 1) {
      ThrowUsage("gpus_per_node: {} is not allowed; use at least 1", *run.gpus_per_node);
    }
  }
  const Json& planned = event.at("planned_bytes");
  // A GPU's total is the arena and, if it is known, the memory outside.
  const Json& gpu = planned.at("gpu");
  const auto runtime = gpu.find("runtime");
  const uint64_t outside =
      runtime != gpu.end() && !runtime->is_null() ? Whole<uint64_t>(gpu, "runtime") : 0;
  const auto total = Whole<uint64_t>(gpu, "total");
  if (outside > total) {
    ThrowUsage("planned_bytes.gpu: runtime {} is more than the total {}", outside, total);
  }
  run.planned_bytes = {total - outside, Whole<uint64_t>(planned.at("host"), "pinned"),
                       Whole<uint64_t>(planned.at("host"), "pageable"),
                       Whole<uint64_t>(planned, "nvme")};
}

// The steps of one run, as columns.
struct Steps {
  std::vector<double> seconds, tokens_per_second, exposed_comm, exposed_offload;

  void Take(const Json& event) {
    const double step_seconds = event.at("step_seconds");
    if (!(step_seconds > 0)) ThrowUsage("step_seconds: {} is not allowed; above 0", step_seconds);
    seconds.push_back(step_seconds);
    tokens_per_second.push_back(Amount(event, "tokens_per_second"));
    const auto known = [&](const char* key, std::vector<double>& values) {
      if (const auto found = event.find(key); found != event.end() && !found->is_null()) {
        values.push_back(Amount(event, key));
      }
    };
    known("exposed_comm_seconds", exposed_comm);
    known("exposed_offload_seconds", exposed_offload);
  }

  void Summarise(MeasuredRun& run) const {
    const auto count = static_cast<int64_t>(seconds.size());
    run.warm_up = std::min(kWarmUpSteps, count / 2);
    run.steps = count - run.warm_up;
    const auto median = [&](const std::vector<double>& values) {
      return Median({values.begin() + run.warm_up, values.end()});
    };
    run.step_seconds = median(seconds);
    run.tokens_per_second = median(tokens_per_second);
    if (exposed_comm.size() == seconds.size()) run.exposed_comm_seconds = median(exposed_comm);
    if (exposed_offload.size() == seconds.size()) {
      run.exposed_offload_seconds = median(exposed_offload);
    }
  }
};

}  // namespace

MeasuredRun ReadMetrics(std::string_view text, const std::string& source) {
  MeasuredRun run;
  Steps steps;
  bool started = false;
  int number = 0;
  std::string program;  // the last start event's, as JSON; "" in older files
  int program_line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    // The last line of a killed run may be incomplete.
    if (end == text.size() && !Json::accept(line)) {
      LogWarning("{}:{}: the last line is cut off and left out", source, number);
      break;
    }
    try {
      const Json event = ParseEvent(line);
      if (!event.is_object()) ThrowUsage("not a line of 'train ⟦metrics⟧': no object {{...}}");
      const std::string kind = event.at("event");
      if (kind == "start") {
        run = {};
        steps = {};
        TakeStart(event, run);
        program = event.contains("program") ? event.at("program").dump() : "";
        program_line = number;
        started = true;
      } else if (!started) {
        ThrowUsage("\"{}\" comes before any \"start\"", kind);
      } else if (kind == "step") {
        steps.Take(event);
      } else if (kind == "end") {
        const Json& used = event.at("device_used_bytes");
        if (!used.is_null()) run.device_used_bytes = Amount(event, "device_used_bytes");
      }
    } catch (const Json::exception& error) {
      ThrowUsage("{}:{}: not a line of 'train ⟦metrics⟧': {}", source, number,
                 JsonErrorText(error.what()));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}:{}: {}", source, number, error.what()));
    }
  }
  if (steps.seconds.empty()) {
    ThrowUsage("{}: holds no step; give a file that 'train ⟦metrics⟧' wrote", source);
  }
  run.source = source;
  if (!program.empty()) {
    run.program = ReadProgramRecord(program, "program", program_line, source);
    run.setup = run.program->setup;
  }
  steps.Summarise(run);
  return run;
}

}  // namespace zeroplan
