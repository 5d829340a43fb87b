// Launchers for mixtures of experts, except grouped matmuls. Legend and formulas:
// core/program/expert_kernel_rows.inc. M and R are below 2^31.
#pragma once

#include <cstdint>

#include "core/program/step_state.h"
#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

struct RouteShape {
  int64_t M;
  int E, k;
  bool normalized, shared;
};
struct RouteForwardArrays {
  const float* logits_MN;
  int32_t* picks_Mk;
  float *gates_Mk, *shared_M;  // shared: null without a shared expert
};
void LaunchRouteForward(const RouteShape& shape, const RouteForwardArrays& arrays,
                        cudaStream_t stream);
struct RouteBackwardArrays {
  const float* logits_MN;
  const int32_t* picks_Mk;
  const float *dgates_Mk, *dshared_M, *balance_E1;  // the last two may be null
  FloatArray dlogits_MN;
};
void LaunchRouteBackward(const RouteShape& shape, const RouteBackwardArrays& arrays,
                         cudaStream_t stream);

// `counts`: OrderBlocks(R) * E numbers of scratch.
struct OrderArrays {
  const int32_t* picks_R;
  int32_t *starts_E1, *order_R, *places_R, *counts;
};
void LaunchOrderRows(const OrderArrays& arrays, int64_t R, int E, cudaStream_t stream);

void LaunchGatherRows(const FloatArray& x_MC, const int32_t* places_Mk, const FloatArray& y_RC,
                      int64_t M, int64_t C, int k, cudaStream_t stream);
void LaunchSumRows(const FloatArray& y_RC, const int32_t* places_Mk, const FloatArray& residual_MC,
                   const FloatArray& x_MC, bool add, int64_t M, int64_t C, int k,
                   cudaStream_t stream);

// order_R may be null: then row r has gate r.
void LaunchGatedSwiGluForward(const FloatArray& gu_R2F, const float* gates, const int32_t* order_R,
                              const FloatArray& y_RF, int64_t R, int64_t F, cudaStream_t stream);
void LaunchGatedSwiGluBackward(const FloatArray& dy_RF, const float* gates, const int32_t* order_R,
                               const FloatArray& gu_R2F, float* dgates, int64_t R, int64_t F,
                               cudaStream_t stream);

// `partials`: RouterStatsBlocks(M) * (E + 1) floats of scratch.
void LaunchRouterStats(const float* logits_MN, const int32_t* starts_E1, float* stats,
                       float* partials, int64_t M, int E, bool shared, cudaStream_t stream);

struct BalanceArrays {
  const float* stats;
  const int32_t* targets_M;
  const StepState* state;
  float* balance_E1;
  double* totals;
};
void LaunchBalanceLoss(const BalanceArrays& arrays, int64_t M, int E, int L, float aux, float z,
                       bool add, cudaStream_t stream);

}  // namespace zeroplan::cuda
