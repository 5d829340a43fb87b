// Measures the rate of every CUDA kernel at the shapes of GPT-2 124M and 1.5B and of a 6.7B model,
// and of those that Llama's kin add at shapes of theirs, in bf16. Each rate is compared with what
// the GPU could do: for kernels that memory bounds the copy bandwidth of the same run, for matmuls
// and attention the data sheet's dense bf16 rate of an H100 or H200 (SXM).
//
//   cuda_kernels_benchmark [--json FILE] [--deterministic]
//                          [--llama | --attention [FILE] | --adapters | --adamw | --fp8 | --gelu]
//
// --llama: these alone; --adapters: those of adapters alone; --adamw: AdamW alone, a row for each
// kind of states; --fp8: matmuls of eight bits and of bf16, what makes their inputs, and kernels
// with and without the largest magnitude. --attention: attention alone, in shapes that the cost
// model is checked against: plain kernels (fp32, and heads of 60 channels), shared heads of keys,
// odd lengths; or in those of a JSON file, a list of {"dims": [B, T, H, G, D], "lengths": those of
// documents that fill each row, or absent} (attention.py). --gelu: matmuls with and without a GELU.
// --deterministic: attention's backward pass as train --deterministic runs it.
// Hardware: one GPU with 16 GB; time: about three minutes, most of it tuning of matmuls.
// Every launch works on buffers of its own until their sum is past the second-level cache; times
// are medians of several runs of several launches. Bytes are those of the arguments, each read or
// written once (the named rows alone of embeddings). Without a GPU: exit code 77.
//
// Legend: B micro-batch, T sequence, C hidden, H heads, V vocabulary, Vp padded, M = B*T rows.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/adapter_rows.h"
#include "benchmarks/attention_shapes.h"
#include "benchmarks/cuda_rows.h"
#include "benchmarks/fp8_rows.h"

namespace zeroplan {
namespace {

using namespace cuda_rows;

constexpr Model kModels[] = {
    {"124M", 32, 1024, 768, 12}, {"1.5B", 16, 1024, 1600, 25}, {"6.7B", 4, 2048, 4096, 32}};
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

// What a GELU adds to the product that it follows, and its gradient to the one before it.
void RunGelu(Benchmark& benchmark) {
  using enum KernelId;
  for (const int64_t M : {2048, 8192, 16384}) {
    for (const int64_t C : {256, 512, 768, 1024, 1600, 2560, 4096}) {
      const std::string name = fmt::format("{}", C);
      const Model m{name.c_str(), 1, M, C, 1};
      const std::string note = fmt::format("of {} rows", M);
      const auto row = [&](KernelId id, const KernelDims& dims, std::vector<Spec> args) {
        benchmark.Run(
            m, {.note = note, .id = id, .dims = dims, .args = std::move(args), .products = true});
      };
      row(kMatmulForward, {M, C, 4 * C},
          {P(M * C), P(4 * C * C), Absent(), Absent(), P(4 * M * C)});
      row(kMatmulGeluForward, {M, C, 4 * C},
          {P(M * C), P(4 * C * C), P(4 * C), P(4 * M * C), P(4 * M * C)});
      row(kMatmulBackwardData, {M, 4 * C, C}, {P(M * C), P(4 * C * C), P(4 * M * C)});
      row(kMatmulGeluBackward, {M, 4 * C, C}, {P(M * C), P(4 * C * C), P(4 * M * C), P(4 * M * C)});
    }
  }
}

// Of a layer's parameters. Blocks of 8-bit moments hold any codes and scales above 0.
void RunAdamW(Benchmark& benchmark, const Model& m) {
  const int64_t n = 12 * m.C * m.C;
  benchmark.SetUnit(n);
  const auto states = [n](Dtype dtype) {
    return Spec{Spec::Fill::kPositive, dtype, n / static_cast<int64_t>(DtypeElements(dtype))};
  };
  const auto row = [&](const std::string& note, const Spec& grad, Dtype master, Dtype moments) {
    const Dtype second = moments == Dtype::kDynamic8 ? Dtype::kUnsignedDynamic8 : moments;
    benchmark.Run(m, {.note = note,
                      .id = KernelId::kAdamW,
                      .dims = {n, 0, 0},
                      .args = {grad, State(), states(master), states(moments), states(second),
                               master == Dtype::kBF16 ? Absent() : P(n)},
                      .flags = master == Dtype::kI16 ? kAccumulate : kNoFlags});
  };
  row("fp32 gradients", F32(n), Dtype::kF32, Dtype::kF32);
  for (const Dtype master : {Dtype::kF32, Dtype::kI16, Dtype::kBF16}) {
    for (const Dtype moments : {Dtype::kF32, Dtype::kBF16, Dtype::kDynamic8}) {
      const char* masters = master == Dtype::kI16 ? "halves" : DtypeName(master).data();
      row(fmt::format("bf16 gradients, {}, {}", masters, DtypeName(moments)), P(n), master,
          moments);
    }
  }
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
  RunAdamW(benchmark, m);
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

// The launches of a file, in bf16.
void RunAttention(Benchmark& benchmark, const std::string& path) {
  std::ifstream file(path);
  for (const nlohmann::json& launch : nlohmann::json::parse(file)) {
    const auto [B, T, H, G, D] = launch.at("dims").get<std::array<int64_t, 5>>();
    const Model model = {"", B, T, H * D, H};
    std::vector<int32_t> starts;
    DocumentLimits limits;
    for (const int64_t length : launch.value("lengths", std::vector<int64_t>{})) {
      limits.longest = std::max(limits.longest, length);
      ++limits.most_in_row;
    }
    benchmark.LimitDocuments(limits);
    for (int64_t b = 0; b < B && launch.contains("lengths"); ++b) {
      int32_t begin = 0;
      for (const int32_t length : launch["lengths"].get<std::vector<int32_t>>()) {
        starts.insert(starts.end(), static_cast<size_t>(length), begin);
        begin += length;
      }
    }
    const std::string note =
        fmt::format("{}x{} {}/{}x{}{}", B, T, H, G, D, starts.empty() ? "" : " documents");
    const int64_t qkv = B * T * (H + 2 * G) * D, out = B * T * H * D;
    const Spec lse = F32(B * H * T);
    Row forward = {.note = note,
                   .id = KernelId::kAttentionForward,
                   .dims = {B, T, H, G, D},
                   .args = {P(qkv), P(out), lse},
                   .products = true};
    Row backward = forward;
    backward.id = KernelId::kAttentionBackward;
    backward.args = {P(out), P(qkv), P(out), lse, P(qkv)};
    for (Row* const row : {&forward, &backward}) {
      if (!starts.empty()) row->args.insert(row->args.end(), {Absent(), Given(starts)});
      benchmark.Run(model, *row);
    }
  }
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
  std::string json_path, only, shapes_path;
  bool deterministic = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json" && i + 1 < argc) {
      json_path = argv[++i];
    } else if (arg == "--llama" || arg == "--attention" || arg == "--adapters" ||
               arg == "--adamw" || arg == "--fp8" || arg == "--gelu") {
      only = arg;
      if (arg == "--attention" && i + 1 < argc && argv[i + 1][0] != '-') shapes_path = argv[++i];
    } else if (arg == "--deterministic") {
      deterministic = true;
    } else {
      fmt::print(stderr,
                 "usage: cuda_kernels_benchmark [--json FILE] [--llama | --attention [FILE] | "
                 "--adapters | "
                 "--adamw | --fp8 | --gelu] [--deterministic]\n");
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
  if (only == "--attention" && shapes_path.empty()) RunAttention(benchmark);
  if (!shapes_path.empty()) RunAttention(benchmark, shapes_path);
  if (only == "--gelu") RunGelu(benchmark);
  for (const Model& model : kModels) {
    if (only == "--adamw") RunAdamW(benchmark, model);
    if (!only.empty()) continue;
    RunMemoryBound(benchmark, model);
    RunProducts(benchmark, model);
  }
  for (const LlamaModel& model : kLlamaModels) {
    if (only.empty() || only == "--llama") RunLlama(benchmark, model);
    if (only == "--fp8")
      fp8_rows::Run(benchmark, model, (model.H + 2 * model.G) * model.D, model.F);
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
