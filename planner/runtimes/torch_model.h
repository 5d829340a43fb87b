// A decoder-only transformer as PyTorch code trains it: its modules, its parameters, and the
// tensors that a micro-step allocates and frees around its kernels.
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
  uint64_t columns = 0;  // columns of a matrix
  bool trained = true;
  // The number of weights in NF4, which `elements` 16-bit words store; 0: it is not quantized.
  uint64_t quantized = 0;
};

struct TorchModule {
  std::string name;
  std::vector<int> params;  // indices; a tied head has the embedding's
  bool product = false;     // a matmul of the tokens with its matrix
  bool biased = false;      // the matmul has a bias
  // For a linear with an adapter: down and up are the modules of A and B, which follow all others.
  // For A and B: adapts is the linear.
  int down = -1, up = -1, adapts = -1;
};

// The properties of a model's code that determine memory and time, derived from its parameter table
// and its graph.
struct TorchCode {
  bool mean_norms = false;         // LayerNorm, which keeps mean and deviation; else RMSNorm
  bool learned_positions = false;  // a second table, added to the tokens'
  bool one_qkv = false;  // one matmul makes queries, keys and values; else three, with rotary
  bool gated = false;    // SwiGLU, with two matmuls; else GELU, with one
  bool all_biased = false, none_biased = false;  // the matmuls of a layer
  // Further properties of a model that zeroplan does not train; else null.
  const PlannedCode* planned = nullptr;
};

// The modules that hold parameters, in the order of construction and execution. Queries, keys,
// values, gate and up are separate modules if they are separate in published weights. The
// vocabulary of the parameters is padded.
struct TorchModel {
  // Throws Error(kUsage) that names the family if TorchStep cannot play its code.
  explicit TorchModel(const ModelSpec& spec, ExpertModules experts = ExpertModules::kFused);

  ModelSpec spec;
  std::vector<TorchParam> params;
  std::vector<TorchModule> modules;
  int layer_modules = 0;  // modules of one layer
  int first_layer_module = 0;
  TorchCode code;
  // vision_trained: some parameters of the vision tower are trained. projector_trained: some of the
  // tower or of the projection of its images are.
  bool vision_trained = false, projector_trained = false;
  size_t trained_params = 0;
  ExpertModules experts = ExpertModules::kFused;

  uint64_t elements() const;
  // The trained parameters, which are first; all parameters in a model without adapters.
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

  // Offsets of modules within a layer.
  int qkv_modules() const { return code.one_qkv ? 1 : 3; }
  int qk_norm_module() const { return 1 + qkv_modules(); }
  int out_module() const { return qk_norm_module() + (spec.qk_norm ? 2 : 0); }
  // In a layer with norms after attention and MLP, the second norm follows the one after attention.
  int norm2_module() const { return out_module() + (post_norms() ? 2 : 1); }
  int up_module() const { return norm2_module() + 1; }
  int down_module() const { return up_module() + (code.gated && !one_gate_up() ? 2 : 1); }
  bool post_norms() const { return code.planned != nullptr && code.planned->post_norms; }
  bool one_gate_up() const { return code.planned != nullptr && code.planned->one_gate_up; }
  // A sparse block's modules follow its router: one of all experts, or gate, up and down of each;
  // then those of its shared expert.
  bool separate_experts() const { return experts != ExpertModules::kFused; }
  int shared_module() const {
    const int64_t of_experts = separate_experts() ? 3 * code.planned->experts : 1;
    return up_module() + 1 + static_cast<int>(of_experts);
  }
  // The number of modules of the vision tower and its projection, which follow the embedding.
  int vision_modules() const { return code.planned != nullptr ? first_layer_module - 1 : 0; }

 private:
  void AddModules();
  void AddAdapters();
  void ReadCode();
  void ReadPlannedCode(const PlannedCode& planned);
  void SortByTrained();
  void SeparateExperts();
  void Quantize(const TorchModule& module, size_t adapters);
};

struct PlannedParts;          // planner/runtimes/planned_parts.h
class HeadExchange;           // planner/runtimes/torch_sequence.h
class RingAttention;          // the same
class ActivationOffload;      // planner/runtimes/torch_offload.h
struct ActivationOffloading;  // the same
class TorchTimer;
enum class TorchOp : uint8_t;

// A runtime around a transformer's modules: rank 0 of setup.batch.world_size. The pointees must
// outlive the object.
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

  // Creates the model, then the tensors that the runtime holds.
  virtual void Init() = 0;
  // `last`: it is the last micro-step of the step, at its gradient accumulation boundary.
  virtual void BeginMicroStep(bool last) {
    first_ = last_;
    last_ = last;
  }
  virtual void BeginBackward() {}
  virtual void EndBackward() = 0;
  virtual void Step() = 0;

  // The runtime's work around the modules.
  virtual void BeforeForward(int /*module*/) {}
  virtual void AfterForward(int /*module*/) {}
  virtual void BeforeBackward(int /*module*/) {}
  virtual void AfterBackward(int /*module*/) {}
  // A layer is also a module, without parameters of its own.
  virtual void BeforeLayer() {}
  virtual void BeforeLayerBackward() {}
  // Called when the backward pass of a checkpointed layer reaches its last module and needs its
  // saved tensors, so that the layer's modules run forward again. The last module runs only in
  // part: its forward pass stops once the last tensor exists (torch/utils/checkpoint.py,
  // _StopRecomputationError), without the work after it. -1: the last module has no parameters and
  // has run by then.
  virtual void BeforeRecompute(int /*last_module*/) {}
  // Called when a parameter's gradient is complete.
  virtual void Gradient(int param, Tensor grad) = 0;

 protected:
  Tensor New(TorchClass kind, uint64_t bytes, int stream = 0) const {
    return memory_->New(kind, bytes, stream);
  }
  // Adds host memory, which is pageable before it is page-locked.
  void AddHost(uint64_t bytes, bool pin) const {
    memory_->AddPageable(bytes);
    if (!pin) return;
    memory_->Pin(bytes);
    memory_->DropPageable(bytes);
  }
  double Elements(size_t param) const { return static_cast<double>(model_.params[param].elements); }
  // MakeFrozen creates the whole parameters that are not trained; MakeQuantTensors creates the
  // tensors that NF4 weights have in addition to their codes.
  void MakeFrozen(uint64_t bytes_of_element = 2);
  void MakeQuantTensors();
  // GradScaler in fp16, without offload: a pass over the gradients of `bytes`, after which the host
  // reads whether one of them is infinite.
  void UnscaleGradients(double bytes, int params) const;

  const TorchModel& model_;
  const ZeroConfig zero_;
  TorchMemory* memory_;
  TorchTimer* timer_;
  const uint64_t gpus_;
  const bool offload_;               // the optimizer is on the host, or in files
  bool first_ = true, last_ = true;  // the current micro-step is the first, the last of its step
  std::vector<Tensor> frozen_;
};

struct TorchRun {
  int64_t micro_batch = 1, seq_len = 1024;
  // Ranks that share each sequence (BatchSpec::sequence_ranks). Outside attention a rank has only
  // its part of the tokens.
  int sequence_ranks = 1;
  bool ring = false;  // the ranks pass keys and values around instead of exchanging heads
  // The modelling code, and the attention that it calls on a GPU of `compute_capability` (0:
  // unknown).
  CodeStyle code = CodeStyle::kPlain;
  TorchAttention attention = TorchAttention::kSdpa;
  int compute_capability = 0;
  // Parameters are in fp32, under autocast.
  bool fp32_params = false;
  // Autocast is on over parameters in 16 bit.
  bool autocast = false;
  AdapterRun adapters;  // set for a model with adapters
  // Only a forward pass without gradients: no activations are kept for backward.
  bool evaluates = false;
  // torch.utils.checkpoint around every layer, not reentrant: a layer keeps only its input and runs
  // again within backward.
  bool recompute = false;
  // The way in which inputs of checkpointed layers are offloaded to the host until backward; null:
  // they are not.
  const ActivationOffloading* offloading = nullptr;
  // Under recompute, layers without biases also keep the outputs of every other matmul, from the
  // first on, and of attention, and do not recompute them, as in torchtitan
  // (torchtitan/distributed/activation_checkpoint.py of 0.2.2, selective_ac_option = "op"). Eager
  // code also keeps the output of the last matmul, which nothing needs; compiled code does not.
  bool saves_products = false;
  // Layers under torch.compile: SwiGLU keeps only its two inputs.
  bool compiled = false;
  // float8: matmuls of layers are torchao's, in FP8. float8_gathers: FSDP2 gathers their weights in
  // FP8.
  std::optional<TorchFloat8> float8;
  bool float8_gathers = false;
  // The loss under torch.compile: it keeps 16-bit logits, and its backward makes only their
  // gradient.
  bool compiled_loss = false;
  // Layers under torch.compile whose modules are separate graphs, with a function of DeepSpeed
  // between them (stage 3): nothing is fused across modules.
  bool module_graphs = false;

  // MLPs run in tiles of the tokens (tiled_step.cc).
  bool tiled_mlp = false;

  int64_t local_seq() const { return seq_len / sequence_ranks; }
  int64_t tokens() const { return micro_batch * local_seq(); }
  // Tokens of a tile; the last tile may have fewer. There are ceil(sequence / hidden) tiles, as in
  // ArcticTraining and DeepSpeed's tutorial of ALST. Without tiles: all tokens.
  int64_t MlpTile(int64_t hidden) const;
  // True if a layer's matmul with these numbers of inputs and outputs runs in FP8. torchao does not
  // convert linears with a side that 16 does not divide.
  bool TakesFloat8(int64_t inputs, int64_t outputs) const {
    return float8.has_value() && inputs % 16 == 0 && outputs % 16 == 0;
  }
  // Under module_graphs, a linear module with a bias keeps the smaller of its input and its weight.
  // One without a bias keeps its input, and SwiGLU keeps the same tensors as eager code.
  bool KeepsSmaller(bool bias) const { return module_graphs && bias; }
  bool fused() const { return compiled && !module_graphs; }
};

// True if `module` is a matmul of a layer in FP8.
bool IsFloat8(const TorchModel& model, const TorchRun& run, int module);

// The parts of a run's code: those of its style's row, or those that inductor generates from it.
struct TorchParts {
  TorchParts(const TorchModel& model, const TorchRun& run);

  const StyleCode& style;  // the style of the loss
  const StyleCode& layer;
  const CodePart& norm;
  const CodePart& activation;
  const TorchAttentionKernels kernels;
  const CodePart& attention;
  const LossChunks chunks;
  const CodePart& loss;
  // Bytes of an element of the output of a norm and of the activation. 4: the matmul that reads it
  // casts it.
  const int norm_bytes, activation_bytes;
};

// Tensors by their letters in words.
class TorchSlots {
 public:
  Tensor& operator[](char slot) { return tensors_[slot]; }
  void Reset() { tensors_.clear(); }

 private:
  std::map<char, Tensor> tensors_;  // only letters that are in use
};

// at::cuda::parseChosenWorkspaceSize (CUDABlas workspaces) on compute capability 9: 4096 x 8 KiB.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

// Simulates the tensors of one micro-step: 16-bit matmuls, and around them the parts of the code.
class TorchStep {
 public:
  // REQUIRES: `timer` has the model and the run (TorchTimer::SetModel).
  TorchStep(const TorchModel& model, const TorchRun& run, TorchMemory* memory, TorchRuntime* hooks,
            TorchTimer* timer);

  void Forward();
  void Backward();

 private:
  // The tensors that a layer's forward keeps in addition to its input.
  struct Saved {
    TorchSlots norm1, norm_q, norm_k, rotary, attention, norm2, activation;
    Tensor normed1, middle, normed2;
    std::vector<Tensor> casts;    // 16-bit copies of norms' fp32 outputs, by product
    std::vector<Tensor> weights;  // weights that are kept (KeepsSmaller)
    // Outputs of matmuls with saves_products, until the recompute uses them.
    Tensor saved_q, saved_v, saved_up, saved_down;
    // Only for models that zeroplan does not train.
    TorchSlots post1, post2, shared;
    std::map<int, TorchSlots> adapted;  // tensors of linear modules with an adapter
    Tensor shared_out, shared_scale, attended;
    std::vector<TorchSlots> experts;  // tensors of each, where they are modules
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
  // Plays a linear module of a layer. Adds to `saved` its weight, if it keeps it, and the cast copy
  // of a norm's output.
  Tensor Linear(int module, TorchOp op, int64_t columns, Saved* saved, bool of_norm = false);
  bool KeepsWeight(int64_t columns) const;
  // Bytes of the tensors that the module casts to FP8 for its matmul, forward or backward; 0 in 16
  // bit.
  int64_t Float8CastBytes(int module, bool backward) const;
  // Returns the matmul's output from `*kept`, if the checkpoint's first pass kept it; else the same
  // as Linear.
  Tensor LinearOr(Tensor* kept, int module, TorchOp op, int64_t columns, Saved* saved,
                  bool of_norm = false);
  // The tensors of a layer's first pass that its checkpoint keeps.
  Saved KeptByCheckpoint(Saved saved) const;
  // In adapted_step.cc: a linear module with an adapter, or in NF4.
  Tensor AdaptedLinear(int module, TorchOp op, int64_t columns, Saved* saved);
  Tensor AdaptedLinearBackward(int module, TorchOp op, int64_t inputs, Saved* saved);
  bool IsAdapted(int module) const;
  bool IsQuantized(int module) const;
  AdapterRun AdaptersOf(int module) const;
  const zeroplan::AdaptedLinear& Adapted(int module) const;
  TorchElements AdapterElements(int module) const;
  // True if backward needs the module's input, for its weight or its adapter.
  bool KeepsInput(int module) const;
  // Returns the gradient of a linear module's input of `inputs` columns, and passes its parameters'
  // gradients to the hooks.
  Tensor LinearBackward(int module, TorchOp op, int64_t inputs, Saved* of_norm = nullptr,
                        Saved* saved = nullptr);
  // `part`: the norm's part; null: the norm between layers.
  Tensor Norm(int module, TorchOp op, TorchSlots* slots, bool keep, const CodePart* part = nullptr);
  Tensor NormBackward(int module, TorchOp op, TorchSlots* slots, Tensor grad,
                      const CodePart* part = nullptr);
  // Replaces `*rows` by its norm of each head of queries or keys.
  void HeadNorm(int module, int64_t columns, TorchSlots* slots, bool keep, Tensor* rows);
  void HeadNormBackward(int module, int64_t columns, TorchSlots* slots, Tensor* grad);
  void ParamGradients(int module);
  void ParamGradient(int param);
  // In tiled_step.cc: an MLP in tiles.
  Tensor TiledMlp(int layer, Saved* saved);
  Tensor TiledMlpBackward(int layer);
  void AddToSums(int param, Tensor grad);
  Tensor Block(int layer, Saved* saved, bool keep);
  void AttentionHalf(int layer, Saved* saved, bool keep);
  void BlockBackward(int layer, Saved saved);
  Tensor MlpBackward(int layer, Saved* saved, TorchSlots* grad);
  Tensor AttentionBackward(int layer, Saved* saved, Tensor grad);
  // True if nothing needs the input of the modules from `first` on any more. `outputs`: the outputs
  // of each module.
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
  Tensor SeparateExperts(int layer, Saved* saved, bool keep);
  Tensor SeparateExpertsBackward(int layer, Saved* saved);
  TorchElements OneExpert() const;
  const PlannedParts& Planned() const;
  void Vision();
  void VisionBackward();
  // Returns the gradient of the last norm's output; the head's gradient stays in head_grad_.
  Tensor HeadAndLossBackward();

  const TorchModel& model_;
  TorchRun run_;
  TorchParts parts_;
  TorchMemory* memory_;
  TorchRuntime* hooks_;
  TorchTimer* timer_;
  int64_t tokens_, hidden_, ffn_, vocab_, kv_columns_, q_columns_;
  std::vector<Tensor> residuals_;  // layers + 1; empty if nothing needs one any more
  std::vector<Saved> saved_;
  std::shared_ptr<ActivationOffload> offload_;
  // One of the two is set if ranks share sequences.
  std::shared_ptr<HeadExchange> exchange_;
  std::shared_ptr<RingAttention> ring_;
  Tensor token_ids_, final_norm_, head_grad_;
  TorchSlots final_slots_;
  std::vector<TorchSlots> loss_;  // by chunk
  std::vector<Tensor> images_;    // tensors that a vision tower keeps
  bool keeps_ = true;             // the current block keeps the tensors that backward needs
  // Within tiles: gradients to which further tiles are added, by parameter. Null outside tiles.
  std::map<int, Tensor>* sums_ = nullptr;
  bool last_tile_ = false;
  // cuBLAS allocates a workspace for each thread that runs matmuls: the forward thread and
  // autograd's.
  Tensor forward_workspace_, backward_workspace_;
};

}  // namespace zeroplan
