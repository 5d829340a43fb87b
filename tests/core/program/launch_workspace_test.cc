#include "core/program/launch_workspace.h"

#include <doctest/doctest.h>

#include "core/program/attention_path.h"

namespace zeroplan {
namespace {

TEST_CASE("a launch's workspace is its row's, but for attention's of its kind") {
  const KernelDims attention{2, 64, 4, 2, 32};
  constexpr KernelId kForward = KernelId::kAttentionForward,
                     kBackward = KernelId::kAttentionBackward;
  const auto bytes = [&](KernelId kernel, bool documents, bool deterministic) {
    return LaunchWorkspaceBytes(kernel, attention, Backend::kCuda, documents, deterministic);
  };
  for (const KernelId kernel : {kForward, kBackward}) {
    const uint64_t of_row = KernelInfo(kernel).workspace_bytes(attention, Backend::kCuda);
    const uint64_t of_documents = AttentionDocumentsBytes(attention, kernel == kBackward);
    CHECK(bytes(kernel, false, false) == of_row);
    CHECK(bytes(kernel, true, false) == of_documents);
    CHECK(of_documents != of_row);
  }
  CHECK(bytes(kForward, false, true) == bytes(kForward, false, false));
  CHECK(bytes(kBackward, false, true) == AttentionWorkspaceBytes(attention, true));
  // With documents too: there is no deterministic kernel of cuDNN's for them.
  CHECK(bytes(kBackward, true, true) == AttentionWorkspaceBytes(attention, true));
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
