// A decoder-only transformer as PyTorch code trains it: modules, parameters, and which tensors a
// micro-step makes and frees, around which kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/runtimes/torch_memory.h"

namespace zeroplan {

struct TorchParam {
  std::string name;  // as published
  uint64_t elements = 0;
  bool vector = false;
  uint64_t columns = 0;  // of a matrix
};

struct TorchModule {
  std::string name;
  std::vector<int> params;  // a tied head has the embedding's
  bool product = false;     // tokens are multiplied with its matrix
  bool biased = false;      // and have a vector added
};

// What the code of a model is like, as far as memory and time depend on it: read off its parameter
// table and its graph.
struct TorchCode {
  bool mean_norms = false;         // LayerNorm, which keeps mean and deviation; else RMSNorm
  bool learned_positions = false;  // a second table, added to the tokens'
  bool one_qkv = false;  // one product makes queries, keys and values; else three, with rotary
  bool gated = false;    // SwiGLU, of two products; else GELU of one
  bool all_biased = false, none_biased = false;  // a layer's products
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

  uint64_t elements() const;
  int final_norm() const {
    return first_layer_module + layer_modules * static_cast<int>(spec.layers);
  }
  int head() const { return final_norm() + 1; }

  // Modules within a layer, from its first on.
  int qkv_modules() const { return code.one_qkv ? 1 : 3; }
  int qk_norm_module() const { return 1 + qkv_modules(); }
  int out_module() const { return qk_norm_module() + (spec.qk_norm ? 2 : 0); }
  int norm2_module() const { return out_module() + 1; }
  int up_module() const { return norm2_module() + 1; }
  int down_module() const { return up_module() + (code.gated ? 2 : 1); }

 private:
  void AddModules();
  void ReadCode();
};

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
        offload_(setup.zero.offload_optimizer.device == OffloadDevice::kCpu) {}
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
  // _StopRecomputationError), without what follows it.
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

  const TorchModel& model_;
  const ZeroConfig zero_;
  TorchMemory* memory_;
  TorchTimer* timer_;
  const uint64_t gpus_;
  const bool offload_;               // the optimizer is on the host
  bool first_ = true, last_ = true;  // of a step's micro-steps
};

struct TorchRun {
  int64_t micro_batch = 1, seq_len = 1024;
  // torch.utils.checkpoint around every layer, not reentrant: a layer keeps its input alone and
  // runs again within backward.
  bool recompute = false;
  // With recompute, of layers without biases: the outputs of every other product, from the first
  // on, and of attention are kept too, and not made again. So does torchtitan (torchtitan/
  // distributed/activation_checkpoint.py of 0.2.2, selective_ac_option = "op"). In eager code that
  // is the last product's output too, which nothing wants; compiled code leaves it out.
  bool saves_products = false;
  // Layers under torch.compile: SwiGLU keeps its two inputs alone.
  bool compiled = false;
  // The loss under torch.compile: it keeps 16-bit logits, and its backward makes their gradient
  // alone.
  bool compiled_loss = false;
  // Layers under torch.compile whose modules are graphs of their own, with a function of
  // DeepSpeed's between them (stage 3): nothing is fused across modules.
  bool module_graphs = false;

  // A linear module with a bias keeps the smaller of its input and its weight; one without keeps
  // its input, and SwiGLU what eager code keeps.
  bool KeepsSmaller(bool bias) const { return module_graphs && bias; }
};

// Plays one micro-step's tensors: 16-bit parameters and activations, scaled_dot_product_attention
// (flash or cuDNN), cross-entropy over fp32 logits. What a block keeps was counted with
// torch.autograd.graph.saved_tensors_hooks (docs/runtimes.md).
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
    Tensor norm1, norm1_stats, qkv, rotated, attention, log_sum_exp, middle, norm2, norm2_stats;
    Tensor unnormed_q, unnormed_k;  // inputs of the norms of queries and keys
    Tensor up, gated, silu, activated;
    std::vector<Tensor> weights;  // with KeepsSmaller
    // Outputs of products with saves_products, until they are taken again.
    Tensor saved_q, saved_v, saved_up, saved_down;
  };

  Tensor New(int64_t bytes, TorchClass kind = TorchClass::kActivations);
  // [tokens, columns] in 16 bit.
  Tensor Rows(int64_t columns) { return New(2 * tokens_ * columns); }
  // A linear module of a layer. Adds to `saved` the weight that it keeps, if it does.
  Tensor Linear(int module, TorchOp op, int64_t columns, Saved* saved);
  bool KeepsWeight(int64_t columns) const;
  // The same of a product that is in `kept` since the checkpoint's first pass, if it is.
  Tensor LinearOr(Tensor* kept, int module, TorchOp op, int64_t columns, Saved* saved);
  // Which of what a layer's first pass made its checkpoint keeps.
  Saved KeptByCheckpoint(Saved saved) const;
  // The gradient of a linear module's input of `inputs` columns; its parameters' go to the hooks.
  Tensor LinearBackward(int module, TorchOp op, int64_t inputs);
  Tensor Norm(int module, TorchOp op, Tensor* stats);
  Tensor NormBackward(int module, TorchOp op);
  void ParamGradients(int module);
  Tensor Block(int layer, Saved* saved, bool keep);
  void BlockBackward(int layer, Saved saved);
  Tensor LossBackward();
  Tensor AttentionBackward(int layer, Saved* saved, Tensor grad);
  int Module(int layer, int offset) const;

  const TorchModel& model_;
  TorchRun run_;
  TorchMemory* memory_;
  TorchRuntime* hooks_;
  TorchTimer* timer_;
  int64_t tokens_, hidden_, ffn_, vocab_, kv_columns_, q_columns_;
  std::vector<Tensor> residuals_;  // layers + 1
  std::vector<Saved> saved_;
  Tensor token_ids_, final_norm_, final_stats_;
  Tensor loss_input_;  // fp32 log-probabilities, or the logits where the loss is compiled
  // cuBLAS takes one for each thread that multiplies: that of forward, and autograd's.
  Tensor forward_workspace_, backward_workspace_;
};

}  // namespace zeroplan
