// The matmuls of one rank on one GPU. Each matmul's descriptions are made once, its algorithm is
// the library's first suggestion until Tune has timed some, and the results are kept on disk for
// the next run. Algorithms differ in the last bits, and times choose others from run to run and
// from rank to rank: deterministic plans always use the first one. For one thread at a time.
#pragma once

#include <cublasLt.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/kernels/cuda/gemm/gemm_cache_file.h"
#include "executor/kernels/cuda/gemm/gemm_plan.h"

namespace zeroplan {

// Milliseconds of `launch` on `stream`, best of a few runs of several launches each; the first
// launch warms up. Synchronises.
double TimeLaunches(cudaStream_t stream, const std::function<void()>& launch);

class GemmPlans {
 public:
  // Makes `device` the thread's current one. `cache_folder`: see DefaultCacheFolder; empty: nothing
  // is read or stored. `deterministic`: equal matmuls give equal bits in every run on this kind of
  // GPU and version of the library; nothing is timed, read or stored.
  explicit GemmPlans(int device, const std::string& cache_folder = "", bool deterministic = false);
  ~GemmPlans();
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  // Launches the matmul on `stream`. TryRun returns false, and launches nothing, if the library has
  // no algorithm for it; Run throws Error(kRuntime) that names the matmul.
  bool TryRun(const GemmProblem& problem, const GemmPointers& pointers, cudaStream_t stream);
  void Run(const GemmProblem& problem, const GemmPointers& pointers, cudaStream_t stream);

  // Times the library's suggestions on the given memory, which it fills with numbers, unless the
  // matmul has been tuned, in this run or an earlier one. Returns the best one's milliseconds, 0 if
  // the library has none. Deterministic plans use the first suggestion that runs, and return 0.
  double Tune(const GemmProblem& problem, const GemmPointers& pointers, cudaStream_t stream);

  // Whether a fused matmul should run fused; `otherwise` until it has been chosen.
  bool Fused(const GemmProblem& fused, bool otherwise) const;
  // Chooses by timing both ways, unless that has been done; `fused` must have been tuned. A
  // fused_ms of 0 counts as unsupported. Deterministic plans choose nothing, so Fused returns
  // `otherwise`.
  void ChooseFusion(const GemmProblem& fused, double fused_ms,
                    const std::function<double()>& separate_ms);
  bool FusionChosen(const GemmProblem& fused) const;

  // Writes the results since the last call to the cache file.
  void Save();

  // Every tuning result or choice, of this run or an earlier one, that this run has used.
  struct Choice {
    std::string product;  // GemmProblemText
    double milliseconds = 0;
    bool has_fusion = false;  // then `fusion` holds the comparison of the fused matmul
    FusionChoice fusion;
  };
  std::vector<Choice> choices() const;

  int tuned_in_this_run() const { return tuned_in_this_run_; }
  const std::string& cache_path() const { return cache_path_; }

 private:
  GemmPlan& Find(const GemmProblem& problem, const GemmPointers& pointers);

  cublasLtHandle_t handle_ = nullptr;
  bool deterministic_;
  std::string gpu_name_, cache_path_;  // path empty: nothing is stored
  GemmCacheContent known_;             // from the file and from tuning
  GemmCacheContent unsaved_;
  std::unordered_map<GemmProblem, std::unique_ptr<GemmPlan>, GemmProblemHash> plans_;
  std::unordered_map<GemmProblem, FusionChoice, GemmProblemHash> fusions_;
  int tuned_in_this_run_ = 0;
};

}  // namespace zeroplan
