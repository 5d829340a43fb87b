#include "core/program/attention_path.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/lowering/lower.h"
#include "tests/attention_rows.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

constexpr int kHopper = 90;

AttentionLaunch Launch(const KernelDims& dims, bool backward, bool deterministic = false) {
  return {.dims = dims,
          .dtype = Dtype::kBF16,
          .backward = backward,
          .compute_capability = kHopper,
          .deterministic = deterministic,
          .workspace_bytes = AttentionWorkspaceBytes(dims, deterministic)};
}

TEST_CASE("attention path: cuDNN's workspace is what was measured, to the byte") {
  for (const testing::AttentionRow& row : testing::kAttentionRows) {
    CAPTURE(FormatDims(KernelId::kAttentionBackward, row.dims, {}));
    CHECK(FusedAttentionBackwardBytes(row.dims, false) == row.backward_bytes);
    CHECK(KernelInfo(KernelId::kAttentionBackward).workspace_bytes(row.dims, Backend::kCuda) ==
          std::max(row.backward_bytes, OwnAttentionWorkspaceOf(row.dims).bytes));
  }
  for (const testing::AttentionRow& row : testing::kOrderedAttentionRows) {
    CAPTURE(FormatDims(KernelId::kAttentionBackward, row.dims, {}));
    CHECK(FusedAttentionBackwardBytes(row.dims, true) == row.backward_bytes);
  }
}

TEST_CASE("attention path: what training launches is one fused call, any length and sharing") {
  for (const testing::AttentionRow& row : testing::kAttentionRows) {
    for (bool backward : {false, true}) {
      const AttentionPath path = AttentionPathOf(Launch(row.dims, backward));
      CHECK(path.fused());
      CHECK(path.calls == 1);
      CHECK(path.part == AttentionPart{row.dims[0], row.dims[3]});
    }
  }
}

TEST_CASE(
    "attention path: what cuDNN does not support, and why; own kernels take it where they can") {
  using enum AttentionKernels;
  const KernelDims usual = {2, 1024, 8, 4, 64};
  const auto check = [](const AttentionLaunch& launch, AttentionKernels kernels, LibraryGap gap) {
    const AttentionPath path = AttentionPathOf(launch);
    CHECK(path.kernels == kernels);
    CHECK(path.library_gap == gap);
    CHECK(path.fused() == (kernels != kPlain));
    CHECK((path.own_gap == OwnGap::kNone) == path.fused());
    if (gap != LibraryGap::kNone) CHECK(LibraryGapText(launch, gap).size() > 10);
    if (!path.fused()) CHECK(OwnGapText(launch, path.own_gap).size() > 10);
  };
  for (bool backward : {false, true}) {
    check(Launch(usual, backward), kLibrary, LibraryGap::kNone);
    AttentionLaunch launch = Launch(usual, backward);
    launch.dtype = Dtype::kF16;
    check(launch, kLibrary, LibraryGap::kNone);
    launch.dtype = Dtype::kF32;
    check(launch, kPlain, LibraryGap::kDtype);
    CHECK(LibraryGapText(launch, LibraryGap::kDtype) == "cuDNN has none for fp32");
    CHECK(OwnGapText(launch, OwnGapOf(launch)) == "fused kernels take bf16 and fp16, not fp32");
    launch = Launch(usual, backward);
    launch.compute_capability = 75;
    check(launch, kPlain, LibraryGap::kGpu);
    CHECK(OwnGapText(launch, OwnGapOf(launch)) ==
          "fused kernels need compute capability 8.0, the GPU has 7.5");
    check(Launch({2, 1024, 8, 4, 60}, backward), kPlain, LibraryGap::kHeadSteps);
    check(Launch({2, 1024, 8, 4, 264}, backward), kPlain, LibraryGap::kHeadSize);
    check(Launch({2, 1, 8, 4, 64}, backward), kOwn, LibraryGap::kLength);
  }
  // Only Hopper takes the gradient of heads past 128.
  for (int capability : {80, 86, 89, 90, 100, 120}) {
    CAPTURE(capability);
    const bool hopper = capability == 90;
    AttentionLaunch launch = Launch({2, 1024, 8, 4, 256}, true);
    launch.compute_capability = capability;
    check(launch, hopper ? kLibrary : kOwn, hopper ? LibraryGap::kNone : LibraryGap::kHeadSize);
    launch.backward = false;
    check(launch, kLibrary, LibraryGap::kNone);
    launch = Launch({2, 1024, 8, 4, 128}, true);
    launch.compute_capability = capability;
    check(launch, kLibrary, LibraryGap::kNone);
  }
}

TEST_CASE("attention path: own kernels need their workspace in the backward pass") {
  AttentionLaunch launch = Launch({2, 1, 8, 4, 64}, true);
  launch.workspace_bytes = OwnAttentionWorkspaceOf(launch.dims).bytes;
  CHECK(OwnGapOf(launch) == OwnGap::kNone);
  launch.workspace_bytes -= 1;
  CHECK(OwnGapOf(launch) == OwnGap::kWorkspace);
  CHECK(AttentionPathOf(launch).kernels == AttentionKernels::kPlain);
  launch.backward = false;
  CHECK(OwnGapOf(launch) == OwnGap::kNone);
  // Without cuDNN they run what it would.
  CHECK(OwnGapOf(Launch({2, 1024, 8, 4, 64}, true)) == OwnGap::kNone);
}

TEST_CASE("attention path: the workspace of own kernels") {
  for (const auto& [head, padded] : {std::pair{8, 64},
                                     {64, 64},
                                     {72, 96},
                                     {96, 96},
                                     {104, 128},
                                     {128, 128},
                                     {136, 256},
                                     {256, 256}}) {
    CHECK(OwnHead(head) == padded);
  }
  // 3 heads of 2 tiles of 64 rows of 96 channels.
  const OwnAttentionWorkspace at = OwnAttentionWorkspaceOf({1, 100, 3, 1, 80});
  CHECK(at.dq == 0);
  CHECK(at.delta == 4 * 3 * 2 * 64 * 96);
  CHECK(at.turns == at.delta + 1280);  // 4 * 3 * 100, rounded up
  CHECK(at.bytes == at.turns + 256);
}

TEST_CASE("attention path: short documents run on own kernels where these were faster") {
  CHECK(OwnFasterWithin(64, 147));
  CHECK_FALSE(OwnFasterWithin(64, 500));
  CHECK(OwnFasterWithin(128, 51));
  CHECK_FALSE(OwnFasterWithin(128, 147));
  CHECK_FALSE(OwnFasterWithin(256, 51));
  CHECK_FALSE(OwnFasterWithin(64, 0));
}

TEST_CASE("attention path: what a program reserves holds own kernels wherever they may run") {
  for (const KernelDims& dims : {KernelDims{2, 1024, 8, 8, 64},
                                 {2, 1000, 8, 2, 72},
                                 {1, 1, 4, 4, 8},
                                 {1, 333, 4, 1, 256},
                                 {4, 2048, 16, 16, 16}}) {
    for (const bool deterministic : {false, true}) {
      const uint64_t own = OwnAttentionWorkspaceOf(dims).bytes;
      CHECK(AttentionWorkspaceBytes(dims, deterministic) >= own);
      for (const int capability : {80, 89, 90, 100}) {
        for (const bool documents : {false, true}) {
          AttentionLaunch launch = Launch(dims, true, deterministic);
          launch.compute_capability = capability;
          launch.documents = documents;
          launch.own_documents = documents && !HasLibraryDocuments(capability);
          launch.workspace_bytes =
              LaunchWorkspaceBytes(KernelId::kAttentionBackward, dims, Backend::kCuda, documents,
                                   deterministic, launch.own_documents);
          const AttentionPath path = AttentionPathOf(launch);
          CHECK(path.fused());
          CHECK(launch.workspace_bytes >= own);
          if (documents && (deterministic || launch.own_documents)) {
            CHECK(launch.workspace_bytes == OwnAttentionWorkspaceOf(dims).bytes);
            CHECK(LaunchWorkspaceBytes(KernelId::kAttentionForward, dims, Backend::kCuda, true,
                                       deterministic, launch.own_documents) == 0);
          }
        }
      }
    }
    CHECK(AttentionDocumentsBytes(dims, true, true) >=
          DocumentWorkspaceOf(dims, dims[0] * dims[1], true).bytes);
  }
}

TEST_CASE("attention path: a GPU has kernels for heads that some kernel takes") {
  for (int capability : {80, 90, 100}) CHECK(MostPlainHead(capability) == 256);
  for (int capability : {86, 89, 120}) CHECK(MostPlainHead(capability) == 64);
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    CHECK(HasAttentionKernels(60, dtype, 89));
    CHECK(HasAttentionKernels(256, dtype, 90));
    CHECK_FALSE(HasAttentionKernels(264, dtype, 90));
    CHECK_FALSE(HasAttentionKernels(100, dtype, 89));
    CHECK(HasAttentionKernels(256, dtype, 89) == (dtype == Dtype::kBF16));
    CHECK(HasAttentionKernels(128, dtype, 89) == (dtype == Dtype::kBF16));
  }
}

// Measured on an H200 with cuDNN 9.14: what the library asked for with so many slots.
TEST_CASE("attention path: within documents, cuDNN's workspace to the byte") {
  struct Row {
    KernelDims dims;
    int64_t slots;
    uint64_t forward, backward;  // 0: not measured
  };
  const KernelDims gpt2 = {16, 1024, 12, 12, 64};
  for (const Row& row :
       {Row{gpt2, 16, 4864, 151'783'552}, Row{gpt2, 25, 6912, 151'787'136},
        Row{gpt2, 71, 18688, 151'807'744}, Row{gpt2, 568, 146'176, 152'030'848},
        Row{gpt2, 267, 68864, 151'895'552}, Row{{8, 2048, 32, 8, 64}, 69, 18176, 0},
        Row{{2, 4096, 32, 8, 128}, 258, 66816, 0}}) {
    CAPTURE(row.slots);
    for (const bool backward : {false, true}) {
      const uint64_t want = backward ? row.backward : row.forward;
      const DocumentWorkspace at = DocumentWorkspaceOf(row.dims, row.slots, backward);
      if (want > 0) CHECK(at.bytes - at.library == want);
      CHECK(at.library % 256 == 0);
      CHECK(at.bytes <= AttentionDocumentsBytes(row.dims, backward, true));
    }
  }
}

// cuDNN runs both passes or neither, because it keeps lse in another order.
TEST_CASE("attention path: within documents, both passes go the same way") {
  using enum AttentionKernels;
  const auto check = [](const KernelDims& dims, bool deterministic, int capability,
                        AttentionKernels kernels, LibraryGap gap, bool own = false) {
    for (const bool backward : {false, true}) {
      AttentionLaunch launch = Launch(dims, backward, deterministic);
      launch.compute_capability = capability;
      launch.documents = true;
      launch.own_documents = own;
      launch.workspace_bytes = 0;
      const AttentionPath path = AttentionPathOf(launch);
      CHECK(path.kernels == kernels);
      CHECK(path.library_gap == gap);
    }
  };
  const KernelDims usual = {8, 2048, 32, 8, 64};
  check(usual, false, 90, kLibrary, LibraryGap::kNone);
  check(usual, false, 100, kLibrary, LibraryGap::kNone);
  check(usual, false, 89, kOwn, LibraryGap::kDocumentsGpu);
  check(usual, true, 90, kOwn, LibraryGap::kDocumentsOrdered);
  check(usual, false, 90, kOwn, LibraryGap::kDocumentsOwn, true);
  check({8, 2048, 32, 8, 72}, false, 90, kOwn, LibraryGap::kHeadSteps);
  check({8, 2048, 32, 8, 60}, false, 90, kPlain, LibraryGap::kHeadSteps);
  check({8, 2048, 32, 8, 256}, false, 90, kLibrary, LibraryGap::kNone);
  check({8, 2048, 32, 8, 256}, false, 100, kOwn, LibraryGap::kHeadSize);
  check(usual, false, 75, kPlain, LibraryGap::kGpu);
}

TEST_CASE("attention path: deterministic launches go in the largest parts that fit") {
  // Llama 3.2 1B: 270,532,864 bytes for 8 sequences; 8 heads of keys of one need 285,475,072
  // deterministic, 4 need half of the 17,039,616 that are no squares, and of the 268,435,456.
  const KernelDims dims = {8, 2048, 32, 8, 64};
  CHECK(FusedAttentionBackwardBytes(dims, false) == 270'532'864);
  CHECK(FusedAttentionBackwardBytes({1, 2048, 32, 8, 64}, true) == 285'475'072);
  const AttentionPath path = AttentionPathOf(Launch(dims, true, true));
  CHECK(path.part == AttentionPart{1, 4});
  CHECK(path.calls == 16);
  CHECK(AttentionPathOf(Launch(dims, false, true)).calls == 1);  // the forward pass always is
  // Short sequences: all at once, or sequences of a part.
  CHECK(AttentionPathOf(Launch({8, 64, 12, 12, 64}, true, true)).calls == 1);
  CHECK(AttentionPathOf(Launch({8, 256, 12, 12, 64}, true, true)).part == AttentionPart{4, 12});
  // One sequence of 4096: one head of keys needs more than the usual pass takes, so that a program
  // sets aside more.
  const KernelDims one = {1, 4096, 32, 8, 128};
  CHECK(AttentionWorkspaceBytes(one, false) == 134'742'272);
  CHECK(AttentionWorkspaceBytes(one, true) == 142'672'128);
  CHECK(AttentionPathOf(Launch(one, true, true)).part == AttentionPart{1, 1});
  AttentionLaunch tight = Launch(one, true, true);
  tight.workspace_bytes -= 1;
  CHECK(AttentionPathOf(tight).kernels == AttentionKernels::kOwn);
  CHECK(AttentionPathOf(tight).library_gap == LibraryGap::kWorkspace);
  // Past 4 GiB for one head it sets aside no more, and own kernels run.
  const KernelDims longest = {1, 131072, 32, 8, 128};
  CHECK(AttentionWorkspaceBytes(longest, true) == AttentionWorkspaceBytes(longest, false));
  CHECK(AttentionPathOf(Launch(longest, true, true)).library_gap == LibraryGap::kWorkspace);
  CHECK(AttentionPathOf(Launch(longest, true, true)).kernels == AttentionKernels::kOwn);
}

TEST_CASE("attention path: parts are alike, and cover a launch") {
  for (const KernelDims& dims :
       {KernelDims{6, 8, 12, 4, 8}, KernelDims{1, 8, 7, 7, 8}, KernelDims{5, 8, 9, 3, 8}}) {
    const std::vector<AttentionPart> parts = AttentionParts(dims);
    CHECK(parts.front() == AttentionPart{dims[0], dims[3]});
    CHECK(parts.back() == AttentionPart{1, 1});
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto [sequences, heads] = parts[i];
      CHECK(dims[0] % sequences == 0);
      CHECK(dims[3] % heads == 0);
      CHECK((heads == dims[3] || sequences == 1));
      CHECK(PartDims(dims, parts[i])[2] * dims[3] == heads * dims[2]);
      if (i > 0) CHECK(sequences * heads < parts[i - 1].sequences * parts[i - 1].key_heads);
    }
  }
}

// Programs differ by the workspace alone, and by that only where one head needs more.
TEST_CASE("attention path: a deterministic program sets aside what one head needs") {
  testing::TinyShape shape;
  shape.hidden = 64;
  shape.positions = 512;
  const ModelSpec model = testing::TinyModel(shape);
  const auto backward_workspace = [&](int64_t seq_len, bool deterministic) {
    TrainSetup setup;
    setup.batch = {1, 1, 1, seq_len};
    setup.deterministic = deterministic;
    const Program program = Lower(model, setup, {.backend = Backend::kCuda});
    for (const Instruction& instruction : program.section(Section::kMicroStep)) {
      const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
      if (launch == nullptr || launch->kernel != KernelId::kAttentionBackward) continue;
      return program.args(*launch).back().bytes;
    }
    return uint64_t{0};
  };
  for (int64_t seq_len : {64, 200, 512}) {
    CAPTURE(seq_len);
    const KernelDims dims = {1, seq_len, 2, 2, 32};
    CHECK(backward_workspace(seq_len, false) == AttentionWorkspaceBytes(dims, false));
    CHECK(backward_workspace(seq_len, true) == AttentionWorkspaceBytes(dims, true));
    CHECK(AttentionPathOf(Launch(dims, true, true)).fused());
  }
  CHECK(backward_workspace(512, true) > backward_workspace(512, false));
}

}  // namespace
}  // namespace zeroplan
