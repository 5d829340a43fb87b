// One block: each thread looks at neighbouring positions, and a scan over the block numbers the
// documents that begin there.
#include <cub/block/block_scan.cuh>

#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 1024;

struct Tables {
  int64_t *qkv, *out, *lse, *keys;
  int32_t* lengths;
};

__global__ void __launch_bounds__(kThreads)
    TablesKernel(const int32_t* starts_BT, Tables tables, AttentionDims dims, int64_t slots,
                 int64_t longest) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  const int64_t rows = dims.B * dims.T, share = (rows + kThreads - 1) / kThreads;
  const int64_t begin = threadIdx.x * share;
  const int64_t end = begin + share < rows ? begin + share : rows;
  const auto starts_one = [&](int64_t m) { return starts_BT[m] == m % dims.T; };
  int mine = 0, before = 0, documents = 0;
  for (int64_t m = begin; m < end; ++m) mine += starts_one(m) ? 1 : 0;
  Scan(scan_storage).ExclusiveSum(mine, before, documents);
  if (documents > slots) {
    if (threadIdx.x == 0) FailIndex("documents, past the most of a batch,", documents, 0, slots);
    return;
  }
  const auto put = [&](int64_t slot, int64_t m) {
    tables.qkv[slot] = m * dims.QkvRow();
    tables.out[slot] = m * dims.OutRow();
    tables.lse[slot] = m * dims.H;
    tables.keys[slot] = m * dims.G * dims.D;
  };
  for (int64_t m = begin; m < end; ++m) {
    if (starts_one(m)) put(before++, m);
  }
  for (int64_t slot = documents + threadIdx.x; slot <= slots; slot += kThreads) put(slot, rows);
  __syncthreads();
  for (int64_t slot = threadIdx.x; slot < slots; slot += kThreads) {
    const int64_t length = (tables.lse[slot + 1] - tables.lse[slot]) / dims.H;
    if (length > longest) FailIndex("length of a document", length, slot, longest + 1);
    tables.lengths[slot] = static_cast<int32_t>(length);
  }
}

}  // namespace

void LaunchDocumentTables(const DocumentTablesArgs& args, void* workspace, cudaStream_t stream) {
  char* const base = static_cast<char*>(workspace);
  const auto offsets = [&](uint64_t at) { return reinterpret_cast<int64_t*>(base + at); };
  const Tables tables{offsets(args.at.qkv_offsets), offsets(args.at.out_offsets),
                      offsets(args.at.lse_offsets), offsets(args.at.key_offsets),
                      reinterpret_cast<int32_t*>(base + args.at.lengths)};
  TablesKernel<<<1, kThreads, 0, stream>>>(args.starts_BT, tables, args.dims, args.slots,
                                           args.longest);
}

}  // namespace zeroplan::cuda
