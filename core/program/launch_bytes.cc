#include "core/program/program.h"

namespace zeroplan {

double LaunchBytes(const Program& program, const LaunchKernel& launch) {
  std::array<ArgShape, kMaxKernelArgs> args;
  size_t count = 0;
  for (const Ref& ref : program.args(launch)) {
    args[count++] =
        ref.null() ? ArgShape{} : ArgShape{ref.bytes, program.buffers[ref.buffer].dtype};
  }
  return KernelInfo(launch.kernel)
      .bytes({launch.kernel, launch.flags, launch.dims, {args.data(), count}});
}

}  // namespace zeroplan
