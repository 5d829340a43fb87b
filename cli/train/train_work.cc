#include "cli/train/train_work.h"

#include <cstdlib>

#include "cli/common/parse.h"
#include "cli/train/train_plan.h"
#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/units.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/choices.h"

namespace zeroplan {
namespace {

// The setup from --config, or from the command line.
TrainSetup ResolveSetup(TrainCommand& options, const ModelSpec& model,
                        const HardwareProfile& hardware, Backend backend,
                        Assumptions& assumptions) {
  const bool on_cpu = backend == Backend::kCpu;
  if (on_cpu && options.common.dtype.empty() && options.common.config.empty()) {
    options.common.dtype = "fp32";  // what a CPU computes fastest
    assumptions.assumed.push_back("--dtype fp32");
  }
  const int ranks =
      static_cast<int>(ParseOptionalWhole(options.common.gpus, "--gpus", 1, 1024).value_or(1));
  TrainSetup setup;
  if (!options.common.config.empty()) {
    if (!options.lr.empty()) ThrowUsage("--lr: not allowed with --config, which decides it");
    setup = ResolveConfig(options.common, model, hardware, ranks, assumptions);
  } else {
    setup = ResolveBaseSetup(options.common, model, hardware, ranks, assumptions);
    CommonOptions& common = options.common;
    if (common.stage.empty()) common.stage = "0";
    if (common.offload_optimizer.empty()) common.offload_optimizer = "none";
    if (common.offload_param.empty()) common.offload_param = "none";
    const ChoiceSpace space = ResolveChoices(common, setup, assumptions);
    const std::vector<TrainSetup> setups = EnumerateSetups(setup, space);
    if (setups.size() != 1) {
      ThrowUsage(
          "train runs one choice, not {}: give --stage, --offload-optimizer, --offload-param and "
          "--checkpointing one value each",
          setups.size());
    }
    setup = setups.front();
    if (!options.lr.empty()) {
      char* end = nullptr;
      setup.optimizer.lr = std::strtod(options.lr.c_str(), &end);
      const bool positive = setup.optimizer.lr > 0 && setup.optimizer.lr < 1e3;
      if (*end != '\0' || !positive) {
        ThrowUsage("--lr: {} is not allowed; use a number above 0, such as 3e-4", options.lr);
      }
    }
  }
  if (!options.nvme_path.empty()) {
    setup.zero.offload_optimizer.nvme_path = setup.zero.offload_param.nvme_path = options.nvme_path;
  }
  ValidateSetup(setup, options.common.config.empty() ? "command line" : options.common.config);
  return setup;
}

// One swap file holds all that is offloaded to disk.
std::string SwapDir(const TrainSetup& setup) {
  const auto& optimizer = setup.zero.offload_optimizer;
  const auto& param = setup.zero.offload_param;
  const bool both =
      optimizer.device == OffloadDevice::kNvme && param.device == OffloadDevice::kNvme;
  if (both && optimizer.nvme_path != param.nvme_path) {
    ThrowUsage(
        "offload_param.nvme_path: {} differs from offload_optimizer's {}; one swap file holds "
        "both: name one folder, or override them with --nvme-path",
        param.nvme_path, optimizer.nvme_path);
  }
  return optimizer.device == OffloadDevice::kNvme ? optimizer.nvme_path : param.nvme_path;
}

TrainWork WorkOfPlan(const TrainCommand& command, Backend backend, Assumptions& assumptions) {
  TrainWork work;
  work.plan = ResolvePlan(command.plan, command.common, command.lr, assumptions);
  const PlanFile& plan = *work.plan;
  work.model = plan.model;
  work.setup = plan.setup;
  work.lower = plan.lower;
  work.config_digest = DigestText(plan.config_text);
  const bool wants_checkpoints = !command.save.empty() || !command.init_from.empty();
  if (wants_checkpoints && !plan.lower.checkpoints) {
    ThrowUsage("{}: {} was planned without checkpoints; leave the option out, or plan again",
               command.save.empty() ? "--init-from" : "--save", command.plan);
  }
  if (!command.nvme_path.empty()) {
    work.setup.zero.offload_optimizer.nvme_path = work.setup.zero.offload_param.nvme_path =
        command.nvme_path;
  }
  if (backend == Backend::kCuda && plan.lower.backend == Backend::kCpu) {
    ThrowUsage("--backend: cuda is not allowed: {} was planned for the CPU; use cpu, or plan again",
               command.plan);
  }
  if (backend == Backend::kCpu && plan.lower.backend == Backend::kCuda) {
    assumptions.notes.push_back(
        fmt::format("Rehearsal: the program planned for {} x {} runs on the CPU.",
                    plan.cluster.gpus, plan.cluster.gpu_name));
  }
  return work;
}

TrainWork WorkOfConfig(TrainCommand& command, const HardwareProfile& hardware, Backend backend,
                       Assumptions& assumptions) {
  TrainWork work;
  work.model = ResolveModel(command.common, assumptions);
  work.setup = ResolveSetup(command, work.model, hardware, backend, assumptions);
  work.lower.backend = backend;
  if (backend == Backend::kCuda) work.lower.flash_attention = hardware.gpu.flash_attention;
  work.lower.checkpoints = !command.save.empty() || !command.init_from.empty();
  const std::string& config = command.common.config;
  work.config_digest = DigestText(config.empty() ? SetupLabel(work.setup) : ReadTextFile(config));
  return work;
}

}  // namespace

TrainWork ResolveWork(TrainCommand& command, Backend backend, Assumptions& assumptions) {
  const CommonOptions& common = command.common;
  const bool named = !common.hardware.empty();
  const auto refuse_on_cpu = [&](const char* option, const std::string& value) {
    if (backend != Backend::kCpu || value.empty()) return;
    ThrowUsage("{}: {} has no effect on the CPU backend; leave it out, or use --backend cuda",
               option, value);
  };
  refuse_on_cpu("--hw", common.hardware);
  std::optional<uint64_t> gpu_memory_limit;
  if (!common.gpu_memory.empty()) gpu_memory_limit = ParseBytes(common.gpu_memory, "--gpu-memory");
  refuse_on_cpu("--gpu-memory", common.gpu_memory);
  HardwareProfile hardware = backend == Backend::kCuda
                                 ? ResolveHardware(command.common, assumptions)
                                 : LoadProfile(std::string(kDefaultProfile));
  TrainWork work = command.plan.empty() ? WorkOfConfig(command, hardware, backend, assumptions)
                                        : WorkOfPlan(command, backend, assumptions);
  work.hardware = std::move(hardware);
  work.gpu_memory_limit = gpu_memory_limit;
  work.hardware_is_known = named || assumptions.detected_gpus.has_value();
  return work;
}

Program LowerWork(const TrainWork& work) {
  if (!work.plan) return Lower(work.model, work.setup, work.lower);
  Program program = CheckedProgram(*work.plan);
  // What the program does not depend on, such as the swap folder and the schedule's length.
  program.setup = work.setup;
  return program;
}

TrainOptions ResolveTrainOptions(const TrainCommand& command, const TrainWork& work) {
  TrainOptions options;
  options.data = command.data;
  options.steps = ParseWhole(command.steps, "--steps", 1, kMaxBatch);
  if (const auto seed = ParseOptionalWhole(command.seed, "--seed", 1, INT64_MAX)) {
    options.seed = static_cast<uint64_t>(*seed);
  }
  options.shuffle = !command.no_shuffle;
  options.save_dir = command.save;
  options.save_every =
      ParseOptionalWhole(command.save_every, "--save-every", 1, kMaxBatch).value_or(0);
  if (options.save_every > 0 && command.save.empty()) {
    ThrowUsage("--save-every: {} needs --save DIR", command.save_every);
  }
  options.resume = command.resume;
  options.init_from = command.init_from;
  options.validate_every =
      ParseOptionalWhole(command.validate_every, "--validate-every", 1, kMaxBatch).value_or(0);
  options.threads_per_rank =
      static_cast<int>(ParseOptionalWhole(command.threads, "--threads", 1, 1024).value_or(0));
  options.swap_dir = SwapDir(work.setup);
  options.trace_file = command.trace;
  options.deterministic = command.deterministic;
  options.config_digest = work.config_digest;
  return options;
}

}  // namespace zeroplan
