// The CUDA half of tests/agreement/made_up_kernel_test.cc: one more function, and the same program
// runs on a GPU.
#include <doctest/doctest.h>

#include "executor/kernels/cuda/launch_util.h"
#include "tests/executor/cuda/made_up_kernel.h"
#include "tests/executor/engine/tiny_program.h"
#include "tests/executor/kernels/kernel_harness.h"
#include "tests/made_up_kernel.h"

namespace zeroplan {
namespace cuda {
namespace {

void LeakyRelu(const KernelCall& call) {
  LaunchLeakyRelu(Floats(call, 0), Floats(call, 1), call.dims[0], call.scalars[0],
                  LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace
}  // namespace cuda

namespace {

class MadeUpCudaKernel {
 public:
  MadeUpCudaKernel() { SetExtraCudaKernel(cuda::LeakyRelu); }
  ~MadeUpCudaKernel() { SetExtraCudaKernel(nullptr); }

 private:
  MadeUpKernel kernel_;
};

std::vector<float> ResultOn(Backend backend) {
  const MadeUpStep step = LowerMadeUpStep(Backend::kCuda, 1000);
  EngineOptions options;
  options.backend = backend;
  options.threads_per_rank = 1;
  Engine engine(step.program, options);
  engine.Init();
  engine.Step([](int, int64_t, std::span<int32_t> inputs, std::span<int32_t>) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = FloatWord(0.37f * static_cast<float>(i) - 180);
    }
  });
  engine.Drain();
  return PeekFloats(engine, 0, step.result);
}

TEST_CASE("gpu made-up kernel: in a program, bit for bit the CPU's result") {
  const MadeUpCudaKernel kernel;
  CHECK(ResultOn(Backend::kCuda) == ResultOn(Backend::kCpu));
}

TEST_CASE("gpu made-up kernel: by itself, in every dtype, within its arguments") {
  using namespace kernel_test;
  ZEROPLAN_TEST_RNG(rng);
  const MadeUpCudaKernel kernel;
  Bench bench(1);
  for (const Dtype dtype : FloatDtypes()) {
    const int64_t n = 1013;
    Tensor x = Tensor::Random(rng, dtype, n), y(dtype, n);
    bench.Run(kExtraKernel, {n}, {&x, &y});
    const double slope = static_cast<double>(UsualScalars(kExtraKernel)[0]);
    Doubles want = x.values();
    for (double& value : want) value = value > 0 ? value : slope * value;
    CheckAllClose(y, want, 1e-7, "y");
  }
}

}  // namespace
}  // namespace zeroplan
