// Pass 1: what every stage computes, over whole parameters and gradients that persist.
#include <cstddef>

#include "core/config/setup_facts.h"
#include "core/lowering/gpt2_graph.h"
#include "core/lowering/passes.h"
#include "core/program/step_state.h"

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
  const Dtype dtype = p.setup.precision.dtype;
  const Dtype grad_dtype = FullGradDtype(p.setup);
  p.buffers.reserve(p.layout.units.size() * 8 + static_cast<size_t>(p.model.layers) * 48 + 256);
  for (size_t u = 0; u < p.layout.units.size(); ++u) {
    const Unit& unit = p.layout.units[u];
    BufferId id = AddPersistent(p, "params", Role::kParamFull, dtype,
                                unit.padded_elements * DtypeBytes(dtype), Space::kDevice);
    p.buffers[id].memory_class = MemoryClass::kParams;
    p.buffers[id].unit = static_cast<int32_t>(u);
    if (!grads) continue;
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

}  // namespace

Program BuildCompute(Program p, const LowerOptions& options) {
  const bool train = options.purpose == Purpose::kTrain;
  const int64_t batch = p.setup.batch.micro_batch;
  const auto token_bytes = static_cast<uint64_t>(2 * batch * p.setup.batch.seq_len) * 4;
  p.state_buffer =
      AddPersistent(p, "step_state", Role::kState, Dtype::kU8, sizeof(StepState), Space::kDevice);
  p.state_host_buffer = AddPersistent(p, "step_state", Role::kStateHost, Dtype::kU8,
                                      sizeof(StepState), Space::kPinned);
  p.tokens_buffer =
      AddPersistent(p, "tokens", Role::kTokens, Dtype::kI32, token_bytes, Space::kDevice);
  p.tokens_host_buffer =
      AddPersistent(p, "tokens", Role::kTokensHost, Dtype::kI32, token_bytes, Space::kPinned);
  AddUnitBuffers(p, train);
  if (!train) {
    const Dtype dtype = p.setup.precision.dtype;
    p.logits_host_buffer = AddPersistent(
        p, "logits", Role::kStaging, dtype,
        static_cast<uint64_t>(p.model.padded_vocab) * DtypeBytes(dtype), Space::kPinned);
    CopyTokens(p, Section::kGenerate);
    Emitter emit(p, p.section(Section::kGenerate));
    const uint64_t at = offsetof(StepState, position);
    emit.Tag(Phase::kForward, -2);
    emit.CopyTo({p.state_host_buffer, at, 4, 0}, {p.state_buffer, at, 4, 0});
    Gpt2Graph graph(p, Section::kGenerate, batch, options.flash_attention);
    graph.Forward();
    graph.RowLogits(p.logits_host_buffer);
    return p;
  }
  p.section(Section::kMicroStep).reserve(static_cast<size_t>(p.model.layers) * 96 + 128);
  p.refs.reserve(static_cast<size_t>(p.model.layers) * 360 + 512);
  CopyTokens(p, Section::kMicroStep);
  Gpt2Graph graph(p, Section::kMicroStep, batch, options.flash_attention);
  graph.Forward();
  graph.Loss(true, options.logits_chunk_bytes);
  graph.Backward();

  CopyTokens(p, Section::kEval);
  Gpt2Graph eval(p, Section::kEval, batch, options.flash_attention);
  eval.Forward();
  eval.Loss(false, options.logits_chunk_bytes);
  Emitter emit(p, p.section(Section::kEval));
  emit.Tag(Phase::kForward, -2);
  const uint64_t at = offsetof(StepState, loss_sum);
  if (p.setup.batch.world_size > 1) {
    const Segment segment{{p.state_buffer, at, 8, 0}, {p.state_buffer, at, 8, 0}};
    emit.Collect(CollectiveKind::kAllReduce, Dtype::kF64, {&segment, 1}, Stream::kReduce, true);
  }
  emit.CopyTo({p.state_buffer, at, 8, 0}, {p.state_host_buffer, at, 8, 0});
  return p;
}

}  // namespace zeroplan
