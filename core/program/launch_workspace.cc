#include "core/program/launch_workspace.h"

#include "core/program/attention_path.h"

namespace zeroplan {

uint64_t LaunchWorkspaceBytes(KernelId kernel, const KernelDims& dims, Backend backend,
                              bool documents, bool deterministic) {
  const uint64_t of_row = KernelInfo(kernel).workspace_bytes(dims, backend);
  const bool backward = kernel == KernelId::kAttentionBackward;
  if (of_row == 0 || (!backward && kernel != KernelId::kAttentionForward)) return of_row;
  // Deterministic ones run the plain kernels, which leave their workspace alone.
  if (documents && !deterministic) return AttentionDocumentsBytes(dims, backward);
  return backward ? AttentionWorkspaceBytes(dims, deterministic) : of_row;
}

}  // namespace zeroplan
