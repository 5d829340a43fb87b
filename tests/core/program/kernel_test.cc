#include "core/program/kernel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/program/attention_path.h"
#include "core/program/kernel_workspace.h"

namespace zeroplan {

namespace {

double Flops(KernelId id, KernelDims dims) { return KernelInfo(id).flops(dims); }
uint64_t Workspace(KernelId id, KernelDims dims, Backend backend) {
  return KernelInfo(id).workspace_bytes(dims, backend);
}

TEST_CASE("kernel table: every row is named, consistent and needs no workspace on the CPU") {
  std::set<std::string> names;
  for (int k = 0; k < kKernelCount; ++k) {
    const auto id = static_cast<KernelId>(k);
    const KernelRow& row = KernelInfo(id);
    CHECK(row.id == id);
    CHECK(names.insert(std::string(row.name)).second);
    CHECK(row.args.size() >= 1);
    CHECK(row.args.size() <= static_cast<int>(kMaxKernelArgs));
    bool writes = false;
    for (int i = 0; i < row.args.size(); ++i) {
      writes = writes || Writes(AccessMode(id, i, kNoFlags));
      const bool scratch = row.args[static_cast<size_t>(i)] == ArgMode::kScratch;
      // Where documents start, or a largest magnitude, alone comes behind it.
      const int behind = row.starts >= 0 || row.magnitude.of >= 0 ? 1 : 0;
      if (scratch) CHECK(i == row.args.size() - 1 - behind);
    }
    if (row.starts >= 0) {
      CHECK(row.starts == row.args.size() - 1);
      CHECK(row.args[static_cast<size_t>(row.starts)] == ArgMode::kIn);
    }
    CHECK(writes);
    CHECK(row.workspace_bytes({8, 16, 32, 4}, Backend::kCpu) == 0);
    CHECK(row.flops({8, 16, 32, 4}) >= 0);
    // Where there is a workspace there is an argument for it.
    if (row.workspace_bytes({8, 16, 32, 4}, Backend::kCuda) > 0) {
      CHECK(std::find(row.args.begin(), row.args.end(), ArgMode::kScratch) != row.args.end());
    }
  }
}

TEST_CASE("kernel table: what selective recompute runs takes arguments that the row has") {
  for (int k = 0; k < kKernelCount; ++k) {
    const KernelRow& row = KernelInfo(static_cast<KernelId>(k));
    if (row.recompute.args.size() == 0) continue;
    CAPTURE(row.name);
    REQUIRE(KernelExists(row.recompute.kernel));
    const KernelRow& again = KernelInfo(row.recompute.kernel);
    for (const uint8_t index : row.recompute.args) CHECK(index < row.args.size());
    // Its first arguments, among them an output. Behind them only what may be absent: a largest
    // magnitude, which is known already, or another output.
    const auto given = static_cast<size_t>(row.recompute.args.size());
    REQUIRE(given <= static_cast<size_t>(again.args.size()));
    CHECK(std::any_of(again.args.begin(), again.args.begin() + given,
                      [](ArgMode mode) { return Writes(mode); }));
    for (size_t i = given; i < static_cast<size_t>(again.args.size()); ++i) {
      const bool magnitude = static_cast<int>(i) == again.magnitude.argument;
      CHECK((magnitude || (row.id == KernelId::kQuantize && again.args[i] == ArgMode::kOut)));
    }
  }
  // The GELU of a product's M x N outputs.
  const CheapKernel& gelu = KernelInfo(KernelId::kMatmulGeluForward).recompute;
  CHECK(gelu.kernel == KernelId::kGeluForward);
  CHECK(gelu.dims({64, 16, 48}) == KernelDims{64 * 48});
}

TEST_CASE("kernel table: a largest magnitude is the last argument, of one that is written") {
  int rows = 0;
  for (int k = 0; k < kKernelCount; ++k) {
    const KernelRow& row = KernelInfo(static_cast<KernelId>(k));
    if (row.magnitude.of < 0) {
      CHECK(row.magnitude.argument == -1);
      continue;
    }
    CAPTURE(row.name);
    ++rows;
    CHECK(row.magnitude.argument == row.args.size() - 1);
    CHECK(row.magnitude.of < row.magnitude.argument);
    CHECK(row.args[static_cast<size_t>(row.magnitude.argument)] == ArgMode::kInOut);
    CHECK(Writes(row.args[static_cast<size_t>(row.magnitude.of)]));
    CHECK(row.starts == -1);
  }
  CHECK(rows == 8);  // norms, GELU and SwiGLU, forward and backward
}

TEST_CASE("kernel table: bytes moved by hand") {
  const auto bytes = [](KernelId id, KernelDims dims, std::vector<ArgShape> args,
                        uint8_t flags = kNoFlags) {
    return KernelInfo(id).bytes({id, flags, dims, args});
  };
  const auto part = [](uint64_t size) { return ArgShape{size, Dtype::kBF16}; };
  // y is written, with kAccumulate read too.
  CHECK(bytes(KernelId::kConvert, {50}, {part(100), part(200)}) == 300);
  CHECK(bytes(KernelId::kConvert, {50}, {part(100), part(200)}, kAccumulate) == 500);
  CHECK(bytes(KernelId::kDropout, {5, 10, 5, 0}, {part(100), part(8), part(100)}) == 208);
  // Logits in and out, without gradients in alone; the state not at all.
  const std::vector<ArgShape> loss = {part(1000), part(40), part(128), part(40)};
  CHECK(bytes(KernelId::kCrossEntropy, {10, 50, 50}, loss) == 2080);
  CHECK(bytes(KernelId::kCrossEntropy, {10, 50, 50}, loss, kForwardOnly) == 1080);
  // Of the tables, six rows of eight elements.
  CHECK(bytes(KernelId::kEmbedForward, {2, 3, 8, 99}, {part(24), part(1584), part(48), part(96)}) ==
        24 + 48 + 2 * 96);
  CHECK(bytes(KernelId::kEmbedBackward, {2, 3, 8, 99},
              {part(24), part(96), part(1584), part(48), part(4096)}) == 24 + 96 + 2 * 96 + 48);
  CHECK(bytes(KernelId::kEmbedRows, {2, 3, 8, 5}, {part(24), part(80), part(48), part(96)}) ==
        24 + 2 * 80);
  // Sectors of 32 bytes, in and out, for each element of a column.
  CHECK(bytes(KernelId::kSwapColumns, {10, 4, 50}, {part(16), part(80), part(1000)}) ==
        16 + 2 * 80 + 2 * 32 * 40);
  CHECK(bytes(KernelId::kSelectRow, {8}, {part(96), part(128), part(16)}) == 32);
  // dy once more for the bias; the workspace is the library's.
  CHECK(bytes(KernelId::kMatmulBackwardWeight, {4, 5, 6},
              {part(40), part(48), part(60), part(12), part(1 << 20)}) == 40 + 2 * 48 + 60 + 12);
  CHECK(bytes(KernelId::kMatmulBackwardWeight, {4, 5, 6}, {part(40), part(48), part(60), {}}) ==
        148);
  // The workspace of our own kernel comes and goes.
  CHECK(bytes(KernelId::kLayerNormBackward, {4, 8},
              {part(64), part(64), part(16), part(32), part(64), part(16), part(16), part(256)}) ==
        272 + 2 * 256);
  CHECK(bytes(KernelId::kRmsNormBackward, {4, 8},
              {part(64), part(64), part(16), part(16), part(64), part(16), part(256)}) ==
        240 + 2 * 256);
  // M=4 T=2 H=3 G=1 D=4: of five heads a row four are turned, in place: 128 of 160 bytes.
  CHECK(bytes(KernelId::kRotaryForward, {4, 2, 3, 1, 4}, {part(160), part(32)}) == 2 * 128 + 32);
  CHECK(bytes(KernelId::kQkNormRotaryForward, {4, 2, 3, 1, 4},
              {part(160), part(16), part(32), part(160), part(64)}) == 2 * 160 + 16 + 32 + 64);
  const std::vector<ArgShape> heads = {part(160), part(160), part(16), part(64),
                                       part(32),  part(32),  part(256)};
  CHECK(bytes(KernelId::kQkNormRotaryBackward, {4, 2, 3, 1, 4}, heads) ==
        3 * 128 + 16 + 64 + 32 + 32 + 2 * 256);
  CHECK(bytes(KernelId::kQkNormRotaryBackward, {4, 2, 3, 1, 4}, heads, kAccumulate) ==
        3 * 128 + 16 + 64 + 32 + 2 * 32 + 2 * 256);
  CHECK(bytes(KernelId::kSwiGluBackward, {4, 8}, {part(64), part(128)}) == 64 + 2 * 128);
  // Of six columns a row the first and the last two have adapters: 32 of 48 bytes, once for both.
  CHECK(bytes(KernelId::kLoraUpBackward, {4, 2, 6, 2, 4, 0b101},
              {part(48), part(32), part(16), part(32), part(16), part(1 << 20)},
              kAccumulate) == 32 + 32 + 16 + 32 + 2 * 16);
  CHECK(bytes(KernelId::kLoraDownBackward, {4, 5, 2},
              {part(40), part(16), part(20), part(40), part(20)},
              kAddToOutput) == 40 + 16 + 20 + 2 * 40 + 20);
  // Of 32 x 16 numbers in 16 bits: a magnitude, one copy, both, the transpose of eight bits.
  CHECK(bytes(KernelId::kLargestMagnitude, {512}, {part(1024), part(4)}) == 1024 + 2 * 4);
  CHECK(bytes(KernelId::kSwiGluForward, {32, 16}, {part(2048), part(1024), part(4)}) ==
        2048 + 1024 + 2 * 4);
  CHECK(bytes(KernelId::kQuantize, {32, 16, 0},
              {part(1024), part(4), {}, {}, part(512), part(4)}) == 1024 + 4 + 512 + 4);
  CHECK(bytes(KernelId::kQuantize, {32, 16, 0},
              {part(1024), part(4), part(512), part(4), part(512), {}}) ==
        1024 + 4 + 512 + 4 + 512);
  CHECK(bytes(KernelId::kQuantize, {32, 16, 0}, {part(512), {}, part(512)}) == 1024);
  // Copies of 32 x 16 and 48 x 16, to 32 x 48 in 16 bits, which kAccumulate reads too; a bias.
  const std::vector<ArgShape> product = {part(512), part(4), part(768),  part(4),
                                         part(96),  {},      part(3072), part(1 << 20)};
  CHECK(bytes(KernelId::kFp8Matmul, {32, 16, 48}, product) == 512 + 4 + 768 + 4 + 96 + 3072);
  CHECK(bytes(KernelId::kFp8Matmul, {32, 16, 48}, product, kAccumulate) ==
        512 + 4 + 768 + 4 + 96 + 2 * 3072);
  CHECK(bytes(KernelId::kBiasBackward, {32, 48}, {part(3072), part(96), part(1 << 20)},
              kAccumulate) == 3072 + 2 * 96);
}

TEST_CASE("kernel table: partial sums of adapters seldom need more than the library's workspace") {
  constexpr uint64_t kLibrary = uint64_t{32} << 20;
  const auto up = [](int64_t M, int64_t r) {
    return Workspace(KernelId::kLoraUpBackward, {M, r, 28672, 14336, 28672, 3}, Backend::kCuda);
  };
  CHECK(up(8192, 16) == kLibrary);
  // Together they would be 73 MB: they are two launches.
  CHECK(up(8192, 32) == kLibrary);
  CHECK(up(131'072, 32) <= kMostThinBothBytes);
  CHECK(up(8192, 128) == kLibrary);  // the library's products
  CHECK(Workspace(KernelId::kLoraDown, {65536, 14336, 64}, Backend::kCuda) == kLibrary);
}

TEST_CASE("kernel table: dims and unusual scalars as text") {
  CHECK(FormatDims(KernelId::kMatmulForward, {64, 16, 48}, {}) == "M=64 K=16 N=48");
  CHECK(FormatDims(KernelId::kStepScalars, {}, {}).empty());
  const KernelScalars usual = UsualScalars(KernelId::kLayerNormForward);
  CHECK(FormatDims(KernelId::kLayerNormForward, {4, 8}, usual) == "M=4 C=8");
  CHECK(FormatDims(KernelId::kLayerNormForward, {4, 8}, {0.5f}) == "M=4 C=8 eps=0.5");
  CHECK(FormatDims(KernelId::kRotaryTable, {16, 4, 2, 8}, {500000, 8, 1, 4, 1}) ==
        "T=16 D=4 scaling=2 original_positions=8 theta=500000 factor=8 high=4");
}

TEST_CASE("kernel table: flags decide between writing and adding") {
  using enum ArgMode;
  CHECK(AccessMode(KernelId::kMatmulBackwardWeight, 2, kNoFlags) == kOut);
  CHECK(AccessMode(KernelId::kMatmulBackwardWeight, 2, kAccumulate) == kInOut);
  CHECK(AccessMode(KernelId::kMatmulBackwardWeight, 3, kAccumulate | kTransposed) == kInOut);
  CHECK(AccessMode(KernelId::kMatmulBackwardWeight, 4, kAccumulate) == kOut);  // scratch
  // kAccumulate is for the weights' gradients, kAddToOutput for dx.
  CHECK(AccessMode(KernelId::kLayerNormBackward, 4, kAccumulate) == kOut);
  CHECK(AccessMode(KernelId::kLayerNormBackward, 4, kAddToOutput) == kInOut);
  CHECK(AccessMode(KernelId::kLayerNormBackward, 5, kAddToOutput) == kOut);
  CHECK(AccessMode(KernelId::kLayerNormBackward, 6, kAccumulate) == kInOut);
  CHECK(AccessMode(KernelId::kRmsNormBackward, 4, kAddToOutput) == kInOut);
  CHECK(AccessMode(KernelId::kRmsNormBackward, 5, kAddToOutput) == kOut);
  CHECK(AccessMode(KernelId::kQkNormRotaryBackward, 0, kNoFlags) == kInOut);
  CHECK(AccessMode(KernelId::kQkNormRotaryBackward, 5, kAccumulate) == kInOut);
  CHECK(AccessMode(KernelId::kCrossEntropy, 0, kForwardOnly) == kInOut);
  CHECK(AccessMode(KernelId::kLossReduce, 1, kNoFlags) == kInOut);
  CHECK(AccessMode(KernelId::kEmbedBackward, 2, kNoFlags) == kInOut);
  CHECK(AccessMode(KernelId::kEmbedBackward, 3, kNoFlags) == kOut);
  CHECK(AccessMode(KernelId::kConvert, 1, kAccumulate) == kInOut);
  CHECK(AccessMode(KernelId::kFp8Matmul, 6, kNoFlags) == kOut);
  CHECK(AccessMode(KernelId::kFp8Matmul, 6, kAccumulate) == kInOut);
  CHECK(AccessMode(KernelId::kBiasBackward, 1, kAccumulate) == kInOut);
}

TEST_CASE("kernel table: FLOPs by hand") {
  CHECK(Flops(KernelId::kMatmulForward, {64, 16, 48}) == 2.0 * 64 * 16 * 48);
  CHECK(Flops(KernelId::kMatmulBackwardWeight, {64, 16, 48}) == 2.0 * 64 * 16 * 48);
  // B=2 T=8 H=4 G=2 D=4: two products of 2*B*T*T*H*D, half of them masked. Sharing keys and values
  // saves none.
  CHECK(Flops(KernelId::kAttentionForward, {2, 8, 4, 2, 4}) == 2.0 * 2 * 2 * 8 * 8 * 16 / 2);
  CHECK(Flops(KernelId::kAttentionBackward, {2, 8, 4, 2, 4}) == 5.0 * 2 * 2 * 8 * 8 * 16 / 2);
  // Without the fused kernel the scores are not made again: four products in place of five. The
  // batched products do the masked half too.
  CHECK(Flops(KernelId::kUnfusedAttentionForward, {2, 8, 4, 2, 4}) == 4096);
  CHECK(Flops(KernelId::kUnfusedAttentionBackward, {2, 8, 4, 2, 4}) == 8192);
  CHECK(UnfusedAttentionGemmFlops(KernelId::kUnfusedAttentionForward, {2, 8, 4, 2, 4}) ==
        2 * (2.0 * 2 * 8 * 8 * 16));
  CHECK(UnfusedAttentionGemmFlops(KernelId::kUnfusedAttentionBackward, {2, 8, 4, 2, 4}) ==
        4 * (2.0 * 2 * 8 * 8 * 16));
  CHECK_THROWS_AS(UnfusedAttentionGemmFlops(KernelId::kAttentionForward, {2, 8, 4, 2, 4}),
                  CheckFailure);
  // A product, and 9 or 18 for each GELU: of M x N outputs forward, M x K backward.
  CHECK(Flops(KernelId::kMatmulGeluForward, {64, 16, 48}) == 2.0 * 64 * 16 * 48 + 9.0 * 64 * 48);
  CHECK(Flops(KernelId::kMatmulGeluBackward, {64, 16, 48}) == 2.0 * 64 * 16 * 48 + 18.0 * 64 * 16);
  CHECK(Flops(KernelId::kFill, {4096}) == 0);
  CHECK(Flops(KernelId::kRmsNormForward, {64, 16}) == 4.0 * 64 * 16);
  CHECK(Flops(KernelId::kRmsNormBackward, {64, 16}) == 9.0 * 64 * 16);
  CHECK(Flops(KernelId::kRotaryTable, {64, 16, 2, 32}) == 5.0 * 64 * 16 / 2);
  // M=64 T=16 H=6 G=2 D=8: eight heads of 8 a row are turned.
  CHECK(Flops(KernelId::kRotaryForward, {64, 16, 6, 2, 8}) == 3.0 * 64 * 8 * 8);
  CHECK(Flops(KernelId::kRotaryBackward, {64, 16, 6, 2, 8}) == 3.0 * 64 * 8 * 8);
  CHECK(Flops(KernelId::kQkNormRotaryForward, {64, 16, 6, 2, 8}) == 7.0 * 64 * 8 * 8);
  CHECK(Flops(KernelId::kQkNormRotaryBackward, {64, 16, 6, 2, 8}) == 12.0 * 64 * 8 * 8);
  // Two more parts have each of the 2 * 2 heads of 8; or none.
  CHECK(Flops(KernelId::kUnpackHeads, {2, 5, 12, 2, 8, 6}) == 2.0 * 5 * 4 * 8 * 2);
  CHECK(Flops(KernelId::kUnpackHeads, {2, 5, 12, 4, 8, 2}) == 0);
  CHECK(Flops(KernelId::kUnpackHeads, {2, 5, 12, 0, 8, 6}) == 0);
  CHECK(Flops(KernelId::kSwiGluForward, {64, 16}) == 5.0 * 64 * 16);
  CHECK(Flops(KernelId::kSwiGluBackward, {64, 16}) == 12.0 * 64 * 16);
  CHECK(Flops(KernelId::kLargestMagnitude, {4096}) == 4096);
  CHECK(Flops(KernelId::kQuantize, {64, 16, 0}) == 64.0 * 16);
  CHECK(Flops(KernelId::kFp8Matmul, {64, 16, 48, 0, 0, 1}) == 2.0 * 64 * 16 * 48);
  CHECK(Flops(KernelId::kBiasBackward, {64, 48}) == 64.0 * 48);
  // No overflow at sizes whose product passes 2^63.
  CHECK(Flops(KernelId::kMatmulForward, {1 << 24, 1 << 20, 1 << 22}) == 0x1p67);
}

TEST_CASE("kernel table: CUDA workspaces by hand") {
  CHECK(Workspace(KernelId::kMatmulForward, {64, 16, 48}, Backend::kCuda) == 33554432);
  CHECK(Workspace(KernelId::kMatmulGeluForward, {64, 16, 48}, Backend::kCuda) == 33554432);
  CHECK(Workspace(KernelId::kFp8Matmul, {64, 16, 48, 0, 0, 1}, Backend::kCuda) == 33554432);
  CHECK(Workspace(KernelId::kBiasBackward, {64, 48}, Backend::kCuda) == 33554432);
  CHECK(Workspace(KernelId::kQuantize, {64, 16, 0}, Backend::kCuda) == 0);
  CHECK(Workspace(KernelId::kLargestMagnitude, {4096}, Backend::kCuda) == 0);
  CHECK(Workspace(KernelId::kMatmulGeluBackward, {64, 16, 48}, Backend::kCuda) == 33554432);
  // B=4 T=1024 H=12 D=64: 4*4*12*1024*64 + 4*4*12*1024 + 256 for cuDNN. Own kernels have a turn of
  // 4 bytes for each 32 rows of a head, 4*12*32 of them, and one more, rounded up to 256.
  CHECK(Workspace(KernelId::kAttentionBackward, {4, 1024, 12, 12, 64}, Backend::kCuda) ==
        12582912 + 196608 + 6400);
  // Shared heads of keys: cuDNN needs 4*4*12*1024*64 more, own kernels do not.
  CHECK(Workspace(KernelId::kAttentionBackward, {4, 1024, 12, 4, 64}, Backend::kCuda) ==
        2 * 12582912 + 196608 + 256);
  // T=1000: own kernels have 1024 rows of dQ; cuDNN has 1000, and two lengths for each of 4
  // sequences.
  CHECK(Workspace(KernelId::kAttentionBackward, {4, 1000, 12, 12, 64}, Backend::kCuda) ==
        12582912 + 192000 + 6400);
  CHECK(Workspace(KernelId::kAttentionBackward, {4, 1000, 12, 4, 64}, Backend::kCuda) ==
        2 * 12288000 + 192000 + 256 + 32);
  // What a long context asks for does not overflow.
  CHECK(Workspace(KernelId::kAttentionBackward, {16, 131072, 128, 8, 256}, Backend::kCuda) ==
        uint64_t{16} * 128 * 131072 * (8 * 256 + 4) + 256);
  // 100 rows: 7 blocks of at least 16, 2*96 floats each; 2^20 rows: no more than 264 blocks.
  CHECK(Workspace(KernelId::kLayerNormBackward, {100, 96}, Backend::kCuda) == 5376);
  CHECK(Workspace(KernelId::kLayerNormBackward, {1, 5}, Backend::kCuda) == 256);
  CHECK(Workspace(KernelId::kLayerNormBackward, {1 << 20, 768}, Backend::kCuda) ==
        uint64_t{264} * 2 * 768 * 4);
  // The same blocks, C floats each.
  CHECK(Workspace(KernelId::kRmsNormBackward, {100, 96}, Backend::kCuda) == 2816);
  CHECK(Workspace(KernelId::kRmsNormBackward, {1 << 20, 4096}, Backend::kCuda) ==
        uint64_t{264} * 4096 * 4);
  // 20 rows: 3 blocks of at least 8, 2*128 floats each; 2^17 rows: no more than 396 blocks.
  CHECK(Workspace(KernelId::kQkNormRotaryBackward, {20, 10, 6, 2, 128}, Backend::kCuda) == 3072);
  CHECK(Workspace(KernelId::kQkNormRotaryBackward, {1 << 17, 4096, 32, 8, 128}, Backend::kCuda) ==
        uint64_t{396} * 256 * 4);
  // 100,000 elements: 7 blocks of 2^14, a double each.
  CHECK(Workspace(KernelId::kNormSq, {100'000}, Backend::kCuda) == 256);
  CHECK(Workspace(KernelId::kNormSq, {1 << 30}, Backend::kCuda) == 8448);
  // 4096 tokens: four arrays of 16384 bytes; 128 segments of 32 with two rows of 96 floats each;
  // the sort's 4096 bytes and 1 MiB.
  CHECK(Workspace(KernelId::kEmbedBackward, {4, 1024, 96, 300}, Backend::kCuda) ==
        4 * 16384 + 128 * 2 * 96 * 4 + 4096 + 1048576);
  CHECK(Workspace(KernelId::kAttentionForward, {4, 1024, 12, 12, 64}, Backend::kCuda) == 256);
  CHECK(Workspace(KernelId::kAttentionForward, {4, 1024, 12, 12, 64}, Backend::kCpu) == 0);
  CHECK(Workspace(KernelId::kUnfusedAttentionForward, {4, 1024, 12, 12, 64}, Backend::kCuda) ==
        33554432);
  CHECK(Workspace(KernelId::kUnfusedAttentionBackward, {4, 1024, 12, 12, 64}, Backend::kCuda) ==
        33554432);
}

TEST_CASE("a launch's workspace is its row's, but for attention's of its kind") {
  const KernelDims attention{2, 64, 4, 2, 32};
  constexpr KernelId kForward = KernelId::kAttentionForward,
                     kBackward = KernelId::kAttentionBackward;
  const auto bytes = [&](KernelId kernel, bool documents, bool deterministic) {
    return LaunchWorkspaceBytes(kernel, attention, Backend::kCuda, documents, deterministic);
  };
  for (const KernelId kernel : {kForward, kBackward}) {
    const uint64_t of_row = KernelInfo(kernel).workspace_bytes(attention, Backend::kCuda);
    const uint64_t of_documents = AttentionDocumentsBytes(attention, kernel == kBackward, true);
    CHECK(bytes(kernel, false, false) == of_row);
    CHECK(bytes(kernel, true, false) == of_documents);
    CHECK(of_documents != of_row);
  }
  CHECK(bytes(kForward, false, true) == bytes(kForward, false, false));
  CHECK(bytes(kBackward, false, true) == AttentionWorkspaceBytes(attention, true));
  // cuDNN has no deterministic kernel for documents, so that own kernels run.
  CHECK(bytes(kForward, true, true) == 0);
  CHECK(bytes(kBackward, true, true) == OwnAttentionWorkspaceOf(attention).bytes);
  for (const bool documents : {false, true}) {
    CHECK(LaunchWorkspaceBytes(kBackward, attention, Backend::kCpu, documents, false) == 0);
    const KernelDims norm{100, 64};
    CHECK(
        LaunchWorkspaceBytes(KernelId::kLayerNormBackward, norm, Backend::kCuda, documents, true) ==
        KernelInfo(KernelId::kLayerNormBackward).workspace_bytes(norm, Backend::kCuda));
  }
}

}  // namespace

}  // namespace zeroplan
