// GFLOP/s of training a GPT of about 10M parameters on the CPU backend in fp32, beside plain Eigen
// products of the very shapes that the step program launches, on the same threads.
//
//   cpu_training_benchmark [threads]
//
// Hardware: any CPU; memory: about 0.6 GB; time: about a minute on two cores. Training's figure
// counts the matmuls' FLOPs alone, over the whole step (attention, norms, loss and AdamW take time
// but add no FLOPs), so 100 % would mean that everything but the products is free. The two are
// measured in turns, five times; medians are printed.
#include <fmt/format.h>

#define EIGEN_DONT_PARALLELIZE
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/base/timing.h"
#include "core/families/gpt2/gpt2.h"
#include "core/lowering/lower.h"
#include "executor/engine/engine.h"

namespace zeroplan {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Shape {
  KernelId kernel;
  int64_t m, k, n;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ModelSpec BenchmarkModel() {
  ModelSpec model = Gpt2().Shape(6, 384, 256, true);
  model.name = "gpt-10m";
  return model;
}

std::vector<Shape> Matmuls(const Program& program) {
  std::vector<Shape> shapes;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
    if (launch == nullptr) continue;
    const bool matmul = launch->kernel == KernelId::kMatmulForward ||
                        launch->kernel == KernelId::kMatmulBackwardData ||
                        launch->kernel == KernelId::kMatmulBackwardWeight;
    if (matmul)
      shapes.push_back({launch->kernel, launch->dims[0], launch->dims[1], launch->dims[2]});
  }
  return shapes;
}

// One product, its rows (or, for weight gradients, its result's rows) shared out to the threads.
void PlainProduct(const Shape& shape, const Matrix& a, const Matrix& b, Matrix& out, int threads) {
  const bool weight = shape.kernel == KernelId::kMatmulBackwardWeight;
  const bool data = shape.kernel == KernelId::kMatmulBackwardData;
  const int64_t rows = weight ? shape.k : shape.m;
  auto part = [&](int64_t begin, int64_t count) {
    if (weight) {  // [k,n] = a[m,k]^T * dy[m,n]
      out.block(begin, 0, count, shape.n).noalias() =
          a.block(0, begin, shape.m, count).transpose() * b.block(0, 0, shape.m, shape.n);
    } else if (data) {  // [m,k] = dy[m,n] * w[k,n]^T
      out.block(begin, 0, count, shape.k).noalias() =
          a.block(begin, 0, count, shape.n) * b.block(0, 0, shape.k, shape.n).transpose();
    } else {
      out.block(begin, 0, count, shape.n).noalias() =
          a.block(begin, 0, count, shape.k) * b.block(0, 0, shape.k, shape.n);
    }
  };
  std::vector<std::thread> workers;
  const int64_t share = (rows + threads - 1) / threads;
  for (int t = 1; t < threads; ++t) {
    const int64_t begin = std::min(rows, t * share);
    workers.emplace_back(part, begin, std::min(share, rows - begin));
  }
  part(0, std::min(share, rows));
  for (std::thread& worker : workers) worker.join();
}

int Main(int argc, char** argv) {
  const int threads = argc > 1
                          ? std::atoi(argv[1])
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (threads < 1) {
    fmt::print(stderr, "usage: cpu_training_benchmark [threads]\n");
    return 2;
  }
  TrainSetup setup;
  setup.precision.dtype = setup.precision.grad_accum_dtype = Dtype::kF32;
  setup.batch = {8, 1, 1, 256};
  const Program program = Lower(BenchmarkModel(), setup);
  EngineOptions options;
  options.threads_per_rank = threads;
  Engine engine(program, options);
  engine.Init();
  const FillBatch fill = [](int, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets) {
    for (int32_t& token : inputs) token = std::rand() % 256;
    for (int32_t& token : targets) token = std::rand() % 256;
  };

  const std::vector<Shape> shapes = Matmuls(program);
  double flops = 0;
  int64_t largest = 0;
  for (const Shape& shape : shapes) {
    flops += 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.k) *
             static_cast<double>(shape.n);
    largest = std::max({largest, shape.m, shape.k, shape.n});
  }
  const Matrix a = Matrix::Random(largest, largest), b = Matrix::Random(largest, largest);
  Matrix out = Matrix::Zero(largest, largest);

  engine.Step(fill);
  std::vector<double> training, plain;
  for (int repeat = 0; repeat < 5; ++repeat) {
    double begin = Seconds();
    for (int i = 0; i < 3; ++i) engine.Step(fill);
    training.push_back((Seconds() - begin) / 3);
    begin = Seconds();
    for (const Shape& shape : shapes) PlainProduct(shape, a, b, out, threads);
    plain.push_back(Seconds() - begin);
  }
  const double step = Median(training), products = Median(plain);
  fmt::print("model {} parameters, batch 8 x 256, fp32, {} thread{}\n", program.model.ParamCount(),
             threads, threads == 1 ? "" : "s");
  fmt::print("{:<34} {:>10} {:>12}\n", "", "seconds", "GFLOP/s");
  fmt::print("{:<34} {:>10.4f} {:>12.1f}\n", "training step (matmul FLOPs)", step,
             flops / step / 1e9);
  fmt::print("{:<34} {:>10.4f} {:>12.1f}\n", "plain Eigen, the step's matmuls", products,
             flops / products / 1e9);
  fmt::print("training reaches {:.1f} % of plain Eigen\n", 100 * products / step);
  return 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) { return zeroplan::Main(argc, argv); }
