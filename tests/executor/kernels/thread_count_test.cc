// Every kernel gives the same bits on one thread and on several.
#include <array>

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

struct Launch {
  KernelId id;
  KernelDims dims;
  std::vector<Tensor> args;
  int flags = 0;
};

// The arguments after a run.
std::vector<Tensor> Run(const Launch& launch, int threads) {
  std::vector<Tensor> args = launch.args;
  std::vector<Tensor*> pointers;
  for (Tensor& arg : args) pointers.push_back(arg.size() == 0 ? nullptr : &arg);
  Bench(threads).Run(launch.id, launch.dims, pointers, launch.flags);
  return args;
}

void CheckThreadIndependent(const Launch& launch) {
  const std::vector<Tensor> one = Run(launch, 1);
  for (int threads : {2, 3, 7}) {
    const std::vector<Tensor> many = Run(launch, threads);
    for (size_t i = 0; i < one.size(); ++i) {
      CAPTURE(KernelInfo(launch.id).name);
      CAPTURE(threads);
      CAPTURE(i);
      CHECK(one[i] == many[i]);
    }
  }
}

TEST_CASE("results do not depend on the number of threads") {
  ZEROPLAN_TEST_RNG(rng);
  const auto t = [&](Dtype dtype, int64_t n) { return Tensor::Random(rng, dtype, n); };
  for (Dtype p : FloatDtypes()) {
    // Odd sizes, so that parts end in the middle of vectors and of Eigen's panels; K past one
    // panel.
    for (const auto& [M, K, N] :
         std::vector<std::array<int64_t, 3>>{{67, 35, 333}, {301, 701, 50}, {1, 400, 700}}) {
      for (int flags : {0, static_cast<int>(kTransposed)}) {
        CheckThreadIndependent({KernelId::kMatmulForward,
                                {M, K, N},
                                {t(p, M * K), t(p, K * N), t(p, N), t(p, M * N), Tensor(p, M * N)},
                                flags});
        CheckThreadIndependent({KernelId::kMatmulBackwardData,
                                {M, K, N},
                                {t(p, M * N), t(p, K * N), t(p, M * K)},
                                flags | kAccumulate});
        CheckThreadIndependent(
            {KernelId::kMatmulGeluForward,
             {M, K, N},
             {t(p, M * K), t(p, K * N), t(p, N), Tensor(p, M * N), Tensor(p, M * N)},
             flags});
        CheckThreadIndependent({KernelId::kMatmulGeluBackward,
                                {M, K, N},
                                {t(p, M * N), t(p, K * N), t(p, M * K), Tensor(p, M * K)},
                                flags});
        CheckThreadIndependent({KernelId::kMatmulBackwardWeight,
                                {M, K, N},
                                {t(p, M * K), t(p, M * N), t(p, K * N), t(p, N)},
                                flags | kAccumulate});
      }
    }
    const int64_t M = 333, C = 130;
    CheckThreadIndependent(
        {KernelId::kLoraUpBackward,
         {M, 4, C, 60, C, 3},
         {t(p, M * C), t(p, M * 8), t(p, C * 4), Tensor(p, M * 8), Tensor(p, C * 4)}});
    CheckThreadIndependent(
        {KernelId::kLoraDownBackward,
         {M, C, 8},
         {t(p, M * C), t(p, M * 8), t(p, 8 * C), Tensor(p, M * C), Tensor(p, 8 * C)}});
    CheckThreadIndependent(
        {KernelId::kLayerNormForward,
         {M, C},
         {t(p, M * C), t(p, C), t(p, C), Tensor(p, M * C), Tensor(Dtype::kF32, 2 * M)}});
    CheckThreadIndependent({KernelId::kLayerNormBackward,
                            {M, C},
                            {t(p, M * C), t(p, M * C), t(p, C), t(Dtype::kF32, 2 * M), t(p, M * C),
                             t(Dtype::kF32, C), t(p, C)},
                            kAccumulate | kAddToOutput});
    CheckThreadIndependent({KernelId::kRmsNormForward,
                            {M, C},
                            {t(p, M * C), t(p, C), Tensor(p, M * C), Tensor(Dtype::kF32, M)}});
    CheckThreadIndependent(
        {KernelId::kRmsNormBackward,
         {M, C},
         {t(p, M * C), t(p, M * C), t(p, C), t(Dtype::kF32, M), t(p, M * C), t(Dtype::kF32, C)},
         kAccumulate | kAddToOutput});
    CheckThreadIndependent({KernelId::kRotaryTable, {M, 10}, {Tensor(Dtype::kF32, M * 10)}});
    const int64_t turned = 6 + 2, width = (6 + 2 * 2) * 10;  // 6 query heads, 2 key heads of 10
    const KernelDims heads = {M, M / 3, 6, 2, 10};
    for (const KernelId id : {KernelId::kRotaryForward, KernelId::kRotaryBackward}) {
      CheckThreadIndependent({id, heads, {t(p, M * width), t(Dtype::kF32, M / 3 * 10)}});
    }
    CheckThreadIndependent({KernelId::kQkNormRotaryForward,
                            heads,
                            {t(p, M * width), t(p, 20), t(Dtype::kF32, M / 3 * 10),
                             Tensor(p, M * width), Tensor(Dtype::kF32, M * turned)}});
    CheckThreadIndependent({KernelId::kQkNormRotaryBackward,
                            heads,
                            {t(p, M * width), t(p, M * width), t(p, 20), t(Dtype::kF32, M * turned),
                             t(Dtype::kF32, M / 3 * 10), t(Dtype::kF32, 20)},
                            kAccumulate});
    const KernelDims exchange = {3, M / 3, 6,
                                 2, 10,    6};  // parts of a query, a key and a value head
    CheckThreadIndependent(
        {KernelId::kPackHeads, exchange, {t(p, M * width), Tensor(p, 6 * M * 30)}});
    CheckThreadIndependent(
        {KernelId::kUnpackHeads, exchange, {t(p, 6 * M * 30), Tensor(p, M * width)}});
    CheckThreadIndependent({KernelId::kSwiGluForward, {M, C}, {t(p, M * 2 * C), Tensor(p, M * C)}});
    CheckThreadIndependent({KernelId::kSwiGluBackward, {M, C}, {t(p, M * C), t(p, M * 2 * C)}});
    const int64_t B = 2, T = 150, H = 4, G = 2, D = 8, A = H * D, N = (H + 2 * G) * D;
    Launch attention{KernelId::kAttentionForward,
                     {B, T, H, G, D},
                     {t(p, B * T * N), Tensor(p, B * T * A), Tensor(Dtype::kF32, B * H * T)}};
    CheckThreadIndependent(attention);
    const std::vector<Tensor> forward = Run(attention, 1);
    CheckThreadIndependent(
        {KernelId::kAttentionBackward,
         {B, T, H, G, D},
         {t(p, B * T * A), forward[0], forward[1], forward[2], Tensor(p, B * T * N)}});
    Launch unfused{KernelId::kUnfusedAttentionForward,
                   {B, T, H, G, D},
                   {t(p, B * T * N), Tensor(p, B * T * A), Tensor(p, B * H * T * T)}};
    CheckThreadIndependent(unfused);
    const std::vector<Tensor> probs = Run(unfused, 1);
    CheckThreadIndependent(
        {KernelId::kUnfusedAttentionBackward,
         {B, T, H, G, D},
         {t(p, B * T * A), probs[0], probs[2], Tensor(p, B * T * N), Tensor(p, B * H * T * T)}});
    const int64_t n = 70'001;
    CheckThreadIndependent({KernelId::kGeluForward, {n}, {t(p, n), Tensor(p, n)}});
    CheckThreadIndependent({KernelId::kGeluBackward, {n}, {t(p, n), t(p, n)}});
    CheckThreadIndependent({KernelId::kConvert, {n}, {t(p, n), t(Dtype::kBF16, n)}, kAccumulate});
    const Launch quantize{
        KernelId::kConvert, {n}, {t(Dtype::kF32, n), Tensor(Dtype::kNf4, n / 16384 + 1)}};
    CheckThreadIndependent(quantize);
    CheckThreadIndependent({KernelId::kConvert, {n}, {Run(quantize, 1)[1], Tensor(p, n)}});
    const int64_t blocks = 70;
    const Launch to_int4{KernelId::kConvert,
                         {blocks * 1024},
                         {t(p, blocks * 1024), Tensor(Dtype::kInt4Blocks, blocks)}};
    CheckThreadIndependent(to_int4);
    CheckThreadIndependent({KernelId::kSumParts,
                            {blocks * 512, 2},
                            {Run(to_int4, 1)[1], Tensor(Dtype::kInt4Blocks, blocks / 2)}});
    CheckThreadIndependent(
        {KernelId::kDropout, {M, C, 9, 3}, {t(p, M * C), Tensor::Ints({5, 0}), Tensor(p, M * C)}});
    CheckThreadIndependent({KernelId::kNormSq, {n}, {t(p, n), Tensor::State({})}});
    const auto eight_bits = [&](int64_t count) {
      Tensor codes(Dtype::kE4M3, count);
      for (int64_t i = 0; i < count; ++i) {
        codes.arg().as<uint8_t>()[i] = static_cast<uint8_t>(rng.Below(0x7f));
      }
      return codes;
    };
    const auto scales = [&](int64_t count) { return t(Dtype::kF32, count); };
    CheckThreadIndependent({KernelId::kLargestMagnitude, {n}, {t(p, n), Tensor(Dtype::kF32, 1)}});
    CheckThreadIndependent({KernelId::kSwiGluForward,
                            {M, C},
                            {t(p, 2 * M * C), Tensor(p, M * C), Tensor(Dtype::kF32, 1)}});
    for (const int64_t rows : {0, 1, 128}) {
      const int64_t count = rows == 0 ? 1 : rows == 1 ? 384 * 2 : 3 * 4;
      CheckThreadIndependent({KernelId::kQuantize,
                              {256, 384, rows},
                              {t(p, 256 * 384), Tensor(Dtype::kF32, 1),
                               Tensor(Dtype::kE4M3, 256 * 384), Tensor(Dtype::kF32, count),
                               Tensor(Dtype::kE4M3, 256 * 384), Tensor(Dtype::kF32, count)}});
      CheckThreadIndependent({KernelId::kFp8Matmul,
                              {256, 384, 128, rows == 0 ? 0 : 1, rows, 0},
                              {eight_bits(256 * 384), scales(256 * 3), eight_bits(128 * 384),
                               scales(128 * 4), t(p, 128), Tensor(), t(p, 256 * 128)},
                              kAccumulate});
    }
    CheckThreadIndependent({KernelId::kBiasBackward, {M, C}, {t(p, M * C), t(p, C)}, kAccumulate});
    std::vector<int32_t> ids(static_cast<size_t>(B * T));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(20));
    CheckThreadIndependent({KernelId::kEmbedBackward,
                            {B, T, C, 20},
                            {Tensor::Ints(ids), t(p, B * T * C), t(p, 20 * C), t(p, T * C)},
                            kAccumulate});
    CheckThreadIndependent({KernelId::kEmbedRows,
                            {B, T, C, 12},
                            {Tensor::Ints(ids), t(p, 12 * C), t(p, T * C), t(p, B * T * C)}});
    const Tensor columns = Tensor::Ints({3, 31, 0, -1});
    CheckThreadIndependent(
        {KernelId::kSwapColumns, {B * T, 4, 32}, {columns, t(p, B * T * 4), t(p, B * T * 32)}});
    CheckThreadIndependent(
        {KernelId::kCrossEntropy,
         {B * T, 20, 32},
         {t(p, B * T * 32), Tensor::Ints(ids), Tensor::State({}), Tensor(Dtype::kF32, B * T)}});
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
