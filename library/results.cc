#include "library/results.h"

#include "core/base/error.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/setup_facts.h"
#include "planner/estimate/cause_seconds.h"
#include "planner/estimate/run_cost.h"

namespace zeroplan {
namespace {

v1::GpuBytes GpuBytesOf(const Footprint& footprint) {
  v1::GpuBytes bytes;
  uint64_t* const parts[] = {&bytes.params,      &bytes.grads,   &bytes.optimizer,
                             &bytes.activations, &bytes.buffers, &bytes.runtime};
  static_assert(std::size(parts) == kGpuClasses);
  const auto classes = GpuClasses(footprint);
  for (size_t i = 0; i < kGpuClasses; ++i) *parts[i] = classes[i].bytes;
  bytes.total = footprint.gpu_total();
  return bytes;
}

v1::HostBytes HostBytesOf(const HostBytes& host) {
  return {host.pinned, host.pageable, host.total()};
}

v1::StepSeconds StepSecondsOf(const TimeEstimate& time) {
  return {time.compute_seconds, time.exposed_comm_seconds, time.exposed_offload_seconds,
          time.optimizer_seconds, time.total_seconds};
}

v1::Choice ChoiceOf(const Candidate& c) {
  return {c.gpus,
          c.stage,
          std::string(OffloadDeviceName(c.optimizer.device)),
          c.optimizer.ratio,
          std::string(OffloadDeviceName(c.param)),
          std::string(RecomputeName(c.recompute)),
          c.recompute.every,
          c.micro_batch,
          c.grad_accum};
}

v1::EstimatedChoice EstimatedChoiceOf(const ChoiceEstimate& from, const Estimate& estimate) {
  const TrainSetup& setup = from.setup;
  v1::EstimatedChoice choice;
  choice.choice = ChoiceOf(CandidateOf(setup));
  choice.dtype = DtypeName(setup.precision.dtype);
  choice.grad_accum_dtype = DtypeName(setup.precision.grad_accum_dtype);
  choice.communication_dtype = DtypeName(SentGradDtype(setup));
  choice.reduce_bucket = from.settings.reduce_bucket_elements;
  choice.prefetch_bucket = from.settings.prefetch_bucket_elements;
  choice.persistence_threshold = from.settings.persistence_threshold;
  choice.reuse_distance = from.settings.reuse_distance;
  choice.overlap = from.settings.overlap;
  choice.gpu_bytes = GpuBytesOf(from.footprint);
  choice.gpu_capacity = estimate.cluster.gpu_capacity_bytes;
  choice.gpu_reserve = estimate.cluster.gpu_reserve_bytes;
  choice.host_bytes = HostBytesOf(from.footprint.host);
  choice.host_capacity = estimate.cluster.host_capacity_bytes;
  choice.host_reserve = estimate.cluster.host_reserve_bytes;
  choice.nvme_bytes = from.footprint.nvme_bytes;
  choice.comm_bytes_per_step = from.traffic ? from.traffic->collective_bytes : 0;
  choice.pcie_bytes_per_step = from.traffic ? from.traffic->pcie_bytes() : 0;
  choice.step_seconds = StepSecondsOf(from.time);
  choice.tokens_per_second = from.time.tokens_per_second;
  choice.mfu = from.time.mfu;
  choice.training = TrainingOf(estimate.goal, from);
  choice.fits = from.fits;
  if (!from.fits) choice.why_not = NameFields(from.why_not);
  return choice;
}

v1::StageAnswer StageOf(const StageBest& from, const TimeEstimate& best) {
  v1::StageAnswer stage;
  stage.stage = from.stage;
  stage.fits = from.candidate.has_value();
  stage.choice = ChoiceOf(from.candidate.value_or(CandidateOf(from.estimate.setup)));
  stage.gpu_bytes = GpuBytesOf(from.estimate.footprint);
  stage.host_bytes = HostBytesOf(from.estimate.footprint.host);
  if (!stage.fits) {
    stage.why_not = NameFields(from.estimate.why_not);
    return stage;
  }
  const CauseSeconds lost = SecondsLost(from.estimate.time, best);
  stage.proven = from.proven;
  stage.step_seconds = StepSecondsOf(from.estimate.time);
  stage.lost_seconds = {lost.compute, lost.exposed_comm, lost.exposed_offload, lost.optimizer,
                        lost.total};
  stage.tokens_per_second = from.estimate.time.tokens_per_second;
  return stage;
}

v1::Claim ClaimOf(AdviceKind kind, const Claim& from) {
  v1::Claim claim;
  claim.kind = AdviceKindName(kind);
  claim.gpu_memory_bytes = from.gpu_memory_bytes;
  claim.global_batch = from.global_batch;
  claim.bandwidth_scale = from.bandwidth_scale;
  claim.stages = from.stages;
  if (from.found) {
    claim.answer = ChoiceOf(from.found->candidate);
    claim.tokens_per_second = from.found->tokens_per_second;
  }
  claim.gap = from.gap;
  return claim;
}

}  // namespace

std::vector<std::string> Named(const std::vector<std::string>& texts) {
  std::vector<std::string> named;
  for (const std::string& text : texts) named.push_back(NameFields(text));
  return named;
}

std::optional<v1::Training> TrainingOf(const RunGoal& goal, const ChoiceEstimate& choice) {
  if (!goal.tokens || !choice.time.total_seconds) return std::nullopt;
  const RunCost cost = CostOf(goal, choice.setup.batch, *choice.time.total_seconds);
  return v1::Training{*goal.tokens, cost.steps, cost.seconds, cost.gpu_hours, cost.price};
}

v1::Estimate EstimateOf(const Estimate& from) {
  v1::Estimate estimate;
  const ModelSpec& model = from.model;
  estimate.model = {model.name,  model.ParamCount(), model.layers, model.hidden,
                    model.heads, model.vocab,        from.seq_len};
  estimate.cluster = {from.cluster.hardware, from.cluster.gpus, from.cluster.gpus_per_node};
  for (const ChoiceEstimate& choice : from.choices) {
    estimate.choices.push_back(EstimatedChoiceOf(choice, from));
  }
  return estimate;
}

v1::Plan PlanOf(const PlanAnswer& answer) {
  const Plan& from = answer.plan;
  const ChoiceEstimate& choice = from.choice;
  v1::Plan plan;
  plan.choice = ChoiceOf(CandidateOf(from.setup));
  plan.gpu_bytes = GpuBytesOf(choice.footprint);
  plan.host_bytes = HostBytesOf(choice.footprint.host);
  plan.nvme_bytes = choice.footprint.nvme_bytes;
  plan.comm_bytes_per_step = choice.traffic ? choice.traffic->collective_bytes : 0;
  plan.pcie_bytes_per_step = choice.traffic ? choice.traffic->pcie_bytes() : 0;
  plan.step_seconds = StepSecondsOf(choice.time);
  plan.tokens_per_second = choice.time.tokens_per_second;
  plan.mfu = choice.time.mfu;
  plan.gap = answer.report.gap;
  for (const StageBest& stage : answer.report.stages) {
    if (stage.can_run()) plan.stages.push_back(StageOf(stage, choice.time));
  }
  for (const AdviceLine& line : answer.report.advice) {
    for (const Claim& claim : line.claims) plan.claims.push_back(ClaimOf(line.kind, claim));
  }
  plan.advice = Named(from.advice);
  plan.assumed = Named(answer.report.assumed);
  plan.notes = Named(answer.report.notes);
  const SearchStats& stats = from.stats;
  plan.search = {std::string(ObjectiveName(from.objective)),
                 stats.candidates,
                 stats.cut_by_memory,
                 stats.cut_by_score,
                 stats.judged,
                 stats.left,
                 stats.lowered,
                 stats.seconds};
  plan.deepspeed_config = from.runtime->has_programs() ? WriteConfig(from.setup, from.model.layers)
                                                       : answer.report.config;
  return plan;
}

}  // namespace zeroplan
