// Pass 1: what every stage computes, over whole parameters and gradients that persist.
#include <cstddef>
#include <utility>
#include <vector>

#include "core/lowering/graph_builder.h"
#include "core/lowering/passes.h"
#include "core/model/model_family.h"
#include "core/program/step_state.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

BufferId AddPersistent(Program& p, const char* label, Role role, Dtype dtype, uint64_t bytes,
                       Space space) {
  const BufferId id = AddBuffer(p, label, role, dtype, bytes);
  p.buffers[id].persistent = true;
  p.buffers[id].space = space;
  return id;
}

void AddUnitBuffers(Program& p, bool grads) {
  const Dtype grad_dtype = FullGradDtype(p.setup);
  p.buffers.reserve(p.layout.units.size() * 8 + static_cast<size_t>(p.model.layers) * 48 + 256);
  for (size_t u = 0; u < p.layout.units.size(); ++u) {
    const Unit& unit = p.layout.units[u];
    const Dtype dtype = unit.ParamDtype(p.setup.precision.dtype);
    BufferId id = AddPersistent(p, "params", Role::kParamFull, dtype,
                                StoredBytes(dtype, unit.padded_elements), Space::kDevice);
    p.buffers[id].memory_class = MemoryClass::kParams;
    p.buffers[id].unit = static_cast<int32_t>(u);
    if (!grads || !unit.trainable) continue;
    id = AddPersistent(p, "grads", Role::kGradFull, grad_dtype,
                       unit.padded_elements * DtypeBytes(grad_dtype), Space::kDevice);
    p.buffers[id].memory_class = MemoryClass::kGrads;
    p.buffers[id].unit = static_cast<int32_t>(u);
  }
}

// On the compute stream: the copy stream may still have the last update's parameters before it.
void CopyTokens(Program& p, Section section) {
  Emitter emit(p, p.section(section));
  emit.Tag(Phase::kForward, -2);
  emit.CopyTo(Whole(p, p.tokens_host_buffer), Whole(p, p.tokens_buffer), Stream::kCompute);
}

// A buffer a layer; what is in them before the first prompt is nothing.
std::vector<BufferId> AddCaches(Program& p) {
  const ModelSpec& model = p.model;
  const Dtype dtype = p.setup.precision.dtype;
  const auto bytes =
      static_cast<uint64_t>(p.setup.batch.seq_len * 2 * model.KvHeads() * model.HeadSize()) *
      DtypeBytes(dtype);
  std::vector<BufferId> caches;
  Emitter emit(p, p.section(Section::kInit));
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const BufferId id =
        AddPersistent(p, "keys_values", Role::kKeysValues, dtype, bytes, Space::kDevice);
    p.buffers[id].memory_class = MemoryClass::kActivations;
    p.buffers[id].layer = static_cast<int32_t>(layer);
    emit.Tag(Phase::kInit, static_cast<int>(layer));
    emit.Launch(KernelId::kFill, {static_cast<int64_t>(bytes)}, kNoFlags, {Whole(p, id)});
    caches.push_back(id);
  }
  return caches;
}

// The embedding and all layers; returns the last one's output.
Value Forward(GraphBuilder& builder, ModelGraph& graph) {
  builder.At(Phase::kForward, kEmbeddingLayer);
  Value x_MC = graph.Embed();
  const auto layers = static_cast<int>(builder.model().layers);
  for (int layer = 0; layer < layers; ++layer) {
    builder.At(Phase::kForward, layer);
    x_MC = graph.Layer(layer, x_MC);
  }
  builder.At(Phase::kForward, layers);
  return x_MC;
}

void ForwardBackward(GraphBuilder& builder, ModelGraph& graph) {
  const Value x_MC = Forward(builder, graph);
  builder.BalanceExperts();
  const Value y_MC = graph.Final(x_MC);
  const Value dy_MC = builder.HeadLoss(y_MC, graph.head(), true);
  const auto layers = static_cast<int>(builder.model().layers);
  builder.At(Phase::kBackward, layers);
  const Value dx_MC = graph.FinalBackward(dy_MC);
  for (int layer = layers - 1; layer >= 0; --layer) {
    builder.At(Phase::kBackward, layer);
    graph.LayerBackward(layer, dx_MC);
  }
  builder.At(Phase::kBackward, kEmbeddingLayer);
  graph.EmbedBackward(dx_MC);
}

void CopyPosition(Program& p, Section section) {
  Emitter emit(p, p.section(section));
  const uint64_t at = offsetof(StepState, position);
  emit.Tag(Phase::kForward, -2);
  emit.CopyTo({p.state_host_buffer, at, 4, 0}, {p.state_buffer, at, 4, 0});
}

// One token, the first of the host's, at StepState::position.
void BuildDecode(Program& p, std::vector<BufferId> caches, const LowerOptions& options) {
  Emitter emit(p, p.section(Section::kDecode));
  emit.Tag(Phase::kForward, -2);
  emit.CopyTo({p.tokens_host_buffer, 0, 4, 0}, {p.tokens_buffer, 0, 4, 0}, Stream::kCompute);
  CopyPosition(p, Section::kDecode);
  GraphBuilder builder(p, Section::kDecode, 1, options);
  builder.KeepKeysValues(std::move(caches));
  const auto graph = p.model.family->MakeGraph(builder);
  const Value x_1C = Forward(builder, *graph);
  builder.RowLogits(graph->Final(x_1C), graph->head(), p.logits_host_buffer);
}

// Persistent buffers of any purpose.
void AddInputs(Program& p, const LowerOptions& options) {
  const bool train = options.purpose == Purpose::kTrain;
  p.document_borders = train && options.document_borders;
  p.own_documents = p.document_borders && options.own_documents;
  if (p.document_borders) p.visible_keys = options.visible_keys;
  const BatchSpec& batch = p.setup.batch;
  for (const ParamTensor& tensor : *p.layout.tensors) {
    if (tensor.tokens.empty()) continue;
    const bool of_embedding = tensor.layer == kEmbeddingLayer;
    if (of_embedding) p.embedding_rows = tensor.shape[0];
    if (!of_embedding || p.model.tied_head) p.head_rows = tensor.shape[0];
  }
  const int64_t positions =
      (p.embedding_rows > 0 ? 3 : 2) * batch.local_seq() + (p.document_borders ? batch.seq_len : 0);
  const uint64_t token_bytes =
      static_cast<uint64_t>(batch.micro_batch * positions) * 4 + p.tail_bytes();
  p.state_buffer =
      AddPersistent(p, "step_state", Role::kState, Dtype::kU8, sizeof(StepState), Space::kDevice);
  p.state_host_buffer = AddPersistent(p, "step_state", Role::kStateHost, Dtype::kU8,
                                      sizeof(StepState), Space::kPinned);
  p.tokens_buffer =
      AddPersistent(p, "tokens", Role::kTokens, Dtype::kI32, token_bytes, Space::kDevice);
  p.tokens_host_buffer =
      AddPersistent(p, "tokens", Role::kTokensHost, Dtype::kI32, token_bytes, Space::kPinned);
  if (train && p.model.experts > 0) {
    const uint64_t totals = 3 + static_cast<uint64_t>(ExpertLayers(p.model) * p.model.experts);
    const uint64_t bytes = totals * DtypeBytes(Dtype::kF64);
    p.router_totals_buffer =
        AddPersistent(p, "router_totals", Role::kLoss, Dtype::kF64, bytes, Space::kDevice);
    p.router_totals_host_buffer =
        AddPersistent(p, "router_totals", Role::kStaging, Dtype::kF64, bytes, Space::kPinned);
  }
  AddUnitBuffers(p, train);
}

void BuildEval(Program& p, const LowerOptions& options) {
  CopyTokens(p, Section::kEval);
  GraphBuilder eval(p, Section::kEval, p.setup.batch.micro_batch, options);
  const auto graph = p.model.family->MakeGraph(eval);
  eval.HeadLoss(graph->Final(Forward(eval, *graph)), graph->head(), false);
  Emitter emit(p, p.section(Section::kEval));
  emit.Tag(Phase::kForward, -2);
  const uint64_t at = offsetof(StepState, loss_sum);
  if (p.setup.batch.world_size > 1) emit.SumScalars({p.state_buffer, at, 8, 0});
  emit.CopyTo({p.state_buffer, at, 8, 0}, {p.state_host_buffer, at, 8, 0});
}

void BuildGenerate(Program& p, const LowerOptions& options) {
  p.logits_host_buffer = AddPersistent(
      p, "logits", Role::kStaging, Dtype::kF32,
      static_cast<uint64_t>(p.model.padded_vocab) * DtypeBytes(Dtype::kF32), Space::kPinned);
  std::vector<BufferId> caches;
  if (options.keep_keys_values) caches = AddCaches(p);
  CopyTokens(p, Section::kGenerate);
  CopyPosition(p, Section::kGenerate);
  GraphBuilder builder(p, Section::kGenerate, p.setup.batch.micro_batch, options);
  builder.KeepKeysValues(caches);
  const auto graph = p.model.family->MakeGraph(builder);
  const Value row_1C = builder.SelectRow(Forward(builder, *graph), "row");
  builder.RowLogits(graph->Final(row_1C), graph->head(), p.logits_host_buffer);
  if (options.keep_keys_values) BuildDecode(p, std::move(caches), options);
}

void BuildStep(Program& p, const LowerOptions& options) {
  p.section(Section::kMicroStep).reserve(static_cast<size_t>(p.model.layers) * 96 + 128);
  p.refs.reserve(static_cast<size_t>(p.model.layers) * 360 + 512);
  CopyTokens(p, Section::kMicroStep);
  GraphBuilder builder(p, Section::kMicroStep, p.setup.batch.micro_batch, options);
  ForwardBackward(builder, *p.model.family->MakeGraph(builder));
}

}  // namespace

Program BuildCompute(Program p, const LowerOptions& options, Extent extent) {
  AddInputs(p, options);
  if (options.purpose == Purpose::kTrain) {
    BuildStep(p, options);
    if (extent != Extent::kWalkStep) BuildEval(p, options);
  } else {
    BuildGenerate(p, options);
  }
  return p;
}

}  // namespace zeroplan
