#include "core/lowering/graph_builder.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/model/lora.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

GraphBuilder::GraphBuilder(Program& program, Section section, int64_t batch,
                           const LowerOptions& options)
    : program_(program),
      emit_(program, program.section(section)),
      decodes_(section == Section::kDecode),
      batch_(batch),
      seq_(decodes_ ? 1 : program.setup.batch.local_seq()),
      whole_seq_(decodes_ ? 1 : program.setup.batch.seq_len),
      heads_(program.model.heads / program.setup.batch.sequence_ranks),
      kv_heads_(std::max<int64_t>(1, program.model.KvHeads() / program.setup.batch.sequence_ranks)),
      dtype_(program.setup.precision.dtype),
      grad_dtype_(FullGradDtype(program.setup)),
      logits_chunk_bytes_(options.logits_chunk_bytes),
      flash_attention_(options.flash_attention),
      dropout_(section == Section::kMicroStep ? program.model.lora_dropout : 0),
      fused_gelu_(program.backend == Backend::kCuda && DtypeBytes(dtype_) == 2 &&
                  !program.setup.precision.fp8.enabled),
      params_(UnitBuffers(program, Role::kParamFull)),
      grads_(UnitBuffers(program, Role::kGradFull)) {
  const std::vector<ParamTensor>& tensors = *program.layout.tensors;
  for (const ParamTensor& tensor : tensors) {
    const auto id = static_cast<size_t>(tensor.id);
    if (id >= home_layer_.size()) home_layer_.resize(id + 1, kNoHome);
    if (home_layer_[id] == kNoHome) home_layer_[id] = tensor.layer;
  }
  if (program.model.experts > 0 && section == Section::kMicroStep) {
    const auto layers = static_cast<uint64_t>(ExpertLayers(program.model));
    const auto experts = static_cast<uint64_t>(program.model.experts);
    router_stats_ = AddActivation({"router_stats", -2}, layers * (2 * experts + 1), Dtype::kF32);
    balance_ = AddActivation({"balance", -2}, experts + 1, Dtype::kF32);
  }
  tensor_of_.assign(static_cast<size_t>(program.model.layers + 2) * home_layer_.size(), -1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensor_of_[static_cast<size_t>(tensors[i].layer + 1) * home_layer_.size() +
               static_cast<size_t>(tensors[i].id)] = static_cast<int>(i);
  }
}

void GraphBuilder::At(Phase phase, int layer) {
  phase_ = phase;
  layer_ = layer;
  emit_.Tag(phase, layer);
}

int GraphBuilder::TensorIndex(int param) const {
  const auto id = static_cast<size_t>(param);
  const int home = home_layer_[id];
  const int layer = home >= 0 && home < program_.model.layers ? layer_ : home;
  const int tensor = tensor_of_[static_cast<size_t>(layer + 1) * home_layer_.size() + id];
  ZEROPLAN_CHECK(tensor >= 0, "layer {} has no parameter {}", layer, param);
  return tensor;
}

const ParamTensor& GraphBuilder::Tensor(int param) const {
  return (*program_.layout.tensors)[static_cast<size_t>(TensorIndex(param))];
}

Ref GraphBuilder::Slot(int param, const std::vector<BufferId>& by_unit) const {
  if (param == kNoParam) return {};
  const ParamLayout::Place place = program_.layout.place[static_cast<size_t>(TensorIndex(param))];
  const TensorSlot& slot =
      program_.layout.units[static_cast<size_t>(place.unit)].slots[static_cast<size_t>(place.slot)];
  const BufferId buffer = by_unit[static_cast<size_t>(place.unit)];
  const Dtype dtype = program_.buffers[buffer].dtype;
  return {buffer, StoredBytes(dtype, slot.offset), StoredBytes(dtype, slot.elements), 0};
}

Ref GraphBuilder::GradOrScratch(int param) {
  if (param == kNoParam || Trains(param)) return Grad(param);
  const BufferId id = AddActivation("unused_grad", Tensor(param).elements(), grad_dtype_);
  program_.buffers[id].role = Role::kActivationGrad;
  return All(id);
}

void GraphBuilder::CheckTogether(int param, int other) const {
  if (param == kNoParam || other == kNoParam) return;
  ZEROPLAN_CHECK(Tensor(param).trainable == Tensor(other).trainable,
                 "{} and {}, which one kernel takes: one is trained and one is not",
                 Tensor(param).name, Tensor(other).name);
}

int64_t GraphBuilder::In(int weight) const {
  const ParamTensor& tensor = Tensor(weight);
  return tensor.shape[tensor.out_in ? 1 : 0];
}

int64_t GraphBuilder::Out(int weight) const {
  const ParamTensor& tensor = Tensor(weight);
  return tensor.shape[tensor.out_in ? 0 : 1];
}

BufferId GraphBuilder::AddActivation(Label label, uint64_t elements, Dtype dtype) {
  const BufferId id =
      AddBuffer(program_, label.text, Role::kActivation, dtype, elements * DtypeBytes(dtype));
  program_.buffers[id].layer = label.layer == Label::kHere ? layer_ : label.layer;
  program_.buffers[id].memory_class = MemoryClass::kActivations;
  return id;
}

Value GraphBuilder::Activation(Label label, int64_t rows, int64_t cols) {
  return {AddActivation(label, static_cast<uint64_t>(rows * cols), dtype_), rows, cols};
}

Value GraphBuilder::Gradient(Label label, int64_t cols, int64_t rows) {
  const Value value = Activation(label, rows > 0 ? rows : batch_ * seq_, cols);
  program_.buffers[value.buffer].role = Role::kActivationGrad;
  return value;
}

Ref GraphBuilder::Inputs() const {
  const auto bytes = static_cast<uint64_t>(batch_ * seq_) * DtypeBytes(Dtype::kI32);
  return {program_.tokens_buffer, 0, bytes, 0};
}

Ref GraphBuilder::Starts() const {
  if (!program_.document_borders) return {};
  const BufferId tokens = program_.tokens_buffer;
  return {tokens, 2 * program_.token_table_bytes(tokens), program_.starts_table_bytes(tokens)};
}

Ref GraphBuilder::SequenceNumber() const {
  const uint64_t bytes = Program::kSequenceNumberBytes;
  return {program_.tokens_buffer, program_.buffers[program_.tokens_buffer].bytes - bytes, bytes, 0};
}

// ---- norms ----

Norm GraphBuilder::NormForward(const Value& x_MC, int weight, int bias, Label label) {
  Norm norm{.weight = weight, .bias = bias, .x_MC = x_MC};
  norm.y_MC = Activation(label, x_MC.rows, x_MC.cols);
  norm.stats = AddActivation("ln_stats", static_cast<uint64_t>(x_MC.rows * 2), Dtype::kF32);
  emit_.Launch(KernelId::kLayerNormForward, {x_MC.rows, x_MC.cols}, kNoFlags,
               {All(x_MC), Param(weight), Param(bias), All(norm.y_MC), All(norm.stats)},
               Stream::kCompute, {program_.model.layer_norm_eps});
  return norm;
}

void GraphBuilder::NormBackward(const Norm& norm, const Value& dy_MC, const Value& dx_MC,
                                bool add) {
  CheckTogether(norm.weight, norm.bias);
  emit_.Launch(KernelId::kLayerNormBackward, {dy_MC.rows, dy_MC.cols},
               add ? kAddToOutput : kNoFlags,
               {All(dy_MC), All(norm.x_MC), Param(norm.weight), All(norm.stats), All(dx_MC),
                GradOrScratch(norm.weight), GradOrScratch(norm.bias)});
}

Norm GraphBuilder::RmsNormForward(const Value& x_MC, int weight, Label label) {
  Norm norm{.weight = weight, .x_MC = x_MC};
  norm.y_MC = Activation(label, x_MC.rows, x_MC.cols);
  norm.stats = AddActivation("rstd", static_cast<uint64_t>(x_MC.rows), Dtype::kF32);
  emit_.Launch(KernelId::kRmsNormForward, {x_MC.rows, x_MC.cols}, kNoFlags,
               {All(x_MC), Param(weight), All(norm.y_MC), All(norm.stats)}, Stream::kCompute,
               {program_.model.layer_norm_eps});
  return norm;
}

void GraphBuilder::RmsNormBackward(const Norm& norm, const Value& dy_MC, const Value& dx_MC,
                                   bool add) {
  emit_.Launch(KernelId::kRmsNormBackward, {dy_MC.rows, dy_MC.cols}, add ? kAddToOutput : kNoFlags,
               {All(dy_MC), All(norm.x_MC), Param(norm.weight), All(norm.stats), All(dx_MC),
                GradOrScratch(norm.weight)});
}

// ---- products ----

Linear GraphBuilder::LinearForward(const Value& x_MK, int weight, int bias, Label label,
                                   const Value& residual_MN) {
  Linear linear{.weight = weight, .bias = bias, .x_MK = x_MK};
  linear.y_MN = Activation(label, x_MK.rows, Out(weight));
  ProductForward(linear, residual_MN, linear.y_MN);
  return linear;
}

int GraphBuilder::AdapterPairs(int weight) const {
  if (!HasAdapters(program_.model)) return 0;
  int pairs = 0;
  for (; pairs < kMostPairs; ++pairs) {
    const auto down = static_cast<size_t>(LoraDownId(weight, pairs));
    if (down >= home_layer_.size() || home_layer_[down] < 0) break;
    if (tensor_of_[static_cast<size_t>(layer_ + 1) * home_layer_.size() + down] < 0) break;
  }
  return pairs;
}

KernelDims GraphBuilder::AdapterDims(int weight, int pair, int64_t rows) const {
  const ParamTensor& up = Tensor(LoraUpId(weight, pair));
  const AdaptedColumns columns = ColumnsOf(Tensor(weight), up);
  return {rows, up.shape[1], Out(weight), columns.ends[0], columns.ends[1], columns.mask};
}

void GraphBuilder::Dropout(int down, const Value& x_MK, const Value& y_MK, bool add) {
  emit_.Launch(KernelId::kDropout, {x_MK.rows, x_MK.cols, seq_, TensorIndex(down)},
               add ? kAccumulate : kNoFlags, {All(x_MK), SequenceNumber(), All(y_MK)},
               Stream::kCompute, {dropout_});
}

Value GraphBuilder::AdapterInput(int down, const Value& x_MK) {
  if (dropout_ == 0) return x_MK;
  const Value dropped_MK = Activation("lora_x", x_MK.rows, x_MK.cols);
  Dropout(down, x_MK, dropped_MK, /*add=*/false);
  return dropped_MK;
}

// Where all columns have an adapter of one pair, what it adds is written first, and the product
// with the matrix is added to that as to a residual: a pass over y less.
void GraphBuilder::ProductForward(Linear& linear, const Value& residual_MN, const Value& y_MN) {
  const Value& x_MK = linear.x_MK;
  const int weight = linear.weight;
  const auto multiply = [&](const Value& start_MN) {
    emit_.Launch(KernelId::kMatmulForward, {x_MK.rows, x_MK.cols, y_MN.cols}, Lies(weight),
                 {All(x_MK), Param(weight), Param(linear.bias), All(start_MN), All(y_MN)});
  };
  const int pairs = AdapterPairs(weight);
  for (int pair = 0; pair < pairs; ++pair) {
    const int down = LoraDownId(weight, pair);
    const Value read_MK = AdapterInput(down, x_MK);
    const Value xa_MR = Activation("lora", x_MK.rows, Out(down));
    emit_.Launch(KernelId::kLoraDown, {x_MK.rows, x_MK.cols, xa_MR.cols}, kNoFlags,
                 {All(read_MK), Param(down), All(xa_MR)}, Stream::kCompute,
                 {Tensor(down).lora_scale});
    linear.xa_MR.push_back(xa_MR);
  }
  if (pairs == 1 && Tensor(LoraUpId(weight)).shape[0] == y_MN.cols) {
    emit_.Launch(KernelId::kLoraUp, AdapterDims(weight, 0, x_MK.rows), kNoFlags,
                 {All(linear.xa_MR.front()), Param(LoraUpId(weight)), All(residual_MN), All(y_MN)});
    return multiply(y_MN);
  }
  multiply(residual_MN);
  for (int pair = 0; pair < pairs; ++pair) {
    emit_.Launch(KernelId::kLoraUp, AdapterDims(weight, pair, x_MK.rows), kAccumulate,
                 {All(linear.xa_MR[static_cast<size_t>(pair)]), Param(LoraUpId(weight, pair)),
                  Ref{}, All(y_MN)});
  }
}

Linear GraphBuilder::LinearGeluForward(const Value& x_MK, int weight, int bias, Label pre,
                                       Label label) {
  Linear linear{.weight = weight, .bias = bias, .x_MK = x_MK};
  linear.pre_MN = Activation(pre, x_MK.rows, Out(weight));
  linear.y_MN = Activation(label, x_MK.rows, linear.pre_MN.cols);
  const KernelDims dims = {x_MK.rows, x_MK.cols, linear.pre_MN.cols};
  const Ref before = All(linear.pre_MN), y = All(linear.y_MN);
  if (fused_gelu_ && bias != kNoParam &&
      AdapterPairs(weight) == 0) {  // the fused kernel has a bias
    emit_.Launch(KernelId::kMatmulGeluForward, dims, Lies(weight),
                 {All(x_MK), Param(weight), Param(bias), before, y});
  } else {
    ProductForward(linear, {}, linear.pre_MN);
    emit_.Launch(KernelId::kGeluForward, {dims[0] * dims[2]}, kNoFlags, {before, y});
  }
  return linear;
}

std::vector<Value> GraphBuilder::WeightBackward(const Linear& linear, const Value& dy_MN) {
  CheckTogether(linear.weight, linear.bias);
  std::vector<Value> dxa_MR;
  for (size_t pair = 0; pair < linear.xa_MR.size(); ++pair) {
    const int number = static_cast<int>(pair), up = LoraUpId(linear.weight, number);
    const Value& xa_MR = linear.xa_MR[pair];
    dxa_MR.push_back(Gradient("d_lora", xa_MR.cols));
    emit_.Launch(KernelId::kLoraUpBackward, AdapterDims(linear.weight, number, dy_MN.rows),
                 kNoFlags, {All(dy_MN), All(xa_MR), Param(up), All(dxa_MR.back()), Grad(up)},
                 Stream::kCompute, {Tensor(up).lora_scale});
  }
  if (!Trains(linear.weight)) return dxa_MR;
  emit_.Launch(KernelId::kMatmulBackwardWeight, {dy_MN.rows, linear.x_MK.cols, dy_MN.cols},
               Lies(linear.weight),
               {All(linear.x_MK), All(dy_MN), Grad(linear.weight), Grad(linear.bias)});
  return dxa_MR;
}

void GraphBuilder::DataBackward(const Linear& linear, const Value& dy_MN,
                                const std::vector<Value>& dxa_MR, const Value& dx_MK, bool add) {
  for (size_t pair = 0; pair < dxa_MR.size(); ++pair) {
    const int down = LoraDownId(linear.weight, static_cast<int>(pair));
    const bool drops = dropout_ > 0;
    // The gradient of what the adapter reads.
    const Value dread_MK = drops ? Gradient("d_lora_x", dx_MK.cols) : dx_MK;
    const Value read_MK = AdapterInput(down, linear.x_MK);
    emit_.Launch(KernelId::kLoraDownBackward, {dx_MK.rows, dx_MK.cols, dxa_MR[pair].cols},
                 add && !drops ? kAddToOutput : kNoFlags,
                 {All(read_MK), All(dxa_MR[pair]), Param(down), All(dread_MK), Grad(down)});
    if (drops) Dropout(down, dread_MK, dx_MK, add);
    add = true;
  }
  const uint8_t flags = add ? kAccumulate : kNoFlags;
  emit_.Launch(KernelId::kMatmulBackwardData, {dy_MN.rows, dx_MK.cols, dy_MN.cols},
               static_cast<uint8_t>(Lies(linear.weight) | flags),
               {All(dy_MN), Param(linear.weight), All(dx_MK)});
}

Value GraphBuilder::LinearBackward(const Linear& linear, const Value& dy_MN, Label label) {
  const Value dx_MK = Gradient(label, linear.x_MK.cols);
  DataBackward(linear, dy_MN, WeightBackward(linear, dy_MN), dx_MK, /*add=*/false);
  return dx_MK;
}

void GraphBuilder::LinearBackwardAdd(const Linear& linear, const Value& dy_MN, const Value& dx_MK) {
  DataBackward(linear, dy_MN, WeightBackward(linear, dy_MN), dx_MK, /*add=*/true);
}

Value GraphBuilder::LinearBackwardThroughGelu(const Linear& linear, const Linear& inner,
                                              const Value& dy_MN, Label label) {
  if (!fused_gelu_ || AdapterPairs(linear.weight) > 0) {
    const Value dx_MK = LinearBackward(linear, dy_MN, label);
    emit_.Launch(KernelId::kGeluBackward, {dx_MK.rows * dx_MK.cols}, kNoFlags,
                 {All(inner.pre_MN), All(dx_MK)});
    return dx_MK;
  }
  const Value dpre_MK = Gradient(label, linear.x_MK.cols);
  WeightBackward(linear, dy_MN);
  emit_.Launch(KernelId::kMatmulGeluBackward, {dy_MN.rows, dpre_MK.cols, dy_MN.cols},
               Lies(linear.weight),
               {All(dy_MN), Param(linear.weight), All(inner.pre_MN), All(dpre_MK)});
  return dpre_MK;
}

SwiGlu GraphBuilder::SwiGluForward(const Value& x_MC, int weight, int bias, Label pre,
                                   Label label) {
  SwiGlu swiglu{.gate_up = LinearForward(x_MC, weight, bias, pre)};
  const Value& gate_up = swiglu.gate_up.y_MN;
  swiglu.y_MF = Activation(label, gate_up.rows, gate_up.cols / 2);
  emit_.Launch(KernelId::kSwiGluForward, {gate_up.rows, swiglu.y_MF.cols}, kNoFlags,
               {All(gate_up), All(swiglu.y_MF)});
  return swiglu;
}

Value GraphBuilder::SwiGluBackward(const SwiGlu& swiglu, const Value& dy_MF, Label label) {
  const Value& gate_up = swiglu.gate_up.y_MN;
  emit_.Launch(KernelId::kSwiGluBackward, {gate_up.rows, dy_MF.cols}, kNoFlags,
               {All(dy_MF), All(gate_up)});
  return LinearBackward(swiglu.gate_up, gate_up, label);
}

// ---- rotary positions ----

KernelDims GraphBuilder::RotaryDims() const {
  return {batch_ * whole_seq_, whole_seq_, heads_, kv_heads_, program_.model.HeadSize()};
}

BufferId GraphBuilder::RotaryTable() {
  const ModelSpec& model = program_.model;
  const int64_t head_size = model.HeadSize();
  const BufferId table =
      AddActivation("rotary", static_cast<uint64_t>(whole_seq_ * head_size), Dtype::kF32);
  const auto scaling = static_cast<int64_t>(model.rope_scaling);
  const KernelScalars scalars = {model.rope_theta, model.rope_factor, model.rope_low,
                                 model.rope_high, model.rope_attention_factor};
  if (decodes_) {
    emit_.Launch(KernelId::kRotaryRow, {head_size, scaling, model.rope_positions}, kNoFlags,
                 {All(program_.state_buffer), All(table)}, Stream::kCompute, scalars);
  } else {
    emit_.Launch(KernelId::kRotaryTable, {whole_seq_, head_size, scaling, model.rope_positions},
                 kNoFlags, {All(table)}, Stream::kCompute, scalars);
  }
  return table;
}

Rotary GraphBuilder::RotaryForward(const Value& qkv_MN, int norm, BufferId table_TD, Label label) {
  Rotary rotary{.norm = norm, .qkv_MN = qkv_MN, .out_MN = qkv_MN, .table_TD = table_TD};
  KernelDims dims = RotaryDims();
  if (norm == kNoParam) {
    emit_.Launch(KernelId::kRotaryForward, dims, kNoFlags, {All(qkv_MN), All(table_TD)},
                 Stream::kCompute, {}, Starts());
    return rotary;
  }
  rotary.out_MN = Activation(label, qkv_MN.rows, qkv_MN.cols);
  const bool whole = program_.model.qk_norm_whole;
  dims[5] = whole ? 1 : 0;
  const int64_t norms = whole ? 2 : dims[2] + dims[3];
  rotary.rstd = AddActivation("head_rstd", static_cast<uint64_t>(qkv_MN.rows * norms), Dtype::kF32);
  emit_.Launch(KernelId::kQkNormRotaryForward, dims, kNoFlags,
               {All(qkv_MN), Param(norm), All(table_TD), All(rotary.out_MN), All(rotary.rstd)},
               Stream::kCompute, {program_.model.layer_norm_eps}, Starts());
  return rotary;
}

void GraphBuilder::RotaryBackward(const Rotary& rotary, const Value& dqkv_MN) {
  KernelDims dims = RotaryDims();
  if (rotary.norm == kNoParam) {
    emit_.Launch(KernelId::kRotaryBackward, dims, kNoFlags, {All(dqkv_MN), All(rotary.table_TD)},
                 Stream::kCompute, {}, Starts());
    return;
  }
  dims[5] = program_.model.qk_norm_whole ? 1 : 0;
  emit_.Launch(KernelId::kQkNormRotaryBackward, dims, kNoFlags,
               {All(dqkv_MN), All(rotary.qkv_MN), Param(rotary.norm), All(rotary.rstd),
                All(rotary.table_TD), GradOrScratch(rotary.norm)},
               Stream::kCompute, {}, Starts());
}

// ---- attention ----

KernelDims GraphBuilder::AttentionDims() const {
  return {batch_, whole_seq_, heads_, kv_heads_, program_.model.HeadSize()};
}

Attention GraphBuilder::AttentionForward(const Value& qkv_MN, Label label) {
  const KernelDims dims = AttentionDims();
  const auto [B, T, H, G, D] = FirstDims<5>(dims);
  ZEROPLAN_CHECK(qkv_MN.cols == (H + 2 * G) * D, "{} columns for {} + 2 x {} heads of {}",
                 qkv_MN.cols, H, G, D);
  Attention attention{.qkv_MN = qkv_MN};
  attention.out_MHD = Activation(label, qkv_MN.rows, H * D);
  if (!caches_.empty()) {
    const Ref cache = All(caches_[static_cast<size_t>(layer_)]);
    const KernelDims of_cache = {program_.setup.batch.seq_len, H, G, D};
    if (decodes_) {
      emit_.Launch(KernelId::kAttendToken, of_cache, kNoFlags,
                   {All(qkv_MN), All(program_.state_buffer), cache, All(attention.out_MHD)});
      return attention;
    }
    emit_.Launch(KernelId::kKeepKeysValues, of_cache, kNoFlags, {All(qkv_MN), cache});
  }
  const auto lines = static_cast<uint64_t>(qkv_MN.rows * H);
  if (flash_attention_) {
    attention.saved = AddActivation("lse", lines, Dtype::kF32);
  } else {
    attention.saved = AddActivation("probs", lines * static_cast<uint64_t>(whole_seq_), dtype_);
  }
  emit_.Launch(flash_attention_ ? KernelId::kAttentionForward : KernelId::kUnfusedAttentionForward,
               dims, kNoFlags, {All(qkv_MN), All(attention.out_MHD), All(attention.saved)},
               Stream::kCompute, {}, Starts());
  return attention;
}

Value GraphBuilder::AttentionBackward(const Attention& attention, const Value& dout_MHD,
                                      Label label) {
  const Value &qkv_MN = attention.qkv_MN, dqkv_MN = Gradient(label, qkv_MN.cols, qkv_MN.rows);
  const KernelDims dims = AttentionDims();
  if (flash_attention_) {
    emit_.Launch(KernelId::kAttentionBackward, dims, kNoFlags,
                 {All(dout_MHD), All(attention.qkv_MN), All(attention.out_MHD),
                  All(attention.saved), All(dqkv_MN)},
                 Stream::kCompute, {}, Starts());
  } else {
    const Value dprobs_BHTT = Gradient("d_probs", heads_ * whole_seq_, qkv_MN.rows);
    emit_.Launch(KernelId::kUnfusedAttentionBackward, dims, kNoFlags,
                 {All(dout_MHD), All(attention.qkv_MN), All(attention.saved), All(dqkv_MN),
                  All(dprobs_BHTT)});
  }
  return dqkv_MN;
}

}  // namespace zeroplan
