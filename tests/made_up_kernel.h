// A kernel that the tree does not have, leaky ReLU, and a step that launches it: what a kernel
// needs, and that it needs no more. In the tree this is a row of core/program/kernel_rows.inc,
//
//   ZEROPLAN_KERNEL(LeakyRelu, .name = "leaky_relu", ...)
//
// with the fields of kLeakyRelu below, and the functions cpu::LeakyRelu and cuda::LeakyRelu:
// docs/adding-a-kernel.md. Here row and functions go to the tables' place for tests.
#pragma once

#include "core/base/units.h"
#include "core/lowering/emitter.h"
#include "core/lowering/passes.h"
#include "core/program/program.h"
#include "core/program/step_state.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan {

// x_n -> y_n; y = x where x > 0, else slope * x
inline constexpr KernelRow kLeakyRelu = {
    .name = "leaky_relu",
    .args = {ArgMode::kIn, ArgMode::kOut},
    .dims = {"n"},
    .scalars = {{"slope", 0.01f}},
    .flops = [](const KernelDims& d) { return static_cast<double>(d[0]); },
    .recompute = {kExtraKernel, {0, 1}},
};

namespace cpu {

inline void LeakyRelu(const KernelCall& call) {
  const KernelArg &x_n = Arg(call, 0), &y_n = Arg(call, 1);
  const float slope = call.scalars[0];
  call.context.pool->ParallelFor(call.dims[0], kElementGrain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float x_buffer[kBlock], y_buffer[kBlock];
    ForEachBlock(begin, end, [&](int64_t first, int64_t count) {
      const float* x = ReadBlock(x_n, first, count, x_buffer);
      float* y = WriteBlock(y_n, first, y_buffer);
      for (int64_t i = 0; i < count; ++i) y[i] = x[i] > 0 ? x[i] : slope * x[i];
      CommitBlock(y_n, first, count, y_buffer);
    });
  });
}

}  // namespace cpu

// The row is there while this lives.
class MadeUpKernel {
 public:
  MadeUpKernel() {
    SetExtraKernel(kLeakyRelu);
    SetExtraCpuKernel(cpu::LeakyRelu);
  }
  ~MadeUpKernel() {
    SetExtraKernel({});
    SetExtraCpuKernel(nullptr);
  }
  MadeUpKernel(const MadeUpKernel&) = delete;
  MadeUpKernel& operator=(const MadeUpKernel&) = delete;
};

struct MadeUpStep {
  Program program;
  BufferId result;  // n floats
};

inline constexpr float kMadeUpSlope = 0.25f;

// One layer of a model: x, the bits of the batch's n input words, goes through the kernel, and the
// layer's backward pass keeps what it made. With selective recompute the kernel runs again for
// that.
inline MadeUpStep LowerMadeUpStep(Backend backend, int64_t n) {
  Program p;
  p.backend = backend;
  p.model.layers = 1;
  p.setup.batch = {1, 1, 1, n};
  p.setup.recompute = kSelectiveRecompute;
  p.layout.shards = 1;
  const auto bytes = static_cast<uint64_t>(n) * sizeof(float);
  const auto persistent = [&](const char* label, Role role, Dtype dtype, uint64_t size,
                              Space space) {
    const BufferId id = AddBuffer(p, label, role, dtype, size);
    p.buffers[id].space = space;
    p.buffers[id].persistent = true;
    return id;
  };
  const auto activation = [&](const char* label) {
    const BufferId id = AddBuffer(p, label, Role::kActivation, Dtype::kF32, bytes);
    p.buffers[id].memory_class = MemoryClass::kActivations;
    return id;
  };
  p.state_buffer = persistent("state", Role::kState, Dtype::kU8, sizeof(StepState), Space::kDevice);
  p.state_host_buffer =
      persistent("state_host", Role::kStateHost, Dtype::kU8, sizeof(StepState), Space::kPinned);
  p.tokens_host_buffer =
      persistent("tokens_host", Role::kTokensHost, Dtype::kI32, 2 * bytes, Space::kPinned);
  const BufferId result =
      persistent("result", Role::kActivation, Dtype::kF32, bytes, Space::kDevice);
  const BufferId x = activation("x"), y = activation("y");

  Emitter emit(p, p.section(Section::kMicroStep));
  emit.Tag(Phase::kForward, kEmbeddingLayer);
  emit.CopyTo({p.tokens_host_buffer, 0, bytes, 0}, Whole(p, x));
  emit.Tag(Phase::kForward, 0);
  emit.Launch(kExtraKernel, {n}, kNoFlags, {Whole(p, x), Whole(p, y)}, Stream::kCompute,
              {kMadeUpSlope});
  emit.Tag(Phase::kBackward, 0);
  emit.Launch(KernelId::kConvert, {n}, kNoFlags, {Whole(p, y), Whole(p, result)});
  p = InsertRecompute(std::move(p));
  p = InsertLifetimes(std::move(p));
  p = AssignEvents(std::move(p));
  return {PlaceArenas(std::move(p)), result};
}

}  // namespace zeroplan
