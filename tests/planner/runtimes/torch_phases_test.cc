// Phases around the steps of other programs: what they take, and what comes of it.
#include "planner/runtimes/torch_phases.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/units.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/estimate.h"
#include "planner/page/choice_pictures.h"
#include "planner/report/report.h"
#include "planner/runtimes/runtimes.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

struct PhasesOf {
  explicit PhasesOf(const Runtime& runtime) : runtime_(runtime) {
    play.model = LoadModel("llama3.2-1b");
    play.around = true;
    play.recipe.code = CodeStyle::kHf;
    TrainSetup& setup = play.setup;
    setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kBF16;
    setup.batch.world_size = 8;
    setup.batch.micro_batch = 1;
    setup.batch.seq_len = 2048;
  }

  TorchFootprint Footprint() const { return dynamic_cast<const TorchBased&>(runtime_).Play(play); }
  AroundPeak Peak(AroundPhase phase) const {
    const TorchFootprint footprint = Footprint();
    const auto at = std::find_if(footprint.around.begin(), footprint.around.end(),
                                 [&](const AroundPeak& peak) { return peak.phase == phase; });
    REQUIRE(at != footprint.around.end());
    return *at;
  }
  // Of transformers' models, which have no padding.
  uint64_t params() const { return play.model.ParamCount(); }

  TorchPlay play;

 private:
  const Runtime& runtime_;
};

constexpr uint64_t kInitBase = 1'450'000'000;  // HostBaseBytes before the first step

// Two CPU ranks of accelerate 1.15 with a model of 0.244e9 parameters: 0.975 GB more on each while
// fsdp2_prepare_model ran, with cpu_ram_efficient_loading and without; from_pretrained of a 16-bit
// file 0.003 GB, with dtype float32 4 bytes a parameter.
TEST_CASE("loading: what is cast is on every rank's host, what is mapped on none's") {
  PhasesOf fsdp2(Fsdp2Runtime());
  fsdp2.play.setup.zero.stage = 3;
  AroundPeak loading = fsdp2.Peak(AroundPhase::kLoading);
  CHECK(loading.bytes.other_host == kInitBase + 4 * fsdp2.params());
  CHECK(loading.bytes.rank_0_host == loading.bytes.other_host);
  CHECK(loading.bytes.NodeHost(8) == 8 * loading.bytes.other_host);
  CHECK(loading.instead_bytes.other_host == kInitBase);
  CHECK(Has(loading.instead, "⟦param_dtype⟧ bf16"));

  const uint64_t instead_gpu = loading.instead_bytes.gpu;
  CHECK(instead_gpu < loading.bytes.gpu);
  fsdp2.play.recipe.param_dtype = Dtype::kBF16;
  loading = fsdp2.Peak(AroundPhase::kLoading);
  CHECK(loading.bytes.other_host == kInitBase);
  CHECK(loading.bytes.gpu == instead_gpu);
  CHECK(loading.instead.empty());

  PhasesOf ddp(DdpRuntime());
  CHECK(ddp.Peak(AroundPhase::kLoading).bytes.other_host == kInitBase);
  ddp.play.recipe.param_dtype = Dtype::kF32;
  CHECK(ddp.Peak(AroundPhase::kLoading).bytes.other_host == kInitBase + 4 * ddp.params());
}

TEST_CASE("saving: who holds what on its host") {
  PhasesOf deepspeed(DeepSpeedRuntime());
  const uint64_t params = deepspeed.params();
  const uint64_t tied = 128256ULL * 2048;
  const auto more = [&](const PhasesOf& of) {
    const AroundBytes bytes = of.Peak(AroundPhase::kSaving).bytes;
    const uint64_t between = of.Peak(AroundPhase::kEvaluation).bytes.other_host;
    return std::pair(bytes.rank_0_host - between, bytes.other_host - between);
  };
  deepspeed.play.setup.zero.stage = 2;
  CHECK(more(deepspeed) == std::pair(2 * (params + tied), 2 * (params + tied)));
  // Then rank 0 copies the flat weights, and each rank its part of masters or states.
  CHECK(Has(deepspeed.Peak(AroundPhase::kSaving).why,
            fmt::format("rank 0 copies {} of weights, then each rank {} of its masters or states",
                        FormatBytes(2 * params), FormatBytes(params / 2))));
  // Without the Trainer rank 0 alone has the weights, each rank its part of masters or states.
  const uint64_t with_trainer = deepspeed.Peak(AroundPhase::kSaving).bytes.other_host;
  deepspeed.play.recipe.code = CodeStyle::kPlain;
  const AroundPeak plain = deepspeed.Peak(AroundPhase::kSaving);
  CHECK(plain.bytes.other_host < with_trainer);
  CHECK(plain.bytes.rank_0_host > plain.bytes.other_host);
  CHECK(deepspeed.Footprint().around.front().phase == AroundPhase::kSaving);

  deepspeed.play.recipe.code = CodeStyle::kHf;
  deepspeed.play.setup.zero.stage = 3;
  const auto [rank_0, others] = more(deepspeed);
  CHECK(rank_0 == 2 * params);
  // save_checkpoint: a flat tensor of the rank's part.
  CHECK(others == doctest::Approx(0.5 * static_cast<double>(params)).epsilon(1e-3));
  const AroundPeak stage_3 = deepspeed.Peak(AroundPhase::kSaving);
  CHECK(Has(stage_3.setting, wording::kStageGatherBitWeightsOn));
  CHECK(stage_3.instead_bytes.rank_0_host < stage_3.bytes.rank_0_host);
  CHECK(stage_3.instead_bytes.other_host == stage_3.bytes.other_host);

  // Two CPU ranks: rank 0 took 8 bytes a parameter while it saved states, the other twice the
  // largest tensor, which on a GPU is the GPU's.
  PhasesOf fsdp2(Fsdp2Runtime());
  fsdp2.play.setup.zero.stage = 3;
  CHECK(more(fsdp2) == std::pair(8 * params, uint64_t{0}));
  fsdp2.play.recipe.param_dtype = Dtype::kBF16;
  CHECK(more(fsdp2) == std::pair(4 * params, uint64_t{0}));
  CHECK(more(PhasesOf(DdpRuntime())) == std::pair(2 * params, uint64_t{0}));
}

TEST_CASE("phases around the steps: adapters alone are saved, and the whole model on the way") {
  const auto with_lora = [](const Runtime& runtime, int stage) {
    PhasesOf of(runtime);
    of.play.setup.zero.stage = stage;
    of.play.model.lora_rank = 16;
    of.play.model.lora_alpha = 32;
    of.play.model.lora_targets = "all-linear";
    const TorchModel model(of.play.model);
    const uint64_t adapters = model.trained_elements();
    CHECK(adapters < of.params() / 50);
    const AroundBytes saving = of.Peak(AroundPhase::kSaving).bytes;
    return std::array<double, 4>{
        static_cast<double>(saving.rank_0_host -
                            of.Peak(AroundPhase::kEvaluation).bytes.rank_0_host),
        static_cast<double>(of.Peak(AroundPhase::kResuming).bytes.rank_0_host - kInitBase),
        static_cast<double>(model.elements()), static_cast<double>(adapters)};
  };
  const auto [saved_2, read_2, all, adapters] = with_lora(DeepSpeedRuntime(), 2);
  CHECK(saved_2 > 2 * all);
  CHECK(read_2 == 2 * adapters);
  const auto stage_3 = with_lora(DeepSpeedRuntime(), 3);
  CHECK(stage_3[0] == 2 * adapters);
  const auto fsdp2 = with_lora(Fsdp2Runtime(), 3);
  CHECK(fsdp2[0] > 2 * (all - adapters) + 4 * adapters);  // and the tied head again
  CHECK(fsdp2[1] == 8 * adapters);
  const auto ddp = with_lora(DdpRuntime(), 0);
  CHECK(ddp[0] < 4.1 * adapters);
}

TEST_CASE("phases around the steps: what DeepSpeed has in files is copied, not read") {
  PhasesOf deepspeed(DeepSpeedRuntime());
  deepspeed.play.setup.zero.stage = 3;
  const uint64_t read = deepspeed.Peak(AroundPhase::kResuming).bytes.other_host;
  deepspeed.play.setup.zero.offload_optimizer.device = OffloadDevice::kNvme;
  deepspeed.play.setup.zero.offload_optimizer.buffer_count = 12;
  const AroundPeak files = deepspeed.Peak(AroundPhase::kResuming);
  CHECK(Has(files.why, "files"));
  CHECK(files.bytes.other_host < read + 2'000'000'000);
}

// The Trainer's own runs on one GPU.
TEST_CASE("phases around the steps: measured runs") {
  std::ifstream file(SourcePath("tests/data/runtimes/trainer_runs.jsonl"));
  std::string line;
  int rows = 0;
  while (std::getline(file, line)) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (!row.contains("evaluate")) continue;
    ++rows;
    const std::string name = row["name"], runtime = row["runtime"];
    CAPTURE(name);
    PhasesOf of(runtime == "ddp"     ? DdpRuntime()
                : runtime == "fsdp2" ? Fsdp2Runtime()
                                     : DeepSpeedRuntime());
    of.play.setup.batch.world_size = 1;
    of.play.setup.zero.stage = row["stage"];
    if (runtime == "ddp" && row["weights"] == "fp32") of.play.recipe.param_dtype = Dtype::kF32;
    const auto gib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
    const TorchFootprint footprint = of.Footprint();
    const uint64_t context = footprint.context_bytes;

    const AroundPeak evaluation = of.Peak(AroundPhase::kEvaluation);
    const double one = gib(evaluation.instead_bytes.gpu - context);
    const double eight = gib(evaluation.bytes.gpu - context);
    const double batch = row["eval_batch"];
    CHECK(one + (batch - 1) / 7 * (eight - one) ==
          doctest::Approx(row["evaluate"]["allocated"].get<double>()).epsilon(0.02));

    const AroundPeak saving = of.Peak(AroundPhase::kSaving);
    const double before = row["evaluate"]["host_anonymous"];
    const double saved = std::max(row["save_model"]["host_anonymous"].get<double>(),
                                  row["save_checkpoint"]["host_anonymous"].get<double>());
    CHECK(gib(saving.bytes.rank_0_host - evaluation.bytes.rank_0_host) ==
          doctest::Approx(saved - before).epsilon(0.03));
    CHECK(gib(saving.bytes.gpu - context) ==
          doctest::Approx(std::max(row["save_model"]["allocated"].get<double>(),
                                   row["save_checkpoint"]["allocated"].get<double>()))
              .epsilon(0.04));

    // Loading, and until the first step.
    const AroundPeak loading = of.Peak(AroundPhase::kLoading);
    const AroundPeak resuming = of.Peak(AroundPhase::kResuming);
    CHECK(gib(resuming.bytes.gpu - context) ==
          doctest::Approx(row["resume"]["allocated"].get<double>()).epsilon(0.02));
    const uint64_t host = std::max(resuming.bytes.rank_0_host, loading.bytes.rank_0_host);
    const double python = 0.6;  // of "resume"
    CHECK(gib(host - kInitBase) ==
          doctest::Approx(row["resume"]["host_anonymous"].get<double>() - python).epsilon(0.03));
  }
  CHECK(rows >= 3);
}

TEST_CASE("resuming: what is read comes by way of the host, but for DDP's states on several GPUs") {
  const auto more = [](const PhasesOf& of) {
    const AroundBytes bytes = of.Peak(AroundPhase::kResuming).bytes;
    return std::pair(bytes.rank_0_host - kInitBase, bytes.other_host - kInitBase);
  };
  PhasesOf ddp(DdpRuntime());
  const uint64_t params = ddp.params();
  CHECK(more(ddp) == std::pair(uint64_t{0}, uint64_t{0}));
  const uint64_t on_gpus = ddp.Peak(AroundPhase::kResuming).bytes.gpu;
  ddp.play.setup.batch.world_size = 1;
  CHECK(more(ddp).first == 4 * params);
  CHECK(on_gpus > 6 * params);

  PhasesOf deepspeed(DeepSpeedRuntime());
  deepspeed.play.setup.zero.stage = 0;
  CHECK(more(deepspeed).second == 14 * params);
  deepspeed.play.setup.zero.stage = 1;
  CHECK(more(deepspeed).second == 2 * params);  // more than a part of 12 / 8
  deepspeed.play.setup.batch.world_size = 4;
  CHECK(more(deepspeed).second == doctest::Approx(3.0 * static_cast<double>(params)));
  deepspeed.play.setup.zero.stage = 3;
  CHECK(more(deepspeed).second == doctest::Approx(3.0 * static_cast<double>(params)));
  const AroundPeak one_by_one = deepspeed.Peak(AroundPhase::kResuming);
  CHECK(one_by_one.instead_bytes.NodeHost(4) < one_by_one.bytes.NodeHost(4));

  PhasesOf fsdp2(Fsdp2Runtime());
  fsdp2.play.setup.zero.stage = 3;
  CHECK(more(fsdp2) == std::pair(8 * params, uint64_t{0}));
}

TEST_CASE("gathering the whole model: 16 bit of it on every GPU at stage 3, and nothing below") {
  PhasesOf deepspeed(DeepSpeedRuntime());
  deepspeed.play.setup.zero.stage = 2;
  CHECK(deepspeed.Footprint().gathers.empty());
  deepspeed.play.setup.zero.stage = 3;
  const auto gather = [&](const PhasesOf& of) {
    const TorchFootprint footprint = of.Footprint();
    REQUIRE(footprint.gathers.size() == 1);
    return footprint.gathers.front();
  };
  // Between steps what persists, norms and biases below 1e5 elements, is whole already.
  const auto more = [&](const PhasesOf& of) {
    const AroundPeak peak = gather(of);
    CHECK(peak.phase == AroundPhase::kGathering);
    const uint64_t between = of.Peak(AroundPhase::kSaving).instead_bytes.gpu;
    return std::pair(peak.bytes.gpu - between, peak.instead_bytes.gpu - between);
  };
  const uint64_t params = deepspeed.params(), persists = (2 * 16 + 1) * 2048;
  CHECK(more(deepspeed) == std::pair(2 * (params - persists), 2 * (params - persists)));
  // stage3_max_live_parameters bounds what is gathered as modules run.
  deepspeed.play.setup.zero.max_live_parameters = 100'000'000;
  const uint64_t embedding = 128256ULL * 2048;
  CHECK(more(deepspeed).second == 2 * (100'000'000 + embedding));
  const AroundPeak peak = gather(deepspeed);
  CHECK(Has(AroundText(peak, 8), "ds3_gather_for_generation False"));
  CHECK(Has(AroundText(peak, 8), "Gathering: "));
  // Shards on the host are copied to the GPU all at once, in addition.
  deepspeed.play.setup.zero.offload_param.device = OffloadDevice::kCpu;
  deepspeed.play.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  const auto shards = static_cast<double>(2 * (params - persists)) / 8;
  CHECK(static_cast<double>(more(deepspeed).first) ==
        doctest::Approx(static_cast<double>(2 * (params - persists)) + shards).epsilon(1e-4));
  // One GPU has nothing to gather.
  deepspeed.play.setup.zero.offload_param.device = OffloadDevice::kNone;
  deepspeed.play.setup.zero.offload_optimizer.device = OffloadDevice::kNone;
  deepspeed.play.setup.batch.world_size = 1;
  CHECK(deepspeed.Footprint().gathers.empty());

  // A full state dict of FSDP: fp32, or rank 0's host.
  PhasesOf fsdp2(Fsdp2Runtime());
  fsdp2.play.setup.zero.stage = 3;
  const AroundPeak dict = gather(fsdp2);
  const uint64_t between = fsdp2.Peak(AroundPhase::kSaving).instead_bytes.gpu;
  CHECK(dict.bytes.gpu - between == 4 * params);
  CHECK(dict.instead_bytes.gpu - between == 2 * 4 * embedding);
  CHECK(dict.instead_bytes.rank_0_host - dict.bytes.rank_0_host == 4 * (params + embedding));
  CHECK(dict.instead_bytes.other_host == dict.bytes.other_host);
}

TEST_CASE("evaluation: eight sequences' logits, and little of the layers") {
  PhasesOf ddp(DdpRuntime());
  ddp.play.setup.batch.world_size = 1;
  const TorchFootprint footprint = ddp.Footprint();
  const AroundPeak eight = ddp.Peak(AroundPhase::kEvaluation);
  // In 16 bit, as fp32, and their log-probabilities.
  const uint64_t logits = 10ULL * 8 * 2048 * 128256;
  const uint64_t between = ddp.Peak(AroundPhase::kSaving).bytes.gpu;
  CHECK(eight.bytes.gpu > between + logits);
  CHECK(eight.bytes.gpu < between + logits + 500'000'000);
  // One sequence's forward pass alone takes less than its training step.
  CHECK(eight.instead_bytes.gpu > between + logits / 8);
  CHECK(eight.instead_bytes.gpu < footprint.StepAllocatedBytes() + footprint.context_bytes);
  CHECK(Has(eight.setting, wording::kPerDeviceEvalBatchSize));

  // Liger's loss goes by chunks.
  ddp.play.recipe.code = CodeStyle::kLiger;
  CHECK(ddp.Peak(AroundPhase::kEvaluation).bytes.gpu < between + logits / 4);
  // The steps are as they are without.
  ddp.play.around = false;
  TorchFootprint without = ddp.Footprint();
  CHECK(without.around.empty());
  ddp.play.around = true;
  without.around = ddp.Footprint().around;
  CHECK(without == ddp.Footprint());
}

Estimate EstimateOn(const PhasesOf& of, const Runtime& runtime, uint64_t host_bytes) {
  EstimateInputs inputs;
  inputs.runtime = &runtime;
  inputs.model = of.play.model;
  inputs.recipe = of.play.recipe;
  inputs.setups = {of.play.setup};
  inputs.cluster.gpus = inputs.cluster.gpus_per_node = of.play.setup.batch.world_size;
  inputs.cluster.gpu_capacity_bytes = 40'000'000'000;
  inputs.cluster.host_capacity_bytes = host_bytes;
  return EstimateChoices(inputs);
}

TEST_CASE("what cannot be loaded does not fit; what else cannot be done is said") {
  PhasesOf fsdp2(Fsdp2Runtime());
  fsdp2.play.setup.zero.stage = 3;
  // 8 x (1.45 + 4 x 1.24) GB to load, 8 x 1.83 + 8 x 1.24 to save.
  const ChoiceEstimate dies = EstimateOn(fsdp2, Fsdp2Runtime(), 40'000'000'000).choices.front();
  CHECK(!dies.fits);
  CHECK(Has(dies.why_not, wording::kLoadingHostMemoryProcessesNeed));
  CHECK(Has(dies.why_not, wording::kWithBfWeightsInBf));

  const Estimate lives = EstimateOn(fsdp2, Fsdp2Runtime(), 60'000'000'000);
  const ChoiceEstimate& choice = lives.choices.front();
  CHECK(choice.fits);
  std::string cautions;
  for (const std::string& text : Fsdp2Runtime().Cautions(choice, lives.cluster, {})) {
    cautions += text + '\n';
  }
  // 10 bytes x 8 x 2048 x 128256.
  CHECK(Lacks(cautions, wording::kButNotSaving));
  CHECK(Lacks(cautions, wording::kButNotEvaluation));

  fsdp2.play.setup.batch.seq_len = 8192;
  const Estimate short_of = EstimateOn(fsdp2, Fsdp2Runtime(), 60'000'000'000);
  CHECK(short_of.choices.front().fits);
  cautions = "";
  for (const std::string& text :
       Fsdp2Runtime().Cautions(short_of.choices.front(), short_of.cluster, {})) {
    cautions += text + '\n';
  }
  CHECK(Has(cautions, wording::kItsStepsFitButNot));
  CHECK(Has(cautions, wording::kWithPerDeviceEvalBatch));
  CHECK(EvalBatchToSay(short_of.choices.front().footprint) == 1);
  CHECK_FALSE(EvalBatchToSay(choice.footprint));

  const std::string json = ReportJson(short_of);
  CHECK(Has(json, wording::kPhasesAroundLoading));
  CHECK(Has(json, wording::kWhyNotEvaluationGpuMemory));
  TableStyle style;
  style.columns = 400;
  const std::string table = ReportTable(short_of, style);
  CHECK(Has(table, "Loading: "));
  CHECK(Has(table, "Evaluation: "));
  CHECK(Has(table, wording::kThatDoesNotFit));
  CHECK(Has(table, wording::kWithShardedStateDict));
  const std::optional<Picture> shown = AroundPicture(short_of.choices.front(), short_of.cluster);
  REQUIRE(shown);
  REQUIRE(shown->table.rows.size() == 4);
  CHECK(shown->table.rows[1][0] == "evaluation");
  CHECK(shown->table.rows[1][3] == "no");
  CHECK(shown->table.rows[2][3] == "yes");
}

// A choice is shown as it runs with the memory that there is.
TEST_CASE("what fits takes no more of a GPU than there is") {
  int empties = 0;
  for (const char* model : {"llama3.1-8b", "qwen2.5-7b", "gpt2-xl"}) {
    for (const uint64_t gb : {14, 20, 30, 36, 42, 60}) {
      PhasesOf of(DeepSpeedRuntime());
      of.play.model = LoadModel(model);
      of.play.setup.batch.world_size = 2;
      of.play.setup.batch.seq_len = 1024;
      of.play.setup.recompute = FullRecompute();
      of.play.setup.zero = ReaderZeroDefaults(2);
      of.play.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
      EstimateInputs inputs;
      inputs.runtime = &DeepSpeedRuntime();
      inputs.model = of.play.model;
      inputs.recipe = of.play.recipe;
      inputs.setups = {of.play.setup};
      inputs.cluster.gpus = inputs.cluster.gpus_per_node = 2;
      inputs.cluster.gpu_capacity_bytes = gb * 1'000'000'000;
      inputs.cluster.host_capacity_bytes = 2'000'000'000'000;
      const ChoiceEstimate choice = EstimateChoices(inputs).choices.front();
      CAPTURE(model);
      CAPTURE(gb);
      CAPTURE(choice.why_not);
      const Footprint& footprint = choice.footprint;
      const uint64_t has = *CapacityOf(inputs.cluster).gpu_bytes;
      CHECK(choice.fits == (footprint.gpu_total() <= has));
      if (!choice.fits) continue;
      CHECK(footprint.gpu_total() == footprint.torch->DeviceBytes());
      CHECK(footprint.torch->out_of_memory == std::nullopt);
      if (footprint.gpu_spare_bytes == 0) continue;
      ++empties;
      CHECK(choice.room != MemoryRoom::kAmple);
    }
  }
  CHECK(empties >= 3);
}

TEST_CASE("the Trainer reads each micro-step's loss, and works while the GPU waits") {
  const HardwareProfile hardware = LoadProfile("h200");
  const auto seconds = [&](CodeStyle code, double of_module) {
    PhasesOf ddp(DdpRuntime());
    ddp.play.recipe.code = code;
    ddp.play.setup.batch.world_size = 1;
    ddp.play.setup.batch.grad_accum = 4;
    ddp.play.around = false;
    const TorchMachine machine(hardware, {1, 1});
    TimeConstants constants;
    constants.trainer_module = of_module;
    TorchTimer timer(&machine, constants);
    dynamic_cast<const TorchBased&>(DdpRuntime()).Play(ddp.play, &timer);
    return timer.Time(4)->step_seconds;
  };
  const TorchModel model(LoadModel("llama3.2-1b"));
  const double added = seconds(CodeStyle::kHf, 1e-3) - seconds(CodeStyle::kHf, 0);
  CHECK(added == doctest::Approx(4e-3 * static_cast<double>(model.modules.size())).epsilon(0.02));
  CHECK(seconds(CodeStyle::kPlain, 1e-3) == seconds(CodeStyle::kPlain, 0));
}

}  // namespace
}  // namespace zeroplan
