// The optimizer step on a GPU: norm, scalars, AdamW and fresh weights beside the CPU's.
#include <cstring>
#include <memory>

#include "executor/optimizer/step_scalars.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test {
namespace {

StepState OnGpu(const TrainSetup& setup, StepState state) {
  Bench bench(1);
  bench.program.setup = setup;
  Tensor tensor = Tensor::State(state);
  bench.Run(KernelId::kStepScalars, {}, {&tensor});
  return tensor.state();
}

// The GPU's log, cos, pow and sqrt may differ from libm's in the last bits of a double.
void CheckAlike(const StepState& got, const StepState& want) {
  const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b); };
  CHECK(got.loss_sum == doctest::Approx(want.loss_sum).epsilon(1e-12));
  CHECK(got.step == want.step);
  CHECK(got.good_steps == want.good_steps);
  CHECK(got.loss_scale == want.loss_scale);
  CHECK(got.grad_scale == want.grad_scale);
  CHECK(close(static_cast<double>(got.lr), static_cast<double>(want.lr)));
  CHECK(close(static_cast<double>(got.grad_factor), static_cast<double>(want.grad_factor)));
  CHECK(
      close(static_cast<double>(got.bias_correction1), static_cast<double>(want.bias_correction1)));
  CHECK(
      close(static_cast<double>(got.bias_correction2), static_cast<double>(want.bias_correction2)));
  CHECK(got.skip == want.skip);
  CHECK(got.hysteresis_left == want.hysteresis_left);
  CHECK(got.skipped_steps == want.skipped_steps);
}

TEST_CASE("gpu step scalars: every schedule, loss scaling, skipped steps, as on the CPU") {
  for (ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kWarmup, ScheduleKind::kWarmupDecay,
        ScheduleKind::kWarmupCosine, ScheduleKind::kOneCycle, ScheduleKind::kRangeTest}) {
    for (bool linear : {false, true}) {
      CAPTURE(static_cast<int>(kind));
      TrainSetup setup;
      setup.precision.dtype = Dtype::kF16;
      setup.precision.loss_scale_window = 3;
      setup.batch = {.micro_batch = 2, .grad_accum = 3, .world_size = 4, .seq_len = 16};
      setup.optimizer.schedule.kind = kind;
      setup.optimizer.schedule.log_warmup = !linear;
      setup.optimizer.schedule.warmup_steps = 4;
      setup.optimizer.schedule.total_steps = 12;
      setup.optimizer.schedule.one_cycle.first_steps = 3;
      setup.optimizer.schedule.one_cycle.second_steps = 5;
      setup.optimizer.schedule.one_cycle.first_stairs = linear ? 2 : 0;
      setup.optimizer.schedule.one_cycle.decay_steps = 2;
      setup.optimizer.schedule.one_cycle.decay_rate = 0.5;
      setup.optimizer.schedule.range_test.step_size = 4;
      setup.optimizer.schedule.range_test.staircase = linear;
      StepState cpu = InitialStepState(setup), gpu = cpu;
      for (int step = 0; step < 14; ++step) {
        CAPTURE(step);
        // Overflows at steps 2, 3 and 8; norms on both sides of the limit.
        const double norm_sq = step == 2 || step == 8 ? HUGE_VAL
                               : step == 3            ? std::nan("")
                                                      : 1e9 * step * step;
        cpu.grad_norm_sq = gpu.grad_norm_sq = norm_sq;
        cpu.loss_sum = gpu.loss_sum = 30.0 / (step + 1);
        SettleStep(setup, cpu);
        gpu = OnGpu(setup, gpu);
        CheckAlike(gpu, cpu);
      }
      CHECK(gpu.skipped_steps == 3);
    }
  }
}

TEST_CASE("gpu: fp16 overflow makes the norm infinite, the step skipped, the weights unchanged") {
  Bench bench(1);
  bench.program.layout = TestLayout(1);
  bench.program.setup.precision.dtype = Dtype::kF16;
  constexpr int64_t kN = 1500;
  Tensor wide(Dtype::kF32, kN), grad(Dtype::kF16, kN);
  for (int64_t i = 0; i < kN; ++i) wide.Set(i, i == 777 ? 7e4 : 1);  // fp16 ends at 65504
  bench.Run(KernelId::kConvert, {kN}, {&wide, &grad});
  CHECK(std::isinf(grad[777]));
  Tensor state = Tensor::State(InitialStepState(bench.program.setup));
  const float scale = state.state().loss_scale;
  bench.Run(KernelId::kNormSq, {kN}, {&grad, &state});
  CHECK(std::isinf(state.state().grad_norm_sq));
  for (int step = 0; step < 2; ++step) {  // the first overflow uses up hysteresis
    bench.Run(KernelId::kNormSq, {kN}, {&grad, &state});
    bench.Run(KernelId::kStepScalars, {}, {&state});
  }
  CHECK(state.state().skip == 1);
  CHECK(state.state().step == 0);
  CHECK(state.state().skipped_steps == 2);
  CHECK(state.state().loss_scale == scale / 2);
  Tensor master(Dtype::kF32, kN), m(Dtype::kF32, kN), v(Dtype::kF32, kN), param(Dtype::kF16, kN);
  for (int64_t i = 0; i < kN; ++i) master.Set(i, 0.001 * static_cast<double>(i));
  const Tensor before = master;
  bench.Run(KernelId::kAdamW, {kN, 0, 0}, {&grad, &state, &master, &m, &v, &param});
  CHECK(master == before);
  for (int64_t i = 0; i < kN; ++i) {
    REQUIRE(m[i] == 0);
    REQUIRE(v[i] == 0);
    REQUIRE(Close(param[i], master[i], Dtype::kF16, 0));
  }
}

TEST_CASE("gpu norm: sizes around the kernel's blocks, twice the same bits") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (int64_t n : {7, 16'384, 16'385, 2'000'003, 20'000'001}) {
    CAPTURE(n);
    Tensor g(Dtype::kBF16, n), state = Tensor::State({}), again = Tensor::State({});
    double want = 0;
    for (int64_t i = 0; i < n; ++i) {
      g.Set(i, static_cast<double>(rng.Word() % 1000) - 400);
      want += g[i] * g[i];
    }
    bench.Run(KernelId::kNormSq, {n}, {&g, &state});
    bench.Run(KernelId::kNormSq, {n}, {&g, &again});
    CHECK(state.state().grad_norm_sq == again.state().grad_norm_sq);
    CHECK(state.state().grad_norm_sq == want);  // whole numbers below 2^53: exact
  }
}

// `count` vectors of 30 + i elements, every other one decayed, at multiples of 64.
ParamLayout ManyTensors(int count) {
  auto tensors = std::make_shared<std::vector<ParamTensor>>();
  Unit unit{.layer = 0, .persistent = false, .slots = {}};
  for (int i = 0; i < count; ++i) {
    tensors->push_back(TestTensor(30 + i, 1, i % 2 == 0, InitKind::kNormal, 30 + i));
    const auto n = static_cast<uint64_t>(30 + i);
    const uint64_t offset = (unit.elements + 63) / 64 * 64;
    unit.slots.push_back({i, offset, n});
    unit.elements = offset + n;
  }
  unit.shard_elements = unit.padded_elements = (unit.elements + 63) / 64 * 64;
  ParamLayout layout;
  layout.tensors = tensors;
  layout.units.push_back(unit);
  return layout;
}

// More pieces than a launch takes; the CPU's kernel is the reference.
TEST_CASE("gpu adamw and fresh weights: a unit of many tensors, as on the CPU") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  bench.program.layout = ManyTensors(150);
  bench.program.setup.optimizer.weight_decay = 0.1;
  bench.seed = rng.Word();
  const auto n = static_cast<int64_t>(bench.program.layout.units[0].padded_elements);
  const KernelContext cpu{&bench.program, 0, bench.seed, &bench.pool};
  const auto on_cpu = [&](KernelId id, const KernelDims& dims, std::vector<KernelArg> args) {
    CpuKernels().rows[static_cast<size_t>(id)]({id, 0, dims, args, cpu});
  };

  Tensor fresh(Dtype::kF32, n), want_fresh(Dtype::kF32, n);
  bench.Run(KernelId::kParamInit, {n, 0, 0}, {&fresh});
  on_cpu(KernelId::kParamInit, {n, 0, 0}, {want_fresh.arg()});
  // Logarithm, root, sine and cosine of both libraries are off by a unit or two; radii reach 6.
  CheckAllClose(fresh, want_fresh.values(), 20 * 0x1p-24, "fresh weights");

  StepState step;
  step.lr = 0.01f;
  step.grad_factor = 0.5f;
  step.bias_correction1 = 0.1f;
  step.bias_correction2 = 0.001f;
  Tensor state = Tensor::State(step), grad = Tensor::Random(rng, Dtype::kBF16, n);
  Tensor master = fresh, m = Tensor::Random(rng, Dtype::kF32, n, 0.1), v(Dtype::kF32, n);
  for (int64_t i = 0; i < n; ++i) v.Set(i, 0.01 + std::abs(rng.Normal(0.1)));
  Tensor param(Dtype::kBF16, n), cpu_param(Dtype::kBF16, n), cpu_master = master, cpu_m = m;
  Tensor cpu_v = v;
  bench.Run(KernelId::kAdamW, {n, 0, 0}, {&grad, &state, &master, &m, &v, &param});
  on_cpu(KernelId::kAdamW, {n, 0, 0},
         {grad.arg(), state.arg(), cpu_master.arg(), cpu_m.arg(), cpu_v.arg(), cpu_param.arg()});
  CHECK(master == cpu_master);
  CHECK(m == cpu_m);
  CHECK(v == cpu_v);
  CHECK(param == cpu_param);
}

}  // namespace
}  // namespace zeroplan::kernel_test
