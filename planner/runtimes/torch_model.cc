#include "planner/runtimes/torch_model.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/lowering/passes.h"
#include "core/model/model_family.h"
#include "core/model/param_table.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {
namespace {

// at::cuda::parseChosenWorkspaceSize (CUDABlas workspaces) on compute capability 9: 4096 x 8 KiB.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

std::string ModuleName(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

// A launch of a layer's forward pass, as far as PyTorch's code has a part like it.
struct Launch {
  char part;  // n norm, p product, r rotary, a attention, g GELU, s SwiGLU, ? another
  const LaunchKernel* kernel;
};

char PartOf(KernelId kernel) {
  switch (kernel) {
    case KernelId::kLayerNormForward:
    case KernelId::kRmsNormForward:
      return 'n';
    case KernelId::kMatmulForward:
      return 'p';
    case KernelId::kRotaryForward:
    case KernelId::kQkNormRotaryForward:
      return 'r';
    case KernelId::kAttentionForward:
      return 'a';
    case KernelId::kGeluForward:
      return 'g';
    case KernelId::kSwiGluForward:
      return 's';
    default:
      return '?';
  }
}

// What the graph launches forward before the first layer (-1) or in it (0).
std::vector<Launch> ForwardOf(const Program& program, int layer) {
  std::vector<Launch> launches;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (instruction.phase != Phase::kForward || instruction.layer != layer) continue;
    if (const auto* launch = std::get_if<LaunchKernel>(&instruction.op)) {
      launches.push_back({PartOf(launch->kernel), launch});
    }
  }
  return launches;
}

// Whether the second norm is of what the attention's half of a layer made.
bool InARow(const Program& program, const std::vector<Launch>& layer) {
  size_t norm2 = 1;
  while (layer[norm2].part != 'n') ++norm2;
  const BufferId read = program.args(*layer[norm2].kernel).front().buffer;
  const std::span<const Ref> before = program.args(*layer[norm2 - 1].kernel);
  return std::any_of(before.begin() + 1, before.end(),
                     [read](const Ref& arg) { return arg.buffer == read; });
}

}  // namespace

TorchModel::TorchModel(const ModelSpec& model) : spec(model) {
  AddModules();
  ReadCode();
}

void TorchModel::AddModules() {
  int layer = kEmbeddingLayer;
  std::ptrdiff_t layer_begin = 0;
  for (const ParamTensor& tensor : BuildParamTable(spec)) {
    for (const PublishedTensor& part : PublishedTensors(tensor)) {
      const std::string module = ModuleName(part.name);
      if (tensor.layer != std::exchange(layer, tensor.layer)) layer_begin = std::ssize(modules);
      auto at = std::find_if(modules.begin() + layer_begin, modules.end(),
                             [&](const TorchModule& known) { return known.name == module; });
      if (at == modules.end()) {
        if (tensor.layer < 0) ++first_layer_module;
        if (tensor.layer == 0 && spec.layers > 0) ++layer_modules;
        at = modules.insert(at, {module, {}});
      }
      TorchModule& to = *at;
      to.product = to.product || tensor.use == ParamUse::kProduct;
      to.biased = to.biased || (to.product && tensor.is_vector);
      to.params.push_back(static_cast<int>(params.size()));
      const int64_t rows = part.end - part.begin;
      // A published tensor is without padding; PyTorch's model here has the padded rows.
      const bool whole = tensor.parts.empty();
      params.push_back(
          {part.name, whole ? tensor.elements() : static_cast<uint64_t>(rows * tensor.shape[1]),
           tensor.is_vector, tensor.is_vector ? 0 : static_cast<uint64_t>(tensor.shape[1])});
    }
  }
  if (spec.tied_head) modules.push_back({"head", {0}});
}

void TorchModel::ReadCode() {
  const auto require = [this](bool modelled, const char* why) {
    if (modelled) return;
    ThrowUsage(
        "⟦runtime⟧: PyTorch code of the model family {} is not modelled: {}; plan it for "
        "zeroplan's "
        "own executor",
        spec.family->name(), why);
  };
  ModelSpec one_layer = spec;
  one_layer.layers = 1;
  TrainSetup setup;
  setup.batch.seq_len = 1;
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(one_layer));
  const Program program = BuildCompute(EmptyProgram(one_layer, tensors, setup, {}), {});
  const std::vector<Launch> layer = ForwardOf(program, 0);
  std::string parts;
  for (const Launch& launch : layer) parts += launch.part;
  code.one_qkv = parts.find('r') == std::string::npos;
  code.gated = parts.find('s') != std::string::npos;
  const std::string known =
      std::string(code.one_qkv ? "npap" : "nprap") + (code.gated ? "npsp" : "npgp");
  require(parts == known && InARow(program, layer),
          "a layer is not norm, attention, norm and MLP in a row");
  code.mean_norms = layer.front().kernel->kernel == KernelId::kLayerNormForward;
  code.learned_positions = first_layer_module == 2;
  const auto first = modules.begin() + first_layer_module;
  const auto end = first + layer_modules;
  const auto products =
      std::count_if(first, end, [](const TorchModule& module) { return module.product; });
  const auto biased =
      std::count_if(first, end, [](const TorchModule& module) { return module.biased; });
  code.all_biased = biased == products;
  code.none_biased = biased == 0;
  require(first_layer_module == 1 || code.learned_positions,
          "its embedding is not of tokens, or of tokens and positions");
  require(down_module() + 1 == layer_modules,
          code.one_qkv ? "without rotary positions, queries, keys and values are not one weight"
                       : "its weights are not one for each of queries, keys, values, gate and up");
  require(head() + 1 == static_cast<int>(modules.size()),
          "what follows its layers is not a norm and a head");
}

uint64_t TorchModel::elements() const {
  uint64_t sum = 0;
  for (const TorchParam& param : params) sum += param.elements;
  return sum;
}

TorchStep::TorchStep(const TorchModel& model, const TorchRun& run, TorchMemory* memory,
                     TorchRuntime* hooks, TorchTimer* timer)
    : model_(model),
      run_(run),
      memory_(memory),
      hooks_(hooks),
      timer_(timer),
      tokens_(run.micro_batch * run.seq_len),
      hidden_(model.spec.hidden),
      ffn_(model.spec.ffn),
      vocab_(model.spec.padded_vocab),
      kv_columns_(model.spec.KvHeads() * model.spec.HeadSize()),
      q_columns_(model.spec.heads * model.spec.HeadSize()) {}

Tensor TorchStep::New(int64_t bytes, TorchClass kind) {
  return memory_->New(kind, static_cast<uint64_t>(bytes));
}

int TorchStep::Module(int layer, int offset) const {
  return model_.first_layer_module + layer * model_.layer_modules + offset;
}

// With KeepsSmaller. Its weight has inputs x `columns` elements, its input inputs x tokens.
bool TorchStep::KeepsWeight(int64_t columns) const {
  return run_.KeepsSmaller(model_.code.all_biased) && columns < tokens_;
}

Tensor TorchStep::Linear(int module, TorchOp op, int64_t columns, Saved* saved) {
  if (!forward_workspace_) forward_workspace_ = New(kGemmWorkspaceBytes, TorchClass::kBuffers);
  hooks_->BeforeForward(module);
  if (run_.module_graphs) timer_->EnterModuleGraph();
  timer_->Forward(op);
  Tensor out = Rows(columns);
  if (KeepsWeight(columns)) {
    const int weight = model_.modules[static_cast<size_t>(module)].params.front();
    saved->weights.push_back(
        New(static_cast<int64_t>(2 * model_.params[static_cast<size_t>(weight)].elements)));
  }
  hooks_->AfterForward(module);
  return out;
}

TorchStep::Saved TorchStep::KeptByCheckpoint(Saved saved) const {
  Saved kept;
  if (!run_.saves_products) return kept;
  kept.attention = std::move(saved.attention);
  kept.log_sum_exp = std::move(saved.log_sum_exp);
  kept.saved_q = std::move(saved.saved_q);
  kept.saved_v = std::move(saved.saved_v);
  kept.saved_up = std::move(saved.saved_up);
  kept.saved_down = std::move(saved.saved_down);
  return kept;
}

Tensor TorchStep::LinearOr(Tensor* kept, int module, TorchOp op, int64_t columns, Saved* saved) {
  return *kept ? std::move(*kept) : Linear(module, op, columns, saved);
}

void TorchStep::ParamGradients(int module) {
  const std::vector<int>& params = model_.modules[static_cast<size_t>(module)].params;
  std::vector<Tensor> grads;
  grads.reserve(params.size());
  for (const int param : params) {
    grads.push_back(
        New(static_cast<int64_t>(2 * model_.params[static_cast<size_t>(param)].elements),
            TorchClass::kGrads));
  }
  for (size_t i = 0; i < params.size(); ++i) hooks_->Gradient(params[i], std::move(grads[i]));
}

Tensor TorchStep::LinearBackward(int module, TorchOp op, int64_t inputs) {
  if (!backward_workspace_) backward_workspace_ = New(kGemmWorkspaceBytes, TorchClass::kBuffers);
  hooks_->BeforeBackward(module);
  if (run_.module_graphs) timer_->EnterModuleGraph();
  timer_->Backward(op);
  Tensor grad = Rows(inputs);
  ParamGradients(module);
  hooks_->AfterBackward(module);
  return grad;
}

Tensor TorchStep::Norm(int module, TorchOp op, Tensor* stats) {
  hooks_->BeforeForward(module);
  timer_->Forward(op);
  Tensor out = Rows(hidden_);
  *stats = New((model_.code.mean_norms ? 8 : 4) * tokens_);  // fp32 mean and reciprocal deviation
  hooks_->AfterForward(module);
  return out;
}

Tensor TorchStep::NormBackward(int module, TorchOp op) {
  hooks_->BeforeBackward(module);
  timer_->Backward(op);
  Tensor grad = Rows(hidden_);
  ParamGradients(module);
  hooks_->AfterBackward(module);
  return grad;
}

// `keep` false: within torch.utils.checkpoint's forward, where a tensor goes with its last use.
Tensor TorchStep::Block(int layer, Saved* saved, bool keep) {
  const bool again = keep && run_.recompute;
  if (run_.recompute) timer_->EnterCheckpoint();
  const int64_t batch_heads = run_.micro_batch * model_.spec.heads * run_.seq_len;
  // The input of linear modules with so many outputs each: it goes where none of them keeps it.
  const auto drop_input = [this, keep](Tensor* tensor, std::initializer_list<int64_t> outputs) {
    const bool kept = keep && std::any_of(outputs.begin(), outputs.end(), [this](int64_t columns) {
                        return !KeepsWeight(columns);
                      });
    if (!kept) tensor->Reset();
  };
  const auto drop = [keep](Tensor* tensor) {
    if (!keep) tensor->Reset();
  };
  // What a selective checkpoint keeps to take again.
  const bool saves = run_.saves_products && !keep;
  const auto drop_or_save = [&drop, saves](Tensor* tensor, Tensor* to) {
    if (saves) {
      *to = std::move(*tensor);
    } else {
      drop(tensor);
    }
  };
  if (!run_.module_graphs) timer_->EnterGraph();
  saved->norm1 = Norm(Module(layer, 0), TorchOp::kNorm1, &saved->norm1_stats);
  int next = 1;
  if (model_.code.one_qkv) {
    const int64_t columns = q_columns_ + 2 * kv_columns_;
    saved->qkv = Linear(Module(layer, next++), TorchOp::kQkv, columns, saved);
    drop_input(&saved->norm1, {columns});
  } else {
    // Queries and keys are kept as rotated; what they were made of goes.
    Tensor q = LinearOr(&saved->saved_q, Module(layer, next++), TorchOp::kQkv, q_columns_, saved);
    Tensor k = Linear(Module(layer, next++), TorchOp::kKey, kv_columns_, saved);
    saved->qkv =
        LinearOr(&saved->saved_v, Module(layer, next++), TorchOp::kKey, kv_columns_, saved);
    drop_input(&saved->norm1, {q_columns_, kv_columns_});
    timer_->Forward(TorchOp::kRotary);
    saved->rotated = Rows(q_columns_ + kv_columns_);
    if (model_.spec.qk_norm) {
      // A norm of each head, which keeps its input.
      for (int i = 0; i < 2; ++i, ++next) {
        hooks_->BeforeForward(Module(layer, next));
        hooks_->AfterForward(Module(layer, next));
      }
      saved->unnormed_q = std::move(q);
      saved->unnormed_k = std::move(k);
    } else if (saves) {
      saved->saved_q = std::move(q);
    }
  }
  if (!saved->attention) {  // else a selective checkpoint has it
    timer_->Forward(TorchOp::kAttention);
    saved->attention = Rows(q_columns_);
    saved->log_sum_exp = New(4 * batch_heads);
  }
  drop_or_save(&saved->qkv, &saved->saved_v);
  drop(&saved->rotated);
  if (saved->unnormed_q) drop_or_save(&saved->unnormed_q, &saved->saved_q);
  drop(&saved->unnormed_k);
  Tensor projected = Linear(Module(layer, next++), TorchOp::kOutProj, hidden_, saved);
  if (!saves) drop(&saved->attention);
  timer_->Forward(TorchOp::kAdd1);
  saved->middle = Rows(hidden_);
  projected.Reset();
  saved->norm2 = Norm(Module(layer, next++), TorchOp::kNorm2, &saved->norm2_stats);
  saved->up = LinearOr(&saved->saved_up, Module(layer, next++), TorchOp::kUp, ffn_, saved);
  if (!model_.code.gated) {
    drop_input(&saved->norm2, {ffn_});
    saved->activated = Rows(ffn_);
  } else {
    saved->gated = Linear(Module(layer, next++), TorchOp::kGate, ffn_, saved);
    drop_input(&saved->norm2, {ffn_});
    // SiLU's output goes into the product, whose backward wants it: eager code keeps it, compiled
    // code makes it again.
    saved->silu = Rows(ffn_);
    saved->activated = Rows(ffn_);
    if (!keep || (run_.compiled && !run_.module_graphs)) saved->silu.Reset();
  }
  timer_->Forward(TorchOp::kActivation);
  drop_or_save(&saved->up, &saved->saved_up);
  drop(&saved->gated);
  // A checkpoint's second forward pass ends with the last tensor that backward wants
  // (torch/utils/checkpoint.py, set_checkpoint_early_stop; compiled, nothing asks for more).
  timer_->Skip(again);
  Tensor projected_back = Linear(Module(layer, next), TorchOp::kDown, hidden_, saved);
  timer_->Forward(TorchOp::kAdd2);
  timer_->Skip(false);
  if (saves && !run_.compiled) saved->saved_down = std::move(projected_back);
  drop_input(&saved->activated, {hidden_});
  if (!keep) saved->weights.clear();
  return Rows(hidden_);
}

void TorchStep::Forward() {
  token_ids_ = New(8 * 2 * tokens_);
  residuals_.clear();
  saved_.clear();
  hooks_->BeforeForward(0);
  timer_->Forward(TorchOp::kEmbedding);
  Tensor embedded = Rows(hidden_);
  hooks_->AfterForward(0);
  if (model_.code.learned_positions) {
    hooks_->BeforeForward(1);
    Tensor positions = New(2 * run_.seq_len * hidden_);
    hooks_->AfterForward(1);
    Tensor sum = Rows(hidden_);
    embedded = std::move(sum);
  }
  residuals_.push_back(std::move(embedded));
  for (int layer = 0; layer < model_.spec.layers; ++layer) {
    Saved saved;
    hooks_->BeforeLayer();
    residuals_.push_back(Block(layer, &saved, !run_.recompute));
    saved_.push_back(run_.recompute ? KeptByCheckpoint(std::move(saved)) : std::move(saved));
  }
  final_norm_ = Norm(model_.final_norm(), TorchOp::kFinalNorm, &final_stats_);
  hooks_->BeforeForward(model_.head());
  timer_->Forward(TorchOp::kHead);
  Tensor logits = New(2 * tokens_ * vocab_, TorchClass::kLogits);
  hooks_->AfterForward(model_.head());
  timer_->Forward(TorchOp::kLoss);
  if (run_.compiled_loss) {
    loss_input_ = std::move(logits);
    return;
  }
  Tensor logits32 = New(4 * tokens_ * vocab_, TorchClass::kLogits);
  logits.Reset();
  loss_input_ = New(4 * tokens_ * vocab_, TorchClass::kLogits);
}

Tensor TorchStep::AttentionBackward(int layer, Saved* saved, Tensor grad) {
  timer_->Backward(TorchOp::kAttention);
  const int qkv_columns = static_cast<int>(q_columns_ + 2 * kv_columns_);
  Tensor d_qkv = Rows(qkv_columns);
  {
    Tensor d_query_sums = New(4 * tokens_ * q_columns_);  // flash attention adds dQ up in fp32
    Tensor row_sums = New(4 * run_.micro_batch * model_.spec.heads * run_.seq_len);
  }
  grad.Reset();
  saved->qkv.Reset();
  saved->rotated.Reset();
  saved->unnormed_q.Reset();
  saved->unnormed_k.Reset();
  saved->attention.Reset();
  saved->log_sum_exp.Reset();
  if (model_.code.one_qkv) {
    // The gradient of views of one product: stacked, then laid out as the product has them.
    Tensor stacked = Rows(qkv_columns);
    d_qkv = Rows(qkv_columns);
    stacked.Reset();
    Tensor d_norm = LinearBackward(Module(layer, 1), TorchOp::kQkv, hidden_);
    return d_norm;
  }
  const int norms = model_.spec.qk_norm ? 2 : 0;
  for (int i = 0; i < norms; ++i) {
    const int norm = Module(layer, model_.qk_norm_module() + i);
    hooks_->BeforeBackward(norm);
    ParamGradients(norm);
    hooks_->AfterBackward(norm);
  }
  timer_->Backward(TorchOp::kRotary);
  Tensor rotated_back = Rows(q_columns_ + kv_columns_);
  Tensor d_norm = LinearBackward(Module(layer, 3), TorchOp::kKey, hidden_);
  for (const int module : {2, 1}) {
    const TorchOp op = module == 2 ? TorchOp::kKey : TorchOp::kQkv;
    Tensor more = LinearBackward(Module(layer, module), op, hidden_);  // added in place
  }
  return d_norm;
}

void TorchStep::BlockBackward(int layer, Saved saved) {
  const bool gated = model_.code.gated;
  const int down = model_.down_module();
  if (!run_.module_graphs) timer_->EnterGraph();
  Tensor d_activated = LinearBackward(Module(layer, down), TorchOp::kDown, ffn_);
  timer_->Backward(TorchOp::kActivation);
  saved.activated.Reset();
  Tensor d_up = Rows(ffn_);
  Tensor d_gate = gated ? Rows(ffn_) : Tensor();
  d_activated.Reset();
  saved.up.Reset();
  saved.gated.Reset();
  saved.silu.Reset();
  const TorchOp last = gated ? TorchOp::kGate : TorchOp::kUp;
  Tensor d_norm = LinearBackward(Module(layer, down - 1), last, hidden_);
  if (gated) {
    d_gate.Reset();
    Tensor more = LinearBackward(Module(layer, model_.up_module()), TorchOp::kUp, hidden_);
  }
  d_up.Reset();
  saved.norm2.Reset();
  {
    Tensor d_middle = NormBackward(Module(layer, model_.norm2_module()), TorchOp::kNorm2);
    timer_->Backward(TorchOp::kAdd2);  // to `grad`, in place
  }
  d_norm.Reset();
  saved.middle.Reset();
  Tensor d_attention =
      LinearBackward(Module(layer, model_.out_module()), TorchOp::kOutProj, q_columns_);
  d_norm = AttentionBackward(layer, &saved, std::move(d_attention));
  saved.norm1.Reset();
  Tensor d_input = NormBackward(Module(layer, 0), TorchOp::kNorm1);
  timer_->Backward(TorchOp::kAdd1);
}

// The gradient of the 16-bit logits.
Tensor TorchStep::LossBackward() {
  timer_->Backward(TorchOp::kLoss);
  if (run_.compiled_loss) {
    Tensor d_logits = New(2 * tokens_ * vocab_, TorchClass::kLogits);
    loss_input_.Reset();
    return d_logits;
  }
  Tensor d_log_probabilities = New(4 * tokens_ * vocab_, TorchClass::kLogits);
  Tensor d_logits32 = New(4 * tokens_ * vocab_, TorchClass::kLogits);
  d_log_probabilities.Reset();
  loss_input_.Reset();
  return New(2 * tokens_ * vocab_, TorchClass::kLogits);
}

void TorchStep::Backward() {
  {
    Tensor d_logits = LossBackward();
    if (!backward_workspace_) backward_workspace_ = New(kGemmWorkspaceBytes, TorchClass::kBuffers);
    hooks_->BeforeBackward(model_.head());
    timer_->Backward(TorchOp::kHead);
    Tensor d_norm = Rows(hidden_);
    Tensor d_head =
        New(static_cast<int64_t>(
                2 * model_.params[static_cast<size_t>(model_.modules.back().params[0])].elements),
            TorchClass::kGrads);
    if (!model_.spec.tied_head) {
      hooks_->Gradient(model_.modules.back().params[0], std::move(d_head));
    }
    hooks_->AfterBackward(model_.head());
    d_logits.Reset();
    final_norm_.Reset();
    Tensor grad = NormBackward(model_.final_norm(), TorchOp::kFinalNorm);
    d_norm.Reset();
    final_stats_.Reset();
    residuals_.pop_back();
    for (int layer = static_cast<int>(model_.spec.layers) - 1; layer >= 0; --layer) {
      Saved saved = std::move(saved_.back());
      saved_.pop_back();
      hooks_->BeforeLayerBackward();
      if (run_.recompute) {
        hooks_->BeforeRecompute(Module(layer, model_.layer_modules - 1));
        Tensor out = Block(layer, &saved, /*keep=*/true);
      }
      BlockBackward(layer, std::move(saved));
      residuals_.pop_back();
    }
    if (model_.code.learned_positions) {
      hooks_->BeforeBackward(1);
      ParamGradients(1);
      hooks_->AfterBackward(1);
    }
    hooks_->BeforeBackward(0);
    timer_->Backward(TorchOp::kEmbedding);
    // A tied embedding's two gradients are added in place.
    Tensor d_embedding =
        New(static_cast<int64_t>(2 * model_.params[0].elements), TorchClass::kGrads);
    d_head.Reset();
    hooks_->Gradient(0, std::move(d_embedding));
    hooks_->AfterBackward(0);
  }
  token_ids_.Reset();
}

}  // namespace zeroplan
