// The only file that includes cuDNN's headers. Its functions are looked up in the library when it
// is opened; those of the CUDA runtime are the ones this program is linked with.
#include "executor/kernels/cuda/attention/cudnn_sdpa.h"

#include "core/base/error.h"
#include "executor/device/cuda/cuda_libraries.h"

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

enum TensorId : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kQkvOffsets,
  kOutOffsets,
  kLseOffsets,
  kKeyOffsets,
  kLengths
};

// "" if cuDNN is there, else why not.
std::string OpenLibrary() {
  const OpenedLibrary& opened = OpenCudaLibrary(CudaLibrary::kCudnn);
  fe::cudnn_dlhandle = opened.handle;
  return opened.why;
}

class Plan final : public SdpaPlan {
 public:
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t index = 0;  // of the plan within the graph's
  bool backward = false, ragged = false;
  std::unordered_map<int64_t, void*> pointers;  // by TensorId; kept, so that launches allocate none
};

// Describes a launch to the library. Its sequences are the batch's, or the documents of a ragged
// batch.
class GraphMaker {
 public:
  explicit GraphMaker(const SdpaShape& shape) : shape_(shape), s_(shape.dims) {
    (*graph_)
        .set_io_data_type(shape.dtype == Dtype::kBF16 ? fe::DataType_t::BFLOAT16
                                                      : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (!ragged()) return;
    const int64_t ends = shape.documents + 1;
    qkv_offsets_ = Index(kQkvOffsets, "qkv_offsets", ends, fe::DataType_t::INT64);
    out_offsets_ = Index(kOutOffsets, "out_offsets", ends, fe::DataType_t::INT64);
    lse_offsets_ = Index(kLseOffsets, "lse_offsets", ends, fe::DataType_t::INT64);
    lengths_ = Index(kLengths, "lengths", shape.documents, fe::DataType_t::INT32);
    if (shape.backward && s_.G < s_.H) {
      key_offsets_ = Index(kKeyOffsets, "key_offsets", ends, fe::DataType_t::INT64);
    }
  }

  std::shared_ptr<fe::graph::Graph> Make() {
    const auto q = Input(kQ, "q", Queries());
    const auto k = Input(kK, "k", Keys()), v = Input(kV, "v", Keys());
    if (!shape_.backward) {
      auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
      SetMask(attributes);
      auto [out, lse] = graph_->sdpa(q, k, v, attributes);
      Describe(*out, kOut, Outs());
      DescribeLse(lse->set_output(true));
      return graph_;
    }
    const auto out = Input(kOut, "out", Outs()), dout = Input(kDOut, "dout", Outs());
    fe::graph::Tensor_attributes lse;
    DescribeLse(lse.set_name("lse"));
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention_backward")
                          .set_deterministic_algorithm(shape_.deterministic);
    SetMask(attributes);
    if (ragged()) {
      attributes.set_max_total_seq_len_q(s_.B * s_.T).set_max_total_seq_len_kv(s_.B * s_.T);
    }
    auto [dq, dk, dv] = graph_->sdpa_backward(q, k, v, out, dout, graph_->tensor(lse), attributes);
    Describe(*dq, kDQ, Queries());
    Describe(*dk, kDK, Keys());
    Describe(*dv, kDV, Keys());
    return graph_;
  }

 private:
  // Heads of D elements in a token's row of so many; where documents begin in such rows.
  struct HeadsOfRows {
    int64_t heads, row;
    TensorPtr offsets;
  };

  bool ragged() const { return shape_.documents > 0; }
  int64_t sequences() const { return ragged() ? shape_.documents : s_.B; }
  int64_t tokens() const { return ragged() ? shape_.longest : s_.T; }
  HeadsOfRows Queries() const { return {s_.H, shape_.qkv_row, qkv_offsets_}; }
  // Backward, shared heads: by themselves. The library sums up the gradients of every query head as
  // far apart as rows of keys are, where these begin.
  HeadsOfRows Keys() const {
    return key_offsets_ == nullptr ? HeadsOfRows{s_.G, shape_.qkv_row, qkv_offsets_}
                                   : HeadsOfRows{s_.G, s_.G * s_.D, key_offsets_};
  }
  HeadsOfRows Outs() const { return {s_.H, shape_.out_row, out_offsets_}; }

  template <typename Attributes>
  void SetMask(Attributes& attributes) const {
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0)
        .set_attn_scale(1.0f / std::sqrt(static_cast<float>(s_.D)));
    if (ragged()) {
      attributes.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    }
  }
  TensorPtr Index(TensorId id, const char* name, int64_t n, fe::DataType_t type) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(id)
                              .set_dim({n, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(type));
  }
  // [sequences, heads, tokens, D] as it lies in memory.
  void Place(fe::graph::Tensor_attributes& tensor, TensorId id, const HeadsOfRows& rows) const {
    tensor.set_uid(id)
        .set_dim({sequences(), rows.heads, tokens(), s_.D})
        .set_stride({tokens() * rows.row, s_.D, rows.row, 1});
    if (rows.offsets != nullptr) tensor.set_ragged_offset(rows.offsets);
  }
  TensorPtr Input(TensorId id, const char* name, const HeadsOfRows& rows) {
    fe::graph::Tensor_attributes tensor;
    Place(tensor.set_name(name), id, rows);
    return graph_->tensor(tensor);
  }
  void Describe(fe::graph::Tensor_attributes& output, TensorId id, const HeadsOfRows& rows) const {
    Place(output.set_output(true), id, rows);
  }
  void DescribeLse(fe::graph::Tensor_attributes& lse) const {
    const int64_t H = s_.H, T = tokens();
    lse.set_uid(kLse).set_data_type(fe::DataType_t::FLOAT).set_dim({sequences(), H, T, 1});
    if (ragged()) {
      lse.set_stride({H * T, 1, H, 1}).set_ragged_offset(lse_offsets_);
    } else {
      lse.set_stride({H * T, T, 1, 1});
    }
  }

  const SdpaShape& shape_;
  const AttentionDims& s_;
  std::shared_ptr<fe::graph::Graph> graph_ = std::make_shared<fe::graph::Graph>();
  TensorPtr qkv_offsets_, out_offsets_, lse_offsets_, key_offsets_, lengths_;
};

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
    if (plan.ragged) {
      to[kQkvOffsets] = p.qkv_offsets, to[kOutOffsets] = p.out_offsets;
      to[kLseOffsets] = p.lse_offsets, to[kLengths] = p.lengths;
      if (p.key_offsets != nullptr) to[kKeyOffsets] = p.key_offsets;
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
    plan->graph = GraphMaker(shape).Make();
    plan->ragged = shape.documents > 0;
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

CudnnLibrary FindCudnn() {
  CudnnLibrary library;
  library.at_build = CUDNN_VERSION;
  library.why = OpenLibrary();
  library.version = LibraryVersion(CudaLibrary::kCudnn);
  return library;
}

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

CudnnLibrary FindCudnn() { return {.why = "this program was built without cuDNN"}; }

std::unique_ptr<SdpaLibrary> SdpaLibrary::Open(std::string* why) {
  *why = "this program was built without cuDNN";
  return nullptr;
}

}  // namespace zeroplan

#endif  // ZEROPLAN_WITH_CUDNN
