#include "cli/train/train_plan.h"

#include "core/base/error.h"
#include "core/base/json_source.h"

namespace zeroplan {
namespace {

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

PlanFile ResolvePlan(const std::string& file, const CommonOptions& options,
                     Assumptions& assumptions) {
  PlanFile plan = ReadPlan(ReadTextFile(file), file);
  const Option<int>& gpus = options.cluster.gpus;
  if (gpus && *gpus != plan.cluster.gpus) {
    ThrowUsage("--gpus: {} is not allowed: {} is for {}; leave the option out, or plan again",
               *gpus, file, plan.cluster.gpus);
  }
  const ModelOptions& model = options.model;
  if (model.given()) {
    CheckModel(plan, ResolveModel(model, options.batch.seq_len, assumptions),
               model.params ? "--params " + model.params.text : "--model " + model.model);
  }
  return plan;
}

}  // namespace zeroplan
