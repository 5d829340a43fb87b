// Times CUDA kernels on buffers of their own and prints a row each, for cuda_kernels_benchmark.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/fp8.h"
#include "core/base/timing.h"
#include "core/program/step_state.h"
#include "executor/kernels/convert.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan::cuda_rows {

// NVIDIA H100 and H200 data sheets, SXM: 1979 TFLOP/s bf16 with sparsity, half of it dense.
inline constexpr double kDenseFlops = 989e12, kDenseFp8Flops = 1979e12;  // 3958 with sparsity
inline constexpr uint64_t kCacheBytes = uint64_t{128} << 20;  // more than twice an H200's 50 MB
inline constexpr int kRuns = 7;

inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) ThrowRuntime("{}: {}", what, cudaGetErrorString(error));
}

struct Model {
  const char* name;
  int64_t B, T, C, H;
  int64_t M() const { return B * T; }
};
inline constexpr int64_t kV = 50257, kVp = 50304;

// An argument to make: `n` elements filled from the pattern of its dtype.
struct Spec {
  enum class Fill : uint8_t { kNumbers, kPositive, kTokens, kState, kAbsent, kGiven };
  Fill fill = Fill::kNumbers;
  Dtype dtype = Dtype::kBF16;
  int64_t n = 0;
  std::vector<int32_t> given = {};
};
inline Spec P(int64_t n) { return {.n = n}; }
inline Spec F32(int64_t n) { return {.dtype = Dtype::kF32, .n = n}; }
inline Spec Tokens(int64_t n) { return {Spec::Fill::kTokens, Dtype::kI32, n}; }
inline Spec State() { return {Spec::Fill::kState, Dtype::kU8, sizeof(StepState)}; }
inline Spec Absent() { return {Spec::Fill::kAbsent}; }
inline Spec Given(std::vector<int32_t> values) {
  const auto n = static_cast<int64_t>(values.size());
  return {Spec::Fill::kGiven, Dtype::kI32, n, std::move(values)};
}

struct Row {
  std::string note;
  KernelId id;
  KernelDims dims;
  std::vector<Spec> args;
  int flags = 0;
  bool products = false;  // bound by FLOPs
  double bytes = 0;       // 0: those of the arguments
};

class DeviceBytes {
 public:
  explicit DeviceBytes(uint64_t bytes) { Check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  char* get() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

class Benchmark {
 public:
  explicit Benchmark(bool deterministic) : gemm_(0), attention_(0, deterministic) {
    Check(cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking), "stream");
    Check(cudaEventCreate(&begin_), "event");
    Check(cudaEventCreate(&end_), "event");
    Check(cudaDeviceGetAttribute(&launch_.sm_count, cudaDevAttrMultiProcessorCount, 0), "device");
    launch_.gemm = &gemm_;
    launch_.attention = &attention_;
    program_.setup.optimizer.weight_decay = 0.1;
    MakePatterns();
    copy_rate_ = CopyRate();
  }

  double copy_rate() const { return copy_rate_; }
  void LimitDocuments(const DocumentLimits& limits) { attention_.LimitDocuments(limits); }
  const nlohmann::json& results() const { return results_; }
  bool failed() const { return failed_; }

  void Run(const Model& model, const Row& row) {
    const std::string what = fmt::format("{} {}", KernelInfo(row.id).name, row.note);
    try {
      Report(model, row, what, Seconds(row));
    } catch (const std::exception& error) {
      failed_ = true;
      fmt::print("{:<6}{:<42} failed: {}\n", model.name, what, error.what());
    }
    std::fflush(stdout);
  }

  // Among the first n of a tokens argument.
  int64_t DistinctTokens(int64_t n) const {
    const auto* tokens = reinterpret_cast<const int32_t*>(patterns_[2].data());
    return static_cast<int64_t>(std::set<int32_t>(tokens, tokens + std::min(n, kPattern)).size());
  }

  // One unit that is one decayed tensor of n elements.
  void SetUnit(int64_t n) {
    program_.layout = {};
    program_.layout.tensors = std::make_shared<std::vector<ParamTensor>>(std::vector<ParamTensor>{
        {{.name = "all", .shape = {n, 1}, .decay = true, .init_std = 0.02f, .unpadded_rows = n}}});
    program_.layout.units.push_back({.layer = 0, .slots = {{0, 0, static_cast<uint64_t>(n)}}});
  }

 private:
  static constexpr int64_t kPattern = 1 << 20;  // elements

  void MakePatterns() {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> wide(kPattern);
    for (float& x : wide) x = 0.1f + std::abs(normal(random));  // fit for variances too
    patterns_[0].assign(reinterpret_cast<char*>(wide.data()),
                        reinterpret_cast<char*>(wide.data() + kPattern));
    patterns_[3].resize(kPattern * 2);
    Narrow(Dtype::kBF16, wide.data(), kPattern, patterns_[3].data());
    for (float& x : wide) x = normal(random);
    patterns_[1].resize(kPattern * 2);
    Narrow(Dtype::kBF16, wide.data(), kPattern, patterns_[1].data());
    for (const float x : wide) patterns_[4].push_back(static_cast<char>(ToE4M3(64 * x)));
    std::vector<int32_t> tokens(kPattern);
    for (int32_t& token : tokens) {  // about as often as words: 1 / rank
      const double u = std::uniform_real_distribution<double>()(random);
      token = static_cast<int32_t>(std::min<double>(std::pow(kV, u), kV) - 1);
    }
    patterns_[2].assign(reinterpret_cast<char*>(tokens.data()),
                        reinterpret_cast<char*>(tokens.data() + kPattern));
  }

  void FillArgument(const Spec& spec, char* to, uint64_t bytes) {
    if (spec.fill == Spec::Fill::kGiven) {
      Check(cudaMemcpy(to, spec.given.data(), bytes, cudaMemcpyDefault), "upload");
      return;
    }
    if (spec.fill == Spec::Fill::kState) {
      StepState state;
      state.lr = 1e-4f;
      state.bias_correction1 = 0.1f;
      state.bias_correction2 = 0.001f;
      Check(cudaMemcpy(to, &state, sizeof(state), cudaMemcpyDefault), "upload");
      return;
    }
    const std::vector<char>& pattern = patterns_[spec.dtype == Dtype::kI32            ? 2
                                                 : spec.dtype == Dtype::kE4M3         ? 4
                                                 : spec.dtype != Dtype::kBF16         ? 0
                                                 : spec.fill == Spec::Fill::kPositive ? 3
                                                                                      : 1];
    for (uint64_t at = 0; at < bytes; at += pattern.size()) {
      Check(cudaMemcpy(to + at, pattern.data(), std::min<uint64_t>(pattern.size(), bytes - at),
                       cudaMemcpyDefault),
            "upload");
    }
  }

  // Milliseconds of fn on the stream.
  template <typename Fn>
  double Milliseconds(Fn&& fn) {
    Check(cudaEventRecord(begin_, launch_.stream), "event");
    fn();
    Check(cudaEventRecord(end_, launch_.stream), "event");
    Check(cudaEventSynchronize(end_), "running a kernel");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return static_cast<double>(ms);
  }

  // Median seconds of one call of fn(i), i counting up; some 20 ms a run.
  template <typename Fn>
  double MedianSeconds(Fn&& fn) {
    int next = 0;
    const auto several = [&](int count) {
      return Milliseconds([&] {
        for (int i = 0; i < count; ++i) fn(next++);
      });
    };
    several(2);
    const double once = std::max(several(4) / 4, 1e-4);
    const int count = static_cast<int>(std::clamp(20.0 / once, 3.0, 2000.0));
    std::vector<double> runs;
    for (int run = 0; run < kRuns; ++run) runs.push_back(several(count) / count);
    return Median(std::move(runs)) / 1e3;
  }

  double CopyRate() {
    const uint64_t bytes = uint64_t{1} << 30;
    const DeviceBytes from(bytes), to(bytes);
    Check(cudaMemset(from.get(), 1, bytes), "memset");
    const double seconds = MedianSeconds([&](int) {
      Check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, launch_.stream),
            "copy");
    });
    return 2 * static_cast<double>(bytes) / seconds;
  }

  double Seconds(const Row& row) {
    const KernelRow& info = KernelInfo(row.id);
    const auto starts = static_cast<size_t>(info.starts);
    const bool documents = info.starts >= 0 && starts < row.args.size();
    const uint64_t workspace = LaunchWorkspaceBytes(row.id, row.dims, Backend::kCuda, documents,
                                                    attention_.deterministic());
    std::vector<Spec> specs = row.args;
    if (workspace > 0) {
      const auto at = static_cast<size_t>(
          std::find(info.args.begin(), info.args.end(), ArgMode::kScratch) - info.args.begin());
      specs.resize(std::max(specs.size(), at + 1), Absent());
      specs[at] = {.dtype = Dtype::kU8, .n = static_cast<int64_t>(workspace)};
    }
    const auto room = [](const Spec& s) {
      return (static_cast<uint64_t>(s.n) * DtypeBytes(s.dtype) + 255) / 256 * 256;
    };
    uint64_t set_bytes = 0;
    for (const Spec& spec : specs) set_bytes += room(spec);
    const auto copies = static_cast<int>(std::clamp<uint64_t>(kCacheBytes / set_bytes + 1, 2, 256));
    const DeviceBytes memory(set_bytes * static_cast<uint64_t>(copies));
    std::vector<std::vector<KernelArg>> sets;
    char* at = memory.get();
    for (int copy = 0; copy < copies; ++copy) {
      std::vector<KernelArg>& args = sets.emplace_back();
      for (const Spec& spec : specs) {
        if (spec.fill == Spec::Fill::kAbsent) {
          args.push_back({});
          continue;
        }
        const uint64_t bytes = static_cast<uint64_t>(spec.n) * DtypeBytes(spec.dtype);
        if (spec.dtype != Dtype::kU8 || spec.fill == Spec::Fill::kState) {
          FillArgument(spec, at, bytes);
        }
        args.push_back({at, bytes, spec.dtype});
        at += room(spec);
      }
    }
    Check(cudaDeviceSynchronize(), "upload");

    KernelContext context{&program_};
    context.cuda = &launch_;
    const KernelTable& table = CudaKernels();
    const auto index = static_cast<size_t>(row.id);
    const auto flags = static_cast<uint8_t>(row.flags);
    if (table.prepare[index] != nullptr) {
      table.prepare[index]({row.id, flags, row.dims, sets[0], context, UsualScalars(row.id)});
      Check(cudaStreamSynchronize(launch_.stream), "preparing a kernel");
      for (size_t i = 0; i < specs.size(); ++i) {  // preparing may scribble on arguments
        if (sets[0][i].data == nullptr || specs[i].dtype == Dtype::kU8) continue;
        FillArgument(specs[i], static_cast<char*>(sets[0][i].data), sets[0][i].bytes);
      }
      Check(cudaDeviceSynchronize(), "upload");
    }
    return MedianSeconds([&](int i) {
      const std::vector<KernelArg>& args = sets[static_cast<size_t>(i % copies)];
      table.rows[index]({row.id, flags, row.dims, args, context, UsualScalars(row.id)});
    });
  }

  double Bytes(const Row& row) {
    if (row.bytes > 0) return row.bytes;
    double bytes = 0;
    for (size_t i = 0; i < row.args.size(); ++i) {
      const ArgMode mode = AccessMode(row.id, static_cast<int>(i), static_cast<uint8_t>(row.flags));
      const auto size =
          static_cast<double>(row.args[i].n) * static_cast<double>(DtypeBytes(row.args[i].dtype));
      bytes += size * ((Reads(mode) ? 1 : 0) + (Writes(mode) ? 1 : 0));
    }
    return bytes;
  }

  void Report(const Model& model, const Row& row, const std::string& what, double seconds) {
    const double work = row.products ? KernelInfo(row.id).flops(row.dims) : Bytes(row);
    const double dense = row.id == KernelId::kFp8Matmul ? kDenseFp8Flops : kDenseFlops;
    const double rate = work / seconds, possible = row.products ? dense : copy_rate_;
    const double unit = row.products ? 1e12 : 1e9;
    const char* unit_name = row.products ? "TFLOP/s" : "GB/s";
    fmt::print("{:<6}{:<42}{:>11.1f}{:>10.1f}{:>10.1f} {:<8}{:>6.1f} %\n", model.name, what,
               seconds * 1e6, rate / unit, possible / unit, unit_name, 100 * rate / possible);
    results_.push_back({{"model", model.name},
                        {"kernel", KernelInfo(row.id).name},
                        {"note", row.note},
                        {"dims", row.dims},
                        {"microseconds", seconds * 1e6},
                        {"rate", rate / unit},
                        {"possible", possible / unit},
                        {"unit", unit_name},
                        {"share", rate / possible}});
  }

  Program program_;
  CudaLaunch launch_;
  GemmPlans gemm_;
  AttentionPlans attention_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;  // with the stream: the process's, to its end
  std::vector<char> patterns_[5];                // fp32, bf16, int32, bf16 above 0, E4M3
  double copy_rate_ = 0;
  nlohmann::json results_ = nlohmann::json::array();
  bool failed_ = false;
};

}  // namespace zeroplan::cuda_rows
