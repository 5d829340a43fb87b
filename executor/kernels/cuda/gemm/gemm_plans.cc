#include "executor/kernels/cuda/gemm/gemm_plans.h"

#include <algorithm>
#include <cmath>

#include "core/base/fp8.h"
#include "core/base/log.h"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan {
namespace {

// How many of the library's suggestions are timed; past a dozen they hardly ever win.
constexpr int kCandidates = 12;
constexpr int kRuns = 3;
constexpr double kRunMs = 1.5;     // a run has as many launches as take this long,
constexpr int kMostLaunches = 30;  // but no more,
constexpr int kLeastLaunches = 3;  // and no fewer
// A candidate this much slower in one launch than the best so far is not looked at again.
constexpr double kHopeless = 1.5;

class TimingEvents {
 public:
  TimingEvents() {
    CheckRuntimeCall(cudaEventCreate(&begin_), "making an event");
    if (const cudaError_t status = cudaEventCreate(&end_); status != cudaSuccess) {
      cudaEventDestroy(begin_);
      CheckRuntimeCall(status, "making an event");
    }
  }
  ~TimingEvents() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  TimingEvents(const TimingEvents&) = delete;
  TimingEvents& operator=(const TimingEvents&) = delete;

  double Milliseconds(cudaStream_t stream, int launches, const std::function<void()>& launch) {
    CheckRuntimeCall(cudaEventRecord(begin_, stream), "timing");
    for (int i = 0; i < launches; ++i) launch();
    CheckRuntimeCall(cudaEventRecord(end_, stream), "timing");
    CheckRuntimeCall(cudaEventSynchronize(end_), "timing");
    float ms = 0;
    CheckRuntimeCall(cudaEventElapsedTime(&ms, begin_, end_), "timing");
    return static_cast<double>(ms) / launches;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Infinity if one launch is hopelessly slower than `best`.
double TimeAgainst(TimingEvents& events, cudaStream_t stream, double best,
                   const std::function<void()>& launch) {
  launch();
  const double once = events.Milliseconds(stream, 1, launch);
  if (once > kHopeless * best + 0.02) return INFINITY;  // 0.02 ms: what an event itself may take
  const int launches =
      std::clamp(static_cast<int>(kRunMs / std::max(once, 1e-4)), kLeastLaunches, kMostLaunches);
  double least = INFINITY;
  for (int i = 0; i < kRuns; ++i) {
    least = std::min(least, events.Milliseconds(stream, launches, launch));
  }
  return least;
}

// Elements from the first to the last of a matrix stored in `columns` columns, batch included.
int64_t Extent(int64_t rows, int64_t columns, int64_t ld, int64_t batch, int64_t stride) {
  return (batch - 1) * stride + (columns - 1) * ld + rows;
}

// Those of an operand of `rows` rows along k.
void FillScales(GemmScale scale, int64_t rows, int64_t k, const void* data, cudaStream_t stream) {
  if (scale == GemmScale::kNone) return;
  const int64_t count = scale == GemmScale::kOne    ? 1
                        : scale == GemmScale::kRows ? k / kFp8Block * rows
                                                    : rows / kFp8Block * Fp8BlockScalesRow(k);
  cuda::FillUniform(const_cast<void*>(data), Dtype::kF32, count, 6, stream);
}

void FillInputs(const GemmProblem& p, const GemmPointers& pointers, cudaStream_t stream) {
  const auto fill = [&](const void* data, Dtype dtype, int64_t count, uint32_t seed) {
    cuda::FillUniform(const_cast<void*>(data), dtype, count, seed, stream);
  };
  const int64_t a = p.transpose_a ? Extent(p.k, p.m, p.lda, p.batch, p.stride_a)
                                  : Extent(p.m, p.k, p.lda, p.batch, p.stride_a);
  const int64_t b = p.transpose_b ? Extent(p.n, p.k, p.ldb, p.batch, p.stride_b)
                                  : Extent(p.k, p.n, p.ldb, p.batch, p.stride_b);
  const int64_t d = Extent(p.m, p.n, p.ldd, p.batch, p.stride_d);
  fill(pointers.a, p.in, a, 1);
  fill(pointers.b, p.in_b, b, 2);
  FillScales(p.scale_a, p.m, p.k, pointers.scale_a, stream);
  FillScales(p.scale_b, p.n, p.k, pointers.scale_b, stream);
  if (p.adds_c) fill(pointers.c, p.out, d, 3);
  if (p.epilogue == GemmEpilogue::kBias || p.epilogue == GemmEpilogue::kGeluAuxBias) {
    fill(pointers.bias, p.out, p.m, 4);
  }
  if (p.epilogue == GemmEpilogue::kDGelu) fill(pointers.aux, p.out, d, 5);
  CheckKernelLaunch("filling matrices to time products on");
}

}  // namespace

double TimeLaunches(cudaStream_t stream, const std::function<void()>& launch) {
  TimingEvents events;
  return TimeAgainst(events, stream, INFINITY, launch);
}

GemmPlans::GemmPlans(int device, const std::string& cache_folder, bool deterministic)
    : deterministic_(deterministic) {
  CheckRuntimeCall(cudaSetDevice(device), "choosing a GPU");
  cudaDeviceProp properties;
  CheckRuntimeCall(cudaGetDeviceProperties(&properties, device), "asking for a GPU's properties");
  gpu_name_ = properties.name;
  if (!cache_folder.empty() && !deterministic) {
    cache_path_ = GemmCachePath(cache_folder, gpu_name_, Lt().GetVersion());
    known_ = ReadGemmCache(cache_path_, gpu_name_, Lt().GetVersion());
  }
  CheckLtCall(Lt().Create(&handle_), "starting the library");
}

GemmPlans::~GemmPlans() {
  plans_.clear();
  Lt().Destroy(handle_);
}

GemmPlan& GemmPlans::Find(const GemmProblem& problem, const GemmPointers& pointers) {
  std::unique_ptr<GemmPlan>& slot = plans_[problem];
  if (slot != nullptr) return *slot;
  auto plan = std::make_unique<GemmPlan>(handle_, problem);
  if (known_.products.empty() && known_.fusions.empty()) {
    // Nothing to look up: the usual first run.
  } else if (const auto at = known_.products.find(GemmProblemText(problem));
             at != known_.products.end()) {
    cublasLtMatmulAlgo_t algorithm;
    if (HexToBytes(at->second.algorithm_hex, &algorithm, sizeof(algorithm)) &&
        plan->Accepts(algorithm, pointers)) {
      plan->algorithm = algorithm;
      plan->supported = plan->tuned = true;
      plan->milliseconds = at->second.milliseconds;
    } else {
      LogWarning("{}: the library does not take the algorithm for {}; tuning again", cache_path_,
                 at->first);
    }
  }
  if (!plan->supported) {
    const auto suggestions = plan->Algorithms(pointers, 1);
    plan->supported = !suggestions.empty();
    if (plan->supported) plan->algorithm = suggestions.front();
  }
  slot = std::move(plan);
  return *slot;
}

bool GemmPlans::TryRun(const GemmProblem& problem, const GemmPointers& pointers,
                       cudaStream_t stream) {
  GemmPlan& plan = Find(problem, pointers);
  if (!plan.supported) return false;
  const cublasStatus_t status = plan.Launch(pointers, stream);
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    CheckLtCall(status, "the matrix product " + GemmProblemText(problem));
  }
  return true;
}

void GemmPlans::Run(const GemmProblem& problem, const GemmPointers& pointers, cudaStream_t stream) {
  if (TryRun(problem, pointers, stream)) return;
  const cublasStatus_t refusal = Find(problem, pointers).refusal;
  ThrowRuntime("cuBLASLt has no algorithm for the matrix product {}{}", GemmProblemText(problem),
               refusal == CUBLAS_STATUS_SUCCESS
                   ? ""
                   : fmt::format("; those it suggested fail with {}", Lt().GetStatusName(refusal)));
}

double GemmPlans::Tune(const GemmProblem& problem, const GemmPointers& pointers,
                       cudaStream_t stream) {
  GemmPlan& plan = Find(problem, pointers);
  if (plan.tuned) return plan.milliseconds;
  if (!plan.supported) return 0;
  FillInputs(problem, pointers, stream);
  TimingEvents events;
  double best = INFINITY;
  for (const cublasLtMatmulAlgo_t& candidate : plan.Algorithms(pointers, kCandidates)) {
    // Some suggestions fail only when launched.
    const cublasStatus_t status = plan.Launch(candidate, pointers, stream);
    if (status != CUBLAS_STATUS_SUCCESS) {
      plan.refusal = status;
      continue;
    }
    if (deterministic_) {
      plan.algorithm = candidate;
      plan.tuned = true;
      return 0;
    }
    const double ms = TimeAgainst(events, stream, best, [&] {
      CheckLtCall(plan.Launch(candidate, pointers, stream), "timing a matrix product");
    });
    if (ms >= best) continue;
    best = ms;
    plan.algorithm = candidate;
  }
  if (best == INFINITY) {
    plan.supported = false;
    return 0;
  }
  plan.tuned = true;
  plan.milliseconds = best;
  ++tuned_in_this_run_;
  const std::string text = GemmProblemText(problem);
  known_.products[text] =
      unsaved_.products[text] = {BytesToHex(&plan.algorithm, sizeof(plan.algorithm)), best};
  return best;
}

bool GemmPlans::Fused(const GemmProblem& fused, bool otherwise) const {
  const auto at = fusions_.find(fused);
  return at == fusions_.end() ? otherwise : at->second.fused;
}

bool GemmPlans::FusionChosen(const GemmProblem& fused) const { return fusions_.contains(fused); }

void GemmPlans::ChooseFusion(const GemmProblem& fused, double fused_ms,
                             const std::function<double()>& separate_ms) {
  if (deterministic_ || FusionChosen(fused)) return;
  const std::string text = GemmProblemText(fused);
  if (const auto at = known_.fusions.find(text); at != known_.fusions.end()) {
    fusions_[fused] = at->second;
    return;
  }
  FusionChoice choice{.fused_ms = fused_ms, .separate_ms = separate_ms()};
  choice.fused = fused_ms > 0 && fused_ms <= choice.separate_ms;
  fusions_[fused] = choice;
  known_.fusions[text] = unsaved_.fusions[text] = choice;
}

void GemmPlans::Save() {
  if (cache_path_.empty() || (unsaved_.products.empty() && unsaved_.fusions.empty())) return;
  WriteGemmCache(cache_path_, gpu_name_, Lt().GetVersion(), unsaved_);
  unsaved_ = {};
}

std::vector<GemmPlans::Choice> GemmPlans::choices() const {
  std::vector<Choice> all;
  for (const auto& [problem, plan] : plans_) {
    if (!plan->tuned && !fusions_.contains(problem)) continue;
    Choice choice{.product = GemmProblemText(problem), .milliseconds = plan->milliseconds};
    if (const auto at = fusions_.find(problem); at != fusions_.end()) {
      choice.has_fusion = true;
      choice.fusion = at->second;
    }
    all.push_back(std::move(choice));
  }
  std::sort(all.begin(), all.end(),
            [](const Choice& a, const Choice& b) { return a.product < b.product; });
  return all;
}

}  // namespace zeroplan
