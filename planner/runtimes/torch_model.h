// A decoder-only transformer as PyTorch code trains it: modules, parameters, and which tensors a
// micro-step makes and frees, around which kernels.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_spec.h"
#include "core/settings/zero_config.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/runtimes/torch_adapters.h"
#include "planner/runtimes/torch_code.h"
#include "planner/runtimes/torch_memory.h"

namespace zeroplan {

struct TorchParam {
  std::string name;  // as published
  uint64_t elements = 0;
  bool vector = false;
  uint64_t columns = 0;  // of a matrix
  bool trained = true;
  // Weights that are in NF4, of which `elements` are the 16-bit words; 0: it is not quantized.
  uint64_t quantized = 0;
};

struct TorchModule {
  std::string name;
  std::vector<int> params;  // a tied head has the embedding's
  bool product = false;     // tokens are multiplied with its matrix
  bool biased = false;      // and have a vector added
  // Of a linear with an adapter: the modules of A and B, behind all others; of these the linear.
  int down = -1, up = -1, adapts = -1;
};

// What the code of a model is like, as far as memory and time depend on it: read off its parameter
// table and its graph.
struct TorchCode {
  bool mean_norms = false;         // LayerNorm, which keeps mean and deviation; else RMSNorm
  bool learned_positions = false;  // a second table, added to the tokens'
  bool one_qkv = false;  // one product makes queries, keys and values; else three, with rotary
  bool gated = false;    // SwiGLU, of two products; else GELU of one
  bool all_biased = false, none_biased = false;  // a layer's products
  // Of a model that zeroplan does not train: what else is known of it.
  const PlannedCode* planned = nullptr;
};

// The modules that hold parameters, in the order in which they are made and run. Queries, keys and
// values, gate and up are modules of their own where published weights hold them so. Parameters
// with the padded vocabulary.
struct TorchModel {
  // Throws Error(kUsage) naming the family where its code is none that TorchStep plays.
  explicit TorchModel(const ModelSpec& spec);

  ModelSpec spec;
  std::vector<TorchParam> params;
  std::vector<TorchModule> modules;
  int layer_modules = 0;  // of one layer
  int first_layer_module = 0;
  TorchCode code;
  // Some parameters are trained of a tower that sees; of it or of what projects its images.
  bool vision_trained = false, projector_trained = false;
  size_t trained_params = 0;

  uint64_t elements() const;
  // What is trained comes first; all of a model without adapters.
  std::span<const TorchParam> trained() const { return std::span(params).first(trained_params); }
  uint64_t trained_elements() const;
  bool has_adapters() const { return spec.lora_rank > 0; }
  int head_weight() const { return modules[static_cast<size_t>(head())].params.front(); }
  bool trains(int param) const { return params[static_cast<size_t>(param)].trained; }
  int embedding() const { return modules.front().params.front(); }
  int final_norm() const {
    return first_layer_module + layer_modules * static_cast<int>(spec.layers);
  }
  int head() const { return final_norm() + 1; }

  // Modules within a layer, from its first on.
  int qkv_modules() const { return code.one_qkv ? 1 : 3; }
  int qk_norm_module() const { return 1 + qkv_modules(); }
  int out_module() const { return qk_norm_module() + (spec.qk_norm ? 2 : 0); }
  // With norms behind attention and MLP the second norm is behind the first half's.
  int norm2_module() const { return out_module() + (post_norms() ? 2 : 1); }
  int up_module() const { return norm2_module() + 1; }
  int down_module() const { return up_module() + (code.gated && !one_gate_up() ? 2 : 1); }
  bool post_norms() const { return code.planned != nullptr && code.planned->post_norms; }
  bool one_gate_up() const { return code.planned != nullptr && code.planned->one_gate_up; }
  // Of a vision tower and what projects its images, behind the embedding.
  int vision_modules() const { return code.planned != nullptr ? first_layer_module - 1 : 0; }

 private:
  void AddModules();
  void AddAdapters();
  void ReadCode();
  void ReadPlannedCode(const PlannedCode& planned);
  void SortByTrained();
};

class HeadExchange;           // planner/runtimes/torch_sequence.h
class RingAttention;          // the same
class ActivationOffload;      // planner/runtimes/torch_offload.h
struct ActivationOffloading;  // the same
class TorchTimer;
enum class TorchOp : uint8_t;

// A runtime around a transformer's modules: rank 0 of setup.batch.world_size. The pointers must
// outlive it.
class TorchRuntime {
 public:
  TorchRuntime(const TorchModel& model, const TrainSetup& setup, TorchMemory* memory,
               TorchTimer* timer)
      : model_(model),
        zero_(setup.zero),
        memory_(memory),
        timer_(timer),
        gpus_(static_cast<uint64_t>(setup.batch.world_size)),
        offload_(setup.zero.offload_optimizer.device != OffloadDevice::kNone) {}
  virtual ~TorchRuntime() = default;

  // The model is made, then what the runtime holds.
  virtual void Init() = 0;
  // `last` of the step: its boundary.
  virtual void BeginMicroStep(bool last) {
    first_ = last_;
    last_ = last;
  }
  virtual void BeginBackward() {}
  virtual void EndBackward() = 0;
  virtual void Step() = 0;

  // What it does around the modules.
  virtual void BeforeForward(int /*module*/) {}
  virtual void AfterForward(int /*module*/) {}
  virtual void BeforeBackward(int /*module*/) {}
  virtual void AfterBackward(int /*module*/) {}
  // A layer is a module too, without parameters of its own.
  virtual void BeforeLayer() {}
  virtual void BeforeLayerBackward() {}
  // A checkpointed layer's backward has come to its last module, whose saved tensors are wanted, so
  // that the layer's modules run forward again. The last one only begins to: its forward pass is
  // broken off where the last tensor has been made (torch/utils/checkpoint.py,
  // _StopRecomputationError), without what follows it. -1: one without parameters, which has run
  // by then.
  virtual void BeforeRecompute(int /*last_module*/) {}
  // A parameter's gradient is whole.
  virtual void Gradient(int param, Tensor grad) = 0;

 protected:
  Tensor New(TorchClass kind, uint64_t bytes, int stream = 0) const {
    return memory_->New(kind, bytes, stream);
  }
  // The host's memory, pageable before it is page-locked.
  void AddHost(uint64_t bytes, bool pin) const {
    memory_->AddPageable(bytes);
    if (!pin) return;
    memory_->Pin(bytes);
    memory_->DropPageable(bytes);
  }
  double Elements(size_t param) const { return static_cast<double>(model_.params[param].elements); }
  // Makes what is not trained, whole; and what stands beside codes in NF4.
  void MakeFrozen(uint64_t bytes_of_element = 2);
  void MakeQuantTensors();

  const TorchModel& model_;
  const ZeroConfig zero_;
  TorchMemory* memory_;
  TorchTimer* timer_;
  const uint64_t gpus_;
  const bool offload_;               // the optimizer is on the host, or in files
  bool first_ = true, last_ = true;  // of a step's micro-steps
  std::vector<Tensor> frozen_;
};

struct TorchRun {
  int64_t micro_batch = 1, seq_len = 1024;
  // Ranks that share each sequence (BatchSpec::sequence_ranks): outside attention a rank has the
  // tokens of its part.
  int sequence_ranks = 1;
  bool ring = false;  // they pass keys and values round, in place of exchanging heads
  // Whose code, and which attention it calls on a GPU of `compute_capability` (0: not known).
  CodeStyle code = CodeStyle::kPlain;
  TorchAttention attention = TorchAttention::kSdpa;
  int compute_capability = 0;
  // Parameters are in fp32, under autocast.
  bool fp32_params = false;
  // Autocast is on over parameters in 16 bit.
  bool autocast = false;
  AdapterRun adapters;  // of a model with adapters
  // A forward pass alone, without gradients: nothing is kept for backward.
  bool evaluates = false;
  // torch.utils.checkpoint around every layer, not reentrant: a layer keeps its input alone and
  // runs again within backward.
  bool recompute = false;
  // How these inputs go to the host until backward; null: they stay.
  const ActivationOffloading* offloading = nullptr;
  // With recompute, of layers without biases: the outputs of every other product, from the first
  // on, and of attention are kept too, and not made again. So does torchtitan (torchtitan/
  // distributed/activation_checkpoint.py of 0.2.2, selective_ac_option = "op"). In eager code that
  // is the last product's output too, which nothing wants; compiled code leaves it out.
  bool saves_products = false;
  // Layers under torch.compile: SwiGLU keeps its two inputs alone.
  bool compiled = false;
  // Products of layers are torchao's, in 8 bits; FSDP2 gathers their weights in 8 bits.
  std::optional<TorchFloat8> float8;
  bool float8_gathers = false;
  // The loss under torch.compile: it keeps 16-bit logits, and its backward makes their gradient
  // alone.
  bool compiled_loss = false;
  // Layers under torch.compile whose modules are graphs of their own, with a function of
  // DeepSpeed's between them (stage 3): nothing is fused across modules.
  bool module_graphs = false;

  // MLPs run by tiles of the tokens (tiled_step.cc).
  bool tiled_mlp = false;

  int64_t local_seq() const { return seq_len / sequence_ranks; }
  int64_t tokens() const { return micro_batch * local_seq(); }
  // Tokens of a tile, of which the last may have fewer: ceil(sequence / hidden) tiles, as
  // ArcticTraining and DeepSpeed's tutorial of ALST have them. All tokens without tiles.
  int64_t MlpTile(int64_t hidden) const;
  // Whether a layer's product with so many inputs and outputs is in 8 bits: torchao leaves linears
  // as they are whose sides 16 does not divide.
  bool TakesFloat8(int64_t inputs, int64_t outputs) const {
    return float8.has_value() && inputs % 16 == 0 && outputs % 16 == 0;
  }
  // A linear module with a bias keeps the smaller of its input and its weight; one without keeps
  // its input, and SwiGLU what eager code keeps.
  bool KeepsSmaller(bool bias) const { return module_graphs && bias; }
  bool fused() const { return compiled && !module_graphs; }
};

// Whether `module` is a layer's product in 8 bits.
bool IsFloat8(const TorchModel& model, const TorchRun& run, int module);

// What the parts of a run's code do: its style's row, or what inductor makes of it.
struct TorchParts {
  TorchParts(const TorchModel& model, const TorchRun& run);

  const StyleCode& style;  // of the loss
  const StyleCode& layer;
  const CodePart& norm;
  const CodePart& activation;
  const AttentionKernels kernels;
  const CodePart& attention;
  const LossChunks chunks;
  const CodePart& loss;
  // Bytes of an element that a norm, and the activation, makes: 4 are cast by the product that it
  // goes to.
  const int norm_bytes, activation_bytes;
};

// Tensors by the letters that words have for them.
class TorchSlots {
 public:
  Tensor& operator[](char slot) { return tensors_[slot]; }
  void Reset() { tensors_.clear(); }

 private:
  std::map<char, Tensor> tensors_;  // few of the letters
};

// at::cuda::parseChosenWorkspaceSize (CUDABlas workspaces) on compute capability 9: 4096 x 8 KiB.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

// Plays one micro-step's tensors: 16-bit products, around them what the parts of the code do.
class TorchStep {
 public:
  // `timer` knows the model and the run (TorchTimer::SetModel).
  TorchStep(const TorchModel& model, const TorchRun& run, TorchMemory* memory, TorchRuntime* hooks,
            TorchTimer* timer);

  void Forward();
  void Backward();

 private:
  // What a layer's forward keeps, beside its input.
  struct Saved {
    TorchSlots norm1, norm_q, norm_k, rotary, attention, norm2, activation;
    Tensor normed1, middle, normed2;
    std::vector<Tensor> casts;    // 16-bit copies of norms' fp32 outputs, by product
    std::vector<Tensor> weights;  // with KeepsSmaller
    // Outputs of products with saves_products, until they are taken again.
    Tensor saved_q, saved_v, saved_up, saved_down;
    // Of models that zeroplan does not train.
    TorchSlots post1, post2, shared;
    std::map<int, TorchSlots> adapted;  // of linear modules with an adapter
    Tensor shared_out, shared_scale, attended;
  };

  Tensor New(int64_t bytes, TorchClass kind = TorchClass::kActivations);
  // [tokens, columns] in 16 bit.
  Tensor Rows(int64_t columns) { return New(2 * tokens_ * columns); }
  TorchElements Elements(int64_t e) const;
  // Plays `words` of a part; W: gradients of `module`.
  void Play(std::string_view words, int64_t e, TorchSlots* slots, int module = -1,
            TorchClass kind = TorchClass::kActivations) {
    Play(words, Elements(e), slots, module, kind);
  }
  void Play(std::string_view words, const TorchElements& elements, TorchSlots* slots, int module,
            TorchClass kind);
  // A linear module of a layer. Adds to `saved` the weight that it keeps, if it does, and what it
  // casts of a norm's output.
  Tensor Linear(int module, TorchOp op, int64_t columns, Saved* saved, bool of_norm = false);
  bool KeepsWeight(int64_t columns) const;
  // Bytes of what the module casts to 8 bits to multiply, forward or backward; 0 in 16 bits.
  int64_t Float8CastBytes(int module, bool backward) const;
  // The same of a product that is in `kept` since the checkpoint's first pass, if it is.
  Tensor LinearOr(Tensor* kept, int module, TorchOp op, int64_t columns, Saved* saved,
                  bool of_norm = false);
  // Which of what a layer's first pass made its checkpoint keeps.
  Saved KeptByCheckpoint(Saved saved) const;
  // adapted_step.cc. A linear module with an adapter, or in NF4.
  Tensor AdaptedLinear(int module, TorchOp op, int64_t columns, Saved* saved);
  Tensor AdaptedLinearBackward(int module, TorchOp op, int64_t inputs, Saved* saved);
  bool IsAdapted(int module) const;
  bool IsQuantized(int module) const;
  AdapterRun AdaptersOf(int module) const;
  const zeroplan::AdaptedLinear& Adapted(int module) const;
  TorchElements AdapterElements(int module) const;
  // Whether backward wants the module's input, for its weight or its adapter.
  bool KeepsInput(int module) const;
  // The gradient of a linear module's input of `inputs` columns; its parameters' go to the hooks.
  Tensor LinearBackward(int module, TorchOp op, int64_t inputs, Saved* of_norm = nullptr,
                        Saved* saved = nullptr);
  // `part`: what norm it is; null: that between layers.
  Tensor Norm(int module, TorchOp op, TorchSlots* slots, bool keep, const CodePart* part = nullptr);
  Tensor NormBackward(int module, TorchOp op, TorchSlots* slots, Tensor grad,
                      const CodePart* part = nullptr);
  // A norm of each head of queries or keys, in place of `*rows`.
  void HeadNorm(int module, int64_t columns, TorchSlots* slots, bool keep, Tensor* rows);
  void HeadNormBackward(int module, int64_t columns, TorchSlots* slots, Tensor* grad);
  void ParamGradients(int module);
  void ParamGradient(int param);
  // tiled_step.cc. An MLP by tiles.
  Tensor TiledMlp(int layer, Saved* saved);
  Tensor TiledMlpBackward(int layer);
  void AddToSums(int param, Tensor grad);
  Tensor Block(int layer, Saved* saved, bool keep);
  void AttentionHalf(int layer, Saved* saved, bool keep);
  void BlockBackward(int layer, Saved saved);
  Tensor MlpBackward(int layer, Saved* saved, TorchSlots* grad);
  Tensor AttentionBackward(int layer, Saved* saved, Tensor grad);
  // Whether the input of modules from `first` on, of so many outputs each, is wanted no more.
  bool DropsInput(bool keep, std::initializer_list<int64_t> outputs, int first = -1) const;
  int Module(int layer, int offset) const;
  int64_t ChunkTokens() const;
  int64_t HeadElements() const;
  void HeadAndLoss();
  // Models that zeroplan does not train (planned_step.cc).
  const CodePart& AttentionPart(int layer) const;
  Tensor PlannedBlock(int layer, Saved* saved, bool keep);
  void PlannedBlockBackward(int layer, Saved saved);
  Tensor PlannedMlp(int layer, Saved* saved, bool keep);
  Tensor PlannedMlpBackward(int layer, Saved* saved);
  Tensor Experts(int layer, Saved* saved, bool keep);
  Tensor ExpertsBackward(int layer, Saved* saved);
  void Vision();
  void VisionBackward();
  // The gradient of what the last norm made; that of the head stays in head_grad_.
  Tensor HeadAndLossBackward();

  const TorchModel& model_;
  TorchRun run_;
  TorchParts parts_;
  TorchMemory* memory_;
  TorchRuntime* hooks_;
  TorchTimer* timer_;
  int64_t tokens_, hidden_, ffn_, vocab_, kv_columns_, q_columns_;
  std::vector<Tensor> residuals_;  // layers + 1; empty where nothing wants one any more
  std::vector<Saved> saved_;
  std::shared_ptr<ActivationOffload> offload_;
  // Where ranks share sequences, one of the two.
  std::shared_ptr<HeadExchange> exchange_;
  std::shared_ptr<RingAttention> ring_;
  Tensor token_ids_, final_norm_, head_grad_;
  TorchSlots final_slots_;
  std::vector<TorchSlots> loss_;  // of each chunk
  std::vector<Tensor> images_;    // what a vision tower keeps
  bool keeps_ = true;             // the block that is played keeps what backward wants
  // Of tiles: gradients that further tiles are added to, by parameter; null outside them.
  std::map<int, Tensor>* sums_ = nullptr;
  bool last_tile_ = false;
  // cuBLAS takes one for each thread that multiplies: that of forward, and autograd's.
  Tensor forward_workspace_, backward_workspace_;
};

}  // namespace zeroplan
