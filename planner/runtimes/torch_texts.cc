// What is said of choices of runtimes that train in PyTorch processes: what is refused, margins,
// cautions, why another was not taken, notes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/units.h"
#include "core/lowering/lower.h"
#include "core/model/lora.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/sanity.h"
#include "planner/estimate/estimate.h"
#include "planner/margin_text.h"
#include "planner/runtimes/planned_parts.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_code.h"
#include "planner/runtimes/torch_float8.h"
#include "planner/runtimes/torch_optimizer.h"
#include "planner/search/enumerated_search.h"

namespace zeroplan {
namespace {

std::string EmptiesCacheText(uint64_t segments, const std::optional<double>& step_seconds) {
  if (segments == 0) {
    return " It fits because the allocator gives cached memory back once, before its steps are all "
           "alike.";
  }
  // What Merit takes them for.
  const double most = kSegmentSeconds * static_cast<double>(segments);
  const std::string share =
      step_seconds ? fmt::format(", {:.2g} %", 100 * most / *step_seconds) : "";
  return fmt::format(
      " It fits because the allocator gives cached memory back while it runs: {} segment{} a step. "
      "Nobody measured what that costs; {:.2g} s{} a step are assumed, {:.2g} s a segment.",
      segments, segments == 1 ? "" : "s", most, share, kSegmentSeconds);
}

// "One published run on NVIDIA A100 SXM 80 GB", "37 published runs on ...".
std::string PublishedRunsText(int runs, std::string_view gpu) {
  return runs == 1 ? fmt::format("One published run on {}", gpu)
                   : fmt::format("{} published runs on {}", runs, gpu);
}

// The finding from published runs on this card, or on another form of it, or that there are none.
std::string PublishedText(const Runtime& runtime, const HardwareProfile& hardware) {
  const PublishedMargin* of = PublishedMarginOf(runtime.key(), hardware);
  if (of == nullptr) {
    if (IsH200(hardware)) return "";
    std::string text = fmt::format(" No published run of {} on {} was compared.", runtime.name(),
                                   hardware.gpu.name);
    if (const PublishedMargin* other = PublishedOnAnotherForm(runtime.key(), hardware)) {
      text +=
          fmt::format(" {}, another form of this card, took {}.",
                      PublishedRunsText(other->time.runs, other->gpu), DifferenceText(other->time));
    }
    return text;
  }
  std::string text;
  if (of->time.runs > 0) {
    text = fmt::format(" {} took {}", PublishedRunsText(of->time.runs, of->gpu),
                       DifferenceText(of->time));
  }
  if (of->memory.runs > 0) {
    text += text.empty() ? fmt::format(" Memory of {} published run{} on {}: ", of->memory.runs,
                                       of->memory.runs == 1 ? "" : "s", of->gpu)
                         : fmt::format("; memory of {}: ", of->memory.runs);
    text += DifferenceText(of->memory);
  }
  return text + ".";
}

std::string MemoryText(const ChoiceEstimate& choice, const Cluster& cluster) {
  const TorchFootprint& torch = *choice.footprint.torch;
  const uint64_t outside = cluster.gpu_reserve_bytes + torch.context_bytes;
  std::string text = fmt::format(
      "Memory of a GPU: tensors take {} in initialisation and {} in steps. For them the allocator "
      "reserves {}, and it may take {}. Context and libraries take the rest, {} of the GPU's {} in "
      "all. Host: {}.",
      FormatBytes(torch.peak(TorchPhase::kInit).allocated_bytes),
      FormatBytes(torch.StepAllocatedBytes()), FormatBytes(torch.ReservedBytes()),
      FormatBytes(cluster.gpu_capacity_bytes - std::min(cluster.gpu_capacity_bytes, outside)),
      FormatBytes(torch.DeviceBytes()), FormatBytes(cluster.gpu_capacity_bytes),
      FormatBytes(choice.footprint.host.total()));
  switch (choice.room) {
    case MemoryRoom::kAmple:
      return text + " It fits with the memory's margin of error on top.";
    case MemoryRoom::kTight:
      return text +
             " It fits as predicted, but not with the margin of error on top: should it take more, "
             "the allocator gives cached memory back, which costs time.";
    case MemoryRoom::kEmptiesCache:
      return text + EmptiesCacheText(torch.segments_given_back, choice.time.total_seconds);
    case MemoryRoom::kAtRisk:
    case MemoryRoom::kNone:
      return text +
             " At risk: with the margin of error on top its tensors would not fit; nothing else "
             "was found that does.";
  }
  return text;
}

}  // namespace

void TorchBased::Refuse(const AskedOfRuntime& asked) const {
  if (asked.deterministic) {
    ThrowUsage("⟦deterministic⟧: not modelled with ⟦runtime⟧ {}; leave it out", key());
  }
  if (asked.async_save) {
    ThrowUsage(
        "⟦async_save⟧: is of zeroplan's own saves, not modelled with ⟦runtime⟧ {}; leave it out",
        key());
  }
  if (asked.shares_sequences && !HasUlysses() && !HasRing()) {
    ThrowUsage("⟦sequence_ranks⟧: sequences over GPUs are not modelled with ⟦runtime⟧ {}; use 1",
               key());
  }
  if (asked.documents) {
    ThrowUsage(
        "⟦packing⟧: documents is of zeroplan's own training, not modelled with ⟦runtime⟧ {}; leave "
        "it out",
        key());
  }
  if (!asked.own_fp8.empty()) {
    ThrowUsage(
        "⟦{}⟧: is of zeroplan's own products, not of ⟦runtime⟧ {}; ⟦float8⟧ names torchao's "
        "recipes, which fsdp2 and ddp have",
        asked.own_fp8, key());
  }
  if (!asked.matmul_dtype.empty() && !HasFloat8()) {
    ThrowUsage(
        "⟦matmul_dtype⟧: {} is not allowed with ⟦runtime⟧ {}, which has no training in 8 bits of "
        "its own; leave it out, or give ⟦runtime⟧ fsdp2 or ddp (torchao)",
        asked.matmul_dtype, key());
  }
  // What DeepSpeed has of these hangs on the choice (RefuseSetup).
  if (reads_deepspeed_config()) return;
  if (!asked.master_weights.empty()) {
    ThrowUsage(
        "⟦master_weights⟧: {} is not what ⟦runtime⟧ {} has; give ⟦param_dtype⟧ bf16, which has no "
        "masters, or leave it out",
        asked.master_weights, key());
  }
  if (!asked.optimizer_states.empty()) {
    ThrowUsage(
        "⟦optimizer_states⟧: {} is not what AdamW of ⟦runtime⟧ {} has; give {}, or leave it out",
        asked.optimizer_states, key(),
        asked.optimizer_states == "8bit" ? "⟦optim⟧ adamw_torch_8bit or adamw_bnb_8bit"
                                         : "⟦param_dtype⟧ bf16");
  }
}

void TorchBased::RefusePlay(const TorchPlay& play) const {
  RefuseAdapters(play);
  RefuseFloat8(play);
  RefuseSequences(play);
  RefuseTiles(play);
  RefuseExperts(play);
  RefuseSetup(play);
  RefuseIf(play.recipe.offload_activations && play.setup.recompute.kind != RecomputeKind::kFull,
           "⟦offload_activations⟧ moves what checkpointed layers keep; give ⟦checkpointing⟧ full, "
           "or leave it out");
}

namespace {

// Whether its layers are those of transformers' models, into which others plug.
bool OfTransformers(CodeStyle code) {
  return code == CodeStyle::kPlain || code == CodeStyle::kHf || code == CodeStyle::kLiger;
}

}  // namespace

void TorchBased::RefuseSequences(const TorchPlay& play) const {
  const BatchSpec& batch = play.setup.batch;
  if (batch.sequence_ranks == 1) return;
  RefuseIf(!HasUlysses() && !HasRing(),
           "⟦sequence_ranks⟧ {}: sequences that GPUs share are modelled of DeepSpeed's "
           "Ulysses and of PyTorch's context_parallel with FSDP2; use 1, or ⟦runtime⟧ deepspeed or "
           "fsdp2",
           batch.sequence_ranks);
  RefuseIf(play.model.family->planned() != nullptr,
           "⟦sequence_ranks⟧ {} is not modelled of {}; use 1", batch.sequence_ranks,
           play.model.name);
  RefuseIf(play.recipe.compile.layers,
           "⟦compile⟧ with ⟦sequence_ranks⟧ {} is not modelled: no exchange within compiled "
           "layers was counted; leave it out",
           batch.sequence_ranks);
  const std::optional<SetupProblem> problem = SequenceProblem(play.model, batch);
  RefuseIf(problem.has_value(), "⟦sequence_ranks⟧ {}", problem ? problem->message : "");
  HasRing() ? RefuseRing(play) : RefuseUlysses(play);
}

// A ring keeps all heads. context_parallel gives a rank a chunk from each end of a sequence, so
// that a causal mask leaves all ranks the same work.
std::optional<SetupProblem> TorchBased::SequenceProblem(const ModelSpec& model,
                                                        const BatchSpec& batch) const {
  if (!HasRing()) return Runtime::SequenceProblem(model, batch);
  const int ranks = batch.sequence_ranks;
  if (ranks == 1 || batch.seq_len % (2 * int64_t{ranks}) == 0) return std::nullopt;
  return SetupProblem{
      "sequence_parallel_size",
      fmt::format("{} is not allowed: each of {} GPUs has two chunks of a sequence, which {} "
                  "tokens are no multiple of; use a multiple of {} as ⟦seq_len⟧",
                  ranks, ranks, batch.seq_len, 2 * int64_t{ranks})};
}

void TorchBased::RefuseRing(const TorchPlay& play) const {
  const TrainSetup& setup = play.setup;
  const int ranks = setup.batch.sequence_ranks;
  const TorchRecipe& recipe = play.recipe;
  RefuseIf(
      recipe.attention != TorchAttention::kSdpa,
      "⟦attn⟧ {}: context_parallel takes the place of scaled_dot_product_attention alone; give "
      "sdpa",
      TorchAttentionName(recipe.attention));
  RefuseIf(recipe.code == CodeStyle::kTorchtune || recipe.code == CodeStyle::kComposer,
           "⟦code⟧ {} with ⟦sequence_ranks⟧ {} is not modelled; give plain, hf, liger or "
           "torchtitan",
           CodeStyleName(recipe.code), ranks);
  RefuseIf(TorchModel(play.model).code.one_qkv,
           "⟦sequence_ranks⟧ {} is modelled of layers with rotary positions, and {} has "
           "others; use 1",
           ranks, play.model.name);
  RefuseIf(setup.recompute.kind == RecomputeKind::kSelective,
           "⟦checkpointing⟧ selective with ⟦sequence_ranks⟧ {} is not modelled; give none or "
           "full",
           ranks);
  RefuseIf(ShardRanks(setup.zero, setup.batch.world_size) % ranks != 0,
           "⟦shard_group⟧ {}: GPUs that share a sequence are of one shard group; use a multiple of "
           "{}",
           setup.zero.shard_group, ranks);
  const int capability =
      play.hardware == nullptr ? 0 : ComputeCapability(play.hardware->gpu.architecture);
  RefuseIf(
      TorchAttentionKernelsOf(recipe.attention, capability, false) != TorchAttentionKernels::kFlash,
      "⟦sequence_ranks⟧ {} is modelled of FlashAttention's kernels, which GPUs of "
      "compute capability 8.0 have; use 1",
      ranks);
}

void TorchBased::RefuseUlysses(const TorchPlay& play) const {
  const TorchAttention attention = play.recipe.attention;
  RefuseIf(attention == TorchAttention::kEager || attention == TorchAttention::kTriton,
           "⟦attn⟧ {}: Ulysses of DeepSpeed runs scaled_dot_product_attention or flash-attn; give "
           "sdpa or flash",
           TorchAttentionName(attention));
  const CodeStyle code = play.recipe.code;
  RefuseIf(!OfTransformers(code),
           "⟦code⟧ {} with ⟦sequence_ranks⟧ {} is not modelled: DeepSpeed's Ulysses is of "
           "transformers' models; give hf, liger or plain",
           CodeStyleName(code), play.setup.batch.sequence_ranks);
}

void TorchBased::RefuseTiles(const TorchPlay& play) const {
  if (!play.recipe.tiled_mlp) return;
  RefuseIf(!HasUlysses(),
           "⟦tiled_mlp⟧: TiledMLP sums gradients of tiles by what DeepSpeed's optimizers ask for "
           "alone (ds_grad_is_ready); use ⟦runtime⟧ deepspeed, or leave it out");
  const ModelSpec& model = play.model;
  RefuseIf(model.family->planned() != nullptr || !TorchModel(model).code.gated,
           "⟦tiled_mlp⟧: TiledMLP is modelled of MLPs with SwiGLU, and {} has others; leave it out",
           model.name);
  RefuseIf(HasAdapters(model),
           "⟦tiled_mlp⟧ is modelled of models that are trained whole; leave it out, or give "
           "⟦method⟧ full");
  RefuseIf(play.recipe.compile.layers,
           "⟦tiled_mlp⟧ under torch.compile is not modelled; leave ⟦compile⟧ out");
  const CodeStyle code = play.recipe.code;
  RefuseIf(!OfTransformers(code),
           "⟦tiled_mlp⟧ takes the place of the MLP of transformers' models, which ⟦code⟧ {} has "
           "not; give hf, liger or plain",
           CodeStyleName(code));
}

void TorchBased::RefuseFloat8(const TorchPlay& play) const {
  const ModelSpec& model = play.model;
  const TorchRecipe& recipe = play.recipe;
  const PrecisionConfig& precision = play.setup.precision;
  if (!precision.fp8.enabled) {
    RefuseIf(recipe.float8.has_value(),
             "⟦float8⟧ {} has no effect without ⟦matmul_dtype⟧ fp8; add that, or leave it out",
             TorchFloat8Name(recipe.float8.value_or(TorchFloat8::kTensorwise)));
    return;
  }
  RefuseIf(!HasFloat8(), "it has no training in 8 bits of its own; leave _zeroplan.fp8 out");
  RefuseIf(precision.dtype != Dtype::kBF16,
           "⟦matmul_dtype⟧ fp8 is modelled beside bf16, not {}; give ⟦dtype⟧ bf16",
           DtypeName(precision.dtype));
  RefuseIf(HasAdapters(model),
           "⟦matmul_dtype⟧ fp8: torchao's products are modelled of models that are trained whole; "
           "leave it out, or give ⟦method⟧ full");
  RefuseIf(model.family->planned() != nullptr,
           "⟦matmul_dtype⟧ fp8 is not modelled of {}; leave it out", model.name);
  const TorchCode code = TorchModel(model).code;
  RefuseIf(!code.gated || code.one_qkv,
           "⟦matmul_dtype⟧ fp8 is modelled of layers with SwiGLU and rotary positions (torchao's "
           "casts were counted in those), and {} has others; leave it out",
           model.name);
  RefuseIf(!recipe.compile.layers,
           "⟦matmul_dtype⟧ fp8: torchao's casts are modelled as torch.compile makes them; give "
           "⟦compile⟧ layers or all");
  RefuseIf(!StyleCodeOf(recipe.code, false).fuses,
           "⟦matmul_dtype⟧ fp8 is not modelled with ⟦code⟧ {}, whose kernels torch.compile leaves "
           "alone; give another",
           CodeStyleName(recipe.code));
  const BatchSpec& batch = play.setup.batch;
  RefuseIf(batch.micro_batch * batch.seq_len % kFloat8Multiple != 0,
           "⟦matmul_dtype⟧ fp8: a micro-step's {} tokens are no multiple of {}, which products of "
           "8 bits want; give another ⟦micro_batch⟧ or ⟦seq_len⟧",
           batch.micro_batch * batch.seq_len, kFloat8Multiple);
  const bool gathers = recipe.float8 == TorchFloat8::kTensorwiseGathers;
  RefuseIf(gathers && !facts().fully_shards,
           "⟦float8⟧ tensorwise-gathers: FSDP2 alone gathers in 8 bits; give tensorwise, or "
           "⟦runtime⟧ fsdp2");
  RefuseIf(gathers && play.setup.zero.offload_param.device != OffloadDevice::kNone,
           "⟦float8⟧ tensorwise-gathers with CPUOffloadPolicy is not modelled; give tensorwise");
}

void TorchBased::RefuseDtype(const TorchPlay& play, Dtype held) const {
  const Dtype computes = play.setup.precision.dtype;
  RefuseIf(computes == Dtype::kF32,
           "its memory is modelled for bf16 and fp16, not fp32; give ⟦dtype⟧ bf16 or fp16");
  if (computes != Dtype::kF16) return;
  RefuseIf(held != Dtype::kF32,
           "fp16 with parameters in 16 bit: GradScaler unscales no gradients of 16 bit; give "
           "⟦param_dtype⟧ fp32 or leave it out");
  RefuseIf(play.recipe.optimizer_in_backward,
           "⟦optimizer_in_backward⟧ in fp16: GradScaler unscales gradients behind the backward "
           "pass; give ⟦dtype⟧ bf16 or leave it out");
}

void TorchBased::RefuseAdapters(const TorchPlay& play) const {
  const ModelSpec& model = play.model;
  RefuseIf(play.recipe.kbit && !model.lora_quantized,
           "⟦kbit⟧: is of models in 4 bit; give ⟦method⟧ qlora or leave it out");
  const std::optional<Dtype> storage = play.recipe.quant_storage;
  RefuseIf(storage && *storage != Dtype::kU8 && !model.lora_quantized,
           "⟦quant_storage⟧ {}: is of models in 4 bit; give ⟦method⟧ qlora or leave it out",
           DtypeName(storage.value_or(Dtype::kU8)));
  if (!HasAdapters(model)) return;
  RefuseIf(
      model.family->planned() != nullptr && play.recipe.kbit,
      "⟦kbit⟧: prepare_model_for_kbit_training of {} is not modelled: it casts all that is not "
      "in 4 bit to fp32, experts too; leave it out",
      model.name);
  RefuseIf(model.lora_quantized && play.recipe.experts != ExpertModules::kFused,
           "⟦experts⟧ {}: experts in 4 bit, as bitsandbytes makes these modules, are not modelled; "
           "give fused, whose experts it leaves in 16 bit, or ⟦method⟧ lora",
           ExpertModulesName(play.recipe.experts));
  RefuseIf(!IsEven(model, ReadTargets(model, "⟦lora_targets⟧")),
           "⟦lora_targets⟧: adapters of some layers alone, or of several ranks or alphas, are not "
           "modelled; name linears of all layers");
  RefuseIf(!model.lora_saved.empty(),
           "⟦lora_save⟧: modules that PEFT trains whole are not modelled; leave it out");
  RefuseIf(!model.lora_tokens.empty(),
           "⟦lora_tokens⟧: rows of single tokens are not modelled; leave it out");
  RefuseIf(play.recipe.compile.layers || play.recipe.compile.loss,
           "⟦compile⟧: adapters under torch.compile are not modelled; leave it out");
  RefuseIf(play.recipe.kbit && !facts().replicates,
           "⟦kbit⟧: is modelled with ⟦runtime⟧ ddp alone, since DeepSpeed casts everything to 16 "
           "bit again, and FSDP1 flattens one dtype alone; leave it out");
  RefuseIf(
      storage == Dtype::kF32 && facts().fully_shards,
      "⟦quant_storage⟧ fp32: its mixed precision then is fp32 for all parameters, which is not "
      "modelled; give {}, or uint8",
      DtypeName(play.setup.precision.dtype));
  // A cast by elements destroys packed weights.
  RefuseIf(storage && !facts().replicates && *storage != Dtype::kU8 &&
               *storage != play.setup.precision.dtype,
           "⟦quant_storage⟧ {}: floating parameters are cast to {}, in which it computes, and "
           "packed 4-bit weights cannot be; give {}, or uint8",
           DtypeName(storage.value_or(Dtype::kU8)), DtypeName(play.setup.precision.dtype),
           DtypeName(play.setup.precision.dtype));
  RefuseIf(play.recipe.kbit && play.recipe.code != CodeStyle::kHf,
           "⟦kbit⟧: is modelled of transformers' code; give ⟦code⟧ hf or leave it out");
}

std::vector<MarginOfError> TorchBased::Margins() const {
  const RuntimeMargins& of = margins();
  std::vector<MarginOfError> all = {{"runs", static_cast<double>(of.runs)},
                                    {"step_seconds_median", of.time_median},
                                    {"step_seconds", of.time_worst},
                                    {"chosen_runs", static_cast<double>(of.chosen_runs)},
                                    {"chosen_step_seconds_median", of.chosen_median},
                                    {"chosen_step_seconds", of.chosen_worst},
                                    {"allocated", of.allocated},
                                    {"reserved", of.reserved},
                                    {"device", of.device},
                                    {"host", of.host}};
  // What was not measured.
  std::erase_if(all, [](const MarginOfError& margin) { return margin.share == 0; });
  if (of.recompute_runs > 0) all.push_back({"stage_3_recompute_step_seconds", of.recompute_worst});
  return all;
}

std::string TorchBased::MarginText(const Cluster& cluster, const HardwareProfile& hardware) const {
  const RuntimeMargins& of = margins();
  if (of.chosen_runs == 0) {
    return fmt::format(
        "Beside {} runs of transformers' Trainer on one H200, most of them {}'s, allocated memory "
        "was off by at most {:.2g} % of what is predicted, reserved by {:.2g} %; step times of {} "
        "that nothing was fitted to by {:.2g} % in the median, {:.2g} % at most. docs/runtimes.md "
        "has them.{}{}",
        of.runs, name(), 100 * of.allocated, 100 * of.reserved, of.timed_runs, 100 * of.time_median,
        100 * of.time_worst, PublishedText(*this, hardware),
        cluster.nodes() == 1 ? "" : " Nothing across nodes was compared. " + NetworkNote(hardware));
  }
  const std::string recompute =
      of.recompute_runs == 0
          ? ""
          : fmt::format(", of stage 3 with recompute {:.0f} %", 100 * of.recompute_worst);
  return fmt::format(
      "Beside {} runs of {} on H200s allocated memory was off by at most {:.1f} % of what is "
      "predicted, reserved by {:.1f} %, the device's by {:.1f} %, host by {:.1f} %; step times, "
      "with constants fitted to other models, by {:.0f} % in the median, {:.0f} % at most{}; of {} "
      "choices of plan, run afterwards, by {:.0f} % and {:.0f} %. docs/runtimes.md has them.{}{}",
      of.runs, name(), 100 * of.allocated, 100 * of.reserved, 100 * of.device, 100 * of.host,
      100 * of.time_median, 100 * of.time_worst, recompute, of.chosen_runs, 100 * of.chosen_median,
      100 * of.chosen_worst, PublishedText(*this, hardware),
      cluster.nodes() == 1 ? ""
                           : fmt::format(" Nothing across nodes was measured for this: {}. {}",
                                         of.across_nodes, NetworkNote(hardware)));
}

std::string MarginTextFor(const Runtime& runtime, const ModelSpec& model, const Cluster& cluster,
                          const HardwareProfile& hardware) {
  if (model.family->planned() == nullptr) {
    std::string text = runtime.MarginText(cluster, hardware);
    if (model.experts > 0 && !text.empty()) {
      text +=
          " All these runs were of dense models. Two steps of mixtures of experts, on one H200 "
          "without offload, took as long as predicted and 4 % less.";
    }
    return text;
  }
  return fmt::format(
      "Runs of {} that were compared were of dense models that zeroplan trains (docs/runtimes.md): "
      "none of their errors is this model's. What was compared of models like it stands with the "
      "model.",
      runtime.name());
}

double TorchBased::LargestTimeError(const ChoiceEstimate& choice, const Cluster& cluster,
                                    const HardwareProfile& hardware) const {
  const RuntimeMargins& of = margins();
  const PublishedMargin* published = PublishedMarginOf(key(), hardware);
  const bool h200 = IsH200(hardware);
  const TorchFootprint& torch = *choice.footprint.torch;
  if (torch.of_planned_model) {
    // The runs were of the Trainer alone on one such GPU, all weights trained.
    const bool compared =
        facts().replicates && h200 && cluster.gpus == 1 && !torch.of_planned_adapters;
    return compared ? kPlannedMargins.time : 0;
  }
  if (!h200 && (published == nullptr || !published->time.MakeMargin())) return 0;
  const bool uses_host = UsesHost(choice.setup) || torch.copied_bytes > 0;
  const bool compared = published != nullptr && published->on_guessed_hosts;
  if (uses_host && !HostWasMeasured(hardware) && !compared) return 0;
  // The runs in 8 bits were of H200s, and of H100s of another form.
  const bool fp8 = choice.setup.precision.fp8.enabled;
  if (fp8 && !h200) return 0;
  const Candidate candidate = CandidateOf(choice.setup);
  const bool recomputes = of.recompute_runs > 0 && candidate.stage == 3 &&
                          candidate.recompute != kNoRecompute && !Offloads(candidate);
  double worst = std::max(of.time_worst, of.chosen_worst);
  if (recomputes) worst = std::max(worst, of.recompute_worst);
  if (fp8) worst = std::max(worst, kFloat8TimeWorst);
  if (published != nullptr) worst = std::max(worst, published->time.worst());
  if (cluster.nodes() == 1) return worst;
  if (MayUseSockets(hardware)) worst = std::max(worst, kSocketsWorst);
  return of.across_nodes_worst == 0 ? 0 : std::max(worst, of.across_nodes_worst);
}

std::vector<std::string> TorchBased::Cautions(const ChoiceEstimate& choice, const Cluster& cluster,
                                              const HardwareProfile& hardware) const {
  std::vector<std::string> all = {MemoryText(choice, cluster)};
  if (!IsH200(hardware)) {
    all.front() += fmt::format(" What lies outside the allocator, {}, was measured on H200s alone.",
                               FormatBytes(choice.footprint.torch->context_bytes));
  }
  if (std::string doubt = Doubt(choice.setup); !doubt.empty()) all.push_back(std::move(doubt));
  for (const AroundPeak& peak : choice.footprint.torch->around) {
    if (!peak.why_not.empty())
      all.push_back(fmt::format("Its steps fit, but not {}.", peak.why_not));
  }
  return all;
}

std::string TorchBased::Doubt(const TrainSetup& setup) const {
  std::string doubt;
  if (setup.batch.sequence_ranks > 1) {
    doubt = "Of sequences over GPUs no run was compared: memory and time follow from the code.";
  }
  if (Hybrid(setup)) {
    if (!doubt.empty()) doubt += " ";
    doubt +=
        "Of shard groups one published run was compared with its time (docs/cost-model.md), none "
        "with its memory.";
  }
  if (setup.precision.fp8.enabled) {
    if (!doubt.empty()) doubt += " ";
    doubt +=
        "Runs with products in 8 bits are apart from these: two of torchao's tensorwise recipe on "
        "one H200 took 0 and 3 % more than predicted, one of its rowwise recipe 16 %; six "
        "published runs on 8 to 128 H100s and H200s 18 to 26 % more, where in bf16 they took 10 to "
        "16 % more.";
  }
  if (setup.recompute.kind != RecomputeKind::kSelective) return doubt;
  if (!doubt.empty()) doubt += " ";
  return doubt +
         "Of selective recompute memory alone was compared with runs (two that torchtitan "
         "published), its time with none.";
}

std::string TorchBased::WhyNotTaken(const ChoiceEstimate& other, const ChoiceEstimate& best) const {
  const double lost = 1 - *other.time.tokens_per_second / *best.time.tokens_per_second;
  if (other.room != MemoryRoom::kAmple && other.room != best.room) {
    return other.room == MemoryRoom::kTight
               ? ", but its memory does not fit with the margin of error on top"
           : other.room == MemoryRoom::kEmptiesCache
               ? ", but it empties the allocator's cache while it runs, which costs time"
               : ", but its tensors do not fit with the margin of error on top";
  }
  if (std::abs(lost) <= kEnumeratedTieMargin) return " (a tie: the simpler is taken)";
  if (lost >= 0) return "";
  const auto trust = [this](const ChoiceEstimate& of) {
    return Merit(of) / *of.time.tokens_per_second;
  };
  return fmt::format(", but its time is known less well: to be taken it has to be {:.2g} % faster",
                     100 * (trust(best) / trust(other) - 1));
}

std::string_view TorchBased::OptimizerText() const {
  return RowOf(TorchRecipe{}.UsedOptimizer()).text;
}

std::vector<std::string> TorchBased::Notes(const ChoiceEstimate& choice,
                                           const TorchRecipe& recipe) const {
  std::vector<std::string> notes;
  if (choice.setup.recompute.kind == RecomputeKind::kFull) {
    notes.push_back(fmt::format(
        "Recompute is no key of {}: the model's code switches it on (torch.utils.checkpoint around "
        "every layer).",
        name()));
  }
  notes.push_back(
      fmt::format("Predicted for {} ({}) with {} and {}; docs/runtimes.md has what is assumed and "
                  "what is not modelled.",
                  StyleCodeOf(recipe.code, false).text,
                  !recipe.compile.layers ? "not compiled; ⟦compile⟧ layers is for code that is"
                  : recipe.compile.loss  ? "layers and loss under torch.compile"
                                         : "layers under torch.compile",
                  recipe.attention == TorchAttention::kEager ? "attention that keeps its scores"
                                                             : "fused attention",
                  recipe.optimizer ? RowOf(*recipe.optimizer).text : OptimizerText()));
  if (const std::optional<TorchFloat8> float8 = Float8Of(choice.setup.precision, recipe)) {
    notes.push_back(
        fmt::format("Products of layers are torchao's ({}), of the linears whose sides {} divides; "
                    "the head stays in bf16.",
                    TorchFloat8Name(*float8), kFloat8Multiple));
  }
  if (HasRing() && choice.setup.batch.sequence_ranks > 1) {
    notes.emplace_back(
        "Sequences over GPUs are PyTorch's context_parallel as it is by default: chunks from both "
        "ends of a sequence, keys and values gathered at once.");
  }
  if (recipe.optimizer_in_backward) {
    notes.emplace_back(
        "An optimizer in backward cannot clip gradients by their norm: none is clipped.");
  }
  if (recipe.offload_activations) {
    notes.push_back(
        fmt::format("Inputs of checkpointed layers go to the host as {}.", Offloading().text));
  }
  if (choice.footprint.torch && choice.footprint.torch->managed_bytes > 0) {
    notes.push_back(fmt::format(
        "{} of paged states a GPU are in managed memory, of no class above: on the GPU while it "
        "has room, else on the host, and then each step is taken to wait for all that has no room.",
        FormatBytes(choice.footprint.torch->managed_bytes)));
  }
  return notes;
}

}  // namespace zeroplan
