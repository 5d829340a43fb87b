#include "executor/kernels/cuda/elementwise/elementwise.h"

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/dynamic8.h"
#include "executor/kernels/int_blocks.h"
#include "executor/kernels/nf4.h"

namespace zeroplan::cuda {
namespace {

FloatArray AlignedFloats(const KernelCall& call, size_t index) {
  const FloatArray floats = Floats(call, index);
  ZEROPLAN_CHECK(Aligned(floats.data), "{}: argument {} at {}", KernelInfo(call.id).name, index,
                 floats.data);
  return floats;
}

// An argument of `dtype`, which is T's.
template <typename T>
T* DataOf(const KernelCall& call, size_t index, Dtype dtype) {
  const KernelArg& arg = Arg(call, index);
  ZEROPLAN_CHECK(arg.dtype == dtype, "{}: argument {} is {}", KernelInfo(call.id).name, index,
                 DtypeName(arg.dtype));
  return arg.as<T>();
}

// Between fp32 and blocks of 8-bit moments.
void ConvertDynamic8(const KernelCall& call) {
  CheckConvertDynamic8(call);
  const int64_t n = call.dims[0];
  const bool to_blocks = IsDynamic8(Arg(call, 1).dtype);
  const KernelArg &blocks = Arg(call, to_blocks ? 1 : 0), &whole = Arg(call, to_blocks ? 0 : 1);
  auto* x_n = whole.as<float>();
  ZEROPLAN_CHECK(Aligned(x_n), "convert: {} at {}", DtypeName(whole.dtype), whole.data);
  const bool has_sign = blocks.dtype == Dtype::kDynamic8;
  if (to_blocks) {
    LaunchToDynamic8(x_n, blocks.as<Dynamic8Block>(), has_sign, n, LaunchStream(call));
  } else {
    LaunchFromDynamic8(blocks.as<Dynamic8Block>(), has_sign, x_n, n, LaunchStream(call));
  }
}

}  // namespace

void Fill(const KernelCall& call) {
  cudaMemsetAsync(Arg(call, 0).data, 0, static_cast<size_t>(call.dims[0]), LaunchStream(call));
  CheckLaunched(call);
}

void Convert(const KernelCall& call) {
  const KernelArg &src_n = Arg(call, 0), &dst_n = Arg(call, 1);
  const int64_t n = call.dims[0];
  if (HasNf4(call)) CheckNf4(call);
  if (HasIntBlocks(call)) CheckConvertIntBlocks(call);
  if (HasDynamic8(call)) {
    ConvertDynamic8(call);
  } else if (call.has(kHalfAway)) {
    ZEROPLAN_CHECK(!call.has(kAccumulate), "convert: added with halves rounded away from zero");
    LaunchSplitMaster(DataOf<const float>(call, 0, Dtype::kF32),
                      DataOf<uint16_t>(call, 1, Dtype::kBF16), nullptr, n, LaunchStream(call));
  } else if (IsIntBlocks(dst_n.dtype)) {
    LaunchQuantizeInt(AlignedFloats(call, 0), dst_n.data, dst_n.dtype, n, LaunchStream(call));
  } else if (IsIntBlocks(src_n.dtype)) {
    LaunchSumInt(src_n.data, src_n.dtype, 1, AlignedFloats(call, 1), n, false, LaunchStream(call));
  } else if (dst_n.dtype == Dtype::kNf4) {
    LaunchQuantizeNf4(src_n.as<const float>(), dst_n.as<Nf4Block>(), n, LaunchStream(call));
  } else if (src_n.dtype == Dtype::kNf4) {
    LaunchDequantizeNf4(src_n.as<const Nf4Block>(), Floats(call, 1), n, LaunchStream(call));
  } else {
    LaunchConvert(Floats(call, 0), Floats(call, 1), n, call.has(kAccumulate), LaunchStream(call));
  }
  CheckLaunched(call);
}

void SplitMaster(const KernelCall& call) {
  LaunchSplitMaster(DataOf<const float>(call, 0, Dtype::kF32),
                    DataOf<uint16_t>(call, 1, Dtype::kBF16), DataOf<int16_t>(call, 2, Dtype::kI16),
                    call.dims[0], LaunchStream(call));
  CheckLaunched(call);
}

void JoinMaster(const KernelCall& call) {
  LaunchJoinMaster(DataOf<const uint16_t>(call, 0, Dtype::kBF16),
                   DataOf<const int16_t>(call, 1, Dtype::kI16), DataOf<float>(call, 2, Dtype::kF32),
                   call.dims[0], LaunchStream(call));
  CheckLaunched(call);
}

void SumParts(const KernelCall& call) {
  CheckSumParts(call);
  const KernelArg &parts_Pn = Arg(call, 0), &dst_n = Arg(call, 1);
  const auto [n, P] = FirstDims<2>(call.dims);
  if (IsIntBlocks(dst_n.dtype)) {
    LaunchSumToInt(parts_Pn.data, parts_Pn.dtype, P, dst_n.data, n, LaunchStream(call));
  } else {
    LaunchSumInt(parts_Pn.data, parts_Pn.dtype, P, AlignedFloats(call, 1), n, call.has(kAccumulate),
                 LaunchStream(call));
  }
  CheckLaunched(call);
}

void SelectRow(const KernelCall& call) {
  const KernelArg& x_BTC = Arg(call, 0);
  const int64_t C = call.dims[0];
  const auto rows = static_cast<int64_t>(x_BTC.bytes / DtypeBytes(x_BTC.dtype)) / C;
  LaunchSelectRow(Floats(call, 0), Arg(call, 1).as<const StepState>(), Floats(call, 2), rows, C,
                  LaunchStream(call));
  CheckLaunched(call);
}

void EmbedForward(const KernelCall& call) {
  const auto [B, T, C, V] = FirstDims<4>(call.dims);
  LaunchEmbedForward(Arg(call, 0).as<const int32_t>(), Arg(call, 4).as<const int32_t>(),
                     Floats(call, 1), Floats(call, 2), Floats(call, 3), B * T, T, C, V,
                     LaunchStream(call));
  CheckLaunched(call);
}

void GeluForward(const KernelCall& call) {
  LaunchGeluForward(Floats(call, 0), {}, {}, Floats(call, 1), 1, call.dims[0], LaunchStream(call),
                    Arg(call, 2).as<float>());
  CheckLaunched(call);
}

void GeluBackward(const KernelCall& call) {
  const FloatArray x_n = Floats(call, 0), d_n = Floats(call, 1);
  LaunchGeluBackward(d_n, x_n, d_n, call.dims[0], LaunchStream(call), Arg(call, 2).as<float>());
  CheckLaunched(call);
}

void SwiGluForward(const KernelCall& call) {
  LaunchSwiGluForward(Floats(call, 0), Floats(call, 1), call.dims[0], call.dims[1],
                      LaunchStream(call), Arg(call, 2).as<float>());
  CheckLaunched(call);
}

void SwiGluBackward(const KernelCall& call) {
  LaunchSwiGluBackward(Floats(call, 0), Floats(call, 1), call.dims[0], call.dims[1],
                       LaunchStream(call), Arg(call, 2).as<float>());
  CheckLaunched(call);
}

void Dropout(const KernelCall& call) {
  const auto [M, K, T, tensor] = FirstDims<4>(call.dims);
  ZEROPLAN_CHECK(M <= INT32_MAX, "dropout: {} rows are more than int32 counts", M);
  LaunchDropout(Floats(call, 0), Arg(call, 1).as<const int32_t>(), Floats(call, 2), M, K, T, tensor,
                call.scalars[0], call.context.seed, call.has(kAccumulate), LaunchStream(call));
  CheckLaunched(call);
}

void PackHeads(const KernelCall& call) {
  LaunchPackHeads(ExchangeOf(call), Floats(call, 0), Floats(call, 1), LaunchStream(call));
  CheckLaunched(call);
}

void UnpackHeads(const KernelCall& call) {
  LaunchUnpackHeads(ExchangeOf(call), Floats(call, 0), Floats(call, 1), LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
