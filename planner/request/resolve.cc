#include "planner/request/resolve.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/units.h"
#include "core/config/deepspeed_reader.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/model/lora.h"
#include "core/program/attention_path.h"
#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/sanity.h"
#include "hwprofiles/unequal.h"
#include "planner/advice/flips.h"
#include "planner/footprint.h"
#include "planner/request/parse.h"
#include "planner/runtimes/deepspeed_engine.h"
#include "planner/search/search_space.h"

namespace zeroplan {

namespace {

void Assume(Assumptions& assumptions, std::string text) {
  assumptions.assumed.push_back(std::move(text));
}

// A note of the disk figures that result from ⟦nvme_drives⟧. `capacity`: the node's, if given.
std::string DrivesNote(const NodeProfile& node, const std::optional<uint64_t>& capacity) {
  const double drives = node.nvme_drives->value;
  const auto share = [&](double value) {
    return FormatBytes(static_cast<uint64_t>(value / drives));
  };
  std::string each, all;
  if (!capacity && node.nvme_capacity) {
    each = fmt::format(" of {}", share(node.nvme_capacity->value));
    all = fmt::format(", {}", FormatBytes(static_cast<uint64_t>(node.nvme_capacity->value)));
  }
  return fmt::format(
      "NVMe: {:.0f} drive{}{} a node that read{} {}/s and write{} {}/s each; together {}/s, {}/s{} "
      "({}).",
      drives, drives == 1 ? "" : "s", each, drives == 1 ? "s" : "", share(node.nvme_read->value),
      drives == 1 ? "s" : "", share(node.nvme_write->value),
      FormatBytes(static_cast<uint64_t>(node.nvme_read->value)),
      FormatBytes(static_cast<uint64_t>(node.nvme_write->value)), all, node.nvme_drives->reference);
}

// The factor of ranks in a batch: "⟦gpus⟧ 8", "⟦gpus⟧ 8 / ⟦sequence_ranks⟧ 4".
std::string RanksText(int gpus, int sequence_ranks) {
  std::string text = fmt::format("⟦gpus⟧ {}", gpus);
  if (sequence_ranks > 1) text += fmt::format(" / ⟦sequence_ranks⟧ {}", sequence_ranks);
  return text;
}

// Derives batch parts by DeepSpeed's rules: any two of the three determine the third, and a global
// batch alone means one micro-step.
void ResolveBatchParts(const AskedSettings& fields, BatchSpec& batch, Assumptions& assumptions) {
  const std::optional<int64_t>& micro = fields.micro_batch;
  const std::optional<int64_t>& accum = fields.grad_accum;
  const std::optional<int64_t>& global = fields.global_batch;
  batch.micro_batch = micro.value_or(1);
  batch.grad_accum = accum.value_or(1);
  if (!global) {
    if (!micro) Assume(assumptions, "⟦micro_batch⟧ 1");
    if (!accum) Assume(assumptions, "⟦grad_accum⟧ 1");
    return;
  }
  // If both are given the batch must equal this product; else it must be a multiple of it.
  const bool find_accum = micro.has_value() && !accum;
  const bool find_micro = !micro;
  const auto exact = static_cast<__int128>(batch.data_ranks()) *
                     (find_micro ? batch.grad_accum : batch.micro_batch) *
                     (find_micro || find_accum ? 1 : batch.grad_accum);
  const std::string product = fmt::format(
      "{}{}",
      find_micro   ? (accum ? fmt::format("⟦grad_accum⟧ {} x ", *accum) : "")
      : find_accum ? fmt::format("⟦micro_batch⟧ {} x ", *micro)
                   : fmt::format("⟦micro_batch⟧ {} x ⟦grad_accum⟧ {} x ", *micro, *accum),
      RanksText(batch.world_size, batch.sequence_ranks));
  if (exact > kMaxBatch) {
    ThrowUsage(
        "⟦global_batch⟧: {} is less than {}, which is more than the {} sequences allowed; use "
        "smaller values",
        *global, product, kMaxBatch);
  }
  const auto known = static_cast<int64_t>(exact);
  if (!find_micro && !find_accum) {
    if (*global != known) {
      ThrowUsage("⟦global_batch⟧: {} is not {}; use {}, or leave one of the three out", *global,
                 product, known);
    }
    return;
  }
  if (*global % known != 0) {
    const int64_t up = (*global / known + 1) * known;
    ThrowUsage("⟦global_batch⟧: {} is not a multiple of {}; use {}", *global, product,
               up - known > 0 ? fmt::format("{} or {}", up - known, up) : std::to_string(up));
  }
  (find_micro ? batch.micro_batch : batch.grad_accum) = *global / known;
  if (find_micro && !accum) Assume(assumptions, "⟦grad_accum⟧ 1");
}

void CheckDtype(Dtype dtype, const HardwareProfile& hardware, std::string_view option) {
  if (dtype == Dtype::kBF16 && !hardware.gpu.bf16) {
    ThrowUsage("{}: bf16 is not allowed: {} has none; use fp16 or fp32", option, hardware.gpu.name);
  }
  if (dtype == Dtype::kF16 && !hardware.gpu.fp16) {
    ThrowUsage("{}: fp16 is not allowed: {} has none; use bf16 or fp32", option, hardware.gpu.name);
  }
}

// Checks that masters named by a dtype have that dtype.
void CheckMastersName(const AskedSettings& fields, Dtype dtype) {
  const Given<MasterWeights>& masters = fields.master_weights;
  if (!masters || ParseMasterWeights(masters.text, dtype)) return;
  ThrowUsage("⟦master_weights⟧: {} is not allowed in {}; use fp32{}", masters.text,
             DtypeName(dtype),
             dtype == Dtype::kBF16  ? ", split or 16bit"
             : dtype == Dtype::kF16 ? " or 16bit"
                                    : "");
}

// Sets --communication-dtype for stages that are not known yet.
void SetSentDtype(const AskedSettings& fields, PrecisionConfig& precision) {
  const Given<Dtype>& asked = fields.communication_dtype;
  const Dtype compute = precision.dtype;
  if (!asked) return;
  if (*asked != Dtype::kF32 && *asked != compute) {
    ThrowUsage("⟦communication_dtype⟧: {} is not allowed with {} gradients; use {}fp32",
               DtypeName(*asked), DtypeName(compute),
               compute == Dtype::kF32 ? "" : fmt::format("{} or ", DtypeName(compute)));
  }
  if (*asked != Dtype::kF32 && precision.grad_accum_dtype == Dtype::kF32) {
    ThrowUsage(
        "⟦communication_dtype⟧: {} is not allowed with ⟦grad_accum_dtype⟧ fp32: stages 0 and 1 "
        "send the fp32 sums, the others {} by themselves; leave it out",
        DtypeName(*asked), DtypeName(*asked));
  }
  precision.fp32_reduction = *asked == Dtype::kF32 && compute != Dtype::kF32;
}

// Resolves sequence length and batch; missing parts are 1.
BatchSpec ResolveBatch(const Request& request, const ModelSpec& model, int gpus,
                       Assumptions& assumptions) {
  BatchSpec batch;
  batch.world_size = gpus;
  batch.seq_len = ResolveSeqLen(request, model, assumptions);
  const Given<std::vector<int>>& shared = request.settings.sequence_ranks;
  CheckSequenceRanks(shared, request.runtime.of(), model, batch.seq_len, gpus);
  if (shared && !shared->empty()) batch.sequence_ranks = shared->front();
  ResolveBatchParts(InSequences(request.settings, batch.seq_len, gpus, batch.sequence_ranks), batch,
                    assumptions);
  CheckMicroBatch(batch.micro_batch, batch.seq_len, MostMicroStepTokens(model));
  NoteRoundedBatch(request.settings, batch.global_batch(), batch.seq_len, assumptions);
  return batch;
}

// Resolves stages, offloads and recompute for a model of `layers`; missing ones are `otherwise`.
ChoiceSpace ResolveChoices(const Request& request, int64_t layers, ChoiceSpace otherwise,
                           Assumptions& assumptions) {
  const AskedSettings& fields = request.settings;
  CheckRecomputeFields(request);
  ChoiceSpace space = std::move(otherwise);
  if (fields.stage) space.stages = *fields.stage;
  if (fields.offload_optimizer) space.offload_optimizer = *fields.offload_optimizer;
  if (fields.offload_param) space.offload_param = *fields.offload_param;
  const RecomputeConfig full = FullRecompute(fields.checkpoint_every.value_or(1));
  if (!fields.checkpointing && !fields.checkpoint_every) {
    Assume(assumptions, "⟦checkpointing⟧ none");
  }
  switch (fields.checkpointing.value_or(fields.checkpoint_every ? Checkpointing::kFull
                                                                : Checkpointing::kNone)) {
    case Checkpointing::kNone:
      space.recompute = {kNoRecompute};
      break;
    case Checkpointing::kSelective:
      space.recompute = {kSelectiveRecompute};
      break;
    case Checkpointing::kProducts:
      space.recompute = {kProductsRecompute};
      break;
    case Checkpointing::kFull:
      space.recompute = {full};
      break;
    case Checkpointing::kAll:
    case Checkpointing::kSearched:
      space.recompute = {kNoRecompute, kSelectiveRecompute, kProductsRecompute, full};
  }
  for (RecomputeConfig& recompute : space.recompute) {
    recompute = WithRecomputeFields(recompute, request, layers);
  }
  return space;
}

}  // namespace

int64_t ResolveSeqLen(const Request& request, const ModelSpec& model, Assumptions& assumptions) {
  const Given<int64_t>& given = request.settings.seq_len;
  if (!given) {
    const int64_t seq_len = std::min(request.model.params ? kDerivedSeqLen : kLongestUsualSeqLen,
                                     model.LongestSequence());
    Assume(assumptions, fmt::format("⟦seq_len⟧ {}", seq_len));
    return seq_len;
  }
  if (model.window > 0 && *given > model.window) {
    ThrowUsage(
        "⟦seq_len⟧: {} is not allowed: {} has a sliding window of {} tokens, and attention that "
        "slides is not supported; use at most {}",
        *given, model.name, model.window, model.window);
  }
  if (*given > model.positions) {
    ThrowUsage("⟦seq_len⟧: {} is not allowed: {} has {} positions, which it learns; use at most {}",
               *given, model.name, model.positions, model.positions);
  }
  return *given;
}

void CheckSequenceRanks(const Given<std::vector<int>>& given, const Runtime& runtime,
                        const ModelSpec& model, int64_t seq_len, int gpus) {
  if (!given) return;
  for (const int shared : *given) {
    if (gpus % shared != 0) {
      ThrowUsage("⟦sequence_ranks⟧: {} is not allowed with ⟦gpus⟧ {}; use a divisor of these",
                 shared, gpus);
    }
    if (seq_len % shared != 0) {
      ThrowUsage(
          "⟦sequence_ranks⟧: {} is not allowed with ⟦seq_len⟧ {}; use a divisor of it, or a "
          "multiple of {} as ⟦seq_len⟧",
          shared, seq_len, shared);
    }
    BatchSpec batch;
    batch.seq_len = seq_len;
    batch.sequence_ranks = shared;
    if (const auto problem = runtime.SequenceProblem(model, batch)) {
      ThrowUsage("⟦sequence_ranks⟧: {}", problem->message);
    }
  }
}

AskedSettings InSequences(AskedSettings fields, int64_t seq_len, int gpus, int sequence_ranks) {
  const int groups = std::max(1, gpus / sequence_ranks);
  const Given<int64_t>& tokens = fields.global_batch_tokens;
  if (tokens) {
    if (fields.global_batch) {
      ThrowUsage("⟦global_batch⟧ {} and ⟦global_batch_tokens⟧ {} are both given; leave one out",
                 fields.global_batch.text, tokens.text);
    }
    // __int128, because each factor may be two billion.
    const auto unit = static_cast<__int128>(seq_len) * groups * fields.micro_batch.value_or(1) *
                      fields.grad_accum.value_or(1);
    const std::string parts = fmt::format(
        "{} tokens x {}{}{}", seq_len, RanksText(gpus, sequence_ranks),
        fields.micro_batch ? fmt::format(" x ⟦micro_batch⟧ {}", *fields.micro_batch) : "",
        fields.grad_accum ? fmt::format(" x ⟦grad_accum⟧ {}", *fields.grad_accum) : "");
    if (*tokens < unit) {
      const bool many = unit > (int64_t{1} << 62);
      ThrowUsage("⟦global_batch_tokens⟧: {} is less than {}; use {}", tokens.text, parts,
                 many ? "smaller parts" : std::to_string(static_cast<int64_t>(unit)));
    }
    const auto sequences = static_cast<int64_t>((*tokens + unit / 2) / unit * (unit / seq_len));
    if (sequences > kMaxBatch) {
      ThrowUsage("⟦global_batch_tokens⟧: {} are {} sequences of {} tokens; at most {} are allowed",
                 tokens.text, sequences, seq_len, kMaxBatch);
    }
    Set(fields.global_batch, sequences);
    return fields;
  }
  // Ten times the largest published batches; but each GPU may have some sequences.
  constexpr int64_t kManyTokens = int64_t{1} << 27;
  constexpr int64_t kFewEach = 64;
  const Given<int64_t>& sequences = fields.global_batch;
  if (sequences && *sequences > kManyTokens / seq_len && *sequences / groups > kFewEach) {
    const auto all = CheckedMul(static_cast<uint64_t>(*sequences), static_cast<uint64_t>(seq_len),
                                "⟦global_batch⟧");
    ThrowUsage(
        "⟦global_batch⟧: {} sequences of {} tokens are {} tokens a step; did you mean "
        "⟦global_batch_tokens⟧ {}? (If not: ⟦global_batch_tokens⟧ {})",
        sequences.text, seq_len, FormatCount(all), sequences.text, all);
  }
  return fields;
}

HardwareProfile ResolveHardware(const HardwareFields& fields, const ClusterFields& cluster,
                                Assumptions& assumptions, MeasureHost measure) {
  HardwareProfile hardware;
  if (!fields.profile.empty()) {
    const bool one_machine = fields.network.empty() && !cluster.gpus_per_node;
    NamedProfile named = FindProfile(fields.profile, one_machine ? cluster.gpus.value_or(0) : 0);
    if (!named.note.empty()) assumptions.notes.push_back(std::move(named.note));
    hardware = std::move(named.profile);
    if (named.gpus > 0) {
      assumptions.named_gpus = named.gpus;
      const int wanted = cluster.gpus.value_or(named.gpus);
      const bool whole = hardware.node.gpu_count() == named.gpus;
      if (wanted > named.gpus && (!whole || wanted % named.gpus != 0)) {
        ThrowUsage("⟦gpus⟧: {} are more than the {} of ⟦hw⟧ {}; leave one of the two out", wanted,
                   named.gpus, fields.profile);
      }
    }
  } else {
    FoundMachine found;
    if (fields.find) found = fields.find(measure == MeasureHost::kYes);
    for (std::string& text : found.assumed) Assume(assumptions, std::move(text));
    for (std::string& note : found.notes) assumptions.notes.push_back(std::move(note));
    if (found.profile) {
      assumptions.detected_gpus = found.gpus;
    } else {
      Assume(assumptions, fmt::format("⟦hw⟧ {}", kDefaultProfile));
    }
    hardware =
        found.profile ? *std::move(found.profile) : LoadProfile(std::string(kDefaultProfile));
    if (!assumptions.detected_gpus) {
      assumptions.first =
          fmt::format("{} and no ⟦hw⟧: what follows is for {} GPUs, as in {}.",
                      found.gpus > 0 ? "No built-in profile of the GPUs here" : "No GPU found here",
                      hardware.gpu.name, kDefaultProfile);
    }
  }
  if (std::string note = UnequalNote(hardware); !note.empty()) {
    assumptions.notes.push_back(std::move(note));
  }
  if (!fields.network.empty()) ApplyNetwork(hardware, fields.network);
  if (!fields.intra_node_bandwidth.empty()) ApplyGpuLink(hardware, fields.intra_node_bandwidth);
  if (fields.nvme_drives) ApplyNvmeDrives(hardware, static_cast<uint64_t>(*fields.nvme_drives));
  return hardware;
}

HardwareFields FoundOnce(HardwareFields fields) {
  if (!fields.find) return fields;
  struct Look {
    std::function<FoundMachine(bool)> find;
    std::mutex mutex;
    std::optional<FoundMachine> found;
  };
  const auto look = std::make_shared<Look>();
  look->find = std::move(fields.find);
  fields.find = [look](bool measure_host) {
    const std::lock_guard lock(look->mutex);
    if (!look->found) look->found = look->find(measure_host);
    return *look->found;
  };
  return fields;
}

LowerOptions GpuLowerOptions(const ModelSpec& model, Dtype dtype, const GpuProfile& gpu) {
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  const AttentionLaunch documents{.dims = {1, 2, 1, 1, model.HeadSize()},
                                  .dtype = dtype,
                                  .compute_capability = ComputeCapability(gpu.architecture),
                                  .documents = true};
  lower.flash_attention = gpu.flash_attention && HasAttentionKernels(model.HeadSize(), dtype,
                                                                     documents.compute_capability);
  lower.own_documents = AttentionPathOf(documents).kernels != AttentionKernels::kLibrary;
  return lower;
}

Cluster ResolveCluster(const Request& request, const HardwareProfile& hardware,
                       Assumptions& assumptions) {
  const ClusterFields& given = request.cluster;
  Cluster cluster;
  cluster.hardware = hardware.name;
  cluster.gpu_name = hardware.gpu.name;
  cluster.network = request.hardware.network;
  cluster.intra_node_bandwidth = request.hardware.intra_node_bandwidth;
  if (request.hardware.nvme_drives) {
    cluster.nvme_drives = static_cast<uint64_t>(*request.hardware.nvme_drives);
    assumptions.notes.push_back(DrivesNote(hardware.node, given.nvme_capacity));
  }
  const auto of_profile = hardware.node.gpu_count();
  const int default_gpus = assumptions.named_gpus.value_or(
      assumptions.detected_gpus.value_or(request.hardware.profile.empty() ? 1 : of_profile));
  if (!given.gpus) Assume(assumptions, fmt::format("⟦gpus⟧ {}", default_gpus));
  cluster.gpus = given.gpus.value_or(default_gpus);
  cluster.gpus_per_node = given.gpus_per_node.value_or(std::min(cluster.gpus, of_profile));
  if (cluster.gpus > cluster.gpus_per_node && cluster.gpus % cluster.gpus_per_node != 0) {
    ThrowUsage(
        "⟦gpus⟧: {} is not allowed with {} GPUs a node{}; use a multiple of {}, or set "
        "⟦gpus_per_node⟧",
        cluster.gpus, cluster.gpus_per_node, given.gpus_per_node ? "" : " (the hardware profile's)",
        cluster.gpus_per_node);
  }
  CheckNetwork(hardware, cluster.gpus, cluster.gpus_per_node);
  const auto bytes = [](const std::optional<uint64_t>& wanted,
                        const std::optional<Figure>& known) -> std::optional<uint64_t> {
    if (wanted) return wanted;
    if (known) return static_cast<uint64_t>(known->value);
    return std::nullopt;
  };
  cluster.links = LinksText(cluster, hardware);
  cluster.gpu_capacity_bytes = *bytes(given.gpu_memory, hardware.gpu.usable_memory);
  cluster.host_capacity_bytes = bytes(given.host_memory, hardware.node.host_memory);
  cluster.pinned_limit_bytes = bytes(given.pinned_limit, hardware.node.pinned_limit);
  cluster.nvme_capacity_bytes = bytes(given.nvme_capacity, hardware.node.nvme_capacity);
  cluster.runtime_bytes = RuntimeBytes(hardware, cluster.gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware, cluster.gpus);
  const auto reserve = [&](const char* field, const Given<uint64_t>& wanted, uint64_t otherwise) {
    if (wanted) return *wanted;
    std::string text = FormatBytes(otherwise);
    std::erase(text, ' ');
    Assume(assumptions, fmt::format("{} {}", field, text));
    return otherwise;
  };
  cluster.gpu_reserve_bytes = reserve("⟦gpu_reserve⟧", given.gpu_reserve, kGpuReserveBytes);
  if (cluster.host_capacity_bytes) {
    cluster.host_reserve_bytes = reserve("⟦host_reserve⟧", given.host_reserve,
                                         HostReserveBytes(*cluster.host_capacity_bytes));
  }
  return cluster;
}

PrecisionConfig ResolvePrecision(const AskedSettings& fields, const HardwareProfile& hardware,
                                 Dtype otherwise, Assumptions& assumptions) {
  if (!fields.dtype) Assume(assumptions, fmt::format("⟦dtype⟧ {}", DtypeName(otherwise)));
  PrecisionConfig precision;
  precision.dtype = fields.dtype.value_or(otherwise);
  precision.grad_accum_dtype = fields.grad_accum_dtype.value_or(precision.dtype);
  CheckMastersName(fields, precision.dtype);
  precision.master_weights = fields.master_weights.value_or(precision.master_weights);
  precision.moment_dtype = fields.optimizer_states.value_or(precision.moment_dtype);
  SetFp8(fields, precision);
  CheckDtype(precision.dtype, hardware, "⟦dtype⟧");
  if (const std::optional<SetupProblem> problem = FindPrecisionProblem(precision)) {
    ThrowUsage("{}: {}", problem->key == kGradAccumKey ? "⟦grad_accum_dtype⟧" : problem->key,
               problem->message);
  }
  SetSentDtype(fields, precision);
  return precision;
}

std::vector<TrainSetup> ResolveSetups(const Request& request, const ModelSpec& model,
                                      const HardwareProfile& hardware, int gpus, Dtype dtype,
                                      ChoiceSpace otherwise, Assumptions& assumptions) {
  TrainSetup base;
  base.batch = ResolveBatch(request, model, gpus, assumptions);
  base.precision = ResolvePrecision(request.settings, hardware, dtype, assumptions);
  CheckFp8(request, base.precision, model, hardware.gpu);
  base.zero.offload_optimizer.ratio = request.settings.offload_ratio.value_or(1);
  base.zero.sub_group_elements = SubGroupElements(model.ParamCount(), gpus);
  SetAsked(request.settings, base);
  std::vector<TrainSetup> setups =
      SetupsInGroups(request.settings, base,
                     ResolveChoices(request, model.layers, std::move(otherwise), assumptions),
                     GpusPerNode(request.cluster, hardware, gpus), assumptions);
  // Each setup has its own devices, which `base` lacks.
  if (request.settings.pin_memory == PinMemory::kOff) {
    for (TrainSetup& setup : setups) UsePageableMemory(setup.zero);
  }
  for (TrainSetup& setup : setups) FitParamBuffers(model, setup);
  return setups;
}

TrainSetup ResolveConfig(const Request& request, const ModelSpec& model,
                         const HardwareProfile& hardware, int gpus, Assumptions& assumptions,
                         TorchRecipe* recipe, bool* says_states) {
  const int64_t seq_len = ResolveSeqLen(request, model, assumptions);
  const bool in_tokens = request.settings.global_batch_tokens.has_value();
  ReadContext context = ConfigContext(request.settings, hardware, gpus, seq_len,
                                      in_tokens ? ConfigSequenceRanks(request.config) : 1);
  context.layers = model.layers;
  context.of_deepspeed = !request.runtime.of().facts().own_config_keys;
  if (request.settings.offload_activations && !context.of_deepspeed) {
    ThrowUsage(
        "⟦offload_activations⟧: is not allowed with ⟦config⟧, which decides it "
        "(activation_checkpointing.cpu_checkpointing); leave one of the two out");
  }
  ReadResult result = ReadDeepSpeedConfig(request.config, context);
  if (recipe != nullptr && result.offload_activations) recipe->offload_activations = true;
  if (says_states != nullptr) *says_states = result.says_states;
  const int group = result.setup.zero.shard_group;
  const int per_node = GpusPerNode(request.cluster, hardware, gpus);
  if (group > 0 && !TilesNodes(group, gpus, per_node)) {
    ThrowUsage("{}: shard groups of {} are not allowed with {} GPUs, {} a node; use {}",
               request.config.name(), group, gpus, per_node, GroupsText(gpus, per_node));
  }
  if (const auto problem = request.runtime.of().SequenceProblem(model, result.setup.batch)) {
    ThrowUsage("{}: {}: {}", request.config.name(), problem->key, problem->message);
  }
  CheckDtype(result.setup.precision.dtype, hardware, request.config.name());
  CheckMastersName(request.settings, result.setup.precision.dtype);
  CheckMatmulName(request.settings, result.setup.precision.dtype);
  CheckFp8(request, result.setup.precision, model, hardware.gpu);
  CheckMicroBatch(result.setup.batch.micro_batch, result.setup.batch.seq_len,
                  MostMicroStepTokens(model));
  if (!context.of_deepspeed) CheckSubGroups(result.setup, model, request.config.name());
  if (const std::string warning = LiveLimitWarning(result.setup, model); !warning.empty()) {
    result.warnings.push_back(fmt::format("{}: {}", request.config.name(), warning));
  }
  NoteRoundedBatch(request.settings, result.setup.batch.global_batch(), seq_len, assumptions);
  for (const auto* lines : {&result.warnings, &result.notes}) {
    assumptions.notes.insert(assumptions.notes.end(), lines->begin(), lines->end());
  }
  return result.setup;
}

int ConfigSequenceRanks(const ConfigDocument& config) {
  if (!config.given()) return 1;
  const auto ranks = JsonSection(&config.root(), "", config.name())
                         .Int("sequence_parallel_size", 1, std::numeric_limits<int32_t>::max(),
                              "the GPUs that share each sequence");
  return static_cast<int>(ranks.value_or(1));
}

ReadContext ConfigContext(const AskedSettings& fields, const HardwareProfile& hardware, int gpus,
                          int64_t seq_len, int sequence_ranks) {
  const AskedSettings batch = InSequences(fields, seq_len, gpus, sequence_ranks);
  ReadContext context;
  context.world_size = gpus;
  context.seq_len = seq_len;
  context.micro_batch = batch.micro_batch;
  context.grad_accum = batch.grad_accum;
  context.global_batch = batch.global_batch;
  context.dtype = batch.dtype;
  context.grad_accum_dtype = batch.grad_accum_dtype;
  context.communication_dtype = batch.communication_dtype;
  context.master_weights = batch.master_weights;
  context.moment_dtype = batch.optimizer_states;
  if (batch.matmul_dtype) context.fp8 = batch.asks_fp8();
  context.fp8_recipe = batch.fp8_recipe;
  context.fp8_gradients = batch.fp8_gradients;
  context.settings = AskedValues(fields);
  context.has_bf16 = hardware.gpu.bf16;
  return context;
}

void RefuseForRuntime(const Request& request) {
  AskedOfRuntime asked;
  asked.deterministic = request.settings.deterministic;
  asked.async_save = request.settings.async_save.has_value();
  asked.documents = request.settings.packing == Packing::kDocuments;
  ForEachSetting(request.settings, [&](const SettingRow& row, const auto& field) {
    const bool recipe = row.group == SettingGroup::kRecipe && IsGiven(field);
    if (recipe && asked.recipe.empty()) asked.recipe = row.name;
  });
  asked.config = request.config;
  if (const Given<Dtype>& dtype = request.settings.grad_accum_dtype) {
    asked.grad_accum_dtype = dtype.text;
  }
  const AskedSettings& batch = request.settings;
  if (batch.master_weights.value_or(MasterWeights::kFp32) != MasterWeights::kFp32) {
    asked.master_weights = batch.master_weights.text;
  }
  if (batch.optimizer_states.value_or(Dtype::kF32) != Dtype::kF32) {
    asked.optimizer_states = batch.optimizer_states.text;
  }
  if (batch.asks_fp8()) asked.matmul_dtype = batch.matmul_dtype.text;
  const Given<std::vector<int>>& shared = request.settings.sequence_ranks;
  asked.shares_sequences = shared && *shared != std::vector{1};
  if (batch.fp8_recipe) asked.own_fp8 = "fp8_recipe";
  if (batch.fp8_gradients) asked.own_fp8 = "fp8_gradients";
  const Runtime& runtime = request.runtime.of();
  runtime.Refuse(asked);
}

void RefuseAttention(const Runtime& runtime, const ModelSpec& model, Dtype dtype,
                     TorchAttention attention, const HardwareProfile& hardware) {
  if (!runtime.facts().has_recipe || GpuLowerOptions(model, dtype, hardware.gpu).flash_attention)
    return;
  const bool half = dtype != Dtype::kF32;
  if (half && attention == TorchAttention::kEager) return;
  // scaled_dot_product_attention uses other kernels if FlashAttention is not available.
  const bool flash = ComputeCapability(hardware.gpu.architecture) >= 80;
  if (half && !flash && attention == TorchAttention::kSdpa) return;
  if (half && !flash) {
    ThrowUsage(
        "⟦attn⟧: {} is not allowed: {} has no FlashAttention, which starts at compute capability "
        "8.0; use sdpa or eager",
        TorchAttentionName(attention), hardware.gpu.name);
  }
  ThrowUsage(
      "⟦runtime⟧ {}: {} has no fused attention for {}'s heads of {} in {}, and what PyTorch does "
      "without it is not modelled; use {}⟦runtime⟧ zeroplan, which has kernels for it",
      runtime.key(), hardware.gpu.name, model.name, model.HeadSize(), DtypeName(dtype),
      half ? "⟦attn⟧ eager, or " : "");
}

}  // namespace zeroplan
