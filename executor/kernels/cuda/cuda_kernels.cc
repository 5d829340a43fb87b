#include "executor/kernels/cuda/cuda_kernels.h"

namespace zeroplan {
namespace {

KernelTable BuildTable() {
  KernelTable table{};
  const auto set = [&](KernelId id, KernelFn fn, KernelFn prepare = nullptr) {
    table.rows[static_cast<size_t>(id)] = fn;
    table.prepare[static_cast<size_t>(id)] = prepare;
  };
  set(KernelId::kEmbedForward, cuda::EmbedForward);
  set(KernelId::kLayerNormForward, cuda::LayerNormForward);
  set(KernelId::kMatmulForward, cuda::MatmulForward, cuda::PrepareMatmulForward);
  set(KernelId::kAttentionForward, cuda::AttentionForward, cuda::PrepareAttentionForward);
  set(KernelId::kGeluForward, cuda::GeluForward);
  set(KernelId::kCrossEntropy, cuda::CrossEntropy);
  set(KernelId::kLossReduce, cuda::LossReduce);
  set(KernelId::kMatmulBackwardData, cuda::MatmulBackwardData, cuda::PrepareMatmulBackwardData);
  set(KernelId::kMatmulBackwardWeight, cuda::MatmulBackwardWeight,
      cuda::PrepareMatmulBackwardWeight);
  set(KernelId::kLayerNormBackward, cuda::LayerNormBackward);
  set(KernelId::kGeluBackward, cuda::GeluBackward);
  set(KernelId::kAttentionBackward, cuda::AttentionBackward, cuda::PrepareAttentionBackward);
  set(KernelId::kEmbedBackward, cuda::EmbedBackward);
  set(KernelId::kFill, cuda::Fill);
  set(KernelId::kConvert, cuda::Convert);
  set(KernelId::kNormSq, cuda::NormSq);
  set(KernelId::kStepScalars, cuda::StepScalars);
  set(KernelId::kAdamW, cuda::AdamW);
  set(KernelId::kParamInit, cuda::ParamInit);
  set(KernelId::kSelectRow, cuda::SelectRow);
  set(KernelId::kUnfusedAttentionForward, cuda::UnfusedAttentionForward,
      cuda::PrepareUnfusedAttentionForward);
  set(KernelId::kUnfusedAttentionBackward, cuda::UnfusedAttentionBackward,
      cuda::PrepareUnfusedAttentionBackward);
  set(KernelId::kMatmulGeluForward, cuda::MatmulGeluForward, cuda::PrepareMatmulGeluForward);
  set(KernelId::kMatmulGeluBackward, cuda::MatmulGeluBackward, cuda::PrepareMatmulGeluBackward);
  return table;
}

}  // namespace

const KernelTable& CudaKernels() {
  static const KernelTable table = BuildTable();
  return table;
}

}  // namespace zeroplan
