// Where the documents of a batch are, as cuDNN's ragged batches want to know it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/program/attention_path.h"
#include "executor/kernels/attention_dims.h"

namespace zeroplan::cuda {

// Fills the offsets and lengths of DocumentWorkspace at `workspace` from starts_BT
// (kernel_rows.inc). More documents than `slots`, or one of more than `longest` tokens, end the
// launch with an error.
struct DocumentTablesArgs {
  const int32_t* starts_BT = nullptr;
  AttentionDims dims{};
  int64_t slots = 0, longest = 0;
  DocumentWorkspace at;
};
void LaunchDocumentTables(const DocumentTablesArgs& args, void* workspace, cudaStream_t stream);

}  // namespace zeroplan::cuda
