#include "cli/run/train/train_plan.h"

#include <string>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/model/model_fields.h"

namespace zeroplan {
namespace {

void CheckModel(const PlanFile& plan, const ModelSpec& given, const std::string& option) {
  ForEachField(plan.model, given,
               [&]<typename T>(const ModelField& field, const T& of_plan, const T& of_model) {
                 if (std::is_same_v<T, std::string> || of_plan == of_model) return;  // any name
                 ThrowUsage(
                     "{}: {}: the plan {} has {}, this model {}; leave the option out to train the "
                     "plan's model, or plan again",
                     option, field.key, plan.source, FieldText(of_plan), FieldText(of_model));
               });
}

}  // namespace

PlanFile ResolvePlan(const std::string& file, const Request& options, Assumptions& assumptions) {
  PlanFile plan = ReadPlan(ReadTextFile(file), file);
  const Given<int>& gpus = options.cluster.gpus;
  if (gpus && *gpus != plan.cluster.gpus) {
    ThrowUsage("--gpus: {} is not allowed: {} is for {}; leave the option out, or plan again",
               *gpus, file, plan.cluster.gpus);
  }
  const ModelFields& model = options.model;
  if (model.given()) {
    CheckModel(plan, ResolveModel(model, options.batch.seq_len, assumptions),
               model.params ? "--params " + model.params.text : "--model " + model.model);
  }
  return plan;
}

}  // namespace zeroplan
