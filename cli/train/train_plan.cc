#include "cli/train/train_plan.h"

#include <utility>

#include "cli/common/parse.h"
#include "core/base/error.h"
#include "core/base/json_source.h"

namespace zeroplan {
namespace {

void RefuseDecided(const CommonOptions& options, const std::string& lr) {
  const std::pair<const char*, const std::string*> decided[] = {
      {"--config", &options.config},
      {"--stage", &options.stage},
      {"--offload-optimizer", &options.offload_optimizer},
      {"--offload-ratio", &options.offload_ratio},
      {"--offload-param", &options.offload_param},
      {"--checkpointing", &options.checkpointing},
      {"--checkpoint-every", &options.checkpoint_every},
      {"--seq-len", &options.seq_len},
      {"--micro-batch", &options.micro_batch},
      {"--grad-accum", &options.grad_accum},
      {"--global-batch", &options.global_batch},
      {"--dtype", &options.dtype},
      {"--lr", &lr}};
  for (const auto& [option, value] : decided) {
    if (!value->empty()) {
      ThrowUsage("{}: {} is not allowed with --plan, which decides it; leave one of the two out",
                 option, *value);
    }
  }
}

void CheckModel(const PlanFile& plan, const ModelSpec& given, const std::string& option) {
  const ModelSpec& planned = plan.model;
  auto check = [&](const char* dimension, auto of_plan, auto of_model) {
    if (of_plan == of_model) return;
    ThrowUsage(
        "{}: {}: the plan {} has {}, this model {}; leave the option out to train the plan's "
        "model, or plan again",
        option, dimension, plan.source, of_plan, of_model);
  };
  check("layers", planned.layers, given.layers);
  check("hidden", planned.hidden, given.hidden);
  check("heads", planned.heads, given.heads);
  check("ffn", planned.ffn, given.ffn);
  check("vocab", planned.vocab, given.vocab);
  check("padded_vocab", planned.padded_vocab, given.padded_vocab);
  check("positions", planned.positions, given.positions);
  check("layer_norm_eps", planned.layer_norm_eps, given.layer_norm_eps);
  check("init_std", planned.init_std, given.init_std);
}

}  // namespace

PlanFile ResolvePlan(const std::string& file, const CommonOptions& options, const std::string& lr,
                     Assumptions& assumptions) {
  RefuseDecided(options, lr);
  PlanFile plan = ReadPlan(ReadTextFile(file), file);
  const auto gpus = ParseOptionalWhole(options.gpus, "--gpus", 1, kMaxGpus);
  if (gpus && *gpus != plan.cluster.gpus) {
    ThrowUsage("--gpus: {} is not allowed: {} is for {}; leave the option out, or plan again",
               *gpus, file, plan.cluster.gpus);
  }
  if (!options.model.empty() || !options.params.empty()) {
    CheckModel(plan, ResolveModel(options, assumptions),
               options.model.empty() ? "--params " + options.params : "--model " + options.model);
  }
  return plan;
}

}  // namespace zeroplan
