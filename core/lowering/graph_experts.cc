// Experts in place of an MLP.
//
// A row's weight multiplies what its expert's SwiGLU makes, before the down matmul: the sum over a
// token's experts is the same as of weighed results, and the backward pass needs no results of the
// down matmul. So the gradient of gathering rows is the sum of rows, and the other way round.
#include "core/base/error.h"
#include "core/lowering/graph_builder.h"

namespace zeroplan {

KernelDims GraphBuilder::RouteDims(int64_t rows) const {
  const ModelSpec& model = program_.model;
  return {rows, model.experts, model.experts_per_token, model.normalized_gates ? 1 : 0,
          model.shared_ffn > 0 ? 1 : 0};
}

Value GraphBuilder::GatedSwiGlu(const Value& gate_up, BufferId gates, BufferId order, Label label) {
  const Value y = Activation(label, gate_up.rows, gate_up.cols / 2);
  emit_.Launch(KernelId::kGatedSwiGluForward, {y.rows, y.cols}, kNoFlags,
               {All(gate_up), All(gates), order == kNoBuffer ? Ref{} : All(order), All(y)});
  return y;
}

Experts GraphBuilder::ExpertsForward(const Value& x_MC, const ExpertParams& params, Label label,
                                     const Value& residual_MC) {
  const ModelSpec& model = program_.model;
  const int64_t M = x_MC.rows, C = x_MC.cols, E = model.experts, k = model.experts_per_token;
  const int64_t R = M * k, F = model.ExpertFfn();
  const bool shared = model.shared_ffn > 0;
  Experts e{.params = params, .x_MC = x_MC};
  const auto count = static_cast<uint64_t>(R);

  // Logits stay in fp32: routing follows small differences.
  e.router = {.weight = params.router, .x_MK = x_MC};
  e.router.y_MN = {
      AddActivation("router_logits", static_cast<uint64_t>(M * Out(params.router)), Dtype::kF32), M,
      Out(params.router)};
  ProductForward(e.router, {}, e.router.y_MN);
  e.picks = AddActivation("picks", count, Dtype::kI32);
  e.gates = AddActivation("gates", count, Dtype::kF32);
  if (shared) {
    e.shared_gates = AddActivation("shared_gates", static_cast<uint64_t>(M), Dtype::kF32);
  }
  emit_.Launch(
      KernelId::kRouteForward, RouteDims(M), kNoFlags,
      {All(e.router.y_MN), All(e.picks), All(e.gates), shared ? All(e.shared_gates) : Ref{}});
  e.starts = AddActivation("starts", static_cast<uint64_t>(E + 1), Dtype::kI32);
  e.order = AddActivation("order", count, Dtype::kI32);
  e.places = AddActivation("places", count, Dtype::kI32);
  emit_.Launch(KernelId::kOrderRows, {M, k, E}, kNoFlags,
               {All(e.picks), All(e.starts), All(e.order), All(e.places)});
  if (router_stats_ != kNoBuffer && phase_ == Phase::kForward) {
    const uint64_t bytes = static_cast<uint64_t>(2 * E + 1) * DtypeBytes(Dtype::kF32);
    emit_.Launch(KernelId::kRouterStats, {M, E, shared ? 1 : 0}, kNoFlags,
                 {All(e.router.y_MN), All(e.starts),
                  All(router_stats_).Part(static_cast<uint64_t>(routed_layers_++) * bytes, bytes)});
  }

  Value sum_MC = residual_MC;
  if (shared) {
    e.shared_gate_up = LinearForward(x_MC, params.shared_gate_up, kNoParam, "shared_gate_up");
    const Value h = GatedSwiGlu(e.shared_gate_up.y_MN, e.shared_gates, kNoBuffer, "shared_swiglu");
    e.shared_down = LinearForward(h, params.shared_down, kNoParam, "shared", residual_MC);
    sum_MC = e.shared_down.y_MN;
  }
  e.rows_RC = Activation("rows", R, C);
  emit_.Launch(KernelId::kGatherRows, {M, C, k}, kNoFlags,
               {All(x_MC), All(e.places), All(e.rows_RC)});
  e.gate_up_R2F = Activation("experts_gate_up", R, 2 * F);
  emit_.Launch(KernelId::kGroupedMatmulForward, {R, C, 2 * F, E}, kNoFlags,
               {All(e.rows_RC), Param(params.gate_up), All(e.starts), All(e.gate_up_R2F)});
  e.swiglu_RF = GatedSwiGlu(e.gate_up_R2F, e.gates, e.order, "experts_swiglu");
  const Value results_RC = Activation("experts_results", R, C);
  emit_.Launch(KernelId::kGroupedMatmulForward, {R, F, C, E}, kNoFlags,
               {All(e.swiglu_RF), Param(params.down), All(e.starts), All(results_RC)});
  e.y_MC = Activation(label, M, C);
  emit_.Launch(KernelId::kSumRows, {M, C, k}, kNoFlags,
               {All(results_RC), All(e.places), All(sum_MC), All(e.y_MC)});
  return e;
}

Value GraphBuilder::ExpertsBackward(const Experts& e, const Value& dy_MC, Label label) {
  const ModelSpec& model = program_.model;
  const int64_t M = e.x_MC.rows, C = e.x_MC.cols, E = model.experts, k = model.experts_per_token;
  const int64_t R = M * k, F = model.ExpertFfn();
  const bool shared = model.shared_ffn > 0;

  const Value drows_RC = Gradient("d_experts_results", C, R);
  emit_.Launch(KernelId::kGatherRows, {M, C, k}, kNoFlags,
               {All(dy_MC), All(e.places), All(drows_RC)});
  if (Trains(e.params.down)) {
    emit_.Launch(KernelId::kGroupedMatmulBackwardWeight, {R, F, C, E}, kNoFlags,
                 {All(e.swiglu_RF), All(drows_RC), All(e.starts), Grad(e.params.down)});
  }
  const Value dswiglu_RF = Gradient("d_experts_swiglu", F, R);
  emit_.Launch(KernelId::kGroupedMatmulBackwardData, {R, F, C, E}, kNoFlags,
               {All(drows_RC), Param(e.params.down), All(e.starts), All(dswiglu_RF)});
  const BufferId dgates = AddActivation("d_gates", static_cast<uint64_t>(R), Dtype::kF32);
  program_.buffers[dgates].role = Role::kActivationGrad;
  emit_.Launch(KernelId::kGatedSwiGluBackward, {R, F}, kNoFlags,
               {All(dswiglu_RF), All(e.gates), All(e.order), All(e.gate_up_R2F), All(dgates)});
  if (Trains(e.params.gate_up)) {
    emit_.Launch(KernelId::kGroupedMatmulBackwardWeight, {R, C, 2 * F, E}, kNoFlags,
                 {All(e.rows_RC), All(e.gate_up_R2F), All(e.starts), Grad(e.params.gate_up)});
  }
  const Value dx_RC = Gradient("d_experts_rows", C, R);
  emit_.Launch(KernelId::kGroupedMatmulBackwardData, {R, C, 2 * F, E}, kNoFlags,
               {All(e.gate_up_R2F), Param(e.params.gate_up), All(e.starts), All(dx_RC)});
  const Value dx_MC = Gradient(label, C);
  emit_.Launch(KernelId::kSumRows, {M, C, k}, kNoFlags,
               {All(dx_RC), All(e.places), Ref{}, All(dx_MC)});

  BufferId dshared = kNoBuffer;
  if (shared) {
    const Value& gate_up = e.shared_gate_up.y_MN;
    const Value dh = LinearBackward(e.shared_down, dy_MC, "d_shared_swiglu");
    dshared = AddActivation("d_shared_gates", static_cast<uint64_t>(M), Dtype::kF32);
    program_.buffers[dshared].role = Role::kActivationGrad;
    emit_.Launch(KernelId::kGatedSwiGluBackward, {M, dh.cols}, kNoFlags,
                 {All(dh), All(e.shared_gates), Ref{}, All(gate_up), All(dshared)});
    LinearBackwardAdd(e.shared_gate_up, gate_up, dx_MC);
  }
  const Value dlogits_MN = Gradient("d_router_logits", e.router.y_MN.cols);
  const bool balances = model.router_aux_loss > 0 || model.router_z_loss > 0;
  emit_.Launch(KernelId::kRouteBackward, RouteDims(M), kNoFlags,
               {All(e.router.y_MN), All(e.picks), All(dgates), shared ? All(dshared) : Ref{},
                balances ? All(balance_) : Ref{}, All(dlogits_MN)});
  LinearBackwardAdd(e.router, dlogits_MN, dx_MC);
  return dx_MC;
}

void GraphBuilder::BalanceExperts() {
  if (router_stats_ == kNoBuffer) return;
  const ModelSpec& model = program_.model;
  const int64_t M = batch_ * seq_, layers = ExpertLayers(model);
  ZEROPLAN_CHECK(routed_layers_ == layers, "{} of {} layers are routed", routed_layers_, layers);
  const Ref targets{program_.tokens_buffer, static_cast<uint64_t>(M) * 4,
                    static_cast<uint64_t>(M) * 4, 0};
  const KernelDims dims = {M, model.experts, layers};
  const KernelScalars scalars = {model.router_aux_loss, model.router_z_loss};
  const auto launch = [&](uint8_t when, uint8_t flags) {
    emit_.When(when).Launch(KernelId::kBalanceLoss, dims, flags,
                            {All(router_stats_), targets, All(program_.state_buffer), All(balance_),
                             All(program_.router_totals_buffer)},
                            Stream::kCompute, scalars);
  };
  const bool sums = program_.setup.batch.grad_accum > 1;
  launch(sums ? kWritesGrads : kEvery, kNoFlags);
  if (sums) launch(kAddsGrads, kAccumulate);
  At(phase_, layer_);
}

}  // namespace zeroplan
