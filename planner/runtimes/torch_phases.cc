#include "planner/runtimes/torch_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/units.h"
#include "core/settings/setup_facts.h"
#include "planner/runtimes/fsdp2_engine.h"
#include "planner/runtimes/torch_optimizer.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {
namespace {

// TrainingArguments.per_device_eval_batch_size.
constexpr int64_t kEvalBatch = 8;
// save_pretrained's max_shard_size: what it holds of a model's files at once.
constexpr uint64_t kFileBytes = 50'000'000'000;

constexpr const char* kMapped =
    "safetensors are mapped into memory, so that no process copies what has the checkpoint's dtype "
    "(taken to be 16 bit)";

// The bytes of a run's parameters, each trained element in `held_bytes`, what is frozen in 16 bit.
struct Sizes {
  Sizes(const TorchModel& model, uint64_t held_bytes) {
    const auto bytes_of = [&](const TorchParam& param) {
      return (param.trained ? held_bytes : 2) * param.elements;
    };
    for (const TorchParam& param : model.params) {
      const uint64_t bytes = bytes_of(param);
      all += bytes;
      if (param.trained) trained += bytes;
      for (int i = 0; param.quantized > 0 && i < kQuantTensors; ++i) {
        quant += QuantTensorBytes(param.quantized, i);
      }
      if (param.quantized > 0) packed += bytes;
      widest = std::max(widest, 2 * param.quantized);
      largest = std::max(largest, bytes);
    }
    // PEFT's checkpoints are of adapters alone.
    saved = model.has_adapters() ? trained : all;
    const auto embedding = static_cast<size_t>(model.embedding());
    if (model.spec.tied_head) tied = bytes_of(model.params[embedding]);
    const auto of_module = [&](size_t module) {
      uint64_t sum = 0;
      for (const int param : model.modules[module].params) {
        sum += bytes_of(model.params[static_cast<size_t>(param)]);
      }
      return sum;
    };
    for (size_t i = 0; i < model.modules.size(); ++i) {
      largest_module = std::max(largest_module, of_module(i));
    }
    for (int i = 0; i < model.layer_modules; ++i) {
      layer += of_module(static_cast<size_t>(model.first_layer_module) + static_cast<size_t>(i));
    }
  }

  uint64_t all = 0, trained = 0, saved = 0, largest = 0, largest_module = 0, layer = 0;
  // 4-bit weights: bytes that they are packed in, their statistics and tables, and the bytes that
  // the largest one takes in 16 bit.
  uint64_t packed = 0, quant = 0, widest = 0;
  uint64_t tied = 0;  // a second time, where a head that is tied is copied by its own name
};

uint64_t Share(uint64_t elements, uint64_t ranks) { return (elements + ranks - 1) / ranks; }

// Every process as it is between steps, or after initialisation.
AroundPeak Begin(AroundPhase phase, uint64_t gpu, uint64_t host) {
  AroundPeak peak;
  peak.phase = phase;
  peak.bytes = {gpu, host, host};
  return peak;
}

void AddToEach(uint64_t host, AroundBytes* bytes) {
  bytes->rank_0_host += host;
  bytes->other_host += host;
}

// The bytes of an optimizer's states of all parameters.
uint64_t WholeStates(const TorchModel& model, TorchOptimizer optimizer, Dtype params) {
  uint64_t sum = 0;
  for (const UpdatedTensor& tensor : UpdatedTensorsOf(model)) {
    const StatesBytes states = StatesBytesOf(RowOf(optimizer), tensor, params);
    sum += states.allocated + states.managed;
  }
  return sum;
}

constexpr const char* kQuantizedOnHost = "device_map={\"\": \"cpu\"}";

// transformers 5.24 quantizes on the device of device_map, on every rank, with
// cpu_ram_efficient_loading too (quantizer_bnb_4bit.py, update_device_map); then
// fsdp2_prepare_model shards, and its state dict keeps what was whole until it ends.
void LoadQuantized(const Sizes& sizes, bool shards_nf4, bool on_host, uint64_t ranks,
                   AroundPeak* loading) {
  const uint64_t whole = sizes.all + sizes.quant;
  const uint64_t sharded = shards_nf4 ? sizes.all : sizes.all - sizes.packed;
  const uint64_t part = on_host ? 0 : Share(sharded, ranks);
  const AroundBytes before = loading->bytes;
  loading->why = "every rank quantizes all weights before they are sharded";
  loading->setting = "on its GPU, as from_pretrained does by default";
  loading->bytes.gpu = std::max(before.gpu, whole + std::max(part, sizes.widest));
  // fully_shard moves what it shards to the GPU, a group at a time, and nothing else.
  if (!shards_nf4) return;
  loading->instead = kQuantizedOnHost;
  loading->takes_instead = true;
  loading->instead_bytes = before;
  loading->instead_bytes.gpu =
      std::max(before.gpu, part + sizes.quant + std::max(sizes.layer, sizes.largest));
  // Page-locked shards are there when nothing is quantized any more.
  AddToEach(whole + (on_host ? 0 : sizes.widest), &loading->instead_bytes);
}

std::string Capitalized(std::string_view text) {
  std::string out(text);
  out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out;
}

std::string SettingText(const AroundPeak& peak) {
  return peak.setting.empty() ? "" : fmt::format(" ({})", peak.setting);
}

}  // namespace

bool RunsTrainer(const TorchRecipe& recipe) {
  return recipe.code == CodeStyle::kHf || recipe.code == CodeStyle::kLiger;
}

std::vector<AroundPeak> DeepSpeedAround(const PlayedRun& run) {
  const TrainSetup& setup = run.play.setup;
  const ZeroConfig& zero = setup.zero;
  const bool trainer = RunsTrainer(run.play.recipe), last_stage = zero.stage == 3;
  const bool mics = Hybrid(setup) && zero.across_stage == 0;
  const auto ranks = static_cast<uint64_t>(zero.stage == 0 ? 1
                                           : mics          ? zero.shard_group
                                                           : setup.batch.world_size);
  const Sizes sizes(run.model, 2);
  const uint64_t part = Share(sizes.trained / 2, ranks);  // elements
  const uint64_t master_bytes = setup.precision.master_weights == MasterWeights::kParam ? 2 : 4;
  const uint64_t state_bytes = setup.precision.moment_dtype == Dtype::kBF16 ? 4 : 8;
  const uint64_t states = state_bytes * part;
  const bool in_files = zero.offload_optimizer.device == OffloadDevice::kNvme;
  const bool on_host = zero.offload_optimizer.device != OffloadDevice::kNone;
  std::vector<AroundPeak> all;
  if (trainer) {
    // modeling_utils.py: rank 0 alone reads at stage 3 (_load_state_dict_into_zero3_model), and
    // GatheredParameters brings a module at a time to every GPU.
    // Below stage 3 the engine moves what was loaded to the GPU; what initialisation then makes of
    // it is among the run's own phases.
    AroundPeak loading =
        Begin(AroundPhase::kLoading, last_stage ? run.init_peak : sizes.all, run.host_init_peak);
    loading.why = kMapped;
    if (last_stage) {
      loading.why = "rank 0 reads, and hands out a module at a time; what it reads is mapped";
    }
    all.push_back(std::move(loading));
  }

  AroundPeak saving = Begin(AroundPhase::kSaving, run.between_steps, run.host_between_steps);
  // torch.save copies a tensor of the GPU to the host at a time: the flat ones are the rank's part
  // of masters or states, at stage 3 of a sub-group.
  const uint64_t flat =
      on_host
          ? 0
          : 4 * (last_stage ? std::min(part, std::max(zero.sub_group_elements, sizes.largest / 2))
                            : part);
  if (last_stage) {
    AroundBytes shards = saving.bytes;
    AddToEach(flat, &shards);
    saving.bytes = shards;
    saving.why = "each rank writes its own part";
    if (trainer) {
      // engine.py, _zero3_consolidated_16bit_state_dict: a module at a time on every GPU.
      saving.bytes.rank_0_host = run.host_between_steps + std::max(sizes.saved, flat);
      saving.bytes.gpu += 2 * sizes.largest_module;
      saving.why = "rank 0 gathers all 16-bit weights";
      if (run.model.has_adapters()) saving.why = "rank 0 gathers the adapters";
      saving.setting = "stage3_gather_16bit_weights_on_model_save true";
      saving.instead = "false, and zero_to_fp32.py afterwards";
      saving.instead_bytes = shards;
    }
  } else {
    // engine.py, _save_checkpoint: rank 0 writes the 16-bit weights, which are one flat tensor, at
    // stage 0 the optimizer's with them; _save_zero_checkpoint: each rank its part.
    uint64_t of_rank_0 = std::max(sizes.saved, flat), of_others = zero.stage == 0 ? 0 : flat;
    saving.why = "rank 0 writes the weights, and each rank its part of the optimizer's states";
    if (zero.stage == 0) saving.why = "rank 0 writes weights and states, a flat tensor at a time";
    if (trainer) {
      // accelerator.py, get_state_dict: clone_tensors_for_torch_save on every rank, a tied head
      // twice; trainer.py, save_model.
      of_rank_0 = std::max(of_rank_0, sizes.all + sizes.tied);
      of_others = std::max(of_others, sizes.all + sizes.tied);
      saving.why = fmt::format(
          "every rank copies all 16-bit weights to its host, though rank 0 alone writes them; "
          "stage 3 copies them on rank 0 alone. Afterwards, in save_checkpoint, rank 0 copies {} "
          "of weights, then each rank {} of its masters or states at a time",
          FormatBytes(sizes.saved), FormatBytes(flat));
    }
    saving.bytes.rank_0_host += of_rank_0;
    saving.bytes.other_host += of_others;
  }
  all.push_back(std::move(saving));

  // engine.py, load_checkpoint: to the host, on every rank the 16-bit weights (below stage 3), then
  // its part of masters and states; Optimizer.load_state_dict moves states to the GPU.
  AroundPeak resuming = Begin(AroundPhase::kResuming, run.after_init, run.host_after_init);
  const uint64_t read = in_files ? 0 : (master_bytes + state_bytes) * part;
  if (!on_host) resuming.bytes.gpu += states;
  if (in_files) {
    resuming.why = "files of masters and states are copied";
  } else if (last_stage) {
    resuming.why = "each rank reads its part of masters and states to its host";
    if (ranks > 1) {
      resuming.setting = "zero_optimization.pipeline_loading_checkpoint false";
      resuming.instead = "true, one rank of a node after the other";
      resuming.instead_bytes = resuming.bytes;
      AddToEach(on_host ? states : 0, &resuming.instead_bytes);
      resuming.instead_bytes.rank_0_host += read - (on_host ? states : 0);
    }
    AddToEach(read, &resuming.bytes);
  } else if (zero.stage == 0) {
    resuming.why = "every rank reads weights, masters and states to its host";
    AddToEach(sizes.saved + read, &resuming.bytes);
  } else {
    resuming.why =
        "every rank reads the 16-bit weights to its host, then its part of masters and states";
    AddToEach(std::max(sizes.saved, read), &resuming.bytes);
  }
  all.push_back(std::move(resuming));
  for (AroundPeak& peak : all) peak.bytes.gpu += run.context;
  for (AroundPeak& peak : all) peak.instead_bytes.gpu += run.context;
  return all;
}

// partition_parameters.py, GatheredParameters and _allgather_params_coalesced, which TRL 1.16 asks
// for in unwrap_model_for_generation (models/utils.py): a tensor for each parameter that is not
// whole; shards that lie on the host are brought all at once.
std::vector<AroundPeak> DeepSpeedGathers(const PlayedRun& run) {
  const TrainSetup& setup = run.play.setup;
  const ZeroConfig& zero = setup.zero;
  const bool from_host = zero.offload_param.device != OffloadDevice::kNone;
  const bool several = setup.batch.world_size > 1;
  if (zero.stage < 3 || (!several && !from_host)) return {};
  const bool mics = Hybrid(setup) && zero.across_stage == 0;
  const auto ranks = static_cast<uint64_t>(mics ? zero.shard_group : setup.batch.world_size);
  uint64_t gathered = 0, brought = 0;
  for (const TorchParam& param : run.model.params) {
    if (param.elements <= zero.param_persistence_threshold) continue;
    const uint64_t shard = Share(param.elements, ranks);
    gathered += 2 * ranks * shard;
    brought += from_host ? 2 * shard : 0;
  }
  if (zero.quantized_weights)
    gathered += gathered / 2;  // int8, from which the 16-bit ones are made
  const Sizes sizes(run.model, 2);
  AroundPeak peak =
      Begin(AroundPhase::kGathering, run.between_steps + run.context, run.host_between_steps);
  peak.why =
      "deepspeed.zero.GatheredParameters(model.parameters()) brings the whole model in 16 bit to "
      "every GPU, not counting what generation then keeps";
  peak.setting = fmt::format(
      "ds3_gather_for_generation True, TRL's default; use_vllm gathers {}",
      run.model.has_adapters() ? "as much for a model with adapters" : "a parameter at a time");
  peak.instead = "ds3_gather_for_generation False, where modules are gathered as they run";
  peak.instead_bytes = peak.bytes;
  peak.instead_bytes.gpu += std::min(gathered, 2 * zero.max_live_parameters + sizes.largest_module);
  peak.bytes.gpu += gathered + brought;
  return {peak};
}

// torch/distributed/checkpoint/state_dict.py, get_model_state_dict with full_state_dict, and FSDP's
// FULL_STATE_DICT: whole parameters in the dtype of the shards.
std::vector<AroundPeak> Fsdp2Gathers(const PlayedRun& run) {
  const TrainSetup& setup = run.play.setup;
  if (setup.batch.world_size == 1) return {};
  const Sizes sizes(run.model, DtypeBytes(Fsdp2ShardDtype(run.play.recipe)));
  AroundPeak peak =
      Begin(AroundPhase::kGathering, run.between_steps + run.context, run.host_between_steps);
  peak.why = "a full state dict has the whole model on every GPU";
  peak.setting =
      "full_state_dict without cpu_offload; FSDP 1: FULL_STATE_DICT without offload_to_cpu";
  peak.instead = "cpu_offload True (FSDP 1: offload_to_cpu and rank0_only True), on rank 0's host";
  peak.instead_bytes = peak.bytes;
  peak.instead_bytes.gpu += 2 * sizes.largest;
  peak.instead_bytes.rank_0_host += sizes.all + sizes.tied;
  peak.bytes.gpu += sizes.all;
  return {peak};
}

std::vector<AroundPeak> Fsdp2Around(const PlayedRun& run) {
  const TorchRecipe& recipe = run.play.recipe;
  if (!RunsTrainer(recipe)) return {};
  const TrainSetup& setup = run.play.setup;
  const auto ranks = static_cast<uint64_t>(ShardRanks(setup.zero, setup.batch.world_size));
  const Dtype held = Fsdp2ShardDtype(recipe);
  const uint64_t held_bytes = DtypeBytes(held);
  const bool casts = held == Dtype::kF32;
  const bool on_host = setup.zero.offload_param.device != OffloadDevice::kNone;
  const Sizes sizes(run.model, held_bytes);
  const uint64_t part = Share(sizes.all, ranks), trained_part = Share(sizes.trained, ranks);
  const uint64_t states = WholeStates(run.model, recipe.UsedOptimizer(), held);
  const uint64_t own_states = Share(states, ranks);
  // full_tensor of a DTensor: gathered, then laid out.
  const uint64_t gathered = 2 * sizes.largest;
  std::vector<AroundPeak> all;

  // fsdp2_prepare_model: trained weights are cast on the host, with cpu_ram_efficient_loading too,
  // and kept until all are sharded; fully_shard moves a group to the GPU, then shards it.
  AroundPeak loading = Begin(AroundPhase::kLoading, 0, run.host_after_init);
  const uint64_t group = std::max(sizes.layer, sizes.largest);
  loading.bytes.gpu = std::max(run.init_peak, on_host ? group : part + group);
  loading.why = kMapped;
  if (run.model.spec.lora_quantized) {
    loading.bytes.gpu = run.init_peak;
    LoadQuantized(sizes, Fsdp2ShardsNf4(run.play), on_host, ranks, &loading);
  } else if (casts) {
    loading.why = "accelerate casts all trained weights to fp32 on the host of every rank";
    const bool scales = setup.precision.dtype == Dtype::kF16;
    loading.setting = fmt::format("{} true, with cpu_ram_efficient_loading or without",
                                  DtypeName(setup.precision.dtype));
    loading.instead = scales ? "" : "⟦param_dtype⟧ bf16, weights in bf16 without it";
    if (!scales) {
      loading.instead_bytes = loading.bytes;
      const Sizes narrow(run.model, 2);
      loading.instead_bytes.gpu =
          std::max(narrow.layer, narrow.largest) + (on_host ? 0 : Share(narrow.all, ranks));
    }
    AddToEach(sizes.trained, &loading.bytes);
  }
  all.push_back(std::move(loading));

  // save_model (accelerator.get_state_dict), save_fsdp_model, then save_fsdp_optimizer: rank 0
  // holds one of them at a time. With one process the last two copy nothing to the host.
  const bool several = setup.batch.world_size > 1;
  const char* full = "fsdp_config state_dict_type FULL_STATE_DICT, the Trainer's default";
  AroundPeak saving = Begin(AroundPhase::kSaving, run.between_steps, run.host_between_steps);
  saving.why = several
                   ? "rank 0 gathers all weights, then all of the optimizer's states, on its host"
                   : "all weights are copied to the host";
  saving.setting = full;
  saving.instead = "SHARDED_STATE_DICT";
  saving.instead_bytes = saving.bytes;
  if (!on_host) {
    AddToEach(std::max(Share(sizes.saved, ranks), own_states), &saving.instead_bytes);
  }
  saving.bytes.rank_0_host += std::max(sizes.all + sizes.tied, several ? states : 0);
  saving.bytes.gpu += several ? gathered : 0;
  all.push_back(std::move(saving));

  // load_fsdp_model, then load_fsdp_optimizer: torch/distributed/checkpoint/state_dict.py,
  // _init_optim_state makes gradients and states, then rank 0's are handed out a tensor at a time.
  // One process reads all to where it was saved from, and loads a copy of it.
  AroundPeak resuming = Begin(AroundPhase::kResuming, run.after_init, run.host_after_init);
  if (on_host) AddToEach(trained_part + own_states, &resuming.bytes);
  resuming.setting = full;
  resuming.instead = "SHARDED_STATE_DICT";
  if (!on_host) resuming.bytes.gpu += trained_part + own_states;
  resuming.instead_bytes = resuming.bytes;
  if (!on_host) AddToEach(own_states, &resuming.instead_bytes);
  if (several) {
    resuming.why = "rank 0 reads all weights, then all of the optimizer's states, to its host";
    resuming.bytes.gpu =
        std::max(resuming.bytes.gpu, run.after_init + (on_host ? 0 : own_states) + gathered);
    resuming.bytes.rank_0_host +=
        std::max(sizes.saved + (sizes.saved == sizes.all ? sizes.tied : 0), states);
  } else {
    resuming.why = "the optimizer's states are read beside new ones, and copied";
    (on_host ? resuming.bytes.rank_0_host : resuming.bytes.gpu) += 2 * states - trained_part;
  }
  all.push_back(std::move(resuming));
  for (AroundPeak& peak : all) peak.bytes.gpu += run.context;
  for (AroundPeak& peak : all) peak.instead_bytes.gpu += run.context;
  return all;
}

std::vector<AroundPeak> DdpAround(const PlayedRun& run, Dtype held) {
  const TorchRecipe& recipe = run.play.recipe;
  if (!RunsTrainer(recipe)) return {};
  const bool one_gpu = run.play.setup.batch.world_size == 1, casts = held == Dtype::kF32;
  const Sizes sizes(run.model, DtypeBytes(held));
  const uint64_t states = WholeStates(run.model, recipe.UsedOptimizer(), held);
  std::vector<AroundPeak> all;

  AroundPeak loading = Begin(AroundPhase::kLoading, run.init_peak, run.host_after_init);
  loading.why = kMapped;
  if (casts) {
    loading.why = "every rank casts all weights to fp32 on its host";
    loading.setting = "from_pretrained's dtype torch.float32";
    loading.instead = "⟦param_dtype⟧ bf16";
    loading.instead_bytes = loading.bytes;
    loading.instead_bytes.gpu = Share(run.init_peak, 2);
    AddToEach(sizes.all, &loading.bytes);
  }
  all.push_back(std::move(loading));

  // save_pretrained copies the tensors of a file to the host (safetensors, _to_ndarray); torch.save
  // an optimizer's tensor at a time.
  AroundPeak saving = Begin(AroundPhase::kSaving, run.between_steps, run.host_between_steps);
  saving.why = "rank 0 copies the weights of a file, of 50 GB at most, to its host";
  saving.bytes.rank_0_host += std::min(sizes.saved, kFileBytes);
  all.push_back(std::move(saving));

  // trainer.py, _load_optimizer_and_scheduler: to the host with one GPU, else to each GPU; weights
  // are mapped.
  AroundPeak resuming = Begin(AroundPhase::kResuming, run.after_init + states, run.host_after_init);
  resuming.why = one_gpu ? "the optimizer's states are read to the host, then moved"
                         : "each rank reads the optimizer's states to its GPU";
  if (one_gpu) AddToEach(states, &resuming.bytes);
  all.push_back(std::move(resuming));
  for (AroundPeak& peak : all) peak.bytes.gpu += run.context;
  for (AroundPeak& peak : all) peak.instead_bytes.gpu += run.context;
  return all;
}

AroundPeak PlayEvaluation(const PlayedRun& run, const TorchRun& of_steps, TorchRuntime* engine,
                          TorchMemory* memory) {
  // evaluation_loop: the model's forward pass without gradients; what it returns, logits among it,
  // lives until the loss is there.
  TorchTimer no_timer(nullptr, {});
  TorchRun evaluation = of_steps;
  evaluation.evaluates = true;
  evaluation.recompute = evaluation.saves_products = false;
  // accelerate disables Ulysses there (disable_in_eval), while a ring has its part of a sequence.
  if (!of_steps.ring) evaluation.sequence_ranks = 1;
  const auto play = [&](int64_t batch) {
    evaluation.micro_batch = batch;
    memory->ForgetPeaks(TorchPhase::kForwardBackward);
    engine->BeginMicroStep(/*last=*/true);
    TorchStep(run.model, evaluation, memory, engine, &no_timer).Forward();
    return memory->peak(TorchPhase::kForwardBackward);
  };
  const std::optional<int64_t>& said = run.play.recipe.per_device_eval_batch_size;
  const int64_t batch = said.value_or(kEvalBatch);
  const TorchPeak one = play(1), peak = play(batch);
  AroundPeak of =
      Begin(AroundPhase::kEvaluation, peak.allocated_bytes + run.context, run.host_between_steps);
  const uint64_t logits = peak.class_bytes[static_cast<size_t>(TorchClass::kLogits)];
  const std::string sequences = fmt::format("{} sequence{}", batch, batch == 1 ? "" : "s");
  of.why = logits == 0 ? sequences + " at once"
                       : fmt::format("{} of it {}{} logits and their loss", FormatBytes(logits),
                                     sequences, batch == 1 ? "'s" : "'");
  of.setting =
      fmt::format("per_device_eval_batch_size {}{}", batch, said ? "" : ", the Trainer's default");
  if (batch == 1) return of;
  of.instead = "per_device_eval_batch_size 1";
  of.instead_bytes = of.bytes;
  of.instead_bytes.gpu = one.allocated_bytes + run.context;
  return of;
}

void JudgeAround(const Capacity& capacity, int ranks_per_node, AroundPeak* peak) {
  const auto short_of = [&](const AroundBytes& bytes) {
    if (capacity.gpu_bytes && bytes.gpu > *capacity.gpu_bytes) {
      return fmt::format("GPU memory: tensors and context need {} of {}", FormatBytes(bytes.gpu),
                         FormatBytes(*capacity.gpu_bytes));
    }
    const uint64_t host = bytes.NodeHost(ranks_per_node);
    if (capacity.host_bytes && host > *capacity.host_bytes) {
      return fmt::format("host memory: {} process{} need{} {} of {}", ranks_per_node,
                         ranks_per_node == 1 ? "" : "es", ranks_per_node == 1 ? "s" : "",
                         FormatBytes(host), FormatBytes(*capacity.host_bytes));
    }
    return std::string();
  };
  const std::string misfit = short_of(peak->bytes);
  if (misfit.empty()) return;
  if (peak->takes_instead && short_of(peak->instead_bytes).empty()) {
    std::swap(peak->bytes, peak->instead_bytes);
    std::swap(peak->setting, peak->instead);
    return;
  }
  peak->why_not = fmt::format("{}: {}: {}{}", AroundPhaseName(peak->phase), misfit, peak->why,
                              SettingText(*peak));
  peak->instead_fits = !peak->instead.empty() && short_of(peak->instead_bytes).empty();
  if (peak->instead_fits) peak->why_not += fmt::format("; with {} it fits", peak->instead);
  if (peak->takes_instead) {
    peak->why_not += fmt::format("; with {}: {}", peak->instead, short_of(peak->instead_bytes));
  }
}

bool QuantizesOnHost(const Footprint& footprint) {
  if (!footprint.torch) return false;
  const std::vector<AroundPeak>& around = footprint.torch->around;
  return std::any_of(around.begin(), around.end(),
                     [](const AroundPeak& peak) { return peak.setting == kQuantizedOnHost; });
}

std::optional<int64_t> EvalBatchToSay(const Footprint& footprint) {
  if (!footprint.torch) return std::nullopt;
  for (const AroundPeak& peak : footprint.torch->around) {
    if (peak.phase == AroundPhase::kEvaluation && peak.instead_fits) return 1;
  }
  return std::nullopt;
}

std::string AroundText(const AroundPeak& peak, int ranks_per_node) {
  std::string text =
      fmt::format("{}: {} of a GPU, {} of a node's host: {}{}.",
                  Capitalized(AroundPhaseName(peak.phase)), FormatBytes(peak.bytes.gpu),
                  FormatBytes(peak.bytes.NodeHost(ranks_per_node)), peak.why, SettingText(peak));
  if (!peak.instead.empty()) {
    text += fmt::format(" With {}: {} and {}.", peak.instead, FormatBytes(peak.instead_bytes.gpu),
                        FormatBytes(peak.instead_bytes.NodeHost(ranks_per_node)));
  }
  return peak.why_not.empty() ? text : text + " That does not fit.";
}

}  // namespace zeroplan
