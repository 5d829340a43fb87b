#include "executor/kernels/dynamic8.h"

#include "executor/kernels/adamw_update.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan {
namespace {

constexpr int64_t kDynamic8BlockElements = kDynamic8Group * kDynamic8Groups;

}  // namespace

bool HasDynamic8(const KernelCall& convert) {
  return IsDynamic8(Arg(convert, 0).dtype) || IsDynamic8(Arg(convert, 1).dtype);
}

void CheckWholeDynamic8(const KernelArg& blocks, int64_t n) {
  ZEROPLAN_CHECK(n % kDynamic8BlockElements == 0, "{} elements are no whole {}", n,
                 DtypeName(blocks.dtype));
  ZEROPLAN_CHECK(blocks.bytes >= StoredBytes(blocks.dtype, static_cast<uint64_t>(n)),
                 "{} elements of {} in {} bytes", n, DtypeName(blocks.dtype), blocks.bytes);
  ZEROPLAN_CHECK(reinterpret_cast<uintptr_t>(blocks.data) % alignof(Dynamic8Block) == 0, "{} at {}",
                 DtypeName(blocks.dtype), blocks.data);
}

void CheckConvertDynamic8(const KernelCall& convert) {
  const KernelArg &src = Arg(convert, 0), &dst = Arg(convert, 1);
  const bool writes = IsDynamic8(dst.dtype);
  ZEROPLAN_CHECK((writes ? src : dst).dtype == Dtype::kF32 && !convert.has(kAccumulate), "{} to {}",
                 DtypeName(src.dtype), DtypeName(dst.dtype));
  CheckWholeDynamic8(writes ? dst : src, convert.dims[0]);
}

namespace cpu {

void ConvertDynamic8(const KernelCall& call) {
  CheckConvertDynamic8(call);
  const KernelArg &src_n = Arg(call, 0), &dst_n = Arg(call, 1);
  const bool writes = IsDynamic8(dst_n.dtype);
  call.context.pool->ParallelFor(
      call.dims[0] / kDynamic8BlockElements, kElementGrain / kDynamic8BlockElements,
      [&](int64_t begin, int64_t end, int) {
        for (int64_t g = begin * kDynamic8Groups; g < end * kDynamic8Groups; ++g) {
          Dynamic8Block& block = (writes ? dst_n : src_n).as<Dynamic8Block>()[g / kDynamic8Groups];
          float* x = (writes ? src_n : dst_n).as<float>() + g * kDynamic8Group;
          uint8_t* codes = block.codes[g % kDynamic8Groups];
          float& scale = block.scales[g % kDynamic8Groups];
          if (writes) {
            kAdamLoops.encode(dst_n.dtype, x, codes, &scale);
          } else {
            kAdamLoops.decode(src_n.dtype, codes, scale, x);
          }
        }
      });
}

}  // namespace cpu
}  // namespace zeroplan
