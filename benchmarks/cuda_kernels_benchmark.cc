// Rates of every CUDA kernel at the shapes of GPT-2 124M and 1.5B and of a 6.7B model, and of those
// that Llama's kin add at shapes of theirs, in bf16, beside what the GPU could do: the copy
// bandwidth measured in the same run for kernels that memory bounds, the data sheet's dense bf16
// rate of an H100 or H200 (SXM) for products and attention.
//
//   cuda_kernels_benchmark [--json FILE] [--llama | --attention | --adapters] [--deterministic]
//
// --llama: these alone; --adapters: those of adapters alone. --attention: attention alone, in
// shapes that the cost model is checked against: plain kernels (fp32, and heads of 60 channels),
// shared heads of keys, odd lengths.
// --deterministic: attention's backward pass as train --deterministic runs it.
// Hardware: one GPU with 16 GB; time: about three minutes, most of it tuning of matrix products.
// Every launch works on buffers of its own until their sum is past the second-level cache; times
// are medians of several runs of several launches. Bytes are those of the arguments, each read or
// written once (the named rows alone of embeddings). Without a GPU: exit code 77.
//
// Legend: B micro-batch, T sequence, C hidden, H heads, V vocabulary, Vp padded, M = B*T rows.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/adapter_rows.h"
#include "benchmarks/attention_shapes.h"
#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/program/step_state.h"
#include "executor/kernels/convert.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {
namespace {

// NVIDIA H100 and H200 data sheets, SXM: 1979 TFLOP/s bf16 with sparsity, half of it dense.
constexpr double kDenseFlops = 989e12;
constexpr uint64_t kCacheBytes = uint64_t{128} << 20;  // more than twice an H200's 50 MB
constexpr int kRuns = 7;

void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) ThrowRuntime("{}: {}", what, cudaGetErrorString(error));
}

struct Model {
  const char* name;
  int64_t B, T, C, H;
  int64_t M() const { return B * T; }
};
constexpr Model kModels[] = {
    {"124M", 32, 1024, 768, 12}, {"1.5B", 16, 1024, 1600, 25}, {"6.7B", 4, 2048, 4096, 32}};
constexpr int64_t kV = 50257, kVp = 50304;
// G heads of keys and values, D head size, F ffn; vocabularies in rows of logits.
struct LlamaModel : Model {
  int64_t G, D, F, V;
};
constexpr LlamaModel kLlamaModels[] = {
    {{"L1B", 8, 2048, 2048, 32}, 8, 64, 8192, 128256},     // Llama 3.2 1B
    {{"Q1.5B", 8, 2048, 1536, 12}, 2, 128, 8960, 152064},  // Qwen2.5 1.5B
    {{"L3B", 4, 2048, 3072, 24}, 8, 128, 8192, 128256},    // Llama 3.2 3B
    {{"L8B", 2, 4096, 4096, 32}, 8, 128, 14336, 128256},   // Llama 3.1 8B
    {{"L70B", 1, 8192, 8192, 64}, 8, 128, 28672, 128256}};

// An argument to make: `n` elements filled from the pattern of its dtype.
struct Spec {
  enum class Fill : uint8_t { kNumbers, kTokens, kState, kAbsent } fill = Fill::kNumbers;
  Dtype dtype = Dtype::kBF16;
  int64_t n = 0;
};
Spec P(int64_t n) { return {.n = n}; }
Spec F32(int64_t n) { return {.dtype = Dtype::kF32, .n = n}; }
Spec Tokens(int64_t n) { return {Spec::Fill::kTokens, Dtype::kI32, n}; }
Spec State() { return {Spec::Fill::kState, Dtype::kU8, sizeof(StepState)}; }
Spec Absent() { return {Spec::Fill::kAbsent}; }

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
    for (float& x : wide) x = normal(random);
    patterns_[1].resize(kPattern * 2);
    Narrow(Dtype::kBF16, wide.data(), kPattern, patterns_[1].data());
    std::vector<int32_t> tokens(kPattern);
    for (int32_t& token : tokens) {  // about as often as words: 1 / rank
      const double u = std::uniform_real_distribution<double>()(random);
      token = static_cast<int32_t>(std::min<double>(std::pow(kV, u), kV) - 1);
    }
    patterns_[2].assign(reinterpret_cast<char*>(tokens.data()),
                        reinterpret_cast<char*>(tokens.data() + kPattern));
  }

  void FillArgument(const Spec& spec, char* to, uint64_t bytes) {
    if (spec.fill == Spec::Fill::kState) {
      StepState state;
      state.lr = 1e-4f;
      state.bias_correction1 = 0.1f;
      state.bias_correction2 = 0.001f;
      Check(cudaMemcpy(to, &state, sizeof(state), cudaMemcpyDefault), "upload");
      return;
    }
    const std::vector<char>& pattern = patterns_[spec.dtype == Dtype::kI32    ? 2
                                                 : spec.dtype == Dtype::kBF16 ? 1
                                                                              : 0];
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
    const uint64_t workspace =
        LaunchWorkspaceBytes(row.id, row.dims, Backend::kCuda, false, attention_.deterministic());
    std::vector<Spec> specs = row.args;
    if (workspace > 0) {  // behind the arguments, but for where documents start
      specs.resize(static_cast<size_t>(info.args.size() - (info.starts < 0 ? 0 : 1)), Absent());
      specs.back() = {.dtype = Dtype::kU8, .n = static_cast<int64_t>(workspace)};
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
    const double rate = work / seconds, possible = row.products ? kDenseFlops : copy_rate_;
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
  std::vector<char> patterns_[3];                // fp32, bf16, int32
  double copy_rate_ = 0;
  nlohmann::json results_ = nlohmann::json::array();
  bool failed_ = false;
};

void RunProducts(Benchmark& benchmark, const Model& m) {
  using enum KernelId;
  const int64_t M = m.M(), C = m.C;
  const auto forward = [&](const char* note, int64_t rows, int64_t K, int64_t N, bool bias,
                           bool residual, int flags) {
    benchmark.Run(m, {.note = note,
                      .id = kMatmulForward,
                      .dims = {rows, K, N},
                      .args = {P(rows * K), P(K * N), bias ? P(N) : Absent(),
                               residual ? P(rows * N) : Absent(), P(rows * N)},
                      .flags = flags,
                      .products = true});
  };
  const auto backward = [&](const char* note, int64_t rows, int64_t K, int64_t N, bool bias,
                            int flags) {
    benchmark.Run(m, {.note = note,
                      .id = kMatmulBackwardData,
                      .dims = {rows, K, N},
                      .args = {P(rows * N), P(K * N), P(rows * K)},
                      .flags = flags,
                      .products = true});
    benchmark.Run(m, {.note = note,
                      .id = kMatmulBackwardWeight,
                      .dims = {rows, K, N},
                      .args = {P(rows * K), P(rows * N), P(K * N), bias ? P(N) : Absent()},
                      .flags = flags,
                      .products = true});
  };
  const int64_t R = std::min<int64_t>(M, 8192);  // rows of a chunk of logits
  forward("qkv", M, C, 3 * C, true, false, 0);
  forward("projection", M, C, C, true, true, 0);
  forward("up", M, C, 4 * C, true, false, 0);
  forward("down", M, 4 * C, C, true, true, 0);
  forward("head", R, C, kVp, false, false, kTransposed);
  benchmark.Run(m, {.note = "up",
                    .id = kMatmulGeluForward,
                    .dims = {M, C, 4 * C},
                    .args = {P(M * C), P(4 * C * C), P(4 * C), P(4 * M * C), P(4 * M * C)},
                    .products = true});
  backward("qkv", M, C, 3 * C, true, 0);
  backward("projection", M, C, C, true, 0);
  backward("up", M, C, 4 * C, true, 0);
  backward("down", M, 4 * C, C, true, 0);
  backward("head", R, C, kVp, false, kTransposed);
  benchmark.Run(m, {.note = "down",
                    .id = kMatmulGeluBackward,
                    .dims = {M, 4 * C, C},
                    .args = {P(M * C), P(4 * C * C), P(4 * M * C), P(4 * M * C)},
                    .products = true});
  const KernelDims dims = {m.B, m.T, m.H, m.H, C / m.H};
  const int64_t lse = m.B * m.H * m.T, probs = lse * m.T;
  benchmark.Run(m, {.note = "",
                    .id = kAttentionForward,
                    .dims = dims,
                    .args = {P(3 * M * C), P(M * C), F32(lse)},
                    .products = true});
  benchmark.Run(m, {.note = "",
                    .id = kAttentionBackward,
                    .dims = dims,
                    .args = {P(M * C), P(3 * M * C), P(M * C), F32(lse), P(3 * M * C)},
                    .products = true});
  benchmark.Run(m, {.note = "",
                    .id = kUnfusedAttentionForward,
                    .dims = dims,
                    .args = {P(3 * M * C), P(M * C), P(probs)},
                    .products = true});
  benchmark.Run(m, {.note = "",
                    .id = kUnfusedAttentionBackward,
                    .dims = dims,
                    .args = {P(M * C), P(3 * M * C), P(probs), P(3 * M * C), P(probs)},
                    .products = true});
}

void RunMemoryBound(Benchmark& benchmark, const Model& m) {
  using enum KernelId;
  const int64_t M = m.M(), C = m.C, R = std::min<int64_t>(M, 8192);
  const auto row = [&](const char* note, KernelId id, const KernelDims& dims,
                       std::vector<Spec> args, int flags = 0, double bytes = 0) {
    benchmark.Run(m, {.note = note,
                      .id = id,
                      .dims = dims,
                      .args = std::move(args),
                      .flags = flags,
                      .bytes = bytes});
  };
  const auto mc = static_cast<double>(M * C), tc = static_cast<double>(m.T * C);
  row("", kEmbedForward, {m.B, m.T, C, kV}, {Tokens(M), P(kVp * C), P(m.T * C), P(M * C)}, 0,
      4 * static_cast<double>(M) + 2 * (2 * mc + tc));
  const auto named = static_cast<double>(benchmark.DistinctTokens(M) * C);
  // The named rows are read and written.
  row("fp32 gradients", kEmbedBackward, {m.B, m.T, C, kV},
      {Tokens(M), P(M * C), F32(kVp * C), F32(m.T * C)}, kAccumulate,
      4 * static_cast<double>(M) + 2 * mc + 8 * named + 8 * tc);
  row("", kLayerNormForward, {M, C}, {P(M * C), P(C), P(C), P(M * C), F32(2 * M)});
  row("dx written", kLayerNormBackward, {M, C},
      {P(M * C), P(M * C), P(C), F32(2 * M), P(M * C), F32(C), F32(C)});
  row("dx added", kLayerNormBackward, {M, C},
      {P(M * C), P(M * C), P(C), F32(2 * M), P(M * C), F32(C), F32(C)}, kAccumulate | kAddToOutput);
  row("", kGeluForward, {4 * M * C}, {P(4 * M * C), P(4 * M * C)});
  row("", kGeluBackward, {4 * M * C}, {P(4 * M * C), P(4 * M * C)});
  row("", kCrossEntropy, {R, kV, kVp}, {P(R * kVp), Tokens(R), State(), F32(R)});
  row("loss only", kCrossEntropy, {R, kV, kVp}, {P(R * kVp), Tokens(R), State(), F32(R)},
      kForwardOnly, 2 * static_cast<double>(R * kVp));
  row("", kLossReduce, {M}, {F32(M), State()});
  const int64_t n = 12 * C * C;  // a layer's parameters
  row("a layer", kFill, {2 * n}, {P(n)});
  row("bf16 to fp32", kConvert, {n}, {P(n), F32(n)});
  row("fp32 to bf16", kConvert, {n}, {F32(n), P(n)});
  row("bf16 added to fp32", kConvert, {n}, {P(n), F32(n)}, kAccumulate);
  for (const Dtype kind : {Dtype::kNf4, Dtype::kInt8Blocks, Dtype::kInt4Blocks}) {
    const std::string name(DtypeName(kind));
    const Spec blocks = {.dtype = kind, .n = n / static_cast<int64_t>(DtypeElements(kind))};
    row(("to " + name).c_str(), kConvert, {n}, {kind == Dtype::kNf4 ? F32(n) : P(n), blocks});
    row((name + " to bf16").c_str(), kConvert, {n}, {blocks, P(n)});
    row((name + " to fp32").c_str(), kConvert, {n}, {blocks, F32(n)});
    if (kind != Dtype::kNf4) row(name.c_str(), kSumParts, {n / 8, 8}, {blocks, P(n / 8)});
  }
  row("bf16", kNormSq, {n}, {P(n), State()});
  row("fp32", kNormSq, {n}, {F32(n), State()});
  row("", kStepScalars, {}, {State()});
  benchmark.SetUnit(n);
  row("bf16 gradients", kAdamW, {n, 0, 0}, {P(n), State(), F32(n), F32(n), F32(n), P(n)});
  row("fp32 gradients", kAdamW, {n, 0, 0}, {F32(n), State(), F32(n), F32(n), F32(n), P(n)});
  row("a layer", kParamInit, {n, 0, 0}, {F32(n)});
  row("", kSelectRow, {C}, {P(M * C), State(), P(C)}, 0, 4 * static_cast<double>(C));
}

// With the bytes that the kernel table says.
void RunByRow(Benchmark& benchmark, const Model& m, const char* note, KernelId id,
              const KernelDims& dims, std::vector<Spec> args, int flags) {
  std::vector<ArgShape> shapes;
  for (const Spec& spec : args) {
    shapes.push_back({static_cast<uint64_t>(spec.n) * DtypeBytes(spec.dtype), spec.dtype});
  }
  const double bytes = KernelInfo(id).bytes({id, static_cast<uint8_t>(flags), dims, shapes});
  benchmark.Run(m, {note, id, dims, std::move(args), flags, false, bytes});
}

void RunAdapters(Benchmark& benchmark) {
  ForEachAdapterRow([&](const char* note, KernelId id, const KernelDims& dims,
                        const std::vector<int64_t>& elements, int flags) {
    std::vector<Spec> args;
    for (const int64_t n : elements) args.push_back(n == 0 ? Absent() : P(n));
    RunByRow(benchmark, {"L8B", 1, 4096, 4096, 32}, note, id, dims, std::move(args), flags);
  });
}

void RunLlama(Benchmark& benchmark, const LlamaModel& m) {
  using enum KernelId;
  const int64_t M = m.M(), C = m.C, N = (m.H + 2 * m.G) * m.D, turned = m.H + m.G;
  const auto row = [&](const char* note, KernelId id, const KernelDims& dims,
                       std::vector<Spec> args, int flags = 0) {
    RunByRow(benchmark, m, note, id, dims, std::move(args), flags);
  };
  row("", kRmsNormForward, {M, C}, {P(M * C), P(C), P(M * C), F32(M)});
  row("dx written", kRmsNormBackward, {M, C}, {P(M * C), P(M * C), P(C), F32(M), P(M * C), F32(C)});
  row("dx added", kRmsNormBackward, {M, C}, {P(M * C), P(M * C), P(C), F32(M), P(M * C), F32(C)},
      kAccumulate | kAddToOutput);
  const KernelDims heads = {M, m.T, m.H, m.G, m.D};
  row("", kRotaryTable, {m.T, m.D, 0, 0}, {F32(m.T * m.D)});
  row("", kRotaryForward, heads, {P(M * N), F32(m.T * m.D)});
  row("", kRotaryBackward, heads, {P(M * N), F32(m.T * m.D)});
  row("", kQkNormRotaryForward, heads,
      {P(M * N), P(2 * m.D), F32(m.T * m.D), P(M * N), F32(M * turned)});
  row("", kQkNormRotaryBackward, heads,
      {P(M * N), P(M * N), P(2 * m.D), F32(M * turned), F32(m.T * m.D), F32(2 * m.D)});
  row("", kSwiGluForward, {M, m.F}, {P(2 * M * m.F), P(M * m.F)});
  row("", kSwiGluBackward, {M, m.F}, {P(M * m.F), P(2 * M * m.F)});
  const int64_t R = 1024;  // rows of a chunk of logits
  row("", kCrossEntropy, {R, m.V, m.V}, {P(R * m.V), Tokens(R), State(), F32(R)});
  const KernelDims attention = {m.B, m.T, m.H, m.G, m.D};
  const int64_t lse = m.B * m.H * m.T, out = M * m.H * m.D;
  benchmark.Run(m, {.note = "grouped",
                    .id = kAttentionForward,
                    .dims = attention,
                    .args = {P(M * N), P(out), F32(lse)},
                    .products = true});
  benchmark.Run(m, {.note = "grouped",
                    .id = kAttentionBackward,
                    .dims = attention,
                    .args = {P(out), P(M * N), P(out), F32(lse), P(M * N)},
                    .products = true});
}

void RunAttention(Benchmark& benchmark) {
  for (const AttentionShape& s : kAttentionShapes) {
    const Model model = {s.G < s.H ? "shared" : "", s.B, s.T, s.H * s.D, s.H};
    const KernelDims dims = {s.B, s.T, s.H, s.G, s.D};
    const std::string note =
        fmt::format("{} {}x{} {}/{}x{}", DtypeName(s.dtype), s.B, s.T, s.H, s.G, s.D);
    const auto of = [&](int64_t n) { return Spec{.dtype = s.dtype, .n = n}; };
    const int64_t qkv = s.B * s.T * (s.H + 2 * s.G) * s.D, out = s.B * s.T * s.H * s.D;
    const Spec lse = F32(s.B * s.H * s.T);
    benchmark.Run(model, {.note = note,
                          .id = KernelId::kAttentionForward,
                          .dims = dims,
                          .args = {of(qkv), of(out), lse},
                          .products = true});
    benchmark.Run(model, {.note = note,
                          .id = KernelId::kAttentionBackward,
                          .dims = dims,
                          .args = {of(out), of(qkv), of(out), lse, of(qkv)},
                          .products = true});
  }
}

int Main(int argc, char** argv) {
  std::string json_path, only;
  bool deterministic = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json" && i + 1 < argc) {
      json_path = argv[++i];
    } else if (arg == "--llama" || arg == "--attention" || arg == "--adapters") {
      only = arg;
    } else if (arg == "--deterministic") {
      deterministic = true;
    } else {
      fmt::print(stderr,
                 "usage: cuda_kernels_benchmark [--json FILE] [--llama | --attention | --adapters] "
                 "[--deterministic]\n");
      return 2;
    }
  }
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices);
      error != cudaSuccess || devices == 0) {
    fmt::print("no GPU ({})\n", cudaGetErrorString(error));
    return 77;
  }
  cudaDeviceProp device{};
  Check(cudaGetDeviceProperties(&device, 0), "device");
  Benchmark benchmark(deterministic);
  fmt::print("{}, {} multiprocessors, copies at {:.0f} GB/s; dense bf16 {:.0f} TFLOP/s\n",
             device.name, device.multiProcessorCount, benchmark.copy_rate() / 1e9,
             kDenseFlops / 1e12);
  fmt::print("{:<6}{:<42}{:>11}{:>10}{:>10} {:<8}{:>8}\n", "model", "kernel", "us", "rate",
             "possible", "", "share");
  if (only == "--attention") RunAttention(benchmark);
  for (const Model& model : kModels) {
    if (!only.empty()) break;
    RunMemoryBound(benchmark, model);
    RunProducts(benchmark, model);
  }
  for (const LlamaModel& model : kLlamaModels) {
    if (only.empty() || only == "--llama") RunLlama(benchmark, model);
  }
  if (only.empty() || only == "--adapters") RunAdapters(benchmark);
  if (!json_path.empty()) {
    const nlohmann::json report = {{"gpu", device.name},
                                   {"copy_gb_per_s", benchmark.copy_rate() / 1e9},
                                   {"dense_bf16_tflops", kDenseFlops / 1e12},
                                   {"kernels", benchmark.results()}};
    std::ofstream file(json_path);
    file << report.dump(2) << '\n';
    if (!file.flush()) {
      fmt::print(stderr, "cannot write {}\n", json_path);
      return 4;
    }
  }
  return benchmark.failed() ? 4 : 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  try {
    return zeroplan::Main(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_kernels_benchmark: {}\n", error.what());
    return 4;
  }
}
