#include <cstdint>
#include <vector>

#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {
namespace {

constexpr size_t kMostFilled = 4096;  // bytes; more is worth the driver's way
constexpr unsigned kThreads = 128;

template <typename T>
__global__ void FillKernel(T* data, T value, unsigned count) {
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) data[i] = value;
}

using Nodes = std::vector<cudaGraphNode_t>;

// The runtime's calls about edges changed their arguments with CUDA 13.
struct Edges {
  using Query = cudaError_t (*)(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t*);
#if CUDART_VERSION >= 13000
  static constexpr Query kBefore = cudaGraphNodeGetDependencies;
  static constexpr Query kAfter = cudaGraphNodeGetDependentNodes;
  static cudaError_t Add(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                         size_t count) {
    return cudaGraphAddDependencies(graph, from, to, nullptr, count);
  }
#else
  static constexpr Query kBefore = cudaGraphNodeGetDependencies_v2;
  static constexpr Query kAfter = cudaGraphNodeGetDependentNodes_v2;
  static cudaError_t Add(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                         size_t count) {
    return cudaGraphAddDependencies(graph, from, to, count);
  }
#endif

  // The nodes at the other ends. `plain`: false where an edge says more than "after that node".
  static Nodes Of(Query query, cudaGraphNode_t node, bool* plain) {
    size_t count = 0;
    ZEROPLAN_CUDA(query(node, nullptr, nullptr, &count));
    Nodes nodes(count);
    std::vector<cudaGraphEdgeData> data(count);
    if (count > 0) ZEROPLAN_CUDA(query(node, nodes.data(), data.data(), &count));
    for (const cudaGraphEdgeData& edge : data) {
      if (edge.from_port != 0 || edge.to_port != 0 || edge.type != 0) *plain = false;
    }
    return nodes;
  }
};

template <typename T>
cudaGraphNode_t AddFill(cudaGraph_t graph, const Nodes& after, const cudaMemsetParams& fill) {
  T* data = static_cast<T*>(fill.dst);
  auto value = static_cast<T>(fill.value);
  auto count = static_cast<unsigned>(fill.width);
  void* args[] = {&data, &value, &count};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(&FillKernel<T>);
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(count < kThreads ? (count + 31) / 32 * 32 : kThreads);
  kernel.kernelParams = args;
  cudaGraphNode_t node = nullptr;
  ZEROPLAN_CUDA(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &kernel));
  return node;
}

void ReplaceSmallFills(cudaGraph_t graph) {
  size_t count = 0;
  ZEROPLAN_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  Nodes nodes(count);
  if (count > 0) ZEROPLAN_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    ZEROPLAN_CUDA(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeMemset) continue;
    cudaMemsetParams fill = {};
    ZEROPLAN_CUDA(cudaGraphMemsetNodeGetParams(node, &fill));
    if (fill.height != 1 || fill.width * fill.elementSize > kMostFilled) continue;
    bool plain = true;
    const Nodes before = Edges::Of(Edges::kBefore, node, &plain);
    const Nodes after = Edges::Of(Edges::kAfter, node, &plain);
    if (!plain) continue;
    const cudaGraphNode_t kernel = fill.elementSize == 4   ? AddFill<uint32_t>(graph, before, fill)
                                   : fill.elementSize == 2 ? AddFill<uint16_t>(graph, before, fill)
                                                           : AddFill<uint8_t>(graph, before, fill);
    const Nodes from(after.size(), kernel);
    ZEROPLAN_CUDA(Edges::Add(graph, from.data(), after.data(), after.size()));
    ZEROPLAN_CUDA(cudaGraphDestroyNode(node));
  }
}

}  // namespace

void BeginCapture(cudaStream_t stream) {
  ZEROPLAN_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

CudaGraphExec EndCapture(cudaStream_t stream) {
  cudaGraph_t captured = nullptr;
  ZEROPLAN_CUDA(cudaStreamEndCapture(stream, &captured));
  const CudaGraph graph(captured);
  ReplaceSmallFills(captured);
  cudaGraphExec_t exec = nullptr;
  ZEROPLAN_CUDA(cudaGraphInstantiate(&exec, captured, 0));
  return CudaGraphExec(exec);
}

}  // namespace zeroplan
