#include "core/program/attention_path.h"

#include <doctest/doctest.h>

#include <string>

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
          row.backward_bytes);
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

TEST_CASE("attention path: what has no fused kernel, and why") {
  const KernelDims usual = {2, 1024, 8, 4, 64};
  const auto reason = [](AttentionLaunch launch) {
    const AttentionPath path = AttentionPathOf(launch);
    if (!path.fused()) CHECK(PlainReasonText(launch, path.plain).size() > 10);
    return path.plain;
  };
  for (bool backward : {false, true}) {
    CHECK(reason(Launch(usual, backward)) == PlainReason::kNone);
    AttentionLaunch launch = Launch(usual, backward);
    launch.dtype = Dtype::kF16;
    CHECK(reason(launch) == PlainReason::kNone);
    launch.dtype = Dtype::kF32;
    CHECK(reason(launch) == PlainReason::kDtype);
    CHECK(PlainReasonText(launch, PlainReason::kDtype) == "cuDNN has none for fp32");
    launch = Launch(usual, backward);
    launch.compute_capability = 75;
    CHECK(reason(launch) == PlainReason::kGpu);
    CHECK(PlainReasonText(launch, PlainReason::kGpu) ==
          "cuDNN needs compute capability 8.0, the GPU has 7.5");
    CHECK(reason(Launch({2, 1024, 8, 4, 60}, backward)) == PlainReason::kHeadSteps);
    CHECK(reason(Launch({2, 1024, 8, 4, 264}, backward)) == PlainReason::kHeadSize);
    CHECK(reason(Launch({2, 1, 8, 4, 64}, backward)) == PlainReason::kLength);
  }
  // Only Hopper takes the gradient of heads past 128.
  for (int capability : {80, 86, 89, 90, 100, 120}) {
    CAPTURE(capability);
    AttentionLaunch launch = Launch({2, 1024, 8, 4, 256}, true);
    launch.compute_capability = capability;
    CHECK(reason(launch) == (capability == 90 ? PlainReason::kNone : PlainReason::kHeadSize));
    launch.backward = false;
    CHECK(reason(launch) == PlainReason::kNone);
    launch = Launch({2, 1024, 8, 4, 128}, true);
    launch.compute_capability = capability;
    CHECK(reason(launch) == PlainReason::kNone);
  }
}

TEST_CASE("attention path: plain kernels take what their GPU's shared memory holds") {
  for (int capability : {80, 90, 100}) CHECK(MostPlainHead(capability) == 256);
  for (int capability : {86, 89, 120}) CHECK(MostPlainHead(capability) == 64);
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    CHECK(HasAttentionKernels(60, dtype, 89));
    CHECK(HasAttentionKernels(256, dtype, 90));
    CHECK_FALSE(HasAttentionKernels(264, dtype, 90));
    CHECK_FALSE(HasAttentionKernels(256, dtype, 89));
    CHECK_FALSE(HasAttentionKernels(100, dtype, 89));
  }
  CHECK(HasAttentionKernels(128, Dtype::kBF16, 89));
  CHECK_FALSE(HasAttentionKernels(128, Dtype::kF32, 89));
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
      CHECK(at.bytes <= AttentionDocumentsBytes(row.dims, backward));
    }
  }
}

// Both passes are fused or both are plain, for they keep lse in another order.
TEST_CASE("attention path: within documents, both passes go the same way") {
  const auto path = [](const KernelDims& dims, bool backward, bool deterministic, int capability) {
    AttentionLaunch launch = Launch(dims, backward, deterministic);
    launch.compute_capability = capability;
    launch.documents = true;
    return AttentionPathOf(launch).plain;
  };
  const KernelDims usual = {8, 2048, 32, 8, 64};
  for (const bool backward : {false, true}) {
    CHECK(path(usual, backward, false, 90) == PlainReason::kNone);
    CHECK(path(usual, backward, false, 100) == PlainReason::kNone);
    CHECK(path(usual, backward, false, 89) == PlainReason::kDocumentsGpu);
    CHECK(path(usual, backward, true, 90) == PlainReason::kDocumentsOrdered);
    CHECK(path({8, 2048, 32, 8, 72}, backward, false, 90) == PlainReason::kHeadSteps);
    CHECK(path({8, 2048, 32, 8, 256}, backward, false, 90) == PlainReason::kNone);
    CHECK(path({8, 2048, 32, 8, 256}, backward, false, 100) == PlainReason::kHeadSize);
  }
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
  CHECK(AttentionPathOf(tight).plain == PlainReason::kWorkspace);
  // Past 4 GiB for one head it sets aside no more, and nothing fits.
  const KernelDims longest = {1, 131072, 32, 8, 128};
  CHECK(AttentionWorkspaceBytes(longest, true) == AttentionWorkspaceBytes(longest, false));
  CHECK(AttentionPathOf(Launch(longest, true, true)).plain == PlainReason::kWorkspace);
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
    CHECK(backward_workspace(seq_len, false) == FusedAttentionBackwardBytes(dims, false));
    CHECK(backward_workspace(seq_len, true) == AttentionWorkspaceBytes(dims, true));
    CHECK(AttentionPathOf(Launch(dims, true, true)).fused());
  }
  CHECK(backward_workspace(512, true) > backward_workspace(512, false));
}

}  // namespace
}  // namespace zeroplan
