// The only file that includes cuDNN's headers. Its functions are looked up in the library when it
// is opened; those of the CUDA runtime are the ones this program is linked with.
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"

#include "core/base/error.h"

#if ZEROPLAN_WITH_CUDNN

#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// The frontend looks functions up by dlopen and dlsym, called from this namespace without
// qualification: these come first. They hand out the runtime that is linked statically in place of
// a libcudart.so, which need not be there and might be another version.
namespace cudnn_frontend::detail {
namespace {

int linked_runtime = 0;  // its address stands for the library

void* dlopen(const char* name, int mode) {
  const std::string_view library = name;
  if (library.starts_with("libcudart.so.")) {
    const std::string version = std::to_string(CUDART_VERSION / 1000);
    return library.ends_with(version) ? &linked_runtime : nullptr;
  }
  return ::dlopen(name, mode);
}

void* dlsym(void* library, const char* name) {
  if (library != &linked_runtime) return ::dlsym(library, name);
    // What attention may call; for anything else the frontend throws an error that names it.
#define ZEROPLAN_RUNTIME_FUNCTION(function) {#function, reinterpret_cast<void*>(&::function)}
  static const std::pair<const char*, void*> kFunctions[] = {
      ZEROPLAN_RUNTIME_FUNCTION(cudaDeviceGetAttribute),
      ZEROPLAN_RUNTIME_FUNCTION(cudaDeviceSynchronize),
      ZEROPLAN_RUNTIME_FUNCTION(cudaGetDevice),
      ZEROPLAN_RUNTIME_FUNCTION(cudaGraphRetainUserObject),
      ZEROPLAN_RUNTIME_FUNCTION(cudaGetErrorString),
      ZEROPLAN_RUNTIME_FUNCTION(cudaGetLastError),
      ZEROPLAN_RUNTIME_FUNCTION(cudaMemcpyAsync),
      ZEROPLAN_RUNTIME_FUNCTION(cudaMemsetAsync),
      ZEROPLAN_RUNTIME_FUNCTION(cudaRuntimeGetVersion),
      ZEROPLAN_RUNTIME_FUNCTION(cudaStreamIsCapturing),
      ZEROPLAN_RUNTIME_FUNCTION(cudaStreamSynchronize),
      ZEROPLAN_RUNTIME_FUNCTION(cudaThreadExchangeStreamCaptureMode),
      ZEROPLAN_RUNTIME_FUNCTION(cudaUserObjectCreate),
      ZEROPLAN_RUNTIME_FUNCTION(cudaUserObjectRelease),
#if CUDART_VERSION >= 13000
      ZEROPLAN_RUNTIME_FUNCTION(cudaStreamGetCaptureInfo),
#else
      ZEROPLAN_RUNTIME_FUNCTION(cudaStreamGetCaptureInfo_v2),
#endif
#if CUDART_VERSION >= 12080
      ZEROPLAN_RUNTIME_FUNCTION(cudaGetDriverEntryPointByVersion),
#endif
  };
#undef ZEROPLAN_RUNTIME_FUNCTION
  for (const auto& [known, function] : kFunctions) {
    if (std::strcmp(known, name) == 0) return function;
  }
  return nullptr;
}

}  // namespace
}  // namespace cudnn_frontend::detail

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend asks for it; set once, by OpenLibrary
}

namespace zeroplan {
namespace {

namespace fe = cudnn_frontend;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

enum TensorId : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV };

// "" if cuDNN is there, else why not.
std::string OpenLibrary() {
  static const std::string failure = []() -> std::string {
    // Where the loader finds it, else where it was at build time.
    std::string why;
    for (const char* name : {"libcudnn.so.9", ZEROPLAN_CUDNN_AT_BUILD}) {
      fe::cudnn_dlhandle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (fe::cudnn_dlhandle != nullptr) return "";
      if (why.empty()) why = dlerror();
    }
    return why;
  }();
  return failure;
}

class Plan final : public SdpaPlan {
 public:
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t index = 0;  // of the plan within the graph's
  bool backward = false;
  std::unordered_map<int64_t, void*> pointers;  // by TensorId; kept, so that launches allocate none
};

// [B,heads,T,D] as it lies in memory where a token's row has `row` elements.
struct HeadsOfRows {
  int64_t heads, row;

  std::vector<int64_t> dim(const AttentionDims& s) const { return {s.B, heads, s.T, s.D}; }
  std::vector<int64_t> stride(const AttentionDims& s) const { return {s.T * row, s.D, row, 1}; }
};

TensorPtr HeadTensor(fe::graph::Graph& graph, const AttentionDims& s, TensorId id, const char* name,
                     const HeadsOfRows& heads) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(id)
                          .set_dim(heads.dim(s))
                          .set_stride(heads.stride(s)));
}

void DescribeOutput(const TensorPtr& tensor, const AttentionDims& s, TensorId id,
                    const HeadsOfRows& heads) {
  tensor->set_output(true).set_uid(id).set_dim(heads.dim(s)).set_stride(heads.stride(s));
}

std::shared_ptr<fe::graph::Graph> MakeGraph(const SdpaShape& shape) {
  const AttentionDims& s = shape.dims;
  const HeadsOfRows query_rows{s.H, shape.qkv_row}, key_rows{s.G, shape.qkv_row};
  const HeadsOfRows out_rows{s.H, shape.out_row};
  auto graph = std::make_shared<fe::graph::Graph>();
  graph
      ->set_io_data_type(shape.dtype == Dtype::kBF16 ? fe::DataType_t::BFLOAT16
                                                     : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.D));
  const auto q = HeadTensor(*graph, s, kQ, "q", query_rows);
  const auto k = HeadTensor(*graph, s, kK, "k", key_rows);
  const auto v = HeadTensor(*graph, s, kV, "v", key_rows);
  const std::vector<int64_t> lse_dim = {s.B, s.H, s.T, 1}, lse_stride = {s.H * s.T, s.T, 1, 1};
  if (!shape.backward) {
    auto [out, lse] = graph->sdpa(q, k, v,
                                  fe::graph::SDPA_attributes()
                                      .set_name("attention")
                                      .set_generate_stats(true)
                                      .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                      .set_diagonal_band_right_bound(0)
                                      .set_attn_scale(scale));
    DescribeOutput(out, s, kOut, out_rows);
    lse->set_output(true).set_uid(kLse).set_data_type(fe::DataType_t::FLOAT);
    lse->set_dim(lse_dim).set_stride(lse_stride);
    return graph;
  }
  const auto out = HeadTensor(*graph, s, kOut, "out", out_rows);
  const auto dout = HeadTensor(*graph, s, kDOut, "dout", out_rows);
  const auto lse = graph->tensor(fe::graph::Tensor_attributes()
                                     .set_name("lse")
                                     .set_uid(kLse)
                                     .set_dim(lse_dim)
                                     .set_stride(lse_stride)
                                     .set_data_type(fe::DataType_t::FLOAT));
  auto [dq, dk, dv] =
      graph->sdpa_backward(q, k, v, out, dout, lse,
                           fe::graph::SDPA_backward_attributes()
                               .set_name("attention_backward")
                               .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                               .set_diagonal_band_right_bound(0)
                               .set_attn_scale(scale)
                               .set_deterministic_algorithm(shape.deterministic));
  DescribeOutput(dq, s, kDQ, query_rows);
  DescribeOutput(dk, s, kDK, key_rows);
  DescribeOutput(dv, s, kDV, key_rows);
  return graph;
}

class Library final : public SdpaLibrary {
 public:
  explicit Library(cudnnHandle_t handle) : handle_(handle) {}
  ~Library() override { fe::detail::destroy_handle(handle_); }

  Built Build(const SdpaShape& shape, uint64_t workspace_bytes, bool favourite_only) override {
    try {
      return TryBuild(shape, workspace_bytes, favourite_only);
    } catch (const std::exception& error) {  // the frontend throws where a function is missing
      return {.why = error.what()};
    }
  }

  void Run(SdpaPlan& sdpa_plan, const SdpaPointers& p, void* workspace,
           cudaStream_t stream) override {
    auto& plan = static_cast<Plan&>(sdpa_plan);
    if (stream != stream_ || !has_stream_) {
      Check(fe::detail::set_stream(handle_, stream), "setting the stream");
      stream_ = stream;
      has_stream_ = true;
    }
    auto& to = plan.pointers;
    to[kQ] = p.q, to[kK] = p.k, to[kV] = p.v;
    to[kOut] = p.out, to[kLse] = p.lse;
    if (plan.backward) {
      to[kDOut] = p.dout;
      to[kDQ] = p.dq, to[kDK] = p.dk, to[kDV] = p.dv;
    }
    fe::error_t status = plan.graph->execute_plan_at_index(handle_, to, workspace, plan.index);
    if (status.is_bad()) ThrowRuntime("cuDNN failed at attention: {}", status.get_message());
  }

 private:
  static void Check(cudnnStatus_t status, std::string_view what) {
    if (status != CUDNN_STATUS_SUCCESS) {
      ThrowRuntime("cuDNN failed at {}: {}", what, fe::detail::get_error_string(status));
    }
  }

  Built TryBuild(const SdpaShape& shape, uint64_t workspace_bytes, bool favourite_only) {
    auto plan = std::make_unique<Plan>();
    plan->graph = MakeGraph(shape);
    plan->backward = shape.backward;
    fe::graph::Graph& graph = *plan->graph;
    fe::error_t status = graph.validate();
    if (status.is_good()) status = graph.build_operation_graph(handle_);
    if (status.is_good()) {
      status = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    }
    if (status.is_bad()) return {.why = status.get_message()};

    Built built;
    built.why = "the library has no plan";
    for (int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
      if (status = graph.build_plan_at_index(i); status.is_bad()) {
        if (built.least_bytes == 0) built.why = status.get_message();
        continue;
      }
      int64_t size = 0;
      if (status = graph.get_workspace_size_plan_at_index(i, size); status.is_bad()) continue;
      const auto bytes = static_cast<uint64_t>(size);
      if (built.favourite_bytes == 0) built.favourite_bytes = bytes;
      if (bytes <= workspace_bytes) {
        plan->index = i;
        plan->workspace_bytes = bytes;
        built.plan = std::move(plan);
        return built;
      }
      if (built.least_bytes == 0 || bytes < built.least_bytes) built.least_bytes = bytes;
      built.why = "its plans need more workspace";
      if (favourite_only) break;
    }
    return built;
  }

  cudnnHandle_t handle_;
  cudaStream_t stream_ = nullptr;
  bool has_stream_ = false;
};

}  // namespace

std::unique_ptr<SdpaLibrary> SdpaLibrary::Open(std::string* why) {
  *why = OpenLibrary();
  if (!why->empty()) return nullptr;
  try {
    cudnnHandle_t handle = nullptr;
    const cudnnStatus_t status = fe::detail::create_handle(&handle);
    if (status == CUDNN_STATUS_SUCCESS) return std::make_unique<Library>(handle);
    *why = fe::detail::get_error_string(status);
  } catch (const std::exception& error) {
    *why = error.what();
  }
  return nullptr;
}

}  // namespace zeroplan

#else  // ZEROPLAN_WITH_CUDNN

namespace zeroplan {

std::unique_ptr<SdpaLibrary> SdpaLibrary::Open(std::string* why) {
  *why = "this program was built without cuDNN";
  return nullptr;
}

}  // namespace zeroplan

#endif  // ZEROPLAN_WITH_CUDNN
