// Attention on cuDNN's, our own fused or our own plain kernels. core/program/attention_path.h has
// the choice.
//
// Legend: B micro-batch, T sequence, H heads of queries, D head size, N a row of qkv.
#include "core/program/attention_path.h"
#include "executor/kernels/attention_dims.h"
#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/cuda/library_check.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cuda {

namespace {

AttentionDims DimsOf(const KernelCall& call) {
  const AttentionDims dims = AttentionDimsOf(call);
  if (dims.D > kMostPlainHead) {
    ThrowRuntime("attention on plain kernels takes heads of at most {} channels, not {}",
                 kMostPlainHead, dims.D);
  }
  return dims;
}

void Check(const KernelCall& call, cudaError_t error) {
  if (error != cudaSuccess) {
    ThrowRuntime("{}: the GPU has too little shared memory: {}", KernelInfo(call.id).name,
                 cudaGetErrorString(error));
  }
  CheckLaunched(call);
}

}  // namespace

void PlainAttentionForward(const KernelCall& call) {
  Check(call,
        LaunchPlainAttentionForward(DimsOf(call), Floats(call, 0), Arg(call, 4).as<const int32_t>(),
                                    Floats(call, 1), Arg(call, 2).as<float>(), LaunchStream(call)));
}

void PlainAttentionBackward(const KernelCall& call) {
  Check(call, LaunchPlainAttentionBackward(DimsOf(call), Floats(call, 0), Floats(call, 1),
                                           Floats(call, 2), Arg(call, 3).as<const float>(),
                                           Arg(call, 6).as<const int32_t>(), Floats(call, 4),
                                           LaunchStream(call)));
}

namespace {

OwnAttention OwnOf(const KernelCall& call, const KernelArg& qkv, const KernelArg& starts) {
  return {.dims = AttentionDimsOf(call),
          .dtype = qkv.dtype,
          .qkv_BTN = qkv.data,
          .starts_BT = Present(starts) ? starts.as<const int32_t>() : nullptr,
          .shared_bytes = call.context.cuda->attention->shared_bytes()};
}

}  // namespace

void OwnAttentionForward(const KernelCall& call) {
  Check(call, LaunchOwnAttentionForward(OwnOf(call, Arg(call, 0), Arg(call, 4)), Arg(call, 1).data,
                                        Arg(call, 2).as<float>(), LaunchStream(call)));
}

void OwnAttentionBackward(const KernelCall& call) {
  const auto [B, T, H, G, D] = AttentionDimsOf(call);
  const KernelArg& workspace = Arg(call, 5);
  const bool deterministic = call.context.cuda->attention->deterministic();
  const uint64_t needed = OwnAttentionWorkspaceOf({B, T, H, G, D}).bytes;
  if (!Present(workspace) || workspace.bytes < needed) {
    ThrowRuntime("{}: {} bytes of workspace, own kernels need {}", KernelInfo(call.id).name,
                 Present(workspace) ? workspace.bytes : 0, needed);
  }
  Check(call, LaunchOwnAttentionBackward(OwnOf(call, Arg(call, 1), Arg(call, 6)),
                                         {.dout_BTHD = Arg(call, 0).data,
                                          .out_BTHD = Arg(call, 2).data,
                                          .lse_BHT = Arg(call, 3).as<const float>(),
                                          .dqkv_BTN = Arg(call, 4).data,
                                          .workspace = workspace.data,
                                          .deterministic = deterministic},
                                         LaunchStream(call)));
}

namespace {

// Decides a launch's kernels.
struct Wanted {
  Dtype dtype;
  bool backward;
  const KernelArg &workspace, &starts;

  uint64_t bytes() const { return Present(workspace) ? workspace.bytes : 0; }
};

// qkv_BTN starts_BT? -> out_BTHD lse_BHT [workspace]. Tensors of several dtypes are for the plain
// kernels.
Wanted WantedForward(const KernelCall& call) {
  const bool alike = Arg(call, 0).dtype == Arg(call, 1).dtype;
  return {alike ? Arg(call, 0).dtype : Dtype::kF32, false, Arg(call, 3), Arg(call, 4)};
}

// dout_BTHD qkv_BTN out_BTHD lse_BHT starts_BT? -> dqkv_BTN [workspace].
Wanted WantedBackward(const KernelCall& call) {
  const Dtype dtype = Arg(call, 1).dtype;
  const bool alike =
      Arg(call, 0).dtype == dtype && Arg(call, 2).dtype == dtype && Arg(call, 4).dtype == dtype;
  return {alike ? dtype : Dtype::kF32, true, Arg(call, 5), Arg(call, 6)};
}

SdpaParts Find(const KernelCall& call, const Wanted& wanted) {
  return call.context.cuda->attention->Find(AttentionDimsOf(call), wanted.dtype, wanted.backward,
                                            wanted.bytes(), call.context.rank == 0);
}

SdpaDocuments FindDocuments(const KernelCall& call, const Wanted& wanted) {
  return call.context.cuda->attention->FindDocuments(
      AttentionDimsOf(call), wanted.dtype, wanted.backward, wanted.bytes(), call.context.rank == 0);
}

struct Tensors {
  const KernelArg &qkv, &out, &lse;
  const KernelArg &dout, &dqkv;  // of the backward pass
};

// Null where the argument is absent.
void* At(const KernelArg& arg, int64_t element) {
  return Present(arg) ? ElementAt(arg, element) : nullptr;
}

void RunParts(const KernelCall& call, const SdpaParts& parts, const Tensors& t,
              const KernelArg& workspace) {
  const AttentionDims dims = AttentionDimsOf(call);
  CudaLaunch& cuda = *call.context.cuda;
  for (int64_t b = 0; b < dims.B; b += parts.part.sequences) {
    for (int64_t g = 0; g < dims.G; g += parts.part.key_heads) {
      const int64_t h = g * dims.Sharing(), row = b * dims.T * dims.QkvRow();
      const int64_t q = row + dims.QueryColumn(h), k = row + dims.KeyColumn(g);
      const int64_t v = row + dims.ValueColumn(g), out = b * dims.T * dims.OutRow() + h * dims.D;
      cuda.attention->library().Run(*parts.plan,
                                    {.q = At(t.qkv, q),
                                     .k = At(t.qkv, k),
                                     .v = At(t.qkv, v),
                                     .out = At(t.out, out),
                                     .lse = At(t.lse, (b * dims.H + h) * dims.T),
                                     .dout = At(t.dout, out),
                                     .dq = At(t.dqkv, q),
                                     .dk = At(t.dqkv, k),
                                     .dv = At(t.dqkv, v)},
                                    workspace.data, cuda.stream);
    }
  }
}

// The columns of keys or values in rows of so many elements.
struct KeyRows {
  void* data;
  int64_t row;
};
void CopyKeys(const KernelCall& call, const KeyRows& from, const KeyRows& to) {
  const AttentionDims dims = AttentionDimsOf(call);
  const auto bytes = [](int64_t elements) { return static_cast<size_t>(elements) * 2; };
  CheckRuntimeCall(cudaMemcpy2DAsync(to.data, bytes(to.row), from.data, bytes(from.row),
                                     bytes(dims.G * dims.D), static_cast<size_t>(dims.B * dims.T),
                                     cudaMemcpyDeviceToDevice, call.context.cuda->stream),
                   "copying keys");
}

void RunDocuments(const KernelCall& call, const SdpaDocuments& documents, const Wanted& wanted,
                  const Tensors& t) {
  const AttentionDims dims = AttentionDimsOf(call);
  CudaLaunch& cuda = *call.context.cuda;
  const DocumentWorkspace& at = documents.at;
  LaunchDocumentTables({.starts_BT = wanted.starts.as<const int32_t>(),
                        .dims = dims,
                        .slots = documents.slots,
                        .longest = documents.longest,
                        .at = at},
                       wanted.workspace.data, cuda.stream);
  CheckKernelLaunch("finding documents");
  const auto scratch = [&](uint64_t offset) {
    return static_cast<void*>(wanted.workspace.as<char>() + offset);
  };
  SdpaPointers pointers{.q = t.qkv.data,
                        .k = At(t.qkv, dims.KeyColumn(0)),
                        .v = At(t.qkv, dims.ValueColumn(0)),
                        .out = t.out.data,
                        .lse = t.lse.data,
                        .dout = t.dout.data,
                        .dq = t.dqkv.data,
                        .dk = At(t.dqkv, dims.KeyColumn(0)),
                        .dv = At(t.dqkv, dims.ValueColumn(0)),
                        .qkv_offsets = scratch(at.qkv_offsets),
                        .out_offsets = scratch(at.out_offsets),
                        .lse_offsets = scratch(at.lse_offsets),
                        .lengths = scratch(at.lengths)};
  SdpaLibrary& library = cuda.attention->library();
  if (!wanted.backward || dims.G == dims.H) {
    library.Run(*documents.plan, pointers, scratch(at.library), cuda.stream);
    return;
  }
  const int64_t row = dims.QkvRow(), key_row = dims.G * dims.D;
  const KeyRows keys{scratch(at.keys), key_row}, values{scratch(at.values), key_row};
  const KeyRows dk{scratch(at.dk), key_row}, dv{scratch(at.dv), key_row};
  CopyKeys(call, {pointers.k, row}, keys);
  CopyKeys(call, {pointers.v, row}, values);
  const KeyRows to_dk{pointers.dk, row}, to_dv{pointers.dv, row};
  pointers.k = keys.data, pointers.v = values.data;
  pointers.dk = dk.data, pointers.dv = dv.data;
  pointers.key_offsets = scratch(at.key_offsets);
  library.Run(*documents.plan, pointers, scratch(at.library), cuda.stream);
  CopyKeys(call, dk, to_dk);
  CopyKeys(call, dv, to_dv);
}

using OurPass = void (*)(const KernelCall&);

void RunPass(const KernelCall& call, const Wanted& wanted, const Tensors& tensors, OurPass own,
             OurPass plain) {
  const bool documents = Present(wanted.starts);
  const SdpaDocuments ragged = documents ? FindDocuments(call, wanted) : SdpaDocuments{};
  const SdpaParts parts = documents ? SdpaParts{} : Find(call, wanted);
  switch (documents ? ragged.kernels : parts.kernels) {
    case AttentionKernels::kPlain:
      return plain(call);
    case AttentionKernels::kOwn:
      return own(call);
    case AttentionKernels::kLibrary:
      return documents ? RunDocuments(call, ragged, wanted, tensors)
                       : RunParts(call, parts, tensors, wanted.workspace);
  }
}

// Building a plan compiles kernels, which takes seconds.
void Prepare(const KernelCall& call, const Wanted& wanted) {
  if (Present(wanted.starts)) {
    FindDocuments(call, wanted);
  } else {
    Find(call, wanted);
  }
}

}  // namespace

void AttentionForward(const KernelCall& call) {
  RunPass(call, WantedForward(call), {Arg(call, 0), Arg(call, 1), Arg(call, 2), kAbsent, kAbsent},
          OwnAttentionForward, PlainAttentionForward);
}

void AttentionBackward(const KernelCall& call) {
  RunPass(call, WantedBackward(call),
          {Arg(call, 1), Arg(call, 2), Arg(call, 3), Arg(call, 0), Arg(call, 4)},
          OwnAttentionBackward, PlainAttentionBackward);
}

void PrepareAttentionForward(const KernelCall& call) { Prepare(call, WantedForward(call)); }
void PrepareAttentionBackward(const KernelCall& call) { Prepare(call, WantedBackward(call)); }

}  // namespace zeroplan::cuda
