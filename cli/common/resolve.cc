#include "cli/common/resolve.h"

#include <algorithm>
#include <cmath>

#include "cli/common/config_context.h"
#include "cli/common/parse.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/config/deepspeed_reader.h"
#include "core/config/setup_check.h"
#include "core/config/setup_facts.h"
#include "core/families/load_model.h"
#include "core/program/attention_path.h"
#include "core/program/bucket_sizes.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/overrides.h"
#include "hwprofiles/sanity.h"
#include "machine/detect.h"
#include "machine/host_bandwidth.h"
#include "machine/kept_profile.h"
#include "planner/attention_note.h"
#include "planner/footprint.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

void Assume(Assumptions& assumptions, std::string text) {
  assumptions.assumed.push_back(std::move(text));
}

// Batch parts from what is given. The rules are DeepSpeed's: any two of the three give the third,
// and a global batch alone means one micro-step.
void ResolveBatchParts(const BatchOptions& options, BatchSpec& batch, Assumptions& assumptions) {
  const std::optional<int64_t>& micro = options.micro_batch;
  const std::optional<int64_t>& accum = options.grad_accum;
  const std::optional<int64_t>& global = options.global_batch;
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

// What 'hw measure' kept of these GPUs in this machine.
std::optional<HardwareProfile> KeptHardware(const std::vector<DetectedGpu>& gpus,
                                            Assumptions& assumptions) {
  const std::string file = KeptProfileFile(gpus.size());
  KeptProfile kept = ReadKeptProfile(file, IdentityOf(gpus));
  if (!kept.note.empty()) assumptions.notes.push_back(kept.note);
  if (!kept.profile) return std::nullopt;
  Assume(assumptions,
         fmt::format("--hw {} (this machine, as 'hw measure' kept it on {})", file, kept.when));
  return std::move(kept.profile);
}

// Without --hw: this machine, else the default profile.
HardwareProfile AssumeHardware(Assumptions& assumptions, MeasureHost measure) {
  const std::vector<DetectedGpu> gpus = QueryGpus();
  if (!gpus.empty()) {
    if (std::optional<HardwareProfile> kept = KeptHardware(gpus, assumptions)) {
      assumptions.detected_gpus = static_cast<int>(gpus.size());
      return *std::move(kept);
    }
    DetectedHost host = QueryHost();
    if (measure == MeasureHost::kYes && !MatchGpu(gpus[0]).empty()) {
      const int threads = std::max(1, host.cores);
      host.triad_bandwidth = MeasureTriad(TriadBytes(threads), threads);
    }
    DetectedMachine machine = MatchMachine(gpus, host);
    if (machine.profile) {
      assumptions.detected_gpus = static_cast<int>(gpus.size());
      Assume(assumptions,
             fmt::format("--hw {} (this machine: {})", machine.profile->name, machine.found));
      if (host.triad_bandwidth > 0) {
        assumptions.notes.push_back(
            fmt::format("Host memory of this machine: {}/s, measured now; 'zeroplan hw measure' "
                        "measures the rest and keeps it.",
                        FormatBytes(static_cast<uint64_t>(host.triad_bandwidth))));
      }
      return *std::move(machine.profile);
    }
    assumptions.notes.push_back(
        fmt::format("{} Planned for {}; --hw names another.", machine.note, kDefaultProfile));
  }
  Assume(assumptions, fmt::format("--hw {}", kDefaultProfile));
  return LoadProfile(std::string(kDefaultProfile));
}

[[noreturn]] void FailWithoutNetwork(const Cluster& cluster, const HardwareProfile& hardware) {
  // A profile of one GPU may have a neighbour with several in one machine: "2x-rtx4090".
  const std::vector<std::string> names = ProfileNames();
  const std::string machine = fmt::format("{}x-{}", cluster.gpus, hardware.name);
  const bool known = std::find(names.begin(), names.end(), machine) != names.end();
  ThrowUsage(
      "--gpus: {} GPUs, {} a node, are {} nodes, and the hardware profile {} has no network; {}add "
      "--network NAME|RATE (such as --network 100Gb), or set --gpus-per-node to the GPUs of one "
      "node",
      cluster.gpus, cluster.gpus_per_node, cluster.nodes(), hardware.name,
      known ? fmt::format("for one node use --hw {}; else ", machine) : "");
}

void CheckDtype(Dtype dtype, const HardwareProfile& hardware, std::string_view option) {
  if (dtype == Dtype::kBF16 && !hardware.gpu.bf16) {
    ThrowUsage("{}: bf16 is not allowed: {} has none; use fp16 or fp32", option, hardware.gpu.name);
  }
  if (dtype == Dtype::kF16 && !hardware.gpu.fp16) {
    ThrowUsage("{}: fp16 is not allowed: {} has none; use bf16 or fp32", option, hardware.gpu.name);
  }
}

// --communication-dtype, for stages that are not known yet.
void SetSentDtype(const BatchOptions& options, PrecisionConfig& precision) {
  const Option<Dtype>& asked = options.communication_dtype;
  const Dtype compute = precision.dtype;
  if (!asked) return;
  if (*asked != Dtype::kF32 && *asked != compute) {
    ThrowUsage("--communication-dtype: {} is not allowed with {} gradients; use {}fp32",
               DtypeName(*asked), DtypeName(compute),
               compute == Dtype::kF32 ? "" : fmt::format("{} or ", DtypeName(compute)));
  }
  if (*asked != Dtype::kF32 && precision.grad_accum_dtype == Dtype::kF32) {
    ThrowUsage(
        "--communication-dtype: {} is not allowed with --grad-accum-dtype fp32: stages 0 and 1 "
        "send the fp32 sums, the others {} by themselves; leave it out",
        DtypeName(*asked), DtypeName(*asked));
  }
  precision.fp32_reduction = *asked == Dtype::kF32 && compute != Dtype::kF32;
}

// Sequence length and batch; parts that are left out are 1.
BatchSpec ResolveBatch(const CommonOptions& options, const ModelSpec& model, int gpus,
                       Assumptions& assumptions) {
  BatchSpec batch;
  batch.world_size = gpus;
  batch.seq_len = ResolveSeqLen(options, model, assumptions);
  ResolveBatchParts(InSequences(options.batch, batch.seq_len, gpus), batch, assumptions);
  CheckMicroBatch(batch.micro_batch, batch.seq_len);
  return batch;
}

// Stages, offloads and recompute; what is left out is `otherwise`.
ChoiceSpace ResolveChoices(const ChoiceOptions& options, ChoiceSpace otherwise,
                           Assumptions& assumptions) {
  CheckCheckpointEvery(options);
  ChoiceSpace space = std::move(otherwise);
  if (options.stages) space.stages = *options.stages;
  if (options.offload_optimizer) space.offload_optimizer = *options.offload_optimizer;
  if (options.offload_param) space.offload_param = *options.offload_param;
  const RecomputeConfig full = FullRecompute(options.checkpoint_every.value_or(1));
  if (!options.checkpointing) {
    if (options.checkpoint_every) {
      space.recompute = {full};
    } else {
      Assume(assumptions, "--checkpointing none");
    }
    return space;
  }
  switch (*options.checkpointing) {
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

}  // namespace

const ModelFamily& FamilyOf(const ModelOptions& options) {
  if (options.family.empty()) return *ModelFamilies().front();
  const ModelFamily* family = FamilyNamed(options.family);
  if (family == nullptr) {
    ThrowUsage("--family: {} is not allowed; use {}", options.family, QuotedNames(ModelFamilies()));
  }
  return *family;
}

ModelSpec ResolveModel(const ModelOptions& options, const Option<int64_t>& seq_len,
                       Assumptions& assumptions) {
  if (options.model.empty() != options.params.has_value()) {
    ThrowUsage("{}; give --model NAME|FILE|DIR (see 'zeroplan model list') or --params COUNT",
               options.params ? "--model and --params are both given" : "no model");
  }
  if (!options.family.empty() && !options.params) {
    ThrowUsage("--family: {} goes with --params; a --model has its family itself", options.family);
  }
  if (!options.params) return LoadModel(options.model);
  ModelSpec model =
      ModelFromParams(*options.params, seq_len.value_or(kDerivedSeqLen), FamilyOf(options));
  assumptions.notes.push_back(fmt::format(
      "Model: derived from --params {}; --model takes an exact shape.", options.params.text));
  return model;
}

int64_t ResolveSeqLen(const CommonOptions& options, const ModelSpec& model,
                      Assumptions& assumptions) {
  const Option<int64_t>& given = options.batch.seq_len;
  if (!given) {
    const int64_t seq_len = std::min(options.model.params ? kDerivedSeqLen : kLongestUsualSeqLen,
                                     model.LongestSequence());
    Assume(assumptions, fmt::format("--seq-len {}", seq_len));
    return seq_len;
  }
  if (model.window > 0 && *given > model.window && *given <= model.positions) {
    ThrowUsage(
        "--seq-len: {} is not allowed: {} has a sliding window of {} tokens, and attention that "
        "slides is not supported; use at most {}",
        *given, model.name, model.window, model.window);
  }
  if (*given > model.positions) {
    ThrowUsage("--seq-len: {} is not allowed: {} has {} positions; use at most {}", *given,
               model.name, model.positions, model.positions);
  }
  return *given;
}

BatchOptions InSequences(BatchOptions options, int64_t seq_len, int gpus) {
  const Option<int64_t>& tokens = options.global_batch_tokens;
  if (tokens) {
    if (options.global_batch) {
      ThrowUsage("--global-batch {} and --global-batch-tokens {} are both given; leave one out",
                 options.global_batch.text, tokens.text);
    }
    // Of __int128: each factor may be two billion.
    const auto unit = static_cast<__int128>(seq_len) * gpus * options.micro_batch.value_or(1) *
                      options.grad_accum.value_or(1);
    const std::string parts = fmt::format(
        "{} tokens x --gpus {}{}{}", seq_len, gpus,
        options.micro_batch ? fmt::format(" x --micro-batch {}", *options.micro_batch) : "",
        options.grad_accum ? fmt::format(" x --grad-accum {}", *options.grad_accum) : "");
    if (*tokens % unit != 0) {
      const auto below = static_cast<int64_t>(*tokens / unit * unit);
      const __int128 above = below + unit;
      const std::string nearest = above > (int64_t{1} << 62) ? "smaller parts"
                                  : below > 0
                                      ? fmt::format("{} or {}", below, static_cast<int64_t>(above))
                                      : fmt::format("{}", static_cast<int64_t>(above));
      ThrowUsage("--global-batch-tokens: {} is not a multiple of {}; use {}", tokens.text, parts,
                 nearest);
    }
    if (*tokens / seq_len > kMaxBatch) {
      ThrowUsage("--global-batch-tokens: {} are {} sequences of {} tokens; at most {} are allowed",
                 tokens.text, *tokens / seq_len, seq_len, kMaxBatch);
    }
    options.global_batch.emplace(*tokens / seq_len);
    options.global_batch.text = std::to_string(*options.global_batch);
    return options;
  }
  // Ten times the largest batches that were published; but a GPU may have some sequences each.
  constexpr int64_t kManyTokens = int64_t{1} << 27;
  constexpr int64_t kFewEach = 64;
  const Option<int64_t>& sequences = options.global_batch;
  if (sequences && *sequences > kManyTokens / seq_len && *sequences / gpus > kFewEach) {
    const auto all = CheckedMul(static_cast<uint64_t>(*sequences), static_cast<uint64_t>(seq_len),
                                "--global-batch");
    ThrowUsage(
        "--global-batch: {} sequences of {} tokens are {} tokens a step; did you mean "
        "--global-batch-tokens {}? (If not: --global-batch-tokens {})",
        sequences.text, seq_len, FormatCount(all), sequences.text, all);
  }
  return options;
}

RunGoal ResolveGoal(const GoalOptions& options, int64_t seq_len) {
  if (options.gpu_hour_price && !options.tokens) {
    ThrowUsage(
        "--gpu-hour-price: {} has no effect without --tokens; add the run's tokens, such as "
        "--tokens 300B",
        options.gpu_hour_price.text);
  }
  if (options.tokens && *options.tokens < seq_len) {
    ThrowUsage(
        "--tokens: {} is less than one sequence of {} tokens; use all that is trained on, "
        "such as 300B",
        options.tokens.text, seq_len);
  }
  return {options.tokens, options.gpu_hour_price};
}

HardwareProfile ResolveHardware(const HardwareOptions& options, Assumptions& assumptions,
                                MeasureHost measure) {
  HardwareProfile hardware =
      options.profile.empty() ? AssumeHardware(assumptions, measure) : LoadProfile(options.profile);
  if (!options.network.empty()) ApplyNetwork(hardware, options.network);
  if (!options.intra_node_bandwidth.empty()) ApplyGpuLink(hardware, options.intra_node_bandwidth);
  return hardware;
}

void NoteGuesses(const HardwareProfile& hardware, const Cluster& cluster,
                 std::span<const TrainSetup> setups, Assumptions& assumptions) {
  std::vector<MachinePart> parts;
  for (const TrainSetup& setup : setups) {
    for (const MachinePart part : PartsUsed(setup, cluster.nodes(), cluster.gpus_per_node)) {
      if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    }
  }
  std::sort(parts.begin(), parts.end());
  std::string note = GuessNote(GuessedFigures(hardware, parts, cluster.gpus_per_node));
  if (!note.empty()) assumptions.notes.push_back(std::move(note));
}

LowerOptions GpuLowerOptions(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu) {
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.flash_attention =
      gpu.flash_attention &&
      HasAttentionKernels(model.HeadSize(), dtype, ComputeCapability(gpu.architecture));
  return lower;
}

void ApplyPacking(const CommonOptions& options, LowerOptions& lower, Assumptions& assumptions) {
  lower.document_borders = options.packing == Packing::kDocuments;
  if (!lower.document_borders) return;
  assumptions.notes.push_back(
      "Attention is timed as over whole rows (--packing documents): within documents, less where "
      "they are long, more where they are a few dozen tokens.");
}

void NoteAttention(const ModelSpec& model, const TrainSetup& setup, const LowerOptions& lower,
                   const HardwareProfile& hardware, bool ordered_program,
                   Assumptions& assumptions) {
  std::string note = AttentionNote(model, setup, lower, hardware.gpu, ordered_program);
  if (!note.empty()) assumptions.notes.push_back(std::move(note));
}

void NoteIdleSums(std::span<const TrainSetup> setups, Assumptions& assumptions) {
  const bool idle = std::any_of(setups.begin(), setups.end(), [](const TrainSetup& setup) {
    return setup.precision.grad_accum_dtype != setup.precision.dtype && !Accumulates(setup) &&
           !GradsInPlace(setup) && !ReducesInFp32(setup);
  });
  if (!idle) return;
  assumptions.notes.push_back(
      "fp32 sums over micro-steps: with one micro-step stages 2 and 3 sum nothing, so that they "
      "take 2 more bytes a gradient and change nothing; --grad-accum above 1 makes use of them, "
      "--communication-dtype fp32 sums over GPUs in fp32.");
}

Cluster ResolveCluster(const CommonOptions& options, const HardwareProfile& hardware,
                       Assumptions& assumptions) {
  const ClusterOptions& given = options.cluster;
  Cluster cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  cluster.network = options.hardware.network;
  cluster.intra_node_bandwidth = options.hardware.intra_node_bandwidth;
  const int default_gpus = assumptions.detected_gpus.value_or(1);
  if (!given.gpus) Assume(assumptions, fmt::format("--gpus {}", default_gpus));
  cluster.gpus = given.gpus.value_or(default_gpus);
  const auto of_profile = static_cast<int>(std::llround(hardware.node.gpus.value));
  cluster.gpus_per_node = given.gpus_per_node.value_or(std::min(cluster.gpus, of_profile));
  if (cluster.gpus > cluster.gpus_per_node && cluster.gpus % cluster.gpus_per_node != 0) {
    ThrowUsage(
        "--gpus: {} is not allowed with {} GPUs a node{}; use a multiple of {}, or set "
        "--gpus-per-node",
        cluster.gpus, cluster.gpus_per_node, given.gpus_per_node ? "" : " (the hardware profile's)",
        cluster.gpus_per_node);
  }
  if (cluster.nodes() > 1 && !hardware.network) FailWithoutNetwork(cluster, hardware);
  const auto bytes = [](const std::optional<uint64_t>& wanted,
                        const std::optional<Figure>& known) -> std::optional<uint64_t> {
    if (wanted) return wanted;
    if (known) return static_cast<uint64_t>(known->value);
    return std::nullopt;
  };
  cluster.gpu_capacity_bytes = *bytes(given.gpu_memory, hardware.gpu.usable_memory);
  cluster.host_capacity_bytes = bytes(given.host_memory, hardware.node.host_memory);
  cluster.nvme_capacity_bytes = bytes(given.nvme_capacity, hardware.node.nvme_capacity);
  cluster.runtime_bytes = RuntimeBytes(hardware, cluster.gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware, cluster.gpus);
  const auto reserve = [&](const char* option, const Option<uint64_t>& wanted, uint64_t otherwise) {
    if (wanted) return *wanted;
    std::string bytes = FormatBytes(otherwise);
    std::erase(bytes, ' ');
    Assume(assumptions, fmt::format("{} {}", option, bytes));
    return otherwise;
  };
  cluster.gpu_reserve_bytes = reserve("--gpu-reserve", given.gpu_reserve, kGpuReserveBytes);
  if (cluster.host_capacity_bytes) {
    cluster.host_reserve_bytes = reserve("--host-reserve", given.host_reserve,
                                         HostReserveBytes(*cluster.host_capacity_bytes));
  }
  return cluster;
}

PrecisionConfig ResolvePrecision(const BatchOptions& options, const HardwareProfile& hardware,
                                 Dtype otherwise, Assumptions& assumptions) {
  if (!options.dtype) Assume(assumptions, fmt::format("--dtype {}", DtypeName(otherwise)));
  PrecisionConfig precision;
  precision.dtype = options.dtype.value_or(otherwise);
  precision.grad_accum_dtype = options.grad_accum_dtype.value_or(precision.dtype);
  CheckDtype(precision.dtype, hardware, "--dtype");
  if (const std::optional<SetupProblem> problem = FindPrecisionProblem(precision)) {
    ThrowUsage("{}: {}", problem->key == kGradAccumKey ? "--grad-accum-dtype" : problem->key,
               problem->message);
  }
  SetSentDtype(options, precision);
  return precision;
}

void CheckCheckpointEvery(const ChoiceOptions& options) {
  if (!options.checkpoint_every || !options.checkpointing) return;
  const Checkpointing kind = *options.checkpointing;
  if (kind == Checkpointing::kFull || kind == Checkpointing::kAll) return;
  ThrowUsage("--checkpoint-every: {} has no effect with --checkpointing {}; leave one out",
             options.checkpoint_every.text, options.checkpointing.text);
}

std::vector<TrainSetup> ResolveSetups(const CommonOptions& options, const ModelSpec& model,
                                      const HardwareProfile& hardware, int gpus, Dtype dtype,
                                      ChoiceSpace otherwise, Assumptions& assumptions) {
  TrainSetup base;
  base.batch = ResolveBatch(options, model, gpus, assumptions);
  base.precision = ResolvePrecision(options.batch, hardware, dtype, assumptions);
  base.zero.offload_optimizer.ratio = options.choice.offload_ratio.value_or(1);
  base.deterministic = options.deterministic;
  return EnumerateSetups(base, ResolveChoices(options.choice, std::move(otherwise), assumptions));
}

TrainSetup ResolveConfig(const CommonOptions& options, const ModelSpec& model,
                         const HardwareProfile& hardware, int gpus, Assumptions& assumptions) {
  const int64_t seq_len = ResolveSeqLen(options, model, assumptions);
  ReadContext context = ConfigContext(options.batch, hardware, gpus, seq_len);
  context.layers = model.layers;
  ReadResult result = ReadDeepSpeedConfigFile(options.config, context);
  if (options.deterministic) result.setup.deterministic = true;
  CheckDtype(result.setup.precision.dtype, hardware, options.config);
  CheckMicroBatch(result.setup.batch.micro_batch, result.setup.batch.seq_len);
  if (const std::string warning = LiveLimitWarning(result.setup, model); !warning.empty()) {
    result.warnings.push_back(fmt::format("{}: {}", options.config, warning));
  }
  for (const auto* lines : {&result.warnings, &result.notes}) {
    assumptions.notes.insert(assumptions.notes.end(), lines->begin(), lines->end());
  }
  return result.setup;
}

}  // namespace zeroplan
