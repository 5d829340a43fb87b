// From option values to what they mean.
#include <algorithm>
#include <cmath>

#include "cli/common/common_options.h"
#include "cli/common/parse.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "hwprofiles/detect.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/overrides.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

constexpr int64_t kDefaultSeqLen = 1024;  // of a model derived from --params

void Assume(Assumptions& assumptions, std::string text) {
  assumptions.assumed.push_back(std::move(text));
}

// Batch parts from what is given. The rules are DeepSpeed's: any two of the three give the third,
// and a global batch alone means one micro-step.
void ResolveBatch(const CommonOptions& options, BatchSpec& batch, Assumptions& assumptions) {
  const auto micro = ParseOptionalWhole(options.micro_batch, "--micro-batch", 1, kMaxBatch);
  const auto accum = ParseOptionalWhole(options.grad_accum, "--grad-accum", 1, kMaxBatch);
  const auto global = ParseOptionalWhole(options.global_batch, "--global-batch", 1, kMaxBatch);
  batch.micro_batch = micro.value_or(1);
  batch.grad_accum = accum.value_or(1);
  if (!global) {
    if (!micro) Assume(assumptions, "--micro-batch 1");
    if (!accum) Assume(assumptions, "--grad-accum 1");
    return;
  }
  // With both given this checks the product; else it is what the missing part must divide into.
  const bool find_accum = micro.has_value() && !accum;
  const bool find_micro = !micro;
  const auto exact = static_cast<__int128>(batch.world_size) *
                     (find_micro ? batch.grad_accum : batch.micro_batch) *
                     (find_micro || find_accum ? 1 : batch.grad_accum);
  const std::string product = fmt::format(
      "{}--gpus {}",
      find_micro   ? (accum ? fmt::format("--grad-accum {} x ", *accum) : "")
      : find_accum ? fmt::format("--micro-batch {} x ", *micro)
                   : fmt::format("--micro-batch {} x --grad-accum {} x ", *micro, *accum),
      batch.world_size);
  if (exact > kMaxBatch) {
    ThrowUsage(
        "--global-batch: {} is less than {}, which is more than the {} sequences allowed; use "
        "smaller values",
        *global, product, kMaxBatch);
  }
  const auto known = static_cast<int64_t>(exact);
  if (!find_micro && !find_accum) {
    if (*global != known) {
      ThrowUsage("--global-batch: {} is not {}; use {}, or leave one of the three out", *global,
                 product, known);
    }
    return;
  }
  if (*global % known != 0) {
    const int64_t up = (*global / known + 1) * known;
    ThrowUsage("--global-batch: {} is not a multiple of {}; use {}", *global, product,
               up - known > 0 ? fmt::format("{} or {}", up - known, up) : std::to_string(up));
  }
  (find_micro ? batch.micro_batch : batch.grad_accum) = *global / known;
  if (find_micro && !accum) Assume(assumptions, "--grad-accum 1");
}

// Without --hw: this machine, else the default profile.
HardwareProfile AssumeHardware(Assumptions& assumptions) {
  const std::vector<DetectedGpu> gpus = QueryGpus();
  if (!gpus.empty()) {
    DetectedMachine machine = MatchMachine(gpus, QueryHost());
    if (machine.profile) {
      assumptions.detected_gpus = static_cast<int>(gpus.size());
      Assume(assumptions,
             fmt::format("--hw {} (this machine: {})", machine.profile->name, machine.found));
      return *std::move(machine.profile);
    }
    assumptions.notes.push_back(
        fmt::format("{} Planned for {}; --hw names another.", machine.note, kDefaultProfile));
  }
  Assume(assumptions, fmt::format("--hw {}", kDefaultProfile));
  return LoadProfile(std::string(kDefaultProfile));
}

[[noreturn]] void FailWithoutNetwork(const Cluster& cluster, const HardwareProfile& hardware) {
  ThrowUsage(
      "--gpus: {} GPUs, {} a node, are {} nodes, and the hardware profile {} has no network; add "
      "--network NAME|RATE (such as --network 100Gb), or set --gpus-per-node to the GPUs of one "
      "node",
      cluster.gpus, cluster.gpus_per_node, cluster.nodes(), hardware.name);
}

ReadContext ConfigContext(const CommonOptions& options, const ModelSpec& model,
                          const HardwareProfile& hardware, int gpus, int64_t seq_len) {
  ReadContext context;
  context.world_size = gpus;
  context.seq_len = seq_len;
  context.layers = model.layers;
  context.micro_batch = ParseOptionalWhole(options.micro_batch, "--micro-batch", 1, kMaxBatch);
  context.grad_accum = ParseOptionalWhole(options.grad_accum, "--grad-accum", 1, kMaxBatch);
  context.global_batch = ParseOptionalWhole(options.global_batch, "--global-batch", 1, kMaxBatch);
  if (!options.dtype.empty()) context.dtype = ParseDtype(options.dtype, "--dtype");
  context.has_bf16 = hardware.gpu.bf16;
  return context;
}

void CheckDtype(Dtype dtype, const HardwareProfile& hardware, std::string_view option) {
  if (dtype == Dtype::kBF16 && !hardware.gpu.bf16) {
    ThrowUsage("{}: bf16 is not allowed: {} has none; use fp16 or fp32", option, hardware.gpu.name);
  }
  if (dtype == Dtype::kF16 && !hardware.gpu.fp16) {
    ThrowUsage("{}: fp16 is not allowed: {} has none; use bf16 or fp32", option, hardware.gpu.name);
  }
}

}  // namespace

ModelSpec ResolveModel(const CommonOptions& options, Assumptions& assumptions) {
  if (options.model.empty() == options.params.empty()) {
    ThrowUsage("{}; give --model NAME|FILE|DIR (see 'zeroplan model list') or --params COUNT",
               options.model.empty() ? "no model" : "--model and --params are both given");
  }
  if (!options.model.empty()) return LoadModel(options.model);
  const uint64_t params = ParseCount(options.params, "--params");
  const int64_t seq_len =
      ParseOptionalWhole(options.seq_len, "--seq-len", 1, kMaxBatch).value_or(kDefaultSeqLen);
  ModelSpec model = ModelFromParams(params, seq_len);
  assumptions.notes.push_back(fmt::format(
      "Model: derived from --params {}; --model takes an exact shape.", options.params));
  return model;
}

int64_t ResolveSeqLen(const CommonOptions& options, const ModelSpec& model,
                      Assumptions& assumptions) {
  if (options.seq_len.empty()) {
    const int64_t seq_len =
        options.params.empty() ? model.positions : std::min(kDefaultSeqLen, model.positions);
    Assume(assumptions, fmt::format("--seq-len {}", seq_len));
    return seq_len;
  }
  const int64_t seq_len = ParseWhole(options.seq_len, "--seq-len", 1, kMaxBatch);
  if (seq_len > model.positions) {
    ThrowUsage("--seq-len: {} is not allowed: {} has {} positions; use at most {}", seq_len,
               model.name, model.positions, model.positions);
  }
  return seq_len;
}

HardwareProfile ResolveHardware(const CommonOptions& options, Assumptions& assumptions) {
  HardwareProfile hardware =
      options.hardware.empty() ? AssumeHardware(assumptions) : LoadProfile(options.hardware);
  if (!options.network.empty()) ApplyNetwork(hardware, options.network);
  if (!options.intra_node_bandwidth.empty()) ApplyGpuLink(hardware, options.intra_node_bandwidth);
  return hardware;
}

Cluster ResolveCluster(const CommonOptions& options, const HardwareProfile& hardware,
                       Assumptions& assumptions) {
  Cluster cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  cluster.network = options.network;
  cluster.intra_node_bandwidth = options.intra_node_bandwidth;
  const int default_gpus = assumptions.detected_gpus.value_or(1);
  if (options.gpus.empty()) Assume(assumptions, fmt::format("--gpus {}", default_gpus));
  cluster.gpus = static_cast<int>(
      ParseOptionalWhole(options.gpus, "--gpus", 1, kMaxGpus).value_or(default_gpus));
  const auto per_node = ParseOptionalWhole(options.gpus_per_node, "--gpus-per-node", 1, kMaxGpus);
  cluster.gpus_per_node = static_cast<int>(
      per_node.value_or(std::min<int64_t>(cluster.gpus, std::llround(hardware.node.gpus.value))));
  if (cluster.gpus > cluster.gpus_per_node && cluster.gpus % cluster.gpus_per_node != 0) {
    ThrowUsage(
        "--gpus: {} is not allowed with {} GPUs a node{}; use a multiple of {}, or set "
        "--gpus-per-node",
        cluster.gpus, cluster.gpus_per_node, per_node ? "" : " (the hardware profile's)",
        cluster.gpus_per_node);
  }
  if (cluster.nodes() > 1 && !hardware.network) FailWithoutNetwork(cluster, hardware);
  auto bytes = [](const std::string& text, const char* option,
                  const std::optional<Figure>& known) -> std::optional<uint64_t> {
    if (!text.empty()) return ParseBytes(text, option);
    if (known) return static_cast<uint64_t>(known->value);
    return std::nullopt;
  };
  cluster.gpu_capacity_bytes =
      *bytes(options.gpu_memory, "--gpu-memory", hardware.gpu.usable_memory);
  cluster.host_capacity_bytes =
      bytes(options.host_memory, "--host-memory", hardware.node.host_memory);
  cluster.nvme_capacity_bytes =
      bytes(options.nvme_capacity, "--nvme-capacity", hardware.node.nvme_capacity);
  cluster.runtime_bytes = RuntimeBytes(hardware, cluster.gpus);
  return cluster;
}

TrainSetup ResolveBaseSetup(const CommonOptions& options, const ModelSpec& model,
                            const HardwareProfile& hardware, int gpus, Assumptions& assumptions) {
  TrainSetup setup;
  setup.batch.world_size = gpus;
  setup.batch.seq_len = ResolveSeqLen(options, model, assumptions);
  ResolveBatch(options, setup.batch, assumptions);
  CheckMicroBatch(setup.batch.micro_batch, setup.batch.seq_len);
  Dtype dtype = DefaultDtype(hardware);
  if (options.dtype.empty()) {
    Assume(assumptions, fmt::format("--dtype {}", DtypeName(dtype)));
  } else {
    dtype = ParseDtype(options.dtype, "--dtype");
  }
  CheckDtype(dtype, hardware, "--dtype");
  setup.precision.dtype = dtype;
  setup.precision.grad_accum_dtype = dtype;
  return setup;
}

Checkpointing ParseCheckpointing(const CommonOptions& options) {
  const auto kind = static_cast<Checkpointing>(
      ParseWord(options.checkpointing, "--checkpointing", {"none", "selective", "full", "all"}));
  const bool by_segments = kind == Checkpointing::kFull || kind == Checkpointing::kAll;
  if (!options.checkpoint_every.empty() && !by_segments) {
    ThrowUsage("--checkpoint-every: {} has no effect with --checkpointing {}; leave one out",
               options.checkpoint_every, options.checkpointing);
  }
  return kind;
}

ChoiceSpace ResolveChoices(const CommonOptions& options, TrainSetup& base,
                           Assumptions& assumptions) {
  ChoiceSpace space;
  if (!options.stage.empty()) space.stages = ParseStages(options.stage, "--stage");
  if (!options.offload_optimizer.empty()) {
    space.offload_optimizer = ParseOffload(options.offload_optimizer, "--offload-optimizer");
  }
  if (!options.offload_param.empty()) {
    space.offload_param = ParseOffload(options.offload_param, "--offload-param");
  }
  if (!options.offload_ratio.empty()) {
    base.zero.offload_optimizer.ratio = ParseRatio(options.offload_ratio, "--offload-ratio");
  }
  const auto every = ParseOptionalWhole(options.checkpoint_every, "--checkpoint-every", 1, 65535);
  const RecomputeConfig full = FullRecompute(static_cast<int>(every.value_or(1)));
  if (options.checkpointing.empty()) {
    if (every) {
      space.recompute = {full};
    } else {
      Assume(assumptions, "--checkpointing none");
    }
    return space;
  }
  switch (ParseCheckpointing(options)) {
    case Checkpointing::kNone:
      space.recompute = {kNoRecompute};
      break;
    case Checkpointing::kSelective:
      space.recompute = {kSelectiveRecompute};
      break;
    case Checkpointing::kFull:
      space.recompute = {full};
      break;
    case Checkpointing::kAll:
      space.recompute = {kNoRecompute, kSelectiveRecompute, full};
  }
  return space;
}

TrainSetup ResolveConfig(const CommonOptions& options, const ModelSpec& model,
                         const HardwareProfile& hardware, int gpus, Assumptions& assumptions) {
  const std::pair<const char*, const std::string*> decided[] = {
      {"--stage", &options.stage},
      {"--offload-optimizer", &options.offload_optimizer},
      {"--offload-ratio", &options.offload_ratio},
      {"--offload-param", &options.offload_param},
      {"--checkpointing", &options.checkpointing},
      {"--checkpoint-every", &options.checkpoint_every}};
  for (const auto& [option, value] : decided) {
    if (!value->empty()) {
      ThrowUsage("{}: {} is not allowed with --config, which decides it; leave one of the two out",
                 option, *value);
    }
  }
  const int64_t seq_len = ResolveSeqLen(options, model, assumptions);
  const ReadContext context = ConfigContext(options, model, hardware, gpus, seq_len);
  ReadResult result = ReadDeepSpeedConfigFile(options.config, context);
  CheckDtype(result.setup.precision.dtype, hardware, options.config);
  CheckMicroBatch(result.setup.batch.micro_batch, result.setup.batch.seq_len);
  for (const auto* lines : {&result.warnings, &result.notes}) {
    assumptions.notes.insert(assumptions.notes.end(), lines->begin(), lines->end());
  }
  return result.setup;
}

}  // namespace zeroplan
