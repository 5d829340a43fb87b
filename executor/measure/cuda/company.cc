#include "executor/measure/cuda/company.h"

#include <algorithm>
#include <cmath>

namespace zeroplan {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr int64_t kMostElements = int64_t{64} << 20;  // of one launch that moves memory
// Bytes for each element of a product's inputs and outputs, m * (k + n): all but products and
// collectives, attention too, in steps of gpt2, gpt2-xl and Llama 3.2 1B on an H200 took the time
// of 5, 6.3 and 6.7 at its memory's speed.
constexpr double kBytesAnElement = 6.4;
constexpr int64_t kMlpProducts = 3;  // from channels to 4 * channels: as many as a layer's FLOPs

}  // namespace

Company::Company(int device, Dtype dtype, bool quick)
    : dtype_(dtype), products_(device, 1024 * kMib, quick), memory_(device, 512 * kMib, quick) {}

void Company::BesideProduct(int64_t m, int64_t k, int64_t n, const Body& body) {
  const double bytes = kBytesAnElement * static_cast<double>(m) * static_cast<double>(k + n);
  const auto wanted = static_cast<int64_t>(bytes / (2.0 * DtypeBytes(dtype_)));
  const int64_t elements = std::clamp<int64_t>(wanted, 64, kMostElements);
  const double launches_a_call = static_cast<double>(wanted) / static_cast<double>(elements);
  memory_.WithLaunch(KernelId::kGeluForward, {elements},
                     {{ArgKind::kRandom, dtype_, elements}, {ArgKind::kOutput, dtype_, elements}},
                     [&](const std::function<void()>& launch) {
                       body([&](int calls) {
                         const int64_t launches = std::llround(launches_a_call * calls);
                         for (int64_t i = 0; i < launches; ++i) launch();
                         ZEROPLAN_CUDA(cudaStreamSynchronize(memory_.timer().stream()));
                       });
                     });
}

void Company::BesideAttention(int64_t tokens, int64_t channels, int passes, const Body& body) {
  const int64_t wide = 4 * channels;
  const std::vector<BenchArg> args = {{ArgKind::kRandom, dtype_, tokens * channels},
                                      {ArgKind::kRandom, dtype_, channels * wide},
                                      {},
                                      {},
                                      {ArgKind::kOutput, dtype_, tokens * wide}};
  products_.WithLaunch(
      KernelId::kMatmulForward, {tokens, channels, wide, 0}, args,
      [&](const std::function<void()>& product) {
        BesideProduct(tokens, channels, wide, [&](const StreamTimer::Company& memory) {
          body([&](int calls) {
            const auto products = static_cast<int>(kMlpProducts * passes * calls);
            for (int i = 0; i < products; ++i) product();
            ZEROPLAN_CUDA(cudaStreamSynchronize(products_.timer().stream()));
            memory(products);
          });
        });
      });
}

}  // namespace zeroplan
