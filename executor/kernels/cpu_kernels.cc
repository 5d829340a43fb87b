#include "executor/kernels/cpu_kernels.h"

namespace zeroplan {
namespace {

KernelTable BuildTable() {
  KernelTable table{};
  const auto set = [&](KernelId id, KernelFn fn) { table.rows[static_cast<size_t>(id)] = fn; };
  set(KernelId::kEmbedForward, cpu::EmbedForward);
  set(KernelId::kLayerNormForward, cpu::LayerNormForward);
  set(KernelId::kMatmulForward, cpu::MatmulForward);
  set(KernelId::kAttentionForward, cpu::AttentionForward);
  set(KernelId::kGeluForward, cpu::GeluForward);
  set(KernelId::kCrossEntropy, cpu::CrossEntropy);
  set(KernelId::kLossReduce, cpu::LossReduce);
  set(KernelId::kMatmulBackwardData, cpu::MatmulBackwardData);
  set(KernelId::kMatmulBackwardWeight, cpu::MatmulBackwardWeight);
  set(KernelId::kLayerNormBackward, cpu::LayerNormBackward);
  set(KernelId::kGeluBackward, cpu::GeluBackward);
  set(KernelId::kAttentionBackward, cpu::AttentionBackward);
  set(KernelId::kEmbedBackward, cpu::EmbedBackward);
  set(KernelId::kFill, cpu::Fill);
  set(KernelId::kConvert, cpu::Convert);
  set(KernelId::kNormSq, cpu::NormSq);
  set(KernelId::kStepScalars, cpu::StepScalars);
  set(KernelId::kAdamW, cpu::AdamW);
  set(KernelId::kParamInit, cpu::ParamInit);
  set(KernelId::kSelectRow, cpu::SelectRow);
  set(KernelId::kUnfusedAttentionForward, cpu::UnfusedAttentionForward);
  set(KernelId::kUnfusedAttentionBackward, cpu::UnfusedAttentionBackward);
  set(KernelId::kMatmulGeluForward, cpu::MatmulGeluForward);
  set(KernelId::kMatmulGeluBackward, cpu::MatmulGeluBackward);
  return table;
}

}  // namespace

const KernelTable& CpuKernels() {
  static const KernelTable table = BuildTable();
  return table;
}

}  // namespace zeroplan
